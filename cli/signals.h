/* SIGINT, SIGTERM and SIGHUP as a flag, so that work ends at a point of its choice. */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

/* From now on the first such signal only sets the flag; a second one ends the process at once
 * with 128 + its number. Writing to a pipe that nobody reads is an error of the write. SIGHUP
 * stays ignored where it was (nohup). */
void signals_catch(void);

/* The number of the signal that came, 0 when none did. */
int signals_caught(void);

#endif

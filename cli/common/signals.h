/* SIGINT, SIGTERM, SIGHUP and SIGUSR1 as a flag, so that work ends at a point of its choice. */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

/* What a signal would cost that ends the process at once. */
typedef enum signals_at_stake {
    SIGNALS_OUTPUT,  /* what is written: the first one sets the flag, a second one ends it */
    SIGNALS_NOTHING, /* the first one ends it */
    SIGNALS_WORK     /* steps that no checkpoint has yet: the third one ends it, the second warns */
} signals_at_stake;

/* Says what is at stake from now on; SIGNALS_OUTPUT at first. */
void signals_stake(signals_at_stake what);

/* From now on the first such signal only sets the flag; a second one, more than half a second
 * later, ends the process at once with 128 + its number; but see signals_stake. Writing to a pipe
 * that nobody reads is an error of the write. SIGHUP stays ignored where it was (nohup). */
void signals_catch(void);

/* The number of the signal that came, 0 when none did. */
int signals_caught(void);

#endif

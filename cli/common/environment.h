/* What is wrong with the environment variables of this program. */
#ifndef CLI_ENVIRONMENT_H
#define CLI_ENVIRONMENT_H

/* Says of every variable that begins with CUP_ what is wrong with it; returns an exit code. */
int environment_check(void);

#endif

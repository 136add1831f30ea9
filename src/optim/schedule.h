/* The inside of schedules. */
#ifndef CUP_OPTIM_SCHEDULE_H
#define CUP_OPTIM_SCHEDULE_H

#include "cupola/optim.h"

/* The names of the declines by their numbers, ending with NULL. */
extern const char *const cup__decline_words[];

#endif

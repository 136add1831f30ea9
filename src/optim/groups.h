/* Groups of parameters, by patterns of their names, with a weight decay and a rate of their own. */
#ifndef CUP_OPTIM_GROUPS_H
#define CUP_OPTIM_GROUPS_H

#include "base/error.h"
#include "cupola/optim.h"

#define CUP__GROUPS_MOST 62

typedef struct cup__group {
    const char *text; /* PATTERN=DECAY or PATTERN=DECAY,RATE; in the text that was read */
    int length, pattern; /* of it, and of the pattern */
    double decay, rate;
} cup__group;

typedef struct cup__groups {
    cup__group list[CUP__GROUPS_MOST];
    int count;
    int64_t found; /* bit i: some name was in group i */
} cup__groups;

/* Reads `groups` of an optimizer's options, which stays where it is. */
cup_status cup__groups_read(cup__error *error, const char *text, cup__groups *out);

/* The last group that a name is in, or NULL; notes all that it is in. */
const cup__group *cup__groups_find(cup__groups *groups, const char *name);

/* Fails where a group has no name in it; `example` is a name that there is. */
cup_status cup__groups_all_found(cup__error *error, const cup__groups *groups,
                                 const char *example);

/* The text without the groups that no name is in. */
void cup__groups_write(const cup__groups *groups, char text[CUP_PARAMETER_GROUPS]);

#endif

/* How an optimizer is split over processes: which parameter belongs to which, and what follows. */
#ifndef CUP_OPTIM_SPLIT_H
#define CUP_OPTIM_SPLIT_H

#include "comm/comm.h"
#include "optim/optimizer.h"

/* One state of all, in the order of the whole. */
typedef struct cup__split_state {
    const char *name;
    cup_tensor *tensor; /* NULL: another process keeps it */
    cup__shape shape;
    int owner, parameter; /* -1: of none */
} cup__split_state;

struct cup__split {
    cup_comm *comm;
    cup_comm **among; /* by parameter: those who have the same of it, of whom one owns it */
    /* Where processes share out a model, or its experts, or each by others: they, and those who
     * have the parts of this one. */
    struct {
        cup_comm *sharers, *same;
    } alike[2];
    int alike_count;
    int stage;
    int *owner;         /* of each parameter, a rank in `among` */
    int at;             /* the parameter whose states are noted; -1: what all keep */
    cup_tensor **list;  /* of the parameters of one process, or of some gradients */
    int *list_owners;
    cup__split_state *states;
    size_t count, capacity;
    cup_named *whole; /* on rank 0, while it is asked for */
    /* From stage 2 on: parameters whose gradients go when their sums are made; whether all of the
     * step are; and the norms of what each process has. */
    int *waiting;
    int waiting_count;
    bool summed, staged; /* staged: the optimizer's norms are of stages */
    cup_tensor *part_norms, *own_norm;
    struct cup__brought *brought; /* at stage 3 */
};

/* Those among whom parameter i has an owner, -1 being what all keep; whether this process is it. */
cup_comm *cup__split_among(const struct cup__split *s, int i);
bool cup__split_is_own(const struct cup__split *s, int i);

/* Stage 2: what it takes. */
cup_status cup__split_sums_make(cup_optimizer *o);
void cup__split_sums_free(cup_optimizer *o);

/* Stage 3: leaves each parameter to its owner, and lets go of what the others have of it; forgets
 * that, so that what is away stays so. */
cup_status cup__brought_make(cup_optimizer *o);
void cup__brought_free(cup_optimizer *o);

#endif

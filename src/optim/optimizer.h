/* The inside of an optimizer, and how its states are split over processes. */
#ifndef CUP_OPTIM_OPTIMIZER_H
#define CUP_OPTIM_OPTIMIZER_H

#include "cupola/expr.h"
#include "cupola/optim.h"
#include "optim/method.h"
#include "optim/orthogonal.h"
#include "tensor/tensor.h"

#define STATES_MOST 4 /* tensors kept for a parameter: master, first, second, average */

struct cup_optimizer {
    cup_context *c;
    cup_optimizer_options options;
    const cup__row *row, *others; /* of hidden matrices and of all else, with their attributes */
    cup__method_attributes attributes, others_attributes;
    int count, plain;       /* parameters; those that are not Muon's, which come first */
    cup_tensor **parameters;
    cup_tensor **inputs;    /* of the update: factors, settings, the records of `plain` */
    cup_tensor **gradients; /* of a step */
    cup_tensor *hyper, *steps, *norm;
    cup_named *state;
    int64_t state_count;
    cup__muon_steps *muon;        /* or NULL */
    cup__muon_matrix *matrices;
    int matrix_count;
    cup_tensor **averages; /* inputs of the step of averages, or NULL */
    cup_tensor **shown;    /* while they are shown, the parameters as they were; or NULL */
    struct cup__split *split; /* of states over processes, or NULL */
    /* By parameter: who shares it out with this process, or NULL, and whether this process counts
     * it in the norm, which is of what all of `among` count. The tensors are what each of them
     * brings. */
    cup_comm **divided;
    bool *counted;
    cup_comm *among;
    cup_tensor *norms, *own_norm;
    cup_tensor *guarded, *stuck; /* see optim/guard.h; or NULL */
    cup_tensor *scale;    /* see optim/loss_scale.h; or NULL */
    cup_expr *scale_next;
    double scale_steps;
    bool ready; /* a learning rate was set */
};

/* cup_optimizer_new where this process has a part of some parameters: of each what part, or NULL.
 * `parts` may be NULL. */
cup_optimizer *cup__optimizer_new(cup_context *c, const cup_parameter *parameters, int count,
                                  const cup_optimizer_options *options,
                                  const cup__portion *const *parts);

/* Parameters whose states are here, so far. */
static inline int cup__optimizer_own(const cup_optimizer *o)
{
    return o->plain + o->matrix_count;
}

/* Keeps a tensor as the state "NAME.part", or NAME where part is "". NULL with an error, also where
 * there is no tensor. */
cup_tensor *cup__optimizer_state_add(cup_optimizer *o, const char *name, const char *part,
                                     cup_tensor *t);

/* Memory for a state, of the device or of the host, full of zeros; in the innermost scope. */
cup_tensor *cup__optimizer_room(cup_optimizer *o, const cup__shape *shape);

/* Says that parameter i is a part, the rest of which the others of m have. */
cup_status cup__optimizer_divide(cup_optimizer *o, int i, cup_comm *m);
/* Says which parameters this process counts in the norm of all that m's processes have; the
 * optimizer takes the list. */
cup_status cup__optimizer_count(cup_optimizer *o, cup_comm *m, bool *counted);

/* The gradients that the next step takes, in the order of the parameters; borrowed. */
cup_tensor *const *cup__optimizer_gradients(cup_optimizer *o, int *count);

/* The norm of all gradients, of which there are `count` in their order here. */
cup_status cup__divided_norm(cup_optimizer *o, int count);
void cup__divided_free(cup_optimizer *o);

/* The same of the parts of what m's processes share out, or of what is whole where it is NULL; and
 * of what this process counts. */
cup_tensor *const *cup__optimizer_gradients_of(cup_optimizer *o, const cup_comm *m, int *count);
cup_tensor *const *cup__optimizer_gradients_counted(cup_optimizer *o, int *count);

/* Says which process keeps the states of each parameter: about as many elements each. Of a part it
 * is one of those who have the same. */
cup_status cup__split_make(cup_optimizer *o, const cup_parameter *parameters,
                           const cup__portion *const *parts);
void cup__split_free(cup_optimizer *o);
/* At stage 3: gives all one beginning. */
cup_status cup__split_begin(cup_optimizer *o, const cup_parameter *parameters);
/* Whether this process keeps those of parameter i. */
bool cup__split_owns(const cup_optimizer *o, int i);
/* Notes a state, in the order in which one process alone would have them; of another process the
 * tensor is NULL. The name is borrowed where there is a tensor, else copied. */
cup_status cup__split_note(cup_optimizer *o, const char *name, cup_tensor *t,
                           const cup__shape *shape);
/* Behind a step: all get the values from those that made their steps. */
cup_status cup__split_share(cup_optimizer *o);

/* How much is shared out: 0 nothing, 1 states, 2 gradients, too, 3 parameters, too. */
int cup__split_stage(const cup_optimizer *o);

/* Says whether all gradients of the step are added up. */
void cup__split_summed(cup_optimizer *o, bool all);

/* From stage 2 on: begins to add up the gradients of parameters with these numbers, on their
 * owners; ends that, and frees them on the others; does both for all that are left of a step. */
cup_status cup__split_sum_begin(cup_optimizer *o, const int *which, int count);
cup_status cup__split_sum_end(cup_optimizer *o);
cup_status cup__split_sum_all(cup_optimizer *o);
/* The norm of all gradients, of which `count` are here; with what m's stages of a model count,
 * where these were said. The optimizer takes the list, see cup__optimizer_count. */
cup_status cup__split_norm(cup_optimizer *o, int count);
cup_status cup__split_count(cup_optimizer *o, cup_comm *m, bool *counted);

/* At stage 3: whether parameter values in the tensor's memory are another process's. And lets go of
 * all that others keep, as behind a step. */
bool cup__split_elsewhere(const cup_tensor *t);
bool cup__split_shared_out(const cup_tensor *t);
void cup__split_let_go(cup_optimizer *o);
/* Waits for what is on its way, before something else is sent. */
cup_status cup__split_arrive(cup_optimizer *o);
/* Around calls that use what is here alone; and around a step's own, behind which a new step
 * begins. */
void cup__split_aside(cup_optimizer *o, bool on);
void cup__split_pause(cup_optimizer *o, bool on);

/* The copies of 16-bit parameters that this process keeps become what the parameters are now. */
cup_status cup__split_renew(cup_optimizer *o);

/* The states of all parameters, as one process alone has them. On rank 0 tensors for what others
 * keep are made, which stay until the last call. All processes call the next two: they bring the
 * others' states to rank 0, or rank 0's to those who keep them. Where nothing is split, the first
 * gives the optimizer's own and the rest does nothing. */
const cup_named *cup__optimizer_whole(cup_optimizer *o, int64_t *count);
cup_status cup__optimizer_collect(cup_optimizer *o);
cup_status cup__optimizer_deal(cup_optimizer *o);
void cup__optimizer_whole_free(cup_optimizer *o);
/* Of parts the loop makes whole ones: each process has all in the list of the first call, without
 * the tensors that it does not keep. Lends one for a state in the innermost scope, NULL where there
 * is none of this name; and gives what its keeper has to all who have that part, into *t or such a
 * one. */
cup_tensor *cup__optimizer_lent(cup_optimizer *o, const char *name);
cup_status cup__optimizer_bring(cup_optimizer *o, const char *name, cup_tensor **t);

/* Where all processes of a communicator write states, each its share: a list of those of this one,
 * to be freed; split states are of who keeps them, others of who has least so far. And how many
 * there are of all. */
cup_status cup__optimizer_written(cup_optimizer *o, cup_comm *comm, cup_named **out,
                                  int64_t *count);
int64_t cup__optimizer_state_count(const cup_optimizer *o);
/* The name of one of these and its shape here, whoever keeps it. */
const char *cup__optimizer_state_of(const cup_optimizer *o, int64_t i, cup__shape *shape);

#endif

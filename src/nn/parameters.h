/* The inside of a list of parameters. */
#ifndef CUP_NN_PARAMETERS_H
#define CUP_NN_PARAMETERS_H

#include "cupola/parameters.h"
#include "tensor/tensor.h"

/* The context of a list, also of one under a prefix, and its prefix, which ends with a dot or is
 * empty. */
cup_context *cup__parameters_context(const cup_parameters *list);
const char *cup__parameters_prefix(const cup_parameters *list);
cup_dtype cup__parameters_dtype(const cup_parameters *list);
/* Whether a parameter may have it: a float that an optimizer changes as it is. */
bool cup__dtype_learns(cup_dtype dtype);
bool cup__parameters_is_training(const cup_parameters *list);
/* How what was made in the whole list behaves. */
typedef struct cup__parameters_modes {
    bool training, fp8, sequence;
    int64_t batch, length; /* of the tokens whose rows processes share out, see `sequence` */
    bool beside; /* sums go on beside what is computed, see CUP_COMM_BESIDE */
    int64_t half_tiles; /* that products of half a batch have at least to be made so; -1: none is */
    cup_comm *among, *experts; /* that have parts of all, or of the experts, or NULL */
    cup_comm *sharing; /* a batch, or NULL */
    cup_comm *ring;    /* sequences, or NULL */
    cup_comm *keys;    /* a head of keys and values, or NULL; the list's own */
    cup_tensor *documents; /* where they end, or NULL */
    struct cup__slopes *slopes; /* that were made, the list's own */
} cup__parameters_modes;

cup__parameters_modes *cup__parameters_modes_of(const cup_parameters *list);
/* How fast the scores of heads fall with the distance, [count] of those from `first` on, of so many
 * in all: made once for all layers of the list, and no parameter. */
cup_tensor *cup__parameters_slopes(cup_parameters *list, cup_dtype dtype, int first, int count,
                                   int all);
void cup__parameters_slopes_free(cup_parameters *list);
/* The name of what was made first in the whole list; NULL: nothing is there. */
const char *cup__parameters_first(const cup_parameters *list);
/* Those that share a batch with this process; NULL where it has its own. */
cup_comm *cup__parameters_sharing(const cup_parameters *list);
/* Whether a linear layer of this weight multiplies codes of 8 bits now. */
bool cup__parameters_is_fp8(const cup_parameters *list, const cup_tensor *weight);

/* What this process has of a tensor: the part of the whole that has its number, of each section
 * along the axis. */
typedef struct cup__portion {
    cup_comm *comm;
    int axis, sections;
    int64_t section[3]; /* their sizes in the whole */
    int64_t rows;       /* of the whole, that count; 0: all */
} cup__portion;

/* That of a tensor of the list, by the tensor or by its whole name; NULL where it is the whole. */
const cup__portion *cup__parameters_part(const cup_parameters *list, const cup_tensor *t);
const cup__portion *cup__parameters_part_named(const cup_parameters *list, const char *name,
                                            size_t length);

/* What a process has of a whole of that shape where processes share out the list as the modes say;
 * without a communicator where it has the whole. Checks that it can be shared out so. */
cup_status cup__part_set(cup_context *c, const char *name, int ndim, const int64_t *shape,
                         const cup_parameter_options *options, const cup__parameters_modes *modes,
                         cup__portion *out);
/* The shape of the whole of a part; this process's part of a whole; and the whole of the parts that
 * all of the communicator bring. New tensors of no gradient. */
cup__shape cup__part_whole_shape(const cup_tensor *t, const cup__portion *part);
cup_tensor *cup__part_take(cup_context *c, cup_tensor *whole, const cup__portion *part);
cup_tensor *cup__part_gather(cup_context *c, cup_tensor *t, const cup__portion *part);

/* Whether processes share out the rows between blocks; and the sum of what m's processes have, or
 * where they do, this one's rows of it. */
bool cup__rows_are_shared(const cup_parameters *list);
cup_tensor *cup__rows_sum(const cup_parameters *list, cup_comm *m, cup_tensor *x);

/* The first name of a tensor of the list; NULL: it is none of them. */
const char *cup__parameters_name(const cup_parameters *list, const cup_tensor *t);

/* The fewest processes that have all of the list, parts and experts, together; or NULL. */
cup_comm *cup__parameters_sharers(const cup_parameters *list);

/* An optimizer of parameters of the list, of which some may be parts. What is whole is counted by
 * the first of the processes that share them out. */
cup_optimizer *cup__parts_optimizer(const cup_parameters *list, const cup_parameter *parameters,
                                    int count, const cup_optimizer_options *options);

/* First values, drawn from the random numbers that belong to the whole name; in no scope of the
 * caller's, kept. */
cup_tensor *cup__initial(cup_context *c, const char *name, cup_dtype dtype, int ndim,
                         const int64_t *shape, const cup_parameter_options *options);

#endif

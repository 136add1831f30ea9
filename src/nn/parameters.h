/* The inside of a list of parameters. */
#ifndef CUP_NN_PARAMETERS_H
#define CUP_NN_PARAMETERS_H

#include "cupola/parameters.h"

/* The context of a list, also of one under a prefix, and its prefix, which ends with a dot or is
 * empty. */
cup_context *cup__parameters_context(const cup_parameters *list);
const char *cup__parameters_prefix(const cup_parameters *list);
cup_dtype cup__parameters_dtype(const cup_parameters *list);
bool cup__parameters_is_training(const cup_parameters *list);

/* First values, drawn from the random numbers that belong to the whole name; in no scope of the
 * caller's, kept. */
cup_tensor *cup__initial(cup_context *c, const char *name, cup_dtype dtype, int ndim,
                         const int64_t *shape, const cup_parameter_options *options);

#endif

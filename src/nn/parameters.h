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

/* A caller's options, which may be NULL or of another version, as those of this version: copies
 * what both know, and fails where the caller has set what this version does not know. */
cup_status cup__options_take(cup_context *c, const char *what, void *to, size_t own,
                             const void *from);

/* First values, drawn from the random numbers that belong to the whole name; in no scope of the
 * caller's, kept. */
cup_tensor *cup__initial(cup_context *c, const char *name, cup_dtype dtype, int ndim,
                         const int64_t *shape, const cup_parameter_options *options);

#endif

/* The methods of an optimizer as rows of ops.def: what each asks of the options. */
#ifndef CUP_OPTIM_METHOD_H
#define CUP_OPTIM_METHOD_H

#include "cupola/optim.h"
#include "dispatch/op.h"

/* The op of a method, and the one by which parameters go that are no hidden matrices: the same but
 * for a method that is for those alone. */
const cup__row *cup__method_row(cup_method method);
const cup__row *cup__method_others(cup_method method);

/* Whether the options make sense; then fields of 0 have the method's defaults. */
cup_status cup__method_options(cup_context *c, cup_optimizer_options *o);

/* The attributes of a method's op, from options that have their defaults. */
typedef struct cup__method_attributes {
    double room[CUP_MAX_DIMS];
} cup__method_attributes;
void cup__method_attributes_of(const cup__row *row, const cup_optimizer_options *o,
                               cup__method_attributes *out);

/* The number that an op of a method has by this name; 0 where it has none. */
double cup__method_number(const cup__row *row, const cup__method_attributes *a, const char *name);

/* How many states the method keeps for a parameter, from options as they were given; and how many
 * bytes of a number they are, but for what rows of codes end with. */
int cup__method_states(const cup_optimizer_options *given);
int cup__method_state_bytes(const cup_optimizer_options *given);

/* Whether it keeps states as codes of 8 bits, which are of whole parameters. */
bool cup__method_is_coded(cup_method method);

#endif

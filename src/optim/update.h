/* What the updates of all optimizers share: the record of a parameter, the walk over many
 * parameters on all cores, and the launch of one kernel for all of them.
 *
 * Inputs of an update: factors [5], from step_factors; settings [n,2], a row for each parameter;
 * then a record for each parameter: the parameter, its gradient or NULL, when it is left alone, its
 * master copy in higher precision or NULL, and up to two states, all of one shape. Where there is a
 * master, it is what the step changes, and the parameter becomes its rounding. What a step changes
 * is said by a rule, see rule.h. */
#ifndef CUP_OPTIM_UPDATE_H
#define CUP_OPTIM_UPDATE_H

#include "dispatch/op.h"

enum {
    CUP__FACTOR_CORRECTED, /* learning rate / (1 - beta1^t) */
    CUP__FACTOR_ROOT,      /* 1 / sqrt(1 - beta2^t) */
    CUP__FACTOR_GRADIENT,  /* what gradients are multiplied with: their scale, and the clip */
    CUP__FACTOR_RATE,      /* learning rate */
    CUP__FACTOR_GO,        /* 0: the gradients are not finite and the step changes nothing */
    CUP__FACTOR_COUNT
};

enum { CUP__SETTING_RATE, CUP__SETTING_DECAY, CUP__SETTING_COUNT }; /* columns of the settings */

enum { CUP__VALUE, CUP__GRADIENT, CUP__MASTER, CUP__FIRST, CUP__SECOND, CUP__RECORD };
#define CUP__RECORDS_AT 2

#define CUP__UPDATE_NUMBERS 3

/* The numbers of one step of one parameter, as rules see them: the factors, with the rates
 * multiplied by the parameter's own, its weight decay, and the attributes. */
#define CUP__STEP_NUMBERS(real)                                                                    \
    struct {                                                                                       \
        real corrected, root, gradient, rate, decay;                                               \
        real a[CUP__UPDATE_NUMBERS], rest[CUP__UPDATE_NUMBERS]; /* the attributes; 1 - them */     \
    }
typedef CUP__STEP_NUMBERS(double) cup__step;
typedef CUP__STEP_NUMBERS(float) cup__step_f32;

typedef struct cup__update {
    const char *source, *text, *entry; /* of the kernel */
    int states;    /* kept for each parameter */
    int last_for;  /* the last state is kept where this attribute, from 1, is not 0; 0: always */
    bool coded;    /* states are codes of 8 bits, see codes.h, and do not depend on the value */
    bool unscaled; /* the gradient is a direction of a size of its own: no scale, no clip */
    int others;    /* not 0: hidden matrices go by it, and by this op all other parameters */
    /* One element, whose gradient is scaled; returns the new value. */
    double (*f64)(double value, double gradient, double *states, int count, const cup__step *step);
    /* `count` elements in place; vectorised. States that are not there are NULL. */
    void (*f32)(float *values, const float *gradients, float *firsts, float *seconds,
                int64_t count, const cup__step_f32 *step);
} cup__update;

/* The attributes of a row as numbers, 0 behind the last; how many states a parameter has with
 * them; whether bf16 values are rounded at random. */
void cup__update_numbers(const cup__row *row, const void *attributes, double *out);
int cup__update_states(const cup__row *row, const void *attributes);
bool cup__update_stochastic(const cup__row *row, const void *attributes);

/* Of a parameter's states. */
cup__shape cup__update_state_shape(const cup__row *row, const cup__shape *parameter);

/* Numbers of coded states, the first of which are signed: `count` from `offset` on, to be
 * written the first of a row. Writing takes random numbers of the call. */
void cup__codes_read(const cup_tensor *state, bool is_signed, int64_t offset, int64_t count,
                     float *out);
void cup__codes_write(const cup__call *call, int record, bool is_signed, int64_t offset,
                      int64_t count, const float *values);

/* How many records there are, and each one's five tensors. */
int cup__update_records(const cup__call *call);
cup_tensor *const *cup__update_record(const cup__call *call, int i);
/* How many elements the step changes: none when there is no gradient. */
int64_t cup__update_elements(const cup__call *call, int i);

/* What the descriptors of all updates share. */
cup_status cup__update_infer(cup__call *call);
cup_status cup__update_specification(cup__call *call);
extern const cup__impl cup__update_impls[];
cup_status cup__update_cuda(cup__call *call);
const char *cup__update_refuses_cuda(const cup__call *call);
void cup__update_cost(const cup__call *call, double *bytes, double *flops);

/* The fields of a descriptor that every update has. */
#define CUP__STATE_DTYPES (CUP__DTYPE(F32) | CUP__DTYPE(F64))
#define CUP__UPDATE(of) CUP__UPDATE_FROM(of, -2)
/* The same where the first state is tested from `low` on, as one that a root is taken of. */
#define CUP__UPDATE_FROM(of, low) CUP__UPDATE_STATES(of, CUP__STATE_DTYPES, low, 2, 0.01, 2)
/* Codes of 8 bits, and exponents of them that leave a step within f32. */
#define CUP__UPDATE_CODED(of) CUP__UPDATE_STATES(of, CUP__DTYPE(U8), 40, 216, 40, 216)
#define CUP__UPDATE_STATES(of, dtypes, low, high, low2, high2)                               \
    .update = (of), .infer = cup__update_infer, .specification = cup__update_specification,        \
    .impls = cup__update_impls,                                                                    \
    .list_from = CUP__RECORDS_AT, .list_step = CUP__RECORD,                                        \
    .in_place = (1u << CUP__VALUE | 1u << CUP__MASTER | 1u << CUP__FIRST | 1u << CUP__SECOND)      \
                << CUP__RECORDS_AT,                                                                \
    .in_dtypes = {CUP__DTYPE(F32), CUP__DTYPE(F32), 0, 0, CUP__STATE_DTYPES, dtypes, dtypes},      \
    .domain = {{0, 0.9}, {0, 0.9}, {-2, 2}, {-2, 2}, {-2, 2}, {low, high}, {low2, high2}},         \
    .random = true, .cost = cup__update_cost

#endif

/* What the ops that fold elements along axes share. Their attributes begin as those of sum do:
 * axes, axes_count, keep. A fold is one file, which ends in a descriptor with CUP__REDUCE of a
 * CUP__FOLD; mean.c is the plainest. */
#ifndef CUP_OPS_REDUCE_REDUCE_H
#define CUP_OPS_REDUCE_REDUCE_H

#include <math.h>

#include "base/wide.h"
#include "dispatch/op.h"

/* How elements become a result. All of it is made by CUP__FOLD or CUP__FOLD_STATE. */
typedef struct cup__fold {
    double start;
    /* Takes in one element: the specification, in long double, so that a plain sum of many doubles
     * is as good as one by lanes. `shift` is the result of the fold `first`. */
    long double (*next)(long double acc, double x, double shift);
    /* Take `rows` rows of `count` elements into acc[count], column by column. */
    void (*f32)(double *acc, const double *shift, const float *x, int64_t rows, int64_t stride,
                int64_t count);
    void (*f64)(double *acc, const double *shift, const double *x, int64_t rows, int64_t stride,
                int64_t count);
    void (*join)(double *acc, const double *x, int64_t count); /* takes in partial results */
    double (*finish)(const cup__call *call, double n, double acc, double shift);
    const char *source, *text; /* of the kernels: a name, and what includes reduce.cu */
    /* Further fields. */
    int64_t (*i64)(int64_t acc, int64_t x); /* of integers; NULL: they are refused */
    bool widens;                            /* integers give an i64 */
    bool gives_place;                       /* an i64, of any dtype */
    bool needs_elements;                    /* without any there is no result */
    const struct cup__fold *first;          /* goes over the elements before; NULL: none does */
    double (*argument)(const cup__call *call); /* of result() on the device; NULL: 0 */
    bool from_first; /* the shift of `first` itself is the first element, where there is one */
} cup__fold;

/* A fold whose state is one number, as NAME_fold, for host and device: what it starts with; the
 * state that follows from `acc` when an element x, or another's state x, comes to it; and the
 * result of n elements. These are in double on the host and in `wide` of fold.cuh on the device.
 * Further fields may follow. */
#define CUP__FOLD(name, first_acc, on_element, on_state, result, ...)                              \
    CUP__FOLD_HOST(name, on_element, on_element, on_state, result)                                 \
    static const cup__fold name##_fold = {CUP__FOLD_FIELDS(name, first_acc),                       \
                                          .text = "#define START " #first_acc                      \
                                                  "\n#define NEXT " #on_element                    \
                                                  "\n#define JOIN " #on_state                      \
                                                  "\n#define RESULT " #result                      \
                                                  "\n#include \"reduce.cu\"\n",                   \
                                          __VA_ARGS__};
/* A fold whose state on the device is another, that of a file beside it: there by one pass, on the
 * host also of the shift. on_element_f32 may round x to float. */
#define CUP__FOLD_STATE(name, file, first_acc, on_element, on_element_f32, on_state, result, ...)  \
    CUP__FOLD_HOST(name, on_element, on_element_f32, on_state, result)                             \
    static const cup__fold name##_fold = {CUP__FOLD_FIELDS(name, first_acc),                       \
                                          .text = CUP__STATE_TEXT(file), __VA_ARGS__};

#define CUP__STATE_TEXT(file) "#include \"" file "\"\n#include \"reduce.cu\"\n"
#define CUP__FOLD_FIELDS(name, first_acc)                                                          \
    .start = (first_acc), .next = name##_next, .f32 = name##_f32, .f64 = name##_f64,               \
    .join = name##_join, .finish = name##_finish, .source = #name ".cu"
#define CUP__FOLD_LOOP(name, type, on_element)                                                     \
    CUP__WIDE static void name(double *to, const double *shifts, const type *from, int64_t rows,   \
                               int64_t stride, int64_t count)                                      \
    {                                                                                              \
        for (int64_t row = 0; row < rows; row++, from += stride)                                   \
            for (int64_t i = 0; i < count; i++) {                                                  \
                double acc = to[i], x = (double)from[i], shift = shifts[i];                        \
                (void)shift;                                                                       \
                to[i] = (on_element);                                                              \
            }                                                                                      \
    }
#define CUP__FOLD_HOST(name, on_element, on_element_f32, on_state, result)                         \
    CUP__FOLD_LOOP(name##_f32, float, on_element_f32)                                              \
    CUP__FOLD_LOOP(name##_f64, double, on_element)                                                 \
    CUP__WIDE static void name##_join(double *to, const double *from, int64_t count)               \
    {                                                                                              \
        for (int64_t i = 0; i < count; i++) {                                                      \
            double acc = to[i], x = from[i];                                                       \
            to[i] = (on_state);                                                                    \
        }                                                                                          \
    }                                                                                              \
    static long double name##_next(long double acc, double x, double shift)                        \
    {                                                                                              \
        (void)shift;                                                                               \
        return (on_element);                                                                       \
    }                                                                                              \
    static double name##_finish(const cup__call *call, double n, double acc, double shift)         \
    {                                                                                              \
        (void)call, (void)n, (void)shift;                                                          \
        return (result);                                                                           \
    }

/* Words that mean the same on the device. */
#define LOWEST (-(double)INFINITY)
#define HIGHEST ((double)INFINITY)
CUP__IN_LOOP double maximum(double acc, double x)
{
    return x > acc || x != x ? x : acc;
}

CUP__IN_LOOP double minimum(double acc, double x)
{
    return x < acc || x != x ? x : acc;
}

/* Which dimensions of a tensor are kept and which are folded, neighbours merged where the strides
 * allow. The result is row-major over the kept ones. */
typedef struct cup__reduction {
    int kept, folded; /* dimensions */
    int64_t kept_size[CUP_MAX_DIMS], kept_stride[CUP_MAX_DIMS];
    int64_t folded_size[CUP_MAX_DIMS], folded_stride[CUP_MAX_DIMS];
    int64_t outputs, length; /* results, and elements folded into each */
} cup__reduction;

/* The reduction of a call whose attributes are axes; the input may have been packed meanwhile. */
void cup__reduction_make(cup__reduction *r, const cup__call *call);

/* Offsets in elements of a flat index over the kept or the folded dimensions. */
int64_t cup__reduction_kept(const cup__reduction *r, int64_t output);
int64_t cup__reduction_folded(const cup__reduction *r, int64_t index);

/* An element of an integer dtype. */
int64_t cup__reduction_integer(const cup__call *call, int64_t offset);

cup_status cup__reduce_infer(cup__call *call);
cup_status cup__reduce_specification(cup__call *call);
cup_status cup__reduce_cpu(cup__call *call);
cup_status cup__reduce_cuda(cup__call *call);
const char *cup__reduce_cpu_refuses(const cup__call *call);

extern const cup__impl cup__reduce_impls[];
extern const cup__sample cup__reduce_samples[], cup__reduce_bench[];
extern const cup__sample cup__reduce_grad_samples[]; /* of x, y and dy */

/* A sum of many elements carries the rounding of its own steps; the samples are not centred on 0,
 * where what is left of them could be arbitrarily small. */
#define CUP__REDUCE_TOLERANCE 16

/* The integers that sums and extremes take. */
#define CUP__DTYPES_INTEGER                                                                        \
    (CUP__DTYPES_INDEX | CUP__DTYPE(U8) | CUP__DTYPE(BOOL) | CUP__DTYPE(I8))

/* The fields of a descriptor that all reductions share. */
#define CUP__REDUCE(of)                                                                            \
    .fold = (of), .infer = cup__reduce_infer, .specification = cup__reduce_specification,        \
    .impls = cup__reduce_impls, .samples = cup__reduce_samples, .bench = cup__reduce_bench,        \
    .domain = {{-0.5, 1}}, .tolerance = CUP__REDUCE_TOLERANCE

/* For gradients: a tensor of the result's shape with the folded axes at size 1, so that it
 * broadcasts against the input; and the same broadcast to it. */
cup_tensor *cup__reduce_kept(const cup__grad *g, cup_tensor *t);
cup_tensor *cup__reduce_spread(const cup__grad *g, cup_tensor *t);
int64_t cup__reduce_length(const cup__grad *g);

#endif

/* What all elementwise ops share. Such an op gives three short functions of one element, in
 * NAME.c, and one, apply(), in NAME.cu; strides, broadcasting, dtypes, threads and vectors are
 * taken care of here and in kernels/pointwise.cuh.
 *
 * Arithmetic is in one of three types: float for floats of up to 32 bits (with bool, u8 and i8),
 * double as soon as an f64 is involved or an index type meets a float, int64_t for integers, of
 * which a result of fewer bits keeps the low ones. */
#ifndef CUP_OPS_ELEMENTWISE_POINTWISE_H
#define CUP_OPS_ELEMENTWISE_POINTWISE_H

#include "base/wide.h"
#include "dispatch/op.h"

#define CUP__POINTWISE_MOST 8 /* inputs */

typedef enum cup__real { CUP__REAL_F32, CUP__REAL_F64, CUP__REAL_I64 } cup__real;

typedef struct cup__pointwise {
    const char *source; /* "gelu.cu" */
    const char *knob;   /* defined as 1 for the kernel, or NULL: lets one file serve several ops */
    /* One element, in double: the specification. `a` are the attributes, when all are float. */
    double (*f64)(const double *x, const double *a);
    /* `count` elements in row-major order; vectorised by CUP__WIDE. */
    void (*f32)(float *y, const float *const *x, int64_t count, const double *a);
    /* One element of an integer dtype; NULL: integers are refused. */
    int64_t (*i64)(const int64_t *x, const double *a);
    /* The dtype of the result when it is not that of the inputs: see cup__pointwise_infer. */
    enum { CUP__LIKE_INPUTS, CUP__GIVES_BOOL } gives;
    const char *entry; /* of the kernel: POINTWISE(gelu_fwd) makes "gelu_fwd" */
    /* Of a second result, of the first one's shape and dtype: the same for it. In the kernel that
     * is apply_second(). NULL: there is none. */
    double (*f64_second)(const double *x, const double *a);
    void (*f32_second)(float *y, const float *const *x, int64_t count, const double *a);
} cup__pointwise;

/* Functions of one expression: of x[0], x[1], .. in double and in int64_t; and of the floats p, q
 * and r, the first three inputs. a[0], .. are the attributes. */
#define CUP__ELEMENT(name, expression)                                                             \
    static double name(const double *x, const double *a)                                           \
    {                                                                                              \
        (void)x, (void)a;                                                                          \
        return expression;                                                                         \
    }
#define CUP__ELEMENT_I64(name, expression)                                                         \
    static int64_t name(const int64_t *x, const double *a)                                         \
    {                                                                                              \
        (void)x, (void)a;                                                                          \
        return expression;                                                                         \
    }
#define CUP__FLOATS_1(name, expression)                                                            \
    CUP__WIDE static void name(float *y, const float *const *x, int64_t count, const double *a)    \
    {                                                                                              \
        const float *x0 = x[0];                                                                    \
        (void)a;                                                                                   \
        for (int64_t i = 0; i < count; i++) {                                                      \
            float p = x0[i];                                                                       \
            y[i] = expression;                                                                     \
        }                                                                                          \
    }
#define CUP__FLOATS_2(name, expression)                                                            \
    CUP__WIDE static void name(float *y, const float *const *x, int64_t count, const double *a)    \
    {                                                                                              \
        const float *x0 = x[0], *x1 = x[1];                                                        \
        (void)a;                                                                                   \
        for (int64_t i = 0; i < count; i++) {                                                      \
            float p = x0[i], q = x1[i];                                                            \
            (void)p, (void)q;                                                                      \
            y[i] = expression;                                                                     \
        }                                                                                          \
    }
#define CUP__FLOATS_3(name, expression)                                                            \
    CUP__WIDE static void name(float *y, const float *const *x, int64_t count, const double *a)    \
    {                                                                                              \
        const float *x0 = x[0], *x1 = x[1], *x2 = x[2];                                            \
        (void)a;                                                                                   \
        for (int64_t i = 0; i < count; i++) {                                                      \
            float p = x0[i], q = x1[i], r = x2[i];                                                 \
            (void)p, (void)q, (void)r;                                                             \
            y[i] = expression;                                                                     \
        }                                                                                          \
    }

cup_status cup__pointwise_infer(cup__call *call);
cup_status cup__pointwise_specification(cup__call *call);
extern const cup__impl cup__pointwise_impls[];
extern const cup__sample cup__unary_samples[], cup__unary_bench[];
extern const cup__sample cup__binary_samples[], cup__binary_bench[];
extern const cup__sample cup__grad_samples[], cup__grad_bench[]; /* of two equal shapes */

/* The fields of a descriptor that every elementwise op has. */
#define CUP__POINTWISE(kind)                                                                       \
    .pointwise = (kind), .infer = cup__pointwise_infer,                                            \
    .specification = cup__pointwise_specification, .impls = cup__pointwise_impls

cup__real cup__pointwise_real(const cup__call *call);

/* The implementations; also for ops whose inference is their own, such as cast. */
cup_status cup__pointwise_cpu(cup__call *call);
cup_status cup__pointwise_cuda(cup__call *call);

#endif

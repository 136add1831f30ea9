/* What all elementwise ops share. Such an op gives a formula of one element, in double, in float
 * and for the device: CUP__FORMULA. Strides, broadcasting, dtypes, threads and vectors are taken
 * care of here and in kernels/pointwise.cuh. Where the device's is no single expression, apply()
 * stands in NAME.cu.
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
    const char *source; /* "mish.cu" */
    const char *text;   /* what stands in it; NULL: it is a file beside the op's */
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

/* An elementwise kernel and all its formulas, as NAME_kind: in double as CUP__ELEMENT says, in
 * float as CUP__FLOATS_ of the number of inputs, and on the device, of x[0], .. of type real and
 * a[0], .. What follows are further fields of the kind. */
#define CUP__FORMULA(inputs, name, in_double, in_float, on_device, ...)                            \
    CUP__ELEMENT(name##_f64, in_double)                                                            \
    CUP__FLOATS_##inputs(name##_f32, in_float)                                                     \
    CUP__KERNEL_TEXT(name, #on_device, __VA_ARGS__)
/* The same of a file that has its own NAME_f64 and NAME_f32. */
#define CUP__KERNEL(name, on_device, ...) CUP__KERNEL_TEXT(name, #on_device, __VA_ARGS__)
#define CUP__KERNEL_TEXT(name, on_device, ...)                                                     \
    static const cup__pointwise name##_kind = {                                                    \
        .source = #name ".cu",                                                                     \
        .text = "#include \"pointwise.cuh\"\n\n"                                                   \
                "DEVICE real apply(const real *x, const attribute *a)\n"                           \
                "{\n    return " on_device ";\n}\n\nPOINTWISE(" #name ")\n",                       \
        .f64 = name##_f64,                                                                         \
        .f32 = name##_f32,                                                                         \
        .entry = #name,                                                                            \
        __VA_ARGS__};

cup_status cup__pointwise_infer(cup__call *call);
cup_status cup__pointwise_specification(cup__call *call);
extern const cup__impl cup__pointwise_impls[];
extern const cup__sample cup__unary_samples[], cup__unary_bench[];
extern const cup__sample cup__binary_samples[], cup__binary_bench[];
extern const cup__sample cup__binary_few_samples[]; /* for ops of many dtypes */
extern const cup__sample cup__grad_samples[], cup__grad_bench[]; /* of two equal shapes */
extern const cup__sample cup__binary_grad_samples[], cup__binary_grad_bench[];

/* The fields of a descriptor that every elementwise op has. */
#define CUP__POINTWISE(kind)                                                                       \
    .pointwise = (kind), .infer = cup__pointwise_infer, .promotes = ~0u,                           \
    .specification = cup__pointwise_specification, .impls = cup__pointwise_impls

/* The op NAME of one input, of NAME_fwd_kind, and its gradient NAME_grad, which NAME_bwd_kind makes
 * of the saved one of `in` and `out` and of dy. Then where both are tested, and further fields of
 * both descriptors. */
#define CUP__UNARY(name, saved, low, high, slope_low, slope_high, ...)                             \
    CUP__UNARY_COMPOSED(name, saved, low, high, slope_low, slope_high, NULL, __VA_ARGS__)
/* The same with second derivatives: the file has NAME_slope(context, saved), the derivative there
 * in public ops. */
#define CUP__UNARY_TWICE(name, saved, low, high, slope_low, slope_high, ...)                       \
    static cup_status name##_composed(cup__grad *g)                                                \
    {                                                                                              \
        return cup__unary_composed(g, g->saved[0], name##_slope);                                  \
    }                                                                                              \
    CUP__UNARY_COMPOSED(name, saved, low, high, slope_low, slope_high, name##_composed, __VA_ARGS__)
#define CUP__UNARY_COMPOSED(name, saved, low, high, slope_low, slope_high, of_calls, ...)          \
    static cup_status name##_gradient(cup__grad *g)                                                \
    {                                                                                              \
        g->d_in[0] = cup__##name##_grad(g->c, g->saved[0], g->d_out[0]);                           \
        return CUP_OK;                                                                             \
    }                                                                                              \
    const cup__op cup__op_##name = {CUP__POINTWISE(&name##_fwd_kind),                              \
                                    .gradient = name##_gradient,                                   \
                                    .composed = of_calls,                                          \
                                    .saves = CUP__SAVED_##saved,                                   \
                                    .again = CUP__SAVED_##saved == CUP__SAVE_IN(0)                 \
                                                 ? cup__call_again                                 \
                                                 : NULL,                                           \
                                    .samples = cup__unary_samples,                                 \
                                    .bench = cup__unary_bench,                                     \
                                    .domain = {{low, high}},                                       \
                                    __VA_ARGS__};                                                  \
    const cup__op cup__op_##name##_grad = {CUP__POINTWISE(&name##_bwd_kind),                       \
                                           .samples = cup__grad_samples,                           \
                                           .bench = cup__grad_bench,                               \
                                           .domain = {{slope_low, slope_high}},                    \
                                           __VA_ARGS__};
#define CUP__SAVED_in CUP__SAVE_IN(0)
#define CUP__SAVED_out CUP__SAVE_OUT(0)

/* The same of an op with attributes, which its gradient takes as well: they follow, as a->NAME. The
 * file has two of each to test with: first and second, slope_first and slope_second. `of_calls` is
 * what `composed` says, or NULL. */
#define CUP__UNARY_WITH(name, infers, of_calls, ...)                                               \
    static cup_status gradient(cup__grad *g)                                                       \
    {                                                                                              \
        const cup__##name##_attributes *a = g->attributes;                                         \
        g->d_in[0] = cup__##name##_grad(g->c, g->in[0], g->d_out[0], __VA_ARGS__);                 \
        return CUP_OK;                                                                             \
    }                                                                                              \
    static const cup__sample samples[] = {{"0x5", &first},       {"()", &second},                  \
                                          {"7", &first},         {"2x3x1025", &second},            \
                                          {"33x1000", &first},   {NULL, NULL}};                    \
    static const cup__sample bench[] = {{"32768x3072", &first}, {NULL, NULL}};                     \
    static const cup__sample grad_samples[] = {                                                    \
        {"7 7", &slope_first}, {"2x1025 2x1025", &slope_second}, {NULL, NULL}};                    \
    static const cup__sample grad_bench[] = {{"32768x3072 32768x3072", &slope_first},              \
                                             {NULL, NULL}};                                        \
    const cup__op cup__op_##name = {.pointwise = &name##_fwd_kind,                                 \
                                    .infer = infers,                                               \
                                    .specification = cup__pointwise_specification,                 \
                                    .impls = cup__pointwise_impls,                                 \
                                    .gradient = gradient,                                          \
                                    .composed = of_calls,                                          \
                                    .saves = CUP__SAVE_IN(0),                                      \
                                    .samples = samples,                                            \
                                    .bench = bench};                                               \
    const cup__op cup__op_##name##_grad = {                                                        \
        CUP__POINTWISE(&name##_bwd_kind), .samples = grad_samples, .bench = grad_bench};

/* The op NAME of two inputs, of NAME_fwd_kind, and further fields of its descriptor. */
#define CUP__BINARY(name, ...)                                                                     \
    const cup__op cup__op_##name = {CUP__POINTWISE(&name##_fwd_kind),                              \
                                    .samples = cup__binary_samples,                                \
                                    .bench = cup__binary_bench,                                    \
                                    __VA_ARGS__};

/* dy times the slope at `at`. */
cup_status cup__unary_composed(cup__grad *g, cup_tensor *at,
                               cup_tensor *(*slope)(cup_context *c, cup_tensor *at));
/* The gradient of what has a slope of 0 everywhere. */
cup_status cup__no_slope(cup__grad *g);

cup__real cup__pointwise_real(const cup__call *call);

/* The implementations; also for ops whose inference is their own, such as cast. */
cup_status cup__pointwise_cpu(cup__call *call);
cup_status cup__pointwise_cuda(cup__call *call);

#endif

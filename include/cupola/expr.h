/* cupola/expr.h: elementwise formulas of your own, each turned into one kernel on the GPU and one
 * vectorised loop on the CPU, with gradients.
 *
 *     cup_expr *e = cup_expr_new(c, "x b", "k", "h = x + b; h * sigmoid(k * h)");
 *     cup_tensor *y = cup_expr_call(e, (cup_tensor *[]){x, b}, (double[]){1.702}, NULL);
 *
 * A formula has inputs, which are tensors of any dtypes that broadcast to one shape, parameters,
 * which are numbers that may change from call to call, and up to CUP_EXPR_RESULTS results.
 *
 * The text: results with commas between them, after any number of `name = formula;`.
 *     numbers       1  0.5  1e-5  pi  inf
 *     operators     + - * / ^   == != < <= > >=   && || !   as in C, with ^ the power
 *     functions     abs sign sqrt rsqrt exp expm1 log log1p sin cos tan tanh sigmoid erf
 *                   normal_cdf softplus floor ceil square reciprocal relu gelu gelu_erf silu
 *                   hardswish mish
 *                   min(a,b) max(a,b) pow(a,b) where(condition,a,b) clamp(x,low,high)
 *                   elu(x,alpha) leaky_relu(x,slope) swiglu(gate,up) geglu(gate,up)
 *     rounding      f32(x) bf16(x) f16(x); around a whole result also f64 and bool: its dtype
 *     folds         sum mean min max with axes in brackets, around a whole result:
 *                   sum[-1](x * y), max[0,2](x), mean[](x) over all, sum[-1,keep](x)
 * All results of a formula are folded over the same axes, or none is. Comparisons give 1 or 0.
 *
 * Arithmetic is in f32; in f64 when an input or a result is f64, i32 or i64. A result without a
 * dtype of its own has the widest float among the inputs' (f32 where there is none, or f16 meets
 * bf16); that of a comparison is bool. */
#ifndef CUPOLA_EXPR_H
#define CUPOLA_EXPR_H

#include "cupola/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CUP_EXPR_INPUTS 10
#define CUP_EXPR_PARAMETERS 8
#define CUP_EXPR_RESULTS 5
#define CUP_EXPR_NODES 2000  /* operations of a formula, equal ones counted once */
#define CUP_EXPR_DEPTH 100   /* nested parentheses and calls in a text */

typedef struct cup_expr cup_expr;

/* A formula with these inputs and parameters: names with blanks between them, parameters may be
 * NULL. The text may be NULL too: then the calls below build it. An error names the place in the
 * text. The context must outlive the formula; what was compiled stays with the context, so a
 * formula that was made before costs little. */
CUP_API cup_expr *cup_expr_new(cup_context *c, const char *inputs, const char *parameters,
                               const char *text);
CUP_API void cup_expr_free(cup_expr *e);

/* Building without a text. A term is a part of a formula; 0 is none, and is passed on like a NULL
 * tensor. */
typedef int cup_term;

/* An input or a parameter by its name; a number; a function or operator by the name it has in a
 * text ("+", "tanh", "where"; "neg" is the minus of one term); any text without results, in which
 * the names mean what they do in e. */
CUP_API cup_term cup_expr_name(cup_expr *e, const char *name);
CUP_API cup_term cup_expr_number(cup_expr *e, double value);
CUP_API cup_term cup_expr_apply(cup_expr *e, const char *function, const cup_term *terms,
                                int count);
CUP_API cup_term cup_expr_text(cup_expr *e, const char *text);

/* How a result ends; all zero: as it is. */
typedef enum cup_expr_fold {
    CUP_EXPR_FOLD_NONE = 0,
    CUP_EXPR_FOLD_SUM = 1,
    CUP_EXPR_FOLD_MEAN = 2,
    CUP_EXPR_FOLD_MIN = 3,
    CUP_EXPR_FOLD_MAX = 4
} cup_expr_fold;

typedef struct cup_expr_end {
    size_t size; /* see CUP_OPTIONS */
    cup_expr_fold fold;
    const int *axes; /* of a fold; none: all of them */
    int axis_count;
    bool keep;       /* folded dimensions stay, with size 1 */
    bool typed;      /* `dtype` is that of the result */
    cup_dtype dtype;
} cup_expr_end;

/* Adds a result; NULL `end`: as it is. */
CUP_API cup_status cup_expr_result(cup_expr *e, cup_term term, const cup_expr_end *end);

/* Computes it: inputs and parameters in the order of their names. `out` may be NULL; else it takes
 * all results, and tensors that are already in it are written to instead of new ones; without a
 * fold such a tensor may be an input of the results' shape, which is then changed in place. Returns
 * the first result. Gradients flow back to the inputs, not to the parameters. A captured graph goes
 * on using the parameters of the call it captured. */
CUP_API cup_tensor *cup_expr_call(cup_expr *e, cup_tensor *const *inputs, const double *parameters,
                                  cup_tensor **out);

/* Attention whose scores become what the formula makes of them, with cup_attention's q, k, v and
 * result (cupola/ops.h). The formula is compiled into its kernels, forward and backward.
 *
 *     cup_expr *e = cup_expr_new(c, "score query key bias", "cap",
 *                                "cap * tanh(score / cap) + bias, query - key < 128");
 *     cup_tensor *o = cup_expr_attention(e, q, k, v, &bias, (double[]){50}, NULL);
 *
 * Its first result is the score; a second one, which may be left out, is a condition that is not 0
 * where the query sees the key. Where it is 0, or the score is -inf, the key counts for nothing; a
 * query that sees nothing gives 0. Inputs of these names are not given by the call:
 *     score   the product of q and k, scaled
 *     query   the number of the key that is the query's own, where the last query's is the last
 *             key, in its document if there are offsets
 *     key     the number of the key, from 0
 *     head    that of the head of q, from 0
 *     batch   that of the batch, from 0
 * The other inputs, up to 8, are the `tensors` in the order of their names, which broadcast to
 * [batches, heads, queries, keys]: a number for each head is [H,1,1]. They have the dtype of q, or
 * are in f32 (f64 where q is). Gradients flow back to q, k, v, the tensors and sinks; that of a
 * tensor that differs from key to key takes memory for [B,H,T,S]. Second derivatives are refused.
 *
 * In the options soft_cap, slopes, bias and top_left must be left out: the formula says them. What
 * causal and the windows hide is not even computed, and so is what conditions hide that say how far
 * a key may be from the query: comparisons, joined by &&, whose sides differ by query - key times a
 * number and by numbers and parameters, or of abs(query - key) with these. What other conditions
 * over places, numbers and parameters alone hide is left out by tiles on Hopper, where there are no
 * offsets. Arithmetic is in f32, in f64 where q is; in f32 the numbers of positions are exact up to
 * 2^24, and an exponential loses as many of 24 bits as its score has before the point. For q of 16
 * bits a GPU's functions are good to 2^-20 or so of themselves, tanh of 1. */
struct cup_attention_options;
CUP_API cup_tensor *cup_expr_attention(cup_expr *e, cup_tensor *q, cup_tensor *k, cup_tensor *v,
                                       cup_tensor *const *tensors, const double *parameters,
                                       const struct cup_attention_options *options);

/* A formula for the derivative of a result, which must not be folded, by an input, both numbered
 * from 0. Its inputs and parameters are those of e. */
CUP_API cup_expr *cup_expr_derivative(cup_expr *e, int result, int input);

/* The formula as it will be computed, simplified, in the form of a text; NULL with an error in the
 * context when it cannot be written. It lives as long as e. */
CUP_API const char *cup_expr_words(cup_expr *e);

/* The median time of a call in microseconds, from first to last piece of work on the GPU, after a
 * warm-up. */
CUP_API cup_status cup_expr_time(cup_expr *e, cup_tensor *const *inputs, const double *parameters,
                                 double *microseconds);

#ifdef __cplusplus
}
#endif
#endif

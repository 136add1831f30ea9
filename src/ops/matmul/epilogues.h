/* What follows a product before it is stored: an op each, and a row each of epilogues.def, which
 * says where the op's inputs go, what the kernels are told, what the results mean, how gradients
 * pass, and of which ops it is composed where no kernel does it in one pass. */
#ifndef CUP_OPS_MATMUL_EPILOGUES_H
#define CUP_OPS_MATMUL_EPILOGUES_H

#include "ops/matmul/product.h"

/* Which of the two matrices is transposed. */
typedef enum cup__turned {
    CUP__TURNED_AS_ASKED, /* by the first two attributes */
    CUP__TURNED_WEIGHT,   /* x weight^T */
    CUP__TURNED_NEITHER   /* dy weight */
} cup__turned;

typedef struct cup__epilogue {
    cup__turned turned;
    int a;     /* the input that is a; the next one is b. 1: input 0 is y */
    int bias;  /* inputs; 0: there is none */
    int other; /* which lies as the result, or where the row is `back`, is where gradients pass */
    int activation, kind; /* what cup__product says of both */
    bool gated;  /* columns of weight, and of `other` of a way back, are gate and up side by side */
    bool back;   /* the result is the gradient that came, taken through the value */
    bool scaled; /* by the attribute `factor` */
    bool adding; /* to y, in place */
    bool by_result; /* gradients pass where the result is, not where the sum before it was */
    /* The value of a sum, and of `up` or an element of `other`; NULL: the sum itself. And the
     * gradients with respect to both where d came back. */
    double (*value)(double v, double with);
    void (*slopes)(double v, double with, double d, double out[2]);
    int op, grad_op; /* which do the same to a product, and to a gradient; 0: it passes as it is */
    cup_status (*compose)(cup__call *call);
} cup__epilogue;

extern const cup__epilogue cup__epilogue_matmul, cup__epilogue_matmul_scaled,
    cup__epilogue_matmul_into, cup__epilogue_matmul_add;

/* A view of the first or second half of the last dimension. */
cup_tensor *cup__half_of(cup_context *c, cup_tensor *t, int which);

/* What follows the product, of the sum that is kept. */
cup_tensor *cup__activation_again(const cup__grad *g);

/* Calls an op whose results go where they are given. */
cup_status cup__call_into(cup_context *c, int op, cup_tensor *const *in, int count,
                          const void *attributes, cup_tensor *y);

/* dy, the gradient of an epilogue's value, taken through it where that had the sum `at` (or the
 * result, see by_result); into `y`, or where that is NULL something new. */
cup_tensor *cup__epilogue_back(cup_context *c, const cup__epilogue *e, cup_tensor *at,
                               cup_tensor *dy, cup_tensor *y);

/* The product of a call of an op that has a row. */
void cup__product_of(const cup__call *call, cup_tensor *const *in, cup__product *p);
/* The product as it will be, with inputs that lie badly packed. */
void cup__product_like(const cup__call *call, cup__product *p);
/* Its pointers alone, where `kind` is known. */
void cup__product_point(const cup__call *call, cup_tensor *const *in, cup__product *p);

/* What matmul says of two of the inputs. */
cup_status cup__matmul_infer(cup__call *call, int first, bool transpose_a, bool transpose_b,
                             cup__shape *y);
/* The inference that all forms of linear share: [..,K] by [N,K] to [..,N]. */
cup_status cup__linear_infer(cup__call *call, const cup_tensor *bias);
/* From the gradient of x weight^T + bias to those of its inputs; input `bias` is the bias. */
cup_status cup__linear_back(cup__grad *g, cup_tensor *dy, int bias);
/* Element (row, j) of x weight^T + bias, by the specification. */
double cup__linear_element(const cup__call *call, const cup_tensor *bias, int64_t row, int64_t j);

/* See cup__op.words. */
bool cup__product_words(const cup__call *call, bool similar, struct cup__text *to);

/* The implementations of products that not all kernels can do, composed ones among them. */
extern const cup__impl cup__product_fused_impls[];
/* Composed ones of a linear layer, and of a way back through one. */
cup_status cup__compose_linear(cup__call *call);
cup_status cup__compose_back(cup__call *call);
/* The same of ops with attributes. */
cup_status cup__compose_scaled(cup__call *call);
cup_status cup__compose_into(cup__call *call);
cup_status cup__compose_add(cup__call *call);

#endif

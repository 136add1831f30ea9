/* Convolutions on a CPU: one class of places (conv_call.cuh) at a time. */
#ifndef CUP_OPS_CONV_CONV_CPU_H
#define CUP_OPS_CONV_CONV_CPU_H

#include "base/blas.h"
#include "ops/conv/conv.h"

/* A class, and the columns that its places make: place number p of all images reads `depth`
 * elements of a group, one for each channel and tap. They are counted by channel and then tap; by
 * tap and then channel where channels are neighbours in memory (`last`). */
typedef struct cup__conv_class {
    cup_dtype dtype;
    conv_call call;
    conv_line line[2];
    int64_t places; /* of one image */
    int64_t depth;
    bool last;
    int64_t *begin, *end; /* for each tap along a row, the places whose element is inside */
} cup__conv_class;

/* False when there is no memory. */
bool cup__conv_class_make(cup__conv_class *l, const cup__conv *v, int row, int column);
void cup__conv_class_free(cup__conv_class *l);

/* Places side by side in a row: `count` from `column` on, which are `at` and so on of a block. */
typedef struct cup__conv_run {
    int64_t image, row, column, count, at;
} cup__conv_run;

/* The next run of a block of places from `place` on; false behind the last. Begins with count 0. */
bool cup__conv_run_next(const cup__conv_class *l, int64_t place, int64_t places,
                        cup__conv_run *run);

/* Elements `from` and on of the columns of some places, as rows of `places` elements, or with
 * `last` as a row of `depth` elements for each place. */
void cup__conv_fill(const cup__conv_class *l, int64_t group, int64_t place, int64_t places,
                    int64_t from, int64_t depth, float *to);

/* `count` elements that lie `step` apart. */
void cup__conv_load(float *to, const void *from, int64_t step, int64_t count, cup_dtype dtype);
void cup__conv_store(void *to, int64_t step, const float *from, int64_t count, cup_dtype dtype);

/* A matrix of f32 whose lines lie `distance` apart; turned, they are its columns. */
typedef struct cup__conv_matrix {
    const float *data;
    int64_t distance;
    bool turned;
} cup__conv_matrix;

/* to = a b, or to += a b, m by n over k; without a BLAS by our own kernels, which need
 * cup__conv_space bytes. */
typedef struct cup__conv_product {
    const cup__blas *blas;
    int64_t m, n, k;
    cup__conv_matrix a, b;
    bool add;
    float *to;
    int64_t distance; /* of its rows */
} cup__conv_product;

void cup__conv_multiply(const cup__conv_product *p, void *space);
size_t cup__conv_space(const cup__blas *blas, int64_t m, int64_t n);

const char *cup__conv_cpu_refuses(const cup__call *call);
const char *cup__conv_blas_refuses(const cup__call *call);
const char *cup__conv_direct_refuses(const cup__call *call);
cup_status cup__conv_blas(cup__call *call);
cup_status cup__conv_blocked(cup__call *call);
cup_status cup__conv_direct(cup__call *call);
cup_status cup__conv_weight_blas(cup__call *call);
cup_status cup__conv_weight_blocked(cup__call *call);
cup_status cup__conv_weight_direct(cup__call *call);

#endif

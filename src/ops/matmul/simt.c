/* The host side of simt.cu. */
#include <string.h>

#include "kernels/product_call.cuh"
#include "ops/matmul/product_cuda.h"

#define GRID_Y_MOST 65535

static int64_t lowest_bit(int64_t value)
{
    return value & -value;
}

int cup__product_vector(const cup__product *p, const cup__matrix *m, int64_t line, int64_t extent,
                        int most)
{
    int64_t steps = line | extent;
    for (int i = 0; i < p->batch_ndim; i++)
        steps |= m->batch[i];
    int size = (int)cup_dtype_size(p->dtype), vector = most;
    while (vector > 1 && (vector * size > 16 || (steps && lowest_bit(steps) < vector) ||
                          (uintptr_t)m->data % (uintptr_t)(vector * size)))
        vector /= 2;
    return vector;
}

void cup__product_fill(product_call *to, const cup__product *p)
{
    memset(to, 0, sizeof *to);
    to->a = p->a.data;
    to->b = p->b.data;
    to->bias = p->bias;
    to->y = p->y.data;
    to->pre = p->pre;
    to->m = p->m;
    to->n = p->n;
    to->k = p->k;
    to->a_mn = p->a.row;
    to->a_k = p->a.column;
    to->b_mn = p->b.column;
    to->b_k = p->b.row;
    to->y_row = p->y.row;
    to->groups = p->groups.table;
    to->batch_count = p->batch_count;
    to->batch_ndim = p->batch_ndim;
    for (int i = 0; i < p->batch_ndim; i++) {
        to->batch_size[i] = p->batch_size[i];
        to->a_batch[i] = p->a.batch[i];
        to->b_batch[i] = p->b.batch[i];
        to->y_batch[i] = p->y.batch[i];
    }
}

static int64_t tiles_of(const cup__product *p, int64_t tile)
{
    return (p->m + tile - 1) / tile * ((p->n + tile - 1) / tile);
}

const char *cup__product_plain_refuses(cup_context *c, const cup__product *p)
{
    (void)c;
    (void)p;
    return NULL;
}

cup_status cup__product_plain(cup__call *call, const cup__product *p)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    bool a_k = p->a.column == 1 || p->a.row != 1, b_k = p->b.row == 1 || p->b.column != 1;
    bool a_near = p->a.column == 1 || p->a.row == 1, b_near = p->b.row == 1 || p->b.column == 1;
    int64_t tile = 128;
    if (p->dtype == CUP_F64 ||
        tiles_of(p, tile) * p->batch_count < cup__cuda_facts(gpu)->multiprocessors)
        tile = 64;
    int most = tile == 64 ? 4 : 8;
    /* Groups of k may begin anywhere. */
    int64_t whole_k = p->groups.kind == PRODUCT_GROUPS_OF_DEPTH ? 1 : p->k;
    cup__knob knobs[] = {
        {"CUP_T", p->dtype},
        {"TILE", tile},
        {"A_ALONG", a_k ? PRODUCT_ALONG_K : PRODUCT_ALONG_MN},
        {"B_ALONG", b_k ? PRODUCT_ALONG_K : PRODUCT_ALONG_MN},
        {"A_VEC", !a_near ? 1
                          : cup__product_vector(p, &p->a, a_k ? p->a.row : p->a.column,
                                                a_k ? whole_k : p->m, most)},
        {"B_VEC", !b_near ? 1
                          : cup__product_vector(p, &p->b, b_k ? p->b.column : p->b.row,
                                                b_k ? whole_k : p->n, most)},
        {"ACTIVATION", p->activation},
        {"GROUPS", p->groups.kind},
    };
    cup__kernel *kernel =
        cup__kernel_get(gpu, "simt.cu", "matmul_plain", knobs, sizeof knobs / sizeof *knobs);
    if (!kernel)
        return call->c->error.status;
    product_call argument;
    cup__product_fill(&argument, p);
    cup__grid grid = {
        .x = tiles_of(p, tile),
        .y = p->batch_count < GRID_Y_MOST ? p->batch_count : GRID_Y_MOST,
        .threads = PRODUCT_THREADS,
    };
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}

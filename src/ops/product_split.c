/* f32 products on the tensor cores of Hopper. An f32 number is the sum of three of bf16, and their
 * products are exact; six of the nine matter, the other three are below 2^-26 of the whole. The
 * parts lie in three planes, which matmul_sm90.cu multiplies as one long sum over k. An infinity
 * in an input makes NaN, as it meets the zeros of other parts. */
#include "cuda/loader.h"
#include "ops/product_wgmma.h"
#include "tensor/tensor.h"

#define TERMS 6
#define PIECE 8 /* elements that a thread makes */
#define THREADS 256

static const cup__wgmma_plan plan = {128, 128, 2, false, 6, 1, 1, 1, 0, 0, TERMS};

/* A matrix as lines of neighbours. */
typedef struct lines {
    bool along_rows; /* neighbours are those of one row */
    int64_t length, count, distance, padded;
} lines;

static bool take_lines(const cup__matrix *m, int64_t rows, int64_t columns, lines *out)
{
    bool along_rows = m->column == 1 || columns == 1;
    *out = (lines){along_rows, along_rows ? columns : rows, along_rows ? rows : columns,
                   along_rows ? m->row : m->column, 0};
    out->padded = (out->length + PIECE - 1) / PIECE * PIECE;
    return along_rows || m->row == 1 || rows == 1;
}

static bool take_both(const cup__product *p, lines *a, lines *b)
{
    return take_lines(&p->a, p->m, p->k, a) && take_lines(&p->b, p->k, p->n, b);
}

const char *cup__product_split_refuses(cup_context *c, const cup__product *p)
{
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(c->device));
    lines a, b;
    if (facts->major != 9)
        return "it is for Hopper (sm_90)";
    if (!cup__driver.cuTensorMapEncodeTiled || !cup__driver.cuLaunchKernelEx)
        return "the driver is too old for tensor maps";
    if (p->dtype != CUP_F32 || c->precision != CUP__HIGHEST)
        return "it is for f32 at the highest precision";
    if (p->k == 0)
        return "there is nothing to sum";
    if (p->batch_ndim > 0)
        return "it is for one matrix";
    if (p->m > INT32_MAX || p->n > INT32_MAX || p->k > INT32_MAX / (2 * TERMS))
        return "a side is too long";
    if ((uintptr_t)p->bias % 8)
        return "the bias starts between multiples of 8 bytes";
    if ((p->m + 127) / 128 * ((p->n + 127) / 128) < 60 || p->m * p->n < (INT64_C(3) << 28) / p->k)
        return "so few products are done sooner without tensor cores";
    if (!take_both(p, &a, &b))
        return "an input has no neighbours in memory";
    return cup__wgmma_plan_refuses(p, &plan);
}

/* The three planes of a matrix, as a tensor of bf16. */
static cup_tensor *split(cup_context *c, const cup__matrix *m, const lines *l)
{
    cup__shape shape = {.dtype = CUP_BF16, .ndim = 3, .size = {3, l->count, l->padded}};
    cup_tensor *planes = cup__tensor_make(c, &shape, "parts of f32");
    if (!planes)
        return NULL;
    bool whole = (uintptr_t)m->data % 16 == 0 && l->length % 4 == 0 &&
                 (l->distance % 4 == 0 || l->count == 1);
    cup__cuda *gpu = cup__cuda_of(c->device);
    cup__knob knobs[] = {{"VEC", whole ? 4 : 1}};
    cup__kernel *kernel = cup__kernel_get(gpu, "matmul_split.cu", "matmul_split", knobs, 1);
    const void *from = m->data;
    void *to = planes->data;
    long long length = l->length, count = l->count, distance = l->distance, padded = l->padded;
    cup__grid grid = {.x = (count * (padded / PIECE) + THREADS - 1) / THREADS, .threads = THREADS};
    if (kernel && cup__launch(gpu, kernel, grid, CUP__ARG(from), CUP__ARG(to), CUP__ARG(length),
                              CUP__ARG(count), CUP__ARG(distance), CUP__ARG(padded)) == CUP_OK)
        return planes;
    cup_tensor_free(planes);
    return NULL;
}

/* The matrix that the planes stand for; `batch[0]` is the distance of planes. */
static cup__matrix matrix_of(const cup_tensor *planes, const lines *l)
{
    return (cup__matrix){.data = planes->data,
                         .row = l->along_rows ? l->padded : 1,
                         .column = l->along_rows ? 1 : l->padded,
                         .batch = {l->count * l->padded}};
}

cup_status cup__product_split(cup__call *call, const cup__product *p)
{
    cup_context *c = call->c;
    lines a, b;
    take_both(p, &a, &b);
    cup_tensor *left = split(c, &p->a, &a), *right = left ? split(c, &p->b, &b) : NULL;
    cup_status status = right ? CUP_OK : c->error.status;
    if (right) {
        cup__product q = *p;
        q.dtype = CUP_BF16;
        q.a = matrix_of(left, &a);
        q.b = matrix_of(right, &b);
        status = cup__product_wgmma_by(c, &q, &plan);
    }
    cup_tensor_free(left);
    cup_tensor_free(right);
    return status;
}

#include "ops/attention/attention_lists.h"

#include "base/memory.h"
#include "ops/attention/attention_launch.h"

#define LEAST 16 /* of a block: queries of a warp's tile */
#define MOST 1024
#define THREADS 128

int64_t cup__attention_block_size(int64_t given)
{
    return given ? given : 128;
}

cup__attention_lists cup__attention_lists_of(const cup_tensor *given, int64_t size, int64_t keys)
{
    cup__attention_lists l = {.given = given, .size = cup__attention_block_size(size)};
    if (!given)
        return l;
    l.key_blocks = (keys + l.size - 1) / l.size;
    l.words = (l.key_blocks + 31) / 32;
    int64_t each = given->shape[2] * l.words;
    l.head = given->shape[1] > 1 ? each : 0;
    l.batch = given->shape[0] > 1 ? each * given->shape[1] : 0;
    return l;
}

cup_status cup__attention_lists_check(cup__call *call, const cup_tensor *given, int64_t size,
                                      const int64_t *sizes)
{
    if (!given)
        return CUP_OK;
    int64_t each = cup__attention_block_size(size);
    if (each < LEAST || each > MOST || (each & (each - 1)))
        return cup__call_fail(call, CUP_ARGUMENT,
                              "block_size must be a power of two from %d to %d, or 0 for 128, not "
                              "%lld",
                              LEAST, MOST, (long long)each);
    if (given->dtype != CUP_I32 && given->dtype != CUP_I64)
        return cup__call_fail(call, CUP_DTYPE, "key_blocks must be in i32 or i64");
    int64_t blocks = (sizes[2] + each - 1) / each;
    bool fits = given->ndim == 4 && given->shape[2] == blocks;
    for (int i = 0; i < 2 && fits; i++)
        fits = given->shape[i] == 1 || given->shape[i] == sizes[i];
    return fits ? CUP_OK
                : cup__call_fail(call, CUP_SHAPE,
                                 "key_blocks must be [%lld,%lld,%lld,N], a list for each block of "
                                 "%lld queries, with 1 for batches or heads that are alike",
                                 (long long)sizes[0], (long long)sizes[1], (long long)blocks,
                                 (long long)each);
}

static int64_t words_of(const cup__attention_lists *l)
{
    return l->given->shape[0] * l->given->shape[1] * l->given->shape[2] * l->words;
}

/* Row `row` counts the blocks of queries of all heads. */
static cup_status read_row(const cup__attention_lists *l, int64_t row, uint32_t *bits,
                           cup__error *error)
{
    const cup_tensor *t = l->given;
    for (int64_t i = 0; i < t->shape[3]; i++) {
        int64_t at = cup__offset_of(t, row * t->shape[3] + i);
        int64_t block = t->dtype == CUP_I64 ? ((const int64_t *)t->data)[at]
                                            : ((const int32_t *)t->data)[at];
        if (block < -1 || block >= l->key_blocks)
            return cup__fail(error, CUP_ARGUMENT,
                             "attention: key_blocks names block %lld, but blocks of %lld keys go "
                             "from 0 to %lld, and -1 is none",
                             (long long)block, (long long)l->size, (long long)l->key_blocks - 1);
        if (block >= 0)
            bits[block / 32] |= UINT32_C(1) << block % 32;
    }
    return CUP_OK;
}

cup_status cup__attention_on_host(cup__attention *a, cup_status (*run)(cup__attention *a))
{
    cup__attention_lists *l = &a->lists;
    if (!l->given)
        return run(a);
    /* One word more, so that there are bits where there is no key. */
    uint32_t *bits = cup__calloc((size_t)words_of(l) + 1, sizeof *bits);
    if (!bits)
        return cup__fail(&a->c->error, CUP_MEMORY, "attention: out of host memory");
    const int64_t *shape = l->given->shape;
    cup_status status = CUP_OK;
    for (int64_t i = 0; i < shape[0] * shape[1] * shape[2] && status == CUP_OK; i++)
        status = read_row(l, i, bits + i * l->words, &a->c->error);
    l->bits = bits;
    if (status == CUP_OK)
        status = run(a);
    l->bits = NULL;
    cup__free(bits);
    return status;
}

static cup_status make_bits(const cup__attention *a, cup_tensor *bits)
{
    cup__cuda *gpu = cup__cuda_of(a->c->device);
    const cup_tensor *t = a->lists.given;
    cup__kernel *kernel =
        cup__kernel_get(gpu, "attention_lists.cu", "attention_list_bits", NULL, 0);
    if (!kernel)
        return a->c->error.status;
    attention_named argument = {
        .numbers = t->data,
        .batch = t->stride[0],
        .head = t->stride[1],
        .block = t->stride[2],
        .step = t->stride[3],
        .bits = bits->data,
        .heads = t->shape[1],
        .blocks = t->shape[2],
        .count = t->shape[3],
        .key_blocks = a->lists.key_blocks,
        .words = a->lists.words,
        .all = bits->count,
        .is_wide = t->dtype == CUP_I64,
    };
    cup__grid grid = {.x = (bits->count + THREADS - 1) / THREADS, .threads = THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}

cup_status cup__attention_with_lists(cup__attention *a, cup_status (*kernels)(cup__attention *a))
{
    cup__attention_lists *l = &a->lists;
    if (!l->given || !words_of(l))
        return cup__attention_with_ranges(a, kernels);
    cup_tensor *bits = cup__attention_numbers(a, CUP_I32, words_of(l));
    if (!bits)
        return a->c->error.status;
    l->bits = bits->data;
    cup_status status = make_bits(a, bits);
    if (status == CUP_OK)
        status = cup__attention_with_ranges(a, kernels);
    l->bits = NULL;
    cup_tensor_free(bits);
    return status;
}

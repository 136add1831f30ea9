#include "dispatch/memo.h"

#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "cuda/gpu.h"
#include "dispatch/attributes.h"
#include "tensor/context.h"

#define NUMBERS_MOST 160
#define MEMOS_MOST 4096
#define ALIGNMENT 256 /* nobody looks at more of an address */

typedef struct table {
    cup__map by_hash; /* to places in `memos` */
    cup__memo **memos;
    size_t count, capacity;
} table;

/* Copies `count` numbers, and maybe more, which the next ones are written over: there is room for
 * CUP_MAX_DIMS. Most shapes are copied without a loop. */
static void put(int64_t *to, const int64_t *from, int count)
{
    memcpy(to, from, 4 * sizeof *to);
    if (count > 4)
        memcpy(to + 4, from + 4, (CUP_MAX_DIMS - 4) * sizeof *to);
}

static int add_tensor(int64_t *to, const cup_tensor *t)
{
    to[0] = -1;
    if (!t)
        return 1;
    int alignment = __builtin_ctzll((uintptr_t)t->data | ALIGNMENT), ndim = t->ndim;
    to[0] = (int64_t)t->dtype << 24 | ndim << 16 | alignment << 8 | t->contiguous;
    put(to + 1, t->shape, ndim);
    if (t->contiguous)
        return 1 + ndim;
    put(to + 1 + ndim, t->stride, ndim);
    return 1 + 2 * ndim;
}

int cup__attribute_numbers(const cup__attribute *a, const void *attributes, int64_t out[8])
{
    const char *at = (const char *)attributes + a->offset;
    int count = 1;
    if (a->name[0] == 's' && !strcmp(a->name, "sequence"))
        return 0;
    if (a->kind == CUP__KIND_INT || a->kind == CUP__KIND_DTYPE) {
        out[0] = *(const int *)(const void *)at;
    } else if (a->kind == CUP__KIND_BOOL) {
        out[0] = *(const bool *)at;
    } else if (a->kind == CUP__KIND_INTS) {
        memcpy(&count, at + 8 * sizeof *out, sizeof count);
        memcpy(out, at, 8 * sizeof *out);
    } else {
        memcpy(out, at, sizeof *out);
    }
    return count;
}

/* What a tensor or an attribute takes at most. */
#define EACH_MOST (1 + 2 * CUP_MAX_DIMS)

/* Puts all of a list behind the `count` numbers that are there; returns how many there are, or
 * NUMBERS_MOST where there is not sure to be room. */
static int add_tensors(int64_t number[NUMBERS_MOST], int count, cup_tensor *const *list, int length)
{
    for (int i = 0; i < length; i++) {
        if (count + EACH_MOST >= NUMBERS_MOST)
            return NUMBERS_MOST;
        count += add_tensor(number + count, list[i]);
    }
    return count;
}

/* The call as numbers, of which there are an even number; returns how many, 0 being too many. */
static int describe(const cup__call *call, int64_t number[NUMBERS_MOST])
{
    int count = 0;
    number[count++] = (int64_t)(call->row - cup__rows) << 16 | (int64_t)call->c->precision << 8 |
                      call->out_count << 1 | call->saving;
    number[count++] = call->in_count;
    count = add_tensors(number, count, call->in, call->in_count);
    count = add_tensors(number, count, call->out, call->out_count);
    for (const cup__attribute *a = call->row->attributes; a && a->name; a++) {
        if (count + EACH_MOST >= NUMBERS_MOST)
            return 0;
        int64_t *numbers = number + count + 1;
        number[count] = cup__attribute_numbers(a, call->attributes, numbers);
        count += 1 + (int)number[count];
    }
    if (count >= NUMBERS_MOST)
        return 0;
    number[count] = 0;
    return count + count % 2;
}

/* Two numbers at a time, each with a key of its own, as the halves of their product. */
static uint64_t hash_of(const int64_t *number, int count)
{
    uint64_t hash = (uint64_t)count;
    for (int i = 0; i < count; i += 2) {
        uint64_t first = (uint64_t)number[i] ^ 0x9e3779b97f4a7c15u ^ hash;
        uint64_t second = (uint64_t)number[i + 1] ^ 0xff51afd7ed558ccdu;
        unsigned __int128 product = (unsigned __int128)first * second;
        hash = (uint64_t)(product >> 64) ^ (uint64_t)product;
    }
    return hash;
}

static void free_table(void *user)
{
    table *t = user;
    for (size_t i = 0; i < t->count; i++) {
        cup__free(t->memos[i]->kept);
        cup__free(t->memos[i]);
    }
    cup__free(t->memos);
    cup__map_free(&t->by_hash);
    cup__free(t);
}

static cup__memo *add(table *t, uint64_t hash, const int64_t *number, int count)
{
    size_t bytes = (size_t)count * sizeof *number;
    if (t->count >= MEMOS_MOST || !cup__grow(&t->memos, &t->capacity, t->count, sizeof *t->memos))
        return NULL;
    cup__memo *memo = cup__calloc(1, sizeof *memo + bytes);
    if (memo && !cup__map_add(&t->by_hash, hash, (uint32_t)t->count)) {
        cup__free(memo);
        memo = NULL;
    }
    if (!memo)
        return NULL;
    memo->count = count;
    memcpy(memo->number, number, bytes);
    return t->memos[t->count++] = memo;
}

/* Whether choosing may take longer than this. Elementwise ops are asked little, and the rows of
 * formulas come and go. */
static bool has_choice(const cup__call *call)
{
    const cup__impl *impl = call->op->impls;
    if (call->op->pointwise || call->row < cup__rows || call->row >= cup__rows + CUP__OP_COUNT)
        return false;
    while (impl && impl->name && impl->place != CUP__CUDA)
        impl++;
    return impl && impl->name && (impl->refuses || impl[1].name);
}

cup__memo *cup__memo_of(const cup__call *call)
{
    cup_context *c = call->c;
    cup__slot *slot = &c->slots[CUP__SLOT_MEMOS];
    int64_t number[NUMBERS_MOST];
    if (!has_choice(call) || (c->tuning && cup__cuda_of(c->device)->capturing))
        return NULL;
    if (!slot->kept)
        *slot = (cup__slot){cup__calloc(1, sizeof(table)), free_table};
    int count = slot->kept ? describe(call, number) : 0;
    if (!count)
        return NULL;
    table *t = slot->kept;
    uint64_t hash = hash_of(number, count);
    uint32_t at = cup__map_find(&t->by_hash, hash);
    if (at == CUP__NOT_THERE)
        return add(t, hash, number, count);
    cup__memo *memo = t->memos[at];
    bool same = memo->count == count &&
                !memcmp(memo->number, number, (size_t)count * sizeof *number);
    return same ? memo : NULL;
}

void *cup__memo_keep(cup__memo *memo, const void *owner, const void *bytes, size_t size)
{
    cup__free(memo->kept);
    memo->again = NULL;
    memo->owner = owner;
    memo->kept = cup__malloc(size);
    return memo->kept ? memcpy(memo->kept, bytes, size) : NULL;
}

void cup__memo_forget(cup_context *c)
{
    const table *t = c->slots[CUP__SLOT_MEMOS].kept;
    for (size_t i = 0; t && i < t->count; i++) {
        t->memos[i]->impl = NULL;
        t->memos[i]->again = NULL;
    }
}

/* Any call of any op, of whatever dtypes, shapes, views and attributes, fails with a sentence or
 * gives results that can be read, and a gradient where one exists, also when memory runs out. */
#include "fuzz.h"

#include <float.h>
#include <math.h>

#include "base/memory.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/op.h"

#define MOST_IN 9
#define MOST_COUNT 1024 /* elements of an input */

typedef struct bytes {
    const uint8_t *at, *end;
} bytes;

static unsigned take(bytes *b, unsigned below)
{
    return b->at < b->end ? *b->at++ % below : 0;
}

static int64_t take_size(bytes *b)
{
    static const int64_t sizes[] = {0, 1, 1, 2, 2, 3, 4, 5, 7, 8, 16, 17, 31, 32, 64, 65};
    return sizes[take(b, 16)];
}

static int64_t take_whole(bytes *b)
{
    static const int64_t values[] = {0,  1,  2,  3,  -1, -2,        -3,        4,
                                     5,  7,  8,  16, 17, INT32_MAX, INT32_MIN, 1 << 20,
                                     64, 65, 32, -8, 6,  INT64_MAX, INT64_MIN, 128};
    return values[take(b, 24)];
}

static double take_real(bytes *b)
{
    static const double values[] = {0, 1,    -1,    0.5,    0.1, 1e-5,
                                    2, 1e30, -1e30, 1e-300, NAN, INFINITY};
    return values[take(b, 12)];
}

static void fill_attributes(bytes *b, const cup__row *row, char *out)
{
    for (const cup__attribute *a = row->attributes; a && a->name; a++) {
        void *to = out + a->offset;
        int64_t *list = to;
        switch (a->kind) {
        case CUP__KIND_INT:
            *(int *)to = (int)take_whole(b);
            break;
        case CUP__KIND_INT64:
            *(int64_t *)to = take_whole(b);
            break;
        case CUP__KIND_FLOAT:
            *(double *)to = take_real(b);
            break;
        case CUP__KIND_BOOL:
            *(bool *)to = take(b, 2);
            break;
        case CUP__KIND_DTYPE:
            *(cup_dtype *)to = (cup_dtype)take(b, 13);
            break;
        case CUP__KIND_INTS:
            *(int *)(void *)(list + 8) = (int)take(b, 6);
            for (int i = 0; i < 8; i++)
                list[i] = take_whole(b);
            break;
        }
    }
}

/* Shapes often follow from the first one's, so that calls are not all refused. */
static int take_shape(bytes *b, const int64_t *first, int first_count, int64_t *size)
{
    int count = first_count;
    memcpy(size, first, 8 * sizeof *size);
    switch (take(b, 6)) {
    case 0:
    case 1:
        return count;
    case 2: /* the last dimension alone */
        size[0] = count ? first[count - 1] : 1;
        return 1;
    case 3: /* without the first */
        for (int i = 1; i < count; i++)
            size[i - 1] = first[i];
        return count ? count - 1 : 0;
    case 4: /* the last two the other way round */
        if (count > 1) {
            size[count - 2] = first[count - 1];
            size[count - 1] = take(b, 2) ? first[count - 2] : take_size(b);
        }
        return count;
    default:
        count = (int)take(b, 5);
        for (int i = 0; i < count; i++)
            size[i] = take_size(b);
        return count;
    }
}

static cup_tensor *take_tensor(bytes *b, cup_context *c, cup_dtype dtype, int ndim, int64_t *size)
{
    static double space[MOST_COUNT];
    int64_t count = 1;
    for (int i = 0; i < ndim; i++)
        if (count *= size[i], count > MOST_COUNT) {
            count /= size[i];
            size[i] = 1;
        }
    memset(space, 0, sizeof space);
    cup_tensor *t = cup_tensor_from(c, dtype, ndim, size, space);
    bool wild = take(b, 4) == 0, whole = dtype >= CUP_I64 && dtype <= CUP_I8;
    unsigned seed = take(b, 256);
    for (int64_t i = 0; t && i < count; i++) {
        unsigned mixed = (seed + (unsigned)i) * 2654435761u >> 16;
        double value = whole ? (double)(mixed % 9) - (wild ? 2 : 0) : (double)(mixed % 64) / 16 - 2;
        cup__store(t, i, wild && mixed % 5 == 0 && !whole ? (mixed % 2 ? INFINITY : NAN) : value);
    }
    if (t && ndim > 1 && take(b, 4) == 0)
        t = cup_permute(c, t, (const int64_t[]){1, 0, 2, 3}, ndim);
    return t;
}

static void call(bytes *b, cup_context *c)
{
    static const cup_dtype common[] = {CUP_F32, CUP_F32, CUP_F32, CUP_BF16, CUP_F64, CUP_F16};
    static const cup__row *rows[512];
    static unsigned row_count;
    if (!row_count) /* gradients are only called by the tape, which gives them what fits */
        for (const cup__row *row = cup__rows; row->name && row_count < 512; row++)
            if (row->is_public)
                rows[row_count++] = row;
    const cup__row *row = rows[take(b, row_count)];
    char attributes[512] = {0};
    cup_tensor *in[MOST_IN] = {NULL}, *out[CUP__MAX_OUT] = {NULL};
    int64_t first[8] = {0}, size[8];
    MUST(row->attributes_size <= sizeof attributes);
    int count = row->in_most; /* what is left out is NULL; only lists differ in length */
    if (count > MOST_IN)
        count = row->in_least + (int)take(b, (unsigned)(MOST_IN - row->in_least) + 1);
    cup_dtype dtype = common[take(b, 6)];
    int ndim = (int)take(b, 5);
    for (int i = 0; i < ndim; i++)
        first[i] = take_size(b);
    fill_attributes(b, row, attributes);
    for (int i = 0; i < count && i < MOST_IN; i++) {
        unsigned choice = take(b, 12);
        cup_dtype own = choice == 0 ? (cup_dtype)take(b, 11) : choice < 3 ? CUP_I32 : dtype;
        int own_ndim = take_shape(b, first, ndim, size);
        in[i] = choice == 11 && i >= row->in_least ? NULL
                                                   : take_tensor(b, c, own, own_ndim, size);
        if (in[i] && take(b, 3) == 0)
            cup_require_grad(in[i]);
        cup_error_clear(c);
    }
    /* Half of the calls meet an allocation that fails, of the op's own or of the gradient's. */
    if (take(b, 2))
        cup__memory_fail_at(1 + take(b, 100), take(b, 2));
    cup_tensor *y = cup__op_call(c, row, in, count, attributes, out);
    MUST((y != NULL) == (cup_error(c) == CUP_OK));
    MUST(y || cup_error_text(c)[0]);
    if (y && y->count) {
        cup__load(y, 0);
        cup__load(y, y->contiguous ? y->count - 1 : 0);
        if (y->count <= MOST_COUNT) {
            cup_backward(c, cup_sum(c, y, NULL, 0, false));
        }
    }
    cup__memory_fail_at(0, false);
    cup_error_clear(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bytes b = {data, data + size};
    cup_context *c = cup_context_new(
        CUP_OPTIONS(cup_options, .device = "cpu", .threads = 1, .memory_limit = 1 << 20));
    MUST(cup_error(c) == CUP_OK);
    cup_scope_open(c);
    call(&b, c);
    cup_scope_close(c);
    cup_context_free(c);
    return 0;
}

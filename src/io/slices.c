#include "io/slices.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cupola/ops.h"
#include "io/named.h"

#define WINDOW ((size_t)1 << 20) /* read at once where what is needed lies scattered */

/* A tensor of a file as a slice of a whole one. */
typedef struct piece {
    const cup__safetensors_entry *entry;
    size_t stem; /* letters of the whole's name */
    int axis;
    int64_t begin, end, whole;
} piece;

cup__cut cup__cut_none(const cup_tensor *t)
{
    return (cup__cut){.whole = cup__shape_of(t)};
}

bool cup__slice_name(const char *name, int axis, int64_t begin, int64_t end, int64_t whole,
                     char out[CUP__SLICE_NAME])
{
    int length =
        snprintf(out, CUP__SLICE_NAME, "%s[%.*s%lld:%lld/%lld]", name, 2 * axis,
                 ":,:,:,:,:,:,:,:,:,:,", (long long)begin, (long long)end, (long long)whole);
    return length >= 0 && length < CUP__SLICE_NAME;
}

/* A number and what stands behind it. */
static bool take_number(const char **at, char behind, int64_t *out)
{
    const char *p = *at;
    *out = 0;
    if (!isdigit((unsigned char)*p))
        return false;
    for (; isdigit((unsigned char)*p); p++)
        if (__builtin_mul_overflow(*out, 10, out) || __builtin_add_overflow(*out, *p - '0', out))
            return false;
    *at = p + 1;
    return *p == behind;
}

static bool parse(const char *name, piece *out)
{
    const char *at = strrchr(name, '[');
    if (!at || at == name)
        return false;
    out->stem = (size_t)(at++ - name);
    for (out->axis = 0; at[0] == ':' && at[1] == ','; at += 2)
        out->axis++;
    return out->axis < CUP_MAX_DIMS && take_number(&at, ':', &out->begin) &&
           take_number(&at, '/', &out->end) && take_number(&at, ']', &out->whole) && !*at &&
           out->begin < out->end && out->end <= out->whole;
}

bool cup__slice_is(const char *name)
{
    piece ignored;
    return parse(name, &ignored);
}

int64_t cup__slices_count(const cup__safetensors *file)
{
    int64_t count = 0;
    piece p, last = {0};
    for (size_t i = 0; i < file->count; i++) {
        const char *name = file->entries[i].name;
        bool slice = parse(name, &p);
        /* Those of one tensor follow each other. */
        bool more = slice && last.stem == p.stem && !memcmp(last.entry->name, name, p.stem + 1);
        count += !more;
        p.entry = &file->entries[i];
        last = slice ? p : last;
    }
    return count;
}

static int by_place(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* The first entry whose name is not before this one. */
static size_t find_from(const cup__safetensors *file, const char *name)
{
    size_t low = 0, high = file->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(file->entries[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The slices of a tensor in their order, to be freed; none where there are none. */
static cup_status find_slices(cup_context *c, const cup__safetensors *file, const char *name,
                              piece **out, size_t *count)
{
    char first[CUP__SLICE_NAME];
    size_t room = 0;
    *out = NULL;
    *count = 0;
    int length = snprintf(first, sizeof first, "%s[", name);
    if (length < 0 || (size_t)length >= sizeof first)
        return CUP_OK;
    for (size_t i = find_from(file, first);
         i < file->count && !strncmp(file->entries[i].name, first, (size_t)length); i++) {
        piece p = {.entry = &file->entries[i]};
        if (!parse(p.entry->name, &p) || p.stem + 1 != (size_t)length)
            continue;
        if (!cup__grow(out, &room, *count, sizeof **out)) {
            cup__free(*out);
            return cup__no_memory(&c->error, file->path);
        }
        (*out)[(*count)++] = p;
    }
    if (*count)
        qsort(*out, *count, sizeof **out, by_place);
    return CUP_OK;
}

static cup_status find_pieces(cup_context *c, const cup__safetensors *file, bool slices,
                              const char *name, piece **out, size_t *count)
{
    const cup__safetensors_entry *entry = cup__safetensors_find(file, name);
    *out = NULL;
    *count = 0;
    if (slices)
        CUP_TRY(find_slices(c, file, name, out, count));
    if (entry && *count) {
        cup__free(*out);
        return cup__fail(&c->error, CUP_FORMAT, "%s holds \"%.100s\" whole and in slices",
                         file->path, name);
    }
    if (*count)
        return CUP_OK;
    if (!entry)
        return cup__fail(&c->error, CUP_FORMAT, "%s holds no tensor \"%.100s\"", file->path, name);
    *out = cup__malloc(sizeof **out);
    if (!*out)
        return cup__no_memory(&c->error, file->path);
    **out = (piece){.entry = entry, .end = entry->shape[0], .whole = entry->shape[0]};
    *count = 1;
    return CUP_OK;
}

/* Whether a slice is one of a tensor of that shape, and has the dtype of the first one. */
static cup_status check_piece(cup_context *c, const cup__safetensors *file, const cup__wanted *w,
                              const piece *p, const piece *first)
{
    const cup__shape *whole = &w->cut.whole;
    char have[CUP__SHAPE_TEXT], need[CUP__SHAPE_TEXT];
    CUP_TRY(cup__safetensors_usable(&c->error, file, p->entry));
    cup__shape found = {.dtype = (cup_dtype)p->entry->type->dtype, .ndim = p->entry->ndim};
    memcpy(found.size, p->entry->shape, sizeof found.size);
    bool sliced = p->stem > 0;
    bool fits =
        !sliced || (p->axis < found.ndim && found.size[p->axis] == p->end - p->begin &&
                    p->axis == first->axis && (int)found.dtype == first->entry->type->dtype);
    if (sliced && fits)
        found.size[p->axis] = p->whole;
    if (fits && cup__shape_equal(&found, whole))
        return CUP_OK;
    cup__shape wanted = *whole;
    wanted.dtype = w->tensor->dtype;
    return cup__fail(&c->error, fits ? CUP_SHAPE : CUP_FORMAT,
                     "%s: \"%.100s\" is %s, but %s is needed", file->path, p->entry->name,
                     cup__shape_text(&found, have), cup__shape_text(&wanted, need));
}

static cup_status check_pieces(cup_context *c, const cup__safetensors *file, const cup__wanted *w,
                               const piece *pieces, size_t count, bool cast)
{
    int64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const piece *p = &pieces[i];
        CUP_TRY(check_piece(c, file, w, p, pieces));
        if (p->stem && p->begin != at)
            return cup__fail(&c->error, CUP_FORMAT,
                             "%s: of \"%.100s\" the places %lld to %lld along axis %d are %s; copy "
                             "the folder again as a whole, or go back to an older one",
                             file->path, w->name, (long long)(p->begin < at ? p->begin : at),
                             (long long)(p->begin < at ? at : p->begin), p->axis,
                             p->begin < at ? "there twice" : "missing");
        at = p->end;
    }
    const piece *last = &pieces[count - 1];
    if (last->stem && at != last->whole)
        return cup__fail(
            &c->error, CUP_FORMAT,
            "%s: of \"%.100s\" the places %lld to %lld along axis %d are missing; copy "
            "the folder again as a whole, or go back to an older one",
            file->path, w->name, (long long)at, (long long)last->whole, last->axis);
    if (cast || (int)w->tensor->dtype == last->entry->type->dtype)
        return CUP_OK;
    return cup__fail(&c->error, CUP_DTYPE, "%s: \"%.100s\" is %s, but %s is needed", file->path,
                     w->name, last->entry->type->name, cup_dtype_name(w->tensor->dtype));
}

/* A block of elements in a larger one that it comes from and in one that it goes to, all in
 * row-major order. */
typedef struct box {
    int ndim;
    int64_t size[CUP_MAX_DIMS];
    int64_t from[CUP_MAX_DIMS], from_at[CUP_MAX_DIMS];
    int64_t to[CUP_MAX_DIMS], to_at[CUP_MAX_DIMS];
} box;

/* What stretch i of a cut has in common with a piece, which begins at `begin` along its axis and
 * has that shape; false: nothing. */
static bool meet(const cup__cut *cut, int i, const cup__shape *tensor, int axis, int64_t begin,
                 const int64_t *shape, box *out)
{
    int64_t before = 0;
    for (int k = 0; k < i; k++)
        before += cut->size[k];
    out->ndim = cut->whole.ndim;
    for (int d = 0; d < out->ndim; d++) {
        bool cuts = cut->count && d == cut->axis;
        int64_t first = cuts ? cut->begin[i] : 0, start = d == axis ? begin : 0;
        int64_t end = cuts ? first + cut->size[i] : cut->whole.size[d];
        int64_t low = first > start ? first : start;
        int64_t high = end < start + shape[d] ? end : start + shape[d];
        if (high <= low)
            return false;
        out->size[d] = high - low;
        out->from[d] = shape[d];
        out->from_at[d] = low - start;
        out->to[d] = tensor->size[d];
        out->to_at[d] = low - first + (cuts ? before : 0);
    }
    return true;
}

typedef cup_status (*mover)(void *user, int64_t from, int64_t to, int64_t count);

/* Calls with each run of elements that lies together in both. */
static cup_status move(const box *b, mover call, void *user)
{
    int64_t run = 1, at[CUP_MAX_DIMS] = {0};
    int outer = b->ndim;
    for (bool whole = true; outer > 0 && whole; outer--) {
        whole = b->size[outer - 1] == b->from[outer - 1] && b->size[outer - 1] == b->to[outer - 1];
        run *= b->size[outer - 1];
    }
    for (;;) {
        int64_t from = 0, to = 0;
        for (int d = 0; d < b->ndim; d++) {
            from = from * b->from[d] + b->from_at[d] + at[d];
            to = to * b->to[d] + b->to_at[d] + at[d];
        }
        CUP_TRY(call(user, from, to, run));
        int d = outer - 1;
        while (d >= 0 && ++at[d] == b->size[d])
            at[d--] = 0;
        if (d < 0)
            return CUP_OK;
    }
}

/* Reading into host memory; what is scattered by way of a window. */
typedef struct reading {
    cup_context *c;
    const cup__safetensors *file;
    const cup__safetensors_entry *entry;
    size_t element;
    char *to, *window;
    uint64_t begin, end; /* of the window */
} reading;

static cup_status read_run(void *user, int64_t from, int64_t to, int64_t count)
{
    reading *r = user;
    uint64_t at = (uint64_t)from * r->element;
    size_t bytes = (size_t)count * r->element;
    char *out = r->to + (size_t)to * r->element;
    if (bytes >= WINDOW / 16)
        return cup__safetensors_read(&r->c->error, r->file, r->entry, at, out, bytes);
    if (at < r->begin || at + bytes > r->end) {
        uint64_t left = r->entry->bytes - at;
        size_t wide = left < WINDOW ? (size_t)left : WINDOW;
        CUP_TRY(cup__safetensors_read(&r->c->error, r->file, r->entry, at, r->window, wide));
        r->begin = at;
        r->end = at + wide;
    }
    memcpy(out, r->window + (at - r->begin), bytes);
    return CUP_OK;
}

static cup_status read_pieces(cup_context *c, const cup__safetensors *file, const cup__wanted *w,
                              const piece *pieces, size_t count, char *to)
{
    box b;
    cup__shape shape = cup__shape_of(w->tensor);
    reading r = {.c = c, .file = file, .to = to, .window = cup__malloc(WINDOW)};
    cup_status status = r.window ? CUP_OK : cup__no_memory(&c->error, file->path);
    for (size_t i = 0; i < count && status == CUP_OK; i++) {
        const piece *p = &pieces[i];
        r.entry = p->entry;
        r.element = (size_t)cup_dtype_size((cup_dtype)p->entry->type->dtype);
        r.begin = r.end = 0;
        for (int k = 0; k == 0 || k < w->cut.count; k++)
            if (status == CUP_OK &&
                meet(&w->cut, k, &shape, p->axis, p->begin, p->entry->shape, &b))
                status = move(&b, read_run, &r);
    }
    cup__free(r.window);
    return status;
}

static cup_status put(cup_context *c, const cup__wanted *w, cup_dtype dtype, const char *bytes)
{
    cup_tensor *t = w->tensor;
    if (dtype == t->dtype)
        return cup_tensor_write(t, bytes, (size_t)(t->count * cup_dtype_size(dtype)));
    cup_scope_open(c);
    cup_tensor *found = cup_tensor_from(c, dtype, t->ndim, t->shape, bytes);
    cup_tensor *taken = found ? cup_cast(c, found, t->dtype) : NULL;
    cup_status status = taken ? cup_copy_into(c, t, taken) : c->error.status;
    cup_scope_close(c);
    return status;
}

static cup_status fill_cut(cup_context *c, const cup__safetensors *file, const cup__wanted *w,
                           const piece *pieces, size_t count)
{
    cup_dtype dtype = (cup_dtype)pieces->entry->type->dtype;
    char *packed = cup__calloc((size_t)w->tensor->count, (size_t)cup_dtype_size(dtype));
    if (!packed)
        return cup__no_memory(&c->error, file->path);
    cup_status status = read_pieces(c, file, w, pieces, count, packed);
    if (status == CUP_OK)
        status = put(c, w, dtype, packed);
    cup__free(packed);
    return status;
}

static cup_status fill(cup_context *c, const cup__safetensors *file, bool slices, bool cast,
                       const cup__wanted *w)
{
    piece *pieces;
    size_t count;
    CUP_TRY(find_pieces(c, file, slices, w->name, &pieces, &count));
    cup_status status = check_pieces(c, file, w, pieces, count, cast);
    bool plain = count == 1 && !pieces->stem && !w->cut.count;
    if (status == CUP_OK && plain && (int)w->tensor->dtype == pieces->entry->type->dtype)
        status = cup__named_fill(c, file, &(cup_named){w->name, w->tensor}, 1);
    else if (status == CUP_OK && w->tensor->count)
        status = fill_cut(c, file, w, pieces, count);
    cup__free(pieces);
    return status;
}

cup_status cup__slices_fill(cup_context *c, const cup__safetensors *file, bool slices, bool cast,
                            const cup__wanted *wanted, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        CUP_TRY(fill(c, file, slices, cast, &wanted[i]));
    return c->error.status;
}

/* Between two places of host memory. */
typedef struct placing {
    const char *from;
    char *to;
    size_t element;
} placing;

/* The box is that of filling the part from the whole. */
static cup_status place_run(void *user, int64_t whole, int64_t part, int64_t count)
{
    const placing *p = user;
    memcpy(p->to + (size_t)whole * p->element, p->from + (size_t)part * p->element,
           (size_t)count * p->element);
    return CUP_OK;
}

void cup__cut_place(const cup__cut *cut, const cup__shape *part, const char *from, char *whole)
{
    box b;
    placing p = {from, whole, (size_t)cup_dtype_size(part->dtype)};
    for (int k = 0; k == 0 || k < cut->count; k++)
        if (meet(cut, k, part, 0, 0, cut->whole.size, &b))
            move(&b, place_run, &p);
}

#include "prof/draw.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "prof/check.h"

#define TRIES 48
#define MOST_SHAPES 1200 /* bytes of a recipe's text */

/* A drawing under way. */
typedef struct drawing {
    cup__drawn *d;
    cup_context *scratch;
    cup__symbols *symbols;
    uint64_t state;
    cup__shape common; /* what inputs marked "~" broadcast to */
    const cup__drawn *forward;
    const cup__call *forward_call;
} drawing;

/* The dimensions in any order in memory, some padded, some broadcast unless `dense`. */
static void lay_out(cup__drawn_input *in, bool dense, uint64_t *state)
{
    int order[CUP_MAX_DIMS], ndim = in->shape.ndim;
    int64_t step = cup__draw_chance(state, 10) ? 2 + cup__draw_below(state, 2) : 1;
    for (int i = 0; i < ndim; i++)
        order[i] = ndim - 1 - i;
    bool turned = cup__draw_chance(state, 50), padded = cup__draw_chance(state, 60);
    bool broadcast = in->places == CUP__PLACES_NONE && cup__draw_chance(state, 20) && !dense;
    for (int i = ndim; turned && i-- > 1;) {
        int j = (int)cup__draw_below(state, i + 1), was = order[i];
        order[i] = order[j];
        order[j] = was;
    }
    for (int i = 0; i < ndim; i++) {
        int d = order[i];
        in->stride[d] = step;
        if (broadcast && cup__draw_chance(state, 40)) {
            in->stride[d] = 0;
            continue;
        }
        static const int64_t gaps[] = {0, 0, 1, 3, 8, 16};
        step *= in->shape.size[d] ? in->shape.size[d] : 1;
        step += padded ? gaps[cup__draw_below(state, 6)] : 0;
    }
    in->offset = cup__draw_chance(state, 50) ? cup__draw_below(state, 16) : 0;
}

/* An image [N,C,H,W] as [N,H,W,C], or with a depth. */
static void lay_channels_last(const cup__shape *shape, int64_t *stride)
{
    int64_t next = shape->size[1];
    stride[1] = 1;
    for (int d = shape->ndim; d-- > 2; next *= shape->size[d])
        stride[d] = next;
    stride[0] = next;
}

static void draw_layouts(cup__drawn *d, const cup__draw_limits *limits, uint64_t *state)
{
    bool all_plain = limits->row_major || cup__drawn_row_major(d) || cup__draw_chance(state, 35);
    for (int i = 0; i < d->count; i++) {
        cup__drawn_input *in = &d->in[i];
        if (!in->given)
            continue;
        cup__drawn_lay_plain(in);
        int kind = (int)cup__draw_below(state, 100);
        if (all_plain)
            continue;
        if (kind < 30)
            in->offset = cup__draw_below(state, 16);
        else if (d->row->op->images && in->shape.ndim >= 4 && kind < 80)
            lay_channels_last(&in->shape, in->stride);
        else if (kind < 70 || d->row->op->images)
            lay_out(in, limits->tame && d->row->op->steady, state);
    }
}

static cup_dtype dtype_of_input(drawing *w, int i)
{
    const cup__drawn *d = w->d;
    uint32_t allowed = d->row->op->in_dtypes[cup__input_slot(d->row->op, i)];
    if (!allowed) {
        bool other = d->row->is_public && i > 0 && cup__draw_chance(&w->state, 2);
        return other ? CUP_F32 : d->dtype;
    }
    bool index = !(allowed & ~CUP__DTYPES_INDEX);
    /* An op of the library's own trusts that its inputs fit. */
    bool any = index || (d->row->is_public && cup__draw_chance(&w->state, 6));
    if (!any)
        return allowed & (1u << d->dtype) ? d->dtype : (cup_dtype)__builtin_ctz(allowed);
    int at = (int)cup__draw_below(&w->state, __builtin_popcount(allowed));
    for (; at > 0; at--)
        allowed &= allowed - 1;
    return (cup_dtype)__builtin_ctz(allowed);
}

/* A shape that broadcasts to the common one. */
static void draw_broadcast(drawing *w, cup__shape *shape)
{
    uint64_t *state = &w->state;
    int drop = cup__draw_chance(state, 25) ? (int)cup__draw_below(state, w->common.ndim + 1) : 0;
    shape->ndim = w->common.ndim - drop;
    bool ones = cup__draw_chance(state, 35);
    for (int i = 0; i < shape->ndim; i++) {
        shape->size[i] = w->common.size[i + drop];
        if (ones && cup__draw_chance(state, 50))
            shape->size[i] = 1;
    }
}

/* "*xMxK": leading dimensions and expressions. */
static bool read_dimensions(drawing *w, const char **at, cup__shape *shape)
{
    shape->ndim = 0;
    for (;; ++*at) {
        if (**at == '*') {
            for (int i = 0; i < w->symbols->lead && shape->ndim < CUP_MAX_DIMS; i++)
                shape->size[shape->ndim++] = cup__symbol(w->symbols, (char)('0' + i));
            ++*at;
        } else {
            if (shape->ndim == CUP_MAX_DIMS)
                return false;
            const char *before = *at;
            shape->size[shape->ndim++] = cup__expression(w->symbols, at);
            if (*at == before)
                return false;
        }
        if (**at != 'x')
            return true;
    }
}

static bool read_shape(drawing *w, const char **at, cup__shape *shape)
{
    if (**at == '~') {
        ++*at;
        draw_broadcast(w, shape);
        return true;
    }
    if ((**at == '@' || **at == '%') && w->forward) {
        int i = (*at)[1] - '0';
        *shape = **at == '@' ? w->forward_call->result[i] : w->forward->in[i].shape;
        *at += 2;
        return true;
    }
    if ((*at)[0] == '(' && (*at)[1] == ')') {
        *at += 2;
        shape->ndim = 0;
        return true;
    }
    return read_dimensions(w, at, shape);
}

static bool read_input(drawing *w, const char *at)
{
    cup__drawn *d = w->d;
    if (d->count == CUP__DRAWN_INPUTS)
        return false;
    int i = d->count++;
    cup__drawn_input *in = &d->in[i];
    memset(in, 0, sizeof *in);
    bool may_miss = *at == '?';
    at += may_miss;
    bool missing = *at == '-' || (may_miss && cup__draw_chance(&w->state, 35)) ||
                   (w->forward && *at == '%' && !w->forward->in[at[1] - '0'].given);
    in->shape.dtype = dtype_of_input(w, i);
    if (missing)
        return true;
    in->given = true;
    cup_dtype dtype = in->shape.dtype;
    const char *text = at;
    bool of_forward = (*at == '@' || *at == '%') && w->forward;
    if (!read_shape(w, &at, &in->shape))
        return false;
    if (!of_forward || cup__dtype_is_float(in->shape.dtype))
        in->shape.dtype = dtype;
    if (of_forward && text[0] == '%') {
        in->places = w->forward->in[text[1] - '0'].places;
        in->below = w->forward->in[text[1] - '0'].below;
    }
    static const char marks[] = " <^!";
    const char *mark = *at ? strchr(marks, *at) : NULL;
    if (mark) {
        at++;
        in->places = (cup__places)(mark - marks);
        in->below = cup__expression(w->symbols, &at);
    }
    return !*at;
}

static bool read_inputs(drawing *w, const char *text)
{
    char one[64];
    w->d->count = 0;
    for (const char *at = text + strspn(text, " "); *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        if (length >= sizeof one)
            return false;
        memcpy(one, at, length);
        one[length] = 0;
        if (!read_input(w, one))
            return false;
        at += length;
    }
    for (; w->d->row->in_most != INT_MAX && w->d->count < w->d->row->in_most; w->d->count++)
        w->d->in[w->d->count] = (cup__drawn_input){.shape.dtype = w->d->dtype};
    return true;
}

/* The recipe that says of a sample: equal sizes stay equal, ones mostly ones. */
static bool recipe_of_sample(const char *shapes, uint64_t *state, char out[MOST_SHAPES])
{
    int64_t known[24];
    size_t used = 0;
    int count = 0;
    bool keep_ones = cup__draw_chance(state, 80);
    for (const char *at = shapes; *at && used < MOST_SHAPES - 24;) {
        if (*at < '0' || *at > '9') {
            out[used++] = *at++;
            continue;
        }
        int64_t size = 0;
        while (*at >= '0' && *at <= '9')
            size = size * 10 + (*at++ - '0');
        int i = 0;
        while (i < count && known[i] != size)
            i++;
        if (*at == '*' || (i == count && count == 23))
            return false;
        if (i == count)
            known[count++] = size;
        if (size == 1 && keep_ones)
            out[used++] = '1';
        else
            out[used++] = "ABCEFGHIJKLMNOPQRSTUWYZ"[i];
    }
    out[used] = 0;
    return true;
}

static const cup__recipe *pick_recipe(const cup__row *row, uint64_t *state)
{
    int count = 0;
    for (const cup__recipe *r = cup__recipes; r->op; r++)
        count += !strcmp(r->op, row->name);
    int at = (int)cup__draw_below(state, count);
    for (const cup__recipe *r = cup__recipes; r->op; r++)
        if (!strcmp(r->op, row->name) && at-- == 0)
            return r;
    return NULL;
}

static void copy_attributes(drawing *w)
{
    const cup__drawn *from = w->forward;
    for (const cup__attribute *a = w->d->row->attributes; a && a->name; a++)
        for (const cup__attribute *b = from->row->attributes; b && b->name; b++)
            if (!strcmp(a->name, b->name) && a->kind == b->kind) {
                static const size_t size[] = {sizeof(int),  sizeof(int64_t),   sizeof(double),
                                              sizeof(bool), sizeof(cup_dtype), 72};
                memcpy(w->d->attributes + a->offset, from->attributes + b->offset, size[a->kind]);
            }
}

static void base_attributes(drawing *w)
{
    const cup__row *row = w->d->row;
    int count = 0;
    memset(w->d->attributes, 0, sizeof w->d->attributes);
    while (row->op->samples[count].shapes)
        count++;
    const void *from = row->op->samples[cup__draw_below(&w->state, count)].attributes;
    if (from && row->attributes_size <= sizeof w->d->attributes)
        memcpy(w->d->attributes, from, row->attributes_size);
}

static void draw_values(cup__drawn *d, const char *flags, bool tame, uint64_t *state)
{
    static const int scales[] = {-12, -6, -3, 3, 6, 10};
    static const double shifts[] = {-100, -10, 10, 1000};
    d->seed = cup__draw_word(state) >> 16;
    int scale = (int)cup__draw_below(state, 24), shift = (int)cup__draw_below(state, 20);
    bool special = cup__draw_chance(state, 8);
    static const int offsets[] = {0, 0, 0, 0, 1, 2, 3, 4, 5, 7, 8, 12};
    d->out_offset = offsets[cup__draw_below(state, 12)];
    d->scale = !tame && scale < 6 && strchr(flags, 'w') ? scales[scale] : 0;
    d->shift = !tame && shift < 4 && strchr(flags, 'o') ? shifts[shift] : 0;
    d->special = !tame && special && strchr(flags, 's');
}

static bool draw_once(drawing *w, const cup__recipe *recipe, const char *shapes);

static bool draw_forward(drawing *w, const cup__recipe *recipe, cup__drawn *forward,
                         cup__call *call)
{
    drawing f = *w;
    f.d = forward;
    f.forward = NULL;
    forward->row = cup__row_find(recipe->forward);
    forward->dtype = w->d->dtype;
    if (!forward->row)
        return false;
    const cup__recipe *own = pick_recipe(forward->row, &f.state);
    if (!own || !draw_once(&f, own, own->shapes))
        return false;
    for (int i = 0; i < forward->count; i++)
        cup__drawn_lay_plain(&forward->in[i]);
    w->state = f.state;
    return cup__drawn_infer(forward, w->scratch, call);
}

/* Inputs and attributes by a recipe, without layouts. */
static bool draw_once(drawing *w, const cup__recipe *recipe, const char *shapes)
{
    cup__drawn forward;
    cup__call call;
    const char *attributes = recipe ? recipe->attributes : "";
    base_attributes(w);
    int all = cup__draw_chance(&w->state, 10) ? 5 : 4;
    w->common = (cup__shape){.ndim = (int)cup__draw_below(&w->state, all)};
    for (int i = 0; i < w->common.ndim; i++)
        w->common.size[i] = cup__symbol(w->symbols, (char)('5' + i % 4));
    if (recipe && recipe->forward[0]) {
        if (!draw_forward(w, recipe, &forward, &call))
            return false;
        w->forward = &forward;
        w->forward_call = &call;
        copy_attributes(w);
    }
    return read_inputs(w, shapes) &&
           cup__draw_attributes(w->d, w->symbols, &w->state, attributes);
}

static cup_dtype draw_dtype(const cup__row *row, uint32_t wanted, uint64_t *state)
{
    uint32_t dtypes = cup__check_dtypes(row);
    dtypes = wanted & dtypes ? wanted & dtypes : dtypes;
    uint32_t usual = dtypes & (CUP__DTYPE(BF16) | CUP__DTYPE(F32) | CUP__DTYPE(F16));
    if (usual && cup__draw_chance(state, 60))
        dtypes = usual;
    for (int at = (int)cup__draw_below(state, __builtin_popcount(dtypes)); at > 0; at--)
        dtypes &= dtypes - 1;
    return (cup_dtype)__builtin_ctz(dtypes);
}

/* A drawing of which all is settled but its sizes, which shrink until the limits hold. */
typedef struct settled {
    const cup__recipe *recipe; /* NULL: by the text */
    char text[MOST_SHAPES];
    const char *flags;
    cup_dtype dtype;
    cup__symbols symbols;
    /* What attributes are drawn from; strides and offsets, values: 0: from what is left of that. */
    uint64_t state, layouts, values;
} settled;

static bool settle(const cup__row *row, const cup__draw_limits *limits, uint64_t state, settled *s)
{
    cup__symbols_begin(&s->symbols, row, cup__draw_word(&state));
    s->layouts = s->values = 0;
    s->dtype = draw_dtype(row, limits->dtypes, &state);
    s->recipe = pick_recipe(row, &state);
    s->flags = s->recipe ? s->recipe->values : "";
    if (!s->recipe && row->op->pointwise) {
        int used = snprintf(s->text, sizeof s->text, "~");
        for (int i = 1; i < row->in_least && i < 8; i++)
            used += snprintf(s->text + used, sizeof s->text - (size_t)used, " ~");
        bool own = row->op->domain[0].low < row->op->domain[0].high || !row->is_public;
        s->flags = own ? "" : "ws";
    }
    if (!s->recipe && (!row->op->pointwise || cup__draw_chance(&state, 40))) {
        int count = 0;
        while (row->op->samples[count].shapes)
            count++;
        if (!recipe_of_sample(row->op->samples[cup__draw_below(&state, count)].shapes, &state,
                              s->text))
            return false;
    }
    s->state = state;
    return true;
}

/* Leaves the sizes it ended with in s->symbols. */
static bool draw_settled(cup_context *scratch, const cup__row *row, const cup__draw_limits *limits,
                         settled *s, cup__drawn *d)
{
    double elements, work;
    memset(d, 0, offsetof(cup__drawn, in));
    d->row = row;
    d->dtype = s->dtype;
    for (;;) {
        drawing w = {.d = d, .scratch = scratch, .symbols = &s->symbols, .state = s->state};
        cup__error_clear(&scratch->error);
        if (!draw_once(&w, s->recipe, s->recipe ? s->recipe->shapes : s->text))
            return false;
        if (s->layouts)
            w.state = s->layouts;
        draw_layouts(d, limits, &w.state);
        if (s->values)
            w.state = s->values;
        draw_values(d, s->flags, limits->tame, &w.state);
        if (!cup__drawn_cost(d, scratch, &elements, &work))
            return false;
        if (elements <= limits->elements && work <= limits->work)
            return elements >= limits->least;
        if (!cup__symbols_shrink(&s->symbols))
            return false;
    }
}

#define LARGE_ELEMENTS (1 << 23)
#define LARGE_ONE_OF 100

/* Most calls are small, some large. */
static cup__draw_limits usual_limits(const cup__draw_limits *given, uint64_t *state)
{
    cup__draw_limits limits = given ? *given : (cup__draw_limits){0};
    int kind = (int)cup__draw_below(state, 100);
    double elements = kind < 45 ? 1 << 11 : kind < 80 ? 1 << 15 : kind < 98 ? 1 << 18 : 1 << 21;
    if (limits.large && !cup__draw_below(state, LARGE_ONE_OF)) {
        elements = LARGE_ELEMENTS;
        limits.least = elements / 8;
    }
    if (!(limits.elements > 0))
        limits.elements = elements;
    if (!(limits.work > 0))
        limits.work = 16 * elements;
    return limits;
}

/* The state of a call, behind its limits. */
static uint64_t begin(const cup__row *row, const cup__draw_limits *given, uint64_t seed,
                      int64_t number, cup__draw_limits *limits)
{
    uint64_t state = seed * 0x2545f4914f6cdd1du + (uint64_t)number;
    for (const char *at = row->name; *at; at++)
        state = (state ^ (unsigned char)*at) * 0x100000001b3u;
    *limits = usual_limits(given, &state);
    return state;
}

static bool draw_first(cup_context *scratch, const cup__row *row, cup__draw_limits *limits,
                       uint64_t state, settled *s, cup__drawn *out, int *tries)
{
    for (*tries = 1; *tries <= TRIES; ++*tries) {
        bool drawn = settle(row, limits, cup__draw_word(&state), s) &&
                     draw_settled(scratch, row, limits, s, out);
        cup__error_clear(&scratch->error);
        if (drawn)
            return true;
        limits->least = *tries < TRIES / 2 ? limits->least : 0;
    }
    *tries = TRIES;
    return false;
}

bool cup__draw(cup_context *scratch, const cup__row *row, const cup__draw_limits *given,
               uint64_t seed, int64_t number, cup__drawn *out, int *tries)
{
    settled s;
    cup__draw_limits limits;
    uint64_t state = begin(row, given, seed, number, &limits);
    return draw_first(scratch, row, &limits, state, &s, out, tries);
}

bool cup__draw_sibling(cup_context *scratch, const cup__row *row, const cup__draw_limits *given,
                       uint64_t seed, int64_t number, int sibling, cup__drawn *out, int *tries)
{
    settled s;
    cup__draw_limits limits;
    uint64_t state = begin(row, given, seed, number, &limits), own = state + (uint64_t)sibling;
    if (!draw_first(scratch, row, &limits, state, &s, out, tries))
        return false;
    if (!sibling)
        return true;
    int kind = (int)cup__draw_below(&own, 100);
    if (kind < 50)
        cup__symbols_vary(&s.symbols, &own);
    if (kind >= 30 && kind < 70)
        s.state = cup__draw_word(&own);
    if (kind < 90)
        s.layouts = cup__draw_word(&own);
    s.values = cup__draw_word(&own);
    bool drawn = draw_settled(scratch, row, &limits, &s, out);
    cup__error_clear(&scratch->error);
    return drawn;
}

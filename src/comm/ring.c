/* Attention of which each process has a part of every sequence: keys and values go round from
 * process to process while each computes with those at hand, and what it finds is joined by the
 * logarithms of the sums (Liu, Zaharia and Abbeel 2023, "Ring attention with blockwise transformers
 * for near-infinite context"). A sequence is cut into twice as many parts as there are processes,
 * of which process r of n has parts r and 2 n - 1 - r, so that causality leaves all as much to do:
 * of keys of a process before it, it sees the first half; those of one behind it, its second half
 * sees. */
#include "base/options.h"
#include "comm/comm.h"
#include "cupola/expr.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"

#define TILE 16 /* of dropout's numbers, see cup__attention_draws */

typedef struct asked {
    cup_comm *m;
    int heads, kv_heads;
    bool causal;
    double scale, dropout;
    uint32_t sequence, share; /* of dropout's numbers, as cup__random has them */
} asked;

/* A call of it, forward or backward. */
typedef struct ring {
    asked a;
    cup_context *c;
    cup_tensor *qkv, *o, *lse, *d_o;
    int64_t batch, length, size; /* of a head */
    int64_t queries, pairs;      /* features of the queries, and of keys with their values */
    cup_tensor *kv[2];  /* [batch, length, pairs] at hand, and room for those that come */
    cup_tensor *dkv[2]; /* their gradients, which go round with them */
    cup_tensor *sum, *sums; /* of turns: the result; or the gradients of queries, and of pairs */
    cup_tensor *d, *ds;     /* of one turn */
    cup_expr *join, *grow, *add;
    int turn;         /* so many processes before this one the keys at hand began */
    int64_t from, to; /* queries from here on see the keys before there */
    cup__stretched drawn; /* where both stand in the whole */
} ring;

/* What goes round meanwhile. */
typedef struct load {
    cup_tensor *from[2], *to[2];
    int count;
} load;

/* That of logarithms; and of what goes through more than one sum, each of which rounds it. */
static cup_dtype wide(const ring *r)
{
    return r->qkv->dtype == CUP_F64 ? CUP_F64 : CUP_F32;
}

static cup_dtype sum_dtype(const ring *r)
{
    return r->a.m->count > 2 ? wide(r) : r->qkv->dtype;
}

static cup_tensor *widened(const ring *r, cup_tensor *x)
{
    return x && x->dtype != sum_dtype(r) ? cup_cast(r->c, x, sum_dtype(r)) : x;
}

static cup_tensor *narrowed(const ring *r, cup_tensor *x)
{
    return x && x->dtype != r->qkv->dtype ? cup_cast(r->c, x, r->qkv->dtype) : x;
}

static cup_tensor *fresh(const ring *r, int64_t rows, int64_t features)
{
    return cup_tensor_new(r->c, r->qkv->dtype, 3, (int64_t[]){r->batch, rows, features});
}

static cup_status start(ring *r, const asked *a, cup_tensor *qkv)
{
    int64_t size = qkv->shape[2] / (a->heads + 2 * (int64_t)a->kv_heads);
    *r = (ring){.a = *a,
                .c = a->m->c,
                .qkv = qkv,
                .batch = qkv->shape[0],
                .length = qkv->shape[1],
                .size = size,
                .queries = a->heads * size,
                .pairs = 2 * a->kv_heads * size};
    const int64_t starts[] = {0, 0, r->queries}, sizes[] = {-1, -1, r->pairs};
    r->kv[0] = cup_copy(r->c, cup_slice(r->c, qkv, starts, 3, sizes, 3));
    r->kv[1] = fresh(r, r->length, r->pairs);
    return r->c->error.status;
}

/* The rows [from, to) of x [batch, length, features]. */
static cup_tensor *rows_of(const ring *r, cup_tensor *x, int64_t from, int64_t to)
{
    if (!x)
        return NULL;
    const cup__shape shape = {
        .dtype = x->dtype, .ndim = 3, .size = {r->batch, to - from, x->shape[2]}};
    return cup__tensor_view(x, &shape, x->stride, from * x->stride[1]);
}

/* Some features of them as heads, [batch, heads, rows, size]. */
static cup_tensor *heads_of(const ring *r, cup_tensor *x, int64_t first, int64_t features,
                            int64_t from, int64_t to)
{
    if (!x)
        return NULL;
    const cup__shape shape = {.dtype = x->dtype,
                              .ndim = 4,
                              .size = {r->batch, features / r->size, to - from, r->size}};
    const int64_t stride[] = {x->stride[0], r->size * x->stride[2], x->stride[1], x->stride[2]};
    return cup__tensor_view(x, &shape, stride, from * x->stride[1] + first * x->stride[2]);
}

/* And as [batch, rows, heads, size]. */
static cup_tensor *numbers_of(const ring *r, cup_tensor *x, int64_t from)
{
    if (!x)
        return NULL;
    int64_t rows = x->shape[1] - from, heads = x->shape[2] / r->size;
    const cup__shape shape = {
        .dtype = x->dtype, .ndim = 4, .size = {r->batch, rows, heads, r->size}};
    const int64_t stride[] = {x->stride[0], x->stride[1], r->size, 1};
    return cup__tensor_view(x, &shape, stride, from * x->stride[1]);
}

/* The logarithms [batch, heads, rows] from a row on as [batch, rows, heads, 1]. */
static cup_tensor *logarithms_of(const ring *r, cup_tensor *lse, int64_t from)
{
    if (!lse)
        return NULL;
    const cup__shape shape = {.dtype = lse->dtype,
                              .ndim = 4,
                              .size = {r->batch, lse->shape[2] - from, r->a.heads, 1}};
    const int64_t stride[] = {lse->stride[0], 1, lse->stride[1], 1};
    return cup__tensor_view(lse, &shape, stride, from);
}

/* Which queries see which keys in a turn. */
static void look(ring *r)
{
    bool halves = r->turn > 0 && r->a.causal, before = r->a.m->rank >= r->turn;
    r->from = halves && !before ? r->length / 2 : 0;
    r->to = halves && before ? r->length / 2 : r->length;
}

/* So that dropout's numbers are those of the whole, which takes one call's. */
static void call(ring *r, int op, cup_tensor *const *in, int count, const void *how,
                 cup_tensor **out)
{
    const cup_comm *m = r->a.m;
    cup__random *random = &r->c->random;
    const cup__stretched *was = random->drawn;
    r->drawn.rows = cup__comm_stretches(m, m->rank, r->length);
    r->drawn.keys = cup__comm_stretches(m, (m->rank - r->turn + m->count) % m->count, r->length);
    if (r->from > 0)
        r->drawn.rows.place[0] = r->drawn.rows.place[1];
    random->drawn = r->a.dropout > 0 ? &r->drawn : NULL;
    random->sequence = r->a.sequence;
    cup__op_call(r->c, &cup__rows[op], in, count, how, out);
    random->sequence = r->a.sequence + 1;
    random->drawn = was;
}

/* Computes while the load is on its way, then what needs it. */
static cup_status go(ring *r, const load *ahead, cup_status (*compute)(ring *r),
                     cup_status (*finish)(ring *r))
{
    CUP_TRY(cup__comm_rotate_begin(r->a.m, ahead->from, ahead->to, ahead->count));
    cup_scope_open(r->c);
    look(r);
    cup_status status = compute ? compute(r) : CUP_OK;
    cup_status joined = ahead->count ? cup__comm_join(r->a.m) : CUP_OK;
    status = status == CUP_OK ? joined : status;
    if (status == CUP_OK && finish)
        status = finish(r);
    cup_scope_return(r->c, NULL);
    return status == CUP_OK ? r->c->error.status : status;
}

static cup_status attend(ring *r, cup_tensor *kv, int64_t first, cup_tensor *o, cup_tensor *lse)
{
    const cup__attention_lse_attributes how = {.causal = r->turn == 0 && r->a.causal,
                                               .scale = r->a.scale,
                                               .dropout = r->a.dropout};
    int64_t each = r->pairs / 2;
    cup_tensor *const in[9] = {heads_of(r, r->qkv, 0, r->queries, r->from, r->length),
                               heads_of(r, kv, first, each, 0, r->to),
                               heads_of(r, kv, first + each, each, 0, r->to)};
    cup_tensor *out[2] = {heads_of(r, o, 0, r->queries, 0, r->length - r->from), lse};
    CUP_TRY(r->c->error.status);
    call(r, CUP__OP_attention_lse, in, 9, &how, out);
    return r->c->error.status;
}

static cup_tensor *fresh_logarithms(const ring *r, int64_t rows)
{
    return cup_tensor_new(r->c, wide(r), 3, (int64_t[]){r->batch, r->a.heads, rows});
}

/* Formulas change rows in place that follow each other. */
static void put(const ring *r, cup_expr *formula, cup_tensor *const *in, cup_tensor *place)
{
    if (place && place->contiguous) {
        cup_expr_call(formula, in, NULL, &place);
        return;
    }
    cup_tensor *made = place ? cup_expr_call(formula, in, NULL, NULL) : NULL;
    if (made)
        cup__op_call(r->c, &cup__rows[CUP__OP_copy], &made, 1, NULL, &place);
}

/* A turn's result joins what is there. */
static cup_status compute_forward(ring *r)
{
    if (r->turn == 0)
        return attend(r, r->qkv, r->queries, r->sum, r->lse);
    int64_t rows = r->length - r->from;
    cup_tensor *o = fresh(r, rows, r->queries), *lse = fresh_logarithms(r, rows);
    CUP_TRY(r->c->error.status);
    CUP_TRY(attend(r, r->kv[r->turn & 1], 0, o, lse));
    cup_tensor *place = numbers_of(r, r->sum, r->from), *all = logarithms_of(r, r->lse, r->from);
    cup_tensor *const in[] = {place, numbers_of(r, o, 0), all, logarithms_of(r, lse, 0)};
    put(r, r->join, in, place);
    put(r, r->grow, in + 2, all);
    return r->c->error.status;
}

/* Keys and values go on to the next process, but in the last turn. */
static load keys(const ring *r)
{
    return (load){{r->kv[r->turn & 1]}, {r->kv[~r->turn & 1]}, r->turn + 1 < r->a.m->count};
}

static cup_status forward(cup_context *c, cup_tensor *const *in, int count,
                          const void *attributes, cup_tensor **out)
{
    ring r;
    (void)count;
    CUP_TRY(start(&r, attributes, in[0]));
    r.sum = fresh(&r, r.length, r.queries);
    r.lse = fresh_logarithms(&r, r.length);
    r.join = cup_expr_new(c, "a b s t", NULL, NULL);
    cup_expr_result(r.join, cup_expr_text(r.join, "a + sigmoid(t - s) * (b - a)"),
                    CUP_OPTIONS(cup_expr_end, .typed = true, .dtype = sum_dtype(&r)));
    r.grow = cup_expr_new(c, "s t", NULL, "s + softplus(t - s)");
    cup_status status = c->error.status;
    for (; r.turn < r.a.m->count && status == CUP_OK; r.turn++) {
        const load ahead = keys(&r);
        status = go(&r, &ahead, compute_forward, NULL);
        r.sum = widened(&r, r.sum);
    }
    cup_expr_free(r.grow);
    cup_expr_free(r.join);
    out[0] = narrowed(&r, r.sum);
    out[1] = r.lse;
    return status == CUP_OK ? c->error.status : status;
}

/* Whether a turn's gradients of keys and values are the first of those that go round. */
static bool begins(const ring *r)
{
    return r->turn == 1 && sum_dtype(r) == r->qkv->dtype;
}

/* With what all keys made of a query its gradient is a sum over them. */
static cup_status compute_backward(ring *r)
{
    bool own = r->turn == 0;
    const cup__attention_grad_attributes how = {
        .causal = own && r->a.causal,
        .scale = r->a.scale,
        .dropout = r->a.dropout,
        .sequence = (int64_t)r->a.share << 32 | r->a.sequence};
    int64_t from = r->from, end = r->length, rows = end - from, to = r->to, each = r->pairs / 2;
    cup_tensor *kv = r->kv[r->turn & 1];
    r->d = own ? r->sum : fresh(r, rows, r->queries);
    r->ds = own         ? r->sums
            : begins(r) ? rows_of(r, r->dkv[1], 0, to)
                        : fresh(r, to, r->pairs);
    const int64_t starts[] = {0, 0, from}, sizes[] = {-1, -1, rows};
    cup_tensor *const in[12] = {heads_of(r, r->qkv, 0, r->queries, from, end),
                                heads_of(r, kv, 0, each, 0, to),
                                heads_of(r, kv, each, each, 0, to),
                                heads_of(r, r->o, 0, r->queries, from, end),
                                cup_slice(r->c, r->lse, starts, 3, sizes, 3),
                                heads_of(r, r->d_o, 0, r->queries, from, end)};
    cup_tensor *out[6] = {heads_of(r, r->d, 0, r->queries, 0, rows),
                          heads_of(r, r->ds, 0, each, 0, to),
                          heads_of(r, r->ds, each, each, 0, to)};
    CUP_TRY(r->c->error.status);
    uint32_t was = r->c->random.sequence;
    call(r, CUP__OP_attention_grad, in, 12, &how, out);
    r->c->random.sequence = was;
    return r->c->error.status;
}

static void add(ring *r, cup_tensor *to, cup_tensor *x)
{
    cup_tensor *const in[] = {to, x};
    put(r, r->add, in, to);
}

static cup_status finish_backward(ring *r)
{
    if (r->turn > 0) {
        add(r, rows_of(r, r->sum, r->from, r->length), r->d);
        if (!begins(r))
            add(r, rows_of(r, r->dkv[r->turn & 1], 0, r->to), r->ds);
    }
    return r->c->error.status;
}

/* Behind the last turn the gradients of keys and values are one process before their own. */
static cup_status finish_home(ring *r)
{
    add(r, r->sums, r->dkv[r->turn & 1]);
    return r->c->error.status;
}

static cup_status run_backward(ring *r)
{
    int last = r->a.m->count;
    cup_status status = r->c->error.status;
    for (; r->turn < last && status == CUP_OK; r->turn++) {
        load ahead = keys(r);
        if (r->turn > 1) {
            ahead.from[ahead.count] = r->dkv[~r->turn & 1];
            ahead.to[ahead.count++] = r->dkv[r->turn & 1];
        }
        status = go(r, &ahead, compute_backward, finish_backward);
        r->sum = widened(r, r->sum);
        r->sums = widened(r, r->sums);
    }
    const load home = {{r->dkv[~r->turn & 1]}, {r->dkv[r->turn & 1]}, 1};
    return status == CUP_OK ? go(r, &home, NULL, finish_home) : status;
}

static cup_status backward(cup_context *c, const cup_custom_grad *g)
{
    ring r;
    CUP_TRY(start(&r, g->attributes, g->inputs[0]));
    r.o = g->outputs[0];
    r.lse = g->outputs[1];
    r.d_o = g->d_outputs[0];
    r.sum = fresh(&r, r.length, r.queries);
    r.sums = fresh(&r, r.length, r.pairs);
    const int64_t shape[] = {r.batch, r.length, r.pairs};
    r.dkv[0] = cup_tensor_new(c, sum_dtype(&r), 3, shape);
    r.dkv[1] = cup_full(c, sum_dtype(&r), 3, shape, 0); /* of the first, some rows stay so */
    r.add = cup_expr_new(c, "a b", NULL, "a + b");
    cup_status status = run_backward(&r);
    cup_expr_free(r.add);
    cup_tensor *const both[] = {narrowed(&r, r.sum), narrowed(&r, r.sums)};
    g->d_inputs[0] = cup_concat(c, both, 2, 2);
    return status == CUP_OK ? c->error.status : status;
}

static const cup_custom_op op = {.size = sizeof op,
                                 .name = "comm_attention",
                                 .output_count = 2,
                                 .saves_inputs = 1,
                                 .saves_outputs = 3,
                                 .attributes_size = sizeof(asked),
                                 .forward = forward,
                                 .backward = backward};

static cup_status check(const cup_comm *m, const cup_tensor *qkv, const asked *a)
{
    char text[CUP__SHAPE_TEXT];
    if (!qkv || qkv->context != m->c)
        return cup__fail(&m->c->error, CUP_ARGUMENT, "comm_attention: the tensor %s",
                         qkv ? "belongs to another context than the communicator" : "is NULL");
    if (a->heads < 1 || a->kv_heads < 1 || a->heads % a->kv_heads)
        return cup__fail(&m->c->error, CUP_ARGUMENT,
                         "comm_attention: heads must be at least 1 and a multiple of kv_heads, not "
                         "%d and %d",
                         a->heads, a->kv_heads);
    if (!cup__dtype_is_float(qkv->dtype) || cup_dtype_size(qkv->dtype) < 2)
        return cup__fail(&m->c->error, CUP_DTYPE,
                         "comm_attention: %s; it must be f32, f64, f16 or bf16",
                         cup__tensor_text(qkv, text));
    if (qkv->ndim == 3 && qkv->shape[2] % (a->heads + 2 * (int64_t)a->kv_heads) == 0 &&
        qkv->count > 0 && qkv->shape[1] % 2 == 0)
        return CUP_OK;
    return cup__fail(&m->c->error, CUP_SHAPE,
                     "comm_attention: %s; it must be [B,T,W], with an even T of two parts of each "
                     "sequence, and in W %d heads of q and %d each of k and v",
                     cup__tensor_text(qkv, text), a->heads, a->kv_heads);
}

/* Numbers of dropout are those of tiles, which no stretch may cut. */
static cup_status check_dropout(const cup_comm *m, const cup_tensor *qkv, double dropout)
{
    if (!(dropout >= 0 && dropout < 1))
        return cup__fail(&m->c->error, CUP_ARGUMENT,
                         "comm_attention: dropout must be at least 0 and below 1, not %g", dropout);
    if (dropout == 0 || m->count == 1 || qkv->shape[1] % (2 * TILE) == 0)
        return CUP_OK;
    return cup__fail(&m->c->error, CUP_SHAPE,
                     "comm_attention: dropout of %lld positions a process; give each a multiple of "
                     "%d, sequences of %d for each process, or set dropout to 0",
                     (long long)qkv->shape[1], 2 * TILE, 2 * TILE);
}

cup_tensor *cup_comm_attention(cup_comm *m, cup_tensor *qkv, int heads,
                               const cup_comm_attention_options *options)
{
    cup_comm_attention_options o;
    if (!m || m->c->error.status != CUP_OK ||
        cup__options_take(&m->c->error, "comm_attention", &o, sizeof o, options) != CUP_OK)
        return NULL;
    const cup__random *random = &m->c->random;
    const asked a = {m,       heads,     o.kv_heads ? o.kv_heads : heads, o.causal,
                     o.scale, o.dropout, random->sequence,                random->share};
    if (check(m, qkv, &a) != CUP_OK || check_dropout(m, qkv, o.dropout) != CUP_OK)
        return NULL;
    if (m->count == 1)
        return cup_qkv_attention(m->c, qkv, heads,
                                 CUP_OPTIONS(cup_qkv_attention_options, .kv_heads = a.kv_heads,
                                             .causal = a.causal, .scale = a.scale,
                                        .dropout = a.dropout));
    cup_tensor *out[2] = {NULL, NULL};
    cup_scope_open(m->c);
    cup_custom(m->c, &op, &qkv, 1, &a, out);
    return cup_scope_return(m->c, out[0]);
}

cup_tensor *cup_comm_part(cup_comm *m, cup_tensor *x, int axis)
{
    char text[CUP__SHAPE_TEXT];
    if (!m || !x || m->c->error.status != CUP_OK)
        return NULL;
    int64_t starts[CUP_MAX_DIMS] = {0}, sizes[CUP_MAX_DIMS], parts = 2 * (int64_t)m->count;
    axis += axis < 0 ? x->ndim : 0;
    if (x->context != m->c || axis < 0 || axis >= x->ndim || x->shape[axis] % parts) {
        cup__fail(&m->c->error, CUP_SHAPE,
                  "comm_part: %s is not one of the communicator's context, or has no dimension %d "
                  "that is a multiple of %lld",
                  cup__tensor_text(x, text), axis, (long long)parts);
        return NULL;
    }
    for (int i = 0; i < x->ndim; i++)
        sizes[i] = -1;
    sizes[axis] = x->shape[axis] / parts;
    cup_tensor *both[2];
    cup_scope_open(m->c);
    for (int i = 0; i < 2; i++) {
        starts[axis] = sizes[axis] * (i ? parts - 1 - m->rank : m->rank);
        both[i] = cup_slice(m->c, x, starts, x->ndim, sizes, x->ndim);
    }
    return cup_scope_return(m->c, cup_concat(m->c, both, 2, axis));
}

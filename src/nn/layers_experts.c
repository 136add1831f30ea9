/* A mixture of experts. */
#ifdef CUP_LAYERS_H
/* A mixture of experts in place of an MLP (Shazeer and others 2017, "Outrageously large neural
 * networks"): experts are MLPs without biases, and each row of x [..,width] goes through `each` of
 * them, those to which the router gives the highest probabilities, a softmax in f32 (f64 of f64);
 * their sum, weighted by these, is the row of the result. "router" [experts,width], "up"
 * [experts,hidden,width], with SWIGLU gates, then values, and "down" [experts,width,hidden] have
 * weight decay and are not Muon's; they have the list's dtype, in 8-bit training, too.
 *
 * Rows are put in order by their experts and multiplied group by group, so that none is dropped
 * and none is padded (Gale and others 2022, "MegaBlocks"). Shapes do not depend on where rows go,
 * nor is the device asked, so that a step can be captured in a graph. Where processes share out the
 * experts (cup_parameters_experts), rows go to them and back in two exchanges; each process has
 * room for all rows of all processes, or with a capacity for so many of them. Where they share out
 * a model (cup_parameters_among), each has a part of `hidden` of every expert, which is a multiple
 * of the processes, and the router whole: x is the same on all, all take the choices that the first
 * of them makes of it, and one sum puts their parts of the result together. Where they share out
 * both, experts are whole, and each sends an equal part of the rows that all of them have. */
typedef struct cup_experts_layer {
    cup_layer layer;
    cup_tensor *router, *up, *down;
    int64_t each;
    cup_activation activation;
    bool unscaled;
    double capacity, balance, router_z;
} cup_experts_layer;

typedef struct cup_experts_layer_options {
    size_t size;
    cup_activation activation; /* inside the experts; NONE: GELU */
    bool unscaled;    /* weights are the probabilities as they are; else they are divided by the sum
                         of those that are taken, unless `each` is 1 */
    double capacity;  /* in training an expert takes so many times the rows it would have if all had
                         as many; further ones, the later ones of the batch, pass it by. 0: all */
    double balance;   /* of the two costs of cup_experts_layer_pass */
    double router_z;
    double deviation; /* of all matrices, which are normal; 0: 0.02 */
} cup_experts_layer_options;

CUP_API cup_status cup_experts_layer_new(cup_experts_layer *layer, cup_parameters *list,
                                         const char *name, int64_t width, int64_t hidden,
                                         int64_t experts, int64_t each,
                                         const cup_experts_layer_options *options);
CUP_API cup_tensor *cup_experts_layer_call(const cup_experts_layer *layer, cup_tensor *x);

/* The same; *cost becomes what is to be added to the loss, one number in f32 (f64 of f64), or NULL
 * where neither of these is asked for: `balance` times the number of experts times the sum over
 * them of their part of the rows times their mean probability, which is 1 where all are alike
 * (Fedus, Zoph and Shazeer 2021, "Switch transformers"), and `router_z` times the mean square of
 * logsumexp of the router's logits (Zoph and others 2022, "ST-MoE"). Rows are those of this
 * process. */
CUP_API cup_tensor *cup_experts_layer_pass(const cup_experts_layer *layer, cup_tensor *x,
                                           cup_tensor **cost);

/* A layer of tensors that are in the list already, under names of the caller's choice. Of the
 * options the deviation does not matter. */
CUP_API cup_status cup_experts_layer_of(cup_experts_layer *layer, cup_parameters *list,
                                        cup_tensor *router, cup_tensor *up, cup_tensor *down,
                                        int64_t each, const cup_experts_layer_options *options);
#endif
#include <math.h>

#include "base/options.h"
#include "cupola/grad.h"
#include "nn/experts.h"
#include "nn/functions.h"
#include "nn/layers.h"
#include "tensor/context.h"

#define DEVIATION 0.02

CUP__LAYER_CALL(experts)

static cup_status set(cup_experts_layer *layer, cup_parameters *list, int64_t experts,
                      int64_t each, const cup_experts_layer_options *o)
{
    cup_context *c = cup__parameters_context(list);
    if (each < 1 || each > experts)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "experts under \"%s\": a row goes through %lld of %lld experts; take from "
                         "1 to all of them",
                         cup__parameters_prefix(list), (long long)each, (long long)experts);
    if (!(o->capacity >= 0 && o->balance >= 0 && o->router_z >= 0 && isfinite(o->capacity) &&
          isfinite(o->balance) && isfinite(o->router_z)))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "experts under \"%s\": capacity %g, balance %g and router_z %g must be "
                         "at least 0",
                         cup__parameters_prefix(list), o->capacity, o->balance, o->router_z);
    layer->each = each;
    layer->activation =
        o->activation == CUP_ACTIVATION_NONE ? CUP_ACTIVATION_GELU : o->activation;
    layer->unscaled = o->unscaled;
    layer->capacity = o->capacity;
    layer->balance = o->balance;
    layer->router_z = o->router_z;
    return CUP_OK;
}

cup_status cup__experts_layer_make(cup_experts_layer *layer, cup_parameters *list,
                                   const cup__experts_sizes *s,
                                   const cup_experts_layer_options *o, double shrink)
{
    CUP_TRY(cup__layer_size(list, "width", s->width));
    CUP_TRY(cup__layer_size(list, "hidden", s->hidden));
    CUP_TRY(cup__layer_size(list, "experts", s->experts));
    CUP_TRY(set(layer, list, s->experts, s->each, o));
    int64_t up = s->hidden * (layer->activation == CUP_ACTIVATION_SWIGLU ? 2 : 1);
    cup_parameter_options p = {.size = sizeof p, .initializer = CUP_INITIALIZER_NORMAL,
                               .deviation = o->deviation == 0 ? DEVIATION : o->deviation,
                               .decay = true};
    layer->router =
        cup_parameter_new(list, "router", 2, (int64_t[]){s->experts, s->width}, &p);
    p.part = CUP_PART_EXPERTS_ROWS;
    if (layer->activation == CUP_ACTIVATION_SWIGLU)
        p.sections[0] = p.sections[1] = s->hidden;
    layer->up = cup_parameter_new(list, "up", 3, (int64_t[]){s->experts, up, s->width}, &p);
    p.deviation *= shrink;
    p.part = CUP_PART_EXPERTS_COLUMNS;
    p.sections[0] = p.sections[1] = 0;
    layer->down =
        cup_parameter_new(list, "down", 3, (int64_t[]){s->experts, s->width, s->hidden}, &p);
    return cup_error(cup__parameters_context(list));
}

cup_status cup_experts_layer_new(cup_experts_layer *layer, cup_parameters *list, const char *name,
                                 int64_t width, int64_t hidden, int64_t experts, int64_t each,
                                 const cup_experts_layer_options *options)
{
    cup_experts_layer_options o;
    const cup__experts_sizes sizes = {width, hidden, experts, each};
    list = cup_parameters_under(list, name);
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_experts));
    cup_context *c = cup__parameters_context(list);
    if (cup__options_take(&c->error, "experts", &o, sizeof o, options) == CUP_OK)
        cup__experts_layer_make(layer, list, &sizes, &o, 1);
    return cup__layer_end(layer, sizeof *layer);
}

/* Those who have the other experts, or the other parts of all of them; or NULL. */
static cup_comm *sharers_of(const cup_parameters *list, const cup_tensor *up, bool parts)
{
    const cup__portion *part = cup__parameters_part(list, up);
    return part && (part->axis > 0) == parts ? part->comm : NULL;
}

/* Whether the three belong together; up and down may be a part of the experts, or of each. */
static bool fit(const cup_experts_layer *layer, const cup_parameters *list, const cup_tensor *r,
                const cup_tensor *up, const cup_tensor *down)
{
    int64_t halves = layer->activation == CUP_ACTIVATION_SWIGLU ? 2 : 1;
    int64_t here = r->ndim == 2 ? r->shape[0] / cup_comm_count(sharers_of(list, up, false)) : 0;
    return r->ndim == 2 && up->ndim == 3 && down->ndim == 3 && up->shape[0] == here &&
           down->shape[0] == here && up->shape[2] == r->shape[1] &&
           down->shape[1] == r->shape[1] && up->shape[1] == halves * down->shape[2];
}

cup_status cup_experts_layer_of(cup_experts_layer *layer, cup_parameters *list, cup_tensor *router,
                                cup_tensor *up, cup_tensor *down, int64_t each,
                                const cup_experts_layer_options *options)
{
    char a[CUP__SHAPE_TEXT], b[CUP__SHAPE_TEXT], d[CUP__SHAPE_TEXT];
    cup_experts_layer_options o;
    CUP_TRY(cup__layer_begin_of(layer, sizeof *layer, list, router, call_experts));
    cup_context *c = cup__parameters_context(list);
    if (!up || !down)
        cup__fail(&c->error, CUP_ARGUMENT, "experts under \"%s\": a tensor is NULL",
                  cup__parameters_prefix(list));
    else if (cup__options_take(&c->error, "experts", &o, sizeof o, options) == CUP_OK &&
             set(layer, list, router->ndim ? router->shape[0] : 0, each, &o) == CUP_OK &&
             !fit(layer, list, router, up, down))
        cup__fail(&c->error, CUP_SHAPE,
                  "experts under \"%s\": %s, %s and %s are no router [experts,width], up "
                  "[experts,hidden,width] and down [experts,width,hidden]",
                  cup__parameters_prefix(list), cup__tensor_text(router, a),
                  cup__tensor_text(up, b), cup__tensor_text(down, d));
    layer->router = router;
    layer->up = up;
    layer->down = down;
    return cup__layer_end(layer, sizeof *layer);
}

/* One call: M pairs of a row and one of its experts. */
typedef struct routing {
    cup_context *c;
    const cup_experts_layer *layer;
    cup_comm *comm;  /* of those that have the other experts, or NULL */
    cup_comm *parts; /* of those that have the other parts of all experts, or NULL */
    cup_comm *alike; /* beside `comm`: of those that have the same rows, or NULL */
    int64_t rows, each, experts;
    cup_tensor *given, *x;   /* [..,width], and as [rows,width] */
    cup_tensor *logits, *p;  /* [rows,experts] */
    cup_tensor *weight;      /* [rows,each] */
    cup_tensor *expert;      /* [M] i64, of each pair */
    cup_tensor *keep;        /* [rows,each]: 1, or 0 of what is dropped; NULL: nothing is */
    cup_tensor *counts;      /* [experts] pairs, dropped ones included */
    cup_tensor *key;         /* [M]: `expert`, or `experts` where a pair is dropped */
    int64_t most;            /* pairs of an expert, and of all of them; more are dropped */
    int64_t room;
    cup__grouping by;        /* the experts of pairs that are not dropped */
} routing;

static cup_tensor *flat(cup_context *c, cup_tensor *x)
{
    return x ? cup_reshape(c, x, 1, &x->count) : NULL;
}

/* Those who have parts of all experts take the choices of the first of them. Their tokens have the
 * same bits, but a kernel that one of them measured to be the fastest may round otherwise, and of
 * two experts that are nearly as probable that takes the other. */
static cup_status choose_best(routing *r, cup_tensor **chosen)
{
    cup_context *c = r->c;
    if (!r->parts)
        return cup_top_k(c, r->p, r->each, -1, NULL, &r->weight, chosen);
    bool was = cup_grad_recording(c, false);
    cup_status status = cup_top_k(c, r->p, r->each, -1, NULL, &r->weight, chosen);
    if (status == CUP_OK)
        status = cup_comm_broadcast(r->parts, chosen, 1, 0);
    cup_grad_recording(c, was);
    r->weight = status == CUP_OK ? cup_gather(c, r->p, *chosen, -1) : NULL;
    return cup_error(c);
}

/* The experts of each row, and what they weigh. */
static cup_status choose(routing *r)
{
    cup_context *c = r->c;
    const int64_t last = -1;
    /* Of what is given, which backward may make again, and not of a view of it. */
    cup_tensor *logits = cup_linear(c, r->given, r->layer->router, NULL), *chosen;
    logits = logits ? cup_reshape(c, logits, 2, (int64_t[]){r->rows, r->experts}) : NULL;
    if (!logits)
        return cup_error(c);
    r->logits = logits->dtype == CUP_F64 ? logits : cup_cast(c, logits, CUP_F32);
    r->p = cup_softmax(c, r->logits, -1);
    CUP_TRY(choose_best(r, &chosen));
    if (!r->layer->unscaled && r->each > 1)
        r->weight = cup_div(c, r->weight, cup_sum(c, r->weight, &last, 1, true));
    r->expert = flat(c, chosen);
    return cup_error(c);
}

/* Puts pairs beyond the capacity of their experts into no group. */
static cup_status drop(routing *r)
{
    cup_context *c = r->c;
    cup_tensor *begin = cup_index_select(c, r->by.begins, r->expert, 0);
    const double numbers[] = {(double)r->most, (double)r->experts};
    cup_tensor *in[] = {r->by.place, begin, r->expert};
    cup_tensor *key = cup__formula(c, "place begin expert", "most experts",
                                   "where(place - begin < most, expert, experts)", in, numbers);
    cup_tensor *kept = cup__formula(c, "place begin", "most", "place - begin < most", in, numbers);
    if (!key || !kept)
        return cup_error(c);
    r->keep = cup_reshape(c, cup_cast(c, kept, r->weight->dtype), 2, r->weight->shape);
    r->weight = cup_mul(c, r->weight, r->keep);
    r->key = key;
    return cup__group_rows(c, key, r->experts, &r->by);
}

static cup_status group(routing *r)
{
    cup_context *c = r->c;
    bool was = cup_grad_recording(c, false);
    int64_t pairs = r->rows * r->each;
    double most = cup__parameters_is_training(r->layer->layer.parameters) && r->layer->capacity > 0
                      ? ceil(r->layer->capacity * (double)pairs / (double)r->experts)
                      : (double)r->rows;
    cup_status status = cup__group_rows(c, r->expert, r->experts, &r->by);
    r->counts = r->by.counts;
    r->key = r->expert;
    r->most = r->rows;
    r->room = pairs;
    cup_grad_recording(c, was);
    if (status != CUP_OK || most >= (double)r->rows)
        return status;
    r->most = (int64_t)most;
    r->room = r->most * r->experts < pairs ? r->most * r->experts : pairs;
    return drop(r);
}

/* The rows of all groups through their experts; rows of none give 0. */
static cup_tensor *multiply(const routing *r, cup_tensor *rows, cup_tensor *ends)
{
    cup_context *c = r->c;
    cup_tensor *h = cup_grouped_matmul(c, rows, r->layer->up, ends, true);
    h = cup__layer_activate(c, r->layer->activation, h);
    return cup_grouped_matmul(c, h, r->layer->down, ends, true);
}

/* Of which row each of these pairs is. */
static cup_tensor *rows_of(const routing *r, cup_tensor *pairs)
{
    if (r->each == 1)
        return pairs;
    return cup_floor_div(r->c, pairs, cup__single(r->c, CUP_I64, (double)r->each));
}

/* Places up to a last one, which stands for those behind it. */
static cup_tensor *up_to(cup_context *c, cup_tensor *places, int64_t last)
{
    return cup_minimum(c, places, cup__single(c, CUP_I64, (double)last));
}

/* All experts are here: the results of the pairs, [M,width]. */
static cup_tensor *compute_here(const routing *r)
{
    cup_context *c = r->c;
    bool was = cup_grad_recording(c, false);
    cup_tensor *order = r->by.order, *place = r->by.place;
    if (r->room < r->rows * r->each) {
        order = cup__part(c, order, 0, 0, r->room);
        place = up_to(c, place, r->room - 1);
    }
    cup_tensor *ids = rows_of(r, order);
    cup_tensor *back = cup_reshape(c, place, 2, (int64_t[]){r->rows, r->each});
    cup_grad_recording(c, was);
    cup_tensor *y = multiply(r, cup__rows_taken(c, r->x, ids, back, r->keep), r->by.ends);
    return cup__rows_taken(c, y, place, order, NULL);
}

/* Of rows that all have who share out a model each sends an equal part to experts. */
static cup_status take_own_rows(routing *r)
{
    cup_context *c = r->c;
    int64_t processes = cup_comm_count(r->alike), own = r->rows / processes;
    int64_t from = cup_comm_rank(r->alike) * own, pair = from * r->each, pairs = own * r->each;
    if (!r->alike)
        return CUP_OK;
    if (r->rows % processes)
        return cup__fail(&c->error, CUP_SHAPE,
                         "experts: %lld rows, which %lld processes have, are no equal parts for "
                         "these to send to experts; take a multiple of them",
                         (long long)r->rows, (long long)processes);
    r->rows = own;
    r->most = r->most < own ? r->most : own;
    r->x = cup__part(c, r->x, 0, from, own);
    r->weight = cup__part(c, r->weight, 0, from, own);
    bool was = cup_grad_recording(c, false);
    r->keep = r->keep ? cup__part(c, r->keep, 0, from, own) : NULL;
    r->expert = cup__part(c, r->expert, 0, pair, pairs);
    cup__group_rows(c, cup__part(c, r->key, 0, pair, pairs), r->experts, &r->by);
    cup_grad_recording(c, was);
    return cup_error(c);
}

/* What goes to other processes, [processes * room]: which pair stands in each place, where there is
 * one, and in which place each pair stands. */
typedef struct sending {
    int64_t room; /* for each process */
    cup_tensor *pair, *place;
} sending;

static cup_status arrange(const routing *r, sending *s)
{
    cup_context *c = r->c;
    int64_t processes = cup_comm_count(r->comm), own = r->experts / processes;
    int64_t pairs = r->rows * r->each, most = r->each < own ? r->each : own;
    s->room = r->rows * most < r->most * own ? r->rows * most : r->most * own;
    /* Where the pairs of each process begin. */
    cup_tensor *begin = r->by.begins;
    begin = cup__part(c, cup_reshape(c, begin, 2, (int64_t[]){processes, own}), 1, 0, 1);
    cup_tensor *step = cup_arange(c, CUP_F64, 0, (double)s->room, NULL);
    cup_tensor *in[] = {begin, cup_reshape(c, step, 2, (int64_t[]){1, s->room})};
    cup_tensor *at = cup__formula(c, "begin step", "last", "min(begin + step, last)", in,
                                  (double[]){(double)(pairs - 1)});
    s->pair = cup_index_select(c, r->by.order, flat(c, cup_cast(c, at, CUP_I64)), 0);
    cup_tensor *owner = cup_floor_div(c, r->expert, cup__single(c, CUP_I64, (double)own));
    begin = cup_index_select(c, flat(c, begin), owner, 0);
    cup_tensor *to[] = {owner, r->by.place, begin};
    const double numbers[] = {(double)s->room, (double)(s->room * processes - 1)};
    at = cup__formula(c, "owner place begin", "room last",
                      "min(owner * room + place - begin, last)", to, numbers);
    s->place = cup_cast(c, at, CUP_I64);
    return cup_error(c);
}

/* Of what all have sent, [processes * room], the rows by experts of this process. */
static cup_status sort_received(const routing *r, int64_t room, cup__grouping *out)
{
    cup_context *c = r->c;
    int64_t processes = cup_comm_count(r->comm), own = r->experts / processes;
    cup_tensor *counts = cup_comm_exchange(r->comm, r->by.counts);
    counts = cup_reshape(c, counts, 2, (int64_t[]){processes, own});
    cup_tensor *step = cup_arange(c, CUP_F64, 0, (double)room, NULL);
    cup_tensor *ends = cup_cumsum(c, counts, 1, false);
    cup_tensor *in[] = {cup_reshape(c, ends, 3, (int64_t[]){processes, 1, own}),
                        cup_reshape(c, step, 3, (int64_t[]){1, room, 1})};
    cup_tensor *key = cup__formula(c, "end step", NULL, "sum[2](end <= step)", in, NULL);
    return cup__group_rows(c, flat(c, key), own, out);
}

/* The experts are shared out: rows go to those who have them, and results come back. */
static cup_tensor *compute_elsewhere(const routing *r)
{
    cup_context *c = r->c;
    sending s = {0};
    cup__grouping by = {0};
    bool was = cup_grad_recording(c, false);
    if (arrange(r, &s) == CUP_OK)
        sort_received(r, s.room, &by);
    cup_tensor *ids = rows_of(r, s.pair);
    cup_tensor *back =
        s.place ? cup_reshape(c, s.place, 2, (int64_t[]){r->rows, r->each}) : NULL;
    cup_grad_recording(c, was);
    if (cup_error(c) != CUP_OK)
        return NULL;
    cup_tensor *rows =
        cup_comm_exchange(r->comm, cup__rows_taken(c, r->x, ids, back, r->keep));
    cup_tensor *y = multiply(r, cup__rows_taken(c, rows, by.order, by.place, NULL), by.ends);
    y = cup_comm_exchange(r->comm, cup__rows_taken(c, y, by.place, by.order, NULL));
    return cup__rows_taken(c, y, s.place, s.pair, NULL);
}

/* What is added to the loss. */
static cup_tensor *cost_of(const routing *r)
{
    cup_context *c = r->c;
    const cup_experts_layer *l = r->layer;
    const int64_t last = -1;
    double rows = (double)r->rows;
    cup_tensor *cost = NULL;
    if (l->balance > 0) {
        cup_tensor *in[] = {r->p, cup_cast(c, r->counts, r->p->dtype)};
        double factor = l->balance * (double)r->experts / (rows * rows * (double)r->each);
        cost = cup__formula(c, "p count", "factor", "sum[](factor * p * count)", in, &factor);
    }
    if (l->router_z > 0) {
        cup_tensor *z = cup_logsumexp(c, r->logits, &last, 1, false);
        double factor = l->router_z / rows;
        z = cup__formula(c, "z", "factor", "sum[](factor * z * z)", &z, &factor);
        cost = cost ? cup_add(c, cost, z) : z;
    }
    return cost;
}

/* What this process makes, [rows,width], as what all of them do, in the shape of x: a part of the
 * sum where it has a part of the width inside the experts, and some of the rows where it sent them;
 * those rows alone where they are shared out between blocks. */
static cup_tensor *put_together(const routing *r, cup_tensor *y, const cup_tensor *x)
{
    cup_context *c = r->c;
    cup_parameters *list = r->layer->layer.parameters;
    if (r->alike && y && cup__rows_are_shared(list))
        return cup_reshape(c, y, 3, (int64_t[]){1, r->rows, y->shape[1]});
    if (r->alike && y)
        y = cup_comm_gather(r->alike, y);
    y = cup_reshape(c, y, x->ndim, x->shape);
    return r->parts ? cup__rows_sum(list, r->parts, y) : y;
}

static cup_status check_input(const cup_experts_layer *layer, cup_context *c, const cup_tensor *x)
{
    char text[CUP__SHAPE_TEXT];
    int64_t width = layer->router->shape[1];
    if (x->ndim >= 1 && x->shape[x->ndim - 1] == width && x->count > 0)
        return CUP_OK;
    return cup__fail(&c->error, CUP_SHAPE, "experts: x is %s; it must be [..,%lld], with a row",
                     cup__tensor_text(x, text), (long long)width);
}

cup_tensor *cup_experts_layer_pass(const cup_experts_layer *layer, cup_tensor *x,
                                   cup_tensor **cost)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    if (cost)
        *cost = NULL;
    if (!c || check_input(layer, c, x) != CUP_OK)
        return NULL;
    cup_parameters *list = layer->layer.parameters;
    routing r = {.c = c, .layer = layer, .comm = sharers_of(list, layer->up, false),
                 .parts = sharers_of(list, layer->up, true), .each = layer->each,
                 .experts = layer->router->shape[0], .given = x};
    r.alike = r.comm ? cup_parameters_comm(list) : NULL;
    cup_tensor *y = NULL, *extra = NULL;
    r.rows = x->count / layer->router->shape[1];
    cup_scope_open(c);
    r.x = cup_reshape(c, x, 2, (int64_t[]){r.rows, layer->router->shape[1]});
    if (choose(&r) == CUP_OK && group(&r) == CUP_OK) {
        extra = cost ? cost_of(&r) : NULL;
        if (take_own_rows(&r) == CUP_OK)
            y = r.comm ? compute_elsewhere(&r) : compute_here(&r);
        y = put_together(&r, cup__rows_weighed(c, y, r.weight), x);
    }
    cup_status status = cup_scope_return_all(c, (cup_tensor *[]){y, extra}, 2);
    if (cost && status == CUP_OK)
        *cost = extra;
    return status == CUP_OK ? y : NULL;
}

cup_tensor *cup_experts_layer_call(const cup_experts_layer *layer, cup_tensor *x)
{
    return cup_experts_layer_pass(layer, x, NULL);
}

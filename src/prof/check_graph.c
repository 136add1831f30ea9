#include "prof/check_graph.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "cuda/cuda.h"
#include "cuda/dry.h"
#include "cupola/grad.h"
#include "prof/ahead.h"
#include "prof/compare.h"
#include "prof/kernels.h"
#include "prof/reference.h"

/* What a result may be wrong by is what the op that made it may be, and what comes to it from the
 * way: how far it moves, in double, when each value and gradient on the way is moved by a quarter
 * of what its op may be wrong by, four times. */
#define NOISES 3
#define SHARE 4.0

/* What is right, and how far it moved, in epsilons of the dtype. */
typedef struct expectation {
    cup_context *c; /* a CPU context */
    cup__graph_run want;
    double value_moved[CUP__GRAPH_NODES], gradient_moved[CUP__GRAPH_NODES];
} expectation;

typedef struct item {
    cup__graph graph;
    cup_dtype dtype;
    expectation expected;
} item;

typedef struct checker {
    cup_context *c;
    uint64_t seed;
    const cup__gpu_facts *facts; /* NULL: on a CPU */
    cup__precision precision;
    int threads;
} checker;

static double moved_by(cup_tensor *want, cup_tensor *noisy, cup_dtype dtype)
{
    char note[200];
    if (!want || !noisy)
        return 0;
    double moved = cup__compare(want, noisy, 0, note, sizeof note);
    return moved * cup__epsilon(CUP_F64) / cup__epsilon(dtype);
}

static cup_status expect(expectation *x, const cup__graph *g, cup_dtype dtype)
{
    memset(x->value_moved, 0, sizeof x->value_moved);
    memset(x->gradient_moved, 0, sizeof x->gradient_moved);
    cup_seed(x->c, g->seed);
    CUP_TRY(cup__graph_execute(g, x->c, dtype, CUP_F64, 0, &x->want));
    for (int noise = 1; noise <= NOISES; noise++) {
        cup__graph_run run;
        cup_scope_open(x->c);
        cup_status status = cup__graph_execute(g, x->c, dtype, CUP_F64, noise, &run);
        for (int i = 0; i < g->count && status == CUP_OK; i++) {
            x->value_moved[i] =
                fmax(x->value_moved[i], moved_by(x->want.value[i], run.value[i], dtype));
            x->gradient_moved[i] = fmax(x->gradient_moved[i],
                                        moved_by(x->want.gradient[i], run.gradient[i], dtype));
        }
        cup__scope_pop(x->c);
        CUP_TRY(status);
    }
    return CUP_OK;
}

/* Of a leaf, what the ops that use it say of its gradient. */
static double own_roundings(const cup__graph *g, int node, cup_dtype dtype)
{
    double most = SHARE;
    if (g->node[node].kind)
        return cup__graph_roundings(g, node, dtype);
    for (int i = node + 1; i < g->count; i++)
        for (int k = 0; k < 4; k++)
            if (g->node[i].kind && g->node[i].in[k] == node)
                most = fmax(most, cup__graph_roundings(g, i, dtype));
    return most;
}

/* One of a graph's results. */
static void hold(cup__graph_result *r, char note[300], cup_tensor *want, cup_tensor *got,
                 double tolerance, const char *what, int node)
{
    void *memory = NULL;
    cup_tensor host;
    char where[200] = "it is not there";
    double error = INFINITY;
    if (!want && !got)
        return;
    if (want && got && cup__on_host(got, &host, &memory)) {
        *where = 0;
        error = cup__compare_above(want, &host, 0, cup__smallest(got->dtype), 0, where,
                                  sizeof where);
    }
    cup__free(memory);
    if (r->tolerance > 0 && !(error / tolerance > r->error / r->tolerance))
        return;
    r->error = error;
    r->tolerance = tolerance;
    snprintf(note, 300, "%s %d: %s", what, node, where);
}

/* Runs it on the device. */
static void judge(cup_context *c, const cup__graph *g, cup_dtype dtype, const expectation *x,
                  cup__graph_result *r, char note[300])
{
    cup__graph_run run;
    r->error = r->tolerance = 0;
    *note = 0;
    cup_seed(c, g->seed);
    cup_scope_open(c);
    cup_status status = x->c->error.status;
    if (status != CUP_OK)
        snprintf(note, 300, "in double: %.280s", x->c->error.text);
    else if ((status = cup__graph_execute(g, c, dtype, dtype, 0, &run)) != CUP_OK)
        snprintf(note, 300, "%.299s", c->error.text);
    for (int i = 0; i < g->count && status == CUP_OK && !x->want.overflows; i++) {
        double own = own_roundings(g, i, dtype);
        hold(r, note, x->want.value[i], run.value[i], own + SHARE * x->value_moved[i], "value", i);
        hold(r, note, x->want.gradient[i], run.gradient[i], own + SHARE * x->gradient_moved[i],
             "gradient of", i);
    }
    if (status == CUP_OK && cup__device_is_lost(c->device))
        snprintf(note, 300, "%.299s", c->error.text);
    cup_tape_clear(c);
    cup__scope_pop(c);
    if (c->error.status != CUP_MEMORY)
        cup__error_clear(&c->error);
    r->passed = status == CUP_OK && r->error <= r->tolerance;
    if (status != CUP_OK)
        r->error = INFINITY;
}

static bool fails_without(cup_context *c, expectation *x, const cup__graph *g, cup_dtype dtype,
                          cup__graph_result *r, char note[300])
{
    bool any = false;
    for (int i = 0; i < g->count; i++)
        any |= cup__graph_is_end(g, i);
    if (!any || cup__device_is_lost(c->device))
        return false;
    cup__error_clear(&x->c->error);
    cup_scope_open(x->c);
    cup_status status = expect(x, g, dtype);
    if (status == CUP_OK)
        judge(c, g, dtype, x, r, note);
    cup_tape_clear(x->c);
    cup__scope_pop(x->c);
    return status == CUP_OK && !r->passed;
}

/* Drops nodes while the rest still fails. */
static void shrink(cup_context *c, item *it, cup__graph_result *r, char note[300])
{
    expectation x = {.c = cup__context_cpu(cup__threads())};
    bool smaller = cup_error(x.c) == CUP_OK;
    while (smaller) {
        smaller = false;
        for (int i = it->graph.count - 1; i > 0; i--) {
            cup__graph_result less = *r;
            char words[300];
            cup__graph g = it->graph;
            if (!cup__graph_can_drop(&g, i))
                continue;
            g.node[i].gone = true;
            if (!fails_without(c, &x, &g, it->dtype, &less, words))
                continue;
            it->graph = g;
            *r = less;
            memcpy(note, words, 300);
            smaller = true;
        }
    }
    cup_context_free(x.c);
}

/* Where memory was short since there were so many failures of allocations, nothing is known of the
 * graph; the context then has that error. */
static void conclude(cup_context *c, item *it, uint64_t seed, int64_t number, long failures,
                     cup__graph_report report, void *user)
{
    char note[300];
    cup__text text = {0}, repeat = {0};
    cup__graph_result r = {.dtype = it->dtype, .note = note};
    judge(c, &it->graph, it->dtype, &it->expected, &r, note);
    if (!r.passed && cup__memory_failures() != failures)
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for graphs");
    if (c->error.status == CUP_MEMORY)
        return;
    if (!r.passed)
        shrink(c, it, &r, note);
    cup__graph_text(&it->graph, &text);
    cup__text_add(&repeat, "%llu:%lld:%s:", (unsigned long long)seed, (long long)number,
                  cup_dtype_name(it->dtype));
    for (int i = 0, dropped = 0; i < it->graph.count; i++)
        if (it->graph.node[i].gone)
            cup__text_add(&repeat, "%s%d", dropped++ ? "," : "", i);
    r.graph = cup__text_string(&text);
    r.repeat = cup__text_string(&repeat);
    report(&r, user);
    cup__text_free(&text);
    cup__text_free(&repeat);
}

/* The kernels a graph needs, from a run on a dry GPU. */
static void compile(const checker *k, const cup__graph *g, cup_dtype dtype)
{
    cup_context *c = cup__kernels_note(k->facts, k->precision);
    cup__graph_run run;
    if (c)
        cup__graph_execute(g, c, dtype, dtype, 0, &run);
    cup__kernels_get_noted(c);
}

static const cup_dtype dtypes[] = {CUP_F32, CUP_BF16, CUP_F16};

static void prepare(int64_t number, void *user)
{
    const checker *k = user;
    cup__graph graph;
    cup__graph_draw(k->seed, number, &graph);
    compile(k, &graph, dtypes[number % 3]);
}

static void make(int64_t number, void *room, void *user)
{
    const checker *k = user;
    item *it = room;
    cup__graph_draw(k->seed, number, &it->graph);
    it->dtype = dtypes[number % 3];
    it->expected.c = cup__reference_context(it->expected.c, k->threads);
    if (cup_error(it->expected.c) == CUP_OK)
        expect(&it->expected, &it->graph, it->dtype);
}

static void drop(void *room)
{
    cup_context_free(((item *)room)->expected.c);
}

cup_status cup__check_graphs(cup_context *c, uint64_t seed, int64_t count,
                             cup__graph_report report, void *user)
{
    checker k = {.c = c, .seed = seed, .precision = c->precision, .threads = cup__threads()};
    if (c->device->is_cuda)
        k.facts = cup__cuda_facts(cup__cuda_of(c->device));
    long failures = cup__memory_failures();
    bool dry = cup__device_is_dry(c->device);
    cup__ahead *ahead = cup__ahead_new(count, sizeof(item), k.facts ? prepare : NULL,
                                       dry ? cup__ahead_nothing : make, drop, &k);
    if (!ahead)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for graphs");
    for (int64_t i = 0; i < count && !cup__device_is_lost(c->device); i++) {
        item *it = cup__ahead_get(ahead, i);
        if (!dry && it->expected.c)
            conclude(c, it, seed, i, failures, report, user);
        else if (!dry)
            cup__fail(&c->error, CUP_MEMORY, "no context for graphs in double");
        if (c->error.status == CUP_MEMORY)
            break;
    }
    cup__ahead_free(ahead);
    return c->error.status == CUP_MEMORY ? CUP_MEMORY : CUP_OK;
}

/* Drops nodes, each of which may have to wait for others. */
static bool drop_nodes(cup__graph *g, const bool *wanted)
{
    bool dropped = true, left = false;
    while (dropped) {
        dropped = left = false;
        for (int i = g->count - 1; i > 0; i--)
            if (wanted[i] && !g->node[i].gone) {
                bool can = cup__graph_can_drop(g, i);
                g->node[i].gone = can;
                dropped |= can;
                left |= !can;
            }
    }
    return !left;
}

static bool parse(const char *repeat, uint64_t *seed, int64_t *number, item *it)
{
    char *at, name[16];
    bool gone[CUP__GRAPH_NODES] = {false};
    *seed = strtoull(repeat, &at, 10);
    if (at == repeat || *at != ':')
        return false;
    *number = strtoll(at + 1, &at, 10);
    size_t length = *at == ':' ? strcspn(at + 1, ":") : sizeof name;
    if (length >= sizeof name || *number < 0)
        return false;
    memcpy(name, at + 1, length);
    name[length] = 0;
    if (cup_dtype_find(name, &it->dtype) != CUP_OK || cup_dtype_size(it->dtype) < 2 ||
        !cup__dtype_is_float(it->dtype))
        return false;
    cup__graph_draw(*seed, *number, &it->graph);
    at += 1 + length;
    for (at += *at == ':'; *at; at += *at == ',') {
        char *end;
        long node = strtol(at, &end, 10);
        if (end == at || node < 1 || node >= it->graph.count || (*end && *end != ','))
            return false;
        gone[node] = true;
        at = end;
    }
    return drop_nodes(&it->graph, gone);
}

cup_status cup__check_graph(cup_context *c, const char *repeat, cup__graph_report report,
                            void *user)
{
    item it = {.expected.c = NULL};
    uint64_t seed;
    int64_t number;
    if (!parse(repeat, &seed, &number, &it))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "\"%.100s\" is no graph; write it as a failure of --graphs names it: "
                         "seed:number:dtype:nodes that are dropped",
                         repeat);
    long failures = cup__memory_failures();
    it.expected.c = cup__context_cpu(cup__threads());
    if (cup_error(it.expected.c) == CUP_OK)
        expect(&it.expected, &it.graph, it.dtype);
    if (it.expected.c)
        conclude(c, &it, seed, number, failures, report, user);
    else
        cup__fail(&c->error, CUP_MEMORY, "no context for a graph in double");
    cup_context_free(it.expected.c);
    return c->error.status == CUP_MEMORY ? CUP_MEMORY : CUP_OK;
}

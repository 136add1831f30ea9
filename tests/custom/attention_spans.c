/* What attention's kernels find out about the conditions of formulas on whole tiles, by the text
 * that they are compiled with: a tile that is said to be hidden must be, and one that is said to be
 * seen as a whole. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "custom/score.h"
#include "kernels/span.cuh"
#include "test.h"

#define KEYS 3000
#define TILES 400
#define NODES 64

static const struct condition {
    const char *parameters, *text;
    double value;
    bool is_sharp; /* nearly all is found that there is to be found */
} conditions[] = {
    {"w", "key <= query && (query - key < w || key < 4)", 300, true},
    {"prefix", "key <= query || key < prefix", 500, true},
    {NULL, "floor(query / 49) == floor(key / 49)", 0, true},
    {"n", "floor(query / n) == floor(key / n) && key <= query", 700, true},
    {"n", "floor(query / 64) - floor(key / 64) < n || key < 16", 5, true},
    {NULL, "abs(query - key) < 100 || abs(query - key - 1000) < 50", 0, true},
    {"a", "min(query, a) * 2 < max(key, 100) + 3", 900, true},
    {NULL, "where(head == 2, key <= query, key >= query) || key == 7", 0, true},
    {"a", "!(query * a > key && key * a > query)", 2.5, true},
    {NULL, "(query / 3 - key * 0.7) / 5 <= 11 && batch != 1", 0, true},
    {"a", "query / (key + a) < 3 && score > -100", 1, false},
    {NULL, "floor(query / 8) * 8 != key && key < 2000", 0, true},
    {"a", "-key < a - query && (query - key) * (query - key) < 90000", 40, true},
    {"nan", "key < nan || key <= query && 1 - 0.5 != key", NAN, false},
};

/* The places of a call, and the condition's parameter. */
typedef struct pairs {
    int query, queries, key, keys, head, batch;
    double parameter;
} pairs;

static span span_by(const struct cup__score *s, const cup__expr_node *n, const char *name,
                    const span *u, const pairs *p)
{
    static const struct {
        const char *name;
        span (*of)(span, span);
    } two[] = {{"add", span_add}, {"sub", span_sub}, {"mul", span_mul}, {"div", span_div},
               {"min", span_min}, {"max", span_max}, {"equal", span_equal},
               {"not_equal", span_not_equal}, {"less", span_less},
               {"less_equal", span_less_equal}, {"and", span_and}, {"or", span_or}};
    static const struct {
        const char *name;
        span (*of)(span);
    } one[] = {{"not", span_not}, {"neg", span_neg}, {"abs", span_abs}, {"floor", span_floor}};
    if (!strcmp(name, "any"))
        return span_any();
    if (!strcmp(name, "number"))
        return span_number((float)(n->function == CUP__NUMBER ? n->value : p->parameter));
    if (!strcmp(name, "where"))
        return span_where(u[n->in[0]], u[n->in[1]], u[n->in[2]]);
    if (!strcmp(name, "divided")) {
        const cup__expr_node *by = &s->nodes[n->in[1]];
        float value = (float)(by->function == CUP__NUMBER ? by->value : p->parameter);
        float a = u[n->in[0]].least / value, b = u[n->in[0]].most / value;
        return span_between(fminf(a, b), fmaxf(a, b));
    }
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (!strcmp(name, two[i].name))
            return two[i].of(u[n->in[0]], u[n->in[1]]);
    for (size_t i = 0; i < sizeof one / sizeof *one; i++)
        if (!strcmp(name, one[i].name))
            return one[i].of(u[n->in[0]]);
    test_fail(__FILE__, __LINE__, "span_%s is not known to this test", name);
}

/* What FORMULA_SPANS of a text says of a tile: its lines are "const span u5 = span_add(u1, u2);"
 * with the numbers of the nodes. */
static span read_spans(const struct cup__score *s, const char *text, const pairs *p)
{
    const span places[] = {span_any(),
                           span_of((float)p->query, (float)(p->query + p->queries - 1)),
                           span_of((float)p->key, (float)(p->key + p->keys - 1)),
                           span_number((float)p->head), span_number((float)p->batch)};
    span u[NODES];
    int node, length;
    const char *at = strstr(text, "#define FORMULA_SPANS");
    EXPECT(at && s->count <= NODES);
    at = strchr(at, '\n') + 1;
    for (char name[32]; sscanf(at, " const span u%d = %n", &node, &length) == 1;
         at = strchr(at, '\n') + 1) {
        const cup__expr_node *n = &s->nodes[node];
        if (sscanf(at + length, "span_%31[a-z_]", name) == 1)
            u[node] = span_by(s, n, name, u, p);
        else
            u[node] = places[n->in[0]];
    }
    EXPECT(sscanf(at, " seen = u%d", &node) == 1);
    return u[node];
}

/* Whether any pair is seen, and whether all are. */
static void look_at_all(const struct cup__score *s, const pairs *p, bool *any, bool *all)
{
    float *reads = cup__calloc((size_t)p->keys * CUP__READS_TENSORS, sizeof *reads);
    void *room = cup__calloc((size_t)p->keys, s->base.room);
    cup__score_run run = {.count = p->keys, .parameters = &p->parameter, .room = room};
    *any = false;
    *all = true;
    for (int i = 0; i < CUP__READS_TENSORS; i++)
        run.reads[i] = reads + i * p->keys;
    for (int query = p->query; query < p->query + p->queries; query++) {
        for (int k = 0; k < p->keys; k++) {
            const float at[] = {0, (float)query, (float)(p->key + k), (float)p->head,
                                (float)p->batch};
            for (int i = 0; i < CUP__READS_TENSORS; i++)
                reads[i * p->keys + k] = at[i];
        }
        s->base.evaluate(&s->base, &run);
        for (int k = 0; k < p->keys; k++) {
            bool seen = ((const float *)run.gives[CUP__GIVES_SCORE])[k] != -INFINITY;
            *any |= seen;
            *all &= seen;
        }
    }
    cup__free(reads);
    cup__free(room);
}

static pairs draw(uint64_t *state, double parameter)
{
    static const int sizes[] = {1, 16, 24, 64};
    int drawn[6];
    for (int i = 0; i < 6; i++) {
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        drawn[i] = (int)(*state >> 33);
    }
    pairs p = {.query = drawn[0] % KEYS, .queries = sizes[drawn[1] % 3],
               .keys = sizes[drawn[2] % 4], .head = drawn[3] % 4, .batch = drawn[4] % 3,
               .parameter = parameter};
    int away = drawn[3] % 2 ? 1200 : 100; /* often near the query */
    p.key = drawn[5] % 4 ? p.query - away + drawn[5] / 4 % (2 * away) : drawn[5] / 4 % KEYS;
    p.key = (p.key < 0 ? 0 : p.key) / p.keys * p.keys;
    return p;
}

typedef struct counts {
    int hidden, whole, found_hidden, found_whole;
} counts;

static void try_tile(const struct cup__score *s, const char *source, const char *text,
                     const pairs *p, counts *of)
{
    bool any, all;
    span seen = read_spans(s, source, p);
    look_at_all(s, p, &any, &all);
    if ((any && !may_hold(seen)) || (!all && must_hold(seen)))
        test_fail(__FILE__, __LINE__,
                  "%s: %d queries from %d on and %d keys from %d on, head %d, batch %d", text,
                  p->queries, p->query, p->keys, p->key, p->head, p->batch);
    of->hidden += !any;
    of->whole += all;
    of->found_hidden += !may_hold(seen);
    of->found_whole += must_hold(seen);
}

static void try_condition(cup_context *c, const struct condition *by)
{
    char text[200];
    uint64_t state = (uint64_t)(by - conditions) + 1;
    snprintf(text, sizeof text, "score, %s", by->text);
    cup_expr *e = cup_expr_new(c, "score query key head batch", by->parameters, text);
    struct cup__score *s = e ? cup__score_get(e) : NULL;
    EXPECT(s && s->base.sees);
    const char *source = s->base.source(&s->base, "attention_wgmma.cu");
    EXPECT(strstr(source, "#define FORMULA_HIDES 1\n"));
    counts n = {0};
    for (int i = 0; i < TILES; i++) {
        pairs p = draw(&state, by->value);
        try_tile(s, source, by->text, &p, &n);
    }
    EXPECT(n.hidden && n.whole);
    if (by->is_sharp && (n.found_hidden < 0.9 * n.hidden || n.found_whole < 0.9 * n.whole))
        test_fail(__FILE__, __LINE__, "%s: found %d of %d hidden and %d of %d whole tiles",
                  by->text, n.found_hidden, n.hidden, n.found_whole, n.whole);
    cup_expr_free(e);
}

TEST(attention_spans_say_nothing_wrong)
{
    cup_context *c = cup_context_new(NULL);
    for (size_t i = 0; i < sizeof conditions / sizeof *conditions; i++)
        try_condition(c, &conditions[i]);
    EXPECT(cup_error(c) == CUP_OK);
    cup_context_free(c);
}

/* Calls that wait, to be made of some texts of a batch and then of the others. */
#include <string.h>

#include "../test.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "dispatch/halves.h"
#include "prof/check.h"

#define ELEMENTS_MOST 20000 /* of a sample, as specifications are slow */
#define INPUTS_MOST 64

static cup_tensor *rows_of(cup_tensor *t, int64_t from, int64_t count)
{
    cup__shape shape = cup__shape_of(t);
    shape.size[0] = count;
    return cup__tensor_view(t, &shape, t->stride, from * t->stride[0]);
}

/* The rows that all inputs by texts have; 0: they do not, or are fewer than two. */
static int64_t rows_in(cup_tensor *const *in, int count, uint32_t bits)
{
    int64_t rows = 0, elements = 0;
    for (int i = 0; i < count; i++) {
        elements += in[i] ? in[i]->count : 0;
        if (!in[i] || !(bits >> i & 1))
            continue;
        if (in[i]->ndim < 1 || (rows && in[i]->shape[0] != rows))
            return 0;
        rows = in[i]->shape[0];
    }
    return elements > ELEMENTS_MOST || rows < 2 ? 0 : rows;
}

static void run(cup__call *call, cup_context *c, const cup__row *row, cup_tensor **in, int count,
                const void *attributes)
{
    EXPECT(cup__call_begin(call, c, row, in, count, attributes) == CUP_OK);
    call->saving = row->results_count > row->visible;
    call->out_count = row->results_count;
    EXPECT(cup__call_allocate(call) == CUP_OK);
    EXPECT(cup__call_run(call, NULL) == CUP_OK);
}

static void expect_rows(const cup__row *row, const cup_tensor *all, int64_t from,
                        const cup_tensor *some)
{
    int64_t each = some->count / some->shape[0];
    for (int64_t i = 0; i < some->count; i++) {
        double is = cup__element(some, i), should = cup__element(all, from * each + i);
        if (memcmp(&is, &should, sizeof is))
            test_fail(__FILE__, __LINE__, "%s: element %lld of rows from %lld on is %g, not %g",
                      row->name, (long long)i, (long long)from, is, should);
    }
}

/* Whether the sample could be compared. */
static bool compare(cup_context *c, const cup__row *row, const cup__sample *sample)
{
    cup_tensor *in[INPUTS_MOST], *some[INPUTS_MOST];
    int count = cup__sample_inputs(c, row, sample, CUP_F32, CUP_F32, CUP__ROW_MAJOR, 1, in,
                                   INPUTS_MOST);
    if (count < 1)
        return false;
    uint32_t bits = cup__halves_by_texts(row, in, count, sample->attributes);
    int64_t rows = bits ? rows_in(in, count, bits) : 0;
    if (!rows)
        return false;
    cup__call all, part;
    run(&all, c, row, in, count, sample->attributes);
    for (int64_t from = 0, next = rows / 2; from < rows; from = next, next = rows) {
        for (int i = 0; i < count; i++)
            some[i] = in[i] && bits >> i & 1 ? rows_of(in[i], from, next - from) : in[i];
        run(&part, c, row, some, count, sample->attributes);
        for (int i = 0; i < part.out_count; i++) {
            EXPECT_INT(all.out[i]->shape[0], rows);
            expect_rows(row, all.out[i], from, part.out[i]);
        }
    }
    return true;
}

/* What is said to go by texts does, hidden results included. */
TEST(calls_by_texts_are_made_of_some_rows)
{
    cup_context *c = cup__context_cpu(1);
    int ops = 0;
    for (const cup__row *row = cup__rows; row->name; row++) {
        int compared = 0;
        for (const cup__sample *s = row->op->samples; s && s->shapes; s++) {
            cup_scope_open(c);
            compared += compare(c, row, s);
            cup_scope_return(c, NULL);
        }
        ops += compared > 0;
        if (row->op->by_texts && !compared)
            test_fail(__FILE__, __LINE__, "%s says that it goes by texts, and no sample does",
                      row->name);
    }
    EXPECT(cup_error(c) == CUP_OK);
    EXPECT(ops > 40);
    cup_context_free(c);
}

typedef struct net {
    cup_tensor *x, *weight, *gamma, *out;
    int64_t parts[4];
    int behind;
    bool reads; /* what waits, before it is to be made */
} net;

/* As a sum of processes begins, which here is a copy. */
static cup_status behind(cup_tensor *from, cup_tensor *to, void *user)
{
    net *n = user;
    n->parts[n->behind++] = from->shape[0];
    EXPECT(from->count == to->count && from->count / 12 == from->shape[0]);
    return cup_copy_into(from->context, to, from);
}

static cup_tensor *half_block(cup_context *c, net *n, bool halves)
{
    if (halves)
        EXPECT(cup__halves_begin(c, n->x, NULL) == CUP_OK);
    cup_tensor *y = cup_rmsnorm(c, n->x, n->gamma, 1e-5);
    cup_tensor *scale = cup_cast(c, n->gamma, CUP_F32); /* of no text */
    y = cup_mul(c, cup_linear_gelu(c, y, n->weight, NULL), scale);
    n->out = cup_linear(c, y, n->weight, NULL);
    if (n->reads)
        cup_tensor_data(n->out);
    EXPECT(cup__halves_waits(c, n->out) == (halves && !n->reads));
    cup_tensor *sum = n->out;
    if (cup__halves_waits(c, n->out)) {
        sum = cup_tensor_new(c, CUP_F32, 3, n->x->shape);
        EXPECT(cup__halves_run(c, n->out, sum, behind, n) == CUP_OK);
    }
    cup__halves_end(c);
    return sum;
}

static void draw(cup_context *c, cup_tensor *t)
{
    float *at = cup_tensor_data(t);
    (void)c;
    for (int64_t i = 0; i < t->count; i++)
        at[i] = (float)test_uniform(-1, 1);
}

static void expect_same(cup_tensor *a, cup_tensor *b)
{
    EXPECT(a && b && a->count == b->count);
    for (int64_t i = 0; i < a->count; i++)
        EXPECT_NEAR(cup__element(a, i), cup__element(b, i), 1e-6);
}

static net net_of(cup_context *c, int64_t texts)
{
    net n = {.x = cup_tensor_new(c, CUP_F32, 3, (int64_t[]){texts, 1, 12}),
             .weight = cup_tensor_new(c, CUP_F32, 2, (int64_t[]){12, 12}),
             .gamma = cup_tensor_new(c, CUP_F32, 1, (int64_t[]){12})};
    draw(c, n.x), draw(c, n.weight), draw(c, n.gamma);
    return n;
}

TEST(calls_that_wait_are_made_of_halves_in_turn)
{
    for (int64_t texts = 2; texts < 6; texts++) {
        cup_context *c = cup__context_cpu(1);
        net n = net_of(c, texts);
        cup_tensor *whole = half_block(c, &n, false), *sum = half_block(c, &n, true);
        EXPECT_INT(n.behind, 2);
        EXPECT(n.parts[0] == texts / 2 && n.parts[1] == texts - texts / 2);
        expect_same(whole, sum);
        expect_same(whole, n.out);
        EXPECT(!c->coming && !c->halves->list);
        cup_context_free(c);
    }
}

TEST(calls_that_wait_are_made_whole_for_who_reads)
{
    cup_context *c = cup__context_cpu(1);
    net n = net_of(c, 4);
    cup_tensor *whole = half_block(c, &n, false);
    n.reads = true;
    expect_same(whole, half_block(c, &n, true));
    EXPECT_INT(n.behind, 0);
    EXPECT(cup__halves_begin(c, n.x, NULL) == CUP_OK);
    cup_tensor *y = cup_linear(c, n.x, n.weight, NULL);
    EXPECT(cup__halves_waits(c, y));
    /* What reads all texts at once does not wait, nor what is read by all of them. */
    cup_tensor *sum = cup_sum(c, y, NULL, 0, false);
    EXPECT(!cup__halves_waits(c, y) && sum);
    y = cup_linear(c, n.x, n.weight, NULL);
    cup_tensor *turned = cup_permute(c, y, (int64_t[]){2, 1, 0}, 3);
    EXPECT(cup__halves_waits(c, y));
    cup_tensor *wide = cup_add(c, turned, cup_ones(c, CUP_F32, 1, (int64_t[]){4}));
    EXPECT(!cup__halves_waits(c, y) && wide);
    /* What nobody reads is made before its context ends. */
    y = cup_linear(c, n.x, n.weight, NULL);
    cup__halves_end(c);
    EXPECT(cup__halves_waits(c, y));
    EXPECT(cup_synchronize(c) == CUP_OK && !cup__halves_waits(c, y));
    cup_context_free(c);
}

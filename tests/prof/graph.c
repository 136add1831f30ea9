/* Random graphs: drawn alike each time, right on a CPU, and held to what double says. */
#include <stdio.h>
#include <string.h>

#include "../test.h"
#include "prof/check_graph.h"
#include "prof/graph_kinds.h"

static int64_t count, failed;
static double tolerance;
static char last[8000], again[300];

static void report(const cup__graph_result *r, void *user)
{
    count++;
    failed += !r->passed;
    tolerance = r->tolerance;
    snprintf(last, sizeof last, "%s", r->graph);
    snprintf(again, sizeof again, "%s", r->repeat);
    if (!r->passed && user)
        test_fail(__FILE__, __LINE__, "cupola check --graph %s: %s\n%s", r->repeat, r->note,
                  r->graph);
}

TEST(graph_random_ones_are_right)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    uint64_t seed = test_random() >> 1;
    EXPECT_INT(cup__check_graphs(c, seed, 150, report, &count), CUP_OK);
    EXPECT_INT(count, 150);
    cup_context_free(c);
}

/* A norm of three nearly equal numbers, a mean of numbers that cancel, the slope of a tanh near 1,
 * sums that cancel behind a gelu and behind a product that was broadcast, the gradient of a product
 * that cancels with another, a product that is stored before much the same is taken off it: no
 * order of steps is much closer to double, and what may be wrong follows from how far they move. */
static void hold_cancelling(const char *device)
{
    static const char *const graphs[] = {"4711:18:f32:1,2,3,6,7,8,9", "4711:249:f32:1,5,6,7",
                                         "4242:113:f16:1,2,5,15",
                                         "2:88:bf16:5,6,7,8,11,14,15,21",
                                         "10:394:bf16:3,15,17,18,19,20,22",
                                         "32:1284:f32:1,2,8",
                                         "777:1811:f16:4,7,13,14,15,17,18"};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    if (cup_error(c) != CUP_OK) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    for (int i = 0; i < 7; i++) {
        EXPECT_INT(cup__check_graph(c, graphs[i], report, &count), CUP_OK);
        EXPECT(tolerance < 400);
    }
    EXPECT_INT(count, 7);
    cup_context_free(c);
}

TEST(graph_of_what_cancels_is_held)
{
    hold_cancelling("cpu");
}

TEST(gpu_graph_of_what_cancels_is_held)
{
    hold_cancelling("cuda");
}

TEST(graph_of_a_number_is_always_the_same)
{
    cup__graph a, b;
    cup__graph_draw(5, 11, &a);
    cup__graph_draw(5, 11, &b);
    EXPECT(!memcmp(&a, &b, sizeof a));
    cup__graph_draw(5, 12, &b);
    EXPECT(memcmp(&a, &b, sizeof a));
}

/* Where what cancels is all that a gradient is made of. */
TEST(graph_has_norms_of_any_width)
{
    int narrow[2] = {0};
    for (int64_t number = 0; number < 300; number++) {
        cup__graph g;
        cup__graph_draw(7, number, &g);
        for (int i = 0; i < g.count; i++) {
            const cup__graph_node *n = &g.node[i];
            narrow[0] += n->kind == LAYERNORM && n->size[n->ndim - 1] < 3;
            narrow[1] += n->kind == RMSNORM && n->size[n->ndim - 1] < 2;
        }
    }
    EXPECT(narrow[0] > 3);
    EXPECT(narrow[1] > 3);
}

TEST(graph_is_named_and_repeated)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(cup__check_graphs(c, 3, 7, report, &count), CUP_OK);
    char text[8000], name[300];
    snprintf(text, sizeof text, "%s", last);
    snprintf(name, sizeof name, "%s", again);
    EXPECT_INT(cup__check_graph(c, name, report, &count), CUP_OK);
    EXPECT_TEXT(last, text);
    EXPECT_TEXT(again, name);
    EXPECT_INT(cup__check_graph(c, "3:6:bf17:", report, &count), CUP_ARGUMENT);
    cup_error_clear(c);
    EXPECT_INT(cup__check_graph(c, "3:6:f32:0", report, &count), CUP_ARGUMENT);
    cup_context_free(c);
}

/* Dropping ops one by one keeps a graph that runs, until nothing is left to be dropped. */
TEST(graph_runs_without_any_of_its_ops)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup__graph_run run;
    int dropped = 0;
    for (int64_t number = 0; number < 20; number++) {
        cup__graph g;
        cup__graph_draw(9, number, &g);
        for (int i = g.count - 1; i > 0; i--) {
            bool ends = false;
            if (!cup__graph_can_drop(&g, i))
                continue;
            g.node[i].gone = true;
            dropped++;
            for (int k = 0; k < g.count; k++)
                ends |= cup__graph_is_end(&g, k);
            cup_scope_open(c);
            if (ends && cup__graph_execute(&g, c, CUP_F32, CUP_F32, 0, &run) != CUP_OK)
                test_fail(__FILE__, __LINE__, "%s", cup_error_text(c));
            cup_scope_close(c);
        }
    }
    EXPECT(dropped > 60);
    cup_context_free(c);
}

/* What rounding in f32 does to a graph is far more than f64 may be wrong by, and noise of f32 moves
 * it by what the tolerance says. */
TEST(graph_tolerance_is_that_of_the_dtype)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(cup__check_graph(c, "4:2:f32:", report, &count), CUP_OK);
    EXPECT(tolerance >= 4);
    EXPECT(tolerance < 400);
    EXPECT_INT(cup__check_graph(c, "4:2:f64:", report, &count), CUP_OK);
    EXPECT(tolerance >= 4);
    cup_context_free(c);
}

/* Gradients of 1e5, which f16 does not have, meet in a difference: infinity less infinity. */
TEST(graph_of_numbers_that_the_dtype_does_not_have)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(cup__check_graph(c, "795930007:722:f16:8", report, last), CUP_OK);
    EXPECT_INT(failed, 0);
    EXPECT_CONTAINS(last, "sub(0, 0)");
    cup_context_free(c);
}

/* Training adapters beside a GPT that processes share out: the run of one process, and its
 * checkpoints. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "comm/together.h"
#include "test.h"
#include "train/parted.h"

static cup_training training_of(bool gated)
{
    cup_training a = parted_training(gated);
    a.rate = a.rate_end = 0.02;
    return a;
}

/* With experts in place of MLPs. */
static cup_training mixed(const parts *p)
{
    cup_training a = training_of(p->gated);
    a.model.experts = p->experts;
    a.model.balance = p->experts ? 0.02 : 0;
    a.model.qk_norm &= !p->experts; /* as Mixtrals have none */
    return a;
}

/* A model to stand beside in the test's folder: a checkpoint, or one in names of others. */
static void make_base(const parts *p, char folder[600])
{
    const char *meeting = together_address() + strlen("file:");
    int in = (int)(strrchr(meeting, '/') - meeting);
    cup_training_point ignored[MOST_POINTS];
    cup_training a = mixed(p);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    snprintf(folder, 600, "%.*s/base%d", in, meeting, p->gated);
    a.steps = 2;
    parted_run(c, NULL, a, (parts){0}, folder, false, ignored);
    if (p->gated) {
        cup_gpt *m = cup_gpt_load(c, folder);
        snprintf(folder, 600, "%.*s/published", in, meeting);
        EXPECT_INT(cup_gpt_export(m, folder), CUP_OK);
        cup_gpt_free(m);
    }
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
}

static void run_beside_one(cup_context *c, cup_comm *comm, void *user)
{
    const parts *p = user;
    const parts alone = {.lora_rank = p->lora_rank, .from = p->from, .method = p->method};
    cup_training_point a[MOST_POINTS], b[MOST_POINTS];
    cup_training training = mixed(p);
    training.model.dropout = p->dropout;
    int64_t count = cup_comm_rank(comm) ? 0 : parted_run(c, NULL, training, alone, NULL, false, a);
    int64_t same = parted_run(c, comm, training, *p, NULL, false, b);
    if (cup_comm_rank(comm) == 0) {
        parted_expect(c, a, count, b, same, p->gated ? "gated" : "plain");
        if (!(a[count - 1].validation < a[0].validation - 0.02))
            wrong("nothing is learned: %g, then %g", a[0].validation,
                  a[count - 1].validation);
    }
}

static void expect_all(const parts *all, const int *processes, int count)
{
    char from[600];
    for (int i = 0; i < count; i++) {
        parts p = all[i];
        if (i == 0 || p.gated != all[i - 1].gated)
            make_base(&p, from);
        p.from = from;
        p.lora_rank = 3;
        together(processes[i], run_beside_one, &p);
    }
}

/* Of four that share out queries, keys and values two have the same head of keys. */
TEST(parallel_adapters_are_those_of_one)
{
    const parts all[] = {{.tensor = 2},
                                {.tensor = 2, .dropout = 0.2},
                                {.tensor = 4, .gated = true},
                                {.tensor = 2, .gated = true, .sequence = true}};
    expect_all(all, (int[]){2, 4, 4, 2}, 4);
}

TEST(parallel_adapters_of_stages_are_those_of_one)
{
    const parts all[] = {{.stages = 3},
                                {.stages = 2, .chunks = 2, .dropout = 0.2},
                                {.stages = 2, .blocks = (int64_t[]){1, 3}, .gated = true},
                                {.stages = 2, .tensor = 2, .gated = true}};
    expect_all(all, (int[]){3, 4, 2, 4}, 4);
}

TEST(parallel_adapters_with_split_states_are_those_of_one)
{
    const parts all[] = {{.zero = 1},
                                {.zero = 3},
                                {.tensor = 2, .zero = 3},
                                {.stages = 2, .zero = 2},
                                {.tensor = 2, .zero = 2, .gated = true, .method = CUP_METHOD_MUON},
                                {.ring = 2, .tensor = 2, .zero = 1, .gated = true}};
    expect_all(all, (int[]){2, 2, 4, 4, 4, 4}, 6);
}

/* Experts stay as they are, whoever has them. */
TEST(parallel_adapters_beside_experts_are_those_of_one)
{
    const parts all[] = {{.experts = 4, .expert = 2},
                         {.experts = 4, .expert = 2, .zero = 3, .dropout = 0.2},
                         {.experts = 4, .tensor = 2},
                         {.experts = 4, .expert = 2, .stages = 2},
                         {.experts = 4, .expert = 4, .tensor = 2},
                         {.experts = 4, .expert = 4, .zero = 1, .gated = true},
                         {.experts = 4, .stages = 2, .gated = true}};
    expect_all(all, (int[]){2, 4, 2, 4, 4, 4, 2}, 7);
}

/* That the adapters of two checkpoints are the same within rounding, and can be merged. */
static void compare(cup_context *c, const char *a, const char *b)
{
    static float left[4096], right[4096];
    cup_gpt *one = cup_gpt_load(c, a), *other = cup_gpt_load(c, b);
    int64_t count = 0, others = 0;
    const cup_named *x = one ? cup_parameters_named(one->adapters, &count) : NULL;
    const cup_named *y = other ? cup_parameters_named(other->adapters, &others) : NULL;
    if (!x || !y || count != others || count != 4 * 7 * 2)
        wrong("%d and %d adapters: %s", (int)count, (int)others, cup_error_text(c));
    for (int64_t i = 0; x && y && i < count; i++) {
        size_t elements = (size_t)cup_tensor_count(x[i].tensor);
        if (strcmp(x[i].name, y[i].name) != 0 || elements > sizeof left / sizeof *left)
            wrong("%s and %s", x[i].name, y[i].name);
        cup_tensor_read(x[i].tensor, left, elements * sizeof *left);
        cup_tensor_read(y[i].tensor, right, elements * sizeof *right);
        for (size_t k = 0; k < elements; k++)
            if (!(fabsf(left[k] - right[k]) < 1e-3F))
                wrong("%s at %d: %g and %g", x[i].name, (int)k, (double)left[k], (double)right[k]);
    }
    if (other && cup_gpt_merge(other) != CUP_OK)
        wrong("not merged: %s", cup_error_text(c));
    cup_gpt_free(one);
    cup_gpt_free(other);
}

/* Half of a run is shared out and saved, and goes on shared out to others, or as a whole; once in a
 * folder that rank 0 alone sees. */
static void change(cup_context *c, cup_comm *comm, void *user)
{
    static const parts first[] = {{.tensor = 4}, {.stages = 2, .tensor = 2}, {.zero = 3}};
    static const parts second[] = {{0}, {.tensor = 2, .zero = 2}, {.stages = 4}};
    cup_training_point a[MOST_POINTS], b[MOST_POINTS];
    cup_training training = training_of(true);
    const char *from = user;
    char own[700], one[700], seen[700];
    int end = (int)(strrchr(from, '/') - from);
    snprintf(one, sizeof one, "%.*s/one%d", end, from, cup_comm_rank(comm));
    const parts alone = {.lora_rank = 3, .from = from};
    int64_t count = parted_run(c, NULL, training, alone, one, false, a);
    for (int i = 0; i < 3; i++) {
        cup_training half = training;
        parts p = first[i], q = second[i];
        p.lora_rank = q.lora_rank = 3;
        p.from = from;
        half.steps = 5;
        snprintf(own, sizeof own, "%.*s/run%d", end, from, i);
        snprintf(seen, sizeof seen, "%s", own);
        if (i == 1 && cup_comm_rank(comm) > 0)
            snprintf(seen, sizeof seen, "%.*s/nothing", end, from);
        q.from = i == 1 ? from : NULL;
        parted_run(c, comm, half, p, seen, false, b);
        int64_t same = parted_run(c, comm, training, q, seen, true, b);
        parted_expect(c, a, count, b, same, own + end);
        if (cup_comm_rank(comm) == 0)
            compare(c, one, own);
        cup_comm_barrier(comm);
    }
}

TEST(parallel_adapters_are_saved_for_any_number)
{
    char from[600];
    make_base(&(parts){.gated = true}, from);
    together(4, change, from);
}

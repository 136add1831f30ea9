/* Gradients that are added up beside backward where processes share out a model, its experts or its
 * texts: the bits are those of sums behind it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/together.h"
#include "cuda/support.h"
#include "test.h"
#include "train/parted.h"
#include "train/trainer.h"

/* Wide enough for several buckets of 1 MB of what each process has. */
static cup_training training_of(const parts *p)
{
    cup_training a = parted_mixed(p);
    a.model.width = 128;
    a.model.hidden = 512;
    a.model.layers = p->layers ? p->layers : 4;
    a.model.dropout = p->dropout;
    a.model.context = p->ring && p->dropout > 0 ? 32 * p->ring : a.model.context;
    a.steps = 3;
    a.evaluate_every = 0;
    a.recompute = CUP_RECOMPUTE_POLICY_BLOCK;
    return a;
}

static bool same_bits(double a, double b)
{
    return !memcmp(&a, &b, sizeof a) || (isnan(a) && isnan(b));
}

static void compare_runs(cup_context *c, cup_comm *comm, cup_training a, const parts *p)
{
    cup_training_point behind[64], beside[64];
    setenv("CUP_COMM_BUCKET", "0", 1);
    int64_t count = parted_run(c, comm, a, *p, NULL, false, behind);
    setenv("CUP_COMM_BUCKET", "1", 1);
    int64_t same = parted_run(c, comm, a, *p, NULL, false, beside);
    if (count != same || count < 3)
        wrong("%d and %d points; %s", (int)count, (int)same, cup_error_text(c));
    for (int64_t i = 0; i < count && i < same; i++)
        if (!same_bits(behind[i].loss, beside[i].loss) ||
            !same_bits(behind[i].norm, beside[i].norm))
            wrong("step %d: loss %.17g and %.17g, norm %.17g and %.17g", (int)i, behind[i].loss,
                  beside[i].loss, behind[i].norm, beside[i].norm);
}

static void compare(cup_context *c, cup_comm *comm, void *user)
{
    compare_runs(c, comm, training_of(user), user);
}

/* Copies that do not record the same have no places for sums that all find. */
static void compare_unlike(cup_context *c, cup_comm *comm, void *user)
{
    const parts *p = user;
    cup_training a = training_of(p);
    a.recompute = cup_comm_rank(comm) < p->tensor ? CUP_RECOMPUTE_POLICY_BLOCK
                                                  : CUP_RECOMPUTE_POLICY_NONE;
    compare_runs(c, comm, a, p);
}

TEST(parallel_buckets_of_unlike_backwards_go_behind)
{
    together(4, compare_unlike, &(parts){.tensor = 2});
    together(4, compare_unlike, &(parts){.tensor = 2, .zero = 2});
}

TEST(parallel_buckets_beside_parts_have_the_same_bits)
{
    together(2, compare, &(parts){.tensor = 2});
    together(4, compare, &(parts){.tensor = 2, .gated = true, .dropout = 0.1});
    together(4, compare, &(parts){.tensor = 2, .sequence = true, .zero = 1});
    together(4, compare, &(parts){.tensor = 2, .zero = 2});
    together(4, compare, &(parts){.tensor = 2, .zero = 3});
}

TEST(parallel_buckets_beside_stages_have_the_same_bits)
{
    together(4, compare, &(parts){.stages = 2});
    together(4, compare, &(parts){.stages = 2, .chunks = 2, .gated = true});
    together(4, compare, &(parts){.stages = 2, .chunks = 2, .zero = 2});
    together(4, compare, &(parts){.stages = 2, .zero = 3});
    together(8, compare, &(parts){.stages = 2, .tensor = 2, .zero = 1});
}

TEST(parallel_buckets_beside_experts_have_the_same_bits)
{
    together(4, compare, &(parts){.experts = 4, .expert = 2, .layers = 2});
    together(4, compare, &(parts){.experts = 4, .expert = 2, .layers = 2, .zero = 2});
    together(4, compare, &(parts){.experts = 4, .expert = 2, .tensor = 2, .layers = 2});
    together(8, compare,
             &(parts){.experts = 4, .expert = 2, .stages = 2, .layers = 2, .zero = 2});
}

TEST(parallel_buckets_beside_parts_of_texts_have_the_same_bits)
{
    together(4, compare, &(parts){.ring = 2});
    together(4, compare, &(parts){.ring = 2, .zero = 3});
    together(8, compare, &(parts){.ring = 2, .tensor = 2, .stages = 2});
}

/* One process takes its steps to be longer than others do. */
static void capture(cup_context *hosts, cup_comm *all, void *user)
{
    (void)hosts, (void)user;
    session s = {.stop_at = -1};
    const char *text = sample_text();
    cup_comm *m = parted_join_gpu(all, &s.c);
    cup_training a = training_of(&(parts){.zero = 3});
    a.dtype = CUP_BF16;
    a.steps = 4;
    a.comm = a.optimizer.split = m;
    a.optimizer.stage = 3;
    s.corpus = cup_corpus_new(s.c, text, strlen(text));
    s.tokenizer = cup_tokenizer_char_new(s.c, s.corpus);
    s.data = cup_data_new(s.c, s.corpus, s.tokenizer, a.model.context);
    s.trainer = cup_trainer_new(s.c, s.data, s.tokenizer, NULL, &a);
    if (s.trainer)
        s.trainer->loop->part_seconds = cup_comm_rank(all) ? 1e9 : 0;
    cup_trainer_run(s.trainer, NULL);
    if (cup_error(s.c) != CUP_OK || s.trainer->loop->graph_count != 2)
        wrong("%d graphs; %s", s.trainer ? (int)s.trainer->loop->graph_count : 0,
              cup_error_text(s.c));
    cup_trainer_free(s.trainer);
    cup_data_free(s.data);
    cup_tokenizer_free(s.tokenizer);
    cup_corpus_free(s.corpus);
    cup_comm_free(m);
    cup_context_free(s.c);
}

TEST(parallel_steps_are_as_many_graphs_on_all)
{
    together(2, capture, NULL);
}

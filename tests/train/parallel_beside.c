/* Sums of processes that share out a model, beside what is computed meanwhile. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/together.h"
#include "cuda/support.h"
#include "test.h"
#include "train/parted.h"
#include "train/trainer.h"

static cup_training training_of(const parts *p, cup_recompute_policy policy)
{
    cup_training a = parted_mixed(p);
    a.model.layers = p->layers ? p->layers : 3;
    a.model.dropout = p->dropout;
    a.steps = 4;
    a.evaluate_every = 0;
    a.recompute = policy;
    return a;
}

static bool same_bits(double a, double b)
{
    return !memcmp(&a, &b, sizeof a) || (isnan(a) && isnan(b));
}

/* Gradients of weights are the same whenever they are computed. */
static void compare_bits(cup_context *c, cup_comm *comm, void *user)
{
    static const cup_recompute_policy policies[] = {
        CUP_RECOMPUTE_POLICY_NONE, CUP_RECOMPUTE_POLICY_NORMS, CUP_RECOMPUTE_POLICY_POINTWISE,
        CUP_RECOMPUTE_POLICY_BLOCK};
    const parts *p = user;
    for (size_t k = 0; k < sizeof policies / sizeof *policies; k++) {
        cup_training_point alone[64], beside[64];
        cup_training a = training_of(p, policies[k]);
        setenv("CUP_COMM_BESIDE", "0", 1);
        int64_t count = parted_run(c, comm, a, *p, NULL, false, alone);
        setenv("CUP_COMM_BESIDE", "1", 1);
        int64_t same = parted_run(c, comm, a, *p, NULL, false, beside);
        if (count != same || count < 4)
            wrong("%d and %d points; %s", (int)count, (int)same, cup_error_text(c));
        for (int64_t i = 0; i < count && i < same; i++)
            if (!same_bits(alone[i].loss, beside[i].loss) ||
                !same_bits(alone[i].norm, beside[i].norm))
                wrong("policy %d, step %d: loss %.17g and %.17g, norm %.17g and %.17g",
                      (int)policies[k], (int)i, alone[i].loss, beside[i].loss, alone[i].norm,
                      beside[i].norm);
    }
}

TEST(parallel_weights_beside_sums_have_the_same_bits)
{
    together(2, compare_bits, &(parts){.tensor = 2});
    together(2, compare_bits, &(parts){.tensor = 2, .gated = true, .dropout = 0.1});
    together(2, compare_bits, &(parts){.tensor = 2, .sequence = true});
    setenv("CUP_COMM_BUCKET", "1", 1);
    together(4, compare_bits, &(parts){.tensor = 2, .zero = 2});
    together(4, compare_bits, &(parts){.tensor = 2, .stages = 2, .gated = true});
    together(2, compare_bits, &(parts){.tensor = 2, .experts = 4, .expert = 1});
    unsetenv("CUP_COMM_BUCKET");
}

/* Halves of a batch forward, with what backward computes of the whole batch, are the run without
 * them within rounding. */
static void compare_halves(cup_context *c, cup_comm *comm, void *user)
{
    static const cup_recompute_policy policies[] = {
        CUP_RECOMPUTE_POLICY_NONE, CUP_RECOMPUTE_POLICY_NORMS, CUP_RECOMPUTE_POLICY_POINTWISE,
        CUP_RECOMPUTE_POLICY_BLOCK};
    const parts *p = user;
    for (size_t k = 0; k < sizeof policies / sizeof *policies; k++) {
        cup_training_point whole[64], halves[64];
        cup_training a = parted_mixed(p);
        a.recompute = policies[k];
        a.recompute_blocks = policies[k] == CUP_RECOMPUTE_POLICY_BLOCK ? 2 : 0;
        a.batch = p->texts;
        setenv("CUP_COMM_BESIDE", "0", 1);
        int64_t count = parted_run(c, comm, a, *p, NULL, false, whole);
        setenv("CUP_COMM_BESIDE", "3", 1);
        int64_t same = parted_run(c, comm, a, *p, NULL, false, halves);
        parted_expect(c, whole, count, halves, same, cup_recompute_policy_name(policies[k]));
        if (!p->sequence && !p->ring && c->halves == NULL)
            wrong("no call waited");
    }
}

TEST(parallel_halves_of_a_batch_are_the_whole_one)
{
    together(2, compare_halves, &(parts){.tensor = 2, .texts = 2});
    together(2, compare_halves, &(parts){.tensor = 2, .texts = 3, .gated = true});
    together(4, compare_halves, &(parts){.tensor = 4, .texts = 2, .gated = true});
    together(4, compare_halves, &(parts){.tensor = 2, .texts = 4, .zero = 2, .gated = true});
}

TEST(parallel_halves_beside_what_else_is_shared_out)
{
    together(4, compare_halves, &(parts){.tensor = 2, .texts = 2, .stages = 2, .gated = true});
    together(4, compare_halves, &(parts){.tensor = 2, .texts = 3, .stages = 2, .chunks = 2});
    together(4, compare_halves, &(parts){.tensor = 2, .texts = 4, .zero = 3});
    together(2, compare_halves, &(parts){.tensor = 2, .texts = 2, .sequence = true});
    together(4, compare_halves, &(parts){.tensor = 2, .texts = 2, .ring = 2});
}

/* How two GPUs add up: what CUP_COMM_DIRECT says, a word whose kernels do not compile, or NULL, and
 * how often the other's memory is opened. */
typedef struct way {
    const char *direct, *refused;
    long opened;
    const char *beside;
} way;

/* Steps on the stand-ins: what is begun beside is joined within each graph. */
static void capture(cup_context *hosts, cup_comm *all, void *user)
{
    const way *w = user;
    session s = {.stop_at = -1};
    const char *text = sample_text();
    (void)hosts;
    setenv("CUP_COMM_DIRECT", w->direct, 1);
    setenv("CUP_COMM_BESIDE", w->beside, 1);
    if (w->refused)
        setenv("FAKE_NVRTC_REFUSES", w->refused, 1);
    cup_comm *m = parted_join_gpu(all, &s.c);
    cup_training a = training_of(&(parts){.tensor = 2}, CUP_RECOMPUTE_POLICY_POINTWISE);
    a.dtype = CUP_BF16;
    a.comm = m;
    a.tensor = 2;
    s.corpus = cup_corpus_new(s.c, text, strlen(text));
    s.tokenizer = cup_tokenizer_char_new(s.c, s.corpus);
    s.data = cup_data_new(s.c, s.corpus, s.tokenizer, a.model.context);
    s.trainer = cup_trainer_new(s.c, s.data, s.tokenizer, NULL, &a);
    cup_trainer_run(s.trainer, NULL);
    if (cup_error(s.c) != CUP_OK || s.trainer->loop->graph_count < 1)
        wrong("%d graphs; %s", s.trainer ? (int)s.trainer->loop->graph_count : 0,
              cup_error_text(s.c));
    if (fake_calls("cuIpcOpenMemHandle") != w->opened)
        wrong("the other's memory was opened %ld times", fake_calls("cuIpcOpenMemHandle"));
    cup_trainer_free(s.trainer);
    cup_data_free(s.data);
    cup_tokenizer_free(s.tokenizer);
    cup_corpus_free(s.corpus);
    cup_comm_free(m);
    cup_context_free(s.c);
    fake_expect_nothing_left();
}

TEST(parallel_sums_beside_are_captured)
{
    together(2, capture, &(way){"1", "direct_wait", 0, "1"});
    together(2, capture, &(way){"0", NULL, 0, "1"});
    together(2, capture, &(way){"1", NULL, 1, "1"});
    together(2, capture, &(way){"1", NULL, 1, "3"});
    together(2, capture, &(way){"0", NULL, 0, "3"});
}

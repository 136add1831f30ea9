/* What is computed again where processes share out a model and memory is to say. */
#include <string.h>

#include "comm/together.h"
#include "tensor/tensor.h"
#include "test.h"
#include "train/parted.h"
#include "train/trainer.h"

static cup_training training_of(const parts *p)
{
    cup_training a = parted_training(p->gated);
    a.model.width = 64;
    a.model.context = 64;
    a.steps = 10;
    a.recompute = CUP_RECOMPUTE_POLICY_AUTO;
    return a;
}

static int64_t letters(const char *text)
{
    bool seen[256] = {false};
    int64_t count = 0;
    for (; *text; text++) {
        count += !seen[(unsigned char)*text];
        seen[(unsigned char)*text] = true;
    }
    return count;
}

/* What one process needs of a CPU with a policy. */
static double needs(cup_context *c, cup_comm *comm, const parts *p, cup_recompute_policy policy)
{
    double bytes = 0;
    cup_training a = training_of(p);
    a.comm = comm;
    a.model.vocabulary = letters(sample_text());
    a.recompute = policy;
    a.tensor = p->tensor;
    a.stages = p->stages;
    a.ring = p->ring;
    if (cup__training_check(c, &a) != CUP_OK ||
        cup__training_policy_needs(c, &a, &bytes) != CUP_OK)
        wrong("not known what it needs: %s", cup_error_text(c));
    return bytes;
}

/* One of the processes has room for less, and all compute again what that one must. */
static void choose(cup_context *c, cup_comm *comm, void *user)
{
    parts p = *(const parts *)user;
    const parts alone = {.zero = 0};
    cup_training_point a[MOST_POINTS], b[MOST_POINTS];
    int64_t chosen[2] = {-1, -1};
    cup_training training = training_of(&p), plain = training;
    plain.recompute = CUP_RECOMPUTE_POLICY_NONE;
    int64_t count = cup_comm_rank(comm) ? 0 : parted_run(c, NULL, plain, alone, NULL, false, a);
    double all = needs(c, comm, &p, CUP_RECOMPUTE_POLICY_NONE);
    double less = needs(c, comm, &p, CUP_RECOMPUTE_POLICY_NORMS);
    if (!(less < all))
        wrong("norms computed twice need %g, and else %g", less, all);
    p.chosen = chosen;
    if (cup_comm_rank(comm) == 1)
        c->device->calls->limit(c->device, (int64_t)(all + less) / 2);
    int64_t same = parted_run(c, comm, training, p, NULL, false, b);
    if (chosen[0] != CUP_RECOMPUTE_POLICY_NORMS || (p.stages && chosen[1]))
        wrong("policy %d in %d blocks", (int)chosen[0], (int)chosen[1]);
    int64_t both[] = {chosen[1], -chosen[1]};
    cup_comm_agree(comm, both, 2);
    if (both[0] != -both[1])
        wrong("%d blocks, and others %d", (int)chosen[1], (int)both[0]);
    if (cup_comm_rank(comm) == 0)
        parted_expect(c, a, count, b, same, "auto");
}

TEST(parallel_policies_are_those_of_who_has_least)
{
    together(2, choose, &(parts){.tensor = 2});
    together(2, choose, &(parts){.stages = 2, .gated = true});
    together(2, choose, &(parts){.ring = 2});
}

static int64_t peak_of(cup_context *c)
{
    cup__memory_use use;
    c->device->calls->memory_use(c->device, &use);
    return use.peak_allocated;
}

/* All that stands between blocks is kept in parts, what is gathered for products among it. */
static void keep_parts(cup_context *c, cup_comm *comm, void *user)
{
    parts p = *(const parts *)user;
    cup_training_point points[MOST_POINTS];
    cup_training a = training_of(&p);
    a.model.layers = 8;
    a.batch = 8;
    a.steps = 2;
    a.evaluate_every = 0;
    a.recompute = p.gated ? CUP_RECOMPUTE_POLICY_NORMS : CUP_RECOMPUTE_POLICY_NONE;
    p.sequence = true;
    parted_run(c, comm, a, p, NULL, false, points);
    int64_t less = peak_of(c);
    p.sequence = false;
    parted_run(c, comm, a, p, NULL, false, points);
    int64_t more = peak_of(c);
    a.tensor = p.tensor;
    a.sequence = true;
    double expected = (double)(a.model.layers - 1) * cup__sequence_less(&a);
    double found = (double)(more - less);
    if (!(found > 0.9 * expected && found < 1.3 * expected))
        wrong("%g bytes less, %g were expected; %s", found, expected, cup_error_text(c));
}

TEST(parallel_tokens_between_blocks_are_kept_in_parts)
{
    together(2, keep_parts, &(parts){.tensor = 2});
    together(4, keep_parts, &(parts){.tensor = 4});
    together(2, keep_parts, &(parts){.tensor = 2, .gated = true});
}

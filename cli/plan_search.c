/* The ways to share a step among GPUs, and the best of those that fit. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/common/exit.h"
#include "cli/plan_search.h"

#define CHUNKS_TRIED 8
#define LEAST_PART 2048 /* tokens of a text on a process */
#define MOST_ODD 32 /* texts at once; above it powers of two are tried alone */

typedef struct search {
    const plan_wish *wish;
    plan_scene *s;
    plan_split *list;
    size_t count, room;
    char why[PLAN_WHY]; /* of the last that could not be */
} search;

static int keep(search *r, const plan_split *split)
{
    if (r->count == r->room) {
        size_t room = r->room ? 2 * r->room : 256;
        plan_split *list = realloc(r->list, room * sizeof *list);
        if (!list)
            return cli_fail(CLI_MEMORY, "out of host memory for %zu splits", room);
        r->list = list;
        r->room = room;
    }
    r->list[r->count++] = *split;
    return CLI_OK;
}

/* What cannot be rehearsed is no split, unless there is no memory to do it in. */
static int pass_by(search *r, int code)
{
    snprintf(r->why, sizeof r->why, "%s", r->s->why);
    return code == CLI_MEMORY ? cli_fail(code, "%s", r->why) : CLI_OK;
}

/* With each policy of what is computed again. */
static int try_batch(search *r, plan_split split, int64_t batch)
{
    int code = CLI_OK;
    if (!plan_share(r->s, batch, &split, r->why))
        return CLI_OK;
    static const cup_recompute_policy all[] = {
        CUP_RECOMPUTE_POLICY_NONE, CUP_RECOMPUTE_POLICY_NORMS, CUP_RECOMPUTE_POLICY_POINTWISE,
        CUP_RECOMPUTE_POLICY_BLOCK};
    for (int i = 0; i < (r->wish->one ? 1 : 4) && !code; i++) {
        split.recompute = r->wish->one ? r->s->training.recompute : all[i];
        code = plan_time(r->s, &split);
        code = code ? pass_by(r, code) : keep(r, &split);
    }
    return code;
}

static int try_batches(search *r, plan_split split)
{
    int64_t context = r->s->training.model.context / split.ring;
    int64_t most = r->s->texts / split.copies;
    int code = CLI_OK;
    if (r->wish->batch)
        return try_batch(r, split, r->wish->batch);
    if (most > PLAN_MOST_TOKENS / context)
        most = PLAN_MOST_TOKENS / context > 1 ? PLAN_MOST_TOKENS / context : 1;
    for (int64_t batch = 1; batch == 1 || (batch <= most && !code);
         batch += batch < MOST_ODD ? 1 : batch)
        if (r->s->texts / split.copies % batch == 0)
            code = try_batch(r, split, batch);
    return code;
}

/* All stages of ZeRO where there are copies, as training takes them. */
static int try_split(search *r, plan_split split)
{
    bool may = split.copies * split.ring > 1;
    int64_t first = r->wish->zero >= 0 ? r->wish->zero : 0;
    int64_t last = r->wish->zero >= 0 ? r->wish->zero : may ? 3 : 0;
    int code = CLI_OK;
    if (last > (may ? 3 : 0))
        return CLI_OK;
    for (split.zero = first; split.zero <= last && !code; split.zero++)
        code = try_batches(r, split);
    return code;
}

/* With all powers of two of chunks, or as many as are wished. */
static int try_chunks(search *r, plan_split split)
{
    int64_t wish = r->wish->chunks, most = split.stages > 1 ? CHUNKS_TRIED : 1;
    int code = CLI_OK;
    if (wish > 1 && split.stages == 1)
        return CLI_OK;
    for (split.chunks = wish ? wish : 1; split.chunks <= (wish ? wish : most) && !code;
         split.chunks *= 2)
        if (split.chunks == 1 || wish || split.stages * split.chunks <= r->s->training.model.layers)
            code = try_split(r, split);
    return code;
}

/* Experts on all, or a part of each, and those of a stage shared out by so many who have it, and
 * follow each other in a node. */
static int try_experts(search *r, plan_split split)
{
    const plan_scene *s = r->s;
    int64_t experts = s->training.model.experts;
    int64_t all = split.copies * split.ring * split.tensor;
    int code = try_chunks(r, split);
    split.expert = split.tensor > 1 ? split.tensor : 2;
    for (; experts % split.expert == 0 && all % split.expert == 0 &&
           split.expert * split.stages <= s->cluster.each && experts > 0 && !code;
         split.expert *= 2)
        code = try_chunks(r, split);
    return code;
}

/* Texts whole, and in parts that are long enough, on one node. */
static int try_rings(search *r, plan_split split)
{
    const plan_scene *s = r->s;
    int64_t all = split.copies, each = split.stages * split.tensor;
    int64_t context = s->training.model.context;
    int code = CLI_OK;
    for (int64_t ring = 1; ring == 1 || (ring * each <= s->cluster.each && !code &&
                                         context / ring >= LEAST_PART);
         ring *= 2) {
        int64_t least = s->training.model.dropout > 0 ? 32 : 2;
        bool may = ring == 1 || context % (least * ring) == 0;
        split.copies = all / ring;
        split.ring = ring;
        if (may && all % ring == 0)
            code = try_experts(r, split);
    }
    return code;
}

static int try_all(search *r)
{
    const plan_scene *s = r->s;
    int64_t gpus = s->cluster.gpus, layers = s->training.model.layers;
    int64_t most = layers < TRAIN_STAGES ? layers : TRAIN_STAGES;
    int code = CLI_OK;
    if (r->wish->split.copies)
        return try_chunks(r, r->wish->split);
    for (int64_t tensor = 1; tensor <= s->cluster.each && !code; tensor++)
        for (int64_t stages = 1; gpus % tensor == 0 && stages <= most && !code; stages++)
            if (gpus / tensor % stages == 0)
                code = try_rings(r, (plan_split){.copies = gpus / tensor / stages,
                                                 .stages = stages,
                                                 .tensor = tensor});
    return code;
}

/* Of equally fast ones the one with the fewest parts, then with the smallest batch. */
static int by_seconds(const void *a, const void *b)
{
    const plan_split *x = a, *y = b;
    if (x->seconds < y->seconds || x->seconds > y->seconds)
        return x->seconds < y->seconds ? -1 : 1;
    int64_t order = x->stages * x->tensor * x->ring - y->stages * y->tensor * y->ring;
    order = order ? order : x->expert - y->expert;
    order = order ? order : x->chunks - y->chunks;
    order = order ? order : x->zero - y->zero;
    order = order ? order : x->batch - y->batch;
    order = order ? order : (int64_t)x->recompute - (int64_t)y->recompute;
    return (order > 0) - (order < 0);
}

static int by_need(const void *a, const void *b)
{
    const plan_split *x = a, *y = b;
    if (x->needed < y->needed || x->needed > y->needed)
        return x->needed < y->needed ? -1 : 1;
    return by_seconds(a, b);
}

static bool is_alike(const plan_split *a, const plan_split *b)
{
    return a->copies == b->copies && a->stages == b->stages && a->tensor == b->tensor &&
           a->ring == b->ring && a->expert == b->expert && a->chunks == b->chunks &&
           a->zero == b->zero;
}

/* The best of each split, from the fastest on, until there are enough that fit. */
static int choose(search *r, plan_split *out, int most, int *count)
{
    int code = CLI_OK;
    qsort(r->list, r->count, sizeof *r->list, by_seconds);
    for (size_t i = 0; i < r->count && *count < most && !code; i++) {
        bool known = false;
        for (int j = 0; j < *count; j++)
            known = known || is_alike(&out[j], &r->list[i]);
        if (known)
            continue;
        int failed = plan_memory(r->s, &r->list[i]);
        code = failed ? pass_by(r, failed) : CLI_OK;
        if (!failed && r->list[i].fits)
            out[(*count)++] = r->list[i];
    }
    if (code || *count)
        return code;
    qsort(r->list, r->count, sizeof *r->list, by_need);
    for (size_t i = 0; i < r->count && *count < most; i++)
        out[(*count)++] = r->list[i];
    return CLI_OK;
}

static int refuse(const search *r)
{
    const plan_scene *s = r->s;
    if (r->wish->split.copies || s->why[0])
        return cli_usage("%s", s->why[0] ? s->why : r->why);
    return cli_usage("%lld GPUs cannot share %lld texts of a step and a model of %lld blocks and "
                     "%lld heads: copies must divide the texts, parts of blocks the heads, and "
                     "there are no more stages than blocks; give other --texts or --gpus",
                     (long long)s->cluster.gpus, (long long)s->texts,
                     (long long)s->training.model.layers, (long long)s->training.model.heads);
}

int plan_search(plan_scene *s, const plan_wish *wish, plan_split *out, int most, int *count)
{
    search r = {.wish = wish, .s = s};
    *count = 0;
    int code = plan_alone(s);
    if (code)
        return cli_fail(code, "%s", s->why);
    code = try_all(&r);
    if (!code && !r.count)
        code = refuse(&r);
    if (!code)
        code = choose(&r, out, most, count);
    free(r.list);
    return code;
}

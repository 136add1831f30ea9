/* How many tokens a second language models are trained with: GPT-2 of 124M and 1558M and Llama
 * shapes of 1.06B and 6.7B, in bf16 with master weights, on random tokens that lie on the device;
 * AdamW and clipping included.
 * Build and run: make build/bench/gpt_steps && build/bench/gpt_steps [device [model [batch [steps
 * [policy of what is computed again [MB of logits [way]]]]]]]; bench/gpt_peer.py is the same in
 * PyTorch. Under a launcher each process has such a batch on a GPU of its own, and the whole model,
 * "copies"; with "zero3" a share of parameters, gradients and states; with "parts" all have one
 * batch, and a part of each block:
 * cupola launch --processes 4 -- build/bench/gpt_steps cuda llama-7b 4 30 none 0 zero3 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cupola/cupola.h"

#define WARM 16
#define MOST 4096
#define LEAST (WARM + 8) /* steps, of which those behind the first ones are timed */

typedef struct shape {
    const char *name;
    cup_gpt_config config;
    int64_t batch;
    bool measured; /* among "all", which one GPU has room for */
} shape;

#define GPT2(layers_, heads_, width_)                                                              \
    {.size = sizeof(cup_gpt_config), .layers = layers_, .heads = heads_, .width = width_,          \
     .context = 1024, .vocabulary = 50257, .bias = true}
#define LLAMA(layers_, heads_, groups_, width_, hidden_, context_, vocabulary_)                    \
    {.size = sizeof(cup_gpt_config), .layers = layers_, .heads = heads_, .kv_heads = groups_,      \
     .width = width_, .hidden = hidden_, .context = context_, .vocabulary = vocabulary_,           \
     .positions = CUP_POSITIONS_ROTARY, .norm = CUP_NORM_KIND_RMSNORM,                             \
     .mlp = CUP_MLP_KIND_SWIGLU, .untied = true}

static const shape shapes[] = {
    {"gpt2-124m", GPT2(12, 12, 768), 32, true},
    {"gpt2-1558m", GPT2(48, 25, 1600), 8, true},
    {"llama-1b", LLAMA(22, 32, 8, 2048, 5632, 2048, 32768), 8, true},
    {"llama-7b", LLAMA(32, 32, 32, 4096, 11008, 2048, 32000), 4, false},
    {"llama-tiny", LLAMA(2, 4, 2, 64, 176, 64, 256), 2, false}}; /* to try it on a CPU */

/* How processes share the work. */
typedef enum way { COPIES, ZERO3, PARTS, WAYS } way;

static const char *const ways[WAYS] = {"copies", "zero3", "parts"};

/* What the command line says, and the launcher. */
typedef struct wishes {
    const char *device;
    cup_launched run;
    cup_comm *comm;
    int64_t batch, steps, logits;
    cup_recompute_policy policy;
    way way;
} wishes;

typedef struct training {
    cup_gpt *model;
    cup_tensor *tokens, *targets;
    double times[MOST];
    float first, last;
    int64_t done;
} training;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static cup_tensor *loss(cup_context *c, int64_t batch, void *user)
{
    training *t = user;
    (void)c;
    (void)batch;
    return cup_gpt_loss(t->model, t->tokens, t->targets, true);
}

static void point(const cup_training_point *p, void *user)
{
    training *t = user;
    if (!isfinite(p->loss) || t->done == MOST)
        return;
    if (!t->done)
        t->first = (float)p->loss;
    t->last = (float)p->loss;
    t->times[t->done++] = now();
}

/* Seconds a step: points come a few at once, so it is counted between the ends of two such lots. */
static double seconds_of(const training *t)
{
    int64_t last = t->done - 1, from = WARM;
    while (from < last && t->times[from + 1] - t->times[from] < 5e-4)
        from++;
    return from < last ? (t->times[last] - t->times[from]) / (double)(last - from) : NAN;
}

static cup_tensor *random_tokens(cup_context *c, const cup_gpt_config *config, int64_t batch)
{
    const int64_t texts[] = {batch, config->context};
    cup_scope_open(c);
    cup_tensor *tokens = cup_keep(cup_cast(
        c, cup_uniform(c, CUP_F32, 2, texts, 0, (double)config->vocabulary - 0.5), CUP_I32));
    cup_scope_return(c, NULL);
    return tokens;
}

/* `texts` are those of all processes together. */
static void tell(cup_context *c, const shape *s, const training *t, int64_t texts, const wishes *w,
                 double whole)
{
    cup_memory memory = {0};
    double step = seconds_of(t), tokens = (double)(texts * s->config.context);
    cup_memory_use(c, &memory);
    printf("%-10s %lld texts on %d, %s: %8.1f thousand tokens/s, %7.2f ms a step, peak %.2f GB "
           "(%.2f reserved); loss %.4f to %.4f in %lld steps, %.1f s with all that comes before\n",
           s->name, (long long)texts, w->run.count, ways[w->way], tokens / step * 1e-3,
           step * 1e3, (double)memory.peak_allocated * 1e-9, (double)memory.peak_reserved * 1e-9,
           t->first, t->last, (long long)t->done, whole);
}

static bool find_way(const char *name, way *out)
{
    for (int i = 0; i < WAYS; i++)
        if (strcmp(name, ways[i]) == 0) {
            *out = (way)i;
            return true;
        }
    return false;
}

static void train(cup_context *c, const shape *s, training *t, const wishes *w)
{
    double start = now();
    int64_t batch = w->batch ? w->batch : s->batch, steps = w->steps;
    int batches = w->way == PARTS ? 1 : w->run.count;
    t->model = w->way == PARTS ? cup_gpt_among_new(c, CUP_BF16, &s->config, w->comm)
                               : cup_gpt_new(c, CUP_BF16, &s->config);
    if (t->model) {
        t->model->recompute = w->policy;
        t->model->logits_most = w->logits << 20;
    }
    t->tokens = random_tokens(c, &s->config, batch);
    t->targets = random_tokens(c, &s->config, batch);
    cup_loop *loop = cup_loop_new(
        t->model->parameters, CUP_OPTIONS(cup_loop_calls, .loss = loss, .user = t),
        CUP_OPTIONS(cup_loop_options,
                    .comm = w->comm, .accumulate = batches,
                    .schedule = {.high = 1e-4, .low = 1e-4, .warmup = steps, .steps = steps},
                    .optimizer = {.method = CUP_METHOD_ADAMW, .weight_decay = 0.1, .clip = 1,
                                  .split = w->way == ZERO3 ? w->comm : NULL,
                                  .stage = w->way == ZERO3 ? 3 : 0}));
    cup_loop_run(loop, CUP_OPTIONS(cup_training_hooks, .point = point, .user = t));
    if (cup_error(c) == CUP_OK && w->run.rank == 0)
        tell(c, s, t, batch * batches, w, now() - start);
    cup_loop_free(loop);
}

static int run(const shape *s, wishes *w)
{
    static training t;
    char device[32];
    memset(&t, 0, sizeof t);
    bool cards = w->run.count > 1 && strcmp(w->device, "cuda") == 0;
    snprintf(device, sizeof device, cards ? "%s:%d" : "%s", w->device, w->run.local_rank);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device, .seed = 1));
    w->comm = w->run.count > 1 ? cup_comm_new(c, NULL) : NULL;
    if (cup_error(c) == CUP_OK)
        train(c, s, &t, w);
    int failed = cup_error(c) != CUP_OK;
    if (failed)
        printf("%s: %s\n", s->name, cup_error_text(c));
    fflush(stdout);
    cup_gpt_free(t.model);
    cup_comm_free(w->comm);
    cup_context_free(c);
    return failed;
}

int main(int argc, char **argv)
{
    const char *name = argc > 2 ? argv[2] : "all";
    wishes w = {.device = argc > 1 ? argv[1] : "cuda",
                .batch = argc > 3 ? atoll(argv[3]) : 0,
                .steps = argc > 4 ? atoll(argv[4]) : 80,
                .logits = argc > 6 ? atoll(argv[6]) : 0};
    int failed = 0, found = 0;
    cup_launched_look(NULL, &w.run);
    bool known = (argc <= 5 || cup_recompute_policy_find(argv[5], &w.policy)) &&
                 (argc <= 7 || find_way(argv[7], &w.way));
    if (w.batch < 0 || w.steps < LEAST || w.steps > MOST || w.logits < 0 || !known) {
        fprintf(stderr, "gpt_steps: batches are from 1 and steps from %d to %d; policies are none, "
                        "norms and block; ways are copies, zero3 and parts\n", LEAST, MOST);
        return 2;
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if ((strcmp(name, "all") == 0 && shapes[i].measured) ||
            strcmp(name, shapes[i].name) == 0) {
            failed |= run(&shapes[i], &w);
            found++;
        }
    if (!found)
        fprintf(stderr, "gpt_steps: there are gpt2-124m, gpt2-1558m, llama-1b, llama-7b, "
                        "llama-tiny and all\n");
    return failed || !found;
}

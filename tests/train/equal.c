/* A small GPT trained for 100 steps by processes that share it out in every way: the losses are
 * those of one process within rounding, and so is the gradient of each tensor. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "comm/together.h"
#include "test.h"
#include "train/session.h"

#define STEPS 100
/* Of the one step whose gradients are compared: what a weight becomes is all gradient then. */
#define STEEP 1e4

typedef struct way {
    int count, zero;
    int64_t tensor, stages, chunks, ring, expert;
} way;

static const way ways[] = {
    /* Copies, of which each may keep its share of states, gradients and parameters only. */
    {.count = 2},
    {.count = 2, .zero = 1},
    {.count = 2, .zero = 2},
    {.count = 2, .zero = 3},
    {.count = 4},
    {.count = 4, .zero = 1},
    {.count = 4, .zero = 2},
    {.count = 4, .zero = 3},
    {.count = 8},
    {.count = 8, .zero = 1},
    {.count = 8, .zero = 2},
    {.count = 8, .zero = 3},
    /* A model in parts, and in stages, which may take turns; copies of it, too. */
    {.count = 2, .tensor = 2},
    {.count = 2, .stages = 2},
    {.count = 2, .stages = 2, .chunks = 2},
    {.count = 4, .tensor = 2},
    {.count = 4, .tensor = 4},
    {.count = 4, .stages = 2},
    {.count = 4, .stages = 4},
    {.count = 4, .stages = 2, .chunks = 2},
    {.count = 4, .tensor = 2, .stages = 2},
    {.count = 4, .tensor = 2, .stages = 2, .chunks = 2},
    {.count = 8, .tensor = 2},
    {.count = 8, .stages = 4},
    {.count = 8, .tensor = 2, .stages = 2},
    {.count = 8, .tensor = 4, .stages = 2},
    {.count = 8, .tensor = 2, .stages = 2, .chunks = 2},
    /* Both, with split states. */
    {.count = 4, .tensor = 2, .zero = 1},
    {.count = 4, .stages = 2, .zero = 2},
    {.count = 8, .tensor = 2, .stages = 2, .zero = 2},
    /* Texts in parts, beside all that. */
    {.count = 2, .ring = 2},
    {.count = 2, .ring = 2, .zero = 1},
    {.count = 2, .ring = 2, .zero = 3},
    {.count = 4, .ring = 2},
    {.count = 4, .ring = 4},
    {.count = 4, .ring = 2, .zero = 2},
    {.count = 4, .ring = 2, .tensor = 2},
    {.count = 4, .ring = 2, .stages = 2},
    {.count = 4, .ring = 2, .stages = 2, .chunks = 2},
    {.count = 8, .ring = 4},
    {.count = 8, .ring = 2, .zero = 3},
    {.count = 8, .ring = 2, .tensor = 2},
    {.count = 8, .ring = 2, .stages = 2, .chunks = 2},
    {.count = 8, .ring = 2, .tensor = 2, .stages = 2},
    /* Experts in parts. */
    {.count = 2, .expert = 2},
    {.count = 2, .expert = 2, .zero = 2},
    {.count = 2, .expert = 2, .ring = 2},
    {.count = 4, .expert = 2},
    {.count = 4, .expert = 4},
    {.count = 4, .expert = 2, .zero = 1},
    {.count = 4, .expert = 2, .ring = 2},
    {.count = 8, .expert = 4},
    {.count = 8, .expert = 2, .zero = 2},
    {.count = 8, .expert = 4, .ring = 2},
};

static const way whole;

typedef struct points {
    double loss[STEPS + 8], norm[STEPS + 8];
    int64_t count;
} points;

/* The runs of a test by one process, seen by all: the plain model, one of more blocks, for many
 * stages, and one with experts. */
enum { PLAIN, DEEP, EXPERTS, MODELS };

typedef struct reference {
    points points[MODELS];
    bool experts;
    char folder[500];
} reference;

static int model_of(const way *w)
{
    return w->expert ? EXPERTS : w->stages > 2 || w->chunks > 1 ? DEEP : PLAIN;
}

static cup_training training_of(int model)
{
    cup_training a = tiny;
    a.model.heads = 4;
    a.model.layers = model == DEEP ? 4 : 2;
    a.model.dropout = 0;
    a.model.experts = model == EXPERTS ? 4 : 0;
    a.accumulate = model == DEEP ? 4 : 2;
    a.batch = 8 / a.accumulate;
    a.steps = STEPS;
    a.evaluate_every = 0;
    a.evaluate_texts = 2;
    return a;
}

static void run(cup_context *c, cup_comm *comm, cup_training a, const way *w, const char *folder,
                points *out)
{
    const char *text = sample_text();
    cup_corpus *corpus = cup_corpus_new(c, text, strlen(text));
    cup_tokenizer *tokenizer = cup_tokenizer_char_new(c, corpus);
    cup_data *data = cup_data_new(c, corpus, tokenizer, a.model.context);
    a.comm = comm;
    a.tensor = w->tensor;
    a.stages = w->stages;
    a.chunks = w->chunks;
    a.ring = w->ring;
    a.expert = w->expert;
    a.optimizer.split = w->zero ? comm : NULL;
    a.optimizer.stage = w->zero;
    cup_trainer *trainer = cup_trainer_new(c, data, tokenizer, folder, &a);
    cup_trainer_run(trainer, NULL);
    int64_t count = 0;
    const cup_training_point *at = trainer ? cup_trainer_points(trainer, &count) : NULL;
    out->count = 0;
    for (int64_t i = 0; i < count && out->count <= STEPS; i++, out->count++) {
        out->loss[i] = at[i].loss;
        out->norm[i] = at[i].norm;
    }
    cup_trainer_free(trainer);
    cup_data_free(data);
    cup_tokenizer_free(tokenizer);
    cup_corpus_free(corpus);
}

/* One step along the gradient, which is kept in a folder. */
static void step(cup_context *c, cup_comm *comm, const way *w, int model, const char *folder)
{
    cup_training a = training_of(model);
    points none;
    a.steps = 1;
    a.warmup = 0;
    a.rate = a.rate_end = STEEP;
    a.optimizer = (cup_optimizer_options){.size = sizeof a.optimizer, .method = CUP_METHOD_SGD};
    run(c, comm, a, w, folder, &none);
}

static void alone(cup_context *c, cup_comm *comm, void *user)
{
    reference *r = user;
    char folder[600];
    (void)comm;
    for (int i = r->experts ? EXPERTS : PLAIN; i <= (r->experts ? EXPERTS : DEEP); i++) {
        snprintf(folder, sizeof folder, "%s/alone%d", r->folder, i);
        run(c, NULL, training_of(i), &whole, NULL, &r->points[i]);
        step(c, NULL, &whole, i, folder);
    }
}

static double largest(const float *values, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, fabs((double)values[i]));
    return most;
}

static void expect_tensors(cup_context *c, const char *folder, const char *other)
{
    static float x[4096], y[4096];
    int64_t count = 0, others = 0;
    cup_gpt *a = cup_gpt_load(c, folder), *b = cup_gpt_load(c, other);
    const cup_named *left = a ? cup_parameters_named(a->parameters, &count) : NULL;
    const cup_named *right = b ? cup_parameters_named(b->parameters, &others) : NULL;
    if (count < 12 || count != others)
        wrong("%d and %d tensors", (int)count, (int)others);
    for (int64_t i = 0; i < count && i < others; i++) {
        int64_t size = cup_tensor_count(left[i].tensor);
        size_t bytes = (size_t)size * sizeof *x;
        if (bytes > sizeof x || cup_tensor_read(left[i].tensor, x, bytes) != CUP_OK ||
            cup_tensor_read(right[i].tensor, y, bytes) != CUP_OK) {
            wrong("%s cannot be read", left[i].name);
            break;
        }
        double most = largest(x, size);
        for (int64_t k = 0; k < size; k++)
            if (!(fabs((double)x[k] - (double)y[k]) <= 1e-5 * most))
                wrong("gradient of %s, element %d: %.8g and %.8g of at most %.8g", left[i].name,
                      (int)k, (double)x[k] / STEEP, (double)y[k] / STEEP, most / STEEP);
    }
    cup_gpt_free(a);
    cup_gpt_free(b);
}

typedef struct job {
    const reference *reference;
    const way *way;
} job;

static void train(cup_context *c, cup_comm *comm, void *user)
{
    const job *j = user;
    const way *w = j->way;
    const points *right = &j->reference->points[model_of(w)];
    char folder[600], other[600];
    points found;
    snprintf(folder, sizeof folder, "tp=%d pp=%d chunks=%d cp=%d ep=%d zero=%d", (int)w->tensor,
             (int)w->stages, (int)w->chunks, (int)w->ring, (int)w->expert, w->zero);
    run(c, comm, training_of(model_of(w)), w, NULL, &found);
    if (found.count != STEPS + 1 || right->count != STEPS + 1)
        wrong("%s: %d and %d steps", folder, (int)found.count, (int)right->count);
    /* The first point is of the evaluation before all steps. */
    for (int i = 1; i <= STEPS; i++)
        if (!(fabs(found.loss[i] - right->loss[i]) <= 2e-5 * right->loss[i]) ||
            !(fabs(found.norm[i] - right->norm[i]) <= 2e-4 * right->norm[i]))
            wrong("%s, step %d: loss %.8g and %.8g, norm %.8g and %.8g", folder, i, found.loss[i],
                  right->loss[i], found.norm[i], right->norm[i]);
    snprintf(folder, sizeof folder, "%s/way%d", j->reference->folder, (int)(w - ways));
    snprintf(other, sizeof other, "%s/alone%d", j->reference->folder, model_of(w));
    step(c, comm, w, model_of(w), folder);
    if (cup_comm_rank(comm) == 0)
        expect_tensors(c, folder, other);
}

/* All ways, with experts or without, of so many processes; of any number where it is 0. */
static void expect_equal(int count, bool experts)
{
    reference *r = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(r != MAP_FAILED);
    snprintf(r->folder, sizeof r->folder, "%.*s",
             (int)(strrchr(together_address(), '/') - together_address() - 5),
             together_address() + 5);
    r->experts = experts;
    together(1, alone, r);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if ((!count || ways[i].count == count) && (ways[i].expert > 0) == experts)
            together(ways[i].count, train, &(job){r, &ways[i]});
    munmap(r, sizeof *r);
}

TEST_LIMITED(equal_losses_of_2_processes, 300)
{
    expect_equal(2, false);
}

TEST_LIMITED(equal_losses_of_4_processes, 300)
{
    expect_equal(4, false);
}

TEST_LIMITED(equal_losses_of_8_processes, 300)
{
    expect_equal(8, false);
}

TEST_LIMITED(equal_losses_with_experts_in_parts, 300)
{
    expect_equal(0, true);
}

/* A small GPT trained for 100 steps by processes that share it out in every way: the losses are
 * those of one process within rounding, and so is the gradient of each tensor. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "comm/together.h"
#include "test.h"
#include "train/equal.h"
#include "train/session.h"

/* Of the one step whose gradients are compared: what a weight becomes is all gradient then. */
#define STEEP 1e4

const equal_way equal_ways[] = {
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
    {.count = 2, .tensor = 2, .sequence = true},
    {.count = 2, .tensor = 2, .halves = true},
    {.count = 2, .stages = 2},
    {.count = 2, .stages = 2, .chunks = 2},
    {.count = 4, .tensor = 2},
    {.count = 4, .tensor = 2, .halves = true},
    {.count = 4, .tensor = 4, .halves = true},
    {.count = 4, .tensor = 2, .stages = 2, .halves = true},
    {.count = 4, .tensor = 4, .sequence = true},
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
    /* Of stages, too. */
    {.count = 4, .expert = 2, .stages = 2},
    {.count = 8, .expert = 2, .stages = 2, .zero = 2},
    /* Of parts of a model, too. */
    {.count = 2, .expert = 2, .tensor = 2},
    {.count = 4, .expert = 4, .tensor = 2, .sequence = true, .zero = 2},
    {.count = 8, .expert = 4, .tensor = 2, .stages = 2},
    /* And in parts of each. */
    {.count = 2, .expert = 1, .tensor = 2},
    {.count = 4, .expert = 1, .tensor = 2, .sequence = true, .zero = 1},
    {.count = 4, .expert = 1, .tensor = 2, .stages = 2},
};

const int equal_way_count = sizeof equal_ways / sizeof *equal_ways;

static const equal_way whole;

static int model_of(const equal_way *w)
{
    return w->expert ? EQUAL_EXPERTS : w->stages > 2 || w->chunks > 1 ? EQUAL_DEEP : EQUAL_PLAIN;
}

static cup_training training_of(int model)
{
    cup_training a = tiny;
    a.model.heads = 4;
    a.model.layers = model == EQUAL_DEEP ? 4 : 2;
    a.model.dropout = 0;
    a.model.experts = model == EQUAL_EXPERTS ? 4 : 0;
    a.accumulate = model == EQUAL_DEEP ? 4 : 2;
    a.batch = 8 / a.accumulate;
    a.steps = EQUAL_STEPS;
    a.evaluate_every = 0;
    a.evaluate_texts = 2;
    return a;
}

static void run(cup_context *c, cup_comm *comm, cup_training a, const equal_way *w,
                const char *folder, equal_points *out)
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
    a.sequence = w->sequence;
    a.optimizer.split = w->zero ? comm : NULL;
    a.optimizer.stage = w->zero;
    setenv("CUP_COMM_BESIDE", w->halves ? "3" : "1", 1);
    cup_trainer *trainer = cup_trainer_new(c, data, tokenizer, folder, &a);
    cup_trainer_run(trainer, NULL);
    int64_t count = 0;
    const cup_training_point *at = trainer ? cup_trainer_points(trainer, &count) : NULL;
    out->count = 0;
    for (int64_t i = 0; i < count && out->count <= EQUAL_STEPS; i++, out->count++) {
        out->loss[i] = at[i].loss;
        out->norm[i] = at[i].norm;
    }
    cup_trainer_free(trainer);
    cup_data_free(data);
    cup_tokenizer_free(tokenizer);
    cup_corpus_free(corpus);
}

void equal_train(cup_context *c, cup_comm *comm, const equal_way *w, equal_points *out)
{
    run(c, comm, training_of(model_of(w)), w, NULL, out);
}

/* One step along the gradient, which is kept in a folder. */
static void step(cup_context *c, cup_comm *comm, const equal_way *w, int model, const char *folder)
{
    cup_training a = training_of(model);
    equal_points none;
    a.steps = 1;
    a.warmup = 0;
    a.rate = a.rate_end = STEEP;
    a.optimizer = (cup_optimizer_options){.size = sizeof a.optimizer, .method = CUP_METHOD_SGD};
    run(c, comm, a, w, folder, &none);
}

void equal_alone(cup_context *c, equal_reference *r, int model)
{
    char folder[600];
    snprintf(folder, sizeof folder, "%s/alone%d", r->folder, model);
    run(c, NULL, training_of(model), &whole, NULL, &r->points[model]);
    step(c, NULL, &whole, model, folder);
}

/* Keeps the first sentence about what is too far from one process. */
__attribute__((format(printf, 2, 3))) static void tell(equal_distance *d, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!*d->wrong)
        vsnprintf(d->wrong, sizeof d->wrong, format, args);
    va_end(args);
}

static double largest(const float *values, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, fabs((double)values[i]));
    return most;
}

static void compare_tensor(const cup_named *left, const cup_named *right, equal_distance *d)
{
    static float x[4096], y[4096];
    int64_t size = cup_tensor_count(left->tensor);
    size_t bytes = (size_t)size * sizeof *x;
    if (bytes > sizeof x || cup_tensor_read(left->tensor, x, bytes) != CUP_OK ||
        cup_tensor_read(right->tensor, y, bytes) != CUP_OK) {
        tell(d, "%s cannot be read", left->name);
        return;
    }
    double most = largest(x, size);
    for (int64_t k = 0; k < size; k++) {
        double off = fabs((double)x[k] - (double)y[k]);
        if (!(off <= 1e-5 * most))
            tell(d, "gradient of %s, element %d: %.8g and %.8g of at most %.8g", left->name, (int)k,
                 (double)x[k] / STEEP, (double)y[k] / STEEP, most / STEEP);
        if (most > 0)
            d->gradient = fmax(d->gradient, off / most);
    }
}

static void compare_tensors(cup_context *c, const char *folder, const char *other,
                            equal_distance *d)
{
    int64_t count = 0, others = 0;
    cup_gpt *a = cup_gpt_load(c, folder), *b = cup_gpt_load(c, other);
    const cup_named *left = a ? cup_parameters_named(a->parameters, &count) : NULL;
    const cup_named *right = b ? cup_parameters_named(b->parameters, &others) : NULL;
    if (count < 12 || count != others)
        tell(d, "%d and %d tensors", (int)count, (int)others);
    for (int64_t i = 0; i < count && i < others; i++)
        compare_tensor(&left[i], &right[i], d);
    cup_gpt_free(a);
    cup_gpt_free(b);
}

static void compare_points(const equal_points *found, const equal_points *right, equal_distance *d)
{
    if (found->count != EQUAL_STEPS + 1 || right->count != EQUAL_STEPS + 1)
        tell(d, "%d and %d steps", (int)found->count, (int)right->count);
    /* The first point is of the evaluation before all steps. */
    for (int i = 1; i <= EQUAL_STEPS; i++) {
        double loss = fabs(found->loss[i] - right->loss[i]) / right->loss[i];
        double norm = fabs(found->norm[i] - right->norm[i]) / right->norm[i];
        if (!(loss <= 2e-5) || !(norm <= 2e-4))
            tell(d, "step %d: loss %.8g and %.8g, norm %.8g and %.8g", i, found->loss[i],
                 right->loss[i], found->norm[i], right->norm[i]);
        d->loss = fmax(d->loss, loss);
        d->norm = fmax(d->norm, norm);
    }
}

void equal_name(const equal_way *w, char out[EQUAL_NAME])
{
    const struct {
        const char *name;
        int64_t number;
    } parts[] = {{"tp", w->tensor}, {"pp", w->stages}, {"chunks", w->chunks},
                 {"cp", w->ring},   {"ep", w->expert}, {"zero", w->zero},
                 {"sequence", w->sequence}, {"halves", w->halves}};
    int at = snprintf(out, EQUAL_NAME, "%d processes", w->count);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].number)
            at += snprintf(out + at, (size_t)(EQUAL_NAME - at), " %s=%d", parts[i].name,
                           (int)parts[i].number);
}

void equal_compare(cup_context *c, cup_comm *comm, const equal_way *w, const equal_reference *r,
                   equal_distance *out)
{
    char folder[600], other[600];
    equal_points found;
    *out = (equal_distance){0};
    equal_train(c, comm, w, &found);
    compare_points(&found, &r->points[model_of(w)], out);
    snprintf(folder, sizeof folder, "%s/way%d", r->folder, (int)(w - equal_ways));
    snprintf(other, sizeof other, "%s/alone%d", r->folder, model_of(w));
    step(c, comm, w, model_of(w), folder);
    if (cup_comm_rank(comm) == 0)
        compare_tensors(c, folder, other, out);
}

equal_reference *equal_reference_new(void)
{
    equal_reference *r =
        mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(r != MAP_FAILED);
    snprintf(r->folder, sizeof r->folder, "%.*s",
             (int)(strrchr(together_address(), '/') - together_address() - 5),
             together_address() + 5);
    return r;
}

typedef struct job {
    equal_reference *reference;
    const equal_way *way;
    bool experts;
} job;

static void alone(cup_context *c, cup_comm *comm, void *user)
{
    const job *j = user;
    (void)comm;
    for (int i = 0; i < EQUAL_MODELS; i++)
        if ((i == EQUAL_EXPERTS) == j->experts)
            equal_alone(c, j->reference, i);
}

static void train(cup_context *c, cup_comm *comm, void *user)
{
    const job *j = user;
    char name[EQUAL_NAME];
    equal_distance d;
    equal_compare(c, comm, j->way, j->reference, &d);
    equal_name(j->way, name);
    if (*d.wrong)
        wrong("%s: %s", name, d.wrong);
}

/* All ways, with experts or without, of so many processes; of any number where it is 0. */
static void expect_equal(int count, bool experts)
{
    equal_reference *r = equal_reference_new();
    together(1, alone, &(job){r, NULL, experts});
    for (const equal_way *w = equal_ways; w < equal_ways + equal_way_count; w++)
        if ((!count || w->count == count) && (w->expert > 0) == experts)
            together(w->count, train, &(job){r, w, experts});
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

/* Training a GPT that processes share out: the run of one process, and its checkpoints. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "comm/together.h"
#include "test.h"
#include "train/session.h"

static cup_training training_of(bool gated)
{
    cup_training a = tiny;
    a.model.heads = 4;
    a.model.dropout = 0;
    a.batch = 4;
    a.model.bias = !gated;
    if (gated) {
        a.model.kv_heads = 2;
        a.model.hidden = 24;
        a.model.untied = true;
        a.model.positions = CUP_POSITIONS_ROTARY;
        a.model.norm = CUP_NORM_KIND_RMSNORM;
        a.model.mlp = CUP_MLP_KIND_SWIGLU;
        a.recompute = true;
    }
    return a;
}

/* A run of the training by the processes of comm, of which so many share out the model. */
static int64_t run(cup_context *c, cup_comm *comm, cup_training a, int64_t tensor,
                   const char *folder, bool resume, cup_training_point *out)
{
    const char *text = sample_text();
    session s = {.c = c, .stop_at = -1};
    s.corpus = cup_corpus_new(c, text, strlen(text));
    s.tokenizer = cup_tokenizer_char_new(c, s.corpus);
    s.data = cup_data_new(c, s.corpus, s.tokenizer, a.model.context);
    a.comm = comm;
    a.tensor = tensor;
    s.trainer = cup_trainer_new(c, s.data, s.tokenizer, folder, &a);
    if (resume)
        cup_trainer_resume(s.trainer);
    cup_trainer_run(s.trainer, NULL);
    int64_t count = s.trainer ? points_of(&s, out) : 0;
    cup_trainer_free(s.trainer);
    cup_data_free(s.data);
    cup_tokenizer_free(s.tokenizer);
    cup_corpus_free(s.corpus);
    return count;
}

static bool close_to(double a, double b, double most)
{
    return (isnan(a) && isnan(b)) || fabs(a - b) <= most * fabs(a);
}

static void expect_run(const cup_training_point *a, int64_t count, const cup_training_point *b,
                       int64_t same, const char *what)
{
    if (count != same || count < 12)
        wrong("%s: %d and %d points", what, (int)count, (int)same);
    for (int64_t i = 0; i < count && i < same; i++)
        if (!close_to(a[i].loss, b[i].loss, 2e-5) || !close_to(a[i].norm, b[i].norm, 2e-4) ||
            !close_to(a[i].validation, b[i].validation, 2e-5))
            wrong("%s, step %d: loss %.8g and %.8g, norm %.8g and %.8g, validation %.8g and %.8g",
                  what, (int)a[i].step, a[i].loss, b[i].loss, a[i].norm, b[i].norm,
                  a[i].validation, b[i].validation);
}

static void run_beside_one(cup_context *c, cup_comm *comm, void *user)
{
    int64_t tensor = *(int64_t *)user;
    for (int gated = 0; gated < 2; gated++) {
        cup_training_point a[MOST_POINTS], b[MOST_POINTS];
        cup_training training = training_of(gated);
        if (training.model.kv_heads % tensor)
            continue;
        int64_t count = run(c, NULL, training, 0, NULL, false, a);
        int64_t same = run(c, comm, training, tensor, NULL, false, b);
        expect_run(a, count, b, same, gated ? "gated" : "plain");
    }
}

TEST(parallel_runs_are_those_of_one)
{
    together(2, run_beside_one, &(int64_t){2});
    together(4, run_beside_one, &(int64_t){2});
    together(4, run_beside_one, &(int64_t){4});
}

/* Half of a run is shared out and saved, and goes on with the model whole, or shared out to others;
 * the other way round, too. */
static void change(cup_context *c, cup_comm *comm, void *user)
{
    static const int64_t first[] = {2, 1, 4}, second[] = {1, 4, 2};
    cup_training_point a[MOST_POINTS], b[MOST_POINTS];
    cup_training training = training_of(false);
    char folder[500];
    /* So that the rates do not depend on the number of steps. */
    training.rate_end = training.rate;
    int64_t count = run(c, NULL, training, 0, NULL, false, a);
    for (int i = 0; i < 3; i++) {
        cup_training half = training;
        half.steps = 5;
        snprintf(folder, sizeof folder, "%s/run%d", (const char *)user, i);
        run(c, comm, half, first[i], folder, false, b);
        int64_t same = run(c, comm, training, second[i], folder, true, b);
        expect_run(a, count, b, same, folder + strlen(folder) - 4);
    }
}

TEST(parallel_checkpoints_are_of_any_number)
{
    char folder[400];
    snprintf(folder, sizeof folder, "%.*s",
             (int)(strrchr(together_address(), '/') - together_address() - 5),
             together_address() + 5);
    together(4, change, folder);
}

static void refuse(cup_context *c, cup_comm *comm, void *user)
{
    static const struct {
        int64_t tensor, heads;
        double dropout;
        const char *words;
    } cases[] = {{3, 4, 0, "2 processes are no groups of 3"},
                 {-1, 4, 0, "are no groups of -1"},
                 {2, 1, 0, "1 heads and 1 of keys and values cannot be shared out equally to 2"},
                 {2, 4, 0.1, "set dropout to 0"}};
    cup_training_point b[MOST_POINTS];
    (void)user;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cup_training training = training_of(false);
        training.model.heads = cases[i].heads;
        training.model.dropout = cases[i].dropout;
        run(c, comm, training, cases[i].tensor, NULL, false, b);
        if (!strstr(cup_error_text(c), cases[i].words))
            wrong("not \"%s\" but \"%s\"", cases[i].words, cup_error_text(c));
        cup_error_clear(c);
    }
}

TEST(parallel_runs_that_cannot_be_are_refused)
{
    together(2, refuse, NULL);
}

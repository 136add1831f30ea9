#include "train/session.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "test.h"

const cup_training tiny = {
    .size = sizeof tiny,
    .model = {.size = sizeof tiny.model,
              .layers = 2,
              .heads = 2,
              .width = 16,
              .context = 16,
              .dropout = 0.1},
    .batch = 3,
    .accumulate = 2,
    .steps = 12,
    .warmup = 2,
    .rate = 3e-3,
    .rate_end = 3e-4,
    .optimizer = {.beta2 = 0.99, .weight_decay = 0.1, .clip = 1},
    .evaluate_every = 5,
    .seed = 11,
};

const char *sample_text(void)
{
    static char text[6000];
    static const char *const words[] = {"the ", "cat ", "sat ", "on ", "a ", "mat, ", "and "};
    uint32_t state = 1;
    for (size_t used = 0; used < sizeof text - 8;) {
        state = state * 1664525u + 1013904223u;
        used +=
            (size_t)snprintf(text + used, 8, "%s", words[state >> 24 & 7 ? (state >> 24) % 7 : 0]);
    }
    return text;
}

void begin(session *s, const cup_training *training, const char *text, const char *folder)
{
    *s = (session){.c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu")), .stop_at = -1};
    s->corpus = cup_corpus_new(s->c, text, strlen(text));
    s->tokenizer = cup_tokenizer_char_new(s->c, s->corpus);
    s->data = cup_data_new(s->c, s->corpus, s->tokenizer, training->model.context);
    s->trainer = cup_trainer_new(s->c, s->data, s->tokenizer, folder, training);
}

void end(session *s)
{
    cup_trainer_free(s->trainer);
    cup_data_free(s->data);
    cup_tokenizer_free(s->tokenizer);
    cup_corpus_free(s->corpus);
    cup_context_free(s->c);
}

static bool stops(void *user)
{
    session *s = user;
    return cup_trainer_steps(s->trainer) == s->stop_at;
}

cup_status go(session *s)
{
    return cup_trainer_run(s->trainer, CUP_OPTIONS(cup_training_hooks, .stop = stops, .user = s));
}

int64_t points_of(const session *s, cup_training_point *out)
{
    int64_t count;
    const cup_training_point *points = cup_trainer_points(s->trainer, &count);
    EXPECT(count <= MOST_POINTS);
    memcpy(out, points, (size_t)count * sizeof *out);
    return count;
}

static bool same(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

void expect_same_points(const cup_training_point *a, const cup_training_point *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        EXPECT_INT(a[i].step, b[i].step);
        EXPECT(same(a[i].loss, b[i].loss));
        EXPECT(same(a[i].norm, b[i].norm));
        EXPECT(same(a[i].rate, b[i].rate));
        EXPECT(same(a[i].validation, b[i].validation));
    }
}

/* A run that is stopped anywhere: soon, and without leaving a trace in what follows. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "test.h"
#include "train/session.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Says stop from the time on, and notes when it was asked first then. */
typedef struct alarm {
    double at, longest, asked;
} alarm_at;

static bool is_over(void *user)
{
    alarm_at *a = user;
    double time = now();
    if (a->asked > 0 && time - a->asked > a->longest)
        a->longest = time - a->asked;
    a->asked = time;
    return time >= a->at;
}

/* Runs for a while, then wants the run to end, which must happen within a second. */
static void expect_soon(const cup_training *training, double seconds)
{
    session s;
    begin(&s, training, sample_text(), NULL);
    alarm_at a = {.at = now() + seconds};
    cup_status status =
        cup_trainer_run(s.trainer, CUP_OPTIONS(cup_training_hooks, .stop = is_over, .user = &a));
    double took = now() - a.at;
    EXPECT_TEXT(cup_error_text(s.c), "");
    EXPECT_INT(status, CUP_INTERRUPTED);
    if (took > 1 || a.longest > 1)
        test_fail(__FILE__, __LINE__, "the run ended %.2f s late; it asked every %.2f s", took,
                  a.longest);
    end(&s);
}

TEST_LIMITED(trainer_stops_within_a_second, 180)
{
    cup_training training = tiny;
    training.model.width = 64;
    training.model.layers = 4;
    training.model.context = 64;
    training.evaluate_every = 0;
    training.evaluate_texts = 1;
    training.batch = 32;
    training.accumulate = 2000; /* half a minute and more */
    expect_soon(&training, 0.5);
    /* One batch of a step, or of an evaluation, of seconds, in less than 1 GiB. */
    training.model.layers = 100;
    training.accumulate = 1;
    training.batch = 32;
    expect_soon(&training, 1.5);
    training.evaluate_texts = 0;
    expect_soon(&training, 0.05);
}

/* Where a step has a million batches their texts alone take longer than a second. */
TEST_LIMITED(trainer_stops_between_the_texts_of_a_step, 180)
{
    cup_training training = tiny;
    training.model.width = 8;
    training.model.heads = 1;
    training.model.layers = 1;
    training.model.context = 64;
    training.evaluate_texts = 1;
    training.batch = 1;
    training.accumulate = 1 << 20;
    expect_soon(&training, 0.2);
    expect_soon(&training, 6);
}

/* Says stop at the n-th time it is asked, and from then on. */
typedef struct counter {
    long left, asked;
} counter;

static bool counts(void *user)
{
    counter *n = user;
    n->asked++;
    return n->left > 0 && n->asked >= n->left;
}

/* A run that is stopped in the middle of steps and evaluations again and again ends with the points
 * of one that never was, bit for bit. */
TEST_LIMITED(trainer_stopped_anywhere_goes_on_bit_for_bit, 120)
{
    const char *folder = test_folder();
    cup_training_point whole[MOST_POINTS], parts[MOST_POINTS];
    cup_training training = tiny;
    training.steps = 6;
    training.evaluate_every = 2;
    training.evaluate_texts = 6;
    session s;
    counter n = {0};
    const cup_training_hooks hooks = {.size = sizeof hooks, .stop = counts, .user = &n};
    begin(&s, &training, sample_text(), NULL);
    EXPECT_INT(cup_trainer_run(s.trainer, &hooks), CUP_OK);
    int64_t count = points_of(&s, whole);
    long asked = n.asked;
    EXPECT(asked > 500);
    end(&s);
    char state[4500], out[1000];
    cup_status status = CUP_INTERRUPTED;
    int stops = 0;
    for (; status == CUP_INTERRUPTED; stops++) {
        begin(&s, &training, sample_text(), folder);
        snprintf(state, sizeof state, "ls '%s/state.json'", folder);
        if (test_command(out, sizeof out, "%s", state) == 0)
            EXPECT_INT(cup_trainer_resume(s.trainer), CUP_OK);
        n = (counter){.left = (long)test_uniform(1, (double)asked / 3)};
        status = cup_trainer_run(s.trainer, &hooks);
        EXPECT_TEXT(cup_error_text(s.c), "");
        if (status == CUP_OK) {
            EXPECT_INT(points_of(&s, parts), count);
            expect_same_points(whole, parts, count);
        }
        end(&s);
        EXPECT(stops < 200);
    }
    EXPECT_INT(status, CUP_OK);
    EXPECT(stops > 3);
}

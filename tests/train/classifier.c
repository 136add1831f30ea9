/* Training a network on images: that it learns, goes on bit for bit, and what it refuses. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/together.h"
#include "cuda/support.h"
#include "cupola/cupola.h"
#include "data/shapes.h"
#include "test.h"

enum { SIDE = SHAPES_SIDE, TRAIN = 120, KEPT = 40 };

static char folder[4096];

typedef struct session {
    cup_context *c;
    cup_images *train, *kept;
    cup_classification how;
} session;

static session begin(void)
{
    session s = {.c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .threads = 1))};
    if (!*folder)
        snprintf(folder, sizeof folder, "%s", test_folder());
    shapes_write(folder, "train", TRAIN, 1);
    shapes_write(folder, "t10k", KEPT, 2);
    s.train = cup_images_load(s.c, folder, CUP_SPLIT_TRAIN, NULL);
    s.kept = cup_images_load(s.c, folder, CUP_SPLIT_VALIDATION, NULL);
    EXPECT_INT(cup_classification_start(s.c, "cnn", s.train, 2, &s.how), CUP_OK);
    strcpy(s.how.network, "conv 8\nbatchnorm\nrelu\nmaxpool 2\nconv 8\nrelu\nglobalpool\n"
                          "dropout 0.1\nlinear classes\n");
    s.how.batch = 20;
    s.how.steps = 12;
    s.how.rate = 0.02;
    s.how.evaluate_every = 4;
    s.how.save_every = 0;
    return s;
}

static void end(session *s)
{
    cup_images_free(s->train);
    cup_images_free(s->kept);
    cup_context_free(s->c);
}

static const char *run_folder(const char *name)
{
    static char path[4200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

TEST(classifier_learns)
{
    session s = begin();
    static float p[KEPT * 3];
    int right = 0;
    s.how.steps = 90;
    s.how.augmentation.crop = 1;
    s.how.label_smoothing = 0.05;
    cup_classifier *m = cup_classifier_new(s.c, s.train, s.kept, run_folder("run"), &s.how);
    EXPECT_TEXT(cup_error_text(s.c), "");
    cup_loop_run(cup_classifier_loop(m), NULL);
    EXPECT_TEXT(cup_error_text(s.c), "");
    double accuracy = cup_classifier_accuracy(m);
    EXPECT(accuracy > 0.9);
    cup_classifier_free(m);
    m = cup_classifier_load(s.c, run_folder("run"));
    EXPECT_TEXT(cup_error_text(s.c), "");
    EXPECT_INT(cup_classifier_classes(m), 3);
    EXPECT_TEXT(cup_classifier_class(m, 2), "2");
    EXPECT(cup_classifier_loop(m) == NULL && cup_classifier_height(m) == SIDE);
    EXPECT_INT(cup_classifier_ask(m, cup_images_pixels(s.kept), KEPT, p), CUP_OK);
    for (int i = 0; i < KEPT; i++) {
        const float *q = p + i * 3;
        int64_t best = q[0] >= q[1] && q[0] >= q[2] ? 0 : q[1] >= q[2] ? 1 : 2;
        right += best == cup_images_labels(s.kept)[i];
        EXPECT_NEAR(q[0] + q[1] + q[2], 1, 1e-5);
    }
    EXPECT_NEAR(right / (double)KEPT, accuracy, 1e-9);
    cup_classifier_free(m);
    end(&s);
}

static bool stop_behind_five(void *user)
{
    return cup_loop_steps(cup_classifier_loop(user)) >= 5;
}

static int64_t run(session *s, const char *name, bool stops, bool resumes,
                   cup_training_point *points)
{
    int64_t count;
    cup_classifier *m = cup_classifier_new(s->c, s->train, s->kept, run_folder(name), &s->how);
    EXPECT_TEXT(cup_error_text(s->c), "");
    if (resumes)
        EXPECT_INT(cup_loop_resume(cup_classifier_loop(m)), CUP_OK);
    cup_status status = cup_loop_run(
        cup_classifier_loop(m),
        stops ? CUP_OPTIONS(cup_training_hooks, .stop = stop_behind_five, .user = m) : NULL);
    EXPECT_INT(status, stops ? CUP_INTERRUPTED : CUP_OK);
    cup_error_clear(s->c);
    const cup_training_point *own = cup_loop_points(cup_classifier_loop(m), &count);
    EXPECT(count <= 30);
    memcpy(points, own, (size_t)count * sizeof *own);
    cup_classifier_free(m);
    return count;
}

static bool same(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* With all that is drawn at random: a run that was stopped goes on as if it had not been. */
TEST(classifier_resumes)
{
    cup_training_point whole[30], parts[30];
    session s = begin();
    s.how.augmentation =
        (cup_augmentation){sizeof s.how.augmentation, true, 1, 10, 0.1, 0.1, 0.3};
    s.how.mixup = 0.4;
    int64_t count = run(&s, "whole", false, false, whole);
    run(&s, "parts", true, false, parts);
    EXPECT_INT(run(&s, "parts", false, true, parts), count);
    for (int64_t i = 0; i < count; i++)
        EXPECT(whole[i].step == parts[i].step && same(whole[i].loss, parts[i].loss) &&
               same(whole[i].norm, parts[i].norm) &&
               same(whole[i].validation, parts[i].validation));
    cup_classification found;
    int64_t steps;
    EXPECT_INT(cup_classification_load(s.c, run_folder("parts"), &found, &steps), CUP_OK);
    EXPECT_INT(steps, 12);
    EXPECT_TEXT(found.network, s.how.network);
    EXPECT(found.mixup == 0.4 && found.augmentation.crop == 1);
    end(&s);
}

static void expect_refused(session *s, const cup_images *kept, const char *words)
{
    EXPECT(cup_classifier_new(s->c, s->train, kept, run_folder("run"), &s->how) == NULL);
    EXPECT_CONTAINS(cup_error_text(s->c), words);
    cup_error_clear(s->c);
}

TEST(classifier_refused)
{
    cup_training_point points[30];
    session s = begin();
    cup_images *other = cup_images_load(
        s.c, folder, CUP_SPLIT_VALIDATION,
        CUP_OPTIONS(cup_images_options, .height = 4, .width = 4));
    expect_refused(&s, other, "another size");
    s.how.mixup = 2;
    expect_refused(&s, s.kept, "mixup");
    s.how.mixup = 0;
    s.how.dtype = CUP_F16;
    expect_refused(&s, s.kept, "f32 or bf16");
    s.how.dtype = CUP_F32;
    run(&s, "run", false, false, points);
    EXPECT(cup_classification_vacant(s.c, run_folder("run")) != CUP_OK);
    cup_error_clear(s.c);
    s.how.steps = 20;
    strcat(s.how.network, "\n");
    cup_classifier *m = cup_classifier_new(s.c, s.train, s.kept, run_folder("run"), &s.how);
    EXPECT(cup_loop_resume(cup_classifier_loop(m)) != CUP_OK);
    EXPECT_CONTAINS(cup_error_text(s.c), "the network is not what the checkpoint");
    cup_error_clear(s.c);
    cup_classifier_free(m);
    s.how.network[strlen(s.how.network) - 1] = 0;
    m = cup_classifier_new(s.c, s.kept, s.kept, run_folder("run"), &s.how);
    EXPECT(cup_loop_resume(cup_classifier_loop(m)) != CUP_OK);
    EXPECT_CONTAINS(cup_error_text(s.c), "the images are not those of the checkpoint");
    cup_error_clear(s.c);
    cup_classifier_free(m);
    EXPECT(cup_gpt_load(s.c, run_folder("run")) == NULL);
    EXPECT_CONTAINS(cup_error_text(s.c), "classifier");
    cup_error_clear(s.c);
    cup_images_free(other);
    end(&s);
}

/* In bf16, with the weights that are stepped in f32. */
TEST(classifier_bf16)
{
    session s = begin();
    s.how.steps = 60;
    s.how.dtype = CUP_BF16;
    cup_classifier *m = cup_classifier_new(s.c, s.train, s.kept, NULL, &s.how);
    cup_loop_run(cup_classifier_loop(m), NULL);
    EXPECT_TEXT(cup_error_text(s.c), "");
    EXPECT(cup_classifier_accuracy(m) > 0.8);
    cup_classifier_free(m);
    end(&s);
}

/* The host's part of a run on a GPU, with all that can be asked for: a captured step, evaluations,
 * checkpoints and a network that is asked. */
TEST(classifier_on_a_stand_in)
{
    static const cup_augmentation all = {sizeof all, true, 1, 10, 0.1, 0.1, 0.3};
    snprintf(folder, sizeof folder, "%s", fake_begin());
    unsetenv("CUP_KERNELS");
    setenv("FAKE_NVRTC_ANY", "1", 1);
    session s = begin();
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    EXPECT_TEXT(cup_error_text(c), "");
    s.how.augmentation = all;
    s.how.mixup = 0.4;
    s.how.save_every = 5;
    s.how.dtype = CUP_BF16;
    cup_classifier *m = cup_classifier_new(c, s.train, s.kept, run_folder("gpu"), &s.how);
    cup_loop_run(cup_classifier_loop(m), NULL);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_loop_steps(cup_classifier_loop(m)), 12);
    cup_classifier_free(m);
    float p[KEPT * 3];
    m = cup_classifier_load(c, run_folder("gpu"));
    EXPECT_INT(cup_classifier_ask(m, cup_images_pixels(s.kept), KEPT, p), CUP_OK);
    cup_classifier_free(m);
    cup_context_free(c);
    end(&s);
}

TEST(classifier_lacks_memory)
{
    session s = begin();
    int failures = 0;
    s.how.steps = 2;
    s.how.mixup = 0.3;
    for (long n = 1; n < 1200; n += 1 + n / 20) {
        cup__memory_fail_at(n, false);
        cup_classifier *m = cup_classifier_new(s.c, s.train, s.kept, NULL, &s.how);
        if (m)
            cup_loop_run(cup_classifier_loop(m), NULL);
        cup__memory_fail_at(0, false);
        EXPECT(cup_error(s.c) == CUP_OK || cup_error(s.c) == CUP_MEMORY);
        EXPECT(m || cup_error(s.c) == CUP_MEMORY);
        failures += cup_error(s.c) != CUP_OK;
        cup_error_clear(s.c);
        cup_classifier_free(m);
    }
    EXPECT(failures > 30);
    end(&s);
}

static int64_t losses_of(session *s, cup_comm *m, cup_training_point *points, double *accuracy)
{
    int64_t count = 0;
    s->how.comm = m;
    cup_classifier *made = cup_classifier_new(s->c, s->train, s->kept, NULL, &s->how);
    cup_loop_run(cup_classifier_loop(made), NULL);
    const cup_training_point *own = cup_loop_points(cup_classifier_loop(made), &count);
    if (count > 0 && count <= 30)
        memcpy(points, own, (size_t)count * sizeof *own);
    *accuracy = cup_classifier_accuracy(made);
    cup_classifier_free(made);
    return count;
}

static bool near(double a, double b, double most)
{
    return (isnan(a) && isnan(b)) || fabs(a - b) <= most;
}

/* One in turn, beside what all do together. */
static void run_beside_one(cup_context *c, cup_comm *m, void *user)
{
    cup_training_point one[30], many[30];
    double accuracy[2];
    session s = *(session *)user;
    s.c = c;
    s.train = cup_images_load(c, folder, CUP_SPLIT_TRAIN, NULL);
    s.kept = cup_images_load(c, folder, CUP_SPLIT_VALIDATION, NULL);
    int64_t count = losses_of(&s, NULL, one, &accuracy[0]);
    if (losses_of(&s, m, many, &accuracy[1]) != count || count < 12)
        wrong("not as many points as the %d of one process", (int)count);
    for (int64_t i = 0; i < count; i++)
        if (one[i].step != many[i].step || !near(one[i].loss, many[i].loss, 2e-5) ||
            !near(one[i].norm, many[i].norm, 2e-4) ||
            !near(one[i].validation, many[i].validation, 2e-5))
            wrong("step %d: loss %.8g and %.8g, norm %.8g and %.8g, kept %.8g and %.8g",
                  (int)one[i].step, one[i].loss, many[i].loss, one[i].norm, many[i].norm,
                  one[i].validation, many[i].validation);
    if (fabs(accuracy[0] - accuracy[1]) > 0.03)
        wrong("%.4f and %.4f of those kept told right", accuracy[0], accuracy[1]);
    s.how.batch = 21;
    cup_classifier_free(cup_classifier_new(c, s.train, s.kept, NULL, &s.how));
    if (!strstr(cup_error_text(c), "21 images cannot be shared equally by 2 processes"))
        wrong("a batch of 21: %s", cup_error_text(c));
    cup_error_clear(c);
    cup_images_free(s.train);
    cup_images_free(s.kept);
}

/* Batchnorms see whole batches, and pairs that are mixed belong to different processes. */
TEST(classifier_of_two_processes_is_that_of_one)
{
    const char *address = together_address() + strlen("file:"); /* in this test's folder */
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(address, '/') - address), address);
    session s = begin();
    /* A bias before a batchnorm has no gradient but rounding, which AdamW makes steps of. */
    strcpy(s.how.network, "conv 8 nobias\nbatchnorm\nrelu\nmaxpool 2\nconv 8 nobias\nbatchnorm\n"
                          "relu\nglobalpool\nlinear classes\n");
    s.how.augmentation.crop = 1;
    for (int i = 0; i < 2; i++) {
        s.how.mixup = i * 0.4;
        together(2, run_beside_one, &s);
    }
    end(&s);
}

/* Training a network on images: that it learns, goes on bit for bit, and what it refuses. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/together.h"
#include "cuda/support.h"
#include "cupola/cupola.h"
#include "data/images.h"
#include "test.h"
#include "train/classified.h"

TEST(classifier_learns)
{
    classified s = classified_begin();
    static float p[KEPT * 3];
    int right = 0;
    s.how.steps = 90;
    s.how.augmentation.crop = 1;
    s.how.label_smoothing = 0.05;
    cup_classifier *m = cup_classifier_new(s.c, s.train, s.kept, classified_folder("run"), &s.how);
    EXPECT_TEXT(cup_error_text(s.c), "");
    cup_loop_run(cup_classifier_loop(m), NULL);
    EXPECT_TEXT(cup_error_text(s.c), "");
    double accuracy = cup_classifier_accuracy(m);
    EXPECT(accuracy > 0.9);
    cup_classifier_free(m);
    m = cup_classifier_load(s.c, classified_folder("run"));
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
    classified_end(&s);
}

/* With all that is drawn at random: a run that was stopped goes on as if it had not been. */
TEST(classifier_resumes)
{
    cup_training_point whole[30], parts[30];
    classified s = classified_begin();
    s.how.augmentation =
        (cup_augmentation){sizeof s.how.augmentation, true, 1, 10, 0.1, 0.1, 0.3};
    s.how.mixup = 0.4;
    int64_t count = classified_run(&s, "whole", false, false, whole);
    classified_run(&s, "parts", true, false, parts);
    EXPECT_INT(classified_run(&s, "parts", false, true, parts), count);
    for (int64_t i = 0; i < count; i++)
        EXPECT(whole[i].step == parts[i].step && classified_same(whole[i].loss, parts[i].loss) &&
               classified_same(whole[i].norm, parts[i].norm) &&
               classified_same(whole[i].validation, parts[i].validation));
    cup_classification found;
    int64_t steps;
    EXPECT_INT(cup_classification_load(s.c, classified_folder("parts"), &found, &steps), CUP_OK);
    EXPECT_INT(steps, 12);
    EXPECT_TEXT(found.network, s.how.network);
    EXPECT(found.mixup == 0.4 && found.augmentation.crop == 1);
    classified_end(&s);
}

static void expect_refused(classified *s, const cup_images *kept, const char *words)
{
    EXPECT(cup_classifier_new(s->c, s->train, kept, classified_folder("run"), &s->how) == NULL);
    EXPECT_CONTAINS(cup_error_text(s->c), words);
    cup_error_clear(s->c);
}

TEST(classifier_refused)
{
    cup_training_point points[30];
    classified s = classified_begin();
    cup_classifier *m;
    cup_images *other = cup_images_load(
        s.c, classified_root, CUP_SPLIT_VALIDATION,
        CUP_OPTIONS(cup_images_options, .height = 4, .width = 4));
    expect_refused(&s, other, "another size");
    s.how.mixup = 2;
    expect_refused(&s, s.kept, "mixup");
    s.how.mixup = 0;
    /* Images of files that were opened one by one. */
    cup_images nameless = *s.train;
    nameless.classes = (cup__names){0};
    m = cup_classifier_new(s.c, &nameless, NULL, NULL, &s.how);
    EXPECT(!m);
    EXPECT_CONTAINS(cup_error_text(s.c), "there are no classes to tell apart");
    cup_error_clear(s.c);
    s.how.dtype = CUP_F64;
    expect_refused(&s, s.kept, "f32, bf16 or f16");
    s.how.dtype = CUP_F32;
    classified_run(&s, "run", false, false, points);
    EXPECT(cup_classification_vacant(s.c, classified_folder("run")) != CUP_OK);
    cup_error_clear(s.c);
    s.how.steps = 20;
    strcat(s.how.network, "\n");
    m = cup_classifier_new(s.c, s.train, s.kept, classified_folder("run"), &s.how);
    EXPECT(cup_loop_resume(cup_classifier_loop(m)) != CUP_OK);
    EXPECT_CONTAINS(cup_error_text(s.c), "the network is not what the checkpoint");
    cup_error_clear(s.c);
    cup_classifier_free(m);
    s.how.network[strlen(s.how.network) - 1] = 0;
    m = cup_classifier_new(s.c, s.kept, s.kept, classified_folder("run"), &s.how);
    EXPECT(cup_loop_resume(cup_classifier_loop(m)) != CUP_OK);
    EXPECT_CONTAINS(cup_error_text(s.c), "the images are not those of the checkpoint");
    cup_error_clear(s.c);
    cup_classifier_free(m);
    EXPECT(cup_gpt_load(s.c, classified_folder("run")) == NULL);
    EXPECT_CONTAINS(cup_error_text(s.c), "classifier");
    cup_error_clear(s.c);
    cup_images_free(other);
    classified_end(&s);
}

/* In bf16, with the weights that are stepped in f32. */
TEST(classifier_bf16)
{
    classified s = classified_begin();
    s.how.steps = 60;
    s.how.dtype = CUP_BF16;
    cup_classifier *m = cup_classifier_new(s.c, s.train, s.kept, NULL, &s.how);
    cup_loop_run(cup_classifier_loop(m), NULL);
    EXPECT_TEXT(cup_error_text(s.c), "");
    EXPECT(cup_classifier_accuracy(m) > 0.8);
    cup_classifier_free(m);
    classified_end(&s);
}

/* The host's part of a run on a GPU, with all that can be asked for: a captured step, evaluations,
 * checkpoints and a network that is asked. */
TEST(classifier_on_a_stand_in)
{
    static const cup_augmentation all = {sizeof all, true, 1, 10, 0.1, 0.1, 0.3};
    snprintf(classified_root, sizeof classified_root, "%s", fake_begin());
    unsetenv("CUP_KERNELS");
    setenv("FAKE_NVRTC_ANY", "1", 1);
    classified s = classified_begin();
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    EXPECT_TEXT(cup_error_text(c), "");
    s.how.augmentation = all;
    s.how.mixup = 0.4;
    s.how.save_every = 5;
    s.how.dtype = CUP_BF16;
    cup_classifier *m = cup_classifier_new(c, s.train, s.kept, classified_folder("gpu"), &s.how);
    cup_loop_run(cup_classifier_loop(m), NULL);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_loop_steps(cup_classifier_loop(m)), 12);
    cup_classifier_free(m);
    float p[KEPT * 3];
    m = cup_classifier_load(c, classified_folder("gpu"));
    EXPECT_INT(cup_classifier_ask(m, cup_images_pixels(s.kept), KEPT, p), CUP_OK);
    cup_classifier_free(m);
    cup_context_free(c);
    classified_end(&s);
}

TEST(classifier_lacks_memory)
{
    classified s = classified_begin();
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
    classified_end(&s);
}

static int64_t losses_of(classified *s, cup_comm *m, cup_training_point *points, double *accuracy)
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
    classified s = *(classified *)user;
    s.c = c;
    s.train = cup_images_load(c, classified_root, CUP_SPLIT_TRAIN, NULL);
    s.kept = cup_images_load(c, classified_root, CUP_SPLIT_VALIDATION, NULL);
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
    snprintf(classified_root, sizeof classified_root, "%.*s",
             (int)(strrchr(address, '/') - address), address);
    classified s = classified_begin();
    /* A bias before a batchnorm has no gradient but rounding, which AdamW makes steps of. */
    strcpy(s.how.network, "conv 8 nobias\nbatchnorm\nrelu\nmaxpool 2\nconv 8 nobias\nbatchnorm\n"
                          "relu\nglobalpool\nlinear classes\n");
    s.how.augmentation.crop = 1;
    for (int i = 0; i < 2; i++) {
        s.how.mixup = i * 0.4;
        together(2, run_beside_one, &s);
    }
    classified_end(&s);
}

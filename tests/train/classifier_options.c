/* What a run on images has of the training loop, and runs that begin with the weights of others. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cupola/cupola.h"
#include "test.h"
#include "train/classified.h"

/* Nothing in it depends on which images are in a batch with others. */
#define PLAIN "conv 8\nrelu\nmaxpool 2\nconv 8\ngelu\nlayernorm\nglobalpool\nlinear classes\n"

static void expect_same(const cup_training_point *a, const cup_training_point *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        EXPECT(a[i].step == b[i].step && classified_same(a[i].loss, b[i].loss) &&
               classified_same(a[i].norm, b[i].norm) &&
               classified_same(a[i].validation, b[i].validation));
}

static void expect_near(const cup_training_point *a, const cup_training_point *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        EXPECT(a[i].step == b[i].step && isnan(a[i].loss) == isnan(b[i].loss));
        if (isfinite(a[i].loss))
            EXPECT_NEAR(a[i].loss, b[i].loss, 2e-5);
        if (isfinite(a[i].validation))
            EXPECT_NEAR(a[i].validation, b[i].validation, 2e-5);
    }
}

/* A step of several batches is that of one large batch; mixed pairs are each of one batch. */
TEST(classifier_accumulates)
{
    cup_training_point whole[30], parts[30];
    classified s = classified_begin();
    strcpy(s.how.network, PLAIN);
    int64_t count = classified_run(&s, "whole", false, false, whole);
    s.how.batch = 5;
    s.how.accumulate = 4;
    EXPECT_INT(classified_run(&s, "parts", false, false, parts), count);
    expect_near(whole, parts, count);
    s.how.mixup = 0.4;
    EXPECT_INT(classified_run(&s, "mixed", false, false, parts), count);
    EXPECT(parts[3].loss != whole[3].loss);
    classified_end(&s);
}

/* With all of it, a run that was stopped goes on as if it had not been. */
TEST(classifier_options_resume)
{
    cup_training_point whole[30], parts[30];
    classified s = classified_begin();
    s.how.augmentation = (cup_augmentation){sizeof s.how.augmentation, true, 1, 10, 0.1, 0.1, 0.3};
    s.how.mixup = 0.4;
    s.how.batch = 10;
    s.how.accumulate = 3;
    s.how.decline_steps = 4;
    s.how.optimizer.average = 0.9;
    s.how.recompute = CUP_RECOMPUTE_POLICY_POINTWISE;
    s.how.background = true;
    s.how.save_every = 3;
    int64_t count = classified_run(&s, "whole", false, false, whole);
    classified_run(&s, "parts", true, false, parts);
    EXPECT_INT(classified_run(&s, "parts", false, true, parts), count);
    expect_same(whole, parts, count);
    cup_classification found;
    EXPECT_INT(cup_classification_load(s.c, classified_folder("parts"), &found, NULL), CUP_OK);
    EXPECT(found.accumulate == 3 && found.decline_steps == 4 &&
           found.recompute == CUP_RECOMPUTE_POLICY_POINTWISE && found.optimizer.average == 0.9);
    s.how.accumulate = 2;
    cup_classifier *m =
        cup_classifier_new(s.c, s.train, s.kept, classified_folder("parts"), &s.how);
    EXPECT(cup_loop_resume(cup_classifier_loop(m)) != CUP_OK);
    EXPECT_CONTAINS(cup_error_text(s.c), "accumulate is not what the checkpoint");
    cup_error_clear(s.c);
    cup_classifier_free(m);
    classified_end(&s);
}

/* What is computed again has the same bits. */
TEST(classifier_recomputes)
{
    cup_training_point whole[30], again[30];
    classified s = classified_begin();
    strcpy(s.how.network, PLAIN);
    int64_t count = classified_run(&s, "whole", false, false, whole);
    for (int i = 0; i < 2; i++) {
        s.how.recompute = i ? CUP_RECOMPUTE_POLICY_POINTWISE : CUP_RECOMPUTE_POLICY_NORMS;
        EXPECT_INT(classified_run(&s, i ? "two" : "one", false, false, again), count);
        expect_same(whole, again, count);
    }
    s.how.recompute = CUP_RECOMPUTE_POLICY_BLOCK;
    EXPECT(cup_classifier_new(s.c, s.train, s.kept, NULL, &s.how) == NULL);
    EXPECT_CONTAINS(cup_error_text(s.c), "norms or pointwise again, not block");
    cup_error_clear(s.c);
    s.how.recompute = CUP_RECOMPUTE_POLICY_NONE;
    s.how.batch = 1 << 24;
    s.how.accumulate = 1 << 20;
    EXPECT(cup_classifier_new(s.c, s.train, s.kept, NULL, &s.how) == NULL);
    EXPECT_CONTAINS(cup_error_text(s.c), "over 2^32 in a step");
    classified_end(&s);
}

/* The loss of what a checkpoint's network says of the images kept, or of its averages. */
static double loss_of(classified *s, cup_classifier *m)
{
    float p[KEPT * 3];
    double sum = 0;
    EXPECT_TEXT(cup_error_text(s->c), "");
    EXPECT_INT(cup_classifier_ask(m, cup_images_pixels(s->kept), KEPT, p), CUP_OK);
    for (int i = 0; i < KEPT; i++)
        sum -= log((double)p[i * 3 + cup_images_labels(s->kept)[i]]);
    cup_classifier_free(m);
    return sum / KEPT;
}

TEST(classifier_keeps_averages)
{
    cup_training_point points[30];
    classified s = classified_begin();
    strcpy(s.how.network, PLAIN);
    s.how.optimizer.average = 0.5;
    int64_t count = classified_run(&s, "run", false, false, points);
    double weights = loss_of(&s, cup_classifier_load(s.c, classified_folder("run")));
    double averages = loss_of(&s, cup_classifier_load_average(s.c, classified_folder("run")));
    EXPECT_NEAR(weights, points[count - 1].validation, 1e-5);
    EXPECT(averages != weights && fabs(averages - weights) < 0.2);
    /* Averages of the last step alone are the weights. */
    s.how.optimizer.average = 1e-9;
    classified_run(&s, "last", false, false, points);
    weights = loss_of(&s, cup_classifier_load(s.c, classified_folder("last")));
    EXPECT_NEAR(loss_of(&s, cup_classifier_load_average(s.c, classified_folder("last"))), weights,
                1e-5);
    s.how.optimizer.average = 0;
    classified_run(&s, "none", false, false, points);
    EXPECT(cup_classifier_load_average(s.c, classified_folder("none")) == NULL);
    EXPECT_INT(cup_error(s.c), CUP_STATE);
    EXPECT_CONTAINS(cup_error_text(s.c), "kept no averages");
    cup_error_clear(s.c);
    classified_end(&s);
}

static char begun[4200]; /* the folder of the run that others begin with */

/* A run behind another one begins where that ended. */
TEST(classifier_begins_with_another)
{
    cup_training_point points[30], more[30];
    classified s = classified_begin();
    int64_t count = classified_run(&s, "run", false, false, points);
    snprintf(begun, sizeof begun, "%s", classified_folder("run"));
    s.how.from = begun;
    cup_classifier *m = cup_classifier_new(s.c, s.train, s.kept, NULL, &s.how);
    EXPECT_CONTAINS(cup_classifier_from_text(m), "with the weights of");
    EXPECT(strstr(cup_classifier_from_text(m), "new last layer") == NULL);
    cup_classifier_free(m);
    classified_run(&s, "more", false, false, more);
    EXPECT_NEAR(more[0].validation, points[count - 1].validation, 1e-6);
    /* In bf16, too. */
    s.how.dtype = CUP_BF16;
    classified_run(&s, "rounded", false, false, more);
    EXPECT_NEAR(more[0].validation, points[count - 1].validation, 0.03);
    s.how.dtype = CUP_F32;
    strcat(s.how.network, "\n"); /* which changes no layer */
    m = cup_classifier_new(s.c, s.train, s.kept, NULL, &s.how);
    EXPECT_TEXT(cup_error_text(s.c), "");
    cup_classifier_free(m);
    strcpy(s.how.network, PLAIN);
    EXPECT(cup_classifier_new(s.c, s.train, s.kept, NULL, &s.how) == NULL);
    EXPECT_CONTAINS(cup_error_text(s.c), "has another number of layers, or none");
    cup_error_clear(s.c);
    s.how.from = "nowhere";
    EXPECT(cup_classifier_new(s.c, s.train, s.kept, NULL, &s.how) == NULL);
    EXPECT_CONTAINS(cup_error_text(s.c), "nowhere");
    classified_end(&s);
}

/* With other classes the last layer alone is new; as many of other names are others. */
TEST(classifier_begins_with_other_classes)
{
    static const char names[] = "bar\npost\nboth\n";
    cup_training_point points[30], more[30];
    char path[4300];
    classified s = classified_begin();
    s.how.steps = 60;
    s.how.evaluate_every = 0;
    cup_classifier *m = cup_classifier_new(s.c, s.train, s.kept, classified_folder("run"), &s.how);
    EXPECT_INT(cup_loop_run(cup_classifier_loop(m), NULL), CUP_OK);
    cup_classifier_free(m);
    snprintf(begun, sizeof begun, "%s", classified_folder("run"));
    snprintf(path, sizeof path, "%s/classes.txt", classified_root);
    EXPECT(cup__file_write(NULL, path, names, sizeof names - 1) == CUP_OK);
    cup_images_free(s.train);
    cup_images_free(s.kept);
    s.train = cup_images_load(s.c, classified_root, CUP_SPLIT_TRAIN, NULL);
    s.kept = cup_images_load(s.c, classified_root, CUP_SPLIT_VALIDATION, NULL);
    EXPECT_TEXT(cup_error_text(s.c), "");
    EXPECT_TEXT(cup_images_class(s.train, 0), "bar");
    s.how.steps = 12;
    s.how.evaluate_every = 4;
    classified_run(&s, "new", false, false, points);
    s.how.from = begun;
    m = cup_classifier_new(s.c, s.train, s.kept, NULL, &s.how);
    EXPECT_CONTAINS(cup_classifier_from_text(m), "a new last layer for the 3 classes");
    cup_classifier_free(m);
    int64_t count = classified_run(&s, "more", false, false, more);
    EXPECT_NEAR(more[0].validation, log(3), 0.1); /* it knows nothing of these names yet */
    EXPECT(more[count - 1].validation < points[count - 1].validation - 0.1);
    classified_end(&s);
}

/* Positions of a transformer are made those of images of another size; what is flattened is not. */
TEST(classifier_begins_with_other_sizes)
{
    cup_training_point points[30];
    classified s = classified_begin();
    cup_images *large = cup_images_load(s.c, classified_root, CUP_SPLIT_TRAIN,
                                        CUP_OPTIONS(cup_images_options, .height = 12, .width = 8));
    strcpy(s.how.network, "conv 8 kernel=2 stride=2 padding=0\ntokens\nclasstoken\npositions\n"
                          "transformer heads=2\nlayernorm\nfirsttoken\nlinear classes\n");
    classified_run(&s, "run", false, false, points);
    snprintf(begun, sizeof begun, "%s", classified_folder("run"));
    s.how.from = begun;
    cup_classifier *m = cup_classifier_new(s.c, large, NULL, NULL, &s.how);
    EXPECT_TEXT(cup_error_text(s.c), "");
    EXPECT_CONTAINS(cup_classifier_from_text(m), "positions for images of this size");
    EXPECT_INT(cup_classifier_height(m), 12);
    cup_loop_run(cup_classifier_loop(m), NULL);
    EXPECT_TEXT(cup_error_text(s.c), "");
    cup_classifier_free(m);
    s.how.from = NULL;
    strcpy(s.how.network, "flatten\nlinear classes\n");
    classified_run(&s, "flat", false, false, points);
    snprintf(begun, sizeof begun, "%s", classified_folder("flat"));
    s.how.from = begun;
    strcpy(s.how.network, "flatten\nlinear 3\nlinear classes\n");
    EXPECT(cup_classifier_new(s.c, s.train, NULL, NULL, &s.how) == NULL);
    EXPECT_CONTAINS(cup_error_text(s.c), "another number of layers");
    cup_error_clear(s.c);
    strcpy(s.how.network, "flatten\nlinear classes\n");
    EXPECT(cup_classifier_new(s.c, large, NULL, NULL, &s.how) == NULL);
    EXPECT_CONTAINS(cup_error_text(s.c), "has another linear1.weight, or none");
    cup_error_clear(s.c);
    cup_images_free(large);
    classified_end(&s);
}

#include "train/classified.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "test.h"

char classified_root[4096];

classified classified_begin(void)
{
    classified s = {.c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .threads = 1))};
    if (!*classified_root)
        snprintf(classified_root, sizeof classified_root, "%s", test_folder());
    shapes_write(classified_root, "train", TRAIN, 1);
    shapes_write(classified_root, "t10k", KEPT, 2);
    s.train = cup_images_load(s.c, classified_root, CUP_SPLIT_TRAIN, NULL);
    s.kept = cup_images_load(s.c, classified_root, CUP_SPLIT_VALIDATION, NULL);
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

void classified_end(classified *s)
{
    cup_images_free(s->train);
    cup_images_free(s->kept);
    cup_context_free(s->c);
}

const char *classified_folder(const char *name)
{
    static char path[4200];
    snprintf(path, sizeof path, "%s/%s", classified_root, name);
    return path;
}

static bool stop_behind_five(void *user)
{
    return cup_loop_steps(cup_classifier_loop(user)) >= 5;
}

int64_t classified_run(classified *s, const char *name, bool stops, bool resumes,
                       cup_training_point *points)
{
    int64_t count;
    cup_classifier *m =
        cup_classifier_new(s->c, s->train, s->kept, classified_folder(name), &s->how);
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

bool classified_same(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

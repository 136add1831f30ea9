/* How many steps a second a network of small images is trained with by the classifier, with all
 * that a step of `cupola train --task classify` does; batches are made on the host meanwhile.
 * Build and run: make build/bench/fashion_steps && build/bench/fashion_steps DEVICE FOLDER
 * [NETWORK [f32|bf16 [SIDE [STEPS]]]]; bench/fashion_peer.py runs it beside PyTorch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cupola/cupola.h"

/* When each step was known to be done. */
typedef struct times {
    double *at, loss;
    int64_t done;
} times;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void point(const cup_training_point *p, void *user)
{
    times *t = user;
    if (!isfinite(p->loss))
        return;
    t->at[t->done++] = now();
    t->loss = p->loss;
}

/* Steps come a few at once, so it is counted between the ends of two such lots, the first of them
 * behind a tenth of all steps. */
static void tell(const times *t, const char *network, const cup_classification *how)
{
    int64_t last = t->done - 1, from = t->done / 10;
    while (from < last && t->at[from + 1] - t->at[from] < 2e-5)
        from++;
    printf("%s %s batch %lld: %.1f steps/s over %lld steps, loss %.4f\n", network,
           cup_dtype_name(how->dtype), (long long)how->batch,
           (double)(last - from) / (t->at[last] - t->at[from]), (long long)(last - from), t->loss);
}

static void train(cup_context *c, const char *folder, const char *network, cup_dtype dtype,
                  int64_t side, int64_t steps)
{
    static cup_classification how;
    times t = {.at = calloc((size_t)steps, sizeof *t.at)};
    cup_images *images =
        cup_images_load(c, folder, CUP_SPLIT_TRAIN,
                        CUP_OPTIONS(cup_images_options, .height = side, .width = side));
    cup_classification_start(c, network, images, 1, &how);
    how.dtype = dtype;
    how.steps = steps;
    how.precision = "high";
    how.evaluate_every = how.save_every = 0;
    cup_classifier *m = t.at ? cup_classifier_new(c, images, NULL, NULL, &how) : NULL;
    cup_loop_run(cup_classifier_loop(m),
                 CUP_OPTIONS(cup_training_hooks, .point = point, .user = &t));
    if (cup_error(c) == CUP_OK)
        tell(&t, network, &how);
    cup_classifier_free(m);
    cup_images_free(images);
    free(t.at);
}

int main(int argc, char **argv)
{
    const char *network = argc > 3 ? argv[3] : "cnn";
    int64_t side = argc > 5 ? atoll(argv[5]) : 0, steps = argc > 6 ? atoll(argv[6]) : 2000;
    cup_dtype dtype = CUP_F32;
    if (argc < 3 || steps < 2 || (argc > 4 && cup_dtype_find(argv[4], &dtype) != CUP_OK)) {
        fprintf(stderr, "fashion_steps DEVICE FOLDER [NETWORK [f32|bf16 [SIDE [STEPS]]]]\n");
        return 2;
    }
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = argv[1], .seed = 1));
    train(c, argv[2], network, dtype, side, steps);
    int failed = cup_error(c) != CUP_OK;
    if (failed)
        fprintf(stderr, "fashion_steps: %s\n", cup_error_text(c));
    cup_context_free(c);
    return failed;
}

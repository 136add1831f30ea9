/* How many images a second networks for images are trained with: those that are known by name and
 * ViT-B/16, of 224 x 224 and 1,000 classes, in bf16 with master weights, on images that lie on the
 * device. What a step computes is what `cupola train --task classify` does.
 * Build and run: make build/bench/images_steps && build/bench/images_steps [device [network [batch
 * [steps [FOLDER [SIDE]]]]]]; bench/images_peer.py is the same in PyTorch. With a folder, which
 * must be there, images are written into it and a network that is known by name is trained on them
 * by the classifier, which makes each batch on the host: 1,024 in an array, or, with a side, 2,048
 * JPEGs of side x side, which are decoded and scaled for each batch. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cupola/cupola.h"

#include "images_jpeg.h"

#define SIDE 224
#define CLASSES 1000
#define WARM 16
#define MOST 4096
#define IMAGES 1024
#define FILES 2048
#define FOLDERS 200

static const char vit[] = "conv 768 kernel=16 stride=16 padding=0\ntokens\nclasstoken\npositions\n"
                          "repeat 12\ntransformer heads=12\nend\nlayernorm\nfirsttoken\n"
                          "linear classes\n";

typedef struct net {
    const char *name, *text; /* the text NULL: that of the name */
    int64_t batch;
    cup_method method;
    double rate, decay, smoothing;
} net;

static const net nets[] = {{"resnet50", NULL, 256, CUP_METHOD_SGD, 0.1, 1e-4, 0.1},
                           {"convnext-t", NULL, 128, CUP_METHOD_ADAMW, 1e-3, 0.05, 0.1},
                           {"vit-b/16", vit, 128, CUP_METHOD_ADAMW, 1e-3, 0.05, 0.1}};

typedef struct training {
    cup_network *network;
    cup_tensor *pixels, *labels, *factor, *shift;
    double smoothing, times[MOST];
    float first, last;
    int64_t done;
} training;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static cup_tensor *loss(cup_context *c, int64_t batch, void *user)
{
    training *t = user;
    (void)batch;
    cup_tensor *x = cup_mul(c, cup_cast(c, t->pixels, CUP_F32), t->factor);
    x = cup_cast(c, cup_add(c, x, t->shift), CUP_BF16);
    return cup_cross_entropy(c, cup_network_call(t->network, x), t->labels, -1,
                             CUP_OPTIONS(cup_cross_entropy_options,
                                         .label_smoothing = t->smoothing));
}

static void point(const cup_training_point *p, void *user)
{
    training *t = user;
    if (!isfinite(p->loss) || t->done == MOST)
        return;
    if (!t->done)
        t->first = (float)p->loss;
    t->last = (float)p->loss;
    t->times[t->done++] = now();
}

/* Seconds a step: points come a few at once, so it is counted between the ends of two such lots. */
static double seconds_of(const training *t)
{
    int64_t last = t->done - 1, from = WARM;
    while (from < last && t->times[from + 1] - t->times[from] < 5e-4)
        from++;
    return from < last ? (t->times[last] - t->times[from]) / (double)(last - from) : NAN;
}

static cup_tensor *random_of(cup_context *c, cup_dtype dtype, int ndim, const int64_t *shape,
                             double below)
{
    return cup_keep(cup_cast(c, cup_uniform(c, CUP_F32, ndim, shape, 0, below), dtype));
}

static void fill(training *t, cup_context *c, int64_t batch)
{
    const int64_t image[] = {batch, SIDE, SIDE, 3};
    cup_scope_open(c);
    t->pixels = random_of(c, CUP_U8, 4, image, 255.9);
    t->labels = random_of(c, CUP_I64, 1, &batch, CLASSES - 0.1);
    t->factor = cup_keep(cup_full(c, CUP_F32, 1, &image[3], 1 / 73.6));
    t->shift = cup_keep(cup_full(c, CUP_F32, 1, &image[3], -1.732));
    cup_scope_return(c, NULL);
}

static void tell(cup_context *c, const net *n, const training *t, int64_t batch, double whole)
{
    cup_memory memory = {0};
    double step = seconds_of(t);
    cup_memory_use(c, &memory);
    printf("%-10s batch %lld: %8.1f images/s, %7.2f ms a step, peak %.2f GB (%.2f reserved); "
           "loss %.4f to %.4f in %lld steps, %.1f s with all that comes before\n",
           n->name, (long long)batch, (double)batch / step, step * 1e3,
           (double)memory.peak_allocated * 1e-9, (double)memory.peak_reserved * 1e-9, t->first,
           t->last, (long long)t->done, whole);
}

static void train(cup_context *c, const net *n, training *t, cup_parameters *list, int64_t batch,
                  int64_t steps)
{
    char text[8192];
    if (n->text)
        snprintf(text, sizeof text, "%s", n->text);
    else
        cup_network_text(c, n->name, SIDE, SIDE, text, sizeof text);
    const cup_network_sizes *sizes =
        CUP_OPTIONS(cup_network_sizes, .height = SIDE, .width = SIDE, .channels = 3,
                    .classes = CLASSES);
    t->network = cup_network_new(c, list, text, sizes);
    fill(t, c, batch);
    t->smoothing = n->smoothing;
    double start = now();
    cup_loop *loop = cup_loop_new(
        list, CUP_OPTIONS(cup_loop_calls, .loss = loss, .user = t),
        CUP_OPTIONS(cup_loop_options,
                    .schedule = {.high = n->rate, .low = n->rate, .warmup = steps, .steps = steps},
                    .optimizer = {.method = n->method, .weight_decay = n->decay}));
    cup_loop_run(loop, CUP_OPTIONS(cup_training_hooks, .point = point, .user = t));
    if (cup_error(c) == CUP_OK)
        tell(c, n, t, batch, now() - start);
    cup_loop_free(loop);
}

/* An array of IMAGES in .npy, of one byte each element. */
static bool write_array(const char *folder, const char *name, const char *shape, size_t each)
{
    char path[4096], header[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(header, sizeof header, "{'descr': '|u1', 'fortran_order': False, 'shape': (%d,%s), }",
             IMAGES, shape);
    FILE *f = fopen(path, "wb");
    unsigned char *image = malloc(each);
    bool good = f && image && fprintf(f, "\x93NUMPY\x01%c%c%c%-117s\n", 0, 118, 0, header) > 0;
    for (unsigned i = 0, state = 1; i < IMAGES && good; i++) {
        for (size_t k = 0; k < each; k++)
            image[k] = (unsigned char)(each == 1 ? i % 200 : (state = state * 1664525u + i) >> 24);
        good = fwrite(image, each, 1, f) == 1;
    }
    free(image);
    return f && fclose(f) == 0 && good;
}

/* The images of a folder, which are written first: files of a side, or with side 0 an array. */
static cup_images *images_of(cup_context *c, const char *folder, int side)
{
    if (!side && (!write_array(folder, "train_images.npy", " 224, 224, 3", SIDE * SIDE * 3) ||
                  !write_array(folder, "train_labels.npy", "", 1))) {
        fprintf(stderr, "images_steps: no arrays can be written into %s\n", folder);
        return NULL;
    }
    double bytes = side ? jpeg_folder(folder, FILES, FOLDERS, side) : 0;
    if (side && bytes == 0) {
        fprintf(stderr, "images_steps: no JPEGs can be written into %s; it must be there, and "
                        "libturbojpeg.so.0, or CUP_LIBTURBOJPEG names it\n", folder);
        return NULL;
    }
    if (side)
        printf("%d JPEGs of %dx%d, %.1f KB each, on %d threads: ", FILES, side, side, bytes * 1e-3,
               (int)sysconf(_SC_NPROCESSORS_ONLN));
    return cup_images_load(c, folder, CUP_SPLIT_TRAIN,
                           CUP_OPTIONS(cup_images_options, .height = SIDE, .width = SIDE,
                                       .as_needed = side > 0));
}

/* The classifier itself, with batches that are made on the host while the device is at work. */
static int classify(cup_context *c, const net *n, int64_t batch, int64_t steps,
                    const cup_images *images)
{
    static cup_classification how;
    static training t;
    memset(&t, 0, sizeof t);
    cup_classification_start(c, n->name, images, 1, &how);
    how.dtype = CUP_BF16;
    how.batch = batch;
    how.steps = steps;
    how.evaluate_every = how.save_every = 0;
    double start = now();
    cup_classifier *m = cup_classifier_new(c, images, NULL, NULL, &how);
    cup_loop_run(cup_classifier_loop(m), CUP_OPTIONS(cup_training_hooks, .point = point,
                                                     .user = &t));
    int failed = cup_error(c) != CUP_OK;
    if (failed)
        printf("%s: %s\n", n->name, cup_error_text(c));
    else
        tell(c, n, &t, batch, now() - start);
    cup_classifier_free(m);
    return failed;
}

static int classify_folder(const char *device, const net *n, int64_t batch, int64_t steps,
                           const char *folder, int side)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device, .seed = 1));
    cup_images *images = images_of(c, folder, side);
    int failed = images || cup_error(c) ? classify(c, n, batch, steps, images) : 1;
    cup_images_free(images);
    cup_context_free(c);
    return failed;
}

static int run(const char *device, const net *n, int64_t batch, int64_t steps)
{
    static training t;
    memset(&t, 0, sizeof t);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device, .seed = 1));
    cup_parameters *list = cup_parameters_new(c, CUP_BF16);
    train(c, n, &t, list, batch, steps);
    int failed = cup_error(c) != CUP_OK;
    if (failed)
        printf("%s: %s\n", n->name, cup_error_text(c));
    fflush(stdout);
    cup_network_free(t.network);
    cup_parameters_free(list);
    cup_context_free(c);
    return failed;
}

int main(int argc, char **argv)
{
    const char *device = argc > 1 ? argv[1] : "cuda", *name = argc > 2 ? argv[2] : "all";
    int64_t batch = argc > 3 ? atoll(argv[3]) : 0, steps = argc > 4 ? atoll(argv[4]) : 80;
    const char *folder = argc > 5 ? argv[5] : NULL;
    int failed = 0, found = 0, side = argc > 6 ? atoi(argv[6]) : 0;
    if (batch < 0 || steps < 1 || steps > MOST || side < 0 || side > 4096) {
        fprintf(stderr, "images_steps: batches are from 1, steps from 1 to %d and sides to 4096\n",
                MOST);
        return 2;
    }
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++)
        if (strcmp(name, "all") == 0 || strcmp(name, nets[i].name) == 0) {
            int64_t each = batch ? batch : nets[i].batch;
            found++;
            if (folder && nets[i].text)
                continue;
            failed |= folder ? classify_folder(device, &nets[i], each, steps, folder, side)
                             : run(device, &nets[i], each, steps);
        }
    if (!found)
        fprintf(stderr, "images_steps: there are resnet50, convnext-t, vit-b/16 and all\n");
    return failed || !found;
}

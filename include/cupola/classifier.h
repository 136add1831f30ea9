/* cupola/classifier.h: training a network that tells images apart, and asking it.
 *
 *     cup_classification how;
 *     cup_classification_start(c, "cnn", train, 5, &how);
 *     cup_classifier *m = cup_classifier_new(c, train, kept, "run", &how);
 *     cup_loop_run(cup_classifier_loop(m), NULL);
 *     cup_classifier_free(m);
 *     m = cup_classifier_load(c, "run");
 *     cup_classifier_ask(m, pixels, 10, probabilities);
 *
 * The loop is that of cupola/loop.h, with its checkpoints, from which a run goes on bit for bit. */
#ifndef CUPOLA_CLASSIFIER_H
#define CUPOLA_CLASSIFIER_H

#include "cupola/grad.h"
#include "cupola/images.h"
#include "cupola/loop.h"
#include "cupola/network.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All that says what a run computes. Begin with cup_classification_start. */
typedef struct cup_classification {
    size_t size;          /* of this struct, as it is set there */
    char network[8192];   /* its description, see cupola/network.h */
    char data[4096];      /* where the images were, for people; "" where nobody needs it */
    int64_t height, width, channels; /* for whoever reads the images again, with skip_broken, as */
    bool skip_broken, as_needed;     /* cup_images_options has them */
    cup_dtype dtype;      /* f32, bf16 or f16, the two with a master copy of the weights in f32, the
                             last with a scale of the loss */
    int64_t batch, steps; /* images that are computed at once; steps of the whole run */
    int64_t warmup;       /* steps in which the learning rate rises to `rate` */
    double rate, rate_end;
    cup_decline decline;
    cup_optimizer_options optimizer;
    cup_augmentation augmentation; /* made on the host, by all its cores, of the next batch while
                                      a GPU is at work on the one before */
    double mixup; /* pairs of images are mixed, by a part drawn from Beta(mixup, mixup); 0: not.
                     Zhang, Cisse, Dauphin and Lopez-Paz 2018, "mixup: beyond empirical risk
                     minimization". From 0 to 1 */
    double label_smoothing; /* see cup_cross_entropy */
    int64_t evaluate_every; /* steps between evaluations; 0: only before and behind all steps */
    int64_t save_every;     /* steps between checkpoints; 0: only behind all steps */
    uint64_t seed;          /* of the first weights, the batches and dropout */
    const char *precision;  /* of f32 products, see cup_precision; NULL: what the context has */
    /* The processes that train together, NULL for this one alone. Borrowed. Each has all images
     * and computes an equal share of each batch, whose images are a multiple of them, and of the
     * evaluation; batchnorms take the statistics of the whole batch, so that the run is that of one
     * process but for rounding and for what dropout draws. See cup_loop_options for the rest. */
    cup_comm *comm;
    int64_t accumulate;    /* such batches make one step, their gradients averaged; 0: 1 */
    int64_t decline_steps; /* of `decline`, as cup_schedule has them */
    int64_t check_every;   /* see cup_loop_options; with `background` not kept in checkpoints */
    bool background;
    /* See cup_recompute_results: NONE, NORMS or POINTWISE. A network has no blocks to be computed
     * again. */
    cup_recompute_policy recompute;
    /* Folder of a checkpoint of another run, with whose weights and whose idea of how bright images
     * are this new one begins; NULL: with new ones. The networks are alike. Where the classes are
     * not those of that run, by their names and their order, the layers that `classes` gives their
     * size are new. Borrowed for as long as the classifier is made, and not kept in checkpoints. */
    const char *from;
    cup_non_finite non_finite; /* see cup_loop_options */
    double loss_scale;         /* the same; with dtype f16 0 is 65536 */
    int64_t loss_scale_steps;
} cup_classification;

/* What is known to work for the network of a name, see cup_network_names, so many times over the
 * images for training. */
CUP_API cup_status cup_classification_start(cup_context *c, const char *name,
                                            const cup_images *train, double epochs,
                                            cup_classification *out);
/* What a folder's checkpoint was made with, and the steps it has done; `steps` may be NULL. */
CUP_API cup_status cup_classification_load(cup_context *c, const char *folder,
                                           cup_classification *out, int64_t *steps);

/* Whether a new run may begin in a folder: see cup_loop_vacant. */
CUP_API cup_status cup_classification_vacant(cup_context *c, const char *folder);

typedef struct cup_classifier cup_classifier;

/* A run with a new network. The images are borrowed; `kept` is evaluated, has the size and the
 * classes of those for training, and may be NULL. The folder is as in cup_loop_options. */
CUP_API cup_classifier *cup_classifier_new(cup_context *c, const cup_images *train,
                                           const cup_images *kept, const char *folder,
                                           const cup_classification *how);
/* The network of a folder's checkpoint, to be asked. It has no loop. */
CUP_API cup_classifier *cup_classifier_load(cup_context *c, const char *folder);
/* The same with the moving averages of its weights, which the run kept (`average` of
 * cup_optimizer_options), in their place; what batchnorms know of their input is as of the weights.
 * CUP_STATE where it kept none. */
CUP_API cup_classifier *cup_classifier_load_average(cup_context *c, const char *folder);
CUP_API void cup_classifier_free(cup_classifier *m);

/* Its loop, to be run, resumed and saved; the classifier's. NULL where there is none. */
CUP_API cup_loop *cup_classifier_loop(cup_classifier *m);

/* The part of the images kept that the last evaluation told right; NaN where there was none. */
CUP_API double cup_classifier_accuracy(const cup_classifier *m);

/* What a run that began with the weights of another has from there, as a sentence that lives with
 * the classifier; NULL where it has nothing. */
CUP_API const char *cup_classifier_from_text(const cup_classifier *m);

/* What it takes and what it tells apart; 0 and NULL for NULL. The name of a class is NULL when
 * there is none of that number. */
CUP_API int64_t cup_classifier_height(const cup_classifier *m);
CUP_API int64_t cup_classifier_width(const cup_classifier *m);
CUP_API int64_t cup_classifier_channels(const cup_classifier *m);
CUP_API int64_t cup_classifier_classes(const cup_classifier *m);
CUP_API const char *cup_classifier_class(const cup_classifier *m, int64_t index);
/* How many numbers are trained. */
CUP_API int64_t cup_classifier_count(const cup_classifier *m);

/* The probability of each class for images [count, height, width, channels] of bytes, into
 * probabilities [count, classes]. Not while its loop runs. */
CUP_API cup_status cup_classifier_ask(cup_classifier *m, const uint8_t *pixels, int64_t count,
                                      float *probabilities);

#ifdef __cplusplus
}
#endif
#endif

/* Batches of images for training, those of a step made by a thread while the GPU is at work on the
 * step before. */
#ifndef CUP_TRAIN_IMAGES_AHEAD_H
#define CUP_TRAIN_IMAGES_AHEAD_H

#include "base/error.h"
#include "cupola/classifier.h"

typedef struct cup__images_ahead cup__images_ahead;

/* Which images are made of each of the batches of a step: `rows` from each of these places on. */
typedef struct cup__images_share {
    int parts;
    int64_t from[2], rows;
    int64_t batches;
} cup__images_share;

/* All is borrowed. On a GPU a thread makes batches ahead, in pinned memory, and they go to the GPU
 * beside its work; on a CPU each is made when it is asked for. NULL with an error where there is no
 * memory. */
cup__images_ahead *cup__images_ahead_new(cup_context *c, const cup_images *images,
                                         const cup_classification *how,
                                         const cup__images_share *share);
void cup__images_ahead_free(cup__images_ahead *a);

/* The batches of a step, one behind the other: all pixels to `pixels`, u8 [images, height, width,
 * channels], and the labels, borrowed and there until the next ones are asked for. Those of the
 * step behind it are begun. */
cup_status cup__images_ahead_put(cup__images_ahead *a, int64_t step, cup_tensor *pixels,
                                 const int64_t **labels);

#endif

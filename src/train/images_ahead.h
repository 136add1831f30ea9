/* Batches of images for training, each made by a thread while the GPU is at work on the one before.
 */
#ifndef CUP_TRAIN_IMAGES_AHEAD_H
#define CUP_TRAIN_IMAGES_AHEAD_H

#include "base/error.h"
#include "cupola/classifier.h"

typedef struct cup__images_ahead cup__images_ahead;

/* Which images of each batch are made: `rows` from each of these places on. */
typedef struct cup__images_share {
    int parts;
    int64_t from[2], rows;
} cup__images_share;

/* All is borrowed. Without `threaded` each batch is made when it is asked for. NULL with an error
 * where there is no memory. */
cup__images_ahead *cup__images_ahead_new(cup__error *error, const cup_images *images,
                                         const cup_classification *how,
                                         const cup__images_share *share, bool threaded);
void cup__images_ahead_free(cup__images_ahead *a);

/* The batch of a step, there until the next one is asked for; that of the step behind it is begun.
 */
cup_status cup__images_ahead_get(cup__error *error, cup__images_ahead *a, int64_t step,
                                 const uint8_t **pixels, const int64_t **labels);

#endif

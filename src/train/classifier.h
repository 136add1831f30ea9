/* The inside of a run that trains a network for images. */
#ifndef CUP_TRAIN_CLASSIFIER_H
#define CUP_TRAIN_CLASSIFIER_H

#include "base/json.h"
#include "cupola/classifier.h"
#include "train/images_ahead.h"
#include "train/loop.h"
#include "train/together.h"

struct cup_classifier {
    cup_context *c;
    cup_classification how; /* checked */
    cup_network_sizes sizes;
    char **classes;
    const cup_images *train, *kept; /* NULL of one that was loaded */
    cup_parameters *list;
    cup_network *network;
    cup_tensor *factor, *shift; /* of each channel of bytes, buffers of the list */
    cup_loop *loop;
    cup__images_ahead *ahead; /* batches for training */
    int64_t *host_others;     /* classes of the images mixed in */
    uint8_t *host_kept;       /* a batch of those kept, where they are decoded as needed */
    cup__images_share share;  /* of a batch, this process's */
    cup_tensor *pixels, *labels, *others, *part; /* on the device; `part` is left to the first */
    double accuracy;
};

extern const cup__loop_checkpoints cup__classifier_checkpoints;

/* A network for the sizes and what `how` says, with its list. */
cup_status cup__classifier_make(cup_classifier *m);
/* Memory for names of sizes.classes classes, to be filled. */
cup_status cup__classifier_name(cup_classifier *m);

/* Refuses what cannot be. */
cup_status cup__classification_check(cup_context *c, cup_classification *how);
/* What differs between two that must be alike for one to go on from the other's checkpoint; NULL:
 * nothing. */
const char *cup__classification_differs(const cup_classification *a, const cup_classification *b);
void cup__classification_write(cup__json_writer *writer, const cup_classification *how);
cup_status cup__classification_read(cup_context *c, const cup__json *json,
                                    const cup__json_node *state, cup_classification *how);

#endif

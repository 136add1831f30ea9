/* The inside of a run that trains a network for images. */
#ifndef CUP_TRAIN_CLASSIFIER_H
#define CUP_TRAIN_CLASSIFIER_H

#include "base/json.h"
#include "cupola/classifier.h"
#include "cupola/expr.h"
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
    cup_expr *input;            /* what the network takes, from bytes and these */
    cup_loop *loop;
    cup__images_ahead *ahead; /* batches for training */
    int64_t *host_others;     /* classes of the images mixed in */
    float *host_part;
    uint8_t *host_kept;       /* a batch of those kept, where they are decoded as needed */
    cup__images_share share;  /* of each batch of a step, this process's */
    /* On the device, of all batches of a step, one behind the other; `part` is left to the first
     * of two images of a batch that are mixed. */
    cup_tensor *pixels, *labels, *others, *part;
    double accuracy;
    bool resized;    /* positions from another run were for images of another size */
    char taken[400]; /* what is from another run; "": nothing */
};

extern const cup__loop_checkpoints cup__classifier_checkpoints;

/* A network for the sizes and what `how` says, with its list. */
cup_status cup__classifier_make(cup_classifier *m);
/* Takes the weights of the run that how.from names. */
cup_status cup__classifier_begin(cup_classifier *m);
/* The classifier of a folder as it was saved, with a batchnorm of its own behind each convolution,
 * or its averages. */
cup_classifier *cup__classifier_open(cup_context *c, const char *folder, bool average);
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

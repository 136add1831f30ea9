/* The inside of adapters beside models, in runs and in the folders of others. */
#ifndef CUP_TRAIN_ADAPTERS_H
#define CUP_TRAIN_ADAPTERS_H

#include "base/json.h"
#include "cupola/train.h"
#include "io/checkpoint.h"
#include "train/trainer.h"

/* Whether queries, keys and values, which are one layer of ours, have adapters of their own: they
 * do in all families where they are layers of their own. */
bool cup__adapters_apart(const cup_gpt_config *config);

/* The model that the adapters of a run stand beside: where it lies, and a hash of its weights in
 * the dtype of the run. */
typedef struct cup__base {
    const char *folder;
    uint64_t hash;
} cup__base;

/* Into the JSON object that is open, and out of one, where it goes on pointing into the JSON. */
void cup__base_write(cup__json_writer *writer, const cup__base *base);
cup_status cup__base_read(cup__error *error, const cup__json *json, const cup__json_node *object,
                          cup__base *base);

/* Gives a new model of a checkpoint the weights of its base, which must still be the same, and
 * adapters. */
cup_status cup__base_take(cup_gpt *m, const cup__base *base, const cup_training *training);

/* What a new trainer begins with: the weights of `from`, and beside them the adapters, if that is
 * what is trained. Where `from` is not given these are beside the base of the folder's checkpoint,
 * or, in a folder of none, beside new weights. */
cup_status cup__trainer_begin(cup_context *c, cup_trainer *t, const char *folder);

#endif

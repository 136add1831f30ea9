/* What each process writes and reads of a checkpoint in a folder that all see, whatever it has of
 * the model: the whole, a part of each tensor, a stage, some experts, its share of states. */
#ifndef CUP_TRAIN_SHARDS_H
#define CUP_TRAIN_SHARDS_H

#include "nn/parameters.h"
#include "train/loop.h"

/* Tensors that are this process's to write, and the memory that they need besides the model's and
 * the optimizer's own. */
typedef struct cup__shard {
    cup_named *named;                /* tensors, or NULL where there are `copies` */
    cup__safetensors_source *copies; /* whole tensors in host memory; or NULL */
    int64_t count;
    cup_tensor **views; /* of `named`, where slices have parts of tensors */
    char (*names)[CUP__SLICE_NAME];
    char **blocks; /* the memory of copies */
    int64_t view_count, block_count;
} cup__shard;

/* Whether processes have parts or stages of the model, so that each writes a share of it. */
bool cup__loop_is_parted(const cup_loop *loop);

/* This process's share of the model as whole tensors, which who has their parts sends to whom they
 * fall, one at a time; and of the states, as slices of those of which it has a part. All processes
 * call the first. Where nothing is parted the model falls to rank 0, but for what belongs to
 * others. */
cup_status cup__shard_weights(cup_loop *loop, cup__shard *out);
cup_status cup__shard_states(cup_loop *loop, cup__shard *out);
void cup__shard_free(cup__shard *shard);

/* Fills what this process has of the model and of the states. */
cup_status cup__shards_read(cup_loop *loop, const cup__checkpoint *checkpoint);

/* What this process, or another one of those who share it out, has of a tensor. */
cup__cut cup__portion_cut(const cup_tensor *t, const cup__portion *part, int rank, int64_t rows);

#endif

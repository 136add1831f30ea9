/* A small run that processes share out in some way, for tests. */
#ifndef TRAIN_PARTED_H
#define TRAIN_PARTED_H

#include "train/session.h"

/* How processes share out a model. */
typedef struct parts {
    int64_t tensor, stages, ring, chunks;
    const int64_t *blocks;
    bool gated; /* see training_of */
    int zero;   /* what each has a share of, beside, see cup_optimizer_options */
    int64_t layers; /* 0: 4 */
    int64_t texts; /* of a batch, where a test says so */
    double dropout;
    int64_t experts, expert; /* of the model, and how they are shared out */
    double capacity;
    int64_t batches; /* of a step; 0: 4 */
    cup_method method;
    bool sequence;
    int64_t lora_rank; /* of adapters, beside the model in `from` */
    const char *from;
    int64_t *chosen; /* where the run's policy and its blocks are put, or NULL */
} parts;

/* A model of four blocks, or another one with gates; and with the experts that the parts say. */
cup_training parted_training(bool gated);
cup_training parted_mixed(const parts *p);

/* The points of a run that is made, or resumed in the folder. */
int64_t parted_run(cup_context *c, cup_comm *comm, cup_training a, parts p, const char *folder,
                   bool resume, cup_training_point *out);

/* That two runs are the same within rounding, of at least twelve points. */
void parted_expect(cup_context *c, const cup_training_point *a, int64_t count,
                   const cup_training_point *b, int64_t same, const char *what);

/* A context and a communicator of a process on the stand-ins for GPUs and NCCL. */
cup_comm *parted_join_gpu(cup_comm *all, cup_context **c);

#endif

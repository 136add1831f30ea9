/* What one of several processes has of a model, as a training that is its own. */
#include "train/trainer.h"

int64_t cup__training_blocks(const cup_training *a)
{
    int64_t layers = a->model.layers, stages = a->stages > 1 ? a->stages : 1, most = 0;
    int64_t chunks = a->chunks > 1 ? a->chunks : 1;
    if (!a->blocks || stages == 1)
        return (layers + stages - 1) / stages;
    for (int64_t i = 0; i < stages; i++) {
        int64_t blocks = 0;
        for (int64_t k = 0; k < chunks; k++)
            blocks += a->blocks[k * stages + i];
        most = blocks > most ? blocks : most;
    }
    return most;
}

static int64_t part_of(int64_t all, int64_t processes)
{
    return all < processes ? 1 : all / processes;
}

/* What cannot be shared out so is refused where the model is made. */
void cup__training_cut(cup_training *a)
{
    cup_gpt_config *g = &a->model;
    g->layers = cup__training_blocks(a);
    if (a->ring > 1)
        g->context = part_of(g->context, a->ring);
    if (a->tensor > 1) {
        g->head_size = g->head_size ? g->head_size : g->width / g->heads;
        g->kv_heads = part_of(g->kv_heads ? g->kv_heads : g->heads, a->tensor);
        g->heads = part_of(g->heads, a->tensor);
        g->hidden = part_of(g->hidden, a->tensor);
        g->vocabulary = (g->vocabulary + a->tensor - 1) / a->tensor;
    }
    a->tensor = a->stages = a->ring = a->chunks = a->expert = 0;
    a->blocks = NULL;
    a->comm = a->optimizer.split = NULL;
    a->sequence = false;
}

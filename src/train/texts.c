/* The texts of a step, brought to the device. */
#include "base/memory.h"
#include "tensor/tensor.h"
#include "train/trainer.h"

#define PIECE (1 << 20) /* tokens that are written at a time, some 20 ms */

/* How many texts are written at a time. */
static int64_t rows_of_piece(const cup_trainer *t)
{
    int64_t rows = t->share * t->rows, most = PIECE / t->training.model.context;
    return rows < most ? rows : most > 1 ? most : 1;
}

int64_t cup__trainer_length(const cup_trainer *t)
{
    return t->training.model.context / cup_comm_count(t->ring);
}

static cup_status write_rows(const cup_trainer *t, cup_tensor *to, int64_t first, int64_t rows,
                             int32_t *from)
{
    int64_t length = to->shape[2], offset = first * length;
    cup__shape shape = {.dtype = to->dtype, .ndim = 1, .size = {rows * length}};
    cup__text_parts(t->ring, t->training.model.context, rows, from);
    cup_tensor *piece = cup__tensor_view(to, &shape, &(int64_t){1}, offset);
    if (!piece)
        return to->context->error.status;
    cup_status status =
        cup_tensor_write(piece, from, (size_t)shape.size[0] * sizeof *from);
    cup_tensor_free(piece);
    return status;
}

/* Some texts of a step, from the first one on. */
static cup_status read_texts(cup_context *c, cup_trainer *t, int64_t step, int64_t first,
                             int64_t rows)
{
    const cup_training *a = &t->training;
    if (a->order == CUP_DATA_ORDER_PERMUTED)
        return cup_data_samples(c, t->data, a->seed,
                                step * a->batch * a->accumulate + first, rows, a->model.context,
                                t->host_tokens, t->host_targets);
    return cup_data_batch(c, t->data, CUP_SPLIT_TRAIN, a->seed, (uint64_t)step, first, rows,
                          a->model.context, t->host_tokens, t->host_targets);
}

/* There may be so many of them that a stop cannot wait. */
cup_status cup__trainer_texts(cup_context *c, int64_t step, void *user)
{
    cup_trainer *t = user;
    int64_t all = t->share * t->rows, most = rows_of_piece(t);
    int64_t before = all * (t->group / cup_comm_count(t->ring));
    for (int64_t first = 0; first < all; first += most) {
        int64_t rows = all - first < most ? all - first : most;
        CUP_TRY(read_texts(c, t, step, before + first, rows));
        CUP_TRY(write_rows(t, t->tokens, first, rows, t->host_tokens));
        CUP_TRY(write_rows(t, t->targets, first, rows, t->host_targets));
        if (first + rows < all)
            CUP_TRY(cup__stopped(c));
    }
    return CUP_OK;
}

cup_status cup__trainer_batches(cup_context *c, cup_trainer *t)
{
    const cup_training *a = &t->training;
    const int64_t shape[] = {t->share, t->rows, cup__trainer_length(t)};
    size_t tokens = (size_t)(rows_of_piece(t) * a->model.context);
    t->host_tokens = cup__malloc(tokens * sizeof *t->host_tokens);
    t->host_targets = cup__malloc(tokens * sizeof *t->host_targets);
    if (!t->host_tokens || !t->host_targets)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for the batches of a step");
    t->tokens = cup_keep(cup_tensor_new(c, CUP_I32, 3, shape));
    t->targets = cup_keep(cup_tensor_new(c, CUP_I32, 3, shape));
    return c->error.status;
}

/* The moving averages of a checkpoint in the place of its weights. */
#include <stdio.h>

#include "base/memory.h"
#include "optim/average.h"
#include "tensor/tensor.h"
#include "train/loop.h"

/* The weights as the optimizer has them, with rows that no file has; tensors for their averages,
 * and for how many steps these have, under their names in the file. */
static cup_status make_tensors(cup_context *c, const cup_parameters *list, cup_named *weights,
                               int64_t count, cup_named *out, char (*names)[128])
{
    for (int64_t i = 0; i < count; i++) {
        const cup_tensor *w = weights[i].tensor = cup_parameters_find(list, weights[i].name);
        cup_dtype dtype = w->dtype == CUP_F64 ? CUP_F64 : CUP_F32;
        int length = snprintf(names[i], sizeof *names, "%s.%s", weights[i].name, CUP__AVERAGE_PART);
        if (length < 0 || (size_t)length >= sizeof *names)
            return cup__fail(&c->error, CUP_ARGUMENT, "averages: the name %s is too long",
                             weights[i].name);
        out[i] = (cup_named){names[i], cup_tensor_new(c, dtype, w->ndim, w->shape)};
    }
    out[count] = (cup_named){"steps", cup_tensor_new(c, CUP_F64, 1, (int64_t[]){4})};
    return c->error.status;
}

static cup_status take(cup_context *c, const cup_named *weights, int64_t count,
                       const cup_named *averages, double decay)
{
    double steps[4];
    CUP_TRY(cup_tensor_read(averages[count].tensor, steps, sizeof steps));
    double scale = cup__average_scale(decay, (int64_t)steps[0]);
    for (int64_t i = 0; i < count && scale > 0; i++)
        CUP_TRY(cup__average_take(c, weights[i].tensor, averages[i].tensor, scale));
    return CUP_OK;
}

/* Those of the list that an optimizer has. */
static int64_t take_trained(const cup_parameters *list, const cup_named *named, int64_t count,
                            cup_named *out)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++)
        if (cup_parameters_find(list, named[i].name)->is_parameter)
            out[kept++] = named[i];
    return kept;
}

cup_status cup__take_averages(cup_context *c, const cup__checkpoint *checkpoint,
                              cup_parameters *list, double decay)
{
    int64_t count;
    if (decay == 0)
        return cup__fail(&c->error, CUP_STATE,
                         "the run of this checkpoint kept no averages of its weights; train with "
                         "--ema");
    const cup_named *named = cup_parameters_named(list, &count);
    cup_named *averages = cup__calloc((size_t)count + 1, sizeof *averages);
    cup_named *weights = cup__calloc((size_t)count + 1, sizeof *weights);
    char(*names)[128] = cup__calloc((size_t)count + 1, sizeof *names);
    cup_status status = CUP_OK;
    cup_scope_open(c);
    if (!named || !averages || !weights || !names)
        status = cup__fail(&c->error, CUP_MEMORY, "out of host memory for averages");
    if (status == CUP_OK) {
        count = take_trained(list, named, count, weights);
        status = make_tensors(c, list, weights, count, averages, names);
    }
    if (status == CUP_OK)
        status = cup__checkpoint_fill_some(c, checkpoint, CUP__OPTIMIZER_FILE, averages, count + 1,
                                           -1);
    if (status == CUP_OK)
        status = take(c, weights, count, averages, decay);
    cup_scope_return(c, NULL);
    cup__free(averages);
    cup__free(weights);
    cup__free(names);
    return status;
}

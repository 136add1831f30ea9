/* Making a GPT: its tensors from the table of config.c, and the lists of them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/room.h"
#include "base/text.h"
#include "cupola/ops.h"
#include "nn/gpt.h"
#include "tensor/tensor.h"

#define DEVIATION 0.02

static cup_tensor **place_of(cup_gpt *m, const cup__gpt_tensor *t, int64_t block)
{
    char *base = t->in_block ? (char *)&m->blocks[block] : (char *)m;
    return (cup_tensor **)(void *)(base + t->offset);
}

static cup_tensor *start_tensor(cup_gpt *m, const cup__gpt_tensor *t)
{
    const cup_gpt_config *g = &m->config;
    int64_t shape[2] = {cup__gpt_extent(g, t->shape[0]), cup__gpt_extent(g, t->shape[1])};
    int ndim = t->shape[1] == CUP__EXTENT_NONE ? 1 : 2;
    if (t->start == CUP__START_0 || t->start == CUP__START_1)
        return cup_full(m->context, m->dtype, ndim, shape, t->start == CUP__START_1);
    double shrink = t->start == CUP__START_RESIDUAL ? 1 / sqrt(2.0 * (double)g->layers) : 1;
    return cup_normal(m->context, m->dtype, ndim, shape, 0, DEVIATION * shrink);
}

/* Rows that stand for no token are 0 and stay so: nothing gives them a gradient. */
static cup_status clear_spare_rows(cup_gpt *m, cup_tensor *t)
{
    int64_t used = m->config.vocabulary * m->config.width * cup_dtype_size(m->dtype);
    int64_t all = t->count * cup_dtype_size(m->dtype);
    if (used == all)
        return CUP_OK;
    cup__device *device = m->context->device;
    return device->calls->fill(device, (char *)t->data + used, 0, (size_t)(all - used));
}

/* Adds the tensor to the lists; a file has it without the spare rows. */
static cup_status add_tensor(cup_gpt *m, const cup__gpt_tensor *t, int64_t block)
{
    cup_context *c = m->context;
    cup_tensor *tensor = cup_keep(start_tensor(m, t));
    *place_of(m, t, block) = tensor;
    if (!tensor)
        return c->error.status;
    char name[64];
    snprintf(name, sizeof name, t->name, (int)block);
    char *copy = cup__strdup(name);
    if (!copy)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for a model");
    m->parameters[m->parameter_count++] =
        (cup_parameter){.name = copy,
                        .tensor = tensor,
                        .decay = tensor->ndim == 2,
                        .hidden = tensor->ndim == 2 && t->in_block};
    cup_named *weight = &m->weights[m->weight_count++];
    *weight = (cup_named){copy, tensor};
    if (t->shape[0] != CUP__EXTENT_ROWS)
        return CUP_OK;
    CUP_TRY(clear_spare_rows(m, tensor));
    cup__shape shape = cup__shape_of(tensor);
    shape.size[0] = m->config.vocabulary;
    weight->tensor = cup_keep(cup__tensor_view(tensor, &shape, tensor->stride, 0));
    return c->error.status;
}

cup_status cup__gpt_fits(cup_context *c, const cup_gpt_config *config, int64_t bytes_each,
                         const char *what)
{
    cup__memory_use use = {0};
    c->device->calls->memory_use(c->device, &use);
    int64_t most = use.total;
    if (!c->device->is_cuda) {
        cup__room room;
        cup__room_find(&room);
        most = room.free;
    }
    most = use.limit > 0 && use.limit < most ? use.limit : most;
    double count = (double)cup_gpt_parameter_count(config, true);
    char needs[32], has[32];
    if (most <= 0 || count * (double)bytes_each <= (double)most)
        return CUP_OK;
    return cup__fail(&c->error, CUP_MEMORY,
                     "gpt: %.4g million parameters need %s for %s alone, and the device has %s; "
                     "make the model smaller",
                     count * 1e-6, cup__text_bytes(count * (double)bytes_each, needs), what,
                     cup__text_bytes((double)most, has));
}

static cup_status make(cup_gpt *m)
{
    size_t most = 0, layers = (size_t)m->config.layers;
    for (const cup__gpt_tensor *t = cup__gpt_tensors; t->name; t++)
        most += t->in_block ? layers : 1;
    m->blocks = cup__calloc(layers, sizeof *m->blocks);
    m->parameters = cup__calloc(most, sizeof *m->parameters);
    m->weights = cup__calloc(most, sizeof *m->weights);
    m->passes = cup__calloc(2 * layers, sizeof *m->passes);
    if (!m->blocks || !m->parameters || !m->weights || !m->passes)
        return cup__fail(&m->context->error, CUP_MEMORY, "out of host memory for a model");
    for (size_t i = 0; i < 2 * layers; i++)
        m->passes[i] = (cup__gpt_pass){m, &m->blocks[i / 2], i % 2};
    for (const cup__gpt_tensor *t = cup__gpt_tensors; t->name; t++) {
        if (t->absent && t->absent(&m->config))
            continue;
        for (int64_t i = 0; i < (t->in_block ? m->config.layers : 1); i++)
            CUP_TRY(add_tensor(m, t, i));
    }
    if (!m->config.untied)
        m->head = m->embedding;
    return CUP_OK;
}

cup_gpt *cup_gpt_new(cup_context *c, const cup_gpt_config *config, cup_dtype dtype)
{
    if (!c || c->error.status != CUP_OK)
        return NULL;
    if (!config) {
        cup__fail(&c->error, CUP_ARGUMENT, "gpt: there is no configuration to make a model of");
        return NULL;
    }
    cup_gpt *m = cup__calloc(1, sizeof *m);
    if (!m) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a model");
        return NULL;
    }
    m->context = c;
    cup__context_join(c);
    m->config = *config;
    m->dtype = dtype;
    cup_status status = cup_gpt_config_check(c, &m->config);
    if (status == CUP_OK && !cup__dtype_is_float(dtype))
        status = cup__fail(&c->error, CUP_DTYPE, "gpt: parameters of %s cannot be learned",
                           cup_dtype_name(dtype));
    if (status == CUP_OK)
        status = cup__gpt_fits(c, &m->config, cup_dtype_size(dtype), "weights");
    if (status == CUP_OK) {
        bool was = cup_grad_recording(c, false);
        cup_random_step(c, 0);
        status = make(m);
        cup_grad_recording(c, was);
    }
    if (status == CUP_OK && c->error.status == CUP_OK)
        return m;
    cup_gpt_free(m);
    return NULL;
}

void cup_gpt_free(cup_gpt *m)
{
    if (!m)
        return;
    for (int64_t i = 0; i < m->weight_count; i++)
        if (m->weights[i].tensor != m->parameters[i].tensor)
            cup_tensor_free(m->weights[i].tensor);
    for (int i = 0; i < m->parameter_count; i++) {
        cup_tensor_free(m->parameters[i].tensor);
        cup__free((char *)(uintptr_t)m->parameters[i].name);
    }
    cup__free(m->blocks);
    cup__free(m->parameters);
    cup__free(m->weights);
    cup__free(m->passes);
    cup__context_leave(m->context);
    cup__free(m);
}

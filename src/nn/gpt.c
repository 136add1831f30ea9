/* Making a GPT: its tensors from the table of config.c, and the layers of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cupola/expr.h"
#include "cupola/ops.h"
#include "cupola/prof.h"
#include "nn/gpt.h"

#define DEVIATION 0.02
#define ALL INT64_MIN /* blocks, as many as there are */

/* What stands one behind the other in it: queries, keys and values, or gates and values. */
static void sections_of(const cup_gpt_config *g, const cup__gpt_tensor *t, int64_t to[3])
{
    int64_t size = cup__gpt_head_size(g);
    if (t->shape[0] == CUP__EXTENT_QKV) {
        to[0] = g->heads * size;
        to[1] = to[2] = g->kv_heads * size;
    }
    bool up = t->shape[0] == CUP__EXTENT_UP || t->shape[1] == CUP__EXTENT_UP;
    if (up && g->mlp == CUP_MLP_KIND_SWIGLU)
        to[0] = to[1] = g->hidden;
}

/* Of the weights that began so elsewhere, the random numbers come in the table's order. */
static cup_tensor *make_tensor(cup_gpt *m, const cup__gpt_tensor *t, int64_t block)
{
    const cup_gpt_config *g = &m->config;
    const int64_t shape[] = {cup__gpt_extent(g, t->shape[0]), cup__gpt_extent(g, t->shape[1]),
                             cup__gpt_extent(g, t->shape[2])};
    bool matrix = t->shape[1] != CUP__EXTENT_NONE, matrices = t->shape[2] != CUP__EXTENT_NONE;
    bool routed = t->shape[0] == CUP__EXTENT_EXPERTS;
    double shrink = t->start == CUP__START_RESIDUAL ? 1 / sqrt(2.0 * (double)g->layers) : 1;
    char name[64];
    snprintf(name, sizeof name, t->name, (int)block);
    cup_parameter_options options = {
        .size = sizeof options,
        .initializer = t->start == CUP__START_0   ? CUP_INITIALIZER_ZEROS
                       : t->start == CUP__START_1 ? CUP_INITIALIZER_ONES
                                                  : CUP_INITIALIZER_NORMAL_IN_ORDER,
        .deviation = DEVIATION * shrink,
        .decay = matrix,
        .hidden = matrix && t->in_block && !routed,
        .rows = t->shape[0] == CUP__EXTENT_ROWS ? g->vocabulary : 0,
        .part = t->part};
    sections_of(g, t, options.sections);
    return cup_parameter_new(m->parameters, name, 1 + matrix + matrices, shape, &options);
}

static bool is_first(const cup_gpt *m)
{
    return m->first == 0;
}

static bool is_last(const cup_gpt *m)
{
    return m->end == m->config.layers;
}

static int64_t blocks_here(const cup_gpt *m)
{
    int64_t count = 0;
    for (int i = 0; i < m->chunks; i++)
        count += m->bounds[2 * i + 1] - m->bounds[2 * i];
    return count;
}

bool cup__gpt_has_block(const cup_gpt *m, int64_t block)
{
    for (int i = 0; i < m->chunks; i++)
        if (block >= m->bounds[2 * i] && block < m->bounds[2 * i + 1])
            return true;
    return false;
}

static bool is_stage(const cup_gpt *m)
{
    return blocks_here(m) < m->config.layers;
}

cup_status cup__gpt_check_whole(const cup_gpt *m, const char *what)
{
    if (!is_stage(m))
        return CUP_OK;
    return cup_fail(m->context, CUP_UNSUPPORTED,
                    "%s: this process has the blocks from %lld to %lld of the model's %lld; load "
                    "the whole from its checkpoint",
                    what, (long long)m->first, (long long)m->end, (long long)m->config.layers);
}

/* Whether a stage has it: what leads to the blocks, those, or what leads from them. */
static bool is_here(const cup_gpt *m, const cup__gpt_tensor *t, int64_t block)
{
    if (t->in_block)
        return cup__gpt_has_block(m, block);
    if (t->offset == offsetof(cup_gpt, embedding))
        return is_first(m) || (is_last(m) && !m->config.untied);
    return t->offset == offsetof(cup_gpt, positions) ? is_first(m) : is_last(m);
}

/* Draws as often as a tensor of another stage does. */
static cup_status pass_by(cup_gpt *m, const cup__gpt_tensor *t)
{
    if (t->start == CUP__START_NORMAL || t->start == CUP__START_RESIDUAL)
        cup_tensor_free(cup_normal(m->context, CUP_F32, 0, NULL, 0, 1));
    return cup_error(m->context);
}

static cup_status make_tensors(cup_gpt *m, cup_transformer_tensors *blocks)
{
    for (const cup__gpt_tensor *t = cup__gpt_tensors; t->name; t++) {
        if (t->absent && t->absent(&m->config))
            continue;
        for (int64_t i = 0; i < (t->in_block ? m->config.layers : 1); i++) {
            char *base = t->in_block ? (char *)&blocks[i] : (char *)m;
            cup_tensor *made = is_here(m, t, i) ? make_tensor(m, t, i) : NULL;
            cup_status status = made ? CUP_OK : pass_by(m, t);
            if (status != CUP_OK)
                return status;
            *(cup_tensor **)(void *)(base + t->offset) = made;
        }
    }
    if (!m->config.untied)
        m->head = m->embedding;
    return CUP_OK;
}

static cup_status make_blocks(cup_gpt *m, const cup_transformer_tensors *tensors)
{
    const cup_gpt_config *g = &m->config;
    cup_transformer_layer_options options = {
        .size = sizeof options,
        .kv_heads = g->kv_heads,
        .causal = true,
        .rope = g->positions == CUP_POSITIONS_ROTARY,
        .rope_base = g->rope_base,
        .rmsnorm = g->norm == CUP_NORM_KIND_RMSNORM,
        .epsilon = g->epsilon,
        .head_size = g->head_size,
        .qk_norm = g->qk_norm,
        .soft_cap = g->soft_cap,
        .alibi = g->positions == CUP_POSITIONS_ALIBI,
        .sinks = g->sinks,
        .rope_scaling = g->rope_scaling,
        .activation = g->mlp == CUP_MLP_KIND_SWIGLU ? CUP_ACTIVATION_SWIGLU : CUP_ACTIVATION_GELU,
        .dropout = g->dropout,
        .experts = g->experts,
        .experts_each = g->experts_each,
        .capacity = g->capacity,
        .balance = g->balance,
        .router_z = g->router_z};
    for (int64_t i = m->first; i < m->end; i++) {
        if (!cup__gpt_has_block(m, i))
            continue;
        options.window = i < g->window_from ? 0 : g->window;
        cup_status status = cup_transformer_layer_of(&m->blocks[i], m->parameters, &tensors[i],
                                                     g->heads, &options);
        if (status != CUP_OK)
            return status;
        for (int k = 0; k < 2; k++)
            m->passes[2 * i + k] = (cup__gpt_pass){m, &m->blocks[i], k};
    }
    return CUP_OK;
}

cup_status cup__gpt_fits(cup_context *c, const cup_gpt_config *config, int64_t bytes_each,
                         const char *what, int processes, int sharing_experts)
{
    cup_gpt_config part = *config;
    part.experts = (part.experts + sharing_experts - 1) / sharing_experts;
    part.experts_each = 0;
    double count = (double)cup_gpt_parameter_count(&part, true) / processes;
    char words[120];
    snprintf(words, sizeof words, "gpt: %s of %.4g million parameters", what, count * 1e-6);
    return cup_memory_check(c, count * (double)bytes_each, words);
}

static cup_status make(cup_gpt *m, const cup_gpt_sharing *s)
{
    cup_context *c = m->context;
    size_t layers = (size_t)m->config.layers;
    int processes = cup_comm_count(s->among) * (int)(m->config.layers / blocks_here(m));
    int copies = cup_comm_count(s->experts) / cup_comm_count(s->among);
    cup_status status = cup__gpt_fits(c, &m->config, cup_dtype_size(m->dtype), "weights", processes,
                                      copies > 1 ? copies : 1);
    if (status != CUP_OK)
        return status;
    m->parameters = cup_parameters_new(c, m->dtype);
    if (!m->parameters || cup_parameters_among(m->parameters, s->among) != CUP_OK ||
        cup_parameters_experts(m->parameters, s->experts) != CUP_OK)
        return cup_error(c);
    m->blocks = calloc(layers, sizeof *m->blocks);
    m->passes = calloc(2 * layers, sizeof *m->passes);
    cup_transformer_tensors *tensors = calloc(layers, sizeof *tensors);
    if (!m->blocks || !m->passes || !tensors)
        status = cup_fail(c, CUP_MEMORY, "out of host memory for a model");
    for (size_t i = 0; tensors && i < layers; i++)
        tensors[i].size = sizeof *tensors;
    cup_random_step(c, 0);
    if (status == CUP_OK)
        status = make_tensors(m, tensors);
    if (status == CUP_OK)
        status = make_blocks(m, tensors);
    if (status == CUP_OK && m->config.logits_cap > 0) {
        m->cap = cup_expr_new(c, "x", "cap", "cap * tanh(x / cap)");
        status = cup_error(c);
    }
    free(tensors);
    return status;
}

static cup_status check_stage(const cup_gpt *m)
{
    cup_context *c = m->context;
    for (int i = 0; i < m->chunks; i++) {
        int64_t first = m->bounds[2 * i], end = m->bounds[2 * i + 1];
        if (first < 0 || first >= end || end > m->config.layers)
            return cup_fail(c, CUP_ARGUMENT,
                            "gpt: a stage has blocks from %lld to %lld, and the model %lld; give "
                            "each stage some of them",
                            (long long)first, (long long)end, (long long)m->config.layers);
        if (i > 0 && first <= m->bounds[2 * i - 1])
            return cup_fail(c, CUP_ARGUMENT,
                            "gpt: chunk %d of a stage begins with block %lld, and the one before "
                            "it ends there or behind; leave blocks for other stages between them",
                            i, (long long)first);
    }
    return CUP_OK;
}

static const int64_t whole[] = {0, ALL};

static cup_status take_bounds(cup_gpt *m, const int64_t *bounds, int chunks)
{
    if (chunks < 1)
        return cup_fail(m->context, CUP_ARGUMENT, "gpt: a stage has %d chunks; give it some",
                        chunks);
    m->bounds = malloc(2 * (size_t)chunks * sizeof *m->bounds);
    if (!m->bounds)
        return cup_fail(m->context, CUP_MEMORY, "out of host memory for a model");
    memcpy(m->bounds, bounds, 2 * (size_t)chunks * sizeof *m->bounds);
    m->chunks = chunks;
    if (bounds[1] == ALL)
        m->bounds[1] = m->config.layers;
    m->first = m->bounds[0];
    m->end = m->bounds[2 * chunks - 1];
    return check_stage(m);
}

/* Of those who have some of them each expert is whole. */
static cup_status check_experts(const cup_gpt *m, const cup_gpt_sharing *s)
{
    cup_context *c = m->context;
    int64_t processes = cup_comm_count(s->experts);
    if (m->config.experts % processes || (processes > 1 && m->config.experts == 0))
        return cup_fail(c, CUP_ARGUMENT,
                        "gpt: %lld experts in a block cannot be shared out equally to %lld "
                        "processes; make their number a multiple of these",
                        (long long)m->config.experts, (long long)processes);
    return CUP_OK;
}

/* Weights of 8 bits would need scales, which products and caches of 8 bits make. */
static cup_status check_dtype(cup_context *c, cup_dtype dtype)
{
    if (dtype == CUP_F32 || dtype == CUP_BF16 || dtype == CUP_F16 || dtype == CUP_F64)
        return CUP_OK;
    bool is_f8 = dtype == CUP_F8E4M3 || dtype == CUP_F8E5M2;
    return cup_fail(c, CUP_DTYPE, "gpt: a model is in f32, bf16, f16 or f64, not in %s%s",
                    cup_dtype_name(dtype),
                    is_f8 ? "; take bf16, with the precision \"fp8\" of training "
                            "(cup_parameters_fp8) for products of 8 bits and cache_dtype for keys "
                            "and values"
                          : "");
}

cup_gpt *cup_gpt_shared_new(cup_context *c, cup_dtype dtype, const cup_gpt_sharing *sharing,
                            const cup_gpt_config *config)
{
    cup_gpt_sharing s;
    if (!c || cup_error(c) != CUP_OK)
        return NULL;
    if (!config) {
        cup_fail(c, CUP_ARGUMENT, "gpt: there is no configuration to make a model of");
        return NULL;
    }
    if (check_dtype(c, dtype) != CUP_OK)
        return NULL;
    cup_gpt *m = calloc(1, sizeof *m);
    if (!m) {
        cup_fail(c, CUP_MEMORY, "out of host memory for a model");
        return NULL;
    }
    m->context = c;
    m->dtype = dtype;
    if (cup__gpt_sharing_take(c, sharing, &s) == CUP_OK &&
        cup__gpt_config_take(c, config, &m->config) == CUP_OK &&
        take_bounds(m, s.bounds ? s.bounds : whole, s.bounds ? s.chunks : 1) == CUP_OK &&
        check_experts(m, &s) == CUP_OK && make(m, &s) == CUP_OK)
        return m;
    cup_gpt_free(m);
    return NULL;
}

cup_gpt *cup_gpt_new(cup_context *c, cup_dtype dtype, const cup_gpt_config *config)
{
    return cup_gpt_shared_new(c, dtype, NULL, config);
}

cup_gpt *cup_gpt_among_new(cup_context *c, cup_dtype dtype, const cup_gpt_config *config,
                           cup_comm *among)
{
    return cup_gpt_shared_new(c, dtype, CUP_OPTIONS(cup_gpt_sharing, .among = among), config);
}

cup_gpt *cup_gpt_experts_new(cup_context *c, cup_dtype dtype, const cup_gpt_config *config,
                             cup_comm *experts)
{
    return cup_gpt_shared_new(c, dtype, CUP_OPTIONS(cup_gpt_sharing, .experts = experts), config);
}

cup_gpt *cup_gpt_stage_new(cup_context *c, cup_dtype dtype, int64_t first, int64_t end,
                           const cup_gpt_config *config, cup_comm *among)
{
    const int64_t bounds[] = {first, end < 0 ? 0 : end};
    return cup_gpt_chunks_new(c, dtype, bounds, 1, config, among);
}

cup_gpt *cup_gpt_chunks_new(cup_context *c, cup_dtype dtype, const int64_t *bounds, int chunks,
                            const cup_gpt_config *config, cup_comm *among)
{
    static const int64_t none[] = {0, 0};
    return cup_gpt_shared_new(c, dtype,
                              CUP_OPTIONS(cup_gpt_sharing, .among = among,
                                          .bounds = bounds ? bounds : none,
                                          .chunks = bounds ? chunks : 0),
                              config);
}

void cup_gpt_free(cup_gpt *m)
{
    if (!m)
        return;
    cup_parameters_free(m->adapters);
    cup_parameters_free(m->parameters);
    cup_expr_free(m->cap);
    free(m->loras);
    free(m->blocks);
    free(m->passes);
    free(m->bounds);
    free(m);
}

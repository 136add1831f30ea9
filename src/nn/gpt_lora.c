/* Adapters beside the linear layers of a GPT. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "nn/gpt.h"

/* The linear layers of a block that have adapters. */
static cup_linear_layer *linear_of(const cup_gpt *m, int64_t block, int which)
{
    cup_transformer_layer *b = &m->blocks[block];
    cup_linear_layer *all[] = {&b->attention.qkv, &b->attention.out, &b->mlp.up, &b->mlp.down};
    return all[which];
}

/* Whether adapter i of m->loras is here: beside attention in any block, and beside an MLP where
 * there are no experts in its place. */
static bool has_adapter(const cup_gpt *m, int64_t i)
{
    bool attention = i % CUP__LORA_COUNT < CUP__LORA_UP;
    return cup__gpt_has_block(m, i / CUP__LORA_COUNT) && (attention || m->config.experts == 0);
}

/* What the whole of each is, and which part of it a process has where several share it out. */
static const struct {
    const char *name;
    cup__extent in, out;
    cup_part part;
} linears[CUP__LORA_COUNT] = {
    [CUP__LORA_QKV] = {"attn.c_attn", CUP__EXTENT_WIDTH, CUP__EXTENT_QKV, CUP_PART_ROWS},
    [CUP__LORA_OUT] = {"attn.c_proj", CUP__EXTENT_HEADS, CUP__EXTENT_WIDTH, CUP_PART_COLUMNS},
    [CUP__LORA_UP] = {"mlp.c_fc", CUP__EXTENT_WIDTH, CUP__EXTENT_UP, CUP_PART_ROWS},
    [CUP__LORA_DOWN] = {"mlp.c_proj", CUP__EXTENT_HIDDEN, CUP__EXTENT_WIDTH, CUP_PART_COLUMNS}};

/* The rows of what stands one behind the other in it; of one layer alone there are none. */
static cup_ints parts_of(const cup_gpt *m, int which, int64_t rows[CUP_LORA_PARTS])
{
    const cup_gpt_config *g = &m->config;
    bool gated = g->mlp == CUP_MLP_KIND_SWIGLU;
    int64_t size = cup__gpt_head_size(g);
    cup_ints parts = {rows, 0};
    if (which == CUP__LORA_QKV) {
        rows[0] = g->heads * size;
        rows[1] = rows[2] = g->kv_heads * size;
        parts.count = 3;
    } else if (which == CUP__LORA_UP && gated) {
        rows[0] = rows[1] = g->hidden;
        parts.count = 2;
    }
    return parts;
}

static cup_status adapt_linear(cup_gpt *m, int64_t block, int which, bool apart)
{
    const cup_gpt_config *g = &m->config;
    int64_t rows[CUP_LORA_PARTS];
    cup_lora_layer_options options = {
        .size = sizeof options, .alpha = m->lora_alpha, .part = linears[which].part};
    cup_ints parts = parts_of(m, which, rows);
    char name[64];
    if (apart)
        options.rows = parts;
    for (int i = 0; i < parts.count; i++)
        options.sections[i] = rows[i];
    snprintf(name, sizeof name, "h.%lld.%s", (long long)block, linears[which].name);
    return cup_lora_layer_new(&m->loras[block * CUP__LORA_COUNT + which], m->adapters, name,
                              cup__gpt_extent(g, linears[which].in),
                              cup__gpt_extent(g, linears[which].out), m->lora_rank, &options);
}

static cup_status adapt(cup_gpt *m, bool apart)
{
    cup_status status = cup_parameters_among(m->adapters, cup_parameters_comm(m->parameters));
    for (int64_t i = 0; i < m->config.layers * CUP__LORA_COUNT && status == CUP_OK; i++)
        if (has_adapter(m, i))
            status = adapt_linear(m, i / CUP__LORA_COUNT, (int)(i % CUP__LORA_COUNT), apart);
    if (status == CUP_OK)
        status = cup_parameters_freeze(m->parameters);
    return status;
}

static void set_all(const cup_gpt *m, bool on)
{
    for (int64_t i = 0; i < m->config.layers * CUP__LORA_COUNT; i++)
        if (has_adapter(m, i))
            linear_of(m, i / CUP__LORA_COUNT, (int)(i % CUP__LORA_COUNT))->lora =
                on ? &m->loras[i] : NULL;
}

static void drop(cup_gpt *m)
{
    set_all(m, false);
    cup_parameters_free(m->adapters);
    free(m->loras);
    m->adapters = NULL;
    m->loras = NULL;
    m->lora_rank = 0;
    m->lora_alpha = 0;
}

cup_status cup_gpt_adapt(cup_gpt *m, int64_t rank, double alpha, bool apart)
{
    if (!m)
        return CUP_ARGUMENT;
    cup_context *c = m->context;
    if (cup_error(c) != CUP_OK)
        return cup_error(c);
    if (m->adapters)
        return cup_fail(c, CUP_STATE, "gpt: it has adapters already; merge them first");
    if (rank < 1 || rank > CUP__LORA_RANK_MOST || !(alpha >= 0 && isfinite(alpha)))
        return cup_fail(c, CUP_ARGUMENT,
                        "gpt: adapters of rank %lld and alpha %g cannot be; the rank must be from "
                        "1 to %d, alpha at least 0",
                        (long long)rank, alpha, CUP__LORA_RANK_MOST);
    m->loras = calloc((size_t)(m->config.layers * CUP__LORA_COUNT), sizeof *m->loras);
    if (!m->loras)
        return cup_fail(c, CUP_MEMORY, "out of host memory for adapters");
    m->adapters = cup_parameters_new(c, m->dtype);
    m->lora_rank = rank;
    m->lora_alpha = alpha == 0 ? (double)rank : alpha;
    cup_status status = m->adapters ? adapt(m, apart) : cup_error(c);
    if (status == CUP_OK)
        set_all(m, true);
    else
        drop(m);
    return status;
}

cup_status cup_gpt_merge(cup_gpt *m)
{
    if (!m)
        return CUP_ARGUMENT;
    if (cup_error(m->context) != CUP_OK)
        return cup_error(m->context);
    if (!m->adapters)
        return cup_fail(m->context, CUP_STATE, "gpt: there are no adapters to merge");
    for (int64_t i = 0; i < m->config.layers * CUP__LORA_COUNT; i++) {
        if (!has_adapter(m, i))
            continue;
        const cup_linear_layer *linear =
            linear_of(m, i / CUP__LORA_COUNT, (int)(i % CUP__LORA_COUNT));
        cup_status status = cup_lora_layer_merge(&m->loras[i], linear->weight);
        if (status != CUP_OK)
            return status;
    }
    drop(m);
    return cup_parameters_unfreeze(m->parameters);
}

cup_parameters *cup__gpt_learned(const cup_gpt *m)
{
    return m->adapters ? m->adapters : m->parameters;
}

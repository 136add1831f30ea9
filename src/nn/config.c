#include <math.h>
#include <string.h>

#include "base/fields.h"
#include "base/options.h"
#include "nn/config.h"
#include "nn/gpt.h"
#include "nn/layers.h"
#include "tensor/tensor.h"

#define MOST_LAYERS 4096
#define MOST_FEATURES 4194304 /* of all heads of queries together */
#define MOST_INSIDE ((int64_t)1 << 26) /* width inside all experts together */
#define MOST_SIZE ((int64_t)1 << 24) /* with this no count of parameters overflows */

int64_t cup__gpt_head_size(const cup_gpt_config *config)
{
    return config->head_size ? config->head_size : config->width / config->heads;
}

int64_t cup__gpt_parts(const cup_gpt_config *config)
{
    return config->heads + 2 * config->kv_heads;
}

int64_t cup__gpt_rows(const cup_gpt_config *config)
{
    /* Rows of logits then start at multiples of 16 bytes, and large products have whole tiles. */
    int64_t step = config->vocabulary < 4096 ? 8 : 128;
    return (config->vocabulary + step - 1) / step * step;
}

int64_t cup__gpt_extent(const cup_gpt_config *config, cup__extent extent)
{
    switch (extent) {
    case CUP__EXTENT_ROWS:
        return cup__gpt_rows(config);
    case CUP__EXTENT_CONTEXT:
        return config->context;
    case CUP__EXTENT_WIDTH:
        return config->width;
    case CUP__EXTENT_QKV:
        return cup__gpt_parts(config) * cup__gpt_head_size(config);
    case CUP__EXTENT_HEAD:
        return cup__gpt_head_size(config);
    case CUP__EXTENT_SINKS:
        return config->heads;
    case CUP__EXTENT_HEADS:
        return config->heads * cup__gpt_head_size(config);
    case CUP__EXTENT_UP:
        return config->hidden * (config->mlp == CUP_MLP_KIND_SWIGLU ? 2 : 1);
    case CUP__EXTENT_HIDDEN:
        return config->hidden;
    case CUP__EXTENT_EXPERTS:
        return config->experts;
    case CUP__EXTENT_NONE:
        break;
    }
    return 1;
}

static bool has_no_out_bias(const cup_gpt_config *config)
{
    return !config->bias && !config->attention_bias;
}

static bool has_no_qkv_bias(const cup_gpt_config *config)
{
    return has_no_out_bias(config) && !config->qkv_bias;
}

static bool has_no_norm_bias(const cup_gpt_config *config)
{
    return !config->bias || config->norm == CUP_NORM_KIND_RMSNORM;
}

static bool has_no_qk_norm(const cup_gpt_config *config)
{
    return !config->qk_norm;
}

static bool has_no_sinks(const cup_gpt_config *config)
{
    return !config->sinks;
}

static bool has_experts(const cup_gpt_config *config)
{
    return config->experts > 0;
}

static bool has_no_experts(const cup_gpt_config *config)
{
    return config->experts == 0;
}

static bool has_no_mlp_bias(const cup_gpt_config *config)
{
    return (!config->bias && !config->mlp_bias) || config->experts > 0;
}

static bool has_no_positions(const cup_gpt_config *config)
{
    return config->positions != CUP_POSITIONS_LEARNED;
}

static bool is_tied(const cup_gpt_config *config)
{
    return !config->untied;
}

#define MODEL(field) false, offsetof(cup_gpt, field)
#define BLOCK(field) true, offsetof(cup_transformer_tensors, field)
#define VECTOR(extent)                                                                             \
    {                                                                                              \
        CUP__EXTENT_##extent, CUP__EXTENT_NONE                                                     \
    }
#define MATRIX(rows, columns)                                                                      \
    {                                                                                              \
        CUP__EXTENT_##rows, CUP__EXTENT_##columns                                                  \
    }

#define EACH_EXPERT(rows, columns)                                                                 \
    {                                                                                              \
        CUP__EXTENT_EXPERTS, CUP__EXTENT_##rows, CUP__EXTENT_##columns                             \
    }

#define HAS(start, part) CUP__START_##start, CUP_PART_##part

const cup__gpt_tensor cup__gpt_tensors[] = {
    {"wte.weight", MODEL(embedding), MATRIX(ROWS, WIDTH), HAS(NORMAL, ROWS), NULL},
    {"wpe.weight", MODEL(positions), MATRIX(CONTEXT, WIDTH), HAS(NORMAL, WHOLE),
     has_no_positions},
    {"h.%d.ln_1.weight", BLOCK(norm1), VECTOR(WIDTH), HAS(1, WHOLE), NULL},
    {"h.%d.ln_1.bias", BLOCK(norm1_bias), VECTOR(WIDTH), HAS(0, WHOLE), has_no_norm_bias},
    {"h.%d.attn.c_attn.weight", BLOCK(qkv), MATRIX(QKV, WIDTH), HAS(NORMAL, ROWS), NULL},
    {"h.%d.attn.c_attn.bias", BLOCK(qkv_bias), VECTOR(QKV), HAS(0, ROWS), has_no_qkv_bias},
    {"h.%d.attn.c_proj.weight", BLOCK(out), MATRIX(WIDTH, HEADS), HAS(RESIDUAL, COLUMNS), NULL},
    {"h.%d.attn.c_proj.bias", BLOCK(out_bias), VECTOR(WIDTH), HAS(0, WHOLE), has_no_out_bias},
    {"h.%d.attn.q_norm.weight", BLOCK(q_norm), VECTOR(HEAD), HAS(1, WHOLE), has_no_qk_norm},
    {"h.%d.attn.k_norm.weight", BLOCK(k_norm), VECTOR(HEAD), HAS(1, WHOLE), has_no_qk_norm},
    {"h.%d.attn.sinks", BLOCK(sinks), VECTOR(SINKS), HAS(0, ROWS), has_no_sinks},
    {"h.%d.ln_2.weight", BLOCK(norm2), VECTOR(WIDTH), HAS(1, WHOLE), NULL},
    {"h.%d.ln_2.bias", BLOCK(norm2_bias), VECTOR(WIDTH), HAS(0, WHOLE), has_no_norm_bias},
    {"h.%d.mlp.c_fc.weight", BLOCK(up), MATRIX(UP, WIDTH), HAS(NORMAL, ROWS), has_experts},
    {"h.%d.mlp.c_fc.bias", BLOCK(up_bias), VECTOR(UP), HAS(0, ROWS), has_no_mlp_bias},
    {"h.%d.mlp.c_proj.weight", BLOCK(down), MATRIX(WIDTH, HIDDEN), HAS(RESIDUAL, COLUMNS),
     has_experts},
    {"h.%d.mlp.c_proj.bias", BLOCK(down_bias), VECTOR(WIDTH), HAS(0, WHOLE), has_no_mlp_bias},
    {"h.%d.mlp.router.weight", BLOCK(router), MATRIX(EXPERTS, WIDTH), HAS(NORMAL, WHOLE),
     has_no_experts},
    {"h.%d.mlp.experts.c_fc.weight", BLOCK(up), EACH_EXPERT(UP, WIDTH),
     HAS(NORMAL, EXPERTS_ROWS), has_no_experts},
    {"h.%d.mlp.experts.c_proj.weight", BLOCK(down), EACH_EXPERT(WIDTH, HIDDEN),
     HAS(RESIDUAL, EXPERTS_COLUMNS), has_no_experts},
    {"ln_f.weight", MODEL(norm), VECTOR(WIDTH), HAS(1, WHOLE), NULL},
    {"ln_f.bias", MODEL(norm_bias), VECTOR(WIDTH), HAS(0, WHOLE), has_no_norm_bias},
    {"lm_head.weight", MODEL(head), MATRIX(ROWS, WIDTH), HAS(NORMAL, ROWS), is_tied},
    {0}};

static cup_status check_range(cup__error *error, const char *name, int64_t value, int64_t most)
{
    if (value >= 1 && value <= most)
        return CUP_OK;
    return cup__fail(error, CUP_ARGUMENT, "gpt: %s must be from 1 to %lld, not %lld", name,
                     (long long)most, (long long)value);
}

static cup_status check_heads(cup__error *error, cup_gpt_config *g)
{
    long long width = g->width, heads = g->heads, kv_heads = g->kv_heads;
    if (g->head_size < 0 || g->head_size > MOST_FEATURES / heads)
        return cup__fail(error, CUP_ARGUMENT,
                         "gpt: head_size must be from 1 to %d for so many heads, not %lld",
                         (int)(MOST_FEATURES / heads), (long long)g->head_size);
    if (!g->head_size && width % heads != 0)
        return cup__fail(error, CUP_ARGUMENT,
                         "gpt: the width %lld is not a multiple of the %lld heads; %lld would be",
                         width, heads, (width / heads + 1) * heads);
    if (heads % kv_heads != 0)
        return cup__fail(error, CUP_ARGUMENT,
                         "gpt: %lld heads do not share %lld heads of keys and values evenly", heads,
                         kv_heads);
    if (g->positions == CUP_POSITIONS_ROTARY && cup__gpt_head_size(g) % 2 != 0)
        return cup__fail(error, CUP_ARGUMENT,
                         "gpt: rotary positions need heads of an even size, not %lld",
                         (long long)cup__gpt_head_size(g));
    g->head_size = g->head_size * heads == width ? 0 : g->head_size;
    return CUP_OK;
}

static cup_status check_numbers(cup__error *error, const cup_gpt_config *g)
{
    if (!(g->dropout >= 0 && g->dropout < 1))
        return cup__fail(error, CUP_ARGUMENT, "gpt: dropout must be at least 0 and below 1, not %g",
                         g->dropout);
    if (!(g->epsilon > 0 && g->epsilon < 1) || !(g->rope_base > 1 && isfinite(g->rope_base)))
        return cup__fail(
            error, CUP_ARGUMENT,
            "gpt: epsilon must be between 0 and 1 and rope_base above 1, not %g and %g", g->epsilon,
            g->rope_base);
    if (!cup__rope_scaling_is_good(&g->rope_scaling, g->rope_base, cup__gpt_head_size(g)))
        return cup__fail(error, CUP_ARGUMENT,
                         "gpt: nothing of rope_scaling may be below 0, and high must be above low; "
                         "yarn takes an original, and dynamic a factor, an original and heads of "
                         "over 2 features, and nothing else");
    if (g->positions > CUP_POSITIONS_ALIBI || g->norm > CUP_NORM_KIND_RMSNORM ||
        g->mlp > CUP_MLP_KIND_SWIGLU)
        return cup__fail(error, CUP_ARGUMENT, "gpt: positions, norm or mlp is none of its kinds");
    if (!(g->soft_cap >= 0 && isfinite(g->soft_cap)) ||
        !(g->logits_cap >= 0 && isfinite(g->logits_cap)))
        return cup__fail(error, CUP_ARGUMENT,
                         "gpt: soft_cap and logits_cap must be above 0, or 0 for none, not %g and "
                         "%g",
                         g->soft_cap, g->logits_cap);
    if (g->document_end < 0 || g->document_end >= g->vocabulary ||
        (g->document_end && !g->documents))
        return cup__fail(error, CUP_ARGUMENT,
                         "gpt: document_end is a token from 0 to %lld of a model with documents, "
                         "not %lld",
                         (long long)g->vocabulary - 1, (long long)g->document_end);
    if (g->family > CUP_GPT_FAMILY_QWEN3_MOE)
        return cup__fail(error, CUP_ARGUMENT, "gpt: the family is none of those there are");
    return CUP_OK;
}

static cup_status check_experts(cup__error *error, cup_gpt_config *g)
{
    bool good = g->capacity >= 0 && isfinite(g->capacity) && g->balance >= 0 &&
                isfinite(g->balance) && g->router_z >= 0 && isfinite(g->router_z);
    if (!good)
        return cup__fail(error, CUP_ARGUMENT,
                         "gpt: capacity, balance and router_z must be at least 0, not %g, %g and "
                         "%g",
                         g->capacity, g->balance, g->router_z);
    if (g->experts == 0 && (g->experts_each || g->capacity > 0 || g->balance > 0 ||
                            g->router_z > 0))
        return cup__fail(error, CUP_ARGUMENT,
                         "gpt: experts_each, capacity, balance and router_z are of experts, of "
                         "which there are none; set experts");
    if (g->experts == 0)
        return CUP_OK;
    CUP_TRY(check_range(error, "experts", g->experts, MOST_INSIDE / g->hidden));
    if (g->experts_each == 0)
        g->experts_each = g->experts < 2 ? 1 : 2;
    return check_range(error, "experts_each", g->experts_each, g->experts);
}

static cup_status check_window(cup__error *error, const cup_gpt_config *g)
{
    if (g->window < 0 || g->window > MOST_SIZE)
        return cup__fail(error, CUP_ARGUMENT, "gpt: window must be from 0 to %lld, not %lld",
                         (long long)MOST_SIZE, (long long)g->window);
    if (g->window_from < 0 || g->window_from > g->layers || (g->window_from && !g->window))
        return cup__fail(error, CUP_ARGUMENT,
                         "gpt: window_from is a block from 0 to %lld of a model with a window, not "
                         "%lld",
                         (long long)g->layers, (long long)g->window_from);
    return CUP_OK;
}

static cup_status check(cup__error *error, cup_gpt_config *g)
{
    CUP_TRY(check_range(error, "layers", g->layers, MOST_LAYERS));
    CUP_TRY(check_range(error, "width", g->width, 1 << 20));
    CUP_TRY(check_range(error, "heads", g->heads, 1 << 16));
    CUP_TRY(check_range(error, "context", g->context, MOST_SIZE));
    CUP_TRY(check_range(error, "vocabulary", g->vocabulary, MOST_SIZE));
    if (g->kv_heads == 0)
        g->kv_heads = g->heads;
    /* Three matrices instead of two: two thirds of the usual width give as many weights. */
    if (g->hidden == 0)
        g->hidden =
            g->mlp == CUP_MLP_KIND_SWIGLU ? (g->width * 8 / 3 + 63) / 64 * 64 : 4 * g->width;
    if (g->rope_base == 0)
        g->rope_base = 10000;
    if (g->epsilon == 0)
        g->epsilon = 1e-5;
    CUP_TRY(check_range(error, "kv_heads", g->kv_heads, g->heads));
    CUP_TRY(check_range(error, "hidden", g->hidden, 1 << 22));
    CUP_TRY(check_heads(error, g));
    CUP_TRY(check_experts(error, g));
    CUP_TRY(check_window(error, g));
    return check_numbers(error, g);
}

cup_status cup__gpt_config_take(cup_context *c, const cup_gpt_config *config, cup_gpt_config *to)
{
    CUP_TRY(cup__options_take(&c->error, "gpt", to, sizeof *to, config));
    return check(&c->error, to);
}

cup_status cup__gpt_sharing_take(cup_context *c, const cup_gpt_sharing *sharing,
                                 cup_gpt_sharing *to)
{
    return cup__options_take(&c->error, "gpt: its sharing", to, sizeof *to, sharing);
}

cup_status cup_gpt_config_check(cup_context *c, cup_gpt_config *config)
{
    if (!c)
        return CUP_MEMORY;
    if (!config)
        return cup__fail(&c->error, CUP_ARGUMENT, "gpt: the configuration is NULL");
    if (c->error.status != CUP_OK)
        return c->error.status;
    cup_gpt_config own;
    size_t size = config->size;
    CUP_TRY(cup__options_take(&c->error, "gpt", &own, sizeof own, config));
    cup_status status = check(&c->error, &own);
    memcpy(config, &own, size < sizeof own ? size : sizeof own);
    config->size = size;
    return status;
}

/* Of experts all, or as many as a token goes through. */
static int64_t count_of(const cup_gpt_config *config, bool embeddings, bool active)
{
    cup_gpt_config g;
    if (cup__options_take(NULL, "gpt", &g, sizeof g, config) != CUP_OK || check(NULL, &g) != CUP_OK)
        return -1;
    int64_t count = 0;
    for (const cup__gpt_tensor *t = cup__gpt_tensors; t->name; t++) {
        if (t->absent && t->absent(&g))
            continue;
        bool is_embedding = t->shape[0] == CUP__EXTENT_ROWS || t->shape[0] == CUP__EXTENT_CONTEXT;
        bool chosen = active && t->shape[2] != CUP__EXTENT_NONE;
        int64_t rows = t->shape[0] == CUP__EXTENT_ROWS ? g.vocabulary
                       : chosen                        ? g.experts_each
                                                       : cup__gpt_extent(&g, t->shape[0]);
        if (embeddings || !is_embedding)
            count += rows * cup__gpt_extent(&g, t->shape[1]) * cup__gpt_extent(&g, t->shape[2]) *
                     (t->in_block ? g.layers : 1);
    }
    return count;
}

int64_t cup_gpt_parameter_count(const cup_gpt_config *config, bool embeddings)
{
    return count_of(config, embeddings, false);
}

int64_t cup_gpt_active_count(const cup_gpt_config *config, bool embeddings)
{
    return count_of(config, embeddings, true);
}

static const char *const position_words[] = {"learned", "rotary", "alibi", NULL};
static const char *const norm_words[] = {"layernorm", "rmsnorm", NULL};
static const char *const mlp_words[] = {"gelu", "swiglu", NULL};
static const char *const family_words[] = {"any",   "gpt2",    "llama",     "mistral", "qwen2",
                                           "qwen3", "mixtral", "qwen3_moe", NULL};

/* Ranges are check's. */
#define FIELD(name, kind, words)                                                                   \
    {                                                                                              \
        #name, CUP__FIELD_##kind, offsetof(cup_gpt_config, name), 0, 0, true, words                \
    }
#define LATER(name, field, kind)                                                                   \
    {                                                                                              \
        #name, CUP__LATER(kind), offsetof(cup_gpt_config, field), 0, 0, true, NULL                 \
    }
/* May differ, as it says nothing of what is computed. */
#define FAMILY                                                                                     \
    {                                                                                              \
        "family", CUP__LATER(CHOICE), offsetof(cup_gpt_config, family), 0, 0, false, family_words  \
    }
static const cup__field fields[] = {
    FIELD(layers, WHOLE, NULL),
    FIELD(heads, WHOLE, NULL),
    FIELD(width, WHOLE, NULL),
    FIELD(context, WHOLE, NULL),
    FIELD(vocabulary, WHOLE, NULL),
    FIELD(kv_heads, WHOLE, NULL),
    FIELD(hidden, WHOLE, NULL),
    FIELD(positions, CHOICE, position_words),
    FIELD(norm, CHOICE, norm_words),
    FIELD(mlp, CHOICE, mlp_words),
    FIELD(bias, FLAG, NULL),
    FIELD(untied, FLAG, NULL),
    FIELD(dropout, REAL, NULL),
    FIELD(rope_base, REAL, NULL),
    FIELD(epsilon, REAL, NULL),
    LATER(qkv_bias, qkv_bias, FLAG),
    LATER(head_size, head_size, WHOLE),
    LATER(qk_norm, qk_norm, FLAG),
    LATER(rope_factor, rope_scaling.factor, REAL),
    LATER(rope_original, rope_scaling.original, WHOLE),
    LATER(rope_low, rope_scaling.low, REAL),
    LATER(rope_high, rope_scaling.high, REAL),
    LATER(experts, experts, WHOLE),
    LATER(experts_each, experts_each, WHOLE),
    LATER(capacity, capacity, REAL),
    LATER(balance, balance, REAL),
    LATER(router_z, router_z, REAL),
    FAMILY,
    LATER(attention_bias, attention_bias, FLAG),
    LATER(mlp_bias, mlp_bias, FLAG),
    LATER(window, window, WHOLE),
    LATER(window_from, window_from, WHOLE),
    LATER(soft_cap, soft_cap, REAL),
    LATER(logits_cap, logits_cap, REAL),
    LATER(sinks, sinks, FLAG),
    LATER(documents, documents, FLAG),
    LATER(document_end, document_end, WHOLE),
    LATER(rope_yarn, rope_scaling.yarn, FLAG),
    LATER(rope_untruncated, rope_scaling.untruncated, FLAG),
    LATER(rope_amplitude, rope_scaling.amplitude, REAL),
    LATER(rope_dynamic, rope_scaling.dynamic, FLAG),
    {0}};

void cup__gpt_config_write(cup__json_writer *writer, const char *key, const cup_gpt_config *config)
{
    cup__json_open(writer, key, CUP__JSON_OBJECT);
    cup__fields_write(writer, fields, config);
    cup__json_close(writer);
}

cup_status cup__gpt_config_read(cup_context *c, const cup__json *json, const cup__json_node *object,
                                cup_gpt_config *config)
{
    config->size = sizeof *config;
    CUP_TRY(cup__fields_read(&c->error, json, object, fields, config));
    if (cup_gpt_config_check(c, config) == CUP_OK)
        return CUP_OK;
    cup__error_prefix(&c->error, "%s: ", json->name);
    return c->error.status = CUP_FORMAT;
}

const char *cup__gpt_config_differs(const cup_gpt_config *a, const cup_gpt_config *b)
{
    return cup__fields_differ(fields, a, b);
}

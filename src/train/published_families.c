/* The families of published models: what their config.json says, and what their tensors are. */
#include <string.h>

#include "train/published.h"

#define WINDOW_FROM 28 /* of Qwens that do not say it */

static cup_status whole(cup__error *error, const cup__json *json, const char *key, int64_t *out)
{
    return cup__json_get_integer(error, json, json->root, key, 1, CUP__PUBLISHED_MOST, out);
}

bool cup__published_has(const cup__json_node *object, const char *key)
{
    const cup__json_node *node = cup__json_find(object, key);
    return node && node->kind != CUP__JSON_NULL;
}

cup_status cup__published_whole_or(cup__error *error, const cup__json *json,
                                   const cup__json_node *object, const char *key, int64_t usual,
                                   int64_t *out)
{
    *out = usual;
    return cup__published_has(object, key)
               ? cup__json_get_integer(error, json, object, key, 1, CUP__PUBLISHED_MOST, out)
               : CUP_OK;
}

cup_status cup__published_real_or(cup__error *error, const cup__json *json,
                                  const cup__json_node *object, const char *key, double usual,
                                  double *out)
{
    *out = usual;
    return cup__published_has(object, key) ? cup__json_get_number(error, json, object, key, out)
                                           : CUP_OK;
}

cup_status cup__published_flag_or(cup__error *error, const cup__json *json,
                                  const cup__json_node *object, const char *key, bool usual,
                                  bool *out)
{
    *out = usual;
    return cup__published_has(object, key) ? cup__json_get_boolean(error, json, object, key, out)
                                           : CUP_OK;
}

cup_status cup__published_above(cup__error *error, const cup__json *json,
                                const cup__json_node *object, const char *key, double *out)
{
    CUP_TRY(cup__json_get_number(error, json, object, key, out));
    return *out > 0 ? CUP_OK
                    : cup__fail(error, CUP_FORMAT, "%s: \"%s\" must be above 0, not %g",
                                json->name, key, *out);
}

cup_status cup__published_above_or(cup__error *error, const cup__json *json,
                                   const cup__json_node *object, const char *key, double usual,
                                   double *out)
{
    *out = usual;
    return cup__published_has(object, key) ? cup__published_above(error, json, object, key, out)
                                           : CUP_OK;
}

static cup_status whole_or(cup__error *error, const cup__json *json, const char *key,
                           int64_t usual, int64_t *out)
{
    return cup__published_whole_or(error, json, json->root, key, usual, out);
}

static cup_status above_or(cup__error *error, const cup__json *json, const char *key, double usual,
                           double *out)
{
    return cup__published_above_or(error, json, json->root, key, usual, out);
}

static cup_status flag_or(cup__error *error, const cup__json *json, const char *key, bool usual,
                          bool *out)
{
    return cup__published_flag_or(error, json, json->root, key, usual, out);
}

cup_status cup__published_refuse(cup__error *error, const cup__json *json, const char *key,
                                 const char *what)
{
    return cup__fail(error, CUP_UNSUPPORTED,
                     "%s: \"%s\" asks for %s, which this version's models do not have", json->name,
                     key, what);
}

static cup_status check_word(cup__error *error, const cup__json *json, const char *key,
                             const char *const *known)
{
    const char *word;
    if (!cup__published_has(json->root, key))
        return CUP_OK;
    CUP_TRY(cup__json_get_string(error, json, json->root, key, &word));
    for (; *known; known++)
        if (!strcmp(word, *known))
            return CUP_OK;
    return cup__published_refuse(error, json, key, "another function");
}

static cup_status read_gpt2(cup__error *error, const cup__json *json, cup_gpt_config *g)
{
    static const char *const gelus[] = {"gelu_new", "gelu_pytorch_tanh", NULL};
    bool by_layer, scaled, tied;
    CUP_TRY(whole(error, json, "n_layer", &g->layers));
    CUP_TRY(whole(error, json, "n_head", &g->heads));
    CUP_TRY(whole(error, json, "n_embd", &g->width));
    CUP_TRY(whole(error, json, "n_positions", &g->context));
    CUP_TRY(whole(error, json, "vocab_size", &g->vocabulary));
    CUP_TRY(whole_or(error, json, "n_inner", 0, &g->hidden));
    CUP_TRY(above_or(error, json, "layer_norm_epsilon", 1e-5, &g->epsilon));
    CUP_TRY(check_word(error, json, "activation_function", gelus));
    CUP_TRY(flag_or(error, json, "scale_attn_by_inverse_layer_idx", false, &by_layer));
    CUP_TRY(flag_or(error, json, "scale_attn_weights", true, &scaled));
    CUP_TRY(flag_or(error, json, "tie_word_embeddings", true, &tied));
    if (by_layer)
        return cup__published_refuse(error, json, "scale_attn_by_inverse_layer_idx",
                                     "other scales of attention");
    if (!scaled)
        return cup__published_refuse(error, json, "scale_attn_weights",
                                     "attention without a scale");
    g->bias = true;
    g->untied = !tied;
    return CUP_OK;
}

static void write_gpt2(const cup_gpt_config *g, cup__json_writer *w)
{
    cup__json_add_integer(w, "n_layer", g->layers);
    cup__json_add_integer(w, "n_head", g->heads);
    cup__json_add_integer(w, "n_embd", g->width);
    cup__json_add_integer(w, "n_positions", g->context);
    cup__json_add_integer(w, "n_ctx", g->context);
    cup__json_add_integer(w, "n_inner", g->hidden);
    cup__json_add_integer(w, "vocab_size", g->vocabulary);
    cup__json_add_number(w, "layer_norm_epsilon", g->epsilon);
    cup__json_add_string(w, "activation_function", "gelu_new");
    cup__json_add_number(w, "resid_pdrop", g->dropout);
    cup__json_add_number(w, "embd_pdrop", g->dropout);
    cup__json_add_number(w, "attn_pdrop", g->dropout);
    cup__json_add_boolean(w, "tie_word_embeddings", !g->untied);
}

/* None of the families has these. */
static bool is_plain(const cup_gpt_config *g)
{
    return !(g->soft_cap > 0) && !(g->logits_cap > 0) && !g->sinks;
}

static bool is_gpt2(const cup_gpt_config *g)
{
    return g->positions == CUP_POSITIONS_LEARNED && g->norm == CUP_NORM_KIND_LAYERNORM &&
           g->mlp == CUP_MLP_KIND_GELU && g->bias && g->kv_heads == g->heads && !g->head_size &&
           !g->qk_norm && !g->experts && !g->window && is_plain(g);
}

/* Models that make embeddings of whole texts may look ahead. */
static cup_status check_causal(cup__error *error, const cup__json *json)
{
    bool causal, both;
    CUP_TRY(flag_or(error, json, "is_causal", true, &causal));
    CUP_TRY(flag_or(error, json, "use_bidirectional_attention", false, &both));
    if (causal && !both)
        return CUP_OK;
    return cup__published_refuse(error, json,
                                 both ? "use_bidirectional_attention" : "is_causal",
                                 "attention to what follows");
}

/* What Llama and those that follow it have in common. */
static cup_status read_decoder(cup__error *error, const cup__json *json, cup_gpt_config *g)
{
    static const char *const silus[] = {"silu", "swish", NULL};
    bool tied;
    CUP_TRY(whole(error, json, "num_hidden_layers", &g->layers));
    CUP_TRY(whole(error, json, "num_attention_heads", &g->heads));
    CUP_TRY(whole(error, json, "hidden_size", &g->width));
    CUP_TRY(whole(error, json, "intermediate_size", &g->hidden));
    CUP_TRY(whole(error, json, "vocab_size", &g->vocabulary));
    CUP_TRY(whole_or(error, json, "num_key_value_heads", g->heads, &g->kv_heads));
    CUP_TRY(whole_or(error, json, "head_dim", 0, &g->head_size));
    CUP_TRY(cup__published_rope_read(error, json, g));
    CUP_TRY(check_causal(error, json));
    CUP_TRY(above_or(error, json, "rms_norm_eps", 1e-6, &g->epsilon));
    CUP_TRY(flag_or(error, json, "tie_word_embeddings", false, &tied));
    g->positions = CUP_POSITIONS_ROTARY;
    g->norm = CUP_NORM_KIND_RMSNORM;
    g->mlp = CUP_MLP_KIND_SWIGLU;
    g->untied = !tied;
    return check_word(error, json, "hidden_act", silus);
}

static cup_status read_llama(cup__error *error, const cup__json *json, cup_gpt_config *g)
{
    CUP_TRY(flag_or(error, json, "attention_bias", false, &g->attention_bias));
    CUP_TRY(flag_or(error, json, "mlp_bias", false, &g->mlp_bias));
    return read_decoder(error, json, g);
}

static cup_status read_mistral(cup__error *error, const cup__json *json, cup_gpt_config *g)
{
    CUP_TRY(whole_or(error, json, "sliding_window", 0, &g->window));
    return read_decoder(error, json, g);
}

/* Newer files of Qwens name each block's kind: those that see all come first. */
static cup_status read_kinds(cup__error *error, const cup__json *json, const cup__json_node *kinds,
                             cup_gpt_config *g)
{
    int64_t whole_blocks = 0, windows = 0;
    bool good = kinds->kind == CUP__JSON_ARRAY && kinds->count == (uint64_t)g->layers;
    if (good)
        CUP__JSON_EACH (kind, kinds) {
            bool named = kind->kind == CUP__JSON_STRING;
            bool slides = named && !strcmp(kind->string, "sliding_attention");
            good &= slides || (named && !windows && !strcmp(kind->string, "full_attention"));
            windows += slides;
            whole_blocks += !slides;
        }
    if (!good)
        return cup__published_refuse(error, json, "layer_types",
                                     "other attention than to all in the first blocks and in a "
                                     "window in the rest");
    g->window = windows ? g->window : 0;
    g->window_from = windows ? whole_blocks : 0;
    return CUP_OK;
}

/* Of Qwens, which say beside the window whether it is used, and from which block on. */
static cup_status read_qwen(cup__error *error, const cup__json *json, cup_gpt_config *g)
{
    const cup__json_node *kinds = cup__json_find(json->root, "layer_types");
    bool slides;
    CUP_TRY(read_decoder(error, json, g));
    CUP_TRY(flag_or(error, json, "use_sliding_window", false, &slides));
    if (!slides || !cup__published_has(json->root, "sliding_window"))
        return CUP_OK;
    CUP_TRY(whole(error, json, "sliding_window", &g->window));
    if (kinds && kinds->kind != CUP__JSON_NULL)
        return read_kinds(error, json, kinds, g);
    g->window_from = WINDOW_FROM;
    if (cup__published_has(json->root, "max_window_layers"))
        CUP_TRY(cup__json_get_integer(error, json, json->root, "max_window_layers", 0,
                                      CUP__PUBLISHED_MOST, &g->window_from));
    if (g->window_from >= g->layers)
        g->window = g->window_from = 0;
    return CUP_OK;
}

static cup_status read_qwen2(cup__error *error, const cup__json *json, cup_gpt_config *g)
{
    g->qkv_bias = true;
    return read_qwen(error, json, g);
}

static cup_status read_qwen3(cup__error *error, const cup__json *json, cup_gpt_config *g)
{
    g->qk_norm = true;
    CUP_TRY(flag_or(error, json, "attention_bias", false, &g->attention_bias));
    return read_qwen(error, json, g);
}

/* What is said of experts, whose number goes by another name in each family. */
static cup_status read_experts(cup__error *error, const cup__json *json, const char *count,
                               cup_gpt_config *g)
{
    CUP_TRY(whole(error, json, count, &g->experts));
    CUP_TRY(whole(error, json, "num_experts_per_tok", &g->experts_each));
    return cup__published_real_or(error, json, json->root, "router_aux_loss_coef", 0.001,
                                  &g->balance);
}

static cup_status read_mixtral(cup__error *error, const cup__json *json, cup_gpt_config *g)
{
    CUP_TRY(read_mistral(error, json, g));
    CUP_TRY(read_experts(error, json, "num_local_experts", g));
    if (g->experts_each == 1)
        return cup__published_refuse(error, json, "num_experts_per_tok",
                                     "one expert a token with a weight of 1");
    return CUP_OK;
}

static cup_status read_qwen3_moe(cup__error *error, const cup__json *json, cup_gpt_config *g)
{
    const cup__json_node *dense = cup__json_find(json->root, "mlp_only_layers");
    bool slides, of_one, newer;
    int64_t step;
    CUP_TRY(read_qwen3(error, json, g));
    /* All blocks of this one see as much. */
    CUP_TRY(flag_or(error, json, "use_sliding_window", false, &slides));
    if (slides)
        CUP_TRY(whole_or(error, json, "sliding_window", 0, &g->window));
    g->window_from = 0;
    /* Newer versions of transformers write the name that Mixtral has for it. */
    newer = !cup__published_has(json->root, "num_experts") &&
            cup__published_has(json->root, "num_local_experts");
    CUP_TRY(read_experts(error, json, newer ? "num_local_experts" : "num_experts", g));
    CUP_TRY(whole(error, json, "moe_intermediate_size", &g->hidden));
    CUP_TRY(whole_or(error, json, "decoder_sparse_step", 1, &step));
    bool none = !cup__published_has(json->root, "mlp_only_layers") ||
                (dense->kind == CUP__JSON_ARRAY && dense->count == 0);
    if (step != 1 || !none)
        return cup__published_refuse(error, json,
                                     step != 1 ? "decoder_sparse_step" : "mlp_only_layers",
                                     "experts in some blocks and MLPs in others");
    CUP_TRY(flag_or(error, json, "norm_topk_prob", false, &of_one));
    if (of_one != (g->experts_each > 1))
        return cup__published_refuse(error, json, "norm_topk_prob",
                                     "weights of several experts that have another sum than 1, or "
                                     "a weight of 1 of one");
    return CUP_OK;
}

static void write_decoder(const cup_gpt_config *g, cup__json_writer *w)
{
    cup__json_add_integer(w, "num_hidden_layers", g->layers);
    cup__json_add_integer(w, "num_attention_heads", g->heads);
    cup__json_add_integer(w, "num_key_value_heads", g->kv_heads);
    cup__json_add_integer(w, "hidden_size", g->width);
    cup__json_add_integer(w, "intermediate_size", g->hidden);
    cup__json_add_integer(w, "vocab_size", g->vocabulary);
    cup__json_add_integer(w, "head_dim", g->head_size ? g->head_size : g->width / g->heads);
    cup__published_rope_write(g, w);
    cup__json_add_number(w, "rms_norm_eps", g->epsilon);
    cup__json_add_string(w, "hidden_act", "silu");
    cup__json_add_boolean(w, "tie_word_embeddings", !g->untied);
}

/* Which linear layers have biases. */
static bool biased_qkv(const cup_gpt_config *g)
{
    return g->bias || g->attention_bias || g->qkv_bias;
}

static bool biased_out(const cup_gpt_config *g)
{
    return g->bias || g->attention_bias;
}

static bool biased_mlp(const cup_gpt_config *g)
{
    return (g->bias || g->mlp_bias) && !g->experts;
}

static void write_llama(const cup_gpt_config *g, cup__json_writer *w)
{
    write_decoder(g, w);
    cup__json_add_boolean(w, "attention_bias", biased_out(g));
    cup__json_add_boolean(w, "mlp_bias", biased_mlp(g));
}

static void write_mistral(const cup_gpt_config *g, cup__json_writer *w)
{
    write_decoder(g, w);
    if (g->window)
        cup__json_add_integer(w, "sliding_window", g->window);
    else
        cup__json_add_null(w, "sliding_window");
}

static void write_qwen2(const cup_gpt_config *g, cup__json_writer *w)
{
    write_decoder(g, w);
    cup__json_add_boolean(w, "use_sliding_window", g->window > 0);
    if (g->window) {
        cup__json_add_integer(w, "sliding_window", g->window);
        cup__json_add_integer(w, "max_window_layers", g->window_from);
    }
}

static void write_qwen3(const cup_gpt_config *g, cup__json_writer *w)
{
    write_qwen2(g, w);
    cup__json_add_boolean(w, "attention_bias", biased_out(g));
}

static void write_experts(const cup_gpt_config *g, const char *count, cup__json_writer *w)
{
    cup__json_add_integer(w, count, g->experts);
    cup__json_add_integer(w, "num_experts_per_tok", g->experts_each);
    cup__json_add_number(w, "router_aux_loss_coef", g->balance);
}

static void write_mixtral(const cup_gpt_config *g, cup__json_writer *w)
{
    write_mistral(g, w);
    write_experts(g, "num_local_experts", w);
}

static void write_qwen3_moe(const cup_gpt_config *g, cup__json_writer *w)
{
    write_qwen3(g, w);
    write_experts(g, "num_experts", w);
    cup__json_add_integer(w, "moe_intermediate_size", g->hidden);
    cup__json_add_integer(w, "decoder_sparse_step", 1);
    cup__json_add_boolean(w, "norm_topk_prob", g->experts_each > 1);
}

static bool is_decoder(const cup_gpt_config *g)
{
    return g->positions == CUP_POSITIONS_ROTARY && g->norm == CUP_NORM_KIND_RMSNORM &&
           g->mlp == CUP_MLP_KIND_SWIGLU && is_plain(g);
}

static bool is_llama(const cup_gpt_config *g)
{
    return is_decoder(g) && biased_qkv(g) == biased_out(g) && !g->qk_norm && !g->experts &&
           !g->window;
}

static bool is_mistral(const cup_gpt_config *g)
{
    return is_decoder(g) && !biased_qkv(g) && !biased_mlp(g) && !g->qk_norm && !g->experts &&
           !g->window_from;
}

static bool is_qwen2(const cup_gpt_config *g)
{
    return is_decoder(g) && biased_qkv(g) && !biased_out(g) && !biased_mlp(g) && !g->qk_norm &&
           !g->head_size && !g->experts;
}

/* With norms of queries and keys. */
static bool is_qwen3_inside(const cup_gpt_config *g)
{
    return is_decoder(g) && biased_qkv(g) == biased_out(g) && !biased_mlp(g) && g->qk_norm;
}

static bool is_qwen3(const cup_gpt_config *g)
{
    return is_qwen3_inside(g) && !g->experts;
}

/* Mixtral's weights have a sum of 1, also where there is one. */
static bool is_mixtral(const cup_gpt_config *g)
{
    return is_decoder(g) && !biased_qkv(g) && !g->qk_norm && g->experts_each > 1 &&
           !g->window_from;
}

static bool is_qwen3_moe(const cup_gpt_config *g)
{
    return is_qwen3_inside(g) && g->experts > 0 && !g->window_from;
}

#define FAMILY(name, type, architecture, prefix, tensors)                                          \
    {                                                                                              \
        CUP_GPT_FAMILY_##name, #type, architecture, prefix, cup__published_##tensors, read_##type, \
            write_##type, is_##type                                                                \
    }

const cup__published_family cup__published_families[] = {
    FAMILY(GPT2, gpt2, "GPT2LMHeadModel", "transformer.", gpt2),
    FAMILY(LLAMA, llama, "LlamaForCausalLM", NULL, llama),
    FAMILY(MISTRAL, mistral, "MistralForCausalLM", NULL, llama),
    FAMILY(QWEN2, qwen2, "Qwen2ForCausalLM", NULL, llama),
    FAMILY(QWEN3, qwen3, "Qwen3ForCausalLM", NULL, llama),
    FAMILY(MIXTRAL, mixtral, "MixtralForCausalLM", NULL, mixtral),
    FAMILY(QWEN3_MOE, qwen3_moe, "Qwen3MoeForCausalLM", NULL, qwen3_moe),
    {0}};

/* The tensors of the families of published models, under our names and theirs. */
#include "train/published.h"

const cup__published_tensor cup__published_gpt2[] = {
    {"wte.weight", "wte.weight", CUP__PART_ALL, false},
    {"wpe.weight", "wpe.weight", CUP__PART_ALL, false},
    {"h.%d.ln_1.weight", "h.%d.ln_1.weight", CUP__PART_ALL, false},
    {"h.%d.ln_1.bias", "h.%d.ln_1.bias", CUP__PART_ALL, false},
    {"h.%d.attn.c_attn.weight", "h.%d.attn.c_attn.weight", CUP__PART_ALL, true},
    {"h.%d.attn.c_attn.bias", "h.%d.attn.c_attn.bias", CUP__PART_ALL, false},
    {"h.%d.attn.c_proj.weight", "h.%d.attn.c_proj.weight", CUP__PART_ALL, true},
    {"h.%d.attn.c_proj.bias", "h.%d.attn.c_proj.bias", CUP__PART_ALL, false},
    {"h.%d.ln_2.weight", "h.%d.ln_2.weight", CUP__PART_ALL, false},
    {"h.%d.ln_2.bias", "h.%d.ln_2.bias", CUP__PART_ALL, false},
    {"h.%d.mlp.c_fc.weight", "h.%d.mlp.c_fc.weight", CUP__PART_ALL, true},
    {"h.%d.mlp.c_fc.bias", "h.%d.mlp.c_fc.bias", CUP__PART_ALL, false},
    {"h.%d.mlp.c_proj.weight", "h.%d.mlp.c_proj.weight", CUP__PART_ALL, true},
    {"h.%d.mlp.c_proj.bias", "h.%d.mlp.c_proj.bias", CUP__PART_ALL, false},
    {"ln_f.weight", "ln_f.weight", CUP__PART_ALL, false},
    {"ln_f.bias", "ln_f.bias", CUP__PART_ALL, false},
    {"lm_head.weight", "lm_head.weight", CUP__PART_ALL, false},
    {0}};

#define LLAMA(own, name, part)                                                                     \
    {                                                                                              \
        "h.%d." own, "model.layers.%d." name ".weight", CUP__PART_##part, false                    \
    }
#define BIAS(own, name, part)                                                                      \
    {                                                                                              \
        "h.%d." own ".bias", "model.layers.%d." name ".bias", CUP__PART_##part, false              \
    }
#define EXPERT(own, name, part)                                                                    \
    {                                                                                              \
        "h.%d.mlp.experts." own, "model.layers.%d." name ".weight", CUP__PART_##part, false        \
    }
/* Some biases are there in Qwen 2, and in Llamas that say so, the norms of queries and keys in
 * Qwen 3. */
#define DECODER                                                                                    \
    {"wte.weight", "model.embed_tokens.weight", CUP__PART_ALL, false},                      \
        LLAMA("ln_1.weight", "input_layernorm", ALL),                                              \
        LLAMA("attn.c_attn.weight", "self_attn.q_proj", QUERIES),                                  \
        LLAMA("attn.c_attn.weight", "self_attn.k_proj", KEYS),                                     \
        LLAMA("attn.c_attn.weight", "self_attn.v_proj", VALUES),                                   \
        BIAS("attn.c_attn", "self_attn.q_proj", QUERIES),                                          \
        BIAS("attn.c_attn", "self_attn.k_proj", KEYS),                                             \
        BIAS("attn.c_attn", "self_attn.v_proj", VALUES),                                           \
        LLAMA("attn.q_norm.weight", "self_attn.q_norm", ALL),                                      \
        LLAMA("attn.k_norm.weight", "self_attn.k_norm", ALL),                                      \
        LLAMA("attn.c_proj.weight", "self_attn.o_proj", ALL),                                      \
        BIAS("attn.c_proj", "self_attn.o_proj", ALL),                                              \
        LLAMA("ln_2.weight", "post_attention_layernorm", ALL),                                     \
        {"ln_f.weight", "model.norm.weight", CUP__PART_ALL, false},                         \
    {                                                                                              \
        "lm_head.weight", "lm_head.weight", CUP__PART_ALL, false                                   \
    }

const cup__published_tensor cup__published_llama[] = {
    DECODER,
    LLAMA("mlp.c_fc.weight", "mlp.gate_proj", GATE),
    LLAMA("mlp.c_fc.weight", "mlp.up_proj", UP),
    LLAMA("mlp.c_proj.weight", "mlp.down_proj", ALL),
    BIAS("mlp.c_fc", "mlp.gate_proj", GATE),
    BIAS("mlp.c_fc", "mlp.up_proj", UP),
    BIAS("mlp.c_proj", "mlp.down_proj", ALL),
    {0}};

#define MIXTURE(router, gate, up, down)                                                            \
    DECODER, LLAMA("mlp.router.weight", router, ALL), EXPERT("c_fc.weight", gate, GATE),           \
        EXPERT("c_fc.weight", up, UP), EXPERT("c_proj.weight", down, ALL)

const cup__published_tensor cup__published_mixtral[] = {
    MIXTURE("block_sparse_moe.gate", "block_sparse_moe.experts.%d.w1",
            "block_sparse_moe.experts.%d.w3", "block_sparse_moe.experts.%d.w2"),
    {0}};

const cup__published_tensor cup__published_qwen3_moe[] = {
    MIXTURE("mlp.gate", "mlp.experts.%d.gate_proj", "mlp.experts.%d.up_proj",
            "mlp.experts.%d.down_proj"),
    {0}};

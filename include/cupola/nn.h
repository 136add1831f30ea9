/* cupola/nn.h: the GPT family, written with the layers of cupola/layers.h. */
#ifndef CUPOLA_NN_H
#define CUPOLA_NN_H

#include "cupola/grad.h"
#include "cupola/layers.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cup_positions {
    CUP_POSITIONS_LEARNED = 0,
    CUP_POSITIONS_ROTARY = 1,
    CUP_POSITIONS_ALIBI = 2 /* slopes of the heads, see `alibi` of cup_attention_layer_options */
} cup_positions;
typedef enum cup_norm_kind {
    CUP_NORM_KIND_LAYERNORM = 0,
    CUP_NORM_KIND_RMSNORM = 1
} cup_norm_kind;
typedef enum cup_mlp_kind { CUP_MLP_KIND_GELU = 0, CUP_MLP_KIND_SWIGLU = 1 } cup_mlp_kind;

/* The families that GPTs are published as, see cup_gpt_import. */
typedef enum cup_gpt_family {
    CUP_GPT_FAMILY_ANY = 0, /* the first of those below that it is one of */
    CUP_GPT_FAMILY_GPT2 = 1,
    CUP_GPT_FAMILY_LLAMA = 2,
    CUP_GPT_FAMILY_MISTRAL = 3,
    CUP_GPT_FAMILY_QWEN2 = 4,
    CUP_GPT_FAMILY_QWEN3 = 5,
    CUP_GPT_FAMILY_MIXTRAL = 6,
    CUP_GPT_FAMILY_QWEN3_MOE = 7
} cup_gpt_family;

/* What a GPT looks like. A field that is 0 has its default, but for the first six. */
typedef struct cup_gpt_config {
    size_t size;                  /* of this struct: {.size = sizeof(cup_gpt_config), ...} */
    int64_t layers, heads, width; /* width is a multiple of heads, unless there is a head_size */
    int64_t context;              /* tokens it sees at once */
    int64_t vocabulary;           /* tokens it knows */
    int64_t kv_heads;             /* heads of keys and values, which divide heads; 0: heads */
    int64_t hidden;               /* width inside an MLP; 0: 4 width, with SwiGLU 8/3 width */
    cup_positions positions;
    cup_norm_kind norm;
    cup_mlp_kind mlp;
    bool bias;        /* biases in linear layers and layer norms */
    bool untied;      /* output weights of its own, not those of the embedding */
    double dropout;   /* part of the activations that training drops */
    double rope_base; /* of rotary positions; 0: 10000 */
    double epsilon;   /* inside norms; 0: 1e-5 */
    bool qkv_bias;    /* without `bias`: of what makes queries, keys and values all the same */
    int64_t head_size; /* 0, which it becomes where it is the same: width / heads */
    bool qk_norm;      /* rmsnorm of each head's queries and keys, see cup_attention_layer */
    cup_rope_scaling rope_scaling;
    /* Experts in place of the MLP of each block, each of width `hidden` and without biases, see
     * cup_experts_layer: how many, and how many of them a token goes through, from which their
     * weights follow: of one its probability, of more the probabilities over their sum. 0: an MLP;
     * and 2, or 1 of one expert. The numbers add to the loss in training, see `balance` and
     * `router_z` there, and 0 is 0; a capacity is heeded in training alone, and 0 is none. */
    int64_t experts, experts_each;
    double capacity, balance, router_z;
    cup_gpt_family family; /* as which it is published where it is one of several; it says nothing
                              of what is computed */
    /* Without `bias`, as in published Llamas: of the linear layers of attention, of which those of
     * qkv_bias are some, and of those of MLPs. */
    bool attention_bias, mlp_bias;
    int64_t window;      /* tokens up to its own that one sees in each block; 0: all */
    int64_t window_from; /* the blocks before this one see all the same */
    double soft_cap;     /* of the scores of attention, see cup_attention_layer_options */
    double logits_cap;   /* makes logits_cap tanh(x / logits_cap) of a logit x; 0: none. In training
                            logits are then there as a whole, whatever `logits_most` says */
    bool sinks;          /* of each head, learned, see cup_attention_layer */
    /* A text may be several documents, one behind the other, each up to a token `document_end` with
     * which it ends. None sees another, and learned positions begin anew: all are computed as if
     * each were a text of its own. */
    bool documents;
    int64_t document_end;
} cup_gpt_config;

/* Fills in the defaults and checks that such a GPT can be; the sentence names the field. */
CUP_API cup_status cup_gpt_config_check(cup_context *c, cup_gpt_config *config);

/* How many numbers it learns; with the input embeddings or without. -1 when it cannot be. */
CUP_API int64_t cup_gpt_parameter_count(const cup_gpt_config *config, bool embeddings);

/* The same of what a token goes through, of experts those `experts_each` that are its own. */
CUP_API int64_t cup_gpt_active_count(const cup_gpt_config *config, bool embeddings);

/* A model, made of layers (cupola/layers.h). All NULL that its config has not. */
typedef struct cup_gpt {
    cup_context *context;
    cup_gpt_config config;      /* checked, defaults filled in */
    cup_dtype dtype;            /* of the parameters and of what is computed: f32, bf16, f16, f64 */
    cup_parameters *parameters; /* its own: for cup_optimizer_of, files, and what is by name */
    cup_tensor *embedding;      /* [rows, width], where rows is the vocabulary rounded up */
    cup_tensor *positions;      /* [context, width]; NULL unless they are learned */
    cup_transformer_layer *blocks;
    cup_tensor *norm, *norm_bias;
    cup_tensor *head; /* [rows, width]; the embedding itself unless untied */
    struct cup__gpt_pass *passes; /* the library's own */
    cup_recompute_policy recompute; /* BLOCK: a third more time; POINTWISE: three percent; NORMS:
                                       two; AUTO is as NONE here */
    int64_t logits_most; /* bytes of logits that a loss may have at once; where there are more,
                            their rows are taken in chunks, but for training in f16, see
                            cup_training. 0: 1 GB */
    cup_parameters *adapters; /* what is learned in place of the parameters; see cup_gpt_adapt */
    cup_lora_layer *loras;    /* of each block those beside qkv, out, up and down */
    int64_t lora_rank;
    double lora_alpha;
    int64_t first, end;  /* the blocks that are here, of a stage; all of others */
    int64_t *bounds; /* of a stage of several chunks [chunks, 2]: from which block to which */
    int chunks;      /* 1 of others */
    int64_t recompute_blocks; /* in so many of the first blocks, and in the others the policy that
                                 is next cheaper: POINTWISE of BLOCK, NORMS of that, NONE of NORMS;
                                 0: in all */
    struct cup_expr *cap; /* of logits; the library's own */
    /* What caches that are made from now on keep keys and values in, by its name: "f8e4m3",
     * "f8e5m2" or "i8", a scale for each token of each head beside; NULL: as they are. Some half or
     * quarter of the memory, with their errors. CUP_UNSUPPORTED with alibi. */
    const char *cache_dtype;
} cup_gpt;

/* A new model: weights normal with deviation 0.02, those that lead back to the residual stream
 * smaller by sqrt(2 layers), biases 0, norms 1. They depend on the context's seed only. Names are
 * GPT-2's: "wte.weight", "h.0.attn.c_attn.weight". They are marked with cup_require_grad: compute
 * in cup_scope_open_without_grad where nothing is learned. Free it before the context. */
CUP_API cup_gpt *cup_gpt_new(cup_context *c, cup_dtype dtype, const cup_gpt_config *config);
CUP_API void cup_gpt_free(cup_gpt *m);
/* The same, shared out to the processes of a communicator, see cup_parameters_among: each has an
 * equal part of the heads, or one of the heads of keys with others where these are fewer, of what
 * is hidden in MLPs or in each of the experts, and of the rows of the embedding and the head.
 * CUP_ARGUMENT, with the number to change, where these cannot be shared out equally. Dropout
 * drops what it does in one process, where all have the same random numbers. All of them call
 * cup_gpt_loss and cup_gpt_logits together, which give each the whole; what is read by a cache has
 * one process. */
CUP_API cup_gpt *cup_gpt_among_new(cup_context *c, cup_dtype dtype, const cup_gpt_config *config,
                                   cup_comm *among);

/* The same, of which the processes of a communicator, each with batches of its own, share out the
 * experts, see cup_parameters_experts: their number is a multiple of the processes. All of them
 * call what computes together, with as many tokens each; what is read by a cache has one
 * process. */
CUP_API cup_gpt *cup_gpt_experts_new(cup_context *c, cup_dtype dtype, const cup_gpt_config *config,
                                     cup_comm *experts);

/* Puts adapters of this rank beside the four linear layers of each block, see cup_lora_layer, with
 * an alpha of 0 for the rank. They are in a list of their own, m->adapters, to be trained and
 * saved; the model's parameters are frozen. At first they change nothing. `apart` gives queries,
 * keys and values, and both halves of a SwiGLU, adapters of their own. Processes that share out the
 * model share out its adapters as well, and a stage has those of its blocks. Experts have none:
 * with them adapters stand beside the two layers of attention. CUP_STATE where there are some
 * already. */
CUP_API cup_status cup_gpt_adapt(cup_gpt *m, int64_t rank, double alpha, bool apart);
/* Adds the adapters to the weights, which are learned again from then on, and frees them.
 * Optimizers of them must be gone. CUP_STATE where there are none. */
CUP_API cup_status cup_gpt_merge(cup_gpt *m);

/* A stage of it: the blocks [first, end) and what leads to the first block or from the last one, as
 * a pipeline of processes has them, shared out besides where `among` is not NULL. With an embedding
 * that is the head too, "wte.weight" is in the first stage and in the last. Weights begin as those
 * of the whole, and dropout drops what it does in the whole, where each stage begins a batch at the
 * same place in the context's random numbers, as a cup_loop's do. CUP_ARGUMENT where there are no
 * such blocks. What is of a whole model refuses it, but for cup_parameters_*. */
CUP_API cup_gpt *cup_gpt_stage_new(cup_context *c, cup_dtype dtype, int64_t first, int64_t end,
                                   const cup_gpt_config *config, cup_comm *among);

/* The same of several chunks, as a process has them that a batch comes to as often, see `chunks` of
 * cup_loop_options: the blocks [bounds[2 i], bounds[2 i + 1]) are chunk i. They follow each other
 * and have blocks between them. cup_gpt_chunk_call makes what one of them makes, see below. */
CUP_API cup_gpt *cup_gpt_chunks_new(cup_context *c, cup_dtype dtype, const int64_t *bounds,
                                    int chunks, const cup_gpt_config *config, cup_comm *among);

/* All of these in one. */
typedef struct cup_gpt_sharing {
    size_t size;           /* see CUP_OPTIONS */
    cup_comm *among;       /* as of cup_gpt_among_new, or NULL */
    cup_comm *experts;     /* as of cup_gpt_experts_new, or NULL; of whole groups of `among` */
    const int64_t *bounds; /* as of cup_gpt_chunks_new; NULL: all blocks are here */
    int chunks;
} cup_gpt_sharing;
CUP_API cup_gpt *cup_gpt_shared_new(cup_context *c, cup_dtype dtype, const cup_gpt_sharing *sharing,
                                    const cup_gpt_config *config);

CUP_API cup_tensor *cup_gpt_chunk_call(cup_gpt *m, int chunk, cup_tensor *tokens, cup_tensor *x,
                                       cup_tensor *targets, bool training);
/* The same; *cost becomes what the chunk's experts add to the loss, see cup_loop_cost, one number,
 * or NULL where they add nothing, and of the last chunk, whose loss has it. Without this call
 * experts in training that cost something are CUP_ARGUMENT. */
CUP_API cup_tensor *cup_gpt_chunk_call_cost(cup_gpt *m, int chunk, cup_tensor *tokens,
                                            cup_tensor *x, cup_tensor *targets, bool training,
                                            cup_tensor **cost);

/* What a stage makes: the first from tokens [B,T], others from the x [B,T,width] that the stage
 * before has made, and from the tokens too where texts are of documents; the last one's is the
 * loss, see cup_gpt_loss, whose targets the others do not read. A model that is one stage has all
 * of it. */
CUP_API cup_tensor *cup_gpt_stage_call(cup_gpt *m, cup_tensor *tokens, cup_tensor *x,
                                       cup_tensor *targets, bool training);

/* tokens [B,T], i32 or i64, T at most the context, to logits [B,T,vocabulary]. A token that the
 * model does not know is an error on a CPU, here and below; on a GPU, where tokens are not read
 * back, it counts as a vector of zeros where the rounded-up rows of the embedding still have one,
 * and of NaN beyond them. */
CUP_API cup_tensor *cup_gpt_logits(cup_gpt *m, cup_tensor *tokens);

/* The mean cross-entropy of the targets [B,T], without those that are -1; one number. `training`
 * applies dropout, and adds what experts cost, see cup_gpt_config. With cup_parameters_ring tokens,
 * targets, logits and loss are of this process's part of each text, here and of a stage; T is then
 * even, and times the processes the context at most. Where all have as many targets, the mean of
 * their losses is the whole's. A cache reads whole texts all the same. */
CUP_API cup_tensor *cup_gpt_loss(cup_gpt *m, cup_tensor *tokens, cup_tensor *targets,
                                 bool training);

/* What a model has read so far, so that the next token costs one row of each product. */
typedef struct cup_gpt_cache cup_gpt_cache;

/* Room for `length` tokens of each of `batch` texts; 0 means the model's context. */
CUP_API cup_gpt_cache *cup_gpt_cache_new(cup_gpt *m, int64_t batch, int64_t length);
/* The same, where blocks with a window keep no more than it and half of it, or 128 tokens, where
 * that is less than all. Such a cache reads long texts in pieces, needs cup_gpt_cache_reserve
 * before cup_gpt_read_at, and what is beyond its windows when it is cut is not there any more: then
 * nothing is, and `used` is 0. Generators have it. In 8 bits, see cache_dtype, and with dynamic
 * rotary positions all is kept. */
CUP_API cup_gpt_cache *cup_gpt_cache_window_new(cup_gpt *m, int64_t batch, int64_t length);
CUP_API void cup_gpt_cache_free(cup_gpt_cache *cache);

/* Reads tokens [B,T] behind those read before; gives the logits [B,vocabulary] that follow the
 * last one. Fails with CUP_STATE when there is no room for T more. What is read is one document;
 * behind the end of one cut the cache to 0. With dynamic rotary positions, see cup_rope_scaling,
 * each call turns by the length that is then read; one that reads again behind a cut does so, too,
 * and knows nothing of longer texts before. */
CUP_API cup_tensor *cup_gpt_read(cup_gpt_cache *cache, cup_tensor *tokens);
CUP_API int64_t cup_gpt_cache_used(const cup_gpt_cache *cache);
/* Forgets all but the first `used` tokens; see cup_gpt_cache_window_new. */
CUP_API void cup_gpt_cache_cut(cup_gpt_cache *cache, int64_t used);

/* Reads one token of each text, tokens [B,1], at the position that is in device memory: i32 or i64,
 * one number for all texts or one for each, from 0. What stands in front of it must have been read,
 * what stands behind it is not looked at. How much was read is not changed by it, since the number
 * is not known here: cup_gpt_cache_set says it. So a step of writing can be captured in a graph
 * (cupola/graph.h), with cup_draw_token behind it, and replayed for token after token. A position
 * that there is no room for is an error on a CPU; on a GPU the logits are NaN. CUP_UNSUPPORTED of
 * a model with dynamic rotary positions whose keys and values are in 8 bits. */
CUP_API cup_tensor *cup_gpt_read_at(cup_gpt_cache *cache, cup_tensor *tokens,
                                    cup_tensor *position);
/* Says that so many tokens were read. CUP_ARGUMENT where there is no room for them, or where what a
 * window shows of them is gone. */
CUP_API cup_status cup_gpt_cache_set(cup_gpt_cache *cache, int64_t used);
/* Makes room for so many more tokens of each text, up to 128 at once, at positions on the device
 * behind those that were read: where windows alone are kept, what stays of them may have to be
 * moved, which a graph cannot do. Other caches have room anyway. */
CUP_API cup_status cup_gpt_cache_reserve(cup_gpt_cache *cache, int64_t tokens);

/* How the next token is drawn. All zero: from all tokens, as likely as the model says. */
typedef struct cup_sampling {
    size_t size;        /* of this struct, see CUP_OPTIONS */
    double temperature; /* below 1 bolder guesses become likelier; 0: 1; below 0: always the best */
    int64_t top_k;      /* only the k likeliest; 0: all */
    double top_p;       /* only the likeliest that make up p together; 0: all. Holtzman and others
                           2020, "The curious case of neural text degeneration" */
    uint64_t seed;
} cup_sampling;

/* Draws a token from `count` logits; number `draw` of the seed's sequence. NaN is never drawn. -1
 * where there is no number among them, and for a sampling whose size is wrong, with a temperature
 * or top_p that is no number or a top_k below 0; -2 where there is no host memory. */
CUP_API int64_t cup_sample(const float *logits, int64_t count, uint64_t draw,
                           const cup_sampling *sampling);

/* Writes text: reads a beginning, then gives token after token. When the context is full it goes
 * on from the latter half of it. On a GPU tokens are drawn there, some ahead of those that were
 * asked for, by a step that is captured once and replayed; the numbers that draw them are those of
 * cup_sample. Behind the end of a document, of a model that knows of documents, begins another one;
 * of several texts when all of them end at once. */
typedef struct cup_generator cup_generator;
CUP_API cup_generator *cup_generator_new(cup_gpt *m, const cup_sampling *sampling);
CUP_API void cup_generator_free(cup_generator *g);
CUP_API cup_status cup_generator_feed(cup_generator *g, const int32_t *tokens, int64_t count);
/* The next token; -1 on failure, also before anything was fed. */
CUP_API int32_t cup_generator_next(cup_generator *g);
/* Why the steps on a GPU are no captured graph, but calls of the host for each token, in words: of
 * the model, or from the first tokens on of a capture that failed. NULL: they are, or are to be, or
 * it is a CPU. The text lives as long as the generator. */
CUP_API const char *cup_generator_uncaptured(const cup_generator *g);

/* Writes `texts` texts side by side, at far less than as many times the cost of one: what is fed
 * begins all of them, and each goes on by draws of its own, text r by the numbers i texts + r of
 * the seed. CUP_ARGUMENT where texts is no count. */
CUP_API cup_generator *cup_generator_texts_new(cup_gpt *m, int64_t texts,
                                               const cup_sampling *sampling);
/* The next token of each, to tokens [texts], which the caller owns. A text that is to end earlier
 * than the others goes on here all the same. Fails as cup_generator_next does. */
CUP_API cup_status cup_generator_next_texts(cup_generator *g, int32_t *tokens);

#ifdef __cplusplus
}
#endif
#endif

/* The inside of the GPT, shared by its making, its passes and its cache, which are written with
 * public calls alone, as a program's own model is. */
#ifndef CUP_NN_GPT_H
#define CUP_NN_GPT_H

#include "cupola/nn.h"

/* A caller's config with its defaults, checked. */
cup_status cup__gpt_config_take(cup_context *c, const cup_gpt_config *config, cup_gpt_config *to);
/* How processes share out a model, as a caller says it. */
cup_status cup__gpt_sharing_take(cup_context *c, const cup_gpt_sharing *sharing,
                                 cup_gpt_sharing *to);

#define CUP__GPT_LOGITS_MOST ((int64_t)1 << 30) /* bytes, where the caller does not say */

/* Sizes that follow from a checked config. */
int64_t cup__gpt_rows(const cup_gpt_config *config);  /* of the embedding */
int64_t cup__gpt_parts(const cup_gpt_config *config); /* heads of queries, keys and values */
int64_t cup__gpt_head_size(const cup_gpt_config *config);

/* A tensor of the model as a row: its name with %d for the block, where it stands in the model or
 * the block, and its shape. */
typedef enum cup__extent {
    CUP__EXTENT_NONE, /* a vector has no second one, a matrix no third */
    CUP__EXTENT_ROWS,
    CUP__EXTENT_CONTEXT,
    CUP__EXTENT_WIDTH,
    CUP__EXTENT_QKV,
    CUP__EXTENT_HEAD,
    CUP__EXTENT_HEADS, /* all of queries */
    CUP__EXTENT_SINKS, /* one of each of those */
    CUP__EXTENT_UP,
    CUP__EXTENT_HIDDEN,
    CUP__EXTENT_EXPERTS
} cup__extent;

typedef enum cup__start {
    CUP__START_NORMAL,
    CUP__START_RESIDUAL,
    CUP__START_0,
    CUP__START_1
} cup__start;

typedef struct cup__gpt_tensor {
    const char *name;
    bool in_block;
    size_t offset; /* in the model, or among the tensors of a block */
    cup__extent shape[3];
    cup__start start;
    cup_part part; /* that a process has where several share out the model */
    bool (*absent)(const cup_gpt_config *config); /* NULL: always there */
} cup__gpt_tensor;

extern const cup__gpt_tensor cup__gpt_tensors[]; /* ends with a NULL name */
int64_t cup__gpt_extent(const cup_gpt_config *config, cup__extent extent);

/* What a recomputed block is told: two for each block, without dropout and with it. */
typedef struct cup__gpt_pass {
    const cup_gpt *model;
    const cup_transformer_layer *block;
    bool training;
} cup__gpt_pass;

/* The policy that keeps next more of what forward makes. */
cup_recompute_policy cup__gpt_policy_before(cup_recompute_policy policy);

/* The linear layers of a block that have adapters, in the order of m->loras. */
enum { CUP__LORA_QKV, CUP__LORA_OUT, CUP__LORA_UP, CUP__LORA_DOWN, CUP__LORA_COUNT };
#define CUP__LORA_RANK_MOST 65536

/* The list that is trained and saved: the adapters' where there are some. */
cup_parameters *cup__gpt_learned(const cup_gpt *m);

/* Whether a block is here; and refuses, under its name, what needs the whole model where not all
 * are. */
bool cup__gpt_has_block(const cup_gpt *m, int64_t block);
cup_status cup__gpt_check_whole(const cup_gpt *m, const char *what);

/* Where the documents of texts [B,T] end, i32 [B,T], and how far behind the beginning of its own
 * each token stands, i32 [B,T]. */
cup_tensor *cup__gpt_document_ends(const cup_gpt *m, cup_tensor *tokens);
cup_tensor *cup__gpt_document_places(const cup_gpt *m, cup_tensor *tokens, cup_tensor *ends);
/* The logits of rows, capped where the model has a cap; of a process's part of the vocabulary. */
cup_tensor *cup__gpt_logits(const cup_gpt *m, cup_tensor *x);
/* The final norm of x + delta, where delta, dropped out in training, may be NULL. */
cup_tensor *cup__gpt_end(const cup_gpt *m, cup_tensor *x, cup_tensor *delta, bool training);
/* On a CPU, that the model knows every token of [B,T]; their dtype. */
cup_status cup__gpt_tokens_check(const cup_gpt *m, cup_tensor *tokens);
/* The elements [from, to) along an axis, as a view. */
cup_tensor *cup__gpt_part(cup_tensor *x, int axis, int64_t from, int64_t to);

/* What a model of so many parameters takes of memory, so many bytes for each, shared out to so many
 * processes, or its experts to so many: refused at once where the device has not as much. */
cup_status cup__gpt_fits(cup_context *c, const cup_gpt_config *config, int64_t bytes_each,
                         const char *what, int processes, int sharing_experts);

#endif

/* Models as others publish them: a folder with config.json and weights in safetensors files, in the
 * names of Hugging Face's transformers. */
#ifndef CUP_TRAIN_PUBLISHED_H
#define CUP_TRAIN_PUBLISHED_H

#include "base/json.h"
#include "cupola/train.h"

/* Which rows of ours a tensor of theirs is: all, or the heads of queries, keys or values among
 * those of attention, or the half of an MLP's first matrix. */
typedef enum cup__published_part {
    CUP__PART_ALL,
    CUP__PART_QUERIES,
    CUP__PART_KEYS,
    CUP__PART_VALUES,
    CUP__PART_GATE,
    CUP__PART_UP
} cup__published_part;

/* A tensor under our name and theirs, with %d for the block, and in theirs behind it for the expert
 * where each has one of its own. */
typedef struct cup__published_tensor {
    const char *own, *name;
    cup__published_part part;
    bool transposed;
} cup__published_tensor;

typedef struct cup__published_family {
    cup_gpt_family family;
    const char *model_type, *architecture;
    const char *prefix; /* that names may have in front, or may not; NULL: none */
    const cup__published_tensor *tensors; /* ends with a NULL name */
    cup_status (*read)(cup__error *error, const cup__json *json, cup_gpt_config *config);
    void (*write)(const cup_gpt_config *config, cup__json_writer *writer);
    bool (*is_one)(const cup_gpt_config *config); /* whether the model is one of the family */
} cup__published_family;

/* Those of the families, some of which have the same. */
extern const cup__published_tensor cup__published_gpt2[], cup__published_llama[],
    cup__published_mixtral[], cup__published_qwen3_moe[];

/* Keys of an object of a config.json that need not be there, or may be null: whether one is there,
 * and a whole number from 1 on or another one. */
#define CUP__PUBLISHED_MOST ((int64_t)1 << 24)
bool cup__published_has(const cup__json_node *object, const char *key);
cup_status cup__published_whole_or(cup__error *error, const cup__json *json,
                                   const cup__json_node *object, const char *key, int64_t usual,
                                   int64_t *out);
cup_status cup__published_real_or(cup__error *error, const cup__json *json,
                                  const cup__json_node *object, const char *key, double usual,
                                  double *out);
cup_status cup__published_flag_or(cup__error *error, const cup__json *json,
                                  const cup__json_node *object, const char *key, bool usual,
                                  bool *out);
/* The same for numbers above 0, the first of which must be there. */
cup_status cup__published_above(cup__error *error, const cup__json *json,
                                const cup__json_node *object, const char *key, double *out);
cup_status cup__published_above_or(cup__error *error, const cup__json *json,
                                   const cup__json_node *object, const char *key, double usual,
                                   double *out);

/* Fails with what the model of a config.json computes by a key of it that ours does not. */
cup_status cup__published_refuse(cup__error *error, const cup__json *json, const char *key,
                                 const char *what);

/* What config.json says of rotary positions and of how many there may be, for the decoders. */
cup_status cup__published_rope_read(cup__error *error, const cup__json *json,
                                    cup_gpt_config *config);
void cup__published_rope_write(const cup_gpt_config *config, cup__json_writer *writer);

extern const cup__published_family cup__published_families[]; /* ends with a NULL model_type */

/* The family that a checked config is written as: that which it names, if it is one, else the first
 * that it is one of; NULL: none. */
const cup__published_family *cup__published_family_of(const cup_gpt_config *config);

/* Calls `visit` with each tensor of a model, under the family's name for it: a view. */
typedef struct cup__published_walk {
    cup_gpt *model;
    const cup__published_family *family;
    cup_status (*visit)(void *user, const char *name, cup_tensor *view);
    void *user;
} cup__published_walk;

cup_status cup__published_each(cup__published_walk *walk);

/* Writes tensors, views of a model's, to a folder: as model.safetensors or, where they have more
 * than `most` bytes, in parts with an index. What an older export left there goes. */
cup_status cup__published_weights(cup_context *c, const char *folder, const cup_named *views,
                                  int64_t count, int64_t most);

/* Ends a document and writes it to a folder. */
cup_status cup__published_json(cup_context *c, const char *folder, const char *name,
                               cup__json_writer *json);

/* Whether others read a tokenizer, and the folder has no file of another one that would stand
 * beside it. */
cup_status cup__published_tokenizer_check(cup_context *c, const cup_tokenizer *t,
                                          const char *folder);
/* What begins and ends a text, as keys of an object; and how texts are written by a model,
 * generation_config.json. */
void cup__published_ids(const cup_tokenizer *t, cup__json_writer *json);
cup_status cup__published_generation(cup_context *c, const cup_tokenizer *t, const char *folder);

/* The config of a folder that holds one, with its defaults, and its family. */
cup_status cup__published_read(cup_context *c, const char *folder, cup_gpt_config *config,
                               const cup__published_family **family);

/* Fails unless the weights in a folder are those of its config: none too many, none in codes. */
cup_status cup__published_check(cup__error *error, const char *folder, const cup_gpt_config *config,
                                const cup__published_family *family);

/* The rows of our tensor, of so many in all, that a part is; and whether there is one tensor of
 * theirs for each expert of ours. */
void cup__published_rows(const cup_gpt_config *config, cup__published_part part, int64_t rows,
                         int64_t *from, int64_t *count);
bool cup__published_of_expert(const cup__published_tensor *t);

/* Whether a folder holds a published model, and no checkpoint of ours. */
bool cup__published_is(const char *folder);

/* Gives a model the weights of a published one, or of a checkpoint's, which must have the same
 * tensors. */
cup_status cup__gpt_take_from(cup_gpt *m, const char *folder);
/* The same of what this process has of a model that it shares out with others; all of `comm` call
 * it, and each reads what it needs. */
cup_status cup__gpt_take_parts(cup_gpt *m, const char *folder, cup_comm *comm);

#endif

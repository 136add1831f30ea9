/* cupola/train.h: a training run of a GPT: batches, steps, evaluation and checkpoints.
 * Its steps are those of cupola/loop.h. */
#ifndef CUPOLA_TRAIN_H
#define CUPOLA_TRAIN_H

#include "cupola/data.h"
#include "cupola/loop.h"
#include "cupola/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All that says what a run computes. Start from a preset. */
typedef struct cup_training {
    size_t size; /* of this struct, as a preset has it */
    cup_gpt_config model;
    cup_dtype dtype;    /* f32, bf16 or f16, the two with a master copy of the weights in f32, the
                           last with a scale of the loss */
    int64_t batch;      /* texts of the model's context that are computed at once */
    int64_t accumulate; /* such batches that make one step; 0: 1 */
    int64_t steps;
    int64_t warmup;        /* steps in which the learning rate rises to `rate` */
    double rate, rate_end; /* from there it declines to rate_end at the last step */
    cup_optimizer_options optimizer;
    int64_t evaluate_every; /* steps between evaluations; 0: only before and behind all steps */
    int64_t evaluate_texts; /* texts of the validation part that are evaluated; 0: all of it */
    int64_t save_every;     /* steps between checkpoints; 0: only behind all steps */
    uint64_t seed;          /* of the first weights, the batches and dropout */
    /* See cup_gpt. AUTO is the first of NONE, NORMS, POINTWISE and BLOCK with which a step and an
     * evaluation stay below what the context may hold, see cup_options, and below what is free, in
     * as few blocks as that takes, see `recompute_blocks`; on a GPU a fortieth is left. Of a model
     * that processes share out it is what one of them needs, in stages in all blocks, and all take
     * what fits each. On a GPU it is CUP_UNSUPPORTED with `ring` and `expert`. */
    cup_recompute_policy recompute;
    int64_t logits_most;    /* see cup_gpt */
    const char *precision;  /* of f32 products, see cup_precision; NULL: what the context has; or
                               "fp8": linear layers inside of blocks multiply in 8 bits, see
                               cup_parameters_fp8, and f32 products are as with "high" */
    cup_decline decline;    /* of the rate, with decline_steps as cup_schedule has them */
    int64_t decline_steps;
    /* The processes that train together, as cup_loop_options has them: the texts of a step are
     * shared by them, of the batches or, where there are not enough, of each batch. Not kept in
     * checkpoints: a run may go on with another number of processes. */
    cup_comm *comm;
    const char *from; /* folder of a published model, see cup_gpt_import, or of a checkpoint, whose
                         weights a new run begins with; NULL: with new ones. The model is the same
                         but for dropout. Borrowed for as long as the trainer is made */
    int64_t check_every; /* see cup_loop_options */
    /* So many processes of comm whose ranks follow each other share out one model, see
     * cup_gpt_among_new, and their groups the texts of a step. 0: 1. Like comm it is not kept in
     * checkpoints, which are of the whole. Each reads its parts of the weights of `from`, which has
     * no adapters then. */
    int64_t tensor;
    bool background;     /* the same */
    /* Trains adapters of this rank beside the model of `from`, which stays as it is, see
     * cup_gpt_adapt; 0: the model. Checkpoints then have the adapters alone, and say where the
     * model lies: `from` may be NULL in a folder that has one. */
    int64_t lora_rank;
    double lora_alpha; /* 0: the rank */
    /* The model has so many stages, see cup_gpt_stage_new and `pipe` of cup_loop_options, each of
     * `tensor` processes; the groups that share the texts are then of as many more. 0: 1. `blocks`
     * says how many blocks each stage has; NULL: as many each as can be, the first of them one
     * more. It is borrowed for as long as the trainer is made. All else is as of `tensor`. */
    int64_t stages;
    const int64_t *blocks;
    /* So many processes, each of which may be a group of `stages` and `tensor`, have a part each of
     * every text, see cup_parameters_ring; the groups that share the texts are then of as many
     * more. 0: 1. The context must be a multiple of twice as many; dropout is refused. Nor is it
     * kept in checkpoints. */
    int64_t ring;
    /* So many chunks of blocks are on each of the processes of `stages`, see `chunks` of
     * cup_loop_options: stages wait less for each other, and pass on more. `blocks` then says how
     * many each chunk has, of all stages in the order of the model: stages times chunks numbers.
     * 0: 1. All else is as of `stages`. */
    int64_t chunks;
    /* So many processes whose ranks follow each other, each of which has its share of the batches,
     * share out the experts of the model, see cup_gpt_experts_new; all else is whole on each. With
     * `stages` they are copies of one of them, that many ranks apart, and share out its experts.
     * With `tensor` it is a multiple of that: those who share out a model are among them, and each
     * sends an equal part of its tokens, of which there must be a multiple of `tensor`; where it is
     * 1 each has a part of all experts. 0: 1. Nor is it kept in checkpoints, which are of the
     * whole. */
    int64_t expert;
    int64_t recompute_blocks; /* see cup_gpt; 0: all */
    cup_non_finite non_finite; /* see cup_loop_options */
    cup_data_order order; /* of what is learned from; a step's texts are the next of it */
    /* See cup_loop_options; with dtype f16 a loss_scale of 0 is 65536. Logits of a model in f16 are
     * not made in chunks in training, as their gradients are to have the scale from the start. */
    double loss_scale;
    int64_t loss_scale_steps;
    /* The processes of `tensor` share out the tokens between blocks, too, see
     * cup_parameters_sequence: their batch times its parts of texts must be a multiple of `tensor`.
     * Dropout is refused. Nor is it kept in checkpoints. */
    bool sequence;
} cup_training;

/* A run that is known to work, under a name. */
typedef struct cup_preset {
    const char *name, *words;
    cup_training training;
} cup_preset;

/* The presets, ending with a NULL name; the one of a name, or NULL. The model's vocabulary is not
 * set: it is that of the tokenizer. */
CUP_API const cup_preset *cup_presets(void);
CUP_API const cup_preset *cup_preset_find(const char *name);

/* "none", "block", "norms" or "auto"; and back, false where it is none of them. */
CUP_API const char *cup_recompute_policy_name(cup_recompute_policy policy);
CUP_API bool cup_recompute_policy_find(const char *name, cup_recompute_policy *out);

typedef struct cup_trainer cup_trainer;

/* A run with new weights. Data and tokenizer are borrowed; checkpoints go to the folder, NULL for
 * none, which no other run can use until this one is freed or its process ends. A run that was not
 * resumed refuses to begin where a checkpoint, or a file that has a name of one, stands already.
 * The model's vocabulary may be 0: that of the tokenizer. */
CUP_API cup_trainer *cup_trainer_new(cup_context *c, const cup_data *data,
                                     const cup_tokenizer *tokenizer, const char *folder,
                                     const cup_training *training);
CUP_API void cup_trainer_free(cup_trainer *t);

/* Refuses what cup_trainer_new would refuse of a training whatever it learns from, in less than a
 * second and without its memory: for when it takes long to make what that is. A vocabulary may be
 * 0, and whether processes can share the model out is left to that call. */
CUP_API cup_status cup_training_check(cup_context *c, const cup_training *training);

/* Whether a new training may begin in a folder: see cup_loop_vacant. */
CUP_API cup_status cup_training_vacant(cup_context *c, const char *folder);

/* What a folder's checkpoint was made with, to make the same trainer again, and the steps it has
 * done. */
CUP_API cup_status cup_training_load(cup_context *c, const char *folder, cup_training *training,
                                     int64_t *steps);

/* Goes on from the folder's checkpoint, with the same losses, bit for bit, as if the run had never
 * stopped. Number of steps, evaluations and saves may differ from the checkpoint's; what else
 * differs is refused. */
CUP_API cup_status cup_trainer_resume(cup_trainer *t);

/* Lets a new run replace what stands in its folder, with its first save. */
CUP_API cup_status cup_trainer_overwrite(cup_trainer *t);

/* Runs the steps that are left. CUP_INTERRUPTED when a hook said stop; CUP_STATE when a loss, or
 * gradients, are not finite and `non_finite` says stop. */
CUP_API cup_status cup_trainer_run(cup_trainer *t, const cup_training_hooks *hooks);

/* Writes a checkpoint now. */
CUP_API cup_status cup_trainer_save(cup_trainer *t);

/* Which policy CUP_RECOMPUTE_POLICY_AUTO became, and why, as a sentence that lives with the
 * trainer; NULL where the training named one. */
CUP_API const char *cup_trainer_policy_text(const cup_trainer *t);

/* The model, the steps done, and of these those that changed nothing, see cup_loop_skipped; and
 * every point so far, those before a resume included. Borrowed. */
CUP_API cup_gpt *cup_trainer_model(cup_trainer *t);
CUP_API int64_t cup_trainer_steps(const cup_trainer *t);
CUP_API int64_t cup_trainer_skipped(const cup_trainer *t);
CUP_API double cup_trainer_loss_scale(const cup_trainer *t); /* see cup_loop_loss_scale */
CUP_API const cup_training_point *cup_trainer_points(const cup_trainer *t, int64_t *count);

/* The mean loss of the model over a part of the data: over all its texts of the model's context
 * that follow each other, or `texts` of them, evenly spread. */
CUP_API cup_status cup_gpt_evaluate(cup_gpt *m, const cup_data *data, cup_split split,
                                    int64_t batch, int64_t texts, double *loss);

/* The model of a folder's checkpoint, with its adapters where such were trained; the same with the
 * moving averages of what was trained in its place, CUP_STATE where the run kept none, see
 * cup_optimizer_options; and the tokenizer. */
CUP_API cup_gpt *cup_gpt_load(cup_context *c, const char *folder);
CUP_API cup_gpt *cup_gpt_load_average(cup_context *c, const char *folder);
CUP_API cup_tokenizer *cup_gpt_tokenizer_load(cup_context *c, const char *folder);

/* A model as others publish it, in the names of Hugging Face's transformers: a folder with
 * config.json and safetensors files, in parts or not, of GPT-2, or of a Llama, Mistral, SmolLM,
 * Qwen 2, Qwen 3, Mixtral or Qwen 3 MoE whose rotary positions are as they are, all divided by a
 * factor, or scaled as Llama 3's, by YaRN or by dynamic NTK, see cup_rope_scaling; with their
 * sliding windows, where blocks that see all come first. With the latter two scalings the context
 * is as many times the original positions as their factor says, unless max_position_embeddings is
 * more; of dynamic NTK the original ones are max_position_embeddings, there and in what is written.
 * Of other families with experts none is read: they have some that all tokens go through, or MLPs
 * in some blocks. The weights are rounded to the dtype. cup_gpt_load does the same in f32 where a
 * folder has no checkpoint of ours, and `from` of cup_training lets a run begin with them.
 * CUP_FORMAT where tensors are missing, too many (a block, expert, bias or norm more) or have other
 * shapes than config.json says, or where its keys have other types; CUP_UNSUPPORTED where it
 * asks for what this library's models do not have, and for quantized weights. */
CUP_API cup_gpt *cup_gpt_import(cup_context *c, const char *folder, cup_dtype dtype);
/* What the model of such a folder, or of a checkpoint, looks like: for cup_training. */
CUP_API cup_status cup_gpt_config_load(cup_context *c, const char *folder, cup_gpt_config *config);
/* Writes such a folder: config.json and model.safetensors, in the model's dtype; the tokenizer is
 * the caller's. It is of the family that the config names, where the model is one of it still.
 * CUP_UNSUPPORTED of a model that is no GPT-2, Llama, Qwen 2, Qwen 3, Mixtral or Qwen 3 MoE. */
CUP_API cup_status cup_gpt_export(cup_gpt *m, const char *folder);

/* How such a folder is written. */
typedef struct cup_publish_options {
    size_t size; /* of this struct, see CUP_OPTIONS */
    /* Is written too, as by cup_gpt_tokenizer_publish, with generation_config.json, which says what
     * begins and ends a text, as config.json does then; that of its own folder, where it came with
     * one. NULL: is the caller's. CUP_UNSUPPORTED of one of characters. */
    const cup_tokenizer *tokenizer;
    /* Weights of more bytes than this become model-00001-of-0000N.safetensors and so on, with
     * model.safetensors.index.json, each of which has no more, unless it is one tensor. 0: 5e9. An
     * older export in the folder stays whole until all parts are written, and is removed then. */
    int64_t part_bytes;
} cup_publish_options;

/* The same as cup_gpt_export with options; NULL: all defaults. */
CUP_API cup_status cup_gpt_publish(cup_gpt *m, const char *folder,
                                   const cup_publish_options *options);

/* Writes a model's tokenizer to a folder as transformers read one: tokenizer.json, and
 * tokenizer_config.json with the model's context and what begins and ends a text. One that was read
 * from such a folder, and kept in a run's checkpoints since, has that folder's files again byte for
 * byte: tokenizer_config.json, special_tokens_map.json and chat_template.jinja; `model_max_length`
 * alone becomes the context of a model with learned positions where it was more. CUP_UNSUPPORTED of
 * one of characters, CUP_ARGUMENT where one of the latter two lies in the folder already and the
 * tokenizer came without: it would be read with this one. */
CUP_API cup_status cup_gpt_tokenizer_publish(cup_gpt *m, const cup_tokenizer *t,
                                             const char *folder);

/* Writes a model's adapters alone, as peft reads them: a folder with adapter_config.json, which
 * names `base`, the folder or name of the model they stand beside, or NULL, and
 * adapter_model.safetensors. CUP_UNSUPPORTED of a model that cup_gpt_export does not take. */
CUP_API cup_status cup_gpt_adapters_export(cup_gpt *m, const char *folder, const char *base);
/* Gives a model that has none the adapters of such a folder, of any linear layers of its blocks;
 * the others get some that give 0. CUP_FORMAT where their shapes are not those of the model,
 * CUP_UNSUPPORTED where they are of other layers or of another kind. A model that could not get
 * them can only be freed. */
CUP_API cup_status cup_gpt_adapters_load(cup_gpt *m, const char *folder);
/* Where the model lies that the adapters of a run's checkpoint stand beside, written to `path`,
 * which has room for `size` bytes. CUP_FORMAT of a checkpoint without adapters. */
CUP_API cup_status cup_gpt_base(cup_context *c, const char *folder, char *path, size_t size);

/* The text that the run of a folder's checkpoint learned from, read again from where it was. */
CUP_API cup_corpus *cup_gpt_corpus_load(cup_context *c, const char *folder);

/* What the run learned from in tokens, text or not, found where it was; `context` is as for
 * cup_data_new. */
CUP_API cup_data *cup_gpt_data_load(cup_context *c, const char *folder, const cup_tokenizer *t,
                                    int64_t context);

#ifdef __cplusplus
}
#endif
#endif

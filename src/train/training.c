/* What a run computes: presets, checks, and the form in files. */
#include <math.h>
#include <string.h>

#include "base/options.h"
#include "cuda/dry.h"
#include "dispatch/attributes.h"
#include "nn/config.h"
#include "nn/gpt.h"
#include "optim/loss_scale.h"
#include "optim/schedule.h"
#include "tensor/context.h"
#include "train/trainer.h"

#define GPT2(n_layers, n_heads, n_width)                                                           \
    .size = sizeof(cup_gpt_config), .layers = (n_layers), .heads = (n_heads), .width = (n_width),  \
    .context = 1024, .bias = true
#define GPT2_RUN(n_batch, n_accumulate, peak)                                                      \
    .size = sizeof(cup_training), .dtype = CUP_BF16, .precision = "high", .batch = (n_batch),      \
    .accumulate = (n_accumulate), .steps = 600000, .warmup = 2000, .rate = (peak),                 \
    .rate_end = (peak) / 10, .optimizer = {.beta2 = 0.95, .weight_decay = 0.1, .clip = 1},         \
    .evaluate_every = 1000, .evaluate_texts = 4096, .save_every = 1000

static const cup_preset presets[] = {
    {"char",
     "nanoGPT's character model: 10.7 million parameters, minutes on a GPU",
     {.size = sizeof(cup_training),
      .model = {.size = sizeof(cup_gpt_config),
                .layers = 6,
                .heads = 6,
                .width = 384,
                .context = 256,
                .dropout = 0.2},
      .precision = "high",
      .batch = 64,
      .steps = 5000,
      .warmup = 100,
      .rate = 1e-3,
      .rate_end = 1e-4,
      .optimizer = {.beta2 = 0.99, .weight_decay = 0.1, .clip = 1},
      .evaluate_every = 250,
      .save_every = 500}},
    {"demo",
     "a small character model that learns in two minutes on two CPU cores",
     {.size = sizeof(cup_training),
      .model =
          {.size = sizeof(cup_gpt_config), .layers = 4, .heads = 4, .width = 128, .context = 64},
      .precision = "high",
      .batch = 16,
      .steps = 1500,
      .warmup = 100,
      .rate = 2e-3,
      .rate_end = 2e-4,
      .optimizer = {.beta2 = 0.99, .weight_decay = 0.1, .clip = 1},
      .evaluate_every = 250,
      .evaluate_texts = 256,
      .save_every = 500}},
    {"gpt2-124m", "the smallest GPT-2", {.model = {GPT2(12, 12, 768)}, GPT2_RUN(32, 15, 6e-4)}},
    {"gpt2-350m", "GPT-2 medium", {.model = {GPT2(24, 16, 1024)}, GPT2_RUN(16, 30, 3e-4)}},
    {"gpt2-774m", "GPT-2 large", {.model = {GPT2(36, 20, 1280)}, GPT2_RUN(8, 60, 2.5e-4)}},
    {"gpt2-1558m", "the largest GPT-2", {.model = {GPT2(48, 25, 1600)}, GPT2_RUN(4, 120, 2e-4)}},
    {0}};

const cup_preset *cup_presets(void)
{
    return presets;
}

const cup_preset *cup_preset_find(const char *name)
{
    for (const cup_preset *p = presets; name && p->name; p++)
        if (!strcmp(p->name, name))
            return p;
    return NULL;
}

const char *const cup__recompute_words[] = {"none", "block",     "norms",
                                           "auto", "pointwise", NULL};

const char *cup_recompute_policy_name(cup_recompute_policy policy)
{
    bool known = (int)policy >= 0 && policy <= CUP_RECOMPUTE_POLICY_POINTWISE;
    return known ? cup__recompute_words[policy] : "?";
}

bool cup_recompute_policy_find(const char *name, cup_recompute_policy *out)
{
    for (int i = 0; name && cup__recompute_words[i]; i++)
        if (!strcmp(name, cup__recompute_words[i])) {
            *out = (cup_recompute_policy)i;
            return true;
        }
    return false;
}

static const char *const orders[] = {"random", "permuted", NULL};

#define AT(name) offsetof(cup_training, name)
static const cup__field fields[] = {
    {"method", CUP__FIELD_CHOICE, AT(optimizer.method), 0, 0, true, cup__method_words},
    {"batch", CUP__FIELD_WHOLE, AT(batch), 1, 1 << 24, true, NULL},
    {"accumulate", CUP__FIELD_WHOLE, AT(accumulate), 0, 1 << 20, true, NULL},
    {"steps", CUP__FIELD_WHOLE, AT(steps), 1, 1e15, false, NULL},
    {"warmup", CUP__FIELD_WHOLE, AT(warmup), 0, 1e15, false, NULL},
    {"rate", CUP__FIELD_REAL, AT(rate), 0, 1e6, false, NULL},
    {"rate_end", CUP__FIELD_REAL, AT(rate_end), 0, 1e6, false, NULL},
    CUP__OPTIMIZER_FIELDS(cup_training, optimizer),
    {"evaluate_every", CUP__FIELD_WHOLE, AT(evaluate_every), 0, 1e15, false, NULL},
    {"evaluate_texts", CUP__FIELD_WHOLE, AT(evaluate_texts), 0, 1e15, false, NULL},
    {"save_every", CUP__FIELD_WHOLE, AT(save_every), 0, 1e15, false, NULL},
    {"recompute", (cup__field_kind)(CUP__FIELD_CHOICE | CUP__FIELD_FLAG_ONCE), AT(recompute), 0, 0,
     false, cup__recompute_words},
    {"recompute_blocks", CUP__LATER(WHOLE), AT(recompute_blocks), 0, 1e6, false, NULL},
    {"logits_most", CUP__FIELD_WHOLE, AT(logits_most), 0, 1e15, false, NULL},
    {"decline", CUP__LATER(CHOICE), AT(decline), 0, 0, false, cup__decline_words},
    {"decline_steps", CUP__LATER(WHOLE), AT(decline_steps), 0, 1e15, false, NULL},
    {"order", CUP__LATER(CHOICE), AT(order), 0, 0, true, orders},
    {"lora_rank", CUP__LATER(WHOLE), AT(lora_rank), 0, CUP__LORA_RANK_MOST, true, NULL},
    {"lora_alpha", CUP__LATER(REAL), AT(lora_alpha), 0, 1e6, true, NULL},
    {"non_finite", CUP__LATER(CHOICE), AT(non_finite), 0, 0, false, cup__non_finite_words},
    CUP__LOSS_SCALE_FIELDS(cup_training),
    {0}};

bool cup__training_is_fp8(const cup_training *training)
{
    return training->precision && !strcmp(training->precision, "fp8");
}

cup_status cup__training_precision(cup_context *c, const cup_training *training)
{
    return cup_precision(c, cup__training_is_fp8(training) ? "high" : training->precision);
}

/* What attention of parts of texts does not know of; NULL: it knows all that the model has. */
static const char *unknown_to_rings(const cup_gpt_config *g)
{
    return g->window && g->window < g->context         ? "windows"
           : g->soft_cap > 0                           ? "soft caps"
           : g->sinks                                  ? "sinks"
           : g->documents                              ? "documents"
           : g->positions == CUP_POSITIONS_ALIBI       ? "alibi"
                                                       : NULL;
}

static cup_status check_sequence(cup_context *c, const cup_training *a)
{
    if (!a->sequence || a->model.dropout <= 0)
        return CUP_OK;
    return cup__fail(&c->error, CUP_ARGUMENT,
                     "training: processes that share out tokens between blocks do not know of "
                     "dropout; set it to 0, or leave sequence parallel out");
}

static cup_status check_codes(cup_context *c, const cup_training *a)
{
    bool cut = a->tensor > 1 || (a->expert > 1 && a->lora_rank == 0);
    if (!cut || !cup__method_is_coded(a->optimizer.method))
        return CUP_OK;
    return cup__fail(&c->error, CUP_ARGUMENT,
                     "training: states of 8 bits are not of what processes share out; take adamw, "
                     "or leave parts of a model and of experts out");
}

static cup_status check_ring(cup_context *c, const cup_training *a)
{
    const char *what = unknown_to_rings(&a->model);
    if (a->ring <= 1 || !what)
        return CUP_OK;
    return cup__fail(&c->error, CUP_ARGUMENT,
                     "training: processes that have a part of each text do not know of %s; share "
                     "out something else",
                     what);
}

static cup_status check_dtype(cup_context *c, cup_training *a)
{
    if (a->dtype != CUP_F8E4M3 && a->dtype != CUP_F8E5M2)
        return cup__loss_scale_choose(c, a->dtype, &a->loss_scale);
    return cup__fail(&c->error, CUP_DTYPE,
                     "training: the dtype must be f32, bf16 or f16, not %s; take the precision "
                     "\"fp8\", with which linear layers multiply in 8 bits, whatever the dtype is",
                     cup_dtype_name(a->dtype));
}

cup_status cup__training_check(cup_context *c, cup_training *training)
{
    cup__precision precision = c->precision;
    CUP_TRY(cup__fields_check(&c->error, "training", fields, training));
    CUP_TRY(check_dtype(c, training));
    bool fp8 = cup__training_is_fp8(training);
    if (training->precision && !fp8)
        CUP_TRY(cup__precision_find(&c->error, training->precision, &precision));
    training->precision = fp8 ? "fp8" : cup__precision_names[precision];
    if (training->recompute_blocks > 0 && training->recompute == CUP_RECOMPUTE_POLICY_NONE)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "training: recompute_blocks is %lld, but no policy says what is computed "
                         "again in these blocks",
                         (long long)training->recompute_blocks);
    if (training->accumulate == 0)
        training->accumulate = 1;
    if (training->lora_alpha == 0)
        training->lora_alpha = (double)training->lora_rank;
    int64_t rows, texts;
    if (__builtin_mul_overflow(training->batch, training->accumulate, &rows) ||
        __builtin_mul_overflow(rows, training->model.context, &rows) || rows > (int64_t)1 << 40)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "training: batch, accumulate and context make too many tokens a step");
    if (training->order == CUP_DATA_ORDER_PERMUTED &&
        __builtin_mul_overflow(training->batch * training->accumulate, training->steps, &texts))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "training: %lld steps have more texts than can be counted; make it fewer",
                         (long long)training->steps);
    CUP_TRY(cup_gpt_config_check(c, &training->model));
    CUP_TRY(check_sequence(c, training));
    CUP_TRY(check_codes(c, training));
    return check_ring(c, training);
}

/* Of the whole model, whose parts and stages have the same names. */
static void put_together(cup_training *a)
{
    a->tensor = a->stages = a->chunks = a->ring = a->expert = 0;
    a->blocks = NULL;
    a->comm = a->optimizer.split = NULL;
    a->optimizer.stage = 0;
    a->optimizer.offload = a->sequence = false;
    a->from = NULL;
}

/* On a card that is not there, where nothing is computed or takes memory. */
static cup_status make_dry(cup_context *c, const cup_training *a)
{
    cup_trainer t = {0};
    cup_context *dry = cup__context_dry("sm_90a");
    if (!dry)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for a training run");
    cup_scope_open(dry);
    if (dry->error.status == CUP_OK)
        cup__training_dry(dry, a, &t);
    cup_scope_return(dry, NULL);
    cup__training_dry_free(&t);
    if (dry->error.status != CUP_OK)
        cup__fail(&c->error, dry->error.status, "%s", cup_error_text(dry));
    cup_context_free(dry);
    return c->error.status;
}

cup_status cup_training_check(cup_context *c, const cup_training *training)
{
    cup_training a;
    if (!c)
        return CUP_MEMORY;
    CUP_TRY(c->error.status);
    CUP_TRY(cup__options_take(&c->error, "training", &a, sizeof a, training));
    a.model.size = sizeof a.model;
    a.model.vocabulary += a.model.vocabulary == 0 ? 256 : 0;
    CUP_TRY(cup__training_check(c, &a));
    put_together(&a);
    if (a.recompute == CUP_RECOMPUTE_POLICY_AUTO)
        a.recompute = CUP_RECOMPUTE_POLICY_NONE;
    return make_dry(c, &a);
}

const char *cup__training_differs(const cup_training *a, const cup_training *b)
{
    const char *name = cup__fields_differ(fields, a, b);
    return name ? name
           : a->dtype != b->dtype ? "dtype"
           : a->seed != b->seed ? "seed"
           : strcmp(a->precision, b->precision) ? "precision"
                                                : cup__gpt_config_differs(&a->model, &b->model);
}

void cup__training_write(cup__json_writer *writer, const char *key, const cup_training *training)
{
    cup__json_open(writer, key, CUP__JSON_OBJECT);
    cup__json_add_string(writer, "dtype", cup_dtype_name(training->dtype));
    cup__json_add_unsigned(writer, "seed", training->seed);
    cup__json_add_string(writer, "precision", training->precision);
    cup__fields_write(writer, fields, training);
    cup__json_close(writer);
}

cup_status cup__training_read(cup_context *c, const cup__json *json, const cup__json_node *object,
                              cup_training *training)
{
    cup__error *error = &c->error;
    const char *dtype;
    CUP_TRY(cup__json_get_string(error, json, object, "dtype", &dtype));
    if (cup_dtype_find(dtype, &training->dtype) != CUP_OK)
        return cup__fail(error, CUP_FORMAT, "%s: dtype is \"%.40s\"", json->name, dtype);
    CUP_TRY(cup__json_get_unsigned(error, json, object, "seed", &training->seed));
    CUP_TRY(cup__json_get_string(error, json, object, "precision", &training->precision));
    training->size = sizeof *training;
    training->optimizer.size = sizeof training->optimizer;
    return cup__fields_read(error, json, object, fields, training);
}

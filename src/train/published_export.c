/* Models written as others publish them: config.json, safetensors, and the tokenizer. */
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/text.h"
#include "cupola/grad.h"
#include "cupola/io.h"
#include "data/tokenizer.h"
#include "nn/gpt.h"
#include "tensor/tensor.h"
#include "train/published.h"

#define PART_BYTES 5000000000 /* as transformers has it */

typedef struct writing {
    cup_gpt *model;
    const cup__published_family *family;
    const char *folder;
    cup_publish_options options;
    cup_named *list;
    int64_t count;
} writing;

static cup_status no_memory(cup__error *error)
{
    return cup__fail(error, CUP_MEMORY, "export: out of host memory");
}

static cup_status add(void *user, const char *name, cup_tensor *view)
{
    writing *w = user;
    cup_context *c = w->model->context;
    char *copy = cup__strdup(name);
    if (!copy)
        return no_memory(&c->error);
    w->list[w->count++] = (cup_named){copy, view};
    return CUP_OK;
}

static const char *word_of(cup_dtype dtype)
{
    return dtype == CUP_BF16  ? "bfloat16"
           : dtype == CUP_F16 ? "float16"
           : dtype == CUP_F64 ? "float64"
                              : "float32";
}

static cup_status write_config(const writing *w)
{
    cup__json_writer json = {.lines = 1};
    cup__json_open(&json, NULL, CUP__JSON_OBJECT);
    cup__json_open(&json, "architectures", CUP__JSON_ARRAY);
    cup__json_add_string(&json, NULL, w->family->architecture);
    cup__json_close(&json);
    cup__json_add_string(&json, "model_type", w->family->model_type);
    w->family->write(&w->model->config, &json);
    if (w->options.tokenizer)
        cup__published_ids(w->options.tokenizer, &json);
    cup__json_add_string(&json, "torch_dtype", word_of(w->model->dtype));
    return cup__published_json(w->model->context, w->folder, "config.json", &json);
}

static cup_status write_weights(writing *w)
{
    cup_context *c = w->model->context;
    cup__published_walk walk = {w->model, w->family, add, w};
    CUP_TRY(cup__published_each(&walk));
    return cup__published_weights(c, w->folder, w->list, w->count, w->options.part_bytes);
}

/* With how texts are written by the model, which an adapter's folder leaves to the model's. */
static cup_status write_tokenizer(const writing *w)
{
    const cup_tokenizer *t = w->options.tokenizer;
    CUP_TRY(cup_gpt_tokenizer_publish(w->model, t, w->folder));
    return cup__published_generation(w->model->context, t, w->folder);
}

static cup_status write_all(writing *w)
{
    cup_context *c = w->model->context;
    CUP_TRY(cup__folder_make(&c->error, w->folder));
    bool was = cup_grad_recording(c, false);
    cup_scope_open(c);
    cup_status status = write_weights(w);
    cup_scope_return(c, NULL);
    cup_grad_recording(c, was);
    if (status == CUP_OK)
        status = write_config(w);
    return status == CUP_OK && w->options.tokenizer ? write_tokenizer(w) : status;
}

static cup_status check(const cup_gpt *m, const char *folder)
{
    cup_context *c = m->context;
    if (!folder)
        return cup__fail(&c->error, CUP_ARGUMENT, "export: the folder is NULL");
    CUP_TRY(cup__gpt_check_whole(m, "export"));
    if (cup_parameters_comm(m->parameters) || cup_parameters_experts_comm(m->parameters))
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "export: this process has a part of the model; load the whole from its "
                         "checkpoint");
    if (m->adapters)
        return cup__fail(&c->error, CUP_STATE,
                         "export: the model has adapters; merge them first, or export them alone");
    return CUP_OK;
}

static cup_status check_options(cup_context *c, const char *folder, cup_publish_options *o)
{
    if (o->part_bytes < 0)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "export: parts of %lld bytes cannot be; give 1 or more, or 0 for 5 GB",
                         (long long)o->part_bytes);
    o->part_bytes = o->part_bytes ? o->part_bytes : PART_BYTES;
    return o->tokenizer ? cup__published_tokenizer_check(c, o->tokenizer, folder) : CUP_OK;
}

static int64_t most_tensors(const writing *w)
{
    int64_t rows = 0, experts = w->model->config.experts;
    for (const cup__published_tensor *t = w->family->tensors; t->name; t++)
        rows++;
    return rows * w->model->config.layers * (experts > 0 ? experts : 1);
}

cup_status cup_gpt_publish(cup_gpt *m, const char *folder, const cup_publish_options *options)
{
    if (!m)
        return CUP_ARGUMENT;
    cup_context *c = m->context;
    CUP_TRY(c->error.status);
    CUP_TRY(check(m, folder));
    writing w = {m, cup__published_family_of(&m->config), folder, {0}, NULL, 0};
    CUP_TRY(cup__options_take(&c->error, "cup_gpt_publish", &w.options, sizeof w.options, options));
    CUP_TRY(check_options(c, folder, &w.options));
    if (!w.family)
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "export: a GPT is published as a GPT-2 (learned positions, layernorm, "
                         "gelu, biases), as a Llama (rotary positions, rmsnorm, swiglu; biases "
                         "in all of attention or in none of it), as a Qwen 2 (the same with biases "
                         "of queries, keys and values alone) or as a Qwen 3 (with norms of queries "
                         "and keys); with experts as a Mixtral (else a Llama, of two or more a "
                         "token) or a Qwen 3 MoE; and this one is neither");
    w.list = cup__calloc((size_t)most_tensors(&w), sizeof *w.list);
    cup_status status = w.list ? write_all(&w) : no_memory(&c->error);
    for (int64_t i = 0; w.list && i < w.count; i++)
        cup__free((char *)(uintptr_t)w.list[i].name);
    cup__free(w.list);
    return status;
}

cup_status cup_gpt_export(cup_gpt *m, const char *folder)
{
    return cup_gpt_publish(m, folder, NULL);
}

/* cupola export: a trained model as others read it. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/common/options.h"
#include "cli/common/signals.h"
#include "cupola/train.h"

typedef struct export_given {
    const char *from, *adapters, *out, *device;
    int64_t part_size;
    bool ema, merge;
} export_given;

static const cli_option options[] = {
    {"from", TEXT(export_given, from), "DIR", "run", "folder of a checkpoint"},
    {"out", TEXT(export_given, out), "DIR", "published", "folder to be written"},
    {"ema", FLAG(export_given, ema), NULL, NULL,
     "the moving average of the weights, which train --ema kept"},
    {"adapters", TEXT(export_given, adapters), "DIR", NULL,
     "adapters beside that model, as peft and this command write them, to be merged"},
    {"merge", FLAG(export_given, merge), NULL, NULL,
     "add adapters to the weights and write the whole model; without it those of a run are written "
     "alone"},
    {"part-size", INTEGER(export_given, part_size, 1, 1000000000), "MB", "5000",
     "most of a file of weights, in millions of bytes; more become several files with an index"},
    {"device", TEXT(export_given, device), "auto|cpu|cuda[:N]", "cpu", "whose memory holds them"},
    {0}};

/* Of characters there is none that others read; then it is left out, and said. */
static cup_tokenizer *load_tokenizer(const export_given *given, cup_context *c)
{
    cup_tokenizer *t = cup_gpt_tokenizer_load(c, given->from);
    if (!t || !strcmp(cup_tokenizer_kind(t), "bpe"))
        return t;
    fprintf(stderr, "note: the tokenizer is one of characters and was not written\n");
    cup_tokenizer_free(t);
    return NULL;
}

/* The adapters alone, with the place of the model that a run had them beside, and the tokenizer. */
static void export_adapters(const export_given *given, cup_gpt *m, const cup_tokenizer *t)
{
    char base[PATH_MAX];
    if (cup_gpt_base(m->context, given->from, base, sizeof base) == CUP_OK &&
        (!t || cup_gpt_tokenizer_publish(m, t, given->out) == CUP_OK))
        cup_gpt_adapters_export(m, given->out, base);
}

static void write_model(const export_given *given, cup_gpt *m)
{
    cup_tokenizer *t = load_tokenizer(given, m->context);
    if (given->adapters)
        cup_gpt_adapters_load(m, given->adapters);
    if (m->adapters && !given->merge)
        export_adapters(given, m, t);
    else if (!given->merge || cup_gpt_merge(m) == CUP_OK)
        cup_gpt_publish(m, given->out,
                        CUP_OPTIONS(cup_publish_options, .tokenizer = t,
                                    .part_bytes = given->part_size * 1000000));
    cup_tokenizer_free(t);
}

static int export_model(const cli_call *call, cup_context *c)
{
    const export_given *given = call->given;
    if (given->adapters && !given->merge)
        return cli_usage("--adapters are written as they are already; --merge writes the model "
                         "with them");
    cup_gpt *m =
        given->ema ? cup_gpt_load_average(c, given->from) : cup_gpt_load(c, given->from);
    if (m)
        write_model(given, m);
    int code = cli_report(c);
    if (!code && call->json) {
        cli_json w;
        json_begin(&w, "export");
        json_add_string(&w, "out", given->out);
        json_add_integer(&w, "parameters", cup_gpt_parameter_count(&m->config, true));
        code = json_end(&w);
    }
    cup_gpt_free(m);
    return code;
}

static int run(cli_call *call)
{
    const export_given *given = call->given;
    signals_stake(SIGNALS_NOTHING);
    signals_catch();
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = given->device));
    int code = cli_report(c);
    if (!code)
        code = export_model(call, c);
    cup_context_free(c);
    return code;
}

const cli_verb verb_export = {
    .name = "export",
    .synopsis = "[--from DIR] [--out DIR] [OPTION]...",
    .words = "write a trained model as Hugging Face's transformers read it",
    .text = "Writes config.json and model.safetensors of the model in a checkpoint, as a GPT-2 "
            "(learned positions, layernorm, gelu, biases), a Llama (rotary positions, rmsnorm, "
            "swiglu; biases in all of attention or in none of it), a Qwen 2 (the same with biases "
            "of queries, keys and values alone) or a Qwen 3 (with norms of queries and keys), and "
            "with experts as a Mixtral or a Qwen 3 MoE; one that was read from such a folder as "
            "the same family, a Mistral too; and where the tokenizer is bpe tokenizer.json, with "
            "tokenizer_config.json and generation_config.json, which say what begins and ends a "
            "text. Where the tokenizer came from such a folder these two are that folder's, byte "
            "for byte, with its chat template (in tokenizer_config.json or chat_template.jinja) "
            "and special_tokens_map.json; only the model_max_length of a model with learned "
            "positions becomes its context where it was more. cupola train --from and cupola "
            "generate --from read such folders. Rotary positions that are stretched, by a factor, "
            "as Llama 3's, by YaRN or by dynamic NTK, are written as rope_scaling.\n\n"
            "Of a run that trained adapters (cupola train --lora) these are written as peft reads "
            "them, adapter_config.json and adapter_model.safetensors; with --merge the model with "
            "them in its weights.",
    .examples = "A model with the adapters that were trained beside it:\n"
                "cupola export --from adapted --merge --out merged\n"
                "The average of a run's weights:\n"
                "cupola export --from averaged --ema --out average\n",
    .options = options,
    .size = sizeof(export_given),
    .run = run,
};

/* cupola generate: text from a trained model. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/common/options.h"
#include "cli/common/signals.h"
#include "cli/common/terminal.h"
#include "cli/common/text.h"
#include "cli/train.h"
#include "cli/common/write.h"
#include "cupola/text.h"
#include "cupola/train.h"

#define MOST_PROMPT ((size_t)64 << 20)
#define MOST_TEXTS 4096

typedef struct generate_given {
    const char *from, *adapters, *prompt, *device, *cache_dtype;
    int64_t tokens, texts, top_k, seed, threads;
    double temperature, top_p;
    bool no_echo, ema;
} generate_given;

static const cli_option options[] = {
    {"from", TEXT(generate_given, from), "DIR", "run", "folder of a checkpoint"},
    {"adapters", TEXT(generate_given, adapters), "DIR", NULL,
     "adapters beside that model, as peft and cupola export write them"},
    {"ema", FLAG(generate_given, ema), NULL, NULL,
     "with the moving average of the weights, which train --ema kept"},
    {"prompt", TEXT(generate_given, prompt), "TEXT", NULL,
     "how the text begins; - reads it from stdin; without it, stdin when that is no terminal, "
     "else a new line"},
    {"no-echo", FLAG(generate_given, no_echo), NULL, NULL, "do not print the prompt"},
    {"tokens", INTEGER(generate_given, tokens, 1, 1000000000), "N", "500", "tokens to write"},
    {"texts", INTEGER(generate_given, texts, 1, MOST_TEXTS), "N", "1",
     "texts to write side by side behind the prompt, each by draws of its own; they come when all "
     "are written, each behind a line with its number"},
    {"temperature", REAL(generate_given, temperature, 0, 100), "T", "0.8",
     "below 1 likelier tokens gain; 0: always the likeliest"},
    {"top-k", INTEGER(generate_given, top_k, 0, 1 << 24), "K", "0",
     "draw from the K likeliest tokens only; 0: from all"},
    {"top-p", REAL(generate_given, top_p, 0, 1), "P", "1",
     "draw from the likeliest tokens that make up P only"},
    {"seed", INTEGER(generate_given, seed, 0, INT64_MAX), "N", "1337",
     "of the draws: the same seed, the same text"},
    {"cache-dtype", CHOICE(generate_given, cache_dtype), "f8e4m3|f8e5m2|i8", NULL,
     "keep keys and values of what was read in 8 bits, with the errors of these; without it as "
     "they are"},
    {"device", TEXT(generate_given, device), "auto|cpu|cuda[:N]", NULL,
     "where to run; without it CUP_DEVICE, else the first usable GPU, else the CPU"},
    {"threads", INTEGER(generate_given, threads, 0, 4096), "N", "0",
     "threads on a CPU; 0: all that the process may use"},
    {0}};

static int read_stdin(cli_text *prompt)
{
    char buffer[65536];
    size_t count, sum = 0;
    while ((count = fread(buffer, 1, sizeof buffer, stdin)) > 0) {
        fwrite(buffer, 1, count, prompt->to);
        sum += count;
        if (sum > MOST_PROMPT)
            return cli_usage("the prompt has over %zu bytes", MOST_PROMPT);
    }
    if (ferror(stdin))
        return cli_fail(CLI_FILE, "stdin could not be read: %s", strerror(errno));
    return CLI_OK;
}

/* How many bytes at its begin are UTF-8. */
static size_t valid_bytes(const cli_text *text)
{
    size_t at = 0;
    for (int bytes = 1; bytes > 0; at += (size_t)(bytes > 0 ? bytes : 0))
        bytes = cup_text_character(text->bytes + at, text->length - at, NULL);
    return at;
}

static int read_prompt(const generate_given *given, cli_text *prompt)
{
    bool from_stdin = given->prompt ? !strcmp(given->prompt, "-") : !isatty(STDIN_FILENO);
    int code = CLI_OK;
    if (!text_open(prompt))
        return cli_fail(CLI_MEMORY, "no host memory for the prompt");
    if (from_stdin)
        code = read_stdin(prompt);
    else if (given->prompt)
        fputs(given->prompt, prompt->to);
    /* A model must read something before it can write. */
    if (!code && ftell(prompt->to) == 0)
        fputs("\n", prompt->to);
    if (!text_close(prompt) && !code)
        code = cli_fail(CLI_MEMORY, "no host memory for the prompt");
    if (!code && valid_bytes(prompt) < prompt->length)
        code = cli_usage("the prompt is not UTF-8 from byte %zu on", valid_bytes(prompt));
    return code;
}

static int write_document(cup_context *c, const cli_writing *w, const cli_text *prompt,
                          const cli_text *texts, int64_t count)
{
    cli_json writer;
    json_begin(&writer, "generate");
    json_add_string(&writer, "device", cup_device_text(c));
    json_add_bytes(&writer, "prompt", prompt->bytes, prompt->length);
    if (count > 1)
        json_open_array(&writer, "texts");
    for (int64_t i = 0; i < count; i++)
        json_add_bytes(&writer, count > 1 ? NULL : "text", texts[i].bytes, texts[i].length);
    if (count > 1)
        json_close(&writer);
    json_add_integer(&writer, "tokens", w->written);
    json_add_number(&writer, "seconds", w->seconds);
    return json_end(&writer);
}

/* Several texts to stdout, each behind its number. */
static void show_texts(const cli_writing *w, const cli_text *texts, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        char line[64];
        cli_write(line, (size_t)snprintf(line, sizeof line, "== text %lld of %lld\n",
                                         (long long)i + 1, (long long)count));
        if (w->echo)
            cli_write(w->prompt, w->prompt_bytes);
        cli_write(texts[i].bytes, texts[i].length);
        cli_write("\n", 1);
    }
}

/* One text as it comes or, for a document, whole; several when all are there. */
static int write_all(const cli_call *call, cup_context *c, cli_writing *w, const cli_text *prompt,
                     cli_text *texts)
{
    int64_t count = ((const generate_given *)call->given)->texts;
    int code;
    if (count > 1) {
        code = write_texts(c, w, count, texts);
    } else {
        if (call->json && !text_open(texts))
            return cli_fail(CLI_MEMORY, "no host memory for the text");
        w->to = texts->to;
        code = write_text(c, w);
        if (call->json && (!code || code > CLI_SIGNAL) && !text_close(texts))
            return cli_fail(CLI_MEMORY, "no host memory for the text");
    }
    if (code && code <= CLI_SIGNAL)
        return code;
    int written = call->json ? write_document(c, w, prompt, texts, count) : CLI_OK;
    if (!call->json && count > 1)
        show_texts(w, texts, count);
    return code ? code : written;
}

static int generate(const cli_call *call, cup_context *c, const cli_text *prompt)
{
    const generate_given *given = call->given;
    cli_text *texts = calloc((size_t)given->texts, sizeof *texts);
    if (!texts)
        return cli_fail(CLI_MEMORY, "no host memory for %lld texts", (long long)given->texts);
    cup_tokenizer *tokenizer = cup_gpt_tokenizer_load(c, given->from);
    cli_writing writing = {
        .model = !tokenizer   ? NULL
                 : given->ema ? cup_gpt_load_average(c, given->from)
                              : cup_gpt_load(c, given->from),
        .tokenizer = tokenizer,
        .prompt = prompt->bytes,
        .prompt_bytes = prompt->length,
        .tokens = given->tokens,
        .sampling = {.size = sizeof(cup_sampling),
                     .temperature = given->temperature > 0 ? given->temperature : -1,
                     .top_k = given->top_k,
                     .top_p = given->top_p,
                     .seed = (uint64_t)given->seed},
        .echo = !call->json && !given->no_echo && given->prompt,
    };
    if (writing.model && given->adapters)
        cup_gpt_adapters_load(writing.model, given->adapters);
    if (writing.model)
        writing.model->cache_dtype = given->cache_dtype;
    int code = cli_report(c);
    if (!code)
        train_note_unchecked(c, given->from);
    if (!code)
        code = write_all(call, c, &writing, prompt, texts);
    for (int64_t i = 0; i < given->texts; i++)
        text_free(&texts[i]);
    free(texts);
    cup_gpt_free(writing.model);
    cup_tokenizer_free(tokenizer);
    return code;
}

static int run(cli_call *call)
{
    const generate_given *given = call->given;
    cli_text prompt = {0};
    int code = read_prompt(given, &prompt);
    cup_context *c = NULL;
    if (!code) {
        signals_stake(SIGNALS_NOTHING);
        signals_catch();
        c = cup_context_new(
            CUP_OPTIONS(cup_options, .device = given->device, .threads = (int)given->threads));
        code = cli_report(c);
    }
    if (!code)
        code = generate(call, c, &prompt);
    cup_context_free(c);
    text_free(&prompt);
    return code;
}

const cli_verb verb_generate = {
    .name = "generate",
    .synopsis = "[--from DIR] [OPTION]...",
    .words = "write text with a trained model",
    .text = "Reads the model and the tokenizer of a checkpoint, or of a published model's folder, "
            "and writes what follows the prompt, token by token as they come, always in whole "
            "characters. A run that trained adapters writes with the model beside which they "
            "stand. The same seed gives the same "
            "text on the same device. When the model's context is full it goes on from the latter "
            "half of it. A published model whose config.json has YaRN or dynamic NTK has the "
            "context that its positions are stretched to.\n\n"
            "The writing ends after --tokens tokens, at a token that ends a text by what the files "
            "of the model say (as <|endoftext|>, or </s> of a Llama), or at a signal. What they "
            "put in front of a text, as <s>, is put in front of the prompt.",
    .examples = "A story:\ncupola generate --from book --prompt 'Once upon a time'\n"
                "Eight stories at once:\n"
                "cupola generate --from book --prompt 'Once upon a time' --texts 8\n"
                "The likeliest continuation of a file:\n"
                "cupola generate --from book --temperature 0 < begin.txt\n",
    .options = options,
    .size = sizeof(generate_given),
    .run = run,
};

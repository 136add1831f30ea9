/* cupola tokenize: text into files of tokens. */
#include <stdio.h>
#include <string.h>

#include <dirent.h>

#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/common/signals.h"
#include "cli/tokenize.h"
#include "cupola/cupola.h"

#define GPT2_VOCABULARY "50257"

static const cli_option options[] = {
    {"data", FILES(tokenize_given, data), "FILE|DIR", NULL,
     "text of any size: files, and folders with all text below them; .jsonl files have a text a "
     "line, and .gz and .zst files are unpacked"},
    {"tokenizer", TEXT(tokenize_given, tokenizer), "bpe|PATH", NULL,
     "a saved tokenizer, or a folder with one or with GPT-2's vocab.json and merges.txt; or bpe: "
     "byte pairs, learned from --data first"},
    {"learn", TEXT(tokenize_given, learn), "FILE", NULL,
     "learn a tokenizer of byte pairs from --data and write it to FILE, which is not there yet, "
     "and no tokens"},
    {"vocabulary", INTEGER(tokenize_given, vocabulary, 257, 1 << 24), "N", GPT2_VOCABULARY,
     "tokens of a tokenizer that is learned"},
    {"words", INTEGER(tokenize_given, words, 1000, INT32_MAX), "N", "4000000",
     "most different words that are counted for it, at 250 bytes of memory each: where there are "
     "more the rarest are left out"},
    {"out", TEXT(tokenize_given, out), "DIR", "tokens",
     "folder for the files of tokens, which is new or empty"},
    {"format", CHOICE(tokenize_given, format), "llmc|nanogpt", "llmc",
     "files with a header, of up to --shard-tokens, or train.bin and val.bin with 16 bits a token "
     "and nothing else"},
    {"validation", REAL_BELOW(tokenize_given, validation, 0, 1), "PART", "0.1",
     "part of the data, from its end, that is for validation"},
    {"text-field", TEXT(tokenize_given, text_field), "NAME", "text",
     "field of JSON Lines that has the text"},
    {"shard-tokens", INTEGER(tokenize_given, shard_tokens, 1, INT32_MAX), "N", "100000000",
     "most tokens of a file"},
    {"threads", INTEGER(tokenize_given, threads, 0, 4096), "N", "0",
     "threads; 0: all that the process may use"},
    {0}};

static int write_document(const tokenize_given *given, const cup_tokenized *made, double rate)
{
    cli_json w;
    json_begin(&w, "tokenize");
    json_add_string(&w, "out", given->out);
    json_add_integer(&w, "bytes", made->bytes);
    json_add_integer(&w, "texts", made->texts);
    json_add_integer(&w, "skipped", made->skipped);
    json_add_integer(&w, "train_tokens", made->train);
    json_add_integer(&w, "validation_tokens", made->validation);
    json_add_integer(&w, "files", made->files);
    json_add_number(&w, "bytes_per_second", rate);
    return json_end(&w);
}

/* The tokens' own check comes when a tokenizer was learned, which takes its time. */
static bool is_vacant(const char *folder)
{
    DIR *open = opendir(folder);
    int names = 0;
    while (open && readdir(open))
        names++;
    if (open)
        closedir(open);
    return names <= 2; /* . and .. */
}

static int tokenize(const cli_call *call, cup_context *c)
{
    const tokenize_given *given = call->given;
    cup_tokenizer_learned learned;
    bool learns = !strcmp(given->tokenizer, "bpe");
    if (learns && !is_vacant(given->out))
        return cli_usage("the folder %s is not empty, and tokens replace nothing; name another one",
                         cli_shown(given->out));
    int code = tokenize_check_out(given->out);
    if (code)
        return code;
    cup_tokenizer *t = learns ? tokenize_learn(c, given, &learned)
                              : cup_tokenizer_load(c, given->tokenizer);
    cup_tokenized made = {0};
    double rate;
    if (cup_error(c) == CUP_INTERRUPTED)
        return cli_exit_of(CUP_INTERRUPTED);
    if (!t)
        return cli_report(c);
    cup_status status = tokenize_encode(c, given, t, &made, &rate);
    cup_tokenizer_free(t);
    if (status == CUP_INTERRUPTED)
        return cli_exit_of(status);
    if (status != CUP_OK)
        return cli_report(c);
    return call->json ? write_document(given, &made, rate) : CLI_OK;
}

static int run(cli_call *call)
{
    const tokenize_given *given = call->given;
    if (!given->data.count)
        return cli_usage("--data is missing: name files or folders with text");
    if (!given->tokenizer && !given->learn)
        return cli_usage("--tokenizer is missing: name a saved tokenizer, or a folder with GPT-2's "
                         "vocab.json and merges.txt, or bpe to learn one from the data");
    if (given->tokenizer && given->learn)
        return cli_usage("--learn writes a tokenizer and no tokens; give --tokenizer bpe for both, "
                         "or leave out the one or the other");
    if (!strcmp(given->format, "nanogpt") && call_has(call, "shard-tokens"))
        return cli_usage("--shard-tokens is of llm.c's files; nanoGPT's are train.bin and val.bin");
    signals_catch();
    cup_context *c = cup_context_new(
        CUP_OPTIONS(cup_options, .device = "cpu", .threads = (int)given->threads));
    int code = cli_report(c);
    if (!code)
        code = given->learn ? tokenize_learn_only(call, c) : tokenize(call, c);
    cup_context_free(c);
    return code;
}

const cli_verb verb_tokenize = {
    .name = "tokenize",
    .synopsis = "--data FILE|DIR... --tokenizer bpe|PATH [--out DIR] [OPTION]...",
    .words = "make files of tokens of text",
    .text = "Encodes text of any size on all cores, and writes it as llm.c does: files "
            "train_000000.bin and so on, val_000000.bin with the last part of the data, and the "
            "tokenizer beside them; or, with --format nanogpt, as nanoGPT does. cupola train "
            "--data DIR reads them, in pieces, without a limit to their size.\n\n"
            "A tokenizer is learned with --tokenizer bpe, or with --learn FILE, which writes it "
            "alone: from text of any size, whose words are counted on all cores and merged, the "
            "most frequent pairs first. Its words part as GPT-2's do. cupola train, tokenize and "
            "generate read it.\n\n"
            "The folder has its files when all of them are complete. A signal ends the work within "
            "a second and leaves nothing.",
    .examples = "All text of a folder, with GPT-2's tokenizer:\n"
                "cupola tokenize --data texts --tokenizer gpt2 --out tokens\n"
                "A tokenizer of 32,768 byte pairs, of packed text:\n"
                "cupola tokenize --data web.jsonl.gz --learn pairs.json --vocabulary 32768\n"
                "A model of tokens:\ncupola train --preset gpt2-124m --data tokens --out model\n",
    .options = options,
    .size = sizeof(tokenize_given),
    .run = run,
};

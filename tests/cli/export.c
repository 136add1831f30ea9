/* cupola export, what begins from what it wrote, and fields of JSON Lines. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "cupola/train.h"
#include "test.h"

static char out[100000];

static int cupola(const char *folder, const char *words)
{
    char build[4096];
    EXPECT(realpath(test_build(), build) != NULL);
    return test_command(out, sizeof out, "cd '%s' && '%s/cupola' %s", folder, build, words);
}

#define TINY                                                                                       \
    "--data text.txt --device cpu --threads 1 --batch 2 --evaluate-every 0 --evaluate-texts 8 "    \
    "--steps 2 "
#define LLAMA                                                                                      \
    "--layers 1 --heads 2 --width 16 --context 16 --positions rotary --norm rmsnorm --mlp swiglu "

static void write_text(const char *folder)
{
    char path[512], text[3000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "abcd efg\n"[(i * i / 7 + i / 3) % 9];
    snprintf(path, sizeof path, "%s/text.txt", folder);
    EXPECT_INT(cup__file_write(NULL, path, text, sizeof text), CUP_OK);
}

/* A Llama in a, and what is exported of it in b, of pairs learned from a text. */
static void export_learned(const char *folder)
{
    write_text(folder);
    EXPECT_INT(cupola(folder, "train --out a --tokenizer bpe --vocabulary 280 " TINY LLAMA), 0);
    EXPECT_INT(cupola(folder, "export --from a --out b"), 0);
}

TEST(export_is_where_a_run_may_begin)
{
    const char *folder = test_folder();
    char path[512];
    write_text(folder);
    EXPECT_INT(cupola(folder, "train --out a " TINY LLAMA), 0);
    char *page;
    snprintf(path, sizeof path, "%s/a/loss.html", folder);
    EXPECT_INT(cup__file_read(NULL, path, 1 << 16, &page, NULL), CUP_OK);
    EXPECT_CONTAINS(page, "Step 2 of 2, ");
    EXPECT_CONTAINS(page, "FLOP/s, ");
    EXPECT_CONTAINS(page, "loss.svg?2");
    cup__free(page);
    EXPECT_INT(cupola(folder, "export --from a --out b --json"), 0);
    EXPECT_CONTAINS(out, "\"parameters\"");
    /* The first loss is that of the weights, whoever they come from. */
    char want[64];
    EXPECT_INT(cupola(folder, "train --from a --out c " TINY), 0);
    const char *at = strstr(out, "before training ");
    EXPECT(at);
    snprintf(want, sizeof want, "%.22s", at);
    EXPECT_INT(cupola(folder, "train --from b --tokenizer a --out d " TINY), 0);
    EXPECT_CONTAINS(out, want);
    EXPECT_INT(cupola(folder, "train --out d --resume --steps 3 " TINY), 0);
    EXPECT(cupola(folder, "train --from a --layers 2 --out e " TINY) != 0);
    EXPECT_CONTAINS(out, "differs from the one to be trained");
    EXPECT(cupola(folder, "train --from a --out c --resume " TINY) != 0);
    EXPECT_CONTAINS(out, "--from does nothing with --resume");
    EXPECT(cupola(folder, "export --from nowhere --out x") != 0);
}

/* Adapters are trained beside a folder, gone on with, written with, given away and merged. */
TEST(export_writes_adapters_or_merges_them)
{
    const char *folder = test_folder();
    static char written[sizeof out];
    char path[512], text[3000], *config;
    export_learned(folder);
    EXPECT_INT(cupola(folder, "train --out c --lora 2 " TINY), 2);
    EXPECT_CONTAINS(out, "name its folder with --from");
    EXPECT_INT(cupola(folder, "train --from b --lora-scale 2 --out c " TINY), 2);
    EXPECT_INT(cupola(folder, "train --from b --lora 2 --lora-scale 0 --out c " TINY), 2);
    EXPECT_INT(cupola(folder, "train --from b --lora 2 --lora-scale 8 --lr 0.1 --out c " TINY), 0);
    EXPECT_CONTAINS(out, "adapters of rank 2: ");
    EXPECT_INT(cupola(folder, "train --resume --out c --steps 5"), 0);
    EXPECT_INT(cupola(folder, "train --resume --out a --lora 2"), 2);
    EXPECT_CONTAINS(out, "trains the whole of one: begin another with --from a");
    EXPECT_INT(rename(strcat(strcpy(path, folder), "/b"), strcat(strcpy(text, folder), "/d")), 0);
    EXPECT(cupola(folder, "generate --from c --prompt ab --device cpu") != 0);
    EXPECT_CONTAINS(out, "the model beside which they stand");
    EXPECT_INT(cupola(folder, "train --resume --from d --out c --steps 6"), 0);
#define WRITE "--prompt ab --tokens 9 --temperature 0 --device cpu"
    EXPECT_INT(cupola(folder, "generate --from c " WRITE), 0);
    memcpy(written, out, sizeof out);
    EXPECT_INT(cupola(folder, "export --from c --out e"), 0);
    EXPECT_INT(cupola(folder, "generate --from d --adapters e " WRITE), 0);
    EXPECT_TEXT(out, written);
    EXPECT_INT(cupola(folder, "export --from c --merge --out f"), 0);
    EXPECT_INT(cupola(folder, "generate --from f " WRITE), 0);
    EXPECT_TEXT(out, written);
    EXPECT_INT(cupola(folder, "export --from d --adapters e --out g"), 2);
    EXPECT_INT(cupola(folder, "export --from d --adapters e --merge --out g"), 0);
    EXPECT_INT(cupola(folder, "generate --from g " WRITE), 0);
    EXPECT_TEXT(out, written);
    snprintf(path, sizeof path, "%s/e/adapter_config.json", folder);
    EXPECT_INT(cup__file_read(NULL, path, 1 << 16, &config, NULL), CUP_OK);
    EXPECT_CONTAINS(config, "\"lora_alpha\": 8");
    cup__free(config);
}

/* The field is kept for those who go on. */
TEST(train_reads_another_field_of_json_lines)
{
    const char *folder = test_folder();
    char path[512], text[6000];
    size_t used = 0;
    for (int i = 0; i < 60; i++)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "{\"text\": \"other\", \"body\": \"abc defg hijk%d\"}\n", i);
    snprintf(path, sizeof path, "%s/text.jsonl", folder);
    EXPECT_INT(cup__file_write(NULL, path, text, used), CUP_OK);
#define LINES                                                                                      \
    "--device cpu --threads 1 --batch 2 --layers 1 --heads 2 --width 16 --context 16 "             \
    "--evaluate-every 0 --evaluate-texts 8 "
    EXPECT_INT(cupola(folder, "train --data text.jsonl --text-field body --out a --steps 2 " LINES),
               0);
    EXPECT_INT(cupola(folder, "train --out a --resume --steps 3 " LINES), 0);
    EXPECT(cupola(folder, "train --data text.jsonl --out a --resume --steps 4 " LINES) != 0);
    EXPECT_CONTAINS(out, "the vocabulary has no character");
    EXPECT(cupola(folder, "train --data text.jsonl --text-field none --out b " LINES) != 0);
    EXPECT_CONTAINS(out, "none");
}

/* Of a Qwen 3, with its tokenizer beside it. */
TEST(export_is_what_generate_writes_from)
{
    const char *folder = test_folder();
    char path[512];
    write_text(folder);
    EXPECT_INT(cupola(folder, "train --out a --tokenizer bpe --vocabulary 280 --head-size 6 "
                              "--qk-norm --bias no " TINY LLAMA),
               0);
    EXPECT_INT(cupola(folder, "export --from a --out b"), 0);
    snprintf(path, sizeof path, "%s/b/config.json", folder);
    char *config;
    EXPECT_INT(cup__file_read(NULL, path, 1 << 16, &config, NULL), CUP_OK);
    EXPECT_CONTAINS(config, "\"qwen3\"");
    EXPECT_CONTAINS(config, "\"head_dim\": 6");
    cup__free(config);
    EXPECT_INT(cupola(folder, "generate --from b --prompt ab --tokens 5 --device cpu"), 0);
    EXPECT(!strncmp(out, "ab", 2));
}

static void replace(const char *path, const char *part, const char *by)
{
    char *text, changed[4096];
    EXPECT_INT(cup__file_read(NULL, path, sizeof changed / 2, &text, NULL), CUP_OK);
    const char *at = strstr(text, part);
    EXPECT(at);
    int length = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, by,
                          at + strlen(part));
    EXPECT_INT(cup__file_write(NULL, path, changed, (size_t)length), CUP_OK);
    cup__free(text);
}

/* Through a checkpoint. */
TEST(export_keeps_the_family_of_what_was_read)
{
    const char *folder = test_folder();
    char path[512], *config;
    export_learned(folder);
    snprintf(path, sizeof path, "%s/b/config.json", folder);
    replace(path, "\"llama\"", "\"mistral\"");
    EXPECT_INT(cupola(folder, "train --from b --out c " TINY), 0);
    EXPECT_INT(cupola(folder, "train --resume --out c --steps 3 " TINY), 0);
    EXPECT_INT(cupola(folder, "export --from c --out d"), 0);
    snprintf(path, sizeof path, "%s/d/config.json", folder);
    EXPECT_INT(cup__file_read(NULL, path, 1 << 16, &config, NULL), CUP_OK);
    EXPECT_CONTAINS(config, "\"mistral\"");
    EXPECT_CONTAINS(config, "\"MistralForCausalLM\"");
    cup__free(config);
}

/* The token that a model likes best behind a prompt. */
static int32_t best_token(const char *folder, const char *prompt)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_gpt *m = cup_gpt_load(c, folder);
    cup_tokenizer *t = cup_gpt_tokenizer_load(c, folder);
    cup_generator *g = cup_generator_new(m, CUP_OPTIONS(cup_sampling, .temperature = -1));
    int32_t tokens[64];
    int64_t count = cup_tokenizer_encode(c, t, prompt, strlen(prompt), tokens);
    EXPECT_INT(cup_generator_feed(g, tokens, count), CUP_OK);
    int32_t best = cup_generator_next(g);
    EXPECT_TEXT(cup_error_text(c), "");
    cup_generator_free(g);
    cup_tokenizer_free(t);
    cup_gpt_free(m);
    cup_context_free(c);
    return best;
}

/* One of several tokens of which generation_config.json says so. */
TEST(generate_ends_where_the_files_of_the_model_say)
{
    const char *folder = test_folder();
    char path[512], text[3000];
    export_learned(folder);
    snprintf(path, sizeof path, "%s/b", folder);
    int length = snprintf(text, sizeof text, "{\"eos_token_id\": [0, %d]}", best_token(path, "ab"));
#define BEST "generate --from b --prompt ab --temperature 0 --tokens 9 --device cpu --json"
    EXPECT_INT(cupola(folder, BEST), 0);
    EXPECT_CONTAINS(out, "\"tokens\": 9");
    snprintf(path, sizeof path, "%s/b/generation_config.json", folder);
    EXPECT_INT(cup__file_write(NULL, path, text, (size_t)length), CUP_OK);
    EXPECT_INT(cupola(folder, BEST), 0);
    EXPECT_CONTAINS(out, "\"tokens\": 0");
    EXPECT_INT(cupola(folder, BEST " --texts 2"), 0);
    EXPECT_CONTAINS(out, "\"tokens\": 0");
}

/* Through a checkpoint and a resume, in a whole model and beside adapters. */
TEST(export_keeps_the_files_beside_a_tokenizer)
{
    static const char *const files[][2] = {
        {"tokenizer_config.json", "{ \"chat_template\": \"{{ messages }}\" }"},
        {"special_tokens_map.json", "{\"eos_token\":   \"<|endoftext|>\"}"},
        {"chat_template.jinja", "{% for m in messages %}\n\"{{ m }}\"\t{% endfor %}"},
        {"generation_config.json", "{\"top_k\": 20, \"eos_token_id\": []}\n\n"}};
    const char *folder = test_folder();
    char path[512];
    export_learned(folder);
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/b/%s", folder, files[i][0]);
        EXPECT_INT(cup__file_write(NULL, path, files[i][1], strlen(files[i][1])), CUP_OK);
    }
    EXPECT_INT(cupola(folder, "train --from b --out c " TINY), 0);
    EXPECT_INT(cupola(folder, "train --resume --out c --steps 3 " TINY), 0);
    EXPECT_INT(cupola(folder, "export --from c --out d"), 0);
    EXPECT_INT(cupola(folder, "train --from b --lora 2 --out e " TINY), 0);
    EXPECT_INT(cupola(folder, "export --from e --out f"), 0);
    for (int i = 0; i < 4; i++)
        EXPECT_INT(test_command(out, sizeof out, "cd '%s/b' && cmp %s ../d/%s && %s cmp %s ../f/%s",
                                folder, files[i][0], files[i][0], i == 3 ? "!" : "", files[i][0],
                                files[i][0]),
                   0);
    /* No other template than its own. */
    EXPECT(cupola(folder, "export --from a --out d") != 0);
    EXPECT_CONTAINS(out, "is of another tokenizer");
}

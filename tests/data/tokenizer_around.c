/* What stands round a text by the files of a published model, and what becomes of it in data.
 * bench/published_tokenizers.py holds the templates to the library that writes them. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "cupola/data.h"
#include "test.h"

#define BEGIN 257
#define END 258
#define TURN 259
#define PARTING 260
#define PIECE(name) "{\"SpecialToken\":{\"id\":\"" name "\",\"type_id\":0}}"
#define TEXT_A "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
#define TEMPLATE(pieces)                                                                           \
    "{\"type\":\"TemplateProcessing\",\"single\":[" pieces "],\"pair\":[],\"special_tokens\":{"    \
    "\"<s>\":{\"id\":\"<s>\",\"ids\":[257],\"tokens\":[\"<s>\"]},"                                 \
    "\"far\":{\"id\":\"far\",\"ids\":[900],\"tokens\":[\"far\"]},"                                 \
    "\"</s>\":{\"id\":\"</s>\",\"ids\":[258],\"tokens\":[\"</s>\"]}}}"
#define LEVEL "{\"type\":\"ByteLevel\",\"trim_offsets\":false}"
#define SEQUENCE(steps) "{\"type\":\"Sequence\",\"processors\":[" steps "]}"
#define FRONT TEMPLATE(PIECE("<s>") "," TEXT_A)

static const char *folder; /* of the test */
static char path[4400];

static const char *in(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const char *text)
{
    EXPECT_INT(cup__file_write(NULL, in(name), text, strlen(text)), CUP_OK);
}

/* The 256 bytes, the merge of a and b, and four texts beside the vocabulary. */
static void put_tokenizer(const char *processor, const char *parting)
{
    cup__text text = {0};
    int next = 256;
    cup__text_add(&text, "{\"added_tokens\":[{\"id\":257,\"content\":\"<s>\"},"
                         "{\"id\":258,\"content\":\"</s>\"},"
                         "{\"id\":259,\"content\":\"<|im_end|>\"},"
                         "{\"id\":260,\"content\":\"%s\"}],\"post_processor\":%s,"
                         "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                         "\"model\":{\"type\":\"BPE\",\"vocab\":{",
                  parting, processor);
    for (int b = 0; b < 256; b++) {
        bool printed = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        cup__text_add(&text, "\"\\u%04x\":%d,", printed ? b : next++, b);
    }
    cup__text_add(&text, "\"ab\":256},\"merges\":[\"a b\"]}}");
    EXPECT_INT(cup__file_write(NULL, in("tokenizer.json"), text.bytes, text.length), CUP_OK);
    cup__text_free(&text);
}

static cup_context *begin(void)
{
    folder = test_folder();
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

/* Puts the files that a case has, and no others. */
static void put_beside(const char *words, const char *generation, const char *model)
{
    const char *const files[][2] = {{"tokenizer_config.json", words},
                                    {"generation_config.json", generation},
                                    {"config.json", model}};
    for (int i = 0; i < 3; i++) {
        remove(in(files[i][0]));
        if (files[i][1])
            put(files[i][0], files[i][1]);
    }
}

static void expect_list(const int32_t *got, int count, const int32_t *want)
{
    int i = 0;
    for (; i < count && want[i] >= 0; i++)
        EXPECT_INT(got[i], want[i]);
    EXPECT(i == count && want[i] < 0);
}

static void expect_around(const cup_tokenizer *t, const int32_t *front, const int32_t *ends)
{
    int count;
    const int32_t *got = cup_tokenizer_front(t, &count);
    expect_list(got, count, front);
    got = cup_tokenizer_ends(t, &count);
    expect_list(got, count, ends);
}

#define LIST(...) (const int32_t[]){__VA_ARGS__, -1}

TEST(tokenizer_around_a_text_is_what_its_files_say)
{
    static const struct {
        const char *processor, *words, *generation, *model;
        int32_t front[4], ends[4];
    } cases[] = {
        {"null", NULL, NULL, NULL, {-1}, {PARTING, -1}},
        {FRONT, NULL, NULL, NULL, {BEGIN, -1}, {PARTING, -1}},
        {SEQUENCE(LEVEL "," FRONT), NULL, NULL, "{\"eos_token_id\":258}", {BEGIN, -1}, {END, -1}},
        {TEMPLATE(TEXT_A "," PIECE("</s>")), "{\"eos_token\":\"</s>\"}", NULL, NULL, {-1},
         {END, -1}},
        {"null", "{\"eos_token\":{\"content\":\"<|im_end|>\"},\"bos_token\":null}",
         "{\"eos_token_id\":[259,260]}", "{\"eos_token_id\":260,\"bos_token_id\":260}", {-1},
         {TURN, PARTING, -1}},
        {"null", "{\"bos_token\":\"<s>\",\"add_bos_token\":true}", NULL, NULL, {BEGIN, -1},
         {PARTING, -1}},
        {FRONT, "{\"bos_token\":\"<s>\",\"add_bos_token\":false}", NULL, NULL, {-1}, {PARTING, -1}},
        {"null", NULL, "{}", "{\"eos_token_id\":50256}", {-1}, {PARTING, -1}},
    };
    cup_context *c = begin();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_tokenizer(cases[i].processor, "<|endoftext|>");
        put_beside(cases[i].words, cases[i].generation, cases[i].model);
        cup_tokenizer *t = cup_tokenizer_load(c, folder);
        EXPECT_TEXT(cup_error_text(c), "");
        expect_around(t, cases[i].front, cases[i].ends);
        EXPECT_INT(cup_tokenizer_save(c, t, in("own.json")), CUP_OK);
        cup_tokenizer *own = cup_tokenizer_load(c, in("own.json"));
        EXPECT_TEXT(cup_error_text(c), "");
        expect_around(own, cases[i].front, cases[i].ends);
        EXPECT_INT(cup_tokenizer_export(c, own, in("tokenizer.json")), CUP_OK);
        cup_tokenizer *again = cup_tokenizer_load(c, in("tokenizer.json"));
        EXPECT_TEXT(cup_error_text(c), "");
        expect_around(again, cases[i].front, cases[i].ends);
        cup_tokenizer_free(again);
        cup_tokenizer_free(own);
        cup_tokenizer_free(t);
    }
    cup_context_free(c);
}

TEST(tokenizer_around_a_text_that_cannot_be_is_refused)
{
    static const struct {
        const char *processor, *words, *model, *part;
        cup_status status;
    } cases[] = {
        {"{\"type\":\"BertProcessing\"}", NULL, NULL, "is of another type", CUP_UNSUPPORTED},
        {"[]", NULL, NULL, "is of another type", CUP_UNSUPPORTED},
        {"{\"type\":\"Sequence\"}", NULL, NULL, "no list of steps", CUP_UNSUPPORTED},
        {TEMPLATE(PIECE("<s>")), NULL, NULL, "leaves the text out", CUP_UNSUPPORTED},
        {TEMPLATE(TEXT_A "," TEXT_A), NULL, NULL, "neither the text nor a token", CUP_UNSUPPORTED},
        {TEMPLATE(PIECE("none") "," TEXT_A), NULL, NULL, "neither the text nor", CUP_UNSUPPORTED},
        {TEMPLATE(PIECE("far") "," TEXT_A), NULL, NULL, "not from 0 to 260", CUP_FORMAT},
        {SEQUENCE(FRONT "," FRONT), NULL, NULL, "with one template", CUP_UNSUPPORTED},
        {"null", NULL, "{\"eos_token_id\":\"x\"}", "must be a token or a list", CUP_FORMAT},
        {"null", NULL, "{\"bos_token_id\":[1,2.5]}", "must be a token or a list", CUP_FORMAT},
        {"null", NULL, "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}",
         "a list of up to 16", CUP_FORMAT},
        {"null", "{\"bos_token\":\"<s>\",\"add_bos_token\":1}", NULL, "add_bos_token", CUP_FORMAT},
        {"null", "{", NULL, "tokenizer_config.json", CUP_FORMAT},
    };
    cup_context *c = begin();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_tokenizer(cases[i].processor, "<|endoftext|>");
        put_beside(cases[i].words, NULL, cases[i].model);
        EXPECT(!cup_tokenizer_load(c, folder));
        EXPECT_CONTAINS(cup_error_text(c), cases[i].part);
        EXPECT_INT(cup_error(c), cases[i].status);
        cup_error_clear(c);
    }
    cup_context_free(c);
}

/* In memory and in files of tokens. */
TEST(tokenizer_around_parts_documents)
{
    cup_context *c = begin();
    put_tokenizer(FRONT, "<|other|>");
    put("config.json", "{\"eos_token_id\":[259,258]}");
    cup_tokenizer *t = cup_tokenizer_load(c, folder);
    EXPECT_TEXT(cup_error_text(c), "");
    char from[4400], out[4400], lines[1000] = "";
    for (int i = 0; i < 20; i++)
        strcat(lines, "{\"text\":\"cab\"}\n");
    put("c.jsonl", lines);
    snprintf(from, sizeof from, "%s", in("c.jsonl"));
    snprintf(out, sizeof out, "%s", in("out"));
    const char *paths[] = {from}, *folders[] = {out};
    cup_corpus *corpus = cup_corpus_load(c, paths, 1, NULL);
    cup_tokenized made;
    EXPECT_INT(cup_tokenize(c, paths, 1, t, out, 0, NULL, &made), CUP_OK);
    EXPECT_INT(made.train, 20 * 4);
    cup_data *two[] = {cup_data_new(c, corpus, t, 5), cup_data_open(c, folders, 1, t, 5)};
    EXPECT_TEXT(cup_error_text(c), "");
    for (int i = 0; i < 2; i++) {
        int32_t inputs[5], targets[5];
        EXPECT_INT(cup_data_window(c, two[i], CUP_SPLIT_TRAIN, 0, 1, 5, inputs, targets), CUP_OK);
        expect_list(inputs, 5, LIST(BEGIN, 'c', 256, TURN, BEGIN));
        EXPECT_INT(targets[4], 'c');
        cup_data_free(two[i]);
    }
    cup_corpus_free(corpus);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

/* A folder as Qwen's has a vocab.json besides, which knows nothing of its words. */
TEST(tokenizer_json_is_read_where_there_is_a_vocab_json_too)
{
    cup_context *c = begin();
    put_tokenizer("null", "<|endoftext|>");
    put("vocab.json", "{}");
    cup_tokenizer *t = cup_tokenizer_load(c, folder);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_tokenizer_size(t), 261);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

TEST(tokenizer_around_survives_every_failed_allocation)
{
    cup_context *c = begin();
    put_tokenizer(FRONT, "<|endoftext|>");
    put("tokenizer_config.json", "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}");
    put("config.json", "{\"eos_token_id\":[259,258]}");
    cup_tokenizer *t = NULL;
    for (long n = 1; !t; n++) {
        cup__memory_fail_at(n, false);
        t = cup_tokenizer_load(c, folder);
        cup__memory_fail_at(0, false);
        EXPECT((t || cup_error(c) == CUP_MEMORY) && n < 2000);
        cup_error_clear(c);
    }
    expect_around(t, LIST(BEGIN), LIST(END, TURN));
    cup_tokenizer_free(t);
    cup_context_free(c);
}

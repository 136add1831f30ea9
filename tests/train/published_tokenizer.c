/* What lies beside a published tokenizer goes along with it: into its own file, and out of it into
 * the folder of an export. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "cupola/cupola.h"
#include "test.h"

/* Not as this library would write them. */
#define WORDS                                                                                      \
    "{ \"chat_template\" : \"{% for m in messages %}<|\\u00fc|>\\n{{m}}{% endfor %}\",\n\n"        \
    "  \"eos_token\":\"<|endoftext|>\", \"model_max_length\": 1e30, \"far\": [1, null] }  "
#define SPECIAL "{\"eos_token\": {\"content\": \"<|endoftext|>\", \"lstrip\": false}}\n\n"
#define TEMPLATE "{%- if x -%}\t\"\xc3\xbc\" \\n\r\n\x01{%- endif %}"
#define GENERATION "{\"temperature\": 0.6,   \"eos_token_id\": null}"

static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json",
                                    "chat_template.jinja", "generation_config.json"};
static const char *const texts[] = {WORDS, SPECIAL, TEMPLATE, GENERATION};

static char path[4400];

static const char *in(const char *folder, const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *folder, const char *name, const char *text)
{
    EXPECT_INT(cup__file_write(NULL, in(folder, name), text, strlen(text)), CUP_OK);
}

static void expect_file(const char *folder, const char *name, const char *want)
{
    char *got;
    size_t size;
    EXPECT_INT(cup__file_read(NULL, in(folder, name), 1 << 20, &got, &size), CUP_OK);
    EXPECT_TEXT(got, want);
    EXPECT_INT((int64_t)size, (int64_t)strlen(want));
    cup__free(got);
}

typedef struct scene {
    cup_context *c;
    char from[300], to[300], own[300];
    cup_gpt *m;
} scene;

/* A folder with a tokenizer alone, and a model that may have it. */
static void begin(scene *s, cup_positions positions)
{
    cup_context *c = s->c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    const char *folder = test_folder();
    snprintf(s->from, sizeof s->from, "%s/from", folder);
    snprintf(s->to, sizeof s->to, "%s/to", folder);
    snprintf(s->own, sizeof s->own, "%s/own.json", folder);
    EXPECT_INT(cup__folder_make(NULL, s->from), CUP_OK);
    EXPECT_INT(cup__folder_make(NULL, s->to), CUP_OK);
    cup_corpus *corpus = cup_corpus_new(c, "the cat and the hat", 19);
    cup_tokenizer *t = cup_tokenizer_bpe_new(c, corpus, 260);
    EXPECT_INT(cup_tokenizer_export(c, t, in(s->from, "tokenizer.json")), CUP_OK);
    bool rotary = positions == CUP_POSITIONS_ROTARY;
    cup_gpt_config config = {.size = sizeof config,
                             .layers = 1,
                             .heads = 2,
                             .width = 16,
                             .context = 12,
                             .vocabulary = cup_tokenizer_size(t),
                             .bias = !rotary,
                             .positions = positions,
                             .norm = rotary ? CUP_NORM_KIND_RMSNORM : CUP_NORM_KIND_LAYERNORM,
                             .mlp = rotary ? CUP_MLP_KIND_SWIGLU : CUP_MLP_KIND_GELU};
    s->m = cup_gpt_new(c, CUP_F32, &config);
    EXPECT_TEXT(cup_error_text(c), "");
    cup_tokenizer_free(t);
    cup_corpus_free(corpus);
}

static void end(scene *s)
{
    cup_gpt_free(s->m);
    cup_context_free(s->c);
}

/* What became of a tokenizer that was read, saved and read again. */
static cup_tokenizer *saved(scene *s)
{
    cup_tokenizer *t = cup_tokenizer_load(s->c, s->from);
    EXPECT_TEXT(cup_error_text(s->c), "");
    EXPECT_INT(cup_tokenizer_save(s->c, t, s->own), CUP_OK);
    cup_tokenizer_free(t);
    t = cup_tokenizer_load(s->c, s->own);
    EXPECT_TEXT(cup_error_text(s->c), "");
    return t;
}

TEST(published_tokenizers_keep_what_lay_beside_them)
{
    scene s;
    begin(&s, CUP_POSITIONS_ROTARY);
    for (int i = 0; i < 4; i++)
        put(s.from, names[i], texts[i]);
    cup_tokenizer *t = saved(&s);
    EXPECT_INT(cup_gpt_publish(s.m, s.to, CUP_OPTIONS(cup_publish_options, .tokenizer = t)),
               CUP_OK);
    for (int i = 0; i < 4; i++)
        expect_file(s.to, names[i], texts[i]);
    cup_tokenizer_free(t);
    end(&s);
}

/* Each that is not there is left out, or is this library's own. */
TEST(published_tokenizers_have_what_they_came_without)
{
    scene s;
    begin(&s, CUP_POSITIONS_ROTARY);
    for (int missing = 0; missing < 4; missing++) {
        for (int i = 0; i < 4; i++) {
            remove(in(s.from, names[i]));
            remove(in(s.to, names[i]));
            if (i != missing)
                put(s.from, names[i], texts[i]);
        }
        cup_tokenizer *t = saved(&s);
        EXPECT_INT(cup_gpt_publish(s.m, s.to, CUP_OPTIONS(cup_publish_options, .tokenizer = t)),
                   CUP_OK);
        for (int i = 0; i < 4; i++)
            if (i != missing)
                expect_file(s.to, names[i], texts[i]);
        EXPECT_INT(cup__file_exists(in(s.to, names[missing])), missing == 0 || missing == 3);
        if (missing == 0)
            expect_file(s.to, names[0],
                        "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                        "  \"eos_token\": \"<|endoftext|>\",\n  \"add_eos_token\": false,\n"
                        "  \"clean_up_tokenization_spaces\": false,\n"
                        "  \"model_max_length\": 12\n}\n");
        cup_tokenizer_free(t);
    }
    end(&s);
}

/* Learned positions end; a longer length would be one that the model cannot have. */
TEST(published_tokenizers_have_the_length_of_learned_positions)
{
    scene s;
    begin(&s, CUP_POSITIONS_LEARNED);
    static const char *const lengths[][2] = {
        {"{\"a\":[1,\"x\"],\"model_max_length\":1e30,\"z\":{}}",
         "{\n  \"a\": [1, \"x\"],\n  \"model_max_length\": 12,\n  \"z\": {}\n}\n"},
        {"{\"model_max_length\":12}", "{\"model_max_length\":12}"},
        {"{\"model_max_length\":null}", "{\"model_max_length\":null}"},
    };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        put(s.from, names[0], lengths[i][0]);
        cup_tokenizer *t = saved(&s);
        EXPECT_INT(cup_gpt_tokenizer_publish(s.m, t, s.to), CUP_OK);
        expect_file(s.to, names[0], lengths[i][1]);
        EXPECT(!cup__file_exists(in(s.to, "generation_config.json")));
        cup_tokenizer_free(t);
    }
    end(&s);
}

TEST(published_tokenizers_refuse_what_cannot_be_kept)
{
    static const struct {
        int file;
        const char *text, *part;
    } cases[] = {
        {0, "{", "tokenizer_config.json"},
        {1, "[]", "special_tokens_map.json holds no JSON object"},
        {1, "{\"a\":", "special_tokens_map.json"},
        {2, "{{ a }} \xff", "chat_template.jinja is not UTF-8 from byte 8 on"},
        {3, "3", "generation_config.json holds no JSON object"},
    };
    scene s;
    begin(&s, CUP_POSITIONS_ROTARY);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put(s.from, names[cases[i].file], cases[i].text);
        EXPECT(!cup_tokenizer_load(s.c, s.from));
        EXPECT_CONTAINS(cup_error_text(s.c), cases[i].part);
        EXPECT_INT(cup_error(s.c), CUP_FORMAT);
        cup_error_clear(s.c);
        remove(in(s.from, names[cases[i].file]));
    }
    size_t size = ((size_t)4 << 20) + 1;
    char *huge = calloc(size + 1, 1);
    put(s.from, names[2], memset(huge, ' ', size));
    EXPECT(!cup_tokenizer_load(s.c, s.from));
    EXPECT_CONTAINS(cup_error_text(s.c), "chat_template.jinja is too large");
    free(huge);
    cup_error_clear(s.c);
    put(s.to, "own.json", "{\"schema\":1,\"kind\":\"char\",\"characters\":\"ab\","
                          "\"files\":{\"chat_template.jinja\":7}}");
    EXPECT(!cup_tokenizer_load(s.c, in(s.to, "own.json")));
    EXPECT_CONTAINS(cup_error_text(s.c), "\"chat_template.jinja\" of \"files\" must be a text");
    cup_error_clear(s.c);
    end(&s);
}

/* A template of another tokenizer would be read with this one. */
TEST(published_tokenizers_do_not_mix_with_others)
{
    scene s;
    begin(&s, CUP_POSITIONS_ROTARY);
    cup_tokenizer *t = cup_tokenizer_load(s.c, s.from);
    for (int i = 1; i < 3; i++) {
        put(s.to, names[i], texts[i]);
        EXPECT_INT(cup_gpt_publish(s.m, s.to, CUP_OPTIONS(cup_publish_options, .tokenizer = t)),
                   CUP_ARGUMENT);
        EXPECT_CONTAINS(cup_error_text(s.c), "is of another tokenizer");
        EXPECT_CONTAINS(cup_error_text(s.c), names[i]);
        cup_error_clear(s.c);
        EXPECT(!cup__file_exists(in(s.to, "config.json")));
        EXPECT_INT(remove(in(s.to, names[i])), 0);
    }
    EXPECT_INT(cup_gpt_tokenizer_publish(NULL, t, s.to), CUP_ARGUMENT);
    EXPECT_INT(cup_gpt_tokenizer_publish(s.m, NULL, s.to), CUP_ARGUMENT);
    cup_error_clear(s.c);
    EXPECT_INT(cup_gpt_tokenizer_publish(s.m, t, NULL), CUP_ARGUMENT);
    cup_error_clear(s.c);
    cup_tokenizer_free(t);
    end(&s);
}

TEST(published_tokenizers_survive_every_failed_allocation)
{
    scene s;
    begin(&s, CUP_POSITIONS_LEARNED);
    for (int i = 0; i < 4; i++)
        put(s.from, names[i], texts[i]);
    cup_tokenizer_free(saved(&s));
    for (int i = 0; i < 2; i++) {
        bool done = false;
        for (long n = 1; !done; n++) {
            cup__memory_fail_at(n, false);
            cup_tokenizer *t = cup_tokenizer_load(s.c, i ? s.own : s.from);
            done = t && cup_gpt_tokenizer_publish(s.m, t, s.to) == CUP_OK;
            cup__memory_fail_at(0, false);
            EXPECT((done || cup_error(s.c) == CUP_MEMORY) && n < 6000);
            cup_error_clear(s.c);
            cup_tokenizer_free(t);
        }
    }
    end(&s);
}

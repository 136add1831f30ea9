/* Writes what the fuzzers begin with, into a folder for each: seeds FOLDER. */
#include "fuzz.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "cupola/data.h"
#include "cupola/io.h"
#include "../data/picture_files.h"

static const char sample[] =
    "the cat, the hat's end <|endoftext|>\n\xc3\xa9\xe6\x97\xa5 12 \xff the cat";

static const char *path_of(const char *folder, const char *fuzzer, const char *name)
{
    static char path[4400];
    snprintf(path, sizeof path, "%s/%s", folder, fuzzer);
    MUST(cup__folder_make(NULL, path) == CUP_OK);
    snprintf(path, sizeof path, "%s/%s/%s", folder, fuzzer, name);
    return path;
}

static void put(const char *folder, const char *fuzzer, const char *name, const char *text,
                size_t length)
{
    MUST(cup__file_write(NULL, path_of(folder, fuzzer, name), text, length) == CUP_OK);
}

static void write_tensors(cup_context *c, const char *folder)
{
    float data[6] = {1, 2, 3, 4, 5, 6};
    cup_named list[] = {{"a", cup_tensor_from(c, CUP_F32, 2, (int64_t[]){2, 3}, data)},
                        {"b.c", cup_tensor_from(c, CUP_BOOL, 0, NULL, "\1")},
                        {"empty", cup_tensor_from(c, CUP_BF16, 2, (int64_t[]){0, 4}, NULL)}};
    MUST(cup_safetensors_save(c, path_of(folder, "safetensors", "three"), list, 3) == CUP_OK);
    MUST(cup_safetensors_save(c, path_of(folder, "safetensors", "none"), list, 0) == CUP_OK);
}

static void write_tokenizers(cup_context *c, const char *folder)
{
    cup_corpus *corpus = cup_corpus_new(c, sample, sizeof sample - 1);
    cup_corpus *valid = cup_corpus_new(c, sample, 36);
    cup_tokenizer *bpe = cup_tokenizer_bpe_new(c, corpus, 270);
    cup_tokenizer *characters = cup_tokenizer_char_new(c, valid);
    MUST(cup_tokenizer_save(c, bpe, path_of(folder, "tokenizer", "bpe")) == CUP_OK);
    MUST(cup_tokenizer_save(c, characters, path_of(folder, "tokenizer", "char")) == CUP_OK);
    MUST(cup_tokenizer_save(c, bpe, path_of(folder, "json", "tokenizer")) == CUP_OK);
    cup_tokenizer_free(bpe);
    cup_tokenizer_free(characters);
    cup_corpus_free(corpus);
    cup_corpus_free(valid);
}

/* The 256 bytes in GPT-2's writing. */
static void add_bytes(cup__text *text)
{
    int next = 256;
    for (int b = 0; b < 256; b++) {
        bool printed = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        int code = printed ? b : next++;
        cup__text_add(text, "%s\"\\u%04x\":%d", b ? "," : "{", code, b);
    }
}

/* With tokens that a template puts round a text; as others write it, and as we do. */
static void write_published(const char *folder)
{
    cup__text text = {0};
    cup__text_add(&text, "{\"added_tokens\":[{\"id\":257,\"content\":\"<s>\"}],\"pre_tokenizer\":"
                         "{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                         "\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":"
                         "\"ByteLevel\"},{\"type\":\"TemplateProcessing\",\"single\":[{"
                         "\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],"
                         "\"special_tokens\":{\"<s>\":{\"ids\":[257]}}}]},"
                         "\"model\":{\"type\":\"BPE\",\"vocab\":");
    add_bytes(&text);
    cup__text_add(&text, ",\"th\":256},\"merges\":[\"t h\"]}}");
    put(folder, "tokenizer", "published", text.bytes, text.length);
    cup__text_free(&text);
    cup__text_add(&text, "{\"schema\":1,\"kind\":\"bpe\",\"begin\":256,\"front\":[256],"
                         "\"behind\":[1],\"ends\":[256,1],\"pattern\":\"gpt2\",\"size\":257,"
                         "\"special\":{\"<s>\":256},\"merges\":[],\"bytes\":[");
    for (int b = 0; b < 256; b++)
        cup__text_add(&text, "%s%d", b ? "," : "", b);
    cup__text_add(&text, "]}");
    put(folder, "tokenizer", "around", text.bytes, text.length);
    cup__text_free(&text);
}

/* Besides the bytes two merged tokens and a special one. */
static void write_gpt2(const char *folder)
{
    cup__text text = {0};
    add_bytes(&text);
    cup__text_add(&text, ",\"th\":256,\"the\":257,\"<|endoftext|>\":258}");
    cup__text_append(&text, "\0#version: 0.2\nt h\nth e\n", 24);
    put(folder, "gpt2", "small", text.bytes, text.length);
    cup__text_free(&text);
}

static void write_state(const char *folder)
{
    char hash[CUP__HASH_TEXT];
    cup__hash state;
    cup__hash_begin(&state);
    cup__hash_add(&state, "text", 4);
    cup__hash_text(&state, hash);
    cup__text text = {0};
    cup__text_add(
        &text,
        "{\"schema\": 1, \"save\": 7, \"files\": {\"a\": {\"bytes\": 4, \"hash\": \"%s\"}, "
        "\"b\": {\"bytes\": 4, \"hash\": \"%s\"}}, \"state\": {\"step\": 3}}",
        hash, hash);
    put(folder, "checkpoint", "state", text.bytes, text.length);
    cup__text_free(&text);
}

static void write_images(const char *folder)
{
    static const char network[] =
        "conv 32 kernel=3 stride=2 padding=1 groups=1 nobias # first\nrepeat 2\nresidual\n"
        "conv same\nshortcut\nscale 1e-6\nend\nend\ntokens\ntransformer heads=2 hidden=8 "
        "dropout=0.1\nmeantokens\nlinear classes\n";
    put(folder, "network", "small", network, sizeof network - 1);
    uint8_t file[600] = {1}, pixels[27] = {9};
    put(folder, "images", "png", (char *)file, 1 + png_file(pixels, 3, 3, 3, file + 1));
    memcpy(file + 1, jpeg_two, sizeof jpeg_two);
    put(folder, "images", "jpeg", (char *)file, 1 + sizeof jpeg_two);
    memcpy(file + 1, webp_two, sizeof webp_two);
    put(folder, "images", "webp", (char *)file, 1 + sizeof webp_two);
    static const char idx[] = "\2\0\0\10\3\0\0\0\1\0\0\0\1\0\0\0\1";
    put(folder, "images", "idx", idx, sizeof idx - 1);
}

/* Sequences of calls of several lengths, by numbers that only have to be many. */
static void write_calls(const char *folder)
{
    static const char *const names[] = {"200", "400", "800", "1200"};
    char bytes[1200];
    uint64_t state = 1;
    for (int i = 0; i < 4; i++) {
        for (size_t k = 0; k < sizeof bytes; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            bytes[k] = (char)(state >> 56);
        }
        put(folder, "calls", names[i], bytes, (size_t)atol(names[i]));
    }
}

int main(int count, char **arguments)
{
    MUST(count == 2);
    const char *folder = arguments[1];
    cup_options options = {.size = sizeof options, .device = "cpu"};
    cup_context *c = cup_context_new(&options);
    write_calls(folder);
    static const char json[] =
        "{\"a\": [1, -2.5e3, true, null, \"\\u00e9\\ud83d\\ude00\\n\"], \"b\": {}}";
    put(folder, "json", "small", json, sizeof json - 1);
    static const char formula[] =
        "h = x*y + k; bf16(0.5*h*(1+tanh(pi*(h+0.044715*h^3)))), where(x<y && !y, min(x,y), -1e-3)";
    put(folder, "formula", "plain", formula, sizeof formula - 1);
    static const char folded[] = "f32(sum[0,-1,keep](gelu(x)/y^2)), max[0,-1,keep](clamp(x,0,1))";
    put(folder, "formula", "folded", folded, sizeof folded - 1);
    static const char tuning[] =
        "# comment\ncard\t13000\t0.1.0\tproduct m=1\tcublaslt rank=1 ways=7\t2.5\n"
        "card\t13000\t0.1.0\tproduct m=2\twgmma tile_m=128 tile_n=192 consumers=2 stages=4 "
        "cluster_m=2 cluster_n=1 parts=3 pingpong=1 ways=7\t1e3\n";
    put(folder, "tuning", "two", tuning, sizeof tuning - 1);
    put(folder, "utf8", "text", sample, sizeof sample - 1);
    put(folder, "bpe", "text", sample, sizeof sample - 1);
    static const char npy[] = "\x93NUMPY\1\0\x48\0{'descr': '<f4', 'fortran_order': False, "
                              "'shape': (2, 1), }            \n12345678";
    put(folder, "npy", "two", npy, sizeof npy - 1);
    static const char line[] = "\3{\"id\": 1, \"text\": \"a \\u00e9\"}\n\n{\"text\": \"\"}\n";
    /* "abc " eight times. */
    static const char gzip[] =
        "\001\037\213\010\000\000\000\000\000\002\003\113\114\112\126\110\304\203"
        "\001\303\077\224\257\040\000\000\000";
    static const char zstd[] =
        "\002\050\265\057\375\000\130\125\000\000\040\141\142\143\040\001\000\063"
        "\216\010";
    put(folder, "packed", "lines", line, sizeof line - 1);
    put(folder, "packed", "gzip", gzip, sizeof gzip - 1);
    put(folder, "packed", "zstd", zstd, sizeof zstd - 1);
    char shard[1024 + 8] = {0};
    memcpy(shard, (const int32_t[]){20240520, 1, 4}, 12);
    put(folder, "shards", "header", shard, sizeof shard);
    put(folder, "shards", "plain", sample, 40);
    write_images(folder);
    write_tensors(c, folder);
    write_tokenizers(c, folder);
    write_published(folder);
    write_gpt2(folder);
    write_state(folder);
    cup_context_free(c);
    return 0;
}

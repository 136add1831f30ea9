#include "test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/file.h"
#include "base/memory.h"
#include "cupola/io.h"
#include "io/safetensors.h"
#include "tensor/tensor.h"

static const char *path_in(const char *folder, const char *name)
{
    static char paths[8][4400];
    static unsigned turn;
    char *out = paths[turn++ % 8];
    snprintf(out, sizeof paths[0], "%s/%s", folder, name);
    return out;
}

static void put_file(const char *path, const char *header, size_t data_bytes)
{
    cup__error error = {0};
    cup__text text = {0};
    uint64_t size = strlen(header);
    char zeros[64] = {0};
    cup__text_append(&text, &size, 8);
    cup__text_append(&text, header, size);
    cup__text_append(&text, zeros, data_bytes);
    EXPECT_INT(cup__file_write(&error, path, text.bytes, text.length), CUP_OK);
    cup__text_free(&text);
}

static cup_context *cpu(void)
{
    cup_options options = {.size = sizeof options, .device = "cpu"};
    return cup_context_new(&options);
}

TEST(safetensors_bytes_are_as_the_format_says)
{
    const char *path = path_in(test_folder(), "a.safetensors");
    cup_context *c = cpu();
    float f[4] = {1, 2, 3, 4};
    uint8_t u[3] = {7, 8, 9};
    cup_named list[] = {{"u", cup_tensor_from(c, CUP_U8, 1, (int64_t[]){3}, u)},
                        {"b.f", cup_tensor_from(c, CUP_F32, 2, (int64_t[]){2, 2}, f)},
                        {"a.f", cup_tensor_from(c, CUP_F32, 0, NULL, f)},
                        {"empty", cup_tensor_from(c, CUP_F64, 2, (int64_t[]){0, 5}, NULL)}};
    EXPECT_INT(cup_safetensors_save(c, path, list, 4), CUP_OK);
    char *bytes;
    size_t size;
    uint64_t header;
    EXPECT_INT(cup__file_read(NULL, path, 10000, &bytes, &size), CUP_OK);
    memcpy(&header, bytes, 8);
    EXPECT_INT(header % 8, 0);
    EXPECT_INT(size, 8 + header + 4 + 16 + 3);
    float first;
    memcpy(&first, bytes + 8 + header + 4 + 4, 4);
    EXPECT_NEAR(first, 2, 0);
    EXPECT_INT(bytes[size - 1], 9);
    bytes[8 + header] = 0;
    const char *text = bytes + 8;
    EXPECT_CONTAINS(text, "{\"__metadata__\": {\"format\": \"pt\"}, \"empty\": ");
    EXPECT_CONTAINS(text, "\"a.f\": {\"dtype\": \"F32\", \"shape\": [], \"data_offsets\": [0, 4]}");
    EXPECT(strstr(text, "\"empty\"") < strstr(text, "\"a.f\""));
    EXPECT(strstr(text, "\"a.f\"") < strstr(text, "\"b.f\""));
    EXPECT(strstr(text, "\"b.f\"") < strstr(text, "\"u\""));
    cup__free(bytes);
    cup_context_free(c);
}

TEST(safetensors_every_dtype_round_trips)
{
    const char *path = path_in(test_folder(), "a.safetensors");
    cup_context *c = cpu();
    cup_named list[16];
    uint8_t data[24];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i & 1);
    int count = 0;
    for (int d = 0; cup_dtype_size((cup_dtype)d); d++) {
        cup_tensor *t = cup_tensor_from(c, (cup_dtype)d, 1, (int64_t[]){3}, data);
        list[count++] = (cup_named){cup_dtype_name((cup_dtype)d), t};
    }
    EXPECT_INT(cup_safetensors_save(c, path, list, count), CUP_OK);
    cup_tensors *back = cup_safetensors_load(c, path);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_tensors_count(back), count);
    for (int i = 0; i < count; i++) {
        cup_tensor *t = cup_tensors_find(back, list[i].name);
        uint8_t got[24];
        size_t bytes = (size_t)(3 * cup_dtype_size((cup_dtype)i));
        EXPECT_INT(cup_tensor_dtype(t), i);
        EXPECT_INT(cup_tensor_read(t, got, bytes), CUP_OK);
        EXPECT(memcmp(got, data, bytes) == 0);
        EXPECT(i == 0 || strcmp(cup_tensors_name(back, i - 1), cup_tensors_name(back, i)) < 0);
    }
    EXPECT(!cup_tensors_find(back, "none") && !cup_tensors_at(back, count));
    EXPECT(!cup_tensors_name(back, -1) && cup_tensors_at(back, 0));
    cup_tensors_free(back);
    cup_context_free(c);
}

/* A transposed view is saved as what it shows, and filled in its own order. */
TEST(safetensors_of_views)
{
    const char *path = path_in(test_folder(), "a.safetensors");
    cup_context *c = cpu();
    float data[6] = {1, 2, 3, 4, 5, 6}, got[6];
    const float turned[6] = {1, 4, 2, 5, 3, 6};
    cup_tensor *base = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){2, 3}, data);
    cup__shape shape = {CUP_F32, 2, {3, 2}};
    cup_named view = {"x", cup__tensor_view(base, &shape, (int64_t[]){1, 3}, 0)};
    EXPECT(!cup_tensor_is_contiguous(view.tensor));
    EXPECT_INT(cup_safetensors_save(c, path, &view, 1), CUP_OK);
    cup_tensors *back = cup_safetensors_load(c, path);
    EXPECT_INT(cup_tensor_read(cup_tensors_find(back, "x"), got, sizeof got), CUP_OK);
    EXPECT(memcmp(got, turned, sizeof got) == 0);
    cup_tensors_free(back);
    EXPECT_INT(cup_tensor_write(base, turned, sizeof turned), CUP_OK);
    EXPECT_INT(cup_safetensors_fill(c, path, &view, 1), CUP_OK);
    EXPECT_INT(cup_tensor_read(base, got, sizeof got), CUP_OK);
    EXPECT(memcmp(got, data, sizeof got) == 0);
    cup_context_free(c);
}

TEST(safetensors_fill)
{
    const char *path = path_in(test_folder(), "a.safetensors");
    cup_context *c = cpu();
    float data[6] = {1, 2, 3, 4, 5, 6}, got[6];
    cup_named list[] = {{"a", cup_tensor_from(c, CUP_F32, 2, (int64_t[]){2, 3}, data)},
                        {"b", cup_tensor_from(c, CUP_I32, 1, (int64_t[]){6}, data)}};
    EXPECT_INT(cup_safetensors_save(c, path, list, 2), CUP_OK);
    cup_named into = {"a", cup_tensor_new(c, CUP_F32, 2, (int64_t[]){2, 3})};
    EXPECT_INT(cup_safetensors_fill(c, path, &into, 1), CUP_OK);
    EXPECT_INT(cup_tensor_read(into.tensor, got, sizeof got), CUP_OK);
    EXPECT(memcmp(got, data, sizeof got) == 0);

    into.tensor = cup_tensor_new(c, CUP_F32, 2, (int64_t[]){3, 2});
    EXPECT_INT(cup_safetensors_fill(c, path, &into, 1), CUP_SHAPE);
    EXPECT_CONTAINS(cup_error_text(c), "\"a\" is [2,3] f32, but [3,2] f32 is needed");
    cup_error_clear(c);
    into.tensor = cup_tensor_new(c, CUP_F16, 2, (int64_t[]){2, 3});
    EXPECT_INT(cup_safetensors_fill(c, path, &into, 1), CUP_DTYPE);
    cup_error_clear(c);
    into.name = "c";
    EXPECT_INT(cup_safetensors_fill(c, path, &into, 1), CUP_FORMAT);
    EXPECT_CONTAINS(cup_error_text(c), "holds no tensor \"c\"");
    cup_context_free(c);
}

static void expect_refused(const char *path, const char *words)
{
    cup_context *c = cpu();
    EXPECT(cup_safetensors_load(c, path) == NULL);
    EXPECT(cup_error(c) != CUP_OK);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_context_free(c);
}

static void expect_header_refused(const char *header, size_t data_bytes, const char *words)
{
    char name[32];
    static int number;
    static const char *folder;
    if (!folder)
        folder = test_folder();
    snprintf(name, sizeof name, "%d.safetensors", number++);
    put_file(path_in(folder, name), header, data_bytes);
    expect_refused(path_in(folder, name), words);
}

#define ONE(dtype, shape, offsets)                                                                 \
    "{\"x\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

TEST(safetensors_bad_headers_have_sentences)
{
    static const struct {
        const char *header;
        size_t data;
        const char *words;
    } cases[] = {
        {ONE("F32", "[2]", "[0,8]"), 7, "truncated"},
        {ONE("F32", "[2]", "[0,8]"), 9, "1 bytes behind the last tensor"},
        {ONE("F32", "[2]", "[1,9]"), 9, "leaves a hole before it"},
        {ONE("F32", "[2]", "[8,0]"), 8, "two whole numbers"},
        {ONE("F32", "[2]", "[-8,0]"), 8, "two whole numbers"},
        {ONE("F32", "[2]", "[0.0,8]"), 8, "two whole numbers"},
        {ONE("F32", "[2]", "[0,8,8]"), 8, "two whole numbers"},
        {ONE("F32", "[2]", "[[0,8],8]"), 8, "two whole numbers"},
        {ONE("F32", "[2]", "[0,18446744073709551615]"), 8, "two whole numbers"},
        {ONE("F32", "[2]", "8"), 8, "\"data_offsets\" must be an array"},
        {ONE("F32", "[3]", "[0,8]"), 8, "8 bytes of data, but its shape and its dtype F32 need 96"},
        {ONE("F32", "[-2]", "[0,8]"), 8, "whole numbers, 0 or above"},
        {ONE("F32", "[2.0]", "[0,8]"), 8, "whole numbers, 0 or above"},
        {ONE("F32", "[4611686018427387904,4611686018427387904]", "[0,8]"), 8, "too large"},
        {ONE("F32", "[2305843009213693952]", "[0,0]"), 0, "too large"},
        {ONE("F4", "[3]", "[0,1]"), 1, "need 12 bits"},
        {ONE("F99", "[2]", "[0,8]"), 8, "unknown dtype \"F99\""},
        {ONE("U16", "[4]", "[0,8]"), 8, "dtype U16, which Cupola does not have"},
        {ONE("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, "9 dimensions"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "no key \"data_offsets\""},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"y\":0}}", 1, "keys other"},
        {"{\"x\":1}", 0, "does not describe a tensor"},
        {"{\"x\":", 0, "not valid JSON"},
        {"[]", 0, "does not begin with {"},
        {" {}", 0, "does not begin with {"},
        {"", 0, "does not begin with {"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "strings only"},
        {"{\"__metadata__\":[]}", 0, "strings only"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
         3, "\"b\" overlaps"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2, "\"a\" twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_header_refused(cases[i].header, cases[i].data, cases[i].words);
}

TEST(safetensors_foreign_files_have_sentences)
{
    const char *folder = test_folder(), *path = path_in(folder, "a.safetensors");
    cup__error error = {0};
    expect_refused(path, "no such file");
    EXPECT_INT(cup__file_write(&error, path, "", 0), CUP_OK);
    expect_refused(path, "no safetensors file: it has 0 bytes");
    EXPECT_INT(cup__file_write(&error, path, "PK\3\4 a zip file, as torch.save writes", 36),
               CUP_OK);
    expect_refused(path, "truncated or no safetensors file");
    uint64_t size = 100000001;
    EXPECT_INT(cup__file_write(&error, path, &size, 8), CUP_OK);
    expect_refused(path, "at most 100000000");
    expect_refused(folder, "is a folder without model.safetensors");
    put_file(path, ONE("BOOL", "[1]", "[0,1]"), 0);
    cup__writer writer;
    char *bytes;
    size_t length;
    EXPECT_INT(cup__file_read(&error, path, 1000, &bytes, &length), CUP_OK);
    EXPECT_INT(cup__writer_open(&error, path, &writer), CUP_OK);
    EXPECT_INT(cup__writer_add(&error, &writer, bytes, length), CUP_OK);
    EXPECT_INT(cup__writer_add(&error, &writer, "\2", 1), CUP_OK);
    EXPECT_INT(cup__writer_commit(&error, &writer), CUP_OK);
    cup__free(bytes);
    expect_refused(path, "bytes other than 0 and 1");
}

TEST(safetensors_every_truncation_is_refused)
{
    const char *folder = test_folder(), *path = path_in(folder, "a.safetensors");
    cup_context *c = cpu();
    int32_t data[5] = {1, 2, 3, 4, 5};
    cup_named list = {"x", cup_tensor_from(c, CUP_I32, 1, (int64_t[]){5}, data)};
    EXPECT_INT(cup_safetensors_save(c, path, &list, 1), CUP_OK);
    char *bytes;
    size_t size;
    EXPECT_INT(cup__file_read(NULL, path, 10000, &bytes, &size), CUP_OK);
    for (size_t cut = 0; cut < size; cut++) {
        cup__safetensors file;
        cup__error error = {0};
        EXPECT_INT(cup__file_write(&error, path, bytes, cut), CUP_OK);
        EXPECT_INT(cup__safetensors_open(&error, path, &file), CUP_FORMAT);
    }
    cup__free(bytes);
    cup_context_free(c);
}

static void put_index(const char *folder, const char *text)
{
    EXPECT_INT(
        cup__file_write(NULL, path_in(folder, "model.safetensors.index.json"), text, strlen(text)),
        CUP_OK);
}

TEST(safetensors_sharded)
{
    const char *folder = test_folder();
    put_file(path_in(folder, "1.safetensors"), ONE("U8", "[2]", "[0,2]"), 2);
    put_file(path_in(folder, "2.safetensors"),
             "{\"y\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
    put_index(folder, "{\"metadata\":{\"total_size\":6},\"weight_map\":"
                      "{\"y\":\"2.safetensors\",\"x\":\"1.safetensors\"}}");
    cup_context *c = cpu();
    cup_tensors *tensors = cup_safetensors_load(c, folder);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_tensors_count(tensors), 2);
    EXPECT_INT(cup_tensor_dtype(cup_tensors_find(tensors, "y")), CUP_F32);
    cup_tensors_free(tensors);
    cup_context_free(c);

    put_index(folder, "{\"weight_map\":{\"x\":\"../1.safetensors\"}}");
    expect_refused(folder, "not a plain file name");
    put_index(folder, "{\"weight_map\":{\"x\":\"/etc/passwd\"}}");
    expect_refused(folder, "not a plain file name");
    put_index(folder, "{\"weight_map\":{\"x\":\"..\"}}");
    expect_refused(folder, "not a plain file name");
    put_index(folder, "{\"weight_map\":{\"x\":\"\"}}");
    expect_refused(folder, "not a plain file name");
    put_index(folder, "{\"weight_map\":{\"x\":3}}");
    expect_refused(folder, "not a plain file name");
    put_index(folder, "{\"weight_map\":{\"x\":\"3.safetensors\"}}");
    expect_refused(folder, "no such file");
    put_index(folder, "{\"weight_map\":{\"y\":\"1.safetensors\"}}");
    expect_refused(folder, "\"y\" is not in 1.safetensors");
    put_index(folder, "{\"weight_map\":{\"x\":\"1.safetensors\",\"z\":\"2.safetensors\"}}");
    expect_refused(folder, "\"z\" is not in 2.safetensors");
    put_index(folder, "{\"weight_map\":{\"x\":\"2.safetensors\",\"y\":\"2.safetensors\"}}");
    expect_refused(folder, "\"x\" is not in 2.safetensors");
    put_index(folder, "{\"weight_map\":[]}");
    expect_refused(folder, "\"weight_map\" must be an object");
    put_index(folder, "{}");
    expect_refused(folder, "no key \"weight_map\"");
    put_file(path_in(folder, "2.safetensors"), ONE("U8", "[2]", "[0,2]"), 2);
    put_index(folder, "{\"weight_map\":{\"x\":\"1.safetensors\",\"y\":\"2.safetensors\"}}");
    expect_refused(folder, "two files hold a tensor \"x\"");
}

TEST(safetensors_bad_saves_keep_the_old_file)
{
    const char *path = path_in(test_folder(), "a.safetensors");
    cup_context *c = cpu(), *other = cpu();
    cup_tensor *t = cup_tensor_from(c, CUP_U8, 0, NULL, "x");
    cup_tensor *big = cup_tensor_new(c, CUP_F32, 1, (int64_t[]){100000});
    cup_named good = {"x", t};
    EXPECT_INT(cup_safetensors_save(c, path, &good, 1), CUP_OK);
    const struct {
        cup_named list[2];
        const char *words;
    } cases[] = {
        {{{"x", t}, {"x", t}}, "two tensors have the name \"x\""},
        {{{"x", t}, {NULL, t}}, "has no name"},
        {{{"x", t}, {"y", NULL}}, "\"y\", is NULL"},
        {{{"x", t}, {"y", cup_tensor_from(other, CUP_U8, 0, NULL, "x")}}, "another context"},
        {{{"x", t}, {"__metadata__", t}}, "cannot have the name __metadata__"},
        {{{"x", t}, {"\xff", t}}, "not UTF-8"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        EXPECT_INT(cup_safetensors_save(c, path, cases[i].list, 2), CUP_ARGUMENT);
        EXPECT_CONTAINS(cup_error_text(c), cases[i].words);
        cup_error_clear(c);
    }
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {4096, 4096};
    EXPECT_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
    good.tensor = big;
    EXPECT_INT(cup_safetensors_save(c, path, &good, 1), CUP_IO);
    EXPECT_CONTAINS(cup_error_text(c), "cannot be written");
    cup_error_clear(c);
    cup_tensors *back = cup_safetensors_load(c, path);
    EXPECT_INT(cup_tensor_count(cup_tensors_find(back, "x")), 1);
    cup_tensors_free(back);
    cup_context_free(c);
    cup_context_free(other);
}

TEST(safetensors_allocation_failures)
{
    const char *folder = test_folder();
    cup_context *c = cpu();
    cup_named list[] = {{"x", cup_tensor_from(c, CUP_F32, 1, (int64_t[]){2}, (float[]){1, 2})},
                        {"y", cup_tensor_from(c, CUP_F32, 1, (int64_t[]){2}, (float[]){3, 4})}};
    cup_status status = CUP_MEMORY;
    for (long n = 1; status != CUP_OK; n++) {
        cup__memory_fail_at(n, false);
        status = cup_safetensors_save(c, path_in(folder, "1.safetensors"), list, 2);
        cup__memory_fail_at(0, false);
        EXPECT(status == CUP_OK || (status == CUP_MEMORY && cup_error(c) == status && n < 100));
        cup_error_clear(c);
    }
    put_index(folder, "{\"weight_map\":{\"x\":\"1.safetensors\",\"y\":\"1.safetensors\"}}");
    cup_tensors *back = NULL;
    for (long n = 1; !back; n++) {
        cup__memory_fail_at(n, false);
        back = cup_safetensors_load(c, folder);
        cup__memory_fail_at(0, false);
        EXPECT(back || (cup_error(c) == CUP_MEMORY && n < 300));
        cup_error_clear(c);
    }
    EXPECT_INT(cup_tensors_count(back), 2);
    cup_tensors_free(back);
    cup_context_free(c);
}

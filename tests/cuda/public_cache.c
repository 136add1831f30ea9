/* The public calls on the cache of kernels, with the fake NVRTC. */
#include "cupola/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cupola/cupola.h"
#include "support.h"
#include "test.h"

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

static int64_t count_of(cup_context *c)
{
    cup_cached_kernels *list = cup_cached_kernels_new(c);
    int64_t count = cup_cached_kernels_count(list);
    EXPECT(list != NULL);
    cup_cached_kernels_free(list);
    return count;
}

TEST(public_cache_is_listed_and_cleared)
{
    kernel_begin();
    cup_context *c = cpu();
    char folder[4400];
    int64_t kernels, bytes, sum = 0;
    EXPECT_INT(count_of(c), 0);
    EXPECT_INT(cup_cache_folder(c, folder, sizeof folder), CUP_OK);
    EXPECT(!strncmp(folder, kernel_folder, strlen(kernel_folder)));
    EXPECT_INT(cup_cache_check(c), CUP_OK);
    fake_source(kernel_folder, "add_more.cu", FAKE_ADD);
    for (int i = 0; i < 3; i++)
        EXPECT_INT(kernel_code(NULL, i ? "add.cu" : "add_more.cu", i), CUP_OK);
    cup_cached_kernels *list = cup_cached_kernels_new(c);
    EXPECT_INT(cup_cached_kernels_count(list), 3);
    for (int i = 0; i < 3; i++) {
        const cup_cached_kernel *k = cup_cached_kernels_at(list, i);
        EXPECT_TEXT(k->arch, "sm_90a");
        EXPECT(!strcmp(k->source, "add.cu") || !strcmp(k->source, "add_more.cu"));
        EXPECT_CONTAINS(k->knobs, "CUP_T=");
        EXPECT_CONTAINS(k->compiler, "NVRTC ");
        EXPECT(k->bytes > 0 && k->used > 0 && cup__file_exists(k->path));
        sum += k->bytes;
    }
    EXPECT_INT(cup_cached_kernels_bytes(list), sum);
    EXPECT(!cup_cached_kernels_at(list, 3) && !cup_cached_kernels_at(list, -1));
    EXPECT_INT(cup_cache_clear(c, "add.cu", &kernels, &bytes), CUP_OK);
    EXPECT_INT(kernels, 2);
    EXPECT(bytes > 0 && bytes < sum);
    EXPECT_INT(count_of(c), 1);
    EXPECT_INT(cup_cache_clear(c, "add", NULL, NULL), CUP_OK);
    EXPECT_INT(count_of(c), 1);
    EXPECT_INT(cup_cache_clear(c, "", &kernels, NULL), CUP_OK);
    EXPECT_INT(kernels, 1);
    EXPECT_INT(cup_cache_clear(c, NULL, NULL, NULL), CUP_ARGUMENT);
    cup_context_free(c);
    EXPECT_INT(cup_cached_kernels_count(list), 3); /* the list stands for itself */
    cup_cached_kernels_free(list);
}

TEST(public_cache_that_is_off)
{
    char folder[10] = "x";
    setenv("CUP_CACHE", "off", 1);
    cup_context *c = cpu();
    EXPECT_INT(cup_cache_folder(c, folder, sizeof folder), CUP_OK);
    EXPECT_TEXT(folder, "");
    EXPECT_INT(cup_cache_check(c), CUP_STATE);
    EXPECT_CONTAINS(cup_error_text(c), "set CUP_CACHE");
    cup_error_clear(c);
    setenv("CUP_CACHE", "/a/long/path", 1);
    EXPECT_INT(cup_cache_folder(c, folder, sizeof folder), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "it needs 13");
    cup_context_free(c);
}

static int64_t last_done, last_count, failures;

static void on_kernel(int64_t done, int64_t count, const char *failure, void *user)
{
    EXPECT(user == &last_done);
    last_done = done;
    last_count = count;
    failures += failure != NULL;
}

TEST(public_cache_is_built)
{
    kernel_begin();
    setenv("FAKE_NVRTC_ANY", "1", 1);
    cup_context *c = cpu();
    cup_cache_built built;
    const cup_cache_build_options relu = {
        .size = sizeof relu, .op = "relu", .progress = on_kernel, .user = &last_done};
    EXPECT_INT(cup_cache_build(c, "sm_90a", &relu, &built), CUP_OK);
    EXPECT(built.kernels > 0 && built.kernels == last_count && last_done == last_count);
    EXPECT(!built.failed && !failures && !built.unkept);
    EXPECT_INT(count_of(c), built.kernels);
    char path[4400];
    int64_t packed;
    snprintf(path, sizeof path, "%s/all.pack", kernel_folder);
    EXPECT_INT(cup_file_check(c, path), CUP_OK);
    EXPECT(!cup__file_exists(path));
    EXPECT_INT(cup_cache_pack(c, path, &packed), CUP_OK);
    EXPECT_INT(packed, built.kernels);
    EXPECT(cup__file_exists(path));
    EXPECT_INT(cup_cache_build(c, "sm_1", &relu, &built), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "sm_90a");
    cup_error_clear(c);
    EXPECT_INT(cup_cache_build(c, NULL, NULL, &built), CUP_ARGUMENT);
    cup_error_clear(c);
    EXPECT_INT(cup_cache_build(c, "sm_90a", CUP_OPTIONS(cup_cache_build_options, .op = "relo"),
                               NULL),
               CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "there is no op relo");
    cup_error_clear(c);
    EXPECT_INT(cup_cache_build(
                   c, "sm_90a",
                   CUP_OPTIONS(cup_cache_build_options, .op = "relu", .common = true), NULL),
               CUP_ARGUMENT);
    cup_context_free(c);
    EXPECT_TEXT(cup_architectures()[0], "sm_75");
}

TEST(public_cache_that_cannot_be_kept)
{
    kernel_begin();
    setenv("FAKE_NVRTC_ANY", "1", 1);
    setenv("CUP_CACHE", "/dev/null/no", 1);
    cup_context *c = cpu();
    cup_cache_built built;
    EXPECT_INT(cup_cache_check(c), CUP_IO);
    cup_error_clear(c);
    EXPECT_INT(cup_cache_build(c, "sm_90a", CUP_OPTIONS(cup_cache_build_options, .op = "relu"),
                               &built),
               CUP_OK);
    EXPECT(built.kernels > 0 && built.unkept == built.kernels);
    EXPECT_CONTAINS(built.why, "/dev/null");
    EXPECT_INT(cup_cache_pack(c, "/dev/null/no.pack", NULL), CUP_IO);
    cup_context_free(c);
}

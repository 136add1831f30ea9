/* Tuning records: their text, and tuning on the fake card. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cuda/loader.h"
#include "cuda/support.h"
#include "cupola/cupola.h"
#include "dispatch/attributes.h"
#include "dispatch/op.h"
#include "dispatch/tuned.h"
#include "dispatch/tuning.h"
#include "test.h"

#define LINE(call, way, us) "card\t13000\t0.1.0\t" call "\t" way "\t" us "\n"

static cup_status parse(cup__error *error, const char *text, cup__tuning *to)
{
    return cup__tuning_parse(error, "some.tsv", text, strlen(text), to);
}

TEST(tuning_later_lines_count)
{
    cup__error error = {0};
    cup__tuning t = {0};
    cup__text text = {0};
    EXPECT_OK(&error,
              parse(&error, "# a comment\n\n" LINE("b", "x", "2") LINE("a", "y", "3.5"), &t));
    EXPECT_OK(&error, parse(&error, LINE("b", "z", "1"), &t));
    EXPECT_INT(t.count, 2);
    cup__tuning_write(&t, &text);
    EXPECT_CONTAINS(text.bytes, LINE("a", "y", "3.5") LINE("b", "z", "1"));
    EXPECT(!strstr(text.bytes, "\tx\t"));
    cup__tuning again = {0};
    EXPECT_OK(&error, parse(&error, text.bytes, &again));
    EXPECT_INT(again.count, 2);
    cup__tuning_free(&again);
    cup__tuning_free(&t);
    cup__text_free(&text);
}

TEST(tuning_refuses_what_is_no_record)
{
    static const char *const bad[] = {
        "card\t13000\t0.1.0\tcall\tway\n",      "card\t13000\t0.1.0\tcall\tway\t1\tmore\n",
        "card\t13000\t0.1.0\tcall\t\t1\n",      "card\t13000\t0.1.0\tcall\tway\tfast\n",
        "card\t13000\t0.1.0\tcall\tway\t-1\n",  "card\t13000\t0.1.0\tcall\tway\tinf\n",
        "card\t13000\t0.1.0\tcall\tway\t1 us\n", "card\t13000\t0.1.0\tcall\tway\t1e307\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cup__error error = {0};
        cup__tuning t = {0};
        EXPECT_INT(parse(&error, bad[i], &t), CUP_FORMAT);
        EXPECT_CONTAINS(error.text, "some.tsv: line 1");
        cup__tuning_free(&t);
    }
    cup__error error = {0};
    cup__tuning t = {0};
    EXPECT_INT(cup__tuning_parse(&error, "some.tsv", "a\0b", 3, &t), CUP_FORMAT);
    EXPECT_CONTAINS(error.text, "binary");
}

TEST(tuning_ways_as_text)
{
    static const char *const good[] = {
        "rows", "cublaslt", "cublaslt rank=3", "stream",
        "wgmma tile_m=128 tile_n=192 consumers=2 stages=4 cluster_m=2 cluster_n=1 parts=3 "
        "pingpong=1"};
    static const char *const bad[] = {
        "", "row", "blas", "rows ", "rows ways=7", "cublaslt rank=", "cublaslt rank=0",
        "cublaslt rank=-1", "cublaslt rank=99999999999", "cublaslt rank=1 rank=1",
        "wgmma tile_n=128 tile_m=128", "wgmma tile_m=128 ", "wgmma tile_m= 128"};
    cup__way way;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cup__text text = {0};
        EXPECT(cup__way_parse(&cup__op_linear, good[i], &way));
        cup__way_text(&way, &text);
        EXPECT_TEXT(text.bytes, good[i]);
        cup__text_free(&text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (cup__way_parse(&cup__op_linear, bad[i], &way))
            test_fail(__FILE__, __LINE__, "\"%s\" was taken for a way", bad[i]);
    EXPECT(cup__way_parse(&cup__op_linear_silu, "composed", &way) && way.impl->name);
    EXPECT(!cup__way_parse(&cup__op_linear_silu, "cublaslt", &way));
}

/* What the library was built with is of its version, and of ways that there are. */
TEST(tuning_that_is_shipped_counts)
{
    cup__error error = {0};
    cup__tuning t = {0};
    cup__way way;
    EXPECT_OK(&error, cup__tuning_shipped(&error, &t));
    EXPECT(t.count > 0);
    for (size_t i = 0; i < t.count; i++) {
        const cup__tuning_line *l = &t.lines[i];
        EXPECT_TEXT(l->version, cup_version());
        if (!strncmp(l->call, "product ", 8) && !cup__way_parse(&cup__op_linear, l->way, &way))
            test_fail(__FILE__, __LINE__, "there is no way \"%s\"", l->way);
    }
    cup__tuning_free(&t);
}

static char way_found[200];

static void take_result(const cup_tune_result *r, void *user)
{
    ++*(int *)user;
    snprintf(way_found, sizeof way_found, "%s", r->way);
}

static void hear(void *user, const char *line)
{
    const char *way = strstr(line, "  tuned: ");
    if (way)
        snprintf(user, sizeof way_found, "%s", way + 9);
}

static cup_context *fake_context(void)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(c))
        test_fail(__FILE__, __LINE__, "%s", cup_error_text(c));
    return c;
}

static void multiply(cup_context *c, int64_t m)
{
    cup_scope_open(c);
    cup_tensor *a = cup_tensor_new(c, CUP_BF16, 2, (int64_t[]){m, 512});
    cup_tensor *b = cup_tensor_new(c, CUP_BF16, 2, (int64_t[]){512, 256});
    cup_matmul(c, a, b, false, false);
    cup_scope_close(c);
}

TEST(tuning_is_found_by_the_next_context)
{
    char heard[sizeof way_found] = "";
    int count = 0;
    fake_begin();
    setenv("CUP_KERNELS", "", 1);
    setenv("FAKE_NVRTC_ANY", "1", 1);
    setenv("CUP_LOG", "dispatch", 1);
    cup_log_to(hear, heard);
    cup_context *c = fake_context();
    multiply(c, 1024);
    EXPECT_TEXT(heard, "");
    cup_bench_options how = {.size = sizeof how, .dtype = CUP_BF16, .shapes = "1024x512 512x256"};
    cup_tune(c, "matmul", &how, take_result, &count);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(count, 1);
    multiply(c, 1024);
    EXPECT_TEXT(heard, way_found);
    cup_context_free(c);

    *heard = 0;
    c = fake_context();
    multiply(c, 1025);
    EXPECT_TEXT(heard, "");
    multiply(c, 1024);
    EXPECT_TEXT(heard, way_found);
    EXPECT_INT(cup_tuning(c, true), CUP_OK);
    *heard = 0;
    multiply(c, 1025);
    EXPECT(*heard);
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
    fake_expect_nothing_left();
}

static void multiply_into(cup_context *c, int64_t m)
{
    cup_scope_open(c);
    cup_tensor *y = cup_tensor_new(c, CUP_BF16, 2, (int64_t[]){m, 256});
    cup_tensor *a = cup_tensor_new(c, CUP_BF16, 2, (int64_t[]){m, 512});
    cup_tensor *b = cup_tensor_new(c, CUP_BF16, 2, (int64_t[]){512, 256});
    cup_matmul_into(c, y, a, b, false, false);
    cup_scope_close(c);
}

/* A record of a plan is followed where there is such a plan, for its product alone, and for an op
 * that does the same and has no record of its own. */
TEST(tuning_record_of_a_plan_is_followed)
{
    static const struct {
        const char *way, *heard;
    } cases[] = {
        {"mma", "mma"},
        {"nothing", ""},
        {"wgmma tile_m=64 tile_n=64 consumers=1 stages=12 cluster_m=1 cluster_n=1 parts=1",
         "wgmma tile_m=64 tile_n=64 consumers=1 stages=12 cluster_m=1 cluster_n=1 parts=1"},
        {"wgmma tile_m=65 tile_n=64 consumers=1 stages=12 cluster_m=1 cluster_n=1 parts=1", ""},
        {"wgmma", ""},
        {"cublaslt rank=77", ""},
    };
    char path[4400], text[700], heard[sizeof way_found];
    const char *folder = fake_begin();
    setenv("CUP_KERNELS", "", 1);
    setenv("FAKE_NVRTC_ANY", "1", 1);
    setenv("CUP_LOG", "dispatch", 1);
    snprintf(path, sizeof path, "%s/tuning.tsv", folder);
    setenv("CUP_TUNING", path, 1);
    cup_log_to(hear, heard);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text,
                 "Fake GPU\t%d\t%s\tproduct dtype=3 precision=0 m=1024 n=256 k=512 batch=1 "
                 "batch_ndim=0 a=2 b=2 a_aligned=1 b_aligned=1 y_aligned=1 bias=0 "
                 "activation=0 saving=0 y_dtype=3 other=0 special=0\t%s\t5\n",
                 cup__library_report_of(CUP__LIBCUDA)->version, cup_version(), cases[i].way);
        cup__error error = {0};
        EXPECT_OK(&error, cup__file_write(&error, path, text, strlen(text)));
        cup_context *c = fake_context();
        for (int again = 0; again < 2; again++) {
            *heard = 0;
            multiply(c, 1024);
            EXPECT_TEXT(cup_error_text(c), "");
            EXPECT_TEXT(heard, cases[i].heard);
        }
        *heard = 0;
        multiply_into(c, 1024);
        EXPECT_TEXT(cup_error_text(c), "");
        EXPECT_TEXT(heard, strchr(cases[i].heard, ' ') ? cases[i].heard : "");
        *heard = 0;
        multiply(c, 1025);
        EXPECT_TEXT(heard, "");
        cup_context_free(c);
    }
    fake_expect_nothing_left();
}

/* Any op with several implementations is measured by the same means, and only its own calls. */
TEST(tuning_of_implementations)
{
    static const char *const calls[][3] = {
        {"attention", "2x4x256x64 2x4x256x64 2x4x256x64", "causal=1"},
        {"softmax", "512x40000", "axis=-1"},
        {"linear_relu", "1024x512 256x512 256", ""},
    };
    int count = 0;
    fake_begin();
    setenv("CUP_KERNELS", "", 1);
    setenv("FAKE_NVRTC_ANY", "1", 1);
    cup_context *c = fake_context();
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        int before = count;
        cup_bench_options how = {.size = sizeof how,
                                 .dtype = CUP_BF16,
                                 .shapes = calls[i][1],
                                 .attributes = calls[i][2]};
        cup_tune(c, calls[i][0], &how, take_result, &count);
        EXPECT_TEXT(cup_error_text(c), "");
        EXPECT(count > before);
    }
    cup_bench_options how = {.size = sizeof how, .dtype = CUP_BF16, .shapes = "64x64"};
    int before = count;
    EXPECT_INT(cup_tune(c, "gelu", &how, take_result, &count), CUP_OK);
    EXPECT_INT(count, before);
    cup_context_free(c);
    fake_expect_nothing_left();
}

static const char *chosen_for(cup_context *c, int64_t width)
{
    static const cup__softmax_attributes last = {.axis = -1};
    cup_scope_open(c);
    cup_tensor *x = cup_tensor_new(c, CUP_BF16, 2, (int64_t[]){512, width});
    cup__call call;
    EXPECT_INT(cup__call_begin(&call, c, cup__row_find("softmax"), &x, 1, &last), CUP_OK);
    EXPECT_INT(cup__call_allocate(&call), CUP_OK);
    const cup__impl *impl = cup__call_choose(&call);
    cup_scope_close(c);
    return impl ? impl->name : "none";
}

/* A record of another implementation than the first is followed, for its call alone, on its card
 * and with its version; one of another driver counts less. */
TEST(tuning_record_of_an_implementation_is_followed)
{
    static const struct {
        struct {
            const char *card, *version, *way;
            int driver; /* this much above the one that runs */
        } line[2];
        const char *chosen;
    } cases[] = {
        {{{"Fake GPU", NULL, "rows", 0}}, "rows"},
        {{{"Another GPU", NULL, "rows", 0}}, "ring"},
        {{{"Fake GPU", "9.9.9", "rows", 0}}, "ring"},
        {{{"Fake GPU", NULL, "nothing", 0}}, "ring"},
        {{{"Fake GPU", NULL, "rows", 10}}, "rows"},
        {{{"Fake GPU", NULL, "rows", 0}, {"Fake GPU", NULL, "ring", 10}}, "rows"},
    };
    char path[4400], text[400];
    const char *folder = fake_begin();
    setenv("CUP_KERNELS", "", 1);
    setenv("FAKE_NVRTC_ANY", "1", 1);
    cup_context *c = fake_context();
    const char *usual = chosen_for(c, 40000);
    EXPECT_TEXT(usual, "ring");
    cup_context_free(c);
    snprintf(path, sizeof path, "%s/tuning.tsv", folder);
    setenv("CUP_TUNING", path, 1);
    int driver = cup__library_report_of(CUP__LIBCUDA)->version;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int length = 0;
        for (int k = 0; k < 2 && cases[i].line[k].card; k++)
            length += snprintf(text + length, sizeof text - (size_t)length,
                               "%s\t%d\t%s\tcall softmax bf16:512x40000 axis=-1\t%s\t5\n",
                               cases[i].line[k].card, driver + cases[i].line[k].driver,
                               cases[i].line[k].version ? cases[i].line[k].version : cup_version(),
                               cases[i].line[k].way);
        cup__error error = {0};
        EXPECT_OK(&error, cup__file_write(&error, path, text, strlen(text)));
        c = fake_context();
        EXPECT_TEXT(chosen_for(c, 40000), cases[i].chosen);
        EXPECT_TEXT(chosen_for(c, 40000), cases[i].chosen);
        EXPECT_TEXT(chosen_for(c, 40008), "ring");
        cup_context_free(c);
    }
    fake_expect_nothing_left();
}

TEST(tuning_needs_an_op_and_a_gpu)
{
    int count = 0;
    cup_bench_options how = {.size = sizeof how, .dtype = CUP_F32};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(cup_tune(c, "gelo", &how, take_result, &count), CUP_ARGUMENT);
    cup_error_clear(c);
    EXPECT_INT(cup_tune(c, "matmul", &how, take_result, &count), CUP_UNSUPPORTED);
    cup_context_free(c);
}

TEST(tuning_files_are_merged)
{
    const char *folder = test_folder();
    char from[2][300], to[300];
    const char *paths[] = {from[0], from[1]};
    static const char *const texts[] = {LINE("a", "rows", "2") LINE("b", "mma", "3"),
                                        LINE("a", "mma", "1")};
    cup__error error = {0};
    for (int i = 0; i < 2; i++) {
        snprintf(from[i], sizeof from[i], "%s/%d.tsv", folder, i);
        EXPECT_OK(&error, cup__file_write(&error, from[i], texts[i], strlen(texts[i])));
    }
    snprintf(to, sizeof to, "%s/to.tsv", folder);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(cup_tuning_merge(c, paths, 2, to), CUP_OK);
    cup__tuning merged = {0};
    EXPECT_OK(&error, cup__tuning_read(&error, to, true, &merged));
    EXPECT_INT(merged.count, 2);
    EXPECT_TEXT(merged.lines[0].way, "mma");
    cup__tuning_free(&merged);
    cup_context_free(c);
}

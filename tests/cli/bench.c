/* Records of benchmarks: written, read again, compared, drawn. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "test.h"

static char out[400000];

static const char *folder(void)
{
    static const char *made;
    if (!made)
        made = test_folder();
    return made;
}

static int cupola(const char *words)
{
    char *build = realpath(test_build(), NULL);
    int code = test_command(out, sizeof out, "cd %s && PATH=%s:$PATH && cupola %s", folder(), build,
                            words);
    free(build);
    return code;
}

static void put(const char *name, const char *text)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder(), name);
    EXPECT_INT(cup__file_write(NULL, path, text, strlen(text)), CUP_OK);
}

#define HEAD                                                                                       \
    "date\tcard\top\tshapes\tdtype\timpl\tours_us\tpeer\tpeer_us\tratio\tshare_of_floor\tspread\n"
#define ROW(us, peer, ratio, spread)                                                               \
    "2026-01-01T10:00\tX\tadd\t8 8\tf32\tvector\t" us "\ttorch\t" peer "\t" ratio "\t0.9\t" spread \
    "\n"

TEST(bench_compare_tells_a_regression_from_noise)
{
    put("old.tsv", HEAD ROW("10", "", "", "0.01"));
    put("same.tsv", HEAD ROW("10.3", "", "", "0.01"));
    put("slow.tsv", HEAD ROW("11", "", "", "0.01"));
    put("loud.tsv", HEAD ROW("11", "", "", "0.05"));
    put("fast.tsv", HEAD ROW("8", "", "", "0.01"));
    EXPECT_INT(cupola("bench --compare old.tsv same.tsv"), 0);
    EXPECT_INT(cupola("bench --compare old.tsv slow.tsv"), 1);
    EXPECT_CONTAINS(out, "1 of 1 calls are slower");
    EXPECT_INT(cupola("bench --compare old.tsv slow.tsv --noise 11"), 0);
    EXPECT_INT(cupola("bench --compare old.tsv loud.tsv"), 0);
    EXPECT_INT(cupola("bench --compare old.tsv fast.tsv"), 0);
    EXPECT_CONTAINS(out, "faster");
    EXPECT_INT(cupola("bench --compare old.tsv slow.tsv --json 2>/dev/null"), 1);
    EXPECT_CONTAINS(out, "\"regression\": true");
}

/* On another card everything is slower, the peer too. */
TEST(bench_compare_measures_in_the_peers_time)
{
    put("old.tsv", HEAD ROW("10", "12", "1.2", "0.01"));
    put("card.tsv", HEAD ROW("20", "24", "1.2", "0.01"));
    put("slow.tsv", HEAD ROW("20", "20", "1.0", "0.01"));
    EXPECT_INT(cupola("bench --compare old.tsv card.tsv"), 0);
    EXPECT_INT(cupola("bench --compare old.tsv slow.tsv"), 1);
}

TEST(bench_records_newest_run_counts)
{
    put("two.tsv", HEAD ROW("10", "", "", "0.01")
        "2026-01-02T10:00\tX\tadd\t8 8\tf32\tvector\t7\t\t\t\t0.9\t0.01\n"
        "2026-01-02T10:00\tX\tadd\t8 8\tf32\tplain\t9\t\t\t\t0.9\t0.01\n");
    EXPECT_INT(cupola("bench --from two.tsv --format csv"), 0);
    EXPECT_CONTAINS(out, "vector,7,");
    EXPECT(!strstr(out, "plain"));
}

#define GOALS "area\top\tshapes\tdtype\tattributes\tratio\tcopy\ttflops\tsource\n"

TEST(bench_goals_are_judged)
{
    put("rows.tsv", "op\tshapes\tdtype\tattributes\timpl\tours_us\tpeer\tratio\tflops\tcopy_us\n"
                    "add\t8 8\tf32\t\tvector\t10\ttorch\t1.2\t\t9.6\n"
                    "sum\t8\tf32\taxes=0\trows\t10\ttorch\t0.5\t\t8\n"
                    "linear\t8x8 8x8\tbf16\t\twgmma\t10\t\t\t5e9\t\n");
    put("goals.tsv", "# words\n" GOALS "3\tadd\t8 8\tf32\t\t2\t0.95\t\ttorch 1 us\n"
                     "3\tsum\t8\tf32\taxes=0\t1\t0.9\t\ttorch 1 us\n"
                     "4\tlinear\t8x8 8x8\tbf16\t\t\t\t500\ta report\n"
                     "3\tmax\t8\tf32\t\t1\t\t\ttorch 1 us\n");
    EXPECT_INT(cupola("bench --from rows.tsv --goals goals.tsv"), 0);
    EXPECT_CONTAINS(out, "1.20 (torch), 96 %                    101 %");
    EXPECT_CONTAINS(out, "0.50 (torch), 80 %                     89 %");
    EXPECT_CONTAINS(out, "500 TFLOP/s                           100 %");
    EXPECT_CONTAINS(out, "not measured");
    EXPECT_CONTAINS(out, "2 of 4 are reached, 0 more within 5 %, 1 were not measured");
    EXPECT_INT(cupola("bench --from rows.tsv --goals goals.tsv --format markdown"), 0);
    EXPECT_CONTAINS(out, "| 3 | sum | 8; axes=0 | f32 | ratio 1.00 or 90 % of copy |");
    EXPECT_INT(cupola("bench --from rows.tsv --goals goals.tsv --json"), 0);
    EXPECT_CONTAINS(out, "\"share\": 1}");
    put("bad.tsv", GOALS "3\tadd\t8 8\tf32\t\t\t\t\ttorch\n");
    EXPECT_INT(cupola("bench --from rows.tsv --goals bad.tsv"), 5);
    EXPECT_CONTAINS(out, "line 2 is no goal");
    put("bad.tsv", "op\n");
    EXPECT_INT(cupola("bench --from rows.tsv --goals bad.tsv"), 5);
    EXPECT_INT(cupola("bench --from rows.tsv --goals goals.tsv --format html"), 2);
    EXPECT_INT(cupola("bench --goals goals.tsv --op add"), 2);
    put("calls.tsv", GOALS "3\tadd\t8 8\tf32\t\t2\t\t\ttorch\n"
                     "3\tcopy\t8x9\tf32\ttransposed=1\t2\t\t\ttorch\n"
                     "4\tmatmul\t8x9 9x7\tf32\tprecision=high\t2\t\t\ttorch\n");
    EXPECT_INT(cupola("bench --goals calls.tsv --device cpu --seconds 0.001 --format csv"), 0);
    EXPECT_CONTAINS(out, ",matmul,8x9 9x7,f32,");
    EXPECT_CONTAINS(out, "precision=high,");
    EXPECT_CONTAINS(out, "transposed=1,");
}

TEST(bench_goals_behind_their_records_are_timed_again)
{
    put("calls.tsv", GOALS "3\tadd\t8 8\tf32\t\t2\t\t\ttorch\n"
                     "3\tmul\t8 8\tf32\t\t2\t\t\ttorch\n"
                     "3\tsub\t8 8\tf32\t\t2\t\t\ttorch\n");
    put("never.tsv", HEAD ROW("0.0001", "", "", "0.01") "2026-01-01\tX\tmul\t8 8\tf32\tv\t1e6\n");
    EXPECT_INT(cupola("bench --goals calls.tsv --device cpu --seconds 0.001 --against never.tsv "
                      "--noise 1000 --format tsv --no-error"),
               0);
    EXPECT_CONTAINS(out, "\t3\n2026");
    EXPECT_CONTAINS(out, "\tsub\t");
    EXPECT(!strstr(strstr(out, "\tmul\t"), "\t3\n"));
    EXPECT_INT(cupola("bench --goals calls.tsv --device cpu --seconds 0.001 --part 2/3"), 0);
    EXPECT_CONTAINS(out, "mul");
    EXPECT(!strstr(out, "add") && !strstr(out, "sub") && !strstr(out, "times"));
    EXPECT_INT(cupola("bench --goals calls.tsv --device cpu --part 4/3"), 2);
    EXPECT_INT(cupola("bench --op add --device cpu --rest 1"), 2);
}

TEST(bench_shapes_that_repeat)
{
    EXPECT_INT(cupola("bench --op add --device cpu --seconds 0.001 --shapes '2*9x7'"), 0);
    EXPECT_INT(cupola("bench --op concat --device cpu --seconds 0.001 "
                      "--shapes '2*(5x2 2*5x3) 5x7'"),
               0);
    static const char *const bad[] = {"3*9x7", "2*(9x7", "2*9x7)", "0*9x7", "2*( )", "99999*2",
                                      "2*(2*(2*(2*(2*(9x7)))))"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char words[200];
        snprintf(words, sizeof words, "bench --op add --device cpu --shapes '%s'", bad[i]);
        EXPECT_INT(cupola(words), 2);
        EXPECT_CONTAINS(out, "do not name its inputs");
    }
}

TEST(bench_files_that_are_none)
{
    put("none.tsv", "a\tb\nc\td\n");
    put("zero.tsv", HEAD ROW("0", "", "", ""));
    put("other.tsv", HEAD "2026-01-01\tX\tsub\t8 8\tf32\tvector\t7\n");
    put("add.tsv", HEAD ROW("10", "", "", ""));
    EXPECT_INT(cupola("bench --from nothing.tsv"), 5);
    EXPECT_INT(cupola("bench --from none.tsv"), 5);
    EXPECT_INT(cupola("bench --from zero.tsv"), 5);
    EXPECT_CONTAINS(out, "line 2");
    EXPECT_INT(cupola("bench --compare add.tsv other.tsv"), 1);
    EXPECT_CONTAINS(out, "no call in common");
    EXPECT_INT(cupola("bench --compare add.tsv"), 2);
}

TEST(bench_formats)
{
    const char *run = "bench --op sum --device cpu --seconds 0.001 --shapes 64x32 --attributes "
                      "'axes=0,1 keep=1' --format %s";
    char words[200];
    snprintf(words, sizeof words, run, "csv >a.csv");
    EXPECT_INT(cupola(words), 0);
    EXPECT_INT(cupola("bench --from a.csv"), 0);
    EXPECT_CONTAINS(out, "axes=0,1 keep=1");
    EXPECT_INT(cupola("bench --from a.csv --format tsv >b.tsv; cmp a.csv b.tsv"), 1);
    EXPECT_INT(cupola("bench --from b.tsv --format csv"), 0);
    EXPECT_CONTAINS(out, "\"axes=0,1 keep=1\"");
    snprintf(words, sizeof words, run, "html");
    EXPECT_INT(cupola(words), 0);
    EXPECT_CONTAINS(out, "<!doctype html>");
    EXPECT_CONTAINS(out, "Bandwidth against size");
    EXPECT_CONTAINS(out, "</html>");
    EXPECT_INT(cupola("bench --op exp --device cpu --seconds 0.001 --no-error --shapes '8;4x4'"),
               0);
    EXPECT_CONTAINS(out, "f32   8 ");
    EXPECT_CONTAINS(out, "f32   4x4 ");
    EXPECT_INT(cupola("bench --op copy --device cpu --seconds 0.001 --transposed --shapes 9x7"), 0);
    EXPECT_CONTAINS(out, "transposed=1");
    EXPECT_INT(cupola("bench --op conv2d --device cpu --seconds 0.001 --channels-last "
                      "--shapes '1x8x9x7 4x8x3x3 -'"), 0);
    EXPECT_CONTAINS(out, "channels_last=1");
    EXPECT_INT(cupola("bench --op sum --device cpu --shapes 8 --attributes 'axis=0'"), 2);
    EXPECT_CONTAINS(out, "ints axes");
    EXPECT_INT(cupola("bench --op sum --device cpu --shapes 8 --attributes 'axes=,'"), 2);
    EXPECT_INT(cupola("bench --op sum --device cpu --attributes 'axes=0'"), 2);
}

TEST(bench_error_beside_the_time)
{
    EXPECT_INT(cupola("bench --op softmax --device cpu --dtype bf16 --seconds 0.001 --json "
                      "--shapes 300x700"),
               0);
    const char *at = strstr(out, "\"error\": ");
    EXPECT(at != NULL);
    double error = 99;
    sscanf(at + 9, "%lf", &error);
    EXPECT(error > 0 && error < 4);
    EXPECT_INT(cupola("bench --op softmax --device cpu --no-error --seconds 0.001 --json "
                      "--shapes 300x700"),
               0);
    EXPECT_CONTAINS(out, "\"error\": null");
}

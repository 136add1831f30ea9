/* tools/gpu and tools/tree, with programs in place of the command and the tests. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "../test.h"

static const char command[] =
    "case \"$1 $2\" in\n"
    "'info --json') echo '\"gpus\": ['\n"
    "  echo '{\"index\": 0, \"name\": \"Card A\", \"usable\": true},'\n"
    "  echo '{\"index\": 1, \"name\": \"Card B\", \"usable\": true}'; echo '\"libraries\"' ;;\n"
    "'check --help') printf '  %s N   x\\n' --random --graphs --precision ;;\n"
    "check*) case \"$*\" in\n"
    "  *'--precision high'*) echo '3 calls, 1 failed, on x'; exit 1 ;;\n"
    "  *random*) echo '7 calls, 2 failed, on x'; exit 1 ;;\n"
    "  *graphs*) kill -9 $$ ;;\n"
    "  *) echo '50 calls, 0 failed, on x, in 3 s' ;; esac ;;\n"
    "'bench --compare') echo '{\"change\": 0.05,'; echo '\"change\": -0.02, \"change\": 0.031'\n"
    "  exit 1 ;;\n"
    "esac\n";
static const char failing[] = "echo 'FAILED x: y'; echo '12 passed, 3 failed, 0 skipped'; exit 1\n";
static const char passing[] = "echo '15 passed, 0 failed, 0 skipped'\n";

static void program(const char *folder, const char *name, const char *text)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    if (!file || fprintf(file, "#!/bin/sh\n%s", text) < 0 || fclose(file) || chmod(path, 0755))
        test_fail(__FILE__, __LINE__, "%s cannot be written", path);
}

/* A build folder with these programs, of which the tools are the real ones. */
static const char *begin(const char *tests)
{
    static char records[4400];
    char out[400];
    const char *folder = test_folder();
    program(folder, "cupola", command);
    program(folder, "test", tests);
    EXPECT_INT(test_command(out, sizeof out, "ln -s \"$(realpath %s/tools)\" %s/tools",
                            test_build(), folder),
               0);
    snprintf(records, sizeof records, "%s/checked.tsv", folder);
    setenv("RECORDS", records, 1);
    return folder;
}

TEST(gpu_script_goes_on_after_what_fails_and_counts_it)
{
    char out[8000];
    const char *folder = begin(failing);
    EXPECT_INT(test_command(out, sizeof out, "GOALS=x DEVICE=cuda:1 SEED=5 tools/gpu %s", folder),
               1);
    EXPECT_CONTAINS(out, "\n110 calls, 3 wrong; tests: 12 passed, 3 failed; 1 parts broken off;");
    EXPECT_CONTAINS(out, "\ngraphs: FAILED with 137");
    EXPECT_INT(test_command(out, sizeof out, "cut -f 4,6- \"$RECORDS\""), 0);
    EXPECT_TEXT(out, "card\tcalls\twrong\tpassed\tfailed\tbroken\tseed\tbehind\n"
                     "Card B\t110\t3\t12\t3\t1\t5\t2\n");
    EXPECT_INT(test_command(out, sizeof out, "tools/lint"), 0);
    EXPECT_CONTAINS(out, "of this src/ 3 calls were wrong, 3 tests failed and 1 parts broke off");
}

TEST(gpu_script_with_words_writes_no_line)
{
    char out[8000];
    const char *folder = begin(passing);
    EXPECT_INT(test_command(out, sizeof out, "tools/gpu %s gpu_pool", folder), 0);
    EXPECT_CONTAINS(out, "0 calls, 0 wrong; tests: 15 passed, 0 failed; 0 parts broken off");
    EXPECT_CONTAINS(out, "no line in");
    EXPECT_INT(test_command(out, sizeof out, "test -e \"$RECORDS\""), 1);
}

/* Four calls, each of which one of two workers measures; an error is infinite, one is not known. */
static const char goals[] =
    "row() { printf '2026-01-01\\t%s\\t8 8\\tf32\\taxis=1\\t%s\\t%s\\t%s\\n' \"$@\"; }\n"
    "printf 'date\\top\\tshapes\\tdtype\\tattributes\\tours_us\\terror\\ttimed\\n'\n"
    "case \"$*\" in\n"
    "*'--part 1/2'*) row add 9 0.5 1; row exp 9 inf 1 ;;\n"
    "*'--part 2/2'*) row sum 9 2.5 1; exec sleep 60 ;;\n"
    "*--no-error*--against*) row add 1 '' 3; row sum 2 '' 1; row exp 3 '' 1; row log 4 '' 2 ;;\n"
    "esac\n";

TEST(gpu_script_of_goals_joins_times_and_errors)
{
    char out[8000];
    const char *folder = test_folder();
    program(folder, "cupola", goals);
    EXPECT_INT(test_command(out, sizeof out,
                            "WORKERS=2 PATIENCE=0.5 tools/goals %s %s/out.tsv && "
                            "cut -f 2,6- %s/out.tsv | tr '\\t' ' '",
                            folder, folder, folder),
               0);
    EXPECT_CONTAINS(out, "4 calls timed, 2 of them again; 3 errors known, the largest inf");
    EXPECT_CONTAINS(out, "timed\nadd 1 0.5 3\nsum 2 2.5 1\nexp 3 inf 1\nlog 4  2\n");
}

TEST(gpu_script_ends_in_the_time_that_it_has)
{
    char out[8000];
    const char *folder = begin("echo '1 passed, 0 failed, 0 skipped'; exec sleep 60\n");
    EXPECT_INT(test_command(out, sizeof out, "GOALS=x SEED=5 TOTAL=2 tools/gpu %s", folder), 1);
    EXPECT_CONTAINS(out, "which is all it had");
    EXPECT_CONTAINS(out, "tests: 1 passed, 0 failed; 2 parts broken off;");
    EXPECT_INT(test_command(out, sizeof out, "tail -n 1 \"$RECORDS\" | cut -f 6-10"), 0);
    EXPECT_TEXT(out, "110\t3\t1\t0\t2\n");
}

TEST(lint_says_that_another_tree_was_checked)
{
    char out[8000];
    begin(passing);
    EXPECT_INT(test_command(out, sizeof out,
                            "printf 'date\\ttree\\n2026-01-01\\t0123456789abcdef\\n' >"
                            "\"$RECORDS\"; tools/lint"),
               0);
    EXPECT_CONTAINS(out, "warning: no card has checked this src/");
    EXPECT_CONTAINS(out, "is of 0123456789ab, 2026-01-01");
}

TEST(tree_is_the_id_that_git_gives)
{
    char out[2000];
    if (test_command(out, sizeof out, "git --version"))
        test_skip("git is not installed");
    const char *folder = test_folder();
    int code = test_command(
        out, sizeof out,
        "tree=$(realpath %s/tools/tree) && cd %s && mkdir -p a/b a.c empty && echo x >a/b/y && "
        "echo z >a.c/z && chmod +x a/b/y && : >a-b && : >a0 && "
        "for n in 55 56 63 64 65 119 70000; do head -c $n /dev/zero >s$n; done && "
        "\"$tree\" . >../tree.id && git init -q . && git add -A && "
        "test \"$(git write-tree)\" = \"$(cat ../tree.id)\"",
        test_build(), folder);
    if (code)
        test_fail(__FILE__, __LINE__, "%s", out);
}

/* A compute-sanitizer that finds something with one of its tools. */
static const char sanitizer[] = "case \"$*\" in *racecheck*graphs*)\n"
                                "  echo '========= RACECHECK SUMMARY: 2 hazards'; exit 86 ;;\n"
                                "*synccheck*conv2d*) exec sleep 60 ;;\n"
                                "esac\n"
                                "echo \"card $CUDA_VISIBLE_DEVICES\"\n"
                                "test \"$CUP_MAPPING\" = off\n";

TEST(sanitize_script_tells_which_tool_found_something)
{
    char out[30000];
    const char *folder = begin(passing);
    program(folder, "compute-sanitizer", sanitizer);
    EXPECT_INT(test_command(out, sizeof out,
                            "export PATH=%s:$PATH RECORDS=%s/said LIMIT=1 CALLS=30 SHARE=20; "
                            "tools/sanitize %s; code=$?; cat $RECORDS; exit $code",
                            folder, folder, folder),
               1);
    EXPECT_CONTAINS(out, "memcheck matrix-products: 30 calls, clean");
    EXPECT_CONTAINS(out, "memcheck attention-in-one-pass: 4 calls, clean");
    EXPECT_CONTAINS(out, "racecheck graphs: 0 calls, FAILED: ========= RACECHECK SUMMARY: 2 haz");
    EXPECT_CONTAINS(out, "synccheck convolutions: 0 calls, FAILED: ended after 1 s");
    EXPECT_CONTAINS(out, "synccheck graphs: 4 calls, clean");
    EXPECT_CONTAINS(out, "\tmemcheck\tmatrix-products\t30\t0\tclean\n");
    EXPECT_CONTAINS(out, "\tsynccheck\tconvolutions\t0\t2\tFAILED");
    EXPECT_INT(test_command(out, sizeof out,
                            "PATH=%s:$PATH RECORDS=%s/other TOOLS=initcheck TOTAL=0 CALLS=30 "
                            "tools/sanitize %s",
                            folder, folder, folder),
               1);
    EXPECT_CONTAINS(out, "initcheck pooling: 0 calls, not begun");
    EXPECT_INT(test_command(out, sizeof out,
                            "PATH=%s:$PATH RECORDS=%s/other TOOLS=initcheck CALLS=30 "
                            "tools/sanitize %s",
                            folder, folder, folder),
               0);
    EXPECT_INT(test_command(out, sizeof out,
                            "sort %s/sanitize/families | tr ' ' '\\n' | grep -v '^[a-z].*-' | "
                            "grep -c -x -e adamw -e attention_grad -e linear -e eye",
                            folder),
               0);
    EXPECT_TEXT(out, "4\n");
}

TEST(sanitize_script_deals_calls_out_and_has_kernels_made_ahead)
{
    char out[30000];
    const char *folder = begin(passing);
    program(folder, "compute-sanitizer", sanitizer);
    program(folder, "check_kernels", "echo \"$@\"; echo kernels are ready\n");
    EXPECT_INT(test_command(out, sizeof out,
                            "cd %s && mkdir bench && mv check_kernels bench && cd - >/dev/null; "
                            "AHEAD=sm_90a SEED=5 CALLS=30 SHARE=20 FAMILIES=pooling "
                            "tools/sanitize %s; grep pool %s/sanitize/ahead",
                            folder, folder, folder),
               0);
    EXPECT_CONTAINS(out, "2 shares have their kernels");
    EXPECT_CONTAINS(out, "sm_90a 5 20 10 max_pool2d ");
    EXPECT_CONTAINS(out, "sm_90a 6 10 5 max_pool2d ");
    EXPECT_INT(test_command(out, sizeof out,
                            "export PATH=%s:$PATH RECORDS=%s/said GPUS='5 7' COMPILED=1 SHARE=20; "
                            "CALLS=30 FAMILIES='pooling small-matrices' TOOLS=memcheck "
                            "tools/sanitize %s; sort -u %s/sanitize/memcheck.pooling.*.log",
                            folder, folder, folder, folder),
               0);
    EXPECT_CONTAINS(out, "memcheck pooling: 30 calls, clean");
    EXPECT_CONTAINS(out, "memcheck small-matrices: 30 calls, clean");
    EXPECT_CONTAINS(out, "card 5\n");
    EXPECT_CONTAINS(out, "card 7\n");
}

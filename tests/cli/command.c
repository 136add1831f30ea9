/* The command as a whole: verbs, words, exit codes, streams. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli/common/help.h"
#include "test.h"

static char out[400000];

/* Runs the command with stdout and stderr together in `out`; returns the exit code. */
static int cupola(const char *words)
{
    return test_command(out, sizeof out, "%s/cupola %s", test_build(), words);
}

TEST(command_help)
{
    EXPECT_INT(cupola("help"), 0);
    EXPECT_CONTAINS(out, "Exit codes:");
    EXPECT_CONTAINS(out, "CUP_LOG");
    EXPECT_INT(cupola("--help 2>/dev/null"), 0);
    EXPECT_CONTAINS(out, "Usage: cupola VERB");
    EXPECT_INT(cupola(">/dev/null"), 2);
    EXPECT_CONTAINS(out, "Usage: cupola VERB");
    EXPECT_INT(cupola("--version"), 0);
    EXPECT_CONTAINS(out, "cupola 0.");
    for (int i = 0; verbs[i]; i++) {
        char words[100];
        snprintf(words, sizeof words, "%s --help", verbs[i]->name);
        EXPECT_INT(cupola(words), 0);
        EXPECT_CONTAINS(out, "--json");
    }
}

TEST(command_usage_errors)
{
    EXPECT_INT(cupola("inof"), 2);
    EXPECT_CONTAINS(out, "did you mean info?");
    EXPECT_INT(cupola("ops --jsno"), 2);
    EXPECT_CONTAINS(out, "did you mean --json?");
    EXPECT_INT(cupola("ops gleu"), 2);
    EXPECT_CONTAINS(out, "did you mean gelu?");
    EXPECT_INT(cupola("help nothing-like-it"), 2);
    EXPECT(!strstr(out, "did you mean"));
    EXPECT_INT(cupola("info there"), 2);
    EXPECT_INT(test_command(out, sizeof out, "CUP_THREADS=many %s/cupola info", test_build()), 2);
    EXPECT_CONTAINS(out, "CUP_THREADS=many");
}

static int info_with(const char *environment)
{
    return test_command(out, sizeof out, "%s %s/cupola info", environment, test_build());
}

TEST(command_info_judges_the_environment)
{
    EXPECT_INT(info_with("CUP_DEVICE=cuda:3 CUP_PRECISION=high CUP_IMPL=add=vector"), 0);
    EXPECT_INT(info_with("CUP_DEVISE=cpu"), 2);
    EXPECT_CONTAINS(out, "did you mean CUP_DEVICE?");
    EXPECT_INT(info_with("CUP_DEVICE=cuda:"), 2);
    EXPECT_CONTAINS(out, "choose one of auto|cpu|cuda|cuda:N");
    EXPECT_INT(info_with("CUP_CACHE_MAX=-1"), 2);
    EXPECT_CONTAINS(out, "CUP_CACHE_MAX=-1: give a whole number from 0 to ");
    EXPECT_INT(info_with("CUP_KERNELS=/nowhere"), 2);
    EXPECT_CONTAINS(out, "there is no such folder");
    EXPECT_INT(info_with("CUP_IMPL=gelu=fast"), 2);
    EXPECT_CONTAINS(out, "gelu has no implementation \"fast\"");
    /* What is wrong does not keep the rest from being told. */
    EXPECT_CONTAINS(out, "cache       ");
    EXPECT_INT(info_with("CUP_CACHE=/dev/null/x"), 0);
    EXPECT_CONTAINS(out, "kernels cannot be kept");
}

TEST(command_json)
{
    setenv("CUP_CACHE", test_folder(), 1);
    static const char *const lines[] = {"info",
                                        "ops",
                                        "ops gelu",
                                        "check --op gelu --device cpu",
                                        "bench --op add --device cpu --seconds 0.001 "
                                        "--shapes '8 8'",
                                        "bench --from bench/records.tsv",
                                        "kernels list",
                                        "kernels path",
                                        "kernels clear",
                                        "tune --merge src/dispatch/tuning.tsv --to "
                                        "$CUP_CACHE/tuning"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char words[100];
        snprintf(words, sizeof words, "%s --json", lines[i]);
        EXPECT_INT(cupola(words), 0);
        cup__error error = {0};
        cup__json json;
        EXPECT_INT(cup__json_parse(&error, words, out, strlen(out), &json), CUP_OK);
        int64_t schema = 0;
        EXPECT_INT(cup__json_get_integer(&error, &json, json.root, "schema", 1, 1, &schema),
                   CUP_OK);
        cup__json_free(&json);
    }
}

TEST(command_check_and_bench)
{
    EXPECT_INT(cupola("check --op add gelu --device cpu"), 0);
    EXPECT_CONTAINS(out, "ok     add              vector");
    EXPECT_CONTAINS(out, " 0 failed, on cpu");
    EXPECT_INT(cupola("bench --op add --shapes '64x64 64x64' --device cpu --seconds 0.001"), 0);
    EXPECT_CONTAINS(out, "64x64 64x64");
    EXPECT_INT(cupola("bench --shapes 3"), 2);
    EXPECT_INT(cupola("bench --op add --shapes 3x --device cpu"), 2);
    EXPECT_INT(cupola("check --op add --device nothing"), 2);
    EXPECT_INT(cupola("check --op add --precision high"), 2);
    EXPECT_CONTAINS(out, "--precision goes with --random or --repeat");
    EXPECT_INT(cupola("check --random 5 --precision low"), 2);
    EXPECT_CONTAINS(out, "use highest, high or medium");
    EXPECT_INT(cupola("check --random 20 --op matmul --device cpu --precision high"), 0);
    EXPECT_INT(cupola("check --op add --device cuda:4095"), 3);
}

TEST_LIMITED(command_kernels, 120)
{
    setenv("CUP_CACHE", test_folder(), 1);
    EXPECT_INT(cupola("kernels path"), 0);
    EXPECT_CONTAINS(out, getenv("CUP_CACHE"));
    EXPECT_INT(cupola("kernels list"), 0);
    EXPECT_CONTAINS(out, "0 kernels");
    EXPECT_INT(cupola("kernels"), 2);
    EXPECT_INT(cupola("kernels lsit"), 2);
    EXPECT_INT(cupola("kernels build --op nothing --arch sm_90a"), 2);
    EXPECT_INT(test_command(out, sizeof out,
                            "CUP_LIBNVRTC=/nowhere %s/cupola kernels build "
                            "--arch sm_90a --op neg",
                            test_build()),
               2);
    EXPECT_INT(test_command(out, sizeof out,
                            "CUP_LIBNVRTC=off %s/cupola kernels build --arch sm_90a --op neg",
                            test_build()),
               3);
    int code = cupola("kernels build --arch sm_90a --op full --json 2>/dev/null");
    if (code == 3)
        test_skip("there is no NVRTC");
    EXPECT_INT(code, 0);
    EXPECT_CONTAINS(out, "\"failed\": 0");
    EXPECT_INT(cupola("kernels list"), 0);
    EXPECT_CONTAINS(out, "full.cu");
    EXPECT_INT(cupola("kernels clear"), 0);
    EXPECT_INT(cupola("kernels list"), 0);
    EXPECT_CONTAINS(out, "0 kernels");
    setenv("CUP_CACHE", "/dev/null", 1);
    EXPECT_INT(cupola("kernels list"), 5);
    EXPECT_INT(cupola("kernels build --arch sm_90a --op full"), 5);
    EXPECT_CONTAINS(out, "compiled but not kept");
    setenv("CUP_CACHE", "off", 1);
    EXPECT_INT(cupola("kernels path"), 1);
}

/* A pack beside an installed program is found without being named. */
TEST_LIMITED(command_kernels_installed, 120)
{
    const char *folder = test_folder();
    setenv("CUP_CACHE", "off", 1);
    EXPECT_INT(test_command(out, sizeof out,
                            "cd %s && mkdir -p bin share/cupola && cp \"$OLDPWD/%s/cupola\" bin/",
                            folder, test_build()),
               0);
    int code = test_command(out, sizeof out,
                            "%s/bin/cupola kernels build --arch sm_90a --op full --pack "
                            "%s/share/cupola/kernels.pack",
                            folder, folder);
    if (code == 3)
        test_skip("there is no NVRTC");
    EXPECT_INT(code, 0);
    EXPECT_INT(test_command(out, sizeof out,
                            "CUP_LOG=info PATH=%s/bin:$PATH cupola kernels build --arch sm_90a "
                            "--op full",
                            folder),
               0);
    EXPECT_CONTAINS(out, "share/cupola/kernels.pack");
    EXPECT(!strstr(out, "compiled full.cu"));
    EXPECT_INT(cupola("kernels build --common --op full --arch sm_90a"), 2);
}

/* Nothing runs on a card that is not there, which may be asked for times. */
TEST(command_plan_logs_what_it_would_launch)
{
    static const char *const words[] = {"dispatch", "launch", "time", "source", "sass"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        EXPECT_INT(test_command(out, sizeof out,
                                "CUP_LOG=%s '%s/cupola' plan --preset char --card h200 2>&1 | "
                                "sed -n '/qkv_attention/p;/MFU/p' | tail -n 30",
                                words[i], test_build()),
                   0);
        EXPECT_CONTAINS(out, "qkv_attention");
        EXPECT_CONTAINS(out, "MFU");
    }
}

/* Of two options with one name the second could not be given. */
TEST(command_options_stand_once)
{
    for (int i = 0; verbs[i]; i++) {
        EXPECT_INT(test_command(out, sizeof out,
                                "'%s/cupola' %s --help | grep -oE '^  --[a-z0-9-]+' | sort | "
                                "uniq -d",
                                test_build(), verbs[i]->name),
                   0);
        EXPECT_TEXT(out, "");
    }
    EXPECT_INT(cupola("train --color=always --data t.txt --steps 0"), 2);
    EXPECT_CONTAINS(out, "--steps 0: give");
}

TEST(command_colors)
{
    EXPECT_INT(cupola("ops gelu"), 0);
    EXPECT(!strchr(out, '\033'));
    EXPECT_INT(cupola("ops gelu --color=always"), 0);
    EXPECT(strchr(out, '\033'));
}

TEST(command_says_when_stdout_is_full)
{
    EXPECT_INT(cupola("ops >/dev/full"), 5);
    EXPECT_CONTAINS(out, "stdout could not be written");
    /* A reader that leaves early is not worth a word. */
    EXPECT_INT(cupola("ops | true"), 0);
    EXPECT_TEXT(out, "");
}

TEST(command_info_is_fast)
{
    EXPECT_INT(test_command(out, sizeof out,
                            "for i in 1 2 3 4 5; do s=$(date +%%s%%N); "
                            "CUP_DEVICE=cpu %s/cupola info >/dev/null; "
                            "echo $(( ($(date +%%s%%N) - s) / 1000000 )); done | sort -n",
                            test_build()),
               0);
    /* The promise is 50 ms; a busy machine takes longer to start two processes, so the best of
     * five counts. */
    EXPECT(atoi(out) < 500);
}

TEST(man_pages_are_right)
{
    if (test_command(out, sizeof out, "command -v mandoc"))
        test_skip("mandoc is not installed");
    const char *folder = test_folder();
    EXPECT_INT(test_command(out, sizeof out, "%s/cupola write-pages '%s'", test_build(), folder),
               0);
    test_command(out, sizeof out,
                 "mandoc -Tlint '%s'/man/*.1 | grep -v 'referenced manual not found'", folder);
    EXPECT_TEXT(out, "");
    EXPECT_INT(test_command(out, sizeof out, "diff -r '%s/man' docs/man", folder), 0);
}

TEST(page_of_gradients_is_right)
{
    const char *folder = test_folder();
    EXPECT_INT(test_command(out, sizeof out, "%s/cupola write-pages '%s'", test_build(), folder),
               0);
    EXPECT_INT(test_command(out, sizeof out, "diff '%s/GRADIENTS.md' docs/GRADIENTS.md", folder),
               0);
}

TEST(completions_are_right)
{
    const char *folder = test_folder();
    EXPECT_INT(test_command(out, sizeof out, "%s/cupola write-pages '%s'", test_build(), folder),
               0);
    if (test_command(out, sizeof out, "command -v bash"))
        test_skip("bash is not installed");
    EXPECT_INT(
        test_command(out, sizeof out,
                     "bash -c '. \"%s/completion/cupola.bash\"; COMP_WORDS=(cupola ops --j); "
                     "COMP_CWORD=2; _cupola; echo \"${COMPREPLY[@]}\"'",
                     folder),
        0);
    EXPECT_TEXT(out, "--json\n");
    EXPECT_INT(
        test_command(out, sizeof out, "! command -v zsh || zsh -n '%s/completion/_cupola'", folder),
        0);
}

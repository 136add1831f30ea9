/* What a low limit, a closed or broken stream, or a name with odd characters makes of a run. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/blas.h"
#include "base/file.h"
#include "test.h"

static char out[100000];

/* Runs the command in the test's folder, with the shell's words before it. */
static int cupola(const char *before, const char *words)
{
    return test_command(out, sizeof out, "cupola=$(realpath %s/cupola); cd '%s'; %s $cupola %s",
                        test_build(), getenv("FOLDER"), before, words);
}

static const char *begin(void)
{
    const char *folder = test_folder();
    setenv("FOLDER", folder, 1);
    setenv("CUP_CACHE", folder, 1);
    setenv("CUP_DEVICE", "cpu", 1);
    test_command(out, sizeof out, "cd '%s' && seq 3000 >t.txt", folder);
    return folder;
}

#define SMALL "train --data t.txt --steps 2 --layers 1 --width 16 --heads 1 --context 16 --out run"

TEST(limits_address_space_does_without_blas)
{
    begin();
    /* Address sanitizers reserve terabytes. */
    if (cupola("ulimit -v 2000000 &&", "--version"))
        test_skip("this build does not run in 2 GB of addresses");
    EXPECT_INT(cupola("ulimit -v 2000000 && CUP_BLAS=libopenblas.so.0 timeout 50",
                      "check --op matmul --device cpu"),
               0);
    EXPECT_INT(cupola("ulimit -v 2000000 && CUP_BLAS=libopenblas.so.0 timeout 50", "info"), 0);
    EXPECT_CONTAINS(out, "ulimit -v limits");
}

/* A want of memory says nothing of the calls: it is told, with its own exit code, or there is
 * enough. */
TEST(limits_address_space_ends_a_check)
{
    static const char *const kinds[] = {"--op matmul", "--graphs 10", "--gradients 3",
                                        "--random 30 --seed 3"};
    bool ended = false;
    begin();
    if (cupola("ulimit -v 150000 &&", "--version"))
        test_skip("this build does not run in 150 MB of addresses");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char words[100];
        snprintf(words, sizeof words, "check --device cpu %s", kinds[i]);
        int code = cupola("ulimit -v 150000 && CUP_BLAS=off", words);
        if ((code && code != 4) || strstr(out, "FAILED"))
            test_fail(__FILE__, __LINE__, "%s: code %d: %.1000s", kinds[i], code, out);
        if (code == 4)
            EXPECT_CONTAINS(out, "out of host memory");
        ended |= code == 4;
    }
    EXPECT(ended);
}

/* Where no thread may be started, a library must not be left to start one. */
TEST(limits_no_process_more)
{
    pid_t child = fork();
    if (child == 0) {
        struct rlimit one = {1, 1};
        setenv("CUP_BLAS", "libopenblas.so.0", 1);
        signal(SIGINT, SIG_DFL);
        if (geteuid() == 0 && (setgid(65534) || setuid(65534)))
            _exit(1);
        if (setrlimit(RLIMIT_NPROC, &one))
            _exit(1);
        _exit(cup__blas_get()->text[0] ? 0 : 2);
    }
    int status = -1;
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status));
    EXPECT_INT(WEXITSTATUS(status), 0);
}

TEST(limits_file_size_is_a_failure)
{
    begin();
    EXPECT_INT(cupola("ulimit -f 1;", SMALL), 5);
    EXPECT_CONTAINS(out, "ulimit -f");
    EXPECT_INT(cupola("ls -A run | grep -c tmp;", "--version"), 0);
    EXPECT(out[0] == '0');
    EXPECT_INT(cupola("ulimit -f 1;", "ops >o"), 5);
    EXPECT_CONTAINS(out, "stdout could not be written: File too large");
}

TEST(limits_reader_leaves_early)
{
    begin();
    EXPECT_INT(cupola("", SMALL " --sample 0"), 0);
    EXPECT_INT(cupola("{", "generate --from run --tokens 5000 --prompt 1; echo $? >&2; } | "
                           "head -c 1"),
               0);
    EXPECT_TEXT(out, "1141\n");
}

TEST(limits_closed_streams)
{
    const char *folder = begin();
    char path[4400];
    EXPECT_INT(cupola("", "ops >&-"), 5);
    EXPECT_CONTAINS(out, "stdout could not be written: Bad file descriptor");
    EXPECT_INT(cupola("", SMALL " --json >&- 2>&- <&-"), 5);
    snprintf(path, sizeof path, "%s/run/losses.csv", folder);
    char *text = NULL;
    EXPECT_INT(cup__file_read(NULL, path, 1 << 20, &text, NULL), CUP_OK);
    EXPECT(!strstr(text, "schema") && !strstr(text, "device"));
    free(text);
    EXPECT_INT(cupola("", "generate --from run --tokens 5 <&-"), 5);
}

TEST(limits_names_are_shown)
{
    begin();
    EXPECT_INT(cupola("", "train --data $(printf 'a\\033[31m\\r\\302\\233b\\377') --out run"), 5);
    EXPECT_CONTAINS(out, "a\\x1b[31m\\r\\u009bb\\xff cannot be");
    EXPECT_INT(cupola("", "ops \"$(printf 'g\\033elu\\nx')\""), 2);
    EXPECT_CONTAINS(out, "g\\x1belu\\nx");
    EXPECT_INT(cupola("", SMALL "/$(printf '\\033[31mx')"), 0);
    EXPECT_CONTAINS(out, "x: checkpoint");
    EXPECT(!strchr(out, '\033'));
    EXPECT_INT(cupola("", "train --data t.txt --out ''"), 5);
    EXPECT_CONTAINS(out, "\"\" cannot be made");
    EXPECT_INT(cupola("", "bench --from t.txt"), 5);
    EXPECT_INT(cupola("printf 'op\\tours_us\\n\\033[7m\\t5\\n' >r.tsv;", "bench --from r.tsv"), 0);
    EXPECT_CONTAINS(out, "\\x1b[7m");
}

TEST(limits_long_paths_keep_the_reason)
{
    begin();
    EXPECT_INT(cupola("", "train --data $(printf '%5000s' | tr ' ' n) --out run"), 5);
    EXPECT_CONTAINS(out, "nnn ... nnn");
    EXPECT_CONTAINS(out, "cannot be opened: the path is too long");
}

TEST(limits_kernels_that_are_not_ours_stay)
{
    begin();
    EXPECT_INT(cupola("echo foreign >their.cubin; printf 'cupola kernel\\n\\0\\0' >ours.cubin;",
                      "kernels list"),
               0);
    EXPECT_CONTAINS(out, "1 kernels");
    EXPECT_INT(cupola("", "kernels clear --op relu"), 2);
    EXPECT_CONTAINS(out, "--op does nothing with clear");
    EXPECT_INT(cupola("", "kernels list --arch sm_90a"), 2);
    EXPECT_INT(cupola("", "kernels path --threads 3"), 2);
    EXPECT_INT(cupola("", "kernels clear"), 0);
    EXPECT_CONTAINS(out, "1 kernels removed");
    EXPECT_INT(cupola("cat their.cubin; ls ours.cubin;", "--version"), 0);
    EXPECT_CONTAINS(out, "foreign\n");
    EXPECT_CONTAINS(out, "No such file");
}

TEST(limits_merge_takes_its_own_options)
{
    begin();
    EXPECT_INT(cupola("", "tune --merge t.txt --to x --op matmul"), 2);
    EXPECT_CONTAINS(out, "--op does nothing with --merge");
    EXPECT_INT(cupola("", "tune --merge t.txt --to x --dtype f32"), 2);
}

TEST(limits_bad_tuning_line_costs_that_line)
{
    begin();
    EXPECT_INT(cupola("printf 'a\\tb\\tc\\td\\te\\t5\\nnonsense\\n' >r.tsv; CUP_TUNING=r.tsv",
                      "check --op add"),
               0);
    EXPECT_CONTAINS(out, "r.tsv: line 2 is no tuning record");
    EXPECT_CONTAINS(out, "the other lines count");
    EXPECT_INT(cupola("CUP_TUNING=no/such.tsv", "check --op add"), 2);
    EXPECT_INT(cupola("CUP_TUNING=off", "check --op add"), 0);
}

/* Every verb says the same of a wrong variable. */
TEST(limits_environment_of_every_verb)
{
    static const char *const bad[] = {
        "CUP_LOG=loud",     "CUP_DEVICE=tpu",        "CUP_PRECISION=low",   "CUP_THREADS=x",
        "CUP_KERNELS=/no",  "CUP_CACHE_MAX=1x",      "CUP_KERNEL_PACK=/no", "CUP_BLAS=/no",
        "CUP_LIBCUDA=/no",  "CUP_LIBNVRTC=/no",      "CUP_LIBCUBLASLT=/no", "CUP_IMPL=a=b",
        "CUP_MAPPING=on",   "CUP_TUNING=/no/no.tsv", "CUP_LIBZ=/no",       "CUP_LIBZSTD=/no",
        "CUP_LIBCUDNN=/no", "CUP_LIBCUFFT=/no", "CUP_LIBCUSOLVER=/no", "CUP_NOTHING=1"};
    static const char *const verb[] = {"train --data t.txt", "generate", "info", "ops",
                                       "check --op add",     "bench --op add --seconds 0.001",
                                       "tokenize --data t.txt",
                                       "tune",               "kernels list"};
    begin();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *words = verb[i % (sizeof verb / sizeof *verb)];
        for (size_t k = 0; k < 2; k++, words = k ? "train --data t.txt" : words)
            if (cupola(bad[i], words) != 2)
                test_fail(__FILE__, __LINE__, "%s cupola %s: %s", bad[i], words, out);
    }
}

/* What would be taken and do nothing, and files that hold nothing, are told. */
TEST(limits_nothing_is_passed_over)
{
    static const struct {
        const char *words;
        int code;
    } cases[] = {{"bench --compare a b --op add", 2},
                 {"bench --from t.txt --seconds 1", 2},
                 {"bench --noise 3 --op add", 2},
                 {"bench --goals empty", 5},
                 {"bench --op add --shapes '1000000000000000000x9 1' --seconds 0.001", 2},
                 {"tune --op nothing", 2},
                 {"kernels build --arch sm_90a --op full --pack no/p", 5},
                 {"train --resume --out run --preset char", 2},
                 {"train --resume --out run --tokenizer bpe", 2},
                 {"train --resume --out run --vocabulary 300", 2},
                 {"train --data t.txt --crop 3", 2},
                 {"train --data t.txt --flip no", 2},
                 {"train --data t.txt --network net.txt", 2},
                 {"train --data t.txt --label-smoothing 0.1", 2},
                 {"help train more", 2},
                 {"--version more", 2},
                 {"help help", 0},
                 {"train --data t.txt --seed 9223372036854775808", 2}};
    begin();
    EXPECT_INT(cupola("touch empty;", SMALL), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int code = cupola("", cases[i].words);
        bool no_nvrtc = code == 3 && strstr(cases[i].words, "--pack");
        if ((code != cases[i].code && !no_nvrtc) || !out[0])
            test_fail(__FILE__, __LINE__, "%s: %d: %s", cases[i].words, code, out);
    }
    EXPECT_CONTAINS(out, "from 0 to 9223372036854775807");
    EXPECT_INT(cupola("CUP_KERNEL_PACK=t.txt", "info"), 2);
    EXPECT_CONTAINS(out, "no pack of kernels");
    EXPECT_INT(cupola("mkfifo pipe; CUP_TUNING=pipe", "info"), 2);
}

TEST(limits_reals_say_what_is_excluded)
{
    begin();
    EXPECT_INT(cupola("", SMALL " --beta1 1"), 2);
    EXPECT_CONTAINS(out, "from 0 up to but not including 1");
    EXPECT_INT(cupola("", "train --help"), 0);
    EXPECT_CONTAINS(out, "0 to below 1");
}

/* cupola train and cupola generate as commands: signals, kills, files, what they refuse. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "test.h"

#define TINY                                                                                       \
    "--device cpu --threads 1 --layers 1 --heads 2 --width 16 --context 16 --batch 2 "             \
    "--evaluate-every 0 --evaluate-texts 8 --save-every 3"

static char out[200000];

/* The command's absolute path. */
static const char *command(void)
{
    static char path[4200];
    char folder[4096];
    EXPECT(realpath(test_build(), folder) != NULL);
    snprintf(path, sizeof path, "%s/cupola", folder);
    return path;
}

static int cupola(const char *folder, const char *words)
{
    return test_command(out, sizeof out, "cd '%s' && '%s' %s", folder, command(), words);
}

/* A folder with a text to learn from. */
static const char *work_folder(void)
{
    const char *folder = test_folder();
    char path[512], text[4000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "abcd efg\n"[(i * i / 7 + i / 3) % 9];
    snprintf(path, sizeof path, "%s/text.txt", folder);
    EXPECT_INT(cup__file_write(NULL, path, text, sizeof text), CUP_OK);
    return folder;
}

/* losses.csv of a run; to be freed. A kill at the very end of a save leaves it under the name from
 * which it would have been renamed. */
static char *losses(const char *folder, const char *run)
{
    char path[512], *text = NULL;
    snprintf(path, sizeof path, "%s/%s/losses.csv.new", folder, run);
    if (!cup__file_exists(path))
        path[strlen(path) - strlen(".new")] = 0;
    EXPECT_INT(cup__file_read(NULL, path, 1 << 24, &text, NULL), CUP_OK);
    return text;
}

static int64_t step_of(const char *folder, const char *run)
{
    char path[512];
    cup__json json;
    int64_t step = -1;
    snprintf(path, sizeof path, "%s/%s/state.json", folder, run);
    if (cup__json_read(NULL, path, 1 << 20, &json) != CUP_OK)
        return -1;
    const cup__json_node *state = cup__json_find(json.root, "state");
    cup__json_integer(cup__json_find(state, "step"), &step);
    cup__json_free(&json);
    return step;
}

TEST(train_and_generate)
{
    const char *folder = work_folder();
    EXPECT_INT(cupola(folder, "train --data text.txt --out run --steps 4 --sample 20 " TINY), 0);
    EXPECT_CONTAINS(out, "step 0: validation loss");
    EXPECT_CONTAINS(out, "done at step 4 of 4");
    EXPECT_INT(cupola(folder, "train --data text.txt --out run --steps 4 " TINY), 2);
    EXPECT_CONTAINS(out, "--resume goes on with");
    EXPECT_INT(test_command(out, sizeof out, "LC_ALL=C ls '%s/run'", folder), 0);
    EXPECT_TEXT(out, "loss.html\nloss.svg\nlosses.csv\nmetrics.jsonl\nmodel.safetensors\n"
                     "optimizer.safetensors\nstate.json\ntokenizer.json\n");
    static char first[4000];
    EXPECT_INT(cupola(folder, "generate --from run --tokens 60 --seed 5 --prompt 'abc d'"), 0);
    EXPECT(!strncmp(out, "abc d", 5) && strlen(out) == 5 + 60 + 1);
    strcpy(first, out);
    EXPECT_INT(cupola(folder, "generate --from run --tokens 60 --seed 5 --prompt 'abc d'"), 0);
    EXPECT_TEXT(out, first);
    EXPECT_INT(cupola(folder, "generate --from run --tokens 60 --seed 6 --prompt 'abc d'"), 0);
    EXPECT(strcmp(out, first) != 0);
    EXPECT_INT(cupola(folder, "generate --from run --tokens 9 --no-echo --prompt 'abc d' "
                              "--cache-dtype i8"),
               0);
    EXPECT_INT((int64_t)strlen(out), 10);
    EXPECT_INT(cupola(folder, "generate --from run --tokens 9 --temperature 0 < text.txt"), 0);
    EXPECT_INT((int64_t)strlen(out), 10);
    EXPECT_INT(cupola(folder, "generate --from run --tokens 100000 --prompt a | head -c 20"), 0);
}

TEST(train_and_generate_speak_json)
{
    const char *folder = work_folder();
    cup__json json;
    int64_t steps = 0;
    EXPECT_INT(cupola(folder, "train --data text.txt --out run --steps 3 --sample 9 --json " TINY
                              " 2>/dev/null"),
               0);
    EXPECT_INT(cup__json_parse(NULL, "train", out, strlen(out), &json), CUP_OK);
    EXPECT(cup__json_integer(cup__json_find(json.root, "steps"), &steps) && steps == 3);
    EXPECT(cup__json_find(json.root, "finished")->boolean);
    EXPECT(cup__json_number(cup__json_find(json.root, "validation_loss")) > 0);
    EXPECT_INT(cup__json_find(json.root, "sample")->count, 9);
    cup__json_free(&json);
    EXPECT_INT(cupola(folder, "generate --from run --tokens 7 --prompt ab --json"), 0);
    EXPECT_INT(cup__json_parse(NULL, "generate", out, strlen(out), &json), CUP_OK);
    EXPECT_TEXT(cup__json_find(json.root, "prompt")->string, "ab");
    EXPECT_INT(cup__json_find(json.root, "text")->count, 7);
    cup__json_free(&json);
    const char *two = "generate --from run --tokens 9 --texts 2 --prompt 'abc d' --temperature 0";
    EXPECT_INT(cupola(folder, two), 0);
    char *second = strstr(out, "== text 2 of 2\n"), *first = strstr(out, "== text 1 of 2\nabc d");
    EXPECT(first && second && !strncmp(first + 15, second + 15, strlen(second + 15)));
    EXPECT_INT((int64_t)strlen(second), 15 + 5 + 9 + 1);
}

/* Starts a long run in the background, waits for its first checkpoint and sends a signal, twice as
 * timeout(1) does. */
static int signal_run(const char *folder, const char *name)
{
    return test_command(out, sizeof out,
                        "cd '%s'; rm -rf run; '%s' train --data text.txt --out run "
                        "--steps 100000 " TINY " 2>log & pid=$!; "
                        "while [ ! -e run/state.json ]; do sleep 0.02; done; "
                        "kill -%s $pid; kill -%s $pid; wait $pid",
                        folder, command(), name, name);
}

TEST(train_ends_by_a_signal_with_a_checkpoint)
{
    const char *folder = work_folder();
    static const struct {
        const char *name;
        int code;
    } signals[] = {{"INT", 130},
                   {"TERM", 143},
                   {"HUP", 129},
                   {"USR1", 128 + SIGUSR1},
                   {"XCPU", 128 + SIGXCPU}};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        EXPECT_INT(signal_run(folder, signals[i].name), signals[i].code);
        EXPECT_INT(test_command(out, sizeof out, "cat '%s/log'", folder), 0);
        EXPECT_CONTAINS(out, "stopped at step");
        char words[300];
        snprintf(words, sizeof words,
                 "train --data text.txt --out run --resume --device cpu --steps %lld",
                 (long long)step_of(folder, "run") + 2);
        int code = cupola(folder, words);
        if (code)
            test_fail(__FILE__, __LINE__, "%s: %d: %s", words, code, out);
        EXPECT_CONTAINS(out, "resumed  behind step");
    }
}

TEST(train_says_that_a_cpu_is_not_tuned)
{
    const char *folder = work_folder();
    EXPECT_INT(cupola(folder, "train --data text.txt --out run --steps 1 --tune " TINY " 2>&1"), 0);
    EXPECT_CONTAINS(out, "--tune measures on a GPU only");
}

/* Sends SIGTERM in the middle of something long, behind the first checkpoint; a checkpoint must be
 * there soon. */
static void expect_soon(const char *folder, const char *words)
{
    int code =
        test_command(out, sizeof out,
                     "cd '%s'; rm -rf run; '%s' train --data text.txt --out run --device cpu "
                     "--layers 4 --heads 2 --width 64 --context 64 %s 2>log & pid=$!; "
                     "while [ ! -e run/state.json ]; do sleep 0.02; done; sleep 0.5; "
                     "a=$(date +%%s%%N); kill -TERM $pid; wait $pid; code=$?; "
                     "b=$(date +%%s%%N); cat log; echo took $(((b - a) / 1000000)) ms; "
                     "exit $code",
                     folder, command(), words);
    EXPECT_INT(code, 143);
    EXPECT_CONTAINS(out, "stopped at step");
    long ms = strtol(strstr(out, "took ") + 5, NULL, 10);
    /* A second for the run to end; the rest is for a busy disk and machine. */
    if (ms > 3000)
        test_fail(__FILE__, __LINE__, "%s: it took %ld ms: %s", words, ms, out);
}

TEST_LIMITED(train_ends_soon_inside_a_step_or_an_evaluation, 240)
{
    const char *folder = work_folder();
    expect_soon(folder, "--steps 9 --batch 8 --accumulate 100 --evaluate-every 0 "
                        "--evaluate-texts 1 --save-every 1");
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s' && yes 'abcd efg' | head -c 3000000 > text.txt", folder),
               0);
    expect_soon(folder, "--steps 99 --batch 8 --evaluate-every 2 --evaluate-texts 2000 "
                        "--save-every 1");
}

TEST_LIMITED(train_survives_kill_9_at_any_moment, 180)
{
    const char *folder = work_folder();
    EXPECT_INT(cupola(folder, "train --data text.txt --out whole --steps 60 " TINY), 0);
    char *want = losses(folder, "whole");
    int kills = 0;
    for (int round = 0; step_of(folder, "run") < 60; round++) {
        EXPECT(round < 400);
        bool begun = step_of(folder, "run") >= 0;
        double wait = round < 60 ? test_uniform(0.01, 0.2) : 5;
        int code = test_command(out, sizeof out,
                                "cd '%s' && timeout -s KILL %.3f '%s' train --data text.txt "
                                "--out run --steps 60 " TINY " %s",
                                folder, wait, command(), begun ? "--resume" : "");
        if (code != 0 && code != 137)
            test_fail(__FILE__, __LINE__, "round %d: exit code %d: %.2000s", round, code, out);
        kills += code == 137;
    }
    char *got = losses(folder, "run");
    size_t at = 0;
    while (got[at] && got[at] == want[at])
        at++;
    if (got[at] != want[at])
        test_fail(__FILE__, __LINE__, "losses.csv differs at byte %zu: %.120s, expected %.120s", at,
                  got + (at > 60 ? at - 60 : 0), want + (at > 60 ? at - 60 : 0));
    EXPECT(kills > 0);
    cup__free(want);
    cup__free(got);
}

/* What a command line should end with: an exit code and words of the sentence. */
typedef struct refusal {
    const char *words;
    int code;
    const char *part;
} refusal;

static void expect_refusals(const char *folder, const refusal *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int code = cupola(folder, list[i].words);
        if (code != list[i].code)
            test_fail(__FILE__, __LINE__, "cupola %s: exit code %d, expected %d: %.300s",
                      list[i].words, code, list[i].code, out);
        EXPECT_CONTAINS(out, list[i].part);
        EXPECT(!strstr(out, "done at step"));
    }
}

TEST(train_refuses_what_cannot_be)
{
    static const refusal list[] = {
        {"train", 2, "--data is missing"},
        {"train --data text.txt --heads 0", 2, "--heads"},
        {"train --data text.txt --heads -2", 2, "--heads"},
        {"train --data text.txt --heads 99999999999999999999", 2, "--heads"},
        {"train --data text.txt --layers 1e3", 2, "--layers"},
        {"train --data text.txt --width 10 --heads 4", 2, "12 would be"},
        {"train --data text.txt --dropout 1", 2, "--dropout"},
        {"train --data text.txt --lr nan", 2, "--lr"},
        {"train --data text.txt --lr -1", 2, "--lr"},
        {"train --data text.txt --preset none", 2, "--preset"},
        {"train --data text.txt --dtype f64", 2, "--dtype"},
        {"train --data text.txt --steps 0", 2, "--steps"},
        {"train --data text.txt --bacth 3", 2, "did you mean --batch?"},
        {"train --data text.txt --device cuda:4095", 3, "this machine"},
        {"train --data text.txt --device gpu", 2, "gpu"},
        {"train --data text.txt --device cpu --context 100000", 2, "more than the context"},
        {"train --data text.txt --device cpu --positions rotary --heads 2 --width 6", 2,
         "even size"},
        {"train --data text.txt --device cpu --kv-heads 3 --heads 4 --width 16", 2, "share"},
        {"train --data text.txt --device cpu --width 1048576 --layers 4096 --heads 1", 4,
         "parameters need"},
        {"train --data none.txt --device cpu", 5, "none.txt"},
        {"train --data empty.txt --device cpu", 5, "empty.txt"},
        {"train --data one.txt --device cpu", 2, "tokens"},
        {"train --data binary --device cpu", 5, "binary"},
        {"train --data text.txt --device cpu --tokenizer none.json", 5, "none.json"},
        {"train --data text.txt --device cpu --tokenizer text.txt", 5, "text.txt"},
        {"train --data text.txt --device cpu --out text.txt/run", 5, "text.txt"},
        {"train --data text.txt --device cpu --out /proc/run --steps 1 --layers 1", 5, "/proc/run"},
        {"train --data text.txt --device cpu --resume --out none", 5, "none"},
    };
    const char *folder = work_folder();
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s' && : > empty.txt && printf a > one.txt && "
                            "head -c 3000 /bin/sh > binary",
                            folder),
               0);
    expect_refusals(folder, list, sizeof list / sizeof *list);
}

TEST(train_with_limited_memory)
{
    const char *folder = work_folder();
    EXPECT_INT(cupola(folder, "train --data text.txt --out a --steps 2 --deterministic " TINY), 0);
    EXPECT_INT(cupola(folder, "train --data text.txt --out b --steps 2 --memory-limit 99999 " TINY),
               4);
    EXPECT_CONTAINS(out, "out of memory");
    EXPECT_INT(cupola(folder, "train --data text.txt --out c --steps 2 --memory-page m.html " TINY),
               2);
    EXPECT_CONTAINS(out, "--memory-page");
    /* Address sanitizers reserve terabytes. */
    if (test_command(out, sizeof out, "ulimit -v 3000000 && '%s' --version", command()))
        test_skip("this build does not run in 3 GB of addresses");
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s' && ulimit -v 3000000 && '%s' train --data text.txt --out d "
                            "--device cpu --threads 1 --steps 1 --layers 8 --heads 8 --width 512 "
                            "--context 256 --batch 512 2>&1",
                            folder, command()),
               4);
    EXPECT_CONTAINS(out, "the run needs about");
    EXPECT_CONTAINS(out, "ulimit -v allows");
    EXPECT_CONTAINS(out, "take a smaller batch");
}

TEST(train_resume_refuses_what_differs)
{
    static const refusal list[] = {
        {"train --data text.txt --out run --resume --device cpu --layers 2", 2, "layers is not"},
        {"train --data text.txt --out run --resume --device cpu --batch 3", 2, "batch is not"},
        {"train --data text.txt --out run --resume --device cpu --steps 2", 2, "3 steps already"},
        {"train --data other.txt --out run --resume --device cpu", 2, "data are not those"},
        {"train --data unknown.txt --out run --resume --device cpu", 5, "no character"},
    };
    const char *folder = work_folder();
    EXPECT_INT(cupola(folder, "train --data text.txt --out run --steps 3 " TINY), 0);
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s' && (cat text.txt; echo a) > other.txt && "
                            "(cat text.txt; echo XYZ) > unknown.txt",
                            folder),
               0);
    expect_refusals(folder, list, sizeof list / sizeof *list);
    EXPECT_INT(cupola(folder, "train --data text.txt --out run --resume --device cpu"), 0);
    EXPECT_CONTAINS(out, "done at step 3 of 3");
}

/* Whatever a new run would replace is left alone, and stands as it was. */
TEST(train_replaces_nothing_unasked)
{
    static const refusal list[] = {
        {"train --data text.txt --out run --steps 1 " TINY, 2, "--overwrite lets a new run"},
        {"train --data text.txt --out newer --steps 1 " TINY, 5, "later version"},
        {"train --data text.txt --out damaged --steps 1 " TINY, 5, "does not fit its checksum"},
        {"train --data text.txt --out damaged --resume --device cpu", 5, "not fit its checksum"},
        {"generate --from damaged --prompt a", 5, "does not fit its checksum"},
        {"train --data text.txt --out foreign --steps 1 " TINY, 2, "model.safetensors is there"},
        {"train --data text.txt --out picture --steps 1 " TINY, 2, "loss.svg is there"},
        {"train --data text.txt --out run --resume --overwrite --device cpu", 2, "give one"},
    };
    const char *folder = work_folder();
    EXPECT_INT(cupola(folder, "train --data text.txt --out run --steps 2 " TINY), 0);
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s' && cp -r run newer && cp -r run damaged && "
                            "sed -i 's/\"schema\": 2/\"schema\": 99/' newer/state.json && "
                            "sed -i 's/\"beta2\": 0.99/\"beta2\": 0.98/' damaged/state.json && "
                            "mkdir foreign picture && echo weights > foreign/model.safetensors && "
                            "echo picture > picture/loss.svg && "
                            "find run newer damaged foreign picture -type f | LC_ALL=C sort | "
                            "xargs sha256sum > before",
                            folder),
               0);
    expect_refusals(folder, list, sizeof list / sizeof *list);
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s' && find run newer damaged foreign picture -type f | "
                            "LC_ALL=C sort | xargs sha256sum | cmp - before",
                            folder),
               0);
    for (size_t i = 0; i < 4; i++) {
        static const char *const names[] = {"newer", "damaged", "foreign", "run"};
        char words[300];
        snprintf(words, sizeof words, "train --data text.txt --out %s --steps 1 --overwrite " TINY,
                 names[i]);
        EXPECT_INT(cupola(folder, words), 0);
        EXPECT_INT(step_of(folder, names[i]), 1);
    }
}

TEST(train_notes_a_checkpoint_without_a_checksum)
{
    const char *folder = work_folder();
    EXPECT_INT(cupola(folder, "train --data text.txt --out run --steps 2 " TINY), 0);
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s' && sed -i -z -e 's/\"schema\": 2/\"schema\": 1/' "
                            "-e 's/,\\n  \"hash\": \"[0-9a-f]*\"\\n}\\n$/\\n}\\n/' "
                            "run/state.json",
                            folder),
               0);
    EXPECT_INT(cupola(folder, "generate --from run --tokens 2 --prompt a"), 0);
    EXPECT_CONTAINS(out, "run/state.json is of version 0.1.0 and has no checksum");
    EXPECT_INT(cupola(folder, "train --out run --resume --steps 3 --device cpu"), 0);
    EXPECT_CONTAINS(out, "run/state.json is of version 0.1.0 and has no checksum");
    EXPECT_INT(cupola(folder, "generate --from run --tokens 2 --prompt a"), 0);
    EXPECT(!strstr(out, "note:"));
}

TEST(train_two_runs_cannot_share_a_folder)
{
    const char *folder = work_folder();
    int code = test_command(out, sizeof out,
                            "cd '%s'; '%s' train --data text.txt --out run --steps 1000000 " TINY
                            " 2>log & pid=$!; "
                            "while [ ! -e run/.cupola.lock ]; do sleep 0.02; done; "
                            "'%s' train --data text.txt --out run --steps 2 --overwrite " TINY
                            "; code=$?; echo held by $pid; kill -9 $pid; wait $pid; exit $code",
                            folder, command(), command());
    EXPECT_INT(code, 1);
    EXPECT_CONTAINS(out, "run is in use by process ");
    char *pid = strstr(out, "held by ");
    EXPECT(pid != NULL);
    char want[80];
    snprintf(want, sizeof want, "process %ld", strtol(pid + 8, NULL, 10));
    EXPECT_CONTAINS(out, want);
    /* The lock ends with the process, however that ended. */
    EXPECT_INT(cupola(folder, "train --data text.txt --out run --steps 2 --overwrite " TINY), 0);
}

TEST(train_resume_finds_the_text)
{
    const char *folder = work_folder();
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s' && mkdir texts && cp text.txt texts/a && cp text.txt texts/b",
                            folder),
               0);
    EXPECT_INT(cupola(folder, "train --data texts --out texts/run --steps 3 " TINY), 0);
    EXPECT_INT(cupola(folder, "train --out texts/run --resume --device cpu --steps 5"), 0);
    EXPECT_CONTAINS(out, "2 files");
    EXPECT_CONTAINS(out, "done at step 5 of 5");
    EXPECT_INT(test_command(out, sizeof out, "rm -r '%s/texts/a'", folder), 0);
    EXPECT_INT(cupola(folder, "train --out texts/run --resume --device cpu --steps 6"), 2);
    EXPECT_CONTAINS(out, "data are not those");
    EXPECT_INT(cupola(folder, "train --out none --resume --device cpu"), 5);
}

TEST(generate_refuses_what_cannot_be)
{
    static const refusal list[] = {
        {"generate --from none --prompt a", 5, "none"},
        {"generate --from run --prompt 'X'", 2, "no character"},
        {"generate --from run --prompt \"$(printf 'a\\377')\"", 2, "not UTF-8 from byte 1"},
        {"generate --from run --tokens 0", 2, "--tokens"},
        {"generate --from run --temperature -1", 2, "--temperature"},
        {"generate --from run --top-p 2", 2, "--top-p"},
        {"generate --from text.txt --prompt a", 5, "text.txt"},
        {"generate --from half --prompt a", 5, "half"},
        {"generate --from cut --prompt a", 5, "cut"},
        {"generate --from foreign --prompt a", 5, "foreign"},
        {"generate --from schema --prompt a", 5, "schema"},
    };
    const char *folder = work_folder();
    EXPECT_INT(cupola(folder, "train --data text.txt --out run --steps 1 " TINY), 0);
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s' && for i in half cut foreign schema; do cp -r run $i; done; "
                            "rm half/model.safetensors; truncate -s -5 cut/model.safetensors; "
                            "echo '{}' > foreign/state.json; "
                            "sed -i 's/\"width\": 16/\"width\": 17/' schema/state.json",
                            folder),
               0);
    expect_refusals(folder, list, sizeof list / sizeof *list);
}

#define CONSTANT "--tokenizer text/tokenizer.json --lr 0.01 --lr-end 0.01 --warmup 0 "

/* Tokens in files, as a folder of which the run is interrupted and resumed: the losses are those of
 * a run that was not. */
TEST(train_on_tokens_resumes_bit_for_bit)
{
    const char *folder = work_folder();
    EXPECT_INT(cupola(folder, "train --data text.txt --out text --steps 1 " TINY), 0);
    static uint16_t tokens[4000];
    char path[512];
    for (size_t i = 0; i < 4000; i++)
        tokens[i] = (uint16_t)((i * i / 7 + i / 3) % 9);
    snprintf(path, sizeof path, "%s/tokens", folder);
    EXPECT_INT(cup__folder_make(NULL, path), CUP_OK);
    snprintf(path, sizeof path, "%s/tokens/train.bin", folder);
    EXPECT_INT(cup__file_write(NULL, path, tokens, 6000), CUP_OK);
    EXPECT_INT(cupola(folder, "train --data tokens --out run " TINY), 2);
    EXPECT_CONTAINS(out, "give with --tokenizer the one that made them");
    EXPECT_INT(cupola(folder, "train --data tokens text.txt --out run " TINY), 2);
    EXPECT_CONTAINS(out, "give the one or the other");
    snprintf(path, sizeof path, "%s/tokens/val.bin", folder);
    EXPECT_INT(cup__file_write(NULL, path, tokens + 3000, 2000), CUP_OK);
    EXPECT_INT(cupola(folder, "train --data tokens " CONSTANT "--out a --steps 6 " TINY), 0);
    EXPECT_CONTAINS(out, "2 files, 4.00k tokens of 9 kinds");
    EXPECT_INT(cupola(folder, "train --data tokens " CONSTANT "--out b --steps 4 " TINY), 0);
    EXPECT_INT(cupola(folder, "train --out b --resume --steps 6 " TINY), 0);
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s' && cmp a/model.safetensors b/model.safetensors", folder),
               0);
    tokens[3100]++;
    EXPECT_INT(cup__file_write(NULL, path, tokens + 3000, 2000), CUP_OK);
    EXPECT_INT(cupola(folder, "train --out b --resume --steps 7 " TINY), 2);
    EXPECT_CONTAINS(out, "the data are not those of the checkpoint");
    EXPECT_INT(cup__file_write(NULL, path, tokens + 3000, 1999), CUP_OK);
    EXPECT_INT(cupola(folder, "train --out b --resume --steps 7 " TINY), 5);
    EXPECT_CONTAINS(out, "has 1999 bytes, which are no tokens");
}

/* cupola launch, and cupola train by several processes: what they write, their codes, faults. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "test.h"

#define TINY                                                                                       \
    "--device cpu --layers 1 --heads 2 --width 16 --context 16 --batch 4 --evaluate-every 0 "      \
    "--evaluate-texts 8 "

static char out[200000];

static const char *command(void)
{
    static char path[4200];
    char folder[4096];
    EXPECT(realpath(test_build(), folder) != NULL);
    snprintf(path, sizeof path, "%s/cupola", folder);
    return path;
}

static int launch(const char *words)
{
    return test_command(out, sizeof out, "'%s' launch %s", command(), words);
}

TEST(launch_tells_who_is_who)
{
    EXPECT_INT(launch("--processes 3 -- sh -c 'echo rank $CUP_RANK of $CUP_RANKS on "
                      "$CUP_ADDRESS' | sort"),
               0);
    EXPECT_CONTAINS(out, "[0] rank 0 of 3 on 127.0.0.1:");
    EXPECT_CONTAINS(out, "\n[2] rank 2 of 3");
    EXPECT_INT(launch("--processes 2 -- sh -c 'printf unfinished; echo said >&2'"), 0);
    EXPECT_CONTAINS(out, "[1] unfinished\n");
    EXPECT_CONTAINS(out, "[1] said\n");
}

TEST(launch_gives_the_code_of_the_first_that_failed)
{
    EXPECT_INT(launch("-- sh -c 'if [ $CUP_RANK = 1 ]; then exit 7; fi; sleep 50'"), 7);
    EXPECT_CONTAINS(out, "rank 1 ended with exit code 7");
    EXPECT_INT(launch("-- sh -c 'if [ $CUP_RANK = 0 ]; then kill -9 $$; fi; trap : TERM; exit 6'"),
               137);
    EXPECT_CONTAINS(out, "rank 0 was ended by SIGKILL");
    EXPECT_INT(launch("-- no-such-command"), 2);
    EXPECT_CONTAINS(out, "no-such-command cannot be started");
    EXPECT_INT(launch("--json -- true"), 2);
    EXPECT_INT(launch(""), 2);
}

TEST(launch_starts_again)
{
    EXPECT_INT(launch("--restarts 3 -- sh -c 'echo try $CUP_RESTARTS; [ $CUP_RESTARTS = 2 ]'"), 0);
    EXPECT_CONTAINS(out, "[1] try 2");
    EXPECT_CONTAINS(out, "all are started again, 2 of 3 times");
    EXPECT(!strstr(out, "try 3"));
    EXPECT_INT(launch("--restarts 1 -- sh -c 'exit 9'"), 9);
}

TEST(launch_passes_signals_on)
{
    EXPECT_INT(test_command(out, sizeof out,
                            "'%s' launch --restarts 5 -- sh -c 'trap \"echo ended; exit 5\" TERM; "
                            "echo ready; while :; do sleep 0.05; done' & own=$!; sleep 0.7; "
                            "kill -TERM $own; wait $own",
                            command()),
               5);
    EXPECT_CONTAINS(out, "[0] ended");
    EXPECT_CONTAINS(out, "[1] ended");
}

/* Who writes what nobody reads any more sees that as without a launcher; a full disk is told at the
 * end. */
TEST(launch_goes_on_without_a_reader)
{
    const char *work = "trap \"\" PIPE; i=0; while [ $i -lt 100 ]; do echo $i >&2 2>/dev/null; "
                       "i=$((i + 1)); done; sleep 0.3; echo done >>\"$DONE\"";
    EXPECT_INT(test_command(out, sizeof out,
                            "export DONE='%s/done'; ('%s' launch -- sh -c '%s' 2>&1; "
                            "echo code $? >>\"$DONE\") | head -n 1; cat \"$DONE\"",
                            test_folder(), command(), work),
               0);
    EXPECT_CONTAINS(out, "] 0\ndone\ndone\ncode 0\n");
    EXPECT_INT(test_command(out, sizeof out, "'%s' launch -- yes | head -n 1", command()), 0);
    EXPECT_CONTAINS(out, "SIGPIPE");
    EXPECT_INT(launch("-- echo hello >/dev/full"), 5);
    EXPECT_CONTAINS(out, "stdout could not be written: No space left on device");
    EXPECT_INT(launch("-- sh -c 'echo hello; exit 9' >/dev/full"), 9);
}

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

static int train(const char *folder, const char *words)
{
    return test_command(out, sizeof out, "cd '%s' && '%s' train --data text.txt " TINY "%s", folder,
                        command(), words);
}

static char *losses(const char *folder, const char *run)
{
    char path[512], *text = NULL;
    snprintf(path, sizeof path, "%s/%s/losses.csv", folder, run);
    EXPECT_INT(cup__file_read(NULL, path, 1 << 24, &text, NULL), CUP_OK);
    return text;
}

/* The end of the line before the next one that is a step and no evaluation. */
static char *next_step(char *at)
{
    do
        at = strchr(at + 1, '\n');
    while (at && at[1] && strchr(at + 1, ',')[1] == ',');
    return at;
}

/* The losses of two runs, step by step; at least so many. */
static void expect_steps(const char *folder, const char *a, const char *b, double room, int least)
{
    char *left = losses(folder, a), *right = losses(folder, b);
    char *l = next_step(left), *r = next_step(right);
    int lines = 0;
    for (; l && r && l[1] && r[1]; l = next_step(l), r = next_step(r), lines++) {
        double x = atof(strchr(l + 1, ',') + 1), y = atof(strchr(r + 1, ',') + 1);
        if (!(fabs(x - y) <= room))
            test_fail(__FILE__, __LINE__, "%s and %s, line %d: %.9g and %.9g", a, b, lines, x, y);
    }
    EXPECT(lines >= least && (!l || !l[1]) && (!r || !r[1]));
    cup__free(left);
    cup__free(right);
}

TEST(launch_train_by_many_is_that_of_one)
{
    const char *folder = work_folder();
    EXPECT_INT(train(folder, "--steps 101 --accumulate 4 --dropout 0.1 --out one"), 0);
    EXPECT_INT(train(folder, "--steps 101 --accumulate 4 --dropout 0.1 --processes 2 --out two"),
               0);
    EXPECT_CONTAINS(out, "2 processes, joined by sockets");
    EXPECT_INT(train(folder, "--steps 101 --accumulate 4 --dropout 0.1 --processes 4 --out four"),
               0);
    EXPECT_INT(train(folder, "--steps 101 --accumulate 4 --dropout 0.1 --processes 4 --out again"),
               0);
    expect_steps(folder, "one", "two", 1e-5, 101);
    expect_steps(folder, "one", "four", 1e-5, 101);
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s' && cmp four/losses.csv again/losses.csv && "
                            "cmp four/model.safetensors again/model.safetensors",
                            folder),
               0);
    /* Texts of one batch are shared where there are not enough batches. */
    EXPECT_INT(train(folder, "--steps 101 --out whole"), 0);
    EXPECT_INT(train(folder, "--steps 101 --processes 4 --out parts"), 0);
    expect_steps(folder, "whole", "parts", 1e-5, 101);
    EXPECT_INT(train(folder, "--steps 4 --processes 3 --out odd"), 2);
    EXPECT_CONTAINS(out, "cannot be shared equally by 3 processes");
}

TEST(launch_train_goes_on_with_another_number)
{
    const char *folder = work_folder();
    const char *flat = "--warmup 5 --decline constant --accumulate 4 ";
    char words[300];
    snprintf(words, sizeof words, "%s --steps 101 --out one", flat);
    EXPECT_INT(train(folder, words), 0);
    snprintf(words, sizeof words, "%s --steps 40 --processes 4 --out two", flat);
    EXPECT_INT(train(folder, words), 0);
    EXPECT_INT(train(folder, "--steps 70 --processes 2 --resume --out two"), 0);
    EXPECT_CONTAINS(out, "resumed  behind step 40");
    EXPECT_INT(train(folder, "--steps 101 --resume --out two"), 0);
    expect_steps(folder, "one", "two", 1e-5, 101);
}

/* Each process reads the model beside which the adapters stand, or its part of it. */
TEST(launch_train_shares_adapters)
{
    const char *folder = work_folder();
    const char *flat =
        "--from base --lora 2 --lr 0.02 --warmup 2 --decline constant --accumulate 4 ";
    char words[300];
    EXPECT_INT(train(folder, "--steps 2 --out base"), 0);
    snprintf(words, sizeof words, "%s --steps 12 --out one", flat);
    EXPECT_INT(train(folder, words), 0);
    snprintf(words, sizeof words, "%s --steps 6 --processes 2 --out two", flat);
    EXPECT_INT(train(folder, words), 0);
    EXPECT_INT(train(folder, "--steps 9 --processes 2 --parallel tp=2 --resume --out two"), 0);
    EXPECT_CONTAINS(out, "2 share out the model: 1 stages by 2 parts");
    EXPECT_INT(train(folder, "--steps 12 --processes 2 --zero 3 --resume --out two"), 0);
    expect_steps(folder, "one", "two", 1e-5, 12);
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s' && '%s' generate --from two --prompt a --tokens 5", folder,
                            command()),
               0);
}

/* Runs by two processes, one of which gets a signal at some moment behind the first checkpoint, are
 * started again and end with the bits of a run that was left alone. */
static void expect_survives(const char *folder, const char *name, const char *number, int tries)
{
    EXPECT_INT(
        train(folder, "--steps 1500 --save-every 10 --processes 2 --accumulate 2 --out left"), 0);
    for (int i = 0; i < tries; i++) {
        int code = test_command(
            out, sizeof out,
            "cd '%s' && rm -rf run && { CUP_COMM_SILENCE=2 '%s' train --data text.txt " TINY
            "--steps 1500 --save-every 10 --processes 2 --accumulate 2 --restarts 9 --out run & "
            "own=$!; while [ ! -f run/state.json ]; do sleep 0.01; done; sleep 0.%d; "
            "set -- $(cat /proc/$own/task/$own/children); shift %d; kill -%s $1; wait $own; }",
            folder, command(), i * 3 % 7, i % 2, number);
        if (code)
            test_fail(__FILE__, __LINE__, "code %d: %.900s", code, out);
        EXPECT_CONTAINS(out, name);
        EXPECT_CONTAINS(out, "all are started again, 1 of 9 times");
        EXPECT_INT(test_command(out, sizeof out, "cd '%s' && cmp run/losses.csv left/losses.csv && "
                                                 "cmp run/model.safetensors left/model.safetensors",
                                folder),
                   0);
    }
}

TEST_LIMITED(launch_train_survives_kills, 180)
{
    expect_survives(work_folder(), "was ended by SIGKILL", "KILL", 1);
}

TEST_LIMITED(launch_train_survives_a_stop, 180)
{
    expect_survives(work_folder(), "has given no sign of life for 2 s", "STOP", 1);
}

TEST(launch_train_refuses)
{
    const char *folder = work_folder();
    EXPECT_INT(train(folder, "--gpus 2 --processes 2"), 2);
    EXPECT_INT(train(folder, "--gpus 2"), 2); /* and --device cpu */
    EXPECT_INT(train(folder, "--restarts 2"), 2);
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s' && CUP_RANKS=2 CUP_RANK=0 CUP_COMM_TIMEOUT=1 CUP_ADDRESS="
                            "127.0.0.1:23456 '%s' train --data text.txt " TINY,
                            folder, command()),
               6);
    EXPECT_CONTAINS(out, "rank 1 did not come to rank 0");
}

TEST(launch_train_shares_out_experts)
{
    static const struct {
        const char *options, *words;
    } refused[] = {
        {"--processes 2 --parallel ep=2", "0 experts in a block cannot be shared out equally"},
        {"--processes 2 --parallel ep=2 --experts 3", "3 experts in a block cannot be shared out"},
        {"--processes 2 --parallel tp=2 --experts 2 --mlp swiglu --hidden 33",
         "33 rows cannot be shared out equally to 2 processes"},
        {"--processes 4 --parallel tp=4,ep=2 --experts 2", "of tp a multiple, and ep by tp of cp"},
        {"--processes 2 --parallel ep=4", "experts among dp times cp processes"}};
    const char *folder = work_folder();
    const char *flat = "--layers 2 --warmup 5 --decline constant --accumulate 4 --experts 4";
    char words[300];
    snprintf(words, sizeof words, "%s --steps 30 --out one", flat);
    EXPECT_INT(train(folder, words), 0);
    EXPECT_CONTAINS(out, "4 in each layer, 2 of them a token");
    snprintf(words, sizeof words, "%s --steps 15 --processes 4 --parallel ep=2 --out four", flat);
    EXPECT_INT(train(folder, words), 0);
    EXPECT_CONTAINS(out, "4 processes, joined by sockets; experts in 2 parts");
    snprintf(words, sizeof words, "--layers 2 --steps 22 --resume --processes 4 --parallel "
                                  "dp=4,ep=4 --out four");
    EXPECT_INT(train(folder, words), 0);
    snprintf(words, sizeof words, "--layers 2 --steps 26 --resume --processes 4 --parallel "
                                  "dp=2,pp=2,ep=2 --zero 1 --out four");
    EXPECT_INT(train(folder, words), 0);
    EXPECT_CONTAINS(out, "2 stages by 1 parts; experts in 2 parts");
    snprintf(words, sizeof words, "--layers 2 --steps 28 --resume --processes 4 --parallel "
                                  "dp=2,tp=2,ep=4 --zero 1 --sequence-parallel --out four");
    EXPECT_INT(train(folder, words), 0);
    EXPECT_CONTAINS(out, "1 stages by 2 parts; experts in 4 parts");
    snprintf(words, sizeof words, "--layers 2 --steps 30 --resume --processes 4 --parallel "
                                  "dp=2,tp=2 --zero 2 --out four");
    EXPECT_INT(train(folder, words), 0);
    EXPECT_CONTAINS(out, "2 share out the model: 1 stages by 2");
    expect_steps(folder, "one", "four", 1e-5, 30);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(words, sizeof words, "--steps 4 --accumulate 4 --out no %s", refused[i].options);
        EXPECT(train(folder, words) > 0);
        EXPECT_CONTAINS(out, refused[i].words);
    }
    EXPECT_INT(test_command(out, sizeof out, "'%s' generate --from '%s/four' --prompt a --tokens 9",
                            command(), folder),
               0);
}

TEST(launch_train_shares_out_a_model)
{
    static const struct {
        const char *options, *words;
    } refused[] = {
        {"--processes 2 --parallel dp=2,tp=2", "dp=2,tp=2 is of 4 processes, and the run has 2"},
        {"--processes 2 --parallel tp=2,tp=2", "--parallel takes dp=N, cp=R, pp=S, tp=M"},
        {"--processes 2 --sequence-parallel", "give --parallel tp=M, too"},
        {"--processes 2 --parallel tp=2 --sequence-parallel --dropout 0.1", "not know of dropout"},
        {"--processes 2 --parallel tp=2 --sequence-parallel --context 15 --batch 1", "no 2 equal"},
        {"--processes 2 --parallel tp=2,ep=2 --experts 2 --context 15 --evaluate-texts 3",
         "to send to experts; evaluate another number of texts"},
        {"--processes 2 --parallel tp=0", "--parallel takes dp=N, cp=R, pp=S, tp=M"},
        {"--processes 2 --parallel tp=2,", "--parallel takes dp=N, cp=R, pp=S, tp=M"},
        {"--processes 2 --parallel tp=2 --heads 1", "cannot be shared out equally to 2 processes"},
        {"--processes 2 --parallel cp=2 --context 10", "a context of 10 tokens has no 4 parts"},
        {"--processes 2 --parallel cp=2 --window 4", "do not know of windows"},
        {"--processes 2 --parallel cp=2 --sinks", "do not know of sinks"},
        {"--documents", "the tokenizer has no token that ends a document"},
        {"--processes 3 --parallel cp=2", "cp=2 is of 2 processes, and the run has 3"},
        {"--processes 2 --stages 1,3", "of 2 stages, and --parallel of 1: give pp=2 there"},
        {"--processes 2 --parallel pp=2 --stages 1,", "--stages takes numbers of blocks"},
        {"--processes 2 --parallel pp=2 --stages 1,2", "the stages have 3 blocks together"},
        {"--processes 2 --interleave 2", "--interleave 2 is of the stages of a model"},
        {"--processes 2 --parallel pp=2 --interleave 2 --stages 1,1", "of 2 chunks: give 4"},
        {"--processes 2 --parallel pp=2 --interleave 3", "has 0 of the"}};
    const char *folder = work_folder();
    const char *flat = "--layers 2 --warmup 5 --decline constant --accumulate 4 --save-every 20";
    char words[300];
    snprintf(words, sizeof words, "%s --steps 40 --out one", flat);
    EXPECT_INT(train(folder, words), 0);
    snprintf(words, sizeof words,
             "%s --steps 20 --processes 4 --parallel dp=2,tp=2 --zero 2 --out four", flat);
    EXPECT_INT(train(folder, words), 0);
    EXPECT_CONTAINS(out, "4 processes, joined by sockets; 2 share out the model: 1 stages by 2");
    snprintf(words, sizeof words, "--layers 2 --steps 30 --resume --processes 2 --parallel tp=2 "
                                  "--out four");
    EXPECT_INT(train(folder, words), 0);
    snprintf(words, sizeof words, "--layers 2 --steps 35 --resume --processes 2 --parallel cp=2 "
                                  "--zero 1 --sample 5 --out four");
    EXPECT_INT(train(folder, words), 0);
    EXPECT_CONTAINS(out, "2 processes, joined by sockets; texts in 2 parts");
    snprintf(words, sizeof words, "--layers 2 --steps 40 --resume --processes 2 --parallel pp=2 "
                                  "--stages 1,1 --out four");
    EXPECT_INT(train(folder, words), 0);
    EXPECT_CONTAINS(out, "2 share out the model: 2 stages by 1 parts");
    snprintf(words, sizeof words, "--layers 5 --steps 6 --accumulate 4 --processes 2 --parallel "
                                  "pp=2 --interleave 2 --stages 1,2,1,1 --out chunks");
    EXPECT_INT(train(folder, words), 0);
    EXPECT_CONTAINS(out, "2 share out the model: 2 stages by 1 parts, of 2 chunks each");
    expect_steps(folder, "one", "four", 1e-5, 40);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(words, sizeof words, "--steps 4 --out no %s", refused[i].options);
        EXPECT_INT(train(folder, words), 2);
        EXPECT_CONTAINS(out, refused[i].words);
    }
}

/* Split states change neither losses nor checkpoints. */
TEST(launch_train_with_split_states)
{
    const char *folder = work_folder();
    static const char *const methods[] = {"adamw", "muon"};
    for (int i = 0; i < 2; i++) {
        char words[300];
        const char *same = "--steps 40 --save-every 20 --accumulate 4 --decline constant "
                           "--warmup 5 --overwrite --ema 0.9 --dtype";
        const char *dtype = i ? "f32" : "bf16";
        snprintf(words, sizeof words, "%s %s --optimizer %s --processes 2 --out all", same, dtype,
                 methods[i]);
        EXPECT_INT(train(folder, words), 0);
        snprintf(words, sizeof words, "%s %s --optimizer %s --processes 4 --zero 1 --out split",
                 same, dtype, methods[i]);
        EXPECT_INT(train(folder, words), 0);
        snprintf(words, sizeof words,
                 "%s %s --optimizer %s --processes 2 --zero 1 --save-background --out two", same,
                 dtype, methods[i]);
        EXPECT_INT(train(folder, words), 0);
        EXPECT_INT(test_command(out, sizeof out,
                                "cd '%s' && cmp all/losses.csv two/losses.csv && cmp "
                                "all/model.safetensors two/model.safetensors && "
                                "for i in 1 2; do n=optimizer-0000$i-of-00002.safetensors; cmp "
                                "all/$n two/$n || exit 1; done",
                                folder),
                   0);
        /* Another number of processes goes on, with or without. */
        EXPECT_INT(train(folder, "--steps 60 --resume --processes 4 --zero 3 --out two"), 0);
        EXPECT_INT(train(folder, "--steps 80 --resume --processes 2 --out two"), 0);
        EXPECT_INT(train(folder, "--steps 80 --resume --processes 2 --zero 2 --out split"), 0);
        EXPECT_INT(train(folder, "--steps 80 --resume --out all"), 0);
        expect_steps(folder, "all", "two", i ? 1e-5 : 5e-2, 80);
        expect_steps(folder, "all", "split", i ? 1e-5 : 5e-2, 80);
    }
}

/* Where no process has the whole model, what is written with is the checkpoint's. */
TEST(launch_train_writes_a_sample)
{
    static const char *const ways[] = {"--parallel tp=2", "--parallel pp=2 --save-background",
                                       "--parallel ep=2 --experts 2",
                                       "--parallel tp=2 --experts 2", "--zero 3"};
    const char *folder = work_folder();
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char words[300];
        snprintf(words, sizeof words,
                 "--layers 2 --accumulate 2 --steps 6 --seed 7 --processes 2 --overwrite %s "
                 "--sample 40 --out run >sample 2>log",
                 ways[i]);
        EXPECT_INT(train(folder, words), 0);
        EXPECT_INT(test_command(out, sizeof out,
                                "cd '%s' && '%s' generate --from run --prompt '\n' --tokens 40 "
                                "--no-echo --temperature 0.8 --seed 7 >other && cat sample && cmp "
                                "sample other",
                                folder, command()),
                   0);
        EXPECT(strlen(out) > 20);
    }
}

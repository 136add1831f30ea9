/* cupola train by several processes where one is killed, is slow, is cut off or has a full disk. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

#define TINY                                                                                       \
    "--data text.txt --device cpu --layers 1 --heads 2 --width 16 --context 16 --batch 4 "         \
    "--evaluate-every 0 --evaluate-texts 8 --accumulate 2 "
#define SAVING TINY "--save-every 10 "

static char out[200000];

/* Runs a script in a folder of the test's own, where $cupola is the command. */
static int script(const char *words)
{
    return test_command(out, sizeof out,
                        "cupola=$(realpath '%s')/cupola; cd '%s'; seq 3000 >text.txt; %s",
                        test_build(), test_folder(), words);
}

/* The long form of this is `tools/kills build/cupola 50`. */
TEST_LIMITED(launch_train_survives_kills_at_random, 300)
{
    int code = test_command(out, sizeof out, "tools/kills '%s/cupola' 3 %u", test_build(),
                            (unsigned)(test_uniform(0, 1e6)));
    if (code)
        test_fail(__FILE__, __LINE__, "code %d: %.3000s", code, out);
    EXPECT_CONTAINS(out, "0 ended otherwise than those left alone");
}

/* Who is stopped for less than the time of silence is late, and is named by the other and, when it
 * goes on, by itself; the run is started again and ends as if nothing had been. It is stopped in
 * the steps behind the first save, since a process that saves may be late. */
TEST_LIMITED(launch_train_names_who_is_slow, 120)
{
    int code = script(
        "words='" TINY "--save-every 400 --steps 1500 --processes 2'; "
        "$cupola train $words --out left >/dev/null 2>&1; "
        "CUP_COMM_TIMEOUT=1 CUP_COMM_SILENCE=20 $cupola train $words --restarts 9 --out run "
        ">log 2>&1 & own=$!; "
        "until grep -qs '\"step\": *40[5-9]' run/metrics.jsonl; do sleep 0.01; done; "
        "set -- $(cat /proc/$own/task/$own/children); kill -STOP $2; sleep 4; kill -CONT $2; "
        "wait $own; echo code $?; cat log; cmp run/losses.csv left/losses.csv && "
        "cmp run/model.safetensors left/model.safetensors && echo the same");
    EXPECT_INT(code, 0);
    EXPECT_CONTAINS(out, "code 0");
    EXPECT_CONTAINS(out, "rank 1 (process ");
    EXPECT_CONTAINS(out, "wait for more than 1 s: this one is in ");
    EXPECT_CONTAINS(out, "all are started again, 1 of 9 times");
    EXPECT_CONTAINS(out, "the same");
}

/* One process cannot write its share of a checkpoint: the run ends with that sentence, the one
 * before stays whole, and the run goes on from it where there is room. */
static void expect_full_disk(const char *how)
{
    char words[2000];
    snprintf(words, sizeof words,
             "run() { $cupola launch --processes 2 -- sh -c \"$1 exec $cupola train " SAVING
             "%s --decline constant --warmup 5 --out run $2\" >>log 2>&1; }; "
             "$cupola launch --processes 2 -- $cupola train " SAVING
             "%s --decline constant --warmup 5 --steps 60 --out left >/dev/null 2>&1 && "
             "run '' '--steps 20' && { run \"[ \\$CUP_RANK = 0 ] || { trap '' XFSZ; ulimit -f 1; "
             "};\" '--steps 60 --resume'; echo code $?; } && run '' '--steps 60 --resume' && "
             "for i in run left; do grep -v '^[0-9]*,,' $i/losses.csv >$i.csv; done && "
             "cmp run.csv left.csv && for i in left/model*.safetensors; do "
             "cmp run/${i##*/} $i || exit 1; done; echo same $?; cat log",
             how, how);
    int code = script(words);
    if (code)
        test_fail(__FILE__, __LINE__, "%s: code %d: %.3000s", how, code, out);
    EXPECT_CONTAINS(out, "code 5");
    EXPECT_CONTAINS(out, "the file would be larger than the limit");
    EXPECT_CONTAINS(out, "same 0");
    EXPECT_CONTAINS(out, "rank 1 (process ");
    EXPECT_CONTAINS(out, "resumed  behind step 20 of run");
}

TEST_LIMITED(launch_train_meets_a_full_disk, 120)
{
    expect_full_disk("--zero 1");
}

TEST_LIMITED(launch_train_meets_a_full_disk_in_the_background, 120)
{
    expect_full_disk("--zero 1 --save-background");
}

TEST_LIMITED(launch_train_meets_a_full_disk_with_a_model_in_parts, 120)
{
    expect_full_disk("--parallel tp=2");
}

TEST_LIMITED(launch_train_meets_a_full_disk_with_a_model_in_stages, 120)
{
    expect_full_disk("--layers 2 --parallel pp=2 --save-background");
}

/* Two network namespaces, and the line between them goes down. When it is up again the run goes on
 * as if it had been all the time. */
TEST_LIMITED(launch_train_names_who_is_cut_off, 120)
{
    int code = script(
        "a=cupa$$ b=cupb$$; ip netns add $a && ip netns add $b && "
        "ip link add v$a netns $a type veth peer name v$b netns $b && "
        "ip -n $a addr add 10.99.0.1/24 dev v$a && ip -n $b addr add 10.99.0.2/24 dev v$b && "
        "ip -n $a link set v$a up && ip -n $b link set v$b up || { "
        "ip netns del $a; ip netns del $b; exit 77; }; "
        "run() { CUP_RANKS=2 CUP_ADDRESS=10.99.0.1:29500 CUP_COMM_SILENCE=2 CUP_RANK=$1 "
        "ip netns exec $2 $cupola train " SAVING "--decline constant --warmup 5 $3 --out run "
        ">>$1.log 2>&1; echo rank $1: $?; }; "
        "both() { run 0 $a \"$1\" & run 1 $b \"$1\" & }; both '--steps 1000000'; "
        "i=0; while [ ! -f run/state.json ] && [ $i -lt 1000 ]; do sleep 0.02; i=$((i+1)); done; "
        "ip -n $a link set v$a down; wait; tail -n 1 ?.log; ip -n $a link set v$a up; "
        "n=$(($(sed -n 's/.*\"step\": *\\([0-9]*\\).*/\\1/p' run/state.json | head -n 1) + 20)); "
        "both \"--resume --steps $n\"; wait; ip netns del $a; ip netns del $b; cat ?.log; "
        "$cupola train " SAVING "--decline constant --warmup 5 --processes 2 --steps $n --out left "
        ">/dev/null 2>&1; cmp run/losses.csv left/losses.csv && "
        "cmp run/model.safetensors left/model.safetensors && echo the same");
    if (code == 77)
        test_skip("no network namespaces can be made here");
    EXPECT_INT(code, 0);
    EXPECT_CONTAINS(out, "rank 0: 6");
    EXPECT_CONTAINS(out, "rank 1: 6");
    EXPECT_CONTAINS(out, "rank 0 (process ");
    EXPECT_CONTAINS(out, "rank 1 (process ");
    EXPECT_CONTAINS(out, "has given no sign of life for 2 s: it was stopped, or the network is");
    EXPECT_CONTAINS(out, "resumed  behind step");
    EXPECT_CONTAINS(out, "rank 0: 0");
    EXPECT_CONTAINS(out, "the same");
}

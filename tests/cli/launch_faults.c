/* cupola train by several processes where one is killed, is slow, or has a full disk. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

#define TINY                                                                                       \
    "--data text.txt --device cpu --layers 1 --heads 2 --width 16 --context 16 --batch 4 "         \
    "--evaluate-every 0 --evaluate-texts 8 --save-every 10 --accumulate 2 "

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
 * goes on, by itself. */
TEST_LIMITED(launch_train_names_who_is_slow, 120)
{
    int code = script(
        "CUP_COMM_TIMEOUT=1 CUP_COMM_SILENCE=20 $cupola train " TINY
        "--steps 1000000 --processes 2 --out run >log 2>&1 & own=$!; "
        "while [ ! -f run/state.json ]; do sleep 0.01; done; "
        "set -- $(cat /proc/$own/task/$own/children); kill -STOP $2; sleep 4; kill -CONT $2; "
        "wait $own; echo code $?; cat log");
    EXPECT_INT(code, 0);
    EXPECT_CONTAINS(out, "code 6");
    EXPECT_CONTAINS(out, "rank 1 (process ");
    EXPECT_CONTAINS(out, "wait for more than 1 s: this one is in ");
}

/* One process cannot write its share of a checkpoint: the run ends with that sentence, the one
 * before stays whole, and the run goes on from it where there is room. */
TEST_LIMITED(launch_train_meets_a_full_disk, 120)
{
    int code = script(
        "run() { $cupola launch --processes 2 -- sh -c \"$1 exec $cupola train " TINY
        "--zero 1 --decline constant --warmup 5 --out run $2\" >>log 2>&1; }; "
        "$cupola launch --processes 2 -- $cupola train " TINY
        "--zero 1 --decline constant --warmup 5 --steps 60 --out left >/dev/null 2>&1 && "
        "run '' '--steps 20' && { run \"[ \\$CUP_RANK = 0 ] || { trap '' XFSZ; ulimit -f 1; };\" "
        "'--steps 60 --resume'; echo code $?; } && run '' '--steps 60 --resume' && "
        "for i in run left; do grep -v '^[0-9]*,,' $i/losses.csv >$i.csv; done && "
        "cmp run.csv left.csv && cmp run/model.safetensors left/model.safetensors; "
        "echo same $?; cat log");
    EXPECT_INT(code, 0);
    EXPECT_CONTAINS(out, "code 5");
    EXPECT_CONTAINS(out, "the file would be larger than the limit");
    EXPECT_CONTAINS(out, "same 0");
    EXPECT_CONTAINS(out, "rank 1 (process ");
    EXPECT_CONTAINS(out, "resumed  behind step 20 of run");
}

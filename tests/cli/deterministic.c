/* cupola train --deterministic: two runs are the same byte for byte, by one process and by two, and
 * so is one that was stopped. */
#include <stdio.h>
#include <stdlib.h>

#include "test.h"

#define TRAIN                                                                                      \
    "$cupola train --data text.txt --device cpu --deterministic --layers 2 --heads 2 --width 16 "  \
    "--context 16 --batch 4 --accumulate 2 --dropout 0.1 --steps 200 --save-every 25 "             \
    "--evaluate-every 50 --evaluate-texts 8 "

static char out[60000];

/* `how` is an option; a run that ended before the signal came is tried again. All that a run
 * leaves is compared but the times. */
static void expect_same_bytes(const char *how)
{
    int code = test_command(
        out, sizeof out,
        "cupola=$(realpath '%s')/cupola; cd '%s'; seq 4000 | tr 0-9 a-j >text.txt; "
        "one() { " TRAIN "%s --out $1 >$1.log 2>&1; }; one first; one second; "
        "for i in 1 2 3 4 5 6 7 8; do rm -rf stopped; one stopped & own=$!; "
        "while [ ! -f stopped/state.json ] && kill -0 $own; do sleep 0.01; done; "
        "kill -TERM $(cat /proc/$own/task/$own/children); wait $own; "
        "grep 'stopped at step' stopped.log && break; done; "
        "$cupola train --data text.txt --device cpu --deterministic --resume %s --out stopped "
        ">again.log 2>&1; cat again.log; "
        "for i in first/*.csv first/*.safetensors; do for other in second stopped; do "
        "cmp $i $other/${i##*/} || exit 9; echo compared ${i##*/}; done; done",
        test_build(), test_folder(), how, how);
    if (code)
        test_fail(__FILE__, __LINE__, "%s: code %d: %.3000s", how, code, out);
    EXPECT_CONTAINS(out, "stopped at step");
    EXPECT_CONTAINS(out, "resumed  behind step");
    EXPECT_CONTAINS(out, "compared losses.csv");
    EXPECT_CONTAINS(out, "compared model.safetensors");
    EXPECT_CONTAINS(out, "compared optimizer");
}

TEST_LIMITED(deterministic_runs_are_the_same_bytes, 120)
{
    expect_same_bytes("--processes 1");
}

TEST_LIMITED(deterministic_runs_of_two_processes_are_the_same_bytes, 120)
{
    expect_same_bytes("--processes 2");
}

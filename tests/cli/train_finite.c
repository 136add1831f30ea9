/* What the command does of steps that are not finite, and what it says of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

#define TINY                                                                                       \
    "--device cpu --threads 1 --layers 1 --heads 2 --width 16 --context 16 --batch 2 "             \
    "--evaluate-texts 8 --save-every 3 --evaluate-every 0 "

static char out[100000];

/* Runs words of the shell in a folder with a text, where $cupola is the command. */
static int run(const char *folder, const char *words)
{
    char build[4096];
    EXPECT(realpath(test_build(), build) != NULL);
    return test_command(out, sizeof out,
                        "cd '%s' && cupola='%s/cupola' && "
                        "{ test -e t.txt || seq 2000 >t.txt; } && %s",
                        folder, build, words);
}

TEST(train_names_what_is_not_finite)
{
    const char *folder = test_folder();
    EXPECT(run(folder, "$cupola train --data t.txt --out a --steps 12 --optimizer sgd --clip 0 "
                       "--warmup 0 --lr 1000 --non-finite stop " TINY) != 0);
    EXPECT_CONTAINS(out, "computed again, the first value that is not finite is");
    EXPECT_CONTAINS(out, "in forward of batch 0");
    EXPECT_INT(run(folder, "$cupola train --data t.txt --out b --non-finite often"), 2);
    EXPECT_CONTAINS(out, "stop|skip");
}

TEST(train_remembers_what_becomes_of_them)
{
    const char *folder = test_folder();
    EXPECT_INT(run(folder, "$cupola train --data t.txt --out a --steps 2 --non-finite skip --json "
                           TINY),
               0);
    EXPECT_CONTAINS(out, "\"skipped\": 0,");
    EXPECT_INT(run(folder, "cat a/state.json a/metrics.jsonl"), 0);
    EXPECT_CONTAINS(out, "\"non_finite\": \"skip\"");
    EXPECT_CONTAINS(out, "\"skipped\": 0}");
    EXPECT_INT(run(folder, "$cupola train --resume --out a --steps 3 && "
                           "cat a/state.json"),
               0);
    EXPECT_CONTAINS(out, "\"non_finite\": \"skip\"");
    EXPECT_INT(run(folder, "$cupola train --resume --out a --steps 4 --non-finite stop && "
                           "cat a/state.json"),
               0);
    EXPECT_CONTAINS(out, "\"non_finite\": \"stop\"");
}

TEST(train_in_f16_tells_its_scale)
{
    const char *folder = test_folder();
    EXPECT_INT(run(folder, "$cupola train --data t.txt --out a --steps 10 --dtype f16 "
                           "--loss-scale 16777216 " TINY),
               0);
    EXPECT_CONTAINS(out, "steps were skipped, as gradients or loss were not finite");
    EXPECT_INT(run(folder, "cat a/metrics.jsonl"), 0);
    EXPECT_CONTAINS(out, "\"skipped\": 1, \"loss_scale\": 8388608}");
    EXPECT_INT(run(folder, "$cupola train --resume --out a --steps 11"), 0);
    EXPECT_INT(run(folder, "$cupola train --data t.txt --out b --dtype f16 --loss-scale 3 " TINY),
               2);
    EXPECT_CONTAINS(out, "a power of two");
}

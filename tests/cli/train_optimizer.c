/* What cupola train says and remembers of its optimizer. */
#include <stdlib.h>

#include "test.h"

#define TINY                                                                                       \
    "--data t.txt --device cpu --threads 1 --layers 2 --heads 2 --width 16 --context 16 "          \
    "--batch 4 --evaluate-every 0 --evaluate-texts 8 --save-every 3 --decline constant "           \
    "--warmup 2 "

static char out[20000];

/* Runs words of the shell in a folder with a text. */
static int run(const char *folder, const char *words)
{
    char build[4096];
    EXPECT(realpath(test_build(), build) != NULL);
    return test_command(out, sizeof out,
                        "cd '%s' && cupola='%s/cupola' && seq 900 >t.txt && "
                        "same() { cmp $1/model.safetensors $2/model.safetensors && "
                        "cmp $1/optimizer.safetensors $2/optimizer.safetensors; } && %s",
                        folder, build, words);
}

/* Groups are in state.json: who goes on without the option has them, or others where it says so. */
TEST(train_with_groups_of_parameters)
{
    const char *folder = test_folder();
    EXPECT_INT(run(folder, "g='--decay-groups h.*.weight=0.3 *c_fc*=0,3' && "
                           "$cupola train $g --out a --steps 6 " TINY
                           "&& $cupola train $g --out b --steps 4 " TINY
                           "&& $cupola train --resume --out b --steps 6 && same a b && "
                           "$cupola train --out c --steps 6 " TINY
                           "&& ! cmp a/model.safetensors c/model.safetensors && "
                           "$cupola train $g --processes 2 --parallel pp=2 --out d --steps 2 " TINY
                           "&& $cupola train --resume --out b --steps 7 --decay-groups 'w*=1' && "
                           "cat b/state.json d/state.json"),
               0);
    EXPECT_CONTAINS(out, "\"groups\": \"w*=1\"");
    EXPECT_CONTAINS(out, "\"groups\": \"h.*.weight=0.3 *c_fc*=0,3\"");
    EXPECT_INT(run(folder, "$cupola train --out e --decay-groups '*.bias=0' --processes 2 "
                           "--parallel pp=2 --steps 2 " TINY),
               2);
    EXPECT_CONTAINS(out, "no parameter is called *.bias, for which a group has its decay; names "
                         "are as w");
    EXPECT_INT(run(folder, "$cupola train --out e --decay-groups 'w*=1,x' --steps 2 " TINY), 2);
    EXPECT_CONTAINS(out, "is no PATTERN=DECAY or PATTERN=DECAY,RATE");
    EXPECT_INT(run(folder, "$cupola train --out e --decay-groups $(seq -s '=0 ' 200) --steps 2 "
                           TINY),
               2);
    EXPECT_CONTAINS(out, "has over 511 characters");
}

/* A memory of 0 is none, and not the optimizer's own. */
TEST(train_with_a_memory_of_0)
{
    EXPECT_INT(run(test_folder(),
                   "$cupola train --out a --steps 4 " TINY
                   "&& $cupola train --beta1 0 --out b --steps 4 " TINY
                   "&& $cupola train --beta1 1e-20 --out c --steps 4 " TINY
                   "&& cmp b/model.safetensors c/model.safetensors "
                   "&& ! cmp a/model.safetensors b/model.safetensors && "
                   "$cupola train --optimizer muon --out d --steps 4 " TINY
                   "&& $cupola train --optimizer muon --momentum 0 --out e --steps 4 " TINY
                   "&& ! cmp d/model.safetensors e/model.safetensors && "
                   "$cupola train --optimizer sgd --momentum 0 --out f --steps 4 " TINY
                   "&& $cupola train --optimizer sgd --out g --steps 4 " TINY "&& same f g"),
               0);
}

/* They are resumed bit for bit, also by processes of which each has a share. */
TEST(train_with_states_of_8_bits)
{
    const char *folder = test_folder();
    EXPECT_INT(run(folder, "$cupola train --optimizer adamw8 --out a --steps 6 " TINY
                           "&& $cupola train --optimizer adamw8 --out b --steps 4 " TINY
                           "&& $cupola train --resume --out b --steps 6 && same a b"),
               0);
    EXPECT_INT(run(folder, "$cupola train --optimizer adamw8 --processes 2 --zero 2 --out c "
                           "--steps 6 " TINY
                           "&& $cupola train --optimizer adamw8 --processes 2 --zero 2 --out d "
                           "--steps 4 " TINY
                           "&& $cupola train --resume --processes 2 --zero 2 --out d --steps 6 "
                           "&& cat c/*.safetensors >1 && cat d/*.safetensors >2 && cmp 1 2 && "
                           "$cupola train --resume --out d --steps 7"),
               0);
    EXPECT_INT(run(folder, "$cupola train --optimizer adamw8 --processes 2 --parallel tp=2 --out e "
                           "--steps 2 " TINY),
               2);
    EXPECT_CONTAINS(out, "not of what processes share out; take adamw");
    EXPECT_INT(run(folder, "$cupola train --optimizer adamw8 --experts 2 --processes 2 "
                           "--parallel dp=2,ep=2 --out e --steps 2 " TINY),
               2);
}

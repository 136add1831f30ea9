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
    EXPECT(run(folder, "$cupola train --optimizer adamw8 --processes 2 --parallel tp=2 --out e "
                       "--steps 2 " TINY) != 0);
    EXPECT_CONTAINS(out, "which processes share out; take adamw");
}

/* What cupola train learns from: several sets with weights. */
#include <stdlib.h>
#include <string.h>

#include "test.h"

#define TINY                                                                                       \
    "--device cpu --threads 1 --layers 1 --heads 2 --width 16 --context 16 --batch 4 "             \
    "--evaluate-every 4 --evaluate-texts 8 --save-every 3 --decline constant --warmup 2 "

static char out[20000];

/* Runs words of the shell in a folder with two texts, where $cupola is the command. */
static int run(const char *folder, const char *words)
{
    char build[4096];
    EXPECT(realpath(test_build(), build) != NULL);
    return test_command(out, sizeof out,
                        "cd '%s' && cupola='%s/cupola' && "
                        "{ test -e a.txt || { seq 900 >a.txt; seq 5000 6000 >b.txt; }; } && %s",
                        folder, build, words);
}

/* Interrupted and resumed, a run of several sets has the losses and the weights of one that was
 * not; and says what it has read of each. */
TEST(train_on_sets_resumes_bit_for_bit)
{
    const char *folder = test_folder();
    EXPECT_INT(run(folder, "$cupola train --data a.txt b.txt --weights 3 1 --out x " TINY
                           "--steps 6"),
               0);
    EXPECT_CONTAINS(out, "set 1: ");
    EXPECT_CONTAINS(out, "set 2: ");
    EXPECT_INT(run(folder, "$cupola train --data a.txt b.txt --weights 3 1 --out y --steps 4 " TINY
                           "&& $cupola train --out y --resume --steps 6 && "
                           "cmp x/model.safetensors y/model.safetensors"),
               0);
    EXPECT_INT(run(folder, "$cupola train --data a.txt b.txt --weights 1 1 --out z --steps 6 " TINY
                           "&& ! cmp -s x/model.safetensors z/model.safetensors"),
               0);
    EXPECT_INT(run(folder, "$cupola train --data a.txt b.txt --weights 3 2 --out y --resume"), 2);
    EXPECT_CONTAINS(out, "the data are not those of the checkpoint");
    EXPECT_INT(run(folder, "$cupola train --data a.txt b.txt --weights 3 --out q " TINY), 2);
    EXPECT_CONTAINS(out, "--weights has 1 numbers and --data 2 names");
    EXPECT_INT(run(folder, "$cupola train --data a.txt b.txt --weights 3 -1x --out q " TINY), 2);
    EXPECT_INT(run(folder, "$cupola train --data a.txt b.txt --weights 3 0 --out q " TINY), 2);
    EXPECT_CONTAINS(out, "--weights 0 is no number above 0");
    EXPECT_INT(run(folder, "$cupola train --out y --resume --weights 3 1"), 2);
    EXPECT_CONTAINS(out, "--weights");
}

/* Several documents a text, parted by the token that the tokenizer has. */
TEST(train_on_documents_resumes_bit_for_bit)
{
    const char *folder = test_folder();
    EXPECT_INT(run(folder, "mkdir parts && split -b 40 --additional-suffix=.txt a.txt parts/"), 0);
#define DOCUMENTS "$cupola train --data parts --tokenizer bpe --vocabulary 280 --documents "
    EXPECT_INT(run(folder, DOCUMENTS "--out x --steps 6 " TINY "&& " DOCUMENTS
                           "--out y --steps 4 " TINY "&& $cupola train --out y --resume --steps 6 "
                           "&& cmp x/model.safetensors y/model.safetensors && "
                           "grep '\"documents\": true' y/state.json && "
                           "grep '\"document_end\": 2[0-9][0-9]' y/state.json && "
                           "$cupola generate --from y --tokens 9 --prompt 12"),
               0);
}

/* Files of tokens are sets as text is. */
TEST(train_on_sets_of_tokens)
{
    const char *folder = test_folder();
    EXPECT_INT(run(folder, "$cupola train --data a.txt b.txt --out t --steps 1 " TINY
                           "&& $cupola tokenize --data a.txt --tokenizer t --out ta && "
                           "$cupola tokenize --data b.txt --tokenizer t --out tb"),
               0);
    EXPECT_INT(run(folder, "$cupola train --data ta tb --weights 1 2 --out x --steps 5 " TINY
                           "&& $cupola train --data ta tb --weights 1 2 --out y --steps 3 " TINY
                           "&& $cupola train --out y --resume --steps 5 && "
                           "cmp x/model.safetensors y/model.safetensors"),
               0);
    EXPECT_CONTAINS(out, "set 2: ");
}

/* A run that reads every text once an epoch goes on with the next one, by any number of processes,
 * and says how far it is. */
TEST(train_in_epochs_resumes_bit_for_bit)
{
    const char *folder = test_folder();
    EXPECT_INT(run(folder, "$cupola train --data a.txt --order permuted --out x --steps 60 " TINY),
               0);
    EXPECT_CONTAINS(out, "epoch 1.");
    EXPECT_CONTAINS(out, " epochs of ");
    EXPECT_INT(run(folder, "grep -c '\"epoch\": 1.[0-9]' x/metrics.jsonl"), 0);
    EXPECT_INT(run(folder, "$cupola train --data a.txt --order permuted --out y --steps 35 " TINY
                           "&& $cupola train --out y --resume --steps 60 && "
                           "cmp x/model.safetensors y/model.safetensors"),
               0);
    EXPECT_INT(run(folder, "$cupola train --data a.txt --order permuted --out e --epochs 0.5 " TINY
                           "&& $cupola train --out e --resume --epochs 1"),
               0);
    EXPECT_CONTAINS(out, "done at step 49 of 49");
    EXPECT_CONTAINS(out, "1.00 epochs of ");
    EXPECT_INT(run(folder, "$cupola train --data a.txt --out f --epochs 1 " TINY), 2);
    EXPECT_CONTAINS(out, "--epochs of text are those of --order permuted");
    EXPECT_INT(run(folder, "$cupola train --data a.txt --out f --order permuted --epochs 1 "
                           "--steps 3"),
               2);
    EXPECT_CONTAINS(out, "--epochs and --steps both say");
    EXPECT_INT(run(folder, "$cupola train --data a.txt --out f --order permuted --epochs 0"), 2);
    EXPECT_CONTAINS(out, "--epochs 0 are 0 steps");
    EXPECT_INT(run(folder, "$cupola train --out y --resume --order random"), 2);
    EXPECT_CONTAINS(out, "order is not what the checkpoint");
    EXPECT_INT(run(folder, "$cupola train --data a.txt --out z --steps 60 " TINY
                           "&& ! cmp -s x/model.safetensors z/model.safetensors"),
               0);
    EXPECT_INT(run(folder, "grep -c '\"epoch\": null' z/metrics.jsonl"), 0);
    EXPECT_INT(run(folder, "$cupola train --data a.txt b.txt --weights 3 1 --order permuted "
                           "--out v --steps 6 " TINY
                           "&& $cupola train --data a.txt b.txt --weights 3 1 --order permuted "
                           "--out w --steps 4 " TINY "&& $cupola train --out w --resume --steps 6 "
                           "&& cmp v/model.safetensors w/model.safetensors"),
               0);
    EXPECT_CONTAINS(out, "set 1: 288 tokens read, 75.0 % of all");
    /* Of two processes the losses are those of one, but for rounding. */
    EXPECT_INT(run(folder, "$cupola train --data a.txt --order permuted --processes 2 --out two "
                           "--steps 60 " TINY " && cut -d, -f 1-2 x/losses.csv >1 && "
                           "cut -d, -f 1-2 two/losses.csv >2 && "
                           "paste -d, 1 2 | awk -F, 'NR > 1 && $2 != \"\" "
                           "{ d = $2 - $4; if (d > 1e-3 || d < -1e-3) exit 1; n++ } "
                           "END { exit n < 60 }'"),
               0);
}

/* Text of over --text-limit becomes tokens in the run's folder, from which a run goes on. */
TEST(train_on_text_that_is_not_held)
{
    const char *folder = test_folder();
    EXPECT_INT(run(folder, "seq 190000 >big.txt && gzip -k big.txt && "
                           "$cupola train --data big.txt --text-limit 1 --out x --steps 6 " TINY),
               2);
    EXPECT_CONTAINS(out, "a tokenizer of characters is made of text in memory");
    EXPECT_INT(run(folder, "$cupola train --data big.txt --text-limit 1 --tokenizer bpe "
                           "--vocabulary 300 --out x --steps 6 " TINY),
               0);
    EXPECT_CONTAINS(out, "x/tokens: 2 files, ");
    EXPECT_INT(run(folder, "$cupola train --data x/tokens --tokenizer char --out y " TINY), 2);
    EXPECT_CONTAINS(out, "--tokenizer char learns from text, and the data is in tokens");
    EXPECT_INT(run(folder, "$cupola train --data x/tokens --vocabulary 300 --out y " TINY), 2);
    EXPECT_CONTAINS(out, "--vocabulary is of byte pairs that are learned");
    EXPECT_INT(run(folder, "$cupola train --data a.txt --vocabulary 300 --out y " TINY), 2);
    EXPECT_CONTAINS(out, "--vocabulary is of byte pairs that are learned");
    EXPECT_INT(run(folder, "$cupola train --data big.txt.gz --text-limit 1 --tokenizer x/tokens "
                           "--out gz --steps 1 " TINY
                           "&& $cupola train --data big.txt --text-limit 1 --tokenizer x/tokens "
                           "--out y --steps 4 " TINY
                           "&& cmp x/tokens/train_000000.bin y/tokens/train_000000.bin && "
                           "$cupola train --out y --resume --steps 5 && "
                           "$cupola train --data big.txt --text-limit 1 --out y --resume --steps 6 "
                           "&& cmp x/model.safetensors y/model.safetensors"),
               0);
    EXPECT_INT(run(folder, "$cupola train --data big.txt --text-limit 1 --tokenizer bpe --out x "
                           "--overwrite --steps 6 " TINY),
               2);
    EXPECT_CONTAINS(out, "x/tokens has tokens that an earlier run made");
    EXPECT_INT(run(folder, "$cupola train --data big.txt a.txt --weights 1 2 --text-limit 1 "
                           "--out z " TINY),
               2);
    EXPECT_CONTAINS(out, "--weights of text that has over 1 MiB");
    EXPECT_INT(run(folder, "$cupola train --data big.txt --text-limit 1 --tokenizer x/tokens "
                           "--processes 2 --out two --steps 3 " TINY),
               0);
    EXPECT_CONTAINS(out, "done at step 3 of 3");
    EXPECT_INT(run(folder, "$cupola train --data big.txt --text-limit 1 --processes 2 --out three "
                           "--steps 3 " TINY),
               2);
    /* Memory that holds neither the text nor its tokens. */
    EXPECT_INT(run(folder, "for i in $(seq 10); do cat big.txt; done >huge.txt; "
                           "export CUP_BLAS=off; "
                           "learn() { $cupola train --data huge.txt --tokenizer x/tokens --steps 2 "
                           "$@ " TINY "; }; ulimit -v 45000; if $cupola --version; then "
                           "learn --text-limit 1 --out small && ! learn --out held; fi"),
               0);
    /* A signal leaves no half of them. */
    EXPECT_INT(run(folder, "for i in $(seq 20); do cat big.txt; done >huge.txt; "
                           "$cupola train --data huge.txt --text-limit 1 --tokenizer x/tokens "
                           "--out s --steps 3 2>log & pid=$!; "
                           "while [ ! -e s/tokens.part ]; do sleep 0.01; done; "
                           "kill -INT $pid; wait $pid"),
               130);
    EXPECT_INT(run(folder, "test ! -e s/tokens.part && test ! -e s/tokens"), 0);
}

#define LARGE "--text-limit 1 --tokenizer bpe --vocabulary 300 --steps 2 " TINY

/* What cannot be trained is told before tokens are made of much text, and text that is no text
 * leaves no folder behind. */
TEST(train_makes_no_tokens_in_vain)
{
    const char *folder = test_folder();
    EXPECT_INT(run(folder, "seq 190000 >big.txt && $cupola train --data big.txt --out x/y "
                           "--decay-groups nothing=1 " LARGE),
               2);
    EXPECT_CONTAINS(out, "no parameter is called nothing");
    EXPECT_INT(run(folder, "$cupola train --data big.txt --out x/y --decay-groups '*=x' " LARGE),
               2);
    EXPECT_CONTAINS(out, "no PATTERN=DECAY");
    EXPECT_INT(run(folder, "$cupola train --data big.txt --out x/y --processes 2 --parallel tp=3 "
                           LARGE),
               2);
    EXPECT_INT(run(folder, "test ! -e x && $cupola train --data big.txt --out z " LARGE), 0);
    EXPECT_INT(run(folder, "{ seq 190000; printf '\\0'; } >bad.txt && "
                           "$cupola train --data bad.txt --text-limit 1 --tokenizer z/tokens "
                           "--out x/y --steps 2 " TINY),
               5);
    EXPECT_CONTAINS(out, "is binary, not text");
    EXPECT_INT(run(folder, "test ! -e x && mkdir -p x/y && "
                           "$cupola train --data bad.txt --text-limit 1 --tokenizer z/tokens "
                           "--out x/y --steps 2 " TINY),
               5);
    EXPECT_INT(run(folder, "test -d x/y"), 0);
}

/* Of what is not where it was the cure is named, of tokens in the run's folder with their place. */
TEST(train_names_what_has_moved)
{
    const char *folder = test_folder();
    EXPECT_INT(run(folder, "seq 190000 >big.txt && $cupola train --data big.txt --out x " LARGE
                           "&& mv x y && $cupola train --resume --out y --steps 3"),
               5);
    EXPECT_CONTAINS(out, "the run's own tokens lie in y/tokens: name them with --data y/tokens");
    EXPECT_INT(run(folder, "$cupola train --resume --out y --data y/tokens --steps 3"), 0);
    EXPECT_INT(run(folder, "$cupola train --data a.txt --out z --steps 2 " TINY
                           "&& mv a.txt c.txt && $cupola train --resume --out z --steps 3"),
               5);
    EXPECT_CONTAINS(out, "where it lies elsewhere now, name it with --data");
    EXPECT_INT(run(folder, "$cupola train --resume --out z --data c.txt --steps 3"), 0);
}

/* A folder where a file is to be is found before the first step. */
TEST(train_finds_folders_in_the_place_of_files)
{
    const char *folder = test_folder();
    EXPECT_INT(run(folder, "mkdir -p x/losses.csv && "
                           "$cupola train --data a.txt --overwrite --out x --steps 2 " TINY),
               5);
    EXPECT_CONTAINS(out, "x/losses.csv is a folder, in the place of which the run writes a file");
    EXPECT(strstr(out, "step 1") == NULL);
    EXPECT_INT(run(folder, "rmdir x/losses.csv && "
                           "$cupola train --data a.txt --overwrite --out x --steps 2 " TINY
                           "&& rm x/losses.csv && mkdir x/losses.csv && "
                           "! $cupola train --resume --out x --steps 3"),
               0);
}

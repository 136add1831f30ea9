/* cupola tokenize as a command: what it refuses, signals, and that train reads what it writes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "test.h"

static char out[100000];
static const char *folder;

static int cupola(const char *words)
{
    char path[4096];
    EXPECT(realpath(test_build(), path) != NULL);
    return test_command(out, sizeof out, "cd '%s' && '%s/cupola' %s", folder, path, words);
}

/* A text of some million words and a tokenizer of its letters. */
static void begin(size_t length)
{
    char path[512], *text = malloc(length);
    folder = test_folder();
    for (size_t i = 0; i < length; i++)
        text[i] = "abcd efg\n"[(i * i / 7 + i / 3) % 9];
    snprintf(path, sizeof path, "%s/small.txt", folder);
    EXPECT_INT(cup__file_write(NULL, path, text, 6000), CUP_OK);
    snprintf(path, sizeof path, "%s/text.txt", folder);
    EXPECT_INT(cup__file_write(NULL, path, text, length), CUP_OK);
    free(text);
    EXPECT_INT(cupola("train --data small.txt --out run --device cpu --tokenizer bpe --vocabulary "
                      "300 --layers 1 --heads 1 --width 8 --context 8 --batch 1 --steps 1"),
               0);
}

TEST(tokenize_as_a_command)
{
    begin(100000);
    EXPECT_INT(cupola("tokenize --tokenizer run"), 2);
    EXPECT_CONTAINS(out, "--data is missing");
    EXPECT_INT(cupola("tokenize --data text.txt"), 2);
    EXPECT_CONTAINS(out, "--tokenizer is missing");
    EXPECT_INT(cupola("tokenize --data none.txt --tokenizer run"), 5);
    EXPECT_INT(cupola("tokenize --data text.txt --tokenizer run --json 2>log"), 0);
    EXPECT_CONTAINS(out, "\"verb\": \"tokenize\"");
    EXPECT_INT(cupola("tokenize --data text.txt --tokenizer run"), 2);
    EXPECT_CONTAINS(out, "the folder tokens is not empty");
    EXPECT_INT(cupola("train --data tokens --out other --device cpu --layers 1 --heads 1 "
                      "--width 8 --context 8 --batch 1 --steps 2"),
               0);
    EXPECT_CONTAINS(out, "2 files, ");
    EXPECT_INT(cupola("train --out other --resume --steps 3"), 0);
    EXPECT_CONTAINS(out, "done at step 3 of 3");
}

TEST(tokenize_ends_by_a_signal_and_leaves_nothing)
{
    begin(60000000);
    char path[4096];
    EXPECT(realpath(test_build(), path) != NULL);
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s'; '%s/cupola' tokenize --data text.txt --tokenizer run "
                            "--threads 1 2>log & pid=$!; "
                            "while [ ! -e '%s/tokens.part' ]; do sleep 0.01; done; "
                            "kill -INT $pid; wait $pid",
                            folder, path, folder),
               130);
    snprintf(path, sizeof path, "%s/tokens.part", folder);
    EXPECT(!cup__folder_exists(path));
    snprintf(path, sizeof path, "%s/tokens", folder);
    EXPECT(!cup__folder_exists(path));
}

TEST(tokenize_learns_as_a_command)
{
    begin(100000);
    EXPECT_INT(cupola("tokenize --data text.txt --learn pairs.json --vocabulary 300 --words 1000 "
                      "--json 2>log"),
               0);
    EXPECT_CONTAINS(out, "\"tokens\": 300");
    EXPECT_INT(cupola("tokenize --data text.txt --learn pairs.json"), 2);
    EXPECT_CONTAINS(out, "pairs.json is there already");
    EXPECT_INT(cupola("tokenize --data text.txt --learn x.json --tokenizer bpe"), 2);
    EXPECT_CONTAINS(out, "--learn writes a tokenizer and no tokens");
    EXPECT_INT(cupola("tokenize --data text.txt --learn none/x.json"), 5);
    EXPECT_CONTAINS(out, "none/x.json cannot be written");
    EXPECT_INT(cupola("tokenize --data text.txt --tokenizer pairs.json --out a"), 0);
    EXPECT_INT(cupola("tokenize --data text.txt --tokenizer bpe --vocabulary 300 --out b"), 0);
    EXPECT_CONTAINS(out, "tokenizer of 300 tokens");
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s' && cmp a/tokenizer.json b/tokenizer.json && "
                            "cmp a/train_000000.bin b/train_000000.bin",
                            folder),
               0);
    EXPECT_INT(cupola("tokenize --data text.txt --tokenizer bpe --out b"), 2);
    EXPECT_CONTAINS(out, "the folder b is not empty");
    EXPECT_INT(cupola("tokenize --data text.txt --tokenizer bpe --vocabulary 300 --out "
                      "text.txt/b/c"),
               5);
    EXPECT_CONTAINS(out, "text.txt/b/c cannot be made, as text.txt");
    EXPECT(!strstr(out, "tokenizer of"));
    EXPECT_INT(test_command(out, sizeof out, "mkdir '%s/e.part'", folder), 0);
    EXPECT_INT(cupola("tokenize --data text.txt --tokenizer bpe --vocabulary 300 --out e"), 5);
    EXPECT_CONTAINS(out, "e.part is there: another process makes these tokens");
    EXPECT(!strstr(out, "tokenizer of"));
    EXPECT_INT(cupola("train --data text.txt --tokenizer pairs.json --out c --device cpu --layers "
                      "1 --heads 1 --width 8 --context 8 --batch 1 --steps 1"),
               0);
    EXPECT_INT(cupola("generate --from c --prompt ab --tokens 3 --device cpu"), 0);
}

TEST(tokenize_for_nanogpt_as_a_command)
{
    begin(100000);
    EXPECT_INT(cupola("tokenize --data text.txt --tokenizer run --format nanogpt "
                      "--shard-tokens 100"),
               2);
    EXPECT_CONTAINS(out, "--shard-tokens is of llm.c's files");
    EXPECT_INT(cupola("tokenize --data text.txt --tokenizer run --format nanogpt"), 0);
    EXPECT_CONTAINS(out, "tokens: 2 files, ");
    EXPECT_INT(cupola("train --data tokens/train.bin tokens/val.bin --tokenizer run --out other "
                      "--device cpu --layers 1 --heads 1 --width 8 --context 8 --batch 1 "
                      "--steps 2"),
               0);
}

/* Within a second, while words are counted and while they are merged. */
TEST(tokenize_learns_until_a_signal)
{
    begin(60000000);
    char path[4096];
    EXPECT(realpath(test_build(), path) != NULL);
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s'; '%s/cupola' tokenize --data text.txt --learn a.json "
                            "--threads 1 2>log & pid=$!; "
                            "while ! grep -q byte log; do sleep 0.01; done; "
                            "kill -INT $pid; wait $pid",
                            folder, path),
               130);
    snprintf(path, sizeof path, "%s/a.json", folder);
    EXPECT(!cup__file_exists(path));
}

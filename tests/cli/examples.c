/* Every example of every --help is run as it stands there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/common/help.h"
#include "data/picture_files.h"
#include "data/shapes.h"
#include "test.h"

static char out[100000];

static int shell(const char *folder, const char *line)
{
    /* What later examples read has its time on a busy machine too. What would go on for long shows
     * in two seconds as much as in ten. */
    int seconds = strstr(line, ".csv")          ? 100
                  : strstr(line, "--out book")  ? 10
                  : strstr(line, "cupola bench") ||
                          strstr(line, "cupola check") ||
                          strstr(line, "cupola tune")
                      ? 2
                      : 4;
    return test_command(out, sizeof out,
                        "cupola=$(realpath %s/cupola); cd '%s'; PATH=${cupola%%/*}:$PATH; "
                        "cupola() { timeout %d \"$cupola\" \"$@\"; }; %s",
                        test_build(), folder, seconds, line);
}

/* Images, a network that has seen some of them, and a picture for it. */
static void prepare_images(const char *folder)
{
    uint8_t pixels[64] = {0}, file[500];
    char path[4200];
    snprintf(path, sizeof path, "%s/fashion-mnist", folder);
    EXPECT(cup__folder_make(NULL, path) == CUP_OK);
    shapes_write(path, "train", 30, 1);
    shapes_write(path, "t10k", 10, 2);
    snprintf(path, sizeof path, "%s/boot.png", folder);
    EXPECT(cup__file_write(NULL, path, file, png_file(pixels, 8, 8, 1, file)) == CUP_OK);
    EXPECT_INT(shell(folder, "cupola train --task classify --data fashion-mnist --preset mlp "
                             "--steps 1 --out shoes"),
               0);
}

static void prepare(const char *folder)
{
    setenv("CUP_CACHE", folder, 1);
    setenv("CUP_DEVICE", "cpu", 1);
    setenv("CUP_THREADS", "1", 1); /* What is ended after a time takes no more than one core. */
    EXPECT_INT(test_command(out, sizeof out, "ln -s \"$PWD/bench\" '%s/bench'", folder), 0);
    EXPECT_INT(shell(folder, "{ seq 9999; echo Once upon a time; seq 9999; } >book.txt; "
                             "cp book.txt shakespeare.txt; echo 1 >begin.txt; "
                             "mkdir texts; cp book.txt texts; "
                             "echo '{\"text\": \"Once upon a time\"}' | gzip >web.jsonl.gz; "
                             "cupola train --data book.txt --tokenizer bpe --vocabulary 270 "
                             "--layers 1 --heads 1 --width 16 --context 16 --batch 1 --steps 1 "
                             "--out gpt2; "
                             "cupola train --data book.txt --layers 1 --heads 1 "
                             "--width 16 --context 16 --batch 1 --steps 1 --bias yes --ema 0.9 "
                             "--out averaged; "
                             "cp -r gpt2 smollm; cp book.txt notes.txt; "
                             "cupola train --data notes.txt --from averaged --lora 2 --batch 1 "
                             "--steps 1 --evaluate-texts 1 --out adapted; "
                             "printf 'a\\tb\\tc\\td\\te\\t5\\n' | tee mine.tsv >yours.tsv; "
                             "cupola bench --op add --shapes '512x512 512x512' --format csv "
                             ">old.csv"),
               0);
}

/* 0: it worked; 3: it asks for a GPU; 124: it is one of those that take long; 4 with this sentence:
 * the machine is too small for it; 5 with that one: it has no libpng. The records that one example
 * compares are of a busy machine. */
static bool is_fine(const char *command, int code)
{
    return code == 0 || code == 3 || code == 124 ||
           (code == 4 && strstr(out, "the run needs about")) ||
           (code == 5 && strstr(out, "which cannot be loaded")) ||
           (code == 1 && strstr(command, "--compare") && strstr(out, "slower by more"));
}

static void run_examples(const char *folder, const cli_verb *verb)
{
    char line[1024];
    bool command = false;
    for (const char *at = verb->examples; at && *at; command = !command) {
        size_t length = strcspn(at, "\n");
        snprintf(line, sizeof line, "%.*s", (int)length, at);
        at += length + (at[length] == '\n');
        if (!command) {
            if (line[length - 1] != ':' || !strncmp(line, "cupola", 6))
                test_fail(__FILE__, __LINE__, "%s: no sentence: %s", verb->name, line);
            continue;
        }
        if (strncmp(line, "cupola ", 7))
            test_fail(__FILE__, __LINE__, "%s: no command: %s", verb->name, line);
        if (strstr(line, "| jq") && test_command(out, sizeof out, "command -v jq"))
            continue;
        int code = shell(folder, line);
        if (!is_fine(line, code))
            test_fail(__FILE__, __LINE__, "%s: code %d: %s", line, code, out);
    }
    EXPECT(!command);
}

TEST_LIMITED(examples_run, 300)
{
    const char *folder = test_folder();
    if (test_command(out, sizeof out, "command -v timeout"))
        test_skip("timeout is not installed");
    prepare(folder);
    prepare_images(folder);
    for (int i = 0; verbs[i]; i++)
        run_examples(folder, verbs[i]);
}

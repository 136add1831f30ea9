/* cupola train with each policy of what backward computes again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "test.h"

#define SMALL                                                                                      \
    "--device cpu --threads 1 --layers 2 --heads 2 --width 16 --context 16 --batch 2 "             \
    "--evaluate-every 0 --evaluate-texts 8"

static char out[100000];

static int train(const char *folder, const char *words)
{
    char build[4096];
    EXPECT(realpath(test_build(), build) != NULL);
    return test_command(out, sizeof out, "cd '%s' && '%s/cupola' train %s", folder, build, words);
}

static char *losses(const char *folder, size_t run)
{
    char path[512], *text = NULL;
    snprintf(path, sizeof path, "%s/%zu/losses.csv", folder, run);
    EXPECT_INT(cup__file_read(NULL, path, 1 << 20, &text, NULL), CUP_OK);
    return text;
}

/* Losses are those of the run that keeps all, whatever is computed again. */
TEST(train_with_each_policy)
{
    static const char *const words[] = {"", "--recompute none", "--recompute", "--recompute norms",
                                        "--recompute=auto", "--recompute pointwise",
                                        "--recompute norms --recompute-blocks 1",
                                        "--recompute pointwise --recompute-blocks 1",
                                        "--recompute block --recompute-blocks 1"};
    static const char *const mixed[] = {"--recompute none", "--recompute", "--recompute norms",
                                        "--recompute pointwise",
                                        "--recompute block --recompute-blocks 1"};
    const char *folder = test_folder();
    char line[512], text[4000], *first = NULL;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "abcd efg\n"[(i * i / 7 + i / 3) % 9];
    snprintf(line, sizeof line, "%s/text.txt", folder);
    EXPECT_INT(cup__file_write(NULL, line, text, sizeof text), CUP_OK);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        snprintf(line, sizeof line, "--data text.txt --out %zu " SMALL " --steps 4 %s", i,
                 words[i]);
        EXPECT_INT(train(folder, line), 0);
        EXPECT((strstr(out, "policy   none: none needs ") != NULL) == (i == 4));
        char *now = losses(folder, i);
        if (first)
            EXPECT_TEXT(now, first);
        cup__free(first);
        first = now;
    }
    cup__free(first);
    first = NULL;
    for (size_t i = 0; i < sizeof mixed / sizeof *mixed; i++) {
        snprintf(line, sizeof line,
                 "--data text.txt --out %zu " SMALL " --steps 4 --experts 4 --dropout 0.1 %s",
                 10 + i, mixed[i]);
        EXPECT_INT(train(folder, line), 0);
        char *now = losses(folder, 10 + i);
        if (first)
            EXPECT_TEXT(now, first);
        cup__free(first);
        first = now;
    }
    cup__free(first);
    EXPECT_INT(train(folder, "--resume --out 2 --steps 6 --recompute norms"), 0);
    for (int i = 0; i < 3; i++) {
        static const char *const again[] = {"--recompute none",
                                            "--recompute pointwise --recompute-blocks 1", ""};
        snprintf(line, sizeof line, "--resume --out %d --steps 6 %s", 6 + i, again[i]);
        EXPECT_INT(train(folder, line), 0);
        char *whole = losses(folder, 2), *now = losses(folder, (size_t)(6 + i));
        EXPECT_TEXT(now, whole);
        cup__free(now);
        cup__free(whole);
    }
    EXPECT_INT(train(folder, "--resume --out 4 --steps 6 --recompute some"), 2);
    EXPECT_CONTAINS(out, "choose one of none|norms|pointwise|block|auto");
    EXPECT_INT(train(folder, "--data text.txt --out 30 " SMALL " --recompute-blocks 1"), 2);
    EXPECT_CONTAINS(out, "no policy says");
}

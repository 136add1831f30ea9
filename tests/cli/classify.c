/* cupola train --task classify and cupola classify as commands. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli/classify_page.h"
#include "data/picture_files.h"
#include "data/shapes.h"
#include "test.h"

#define TINY "train --task classify --device cpu --threads 1 --batch 20 "

static char out[200000];

static int cupola(const char *folder, const char *words)
{
    static char path[4200], build[4096];
    EXPECT(realpath(test_build(), build) != NULL);
    snprintf(path, sizeof path, "%s/cupola", build);
    return test_command(out, sizeof out, "cd '%s' && '%s' %s", folder, path, words);
}

static const char *work_folder(void)
{
    const char *folder = test_folder();
    shapes_write(folder, "train", 120, 1);
    shapes_write(folder, "t10k", 40, 2);
    char path[4200];
    snprintf(path, sizeof path, "%s/net.txt", folder);
    EXPECT(cup__file_write(NULL, path, "conv 4\nrelu\nflatten\nlinear classes\n", 35) == CUP_OK);
    snprintf(path, sizeof path, "%s/classes.txt", folder);
    EXPECT(cup__file_write(NULL, path, "bar\npost\n<both>\n", 16) == CUP_OK);
    return folder;
}

/* From images to a network, on from its checkpoint, and to an answer and a page. */
TEST(classify_whole_way)
{
    const char *folder = work_folder();
    uint8_t pixels[SHAPES_SIDE * SHAPES_SIDE], file[500];
    char path[4200];
    EXPECT_INT(cupola(folder, TINY "--data . --network net.txt --steps 30 --lr 0.01 --out r"), 0);
    EXPECT_CONTAINS(out, "images   120 and 40 kept apart, 8 x 8 x 1, of 3 classes");
    EXPECT_CONTAINS(out, "accuracy");
    EXPECT_INT(cupola(folder, "train --task classify --device cpu --out r --resume --steps 40 "
                              "--json"), 0);
    EXPECT_CONTAINS(out, "resumed  behind step 30 of r");
    EXPECT_CONTAINS(out, "\"steps\": 40");
    EXPECT_INT(cupola(folder, "classify --from r --device cpu --data . --page p.html"), 0);
    EXPECT_CONTAINS(out, "40 images: top-1");
    EXPECT_CONTAINS(out, "post");
    EXPECT_INT(test_command(out, sizeof out, "cat '%s/p.html'", folder), 0);
    EXPECT_CONTAINS(out, "&#60;both&#62;");
    EXPECT_CONTAINS(out, "The worst mistakes");
    for (int i = 0; i < SHAPES_SIDE * SHAPES_SIDE; i++)
        pixels[i] = i / SHAPES_SIDE == 3 ? 190 : 30;
    snprintf(path, sizeof path, "%s/bar.png", folder);
    size_t count = png_file(pixels, SHAPES_SIDE, SHAPES_SIDE, 1, file);
    EXPECT(cup__file_write(NULL, path, file, count) == CUP_OK);
    int code = cupola(folder, "classify --from r --device cpu bar.png --json");
    if (code && strstr(out, "cannot be loaded"))
        test_skip("libpng is not installed");
    EXPECT_CONTAINS(out, "\"class\": \"bar\"");
    EXPECT_INT(cupola(folder, "classify --from r --device cpu bar.png missing.png"), 5);
    EXPECT_CONTAINS(out, "missing.png");
}

/* Holds the losses of two runs to each other. */
static void expect_alike(const char *folder, const char *one, const char *other, int least)
{
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s' && cut -d, -f1-2 %s/losses.csv >a && cut -d, -f1-2 "
                            "%s/losses.csv >b && wc -l <a && paste -d, a b", folder, one, other),
               0);
    const char *line = strchr(out, '\n');
    int lines = 0;
    for (; line && *++line; line = strchr(line, '\n')) {
        double step[2], loss[2];
        if (sscanf(line, "%lf,%lf,%lf,%lf", &step[0], &loss[0], &step[1], &loss[1]) != 4)
            continue;
        EXPECT(step[0] == step[1]);
        EXPECT_NEAR(loss[0], loss[1], 2e-4);
        lines++;
    }
    EXPECT(lines >= least);
}

/* Two processes learn what one does, and another number of them goes on from their checkpoint. */
TEST(classify_trains_by_several_processes)
{
    const char *folder = work_folder();
    EXPECT_INT(cupola(folder, TINY "--data . --network net.txt --steps 6 --out r --processes 2"),
               0);
    EXPECT_CONTAINS(out, "run      2 processes, joined by sockets");
    EXPECT_INT(cupola(folder, "train --task classify --device cpu --out r --resume --steps 8"), 0);
    EXPECT_INT(cupola(folder, TINY "--data . --network net.txt --steps 6 --out s"), 0);
    EXPECT_INT(cupola(folder, "train --task classify --device cpu --out s --resume --steps 8 "
                              "--processes 2"), 0);
    expect_alike(folder, "r", "s", 8);
    EXPECT_INT(cupola(folder, TINY "--data . --network net.txt --out t --processes 3"), 2);
}

/* Of none taken for a class there is no part that was right. */
TEST(classify_writes_parts)
{
    char text[CLASSIFY_PART];
    EXPECT_TEXT(classify_part(0.25, text), "25.00 %");
    EXPECT_TEXT(classify_part(1, text), "100.00 %");
    EXPECT_TEXT(classify_part(-NAN, text), "-");
}

/* What the training of a GPT takes, that of a network for images does; and its metrics. */
TEST(classify_takes_what_training_has)
{
    const char *folder = work_folder();
    EXPECT_INT(cupola(folder, TINY "--data . --network net.txt --steps 8 --accumulate 2 --ema 0.9 "
                                   "--recompute pointwise --decline-steps 3 --save-background "
                                   "--save-every 3 --tensorboard --tune --out r"), 0);
    EXPECT_CONTAINS(out, "--tune measures on a GPU only");
    EXPECT_INT(cupola(folder, "train --task classify --device cpu --out r --resume --steps 12"), 0);
    EXPECT_INT(cupola(folder, "classify --from r --device cpu --data . --ema"), 0);
    EXPECT_CONTAINS(out, "40 images: top-1");
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s/r' && ls && grep -c rate metrics.jsonl && cat metrics.jsonl",
                            folder), 0);
    EXPECT_CONTAINS(out, "events.out.tfevents");
    EXPECT_CONTAINS(out, "\n12\n");
    EXPECT_CONTAINS(out, "\"images_a_step\": 40, \"flops_a_image\": null");
    EXPECT_CONTAINS(out, "\"images\": 480, \"images_per_second\": ");
    EXPECT_CONTAINS(out, "\"accuracy\": ");
    EXPECT_INT(cupola(folder, TINY "--data . --network net.txt --steps 2 --stochastic --dtype bf16 "
                                   "--out s"), 0);
    EXPECT_INT(cupola(folder, "classify --from s --device cpu --data . --ema"), 1);
    EXPECT_CONTAINS(out, "train with --ema");
}

/* Processes keep shares of what the optimizer knows, and another number of them goes on. */
TEST(classify_shares_states)
{
    const char *folder = work_folder();
    for (int stage = 1; stage <= 3; stage++) {
        char words[300];
        snprintf(words, sizeof words,
                 TINY "--data . --network net.txt --steps 4 --accumulate 2 --check-every 2 "
                      "--processes 2 --out z%d --zero %d", stage, stage);
        EXPECT_INT(cupola(folder, words), 0);
    }
    expect_alike(folder, "z1", "z2", 4);
    expect_alike(folder, "z1", "z3", 4);
    EXPECT_INT(cupola(folder, "train --task classify --device cpu --out z3 --resume --steps 6"), 0);
}

/* One run begins with the network of another, of the same classes or of others. */
TEST(classify_begins_with_another)
{
    const char *folder = work_folder();
    EXPECT_INT(cupola(folder, TINY "--data . --network net.txt --steps 30 --lr 0.01 --out r"), 0);
    EXPECT_INT(cupola(folder, "train --task classify --device cpu --from r --data . --steps 3 "
                              "--out s"), 0);
    EXPECT_CONTAINS(out, "begins   with the weights of r\n");
    EXPECT_INT(cupola(folder, "train --task classify --device cpu --from r --data . --image-size 6 "
                              "--out u"), 2);
    EXPECT_CONTAINS(out, "has another linear1.weight, or none");
    EXPECT_INT(test_command(out, sizeof out, "rm '%s/classes.txt'", folder), 0);
    EXPECT_INT(cupola(folder, "train --task classify --device cpu --from r --data . --steps 3 "
                              "--out t"), 0);
    EXPECT_CONTAINS(out, "r; a new last layer for the 3 classes, which are others");
}

TEST(classify_refused)
{
    static const struct {
        const char *words;
        int code;
        const char *says;
    } cases[] = {{"train --preset cnn --data .", 2, "--preset cnn is a network for images"},
                 {TINY, 2, "--data names one folder"},
                 {TINY "--data . --preset char", 2, "\"char\" is no network"},
                 {TINY "--data . --layers 3", 2, "--layers does nothing with --task classify"},
                 {TINY "--data . --out r --resume --flip no", 2, "--flip does nothing"},
                 {TINY "--data . --from r --preset cnn", 2, "leave out --preset"},
                 {TINY "--data . --from nowhere", 5, "nowhere"},
                 {TINY "--data . --recompute", 2, "norms or pointwise again, not block"},
                 {TINY "--data . --memory-page m.html", 2, "of a GPU; this run is on the CPU"},
                 {TINY "--data nowhere", 5, "nowhere"},
                 {TINY "--data . --network nowhere", 5, "nowhere"},
                 {TINY "--data . --network classes.txt", 5, "line 1 of the network"},
                 {"classify --from r", 2, "name images"},
                 {"classify --from nowhere a.png", 5, "nowhere"},
                 {"classify --from '' a.png", 5, "\"\" is no folder; name that of a checkpoint"},
                 {"classify --from nowhere --data . --page no/p.html", 5, "no/p.html cannot be"},
                 {"classify --page p.html a.png", 2, "--page shows what --data gives"}};
    const char *folder = work_folder();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int code = cupola(folder, cases[i].words);
        EXPECT_CONTAINS(out, cases[i].says);
        EXPECT_INT(code, cases[i].code);
    }
}

/* A signal ends a run with a checkpoint, from which it goes on. */
TEST(classify_signal)
{
    const char *folder = work_folder();
    EXPECT_INT(cupola(folder, TINY "--data . --network net.txt --steps 1000000 --out r & "
                                   "sleep 0.7; kill -INT $!; wait $!"), 128 + SIGINT);
    EXPECT_CONTAINS(out, "stopped at step");
    EXPECT_INT(cupola(folder, "classify --from r --device cpu --data ."), 0);
}

/* What a run says of itself in files: metrics.jsonl and TensorBoard's event files. */
#include "cli/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "test.h"

#define TINY                                                                                       \
    "--device cpu --threads 1 --layers 1 --heads 2 --width 16 --context 16 --batch 2 "             \
    "--evaluate-every 4 --evaluate-texts 8 --save-every 3 "

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

/* Holds metrics.jsonl to the steps 0, 1, ..., each once, with an evaluation before every fourth and
 * at the end; returns the number of heads. */
static int check_lines(const char *folder, const char *name, int64_t steps)
{
    char path[4300], *text, *next;
    int heads = 0;
    int64_t done = 0, step, evaluated = -1;
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", folder, name);
    EXPECT_INT(cup__file_read(NULL, path, 1 << 20, &text, NULL), CUP_OK);
    for (char *line = text; *line; line = next) {
        cup__json json;
        next = strchr(line, '\n') + 1;
        EXPECT(next != (char *)1);
        EXPECT_INT(cup__json_parse(NULL, path, line, (size_t)(next - line), &json), CUP_OK);
        if (cup__json_find(json.root, "schema")) {
            heads++;
        } else {
            const cup__json_node *loss = cup__json_find(json.root, "loss");
            EXPECT(cup__json_integer(cup__json_find(json.root, "step"), &step) && step == done);
            EXPECT(loss || evaluated < done);
            EXPECT(!loss || done % 4 || evaluated == done);
            EXPECT(cup__json_number(loss ? loss : cup__json_find(json.root, "validation")) > 0);
            EXPECT(cup__json_number(cup__json_find(json.root, "memory_peak")) > 10000);
            EXPECT_INT(cup__json_find(json.root, "mfu")->kind, CUP__JSON_NULL);
            evaluated = loss ? evaluated : done;
            done += loss != NULL;
            EXPECT(cup__json_integer(cup__json_find(json.root, "tokens"), &step));
            EXPECT_INT(step, done * 32);
        }
        cup__json_free(&json);
    }
    EXPECT_INT(done, steps);
    EXPECT_INT(evaluated, steps);
    cup__free(text);
    return heads;
}

/* What was written behind the checkpoint, a torn line and lines of another run are dropped. */
TEST(metrics_are_right_after_a_resume)
{
    const char *folder = test_folder();
    EXPECT_INT(run(folder, "$cupola train --data t.txt --out a --steps 6 " TINY), 0);
    EXPECT_INT(check_lines(folder, "a", 6), 1);
    EXPECT_INT(run(folder, "cp -r a b && cp -r a c && echo '{\"step\": 6, \"lo' >>a/metrics.jsonl "
                           "&& $cupola train --out a --resume --steps 9"),
               0);
    EXPECT_INT(check_lines(folder, "a", 9), 2);
    /* The lines that an uninterrupted run of 9 steps has behind the checkpoint are done again. */
    EXPECT_INT(run(folder, "cp a/metrics.jsonl b/ && $cupola train --out b --resume --steps 9"), 0);
    EXPECT_INT(check_lines(folder, "b", 9), 2);
    EXPECT_INT(run(folder, "tail -n +4 a/metrics.jsonl >c/metrics.jsonl && "
                           "$cupola train --out c --resume --steps 7"),
               0);
    EXPECT_INT(run(folder, "for r in a b; do grep -v schema $r/metrics.jsonl | cut -d, -f 1-2 "
                           ">$r.x; done; cmp a.x b.x"),
               0);
    /* Lines that are lost are told again, of what the checkpoint knows. */
    EXPECT_INT(check_lines(folder, "c", 7), 1);
}

TEST(metrics_replace_no_file_of_others)
{
    const char *folder = test_folder();
    EXPECT_INT(run(folder, "mkdir a && echo mine >a/metrics.jsonl && "
                           "$cupola train --data t.txt --out a --steps 2 " TINY),
               2);
    EXPECT_CONTAINS(out, "metrics.jsonl is not of a run");
    EXPECT_INT(run(folder, "grep -x mine a/metrics.jsonl && $cupola train --data t.txt --out a "
                           "--overwrite --steps 2 " TINY),
               0);
    EXPECT_INT(check_lines(folder, "a", 2), 1);
    /* What a run leaves that was killed before its first checkpoint is no hindrance. */
    EXPECT_INT(run(folder, "mkdir b && cp a/metrics.jsonl b/ && "
                           "$cupola train --data t.txt --out b --steps 1 " TINY),
               0);
    EXPECT_INT(check_lines(folder, "b", 1), 1);
    EXPECT_INT(run(folder, "mkdir -p c/metrics.jsonl && "
                           "$cupola train --data t.txt --out c --steps 2 --overwrite " TINY),
               0);
    EXPECT_CONTAINS(out, "the run goes on without it");
}

static uint32_t number(const char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* The float behind a tag in an event's bytes; NaN where the tag is not there. */
static double value_of(const char *event, size_t length, const char *tag)
{
    size_t size = strlen(tag);
    for (size_t i = 0; i + size + 5 <= length; i++)
        if (!memcmp(event + i, tag, size) && event[i + size] == (2 << 3 | 5)) {
            float value;
            memcpy(&value, event + i + size + 1, sizeof value);
            return (double)value;
        }
    return NAN;
}

TEST(events_are_records_with_checksums)
{
    const char *folder = test_folder();
    char *text;
    size_t bytes;
    int count = 0;
    /* RFC 3720's and others' check value of CRC-32C, 0xe3069283, masked. */
    EXPECT_INT(events_checksum("123456789", 9),
               (0xe3069283u >> 15 | 0xe3069283u << 17) + 0xa282ead8u);
    EXPECT_INT(events_checksum("", 0), 0xa282ead8u);
    EXPECT_INT(run(folder, "$cupola train --data t.txt --out a --steps 2 --tensorboard " TINY
                           " && mv a/events.out.tfevents.* events"),
               0);
    char path[4300];
    snprintf(path, sizeof path, "%s/events", folder);
    EXPECT_INT(cup__file_read(NULL, path, 1 << 20, &text, &bytes), CUP_OK);
    for (size_t at = 0; at < bytes; count++) {
        size_t length = number(text + at);
        const char *event = text + at + 12;
        EXPECT(at + 16 + length <= bytes && number(text + at + 4) == 0);
        EXPECT(number(text + at + 8) == events_checksum(text + at, 8));
        EXPECT(number(event + length) == events_checksum(event, length));
        /* The time, then the step: the fields 1 and 2. */
        EXPECT(event[0] == (1 << 3 | 1) && event[9] == 2 << 3);
        if (count == 0)
            EXPECT(!memcmp(event + 13, "brain.Event:2", 13));
        if (count == 1)
            EXPECT(event[11] == (7 << 3 | 2) && event[13] == 1 << 3 && event[14] == 1);
        if (count == 2)
            EXPECT(value_of(event, length, "loss/validation") > 0 &&
                   isnan(value_of(event, length, "loss/training")) && event[10] == 0);
        if (count == 4)
            EXPECT(value_of(event, length, "loss/training") > 0 &&
                   value_of(event, length, "learning_rate") > 0 && event[10] == 1);
        at += 16 + length;
    }
    EXPECT_INT(count, 6);
    cup__free(text);
}

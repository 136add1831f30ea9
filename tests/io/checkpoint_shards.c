/* Checkpoints whose tensors lie in several files, written by any number of writers. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/lock.h"
#include "io/support.h"
#include "tensor/context.h"
#include "test.h"

#define TENSORS 4
#define PART "model.safetensors"

TEST(checkpoint_shards_have_names)
{
    static const struct {
        const char *found, *name;
        bool alike;
    } cases[] = {{"model.safetensors", "model.safetensors", true},
                 {"model-00001-of-00002.safetensors", "model.safetensors", true},
                 {"model.safetensors", "model-00003-of-00004.safetensors", true},
                 {"model-00001-of-00002.safetensors", "model-00003-of-00004.safetensors", true},
                 {"model-0001-of-00002.safetensors", "model.safetensors", false},
                 {"model-00001-of-0000a.safetensors", "model.safetensors", false},
                 {"model_00001-of-00002.safetensors", "model.safetensors", false},
                 {"-00001-of-00002.safetensors", ".safetensors", false},
                 {"model-00001-of-00002.csv", "model.safetensors", false},
                 {"optimizer-00001-of-00002.safetensors", "model.safetensors", false},
                 {"tokenizer.json", "tokenizer.json", true},
                 {"", "model.safetensors", false}};
    char name[CUP__CHECKPOINT_NAME], long_name[100];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (cup__checkpoint_alike(cases[i].found, strlen(cases[i].found), cases[i].name) !=
            cases[i].alike)
            test_fail(__FILE__, __LINE__, "%s and %s", cases[i].found, cases[i].name);
    EXPECT(cup__checkpoint_shard(PART, 2, 4, name));
    EXPECT_TEXT(name, "model-00003-of-00004.safetensors");
    EXPECT(cup__checkpoint_shard(PART, 0, 1, name));
    EXPECT_TEXT(name, PART);
    memset(long_name, 'a', sizeof long_name);
    long_name[99] = 0;
    EXPECT(!cup__checkpoint_shard(long_name, 0, 2, name));
}

/* One of the writers, with the tensors that are its own. */
static cup_status write_shard(cup_context *c, const char *folder, int32_t value, int number,
                              int shards, cup__checkpoint_file *out)
{
    static const char *const names[TENSORS] = {"d", "b", "a", "c"};
    char name[CUP__CHECKPOINT_NAME];
    cup_named own[TENSORS];
    int64_t count = 0;
    cup_scope_open(c);
    for (int i = number; i < TENSORS; i += shards)
        own[count++] = (cup_named){names[i], filled(c, value)};
    cup__checkpoint_shard(PART, number, shards, name);
    const cup__checkpoint_part part = {.name = name, .tensors = own, .count = count};
    cup_status status = cup__checkpoint_write(c, &c->error, folder, &part, out);
    cup_scope_close(c);
    return status;
}

static cup_status save_shards(cup_context *c, const char *folder, int32_t value, int shards)
{
    const char *name = PART;
    cup__checkpoint_file files[TENSORS];
    cup__json_writer state = {0};
    cup__json_open(&state, NULL, CUP__JSON_OBJECT);
    cup__json_add_integer(&state, "step", value);
    cup__json_close(&state);
    cup__lock lock;
    CUP_TRY(cup__lock_take(&c->error, folder, 5, &lock));
    cup_status status = cup__checkpoint_begin(&c->error, folder, &name, 1);
    int written = 0;
    for (; written < shards && status == CUP_OK; written++)
        status = write_shard(c, folder, value, written, shards, &files[written]);
    if (status == CUP_OK)
        status = cup__checkpoint_commit(&c->error, folder, files, shards, &state.text);
    else
        cup__checkpoint_drop(folder, files, written);
    cup__lock_drop(&lock);
    cup__text_free(&state.text);
    return status;
}

static int32_t read_shards(cup_context *c, const char *folder)
{
    static const char *const names[TENSORS] = {"a", "b", "c", "d"};
    cup_named list[TENSORS];
    cup__checkpoint checkpoint;
    int32_t got[3000];
    int64_t step;
    cup_scope_open(c);
    for (int i = 0; i < TENSORS; i++)
        list[i] = (cup_named){names[i], filled(c, -1)};
    if (cup__checkpoint_open(&c->error, folder, &checkpoint) != CUP_OK ||
        cup__checkpoint_fill(c, &checkpoint, PART, list, TENSORS) != CUP_OK)
        test_fail(__FILE__, __LINE__, "%s", cup_error_text(c));
    EXPECT_INT(cup__json_get_integer(&c->error, &checkpoint.json, checkpoint.state, "step", 0,
                                     INT32_MAX, &step),
               CUP_OK);
    for (int i = 0; i < TENSORS; i++) {
        EXPECT_INT(cup_tensor_read(list[i].tensor, got, sizeof got), CUP_OK);
        for (int j = 0; j < 3000; j++)
            EXPECT_INT(got[j], step);
    }
    cup__checkpoint_close(&checkpoint);
    cup_scope_close(c);
    return (int32_t)step;
}

static const int numbers[] = {1, 4, 2, 3};

/* The files of another number of writers are replaced, and what is replaced goes. */
TEST(checkpoint_shards_of_any_number)
{
    const char *folder = test_folder();
    cup_context *c = cpu();
    for (int32_t value = 1; value < 14; value++) {
        int shards = numbers[value * 7 % 4];
        EXPECT_INT(save_shards(c, folder, value, shards), CUP_OK);
        EXPECT_INT(read_shards(c, folder), value);
        EXPECT_INT(count_files(folder), shards + 1);
        EXPECT(cup__checkpoint_number(folder) == (uint64_t)value);
    }
    cup_context_free(c);
}

/* The next save may be of fewer writers than the one that was killed, and the next of more. */
TEST(checkpoint_shards_are_whole_after_a_kill_at_every_operation)
{
    const char *folder = test_folder();
    char path[4400];
    cup_context *c = cpu();
    bool killed = true, seen[2] = {0};
    for (long n = 1; killed; n++) {
        int status, shards = numbers[n % 4];
        EXPECT_INT(save_shards(c, folder, 1, numbers[(n + 1) % 4]), CUP_OK);
        pid_t child = fork();
        if (child == 0) {
            cup_context *own = cpu();
            cup__fault_at(n, true);
            _exit(save_shards(own, folder, 2, shards) != CUP_OK);
        }
        EXPECT_INT(waitpid(child, &status, 0), child);
        killed = WIFSIGNALED(status);
        int32_t found = read_shards(c, folder);
        EXPECT(found == 2 || (killed && found == 1));
        seen[found - 1] = true;
        snprintf(path, sizeof path, "%s/.cupola.lock", folder);
        EXPECT_INT(count_files(folder), (found == 2 ? shards : numbers[(n + 1) % 4]) + 1 +
                                            cup__file_exists(path));
        EXPECT(n < 200);
    }
    EXPECT(seen[0] && seen[1]);
    cup_context_free(c);
}

TEST(checkpoint_shards_are_whole_after_a_failure_of_every_operation)
{
    const char *folder = test_folder();
    cup_context *c = cpu();
    cup_status status = CUP_IO;
    for (long n = 1; status != CUP_OK; n++) {
        int before = numbers[(n + 1) % 4], shards = numbers[n % 4];
        EXPECT_INT(save_shards(c, folder, 1, before), CUP_OK);
        cup__fault_at(n, false);
        status = save_shards(c, folder, 2, shards);
        cup__fault_at(0, false);
        cup_error_clear(c);
        int32_t found = read_shards(c, folder);
        EXPECT(found == 2 || (status != CUP_OK && found == 1));
        EXPECT_INT(count_files(folder), (found == 2 ? shards : before) + 1);
        EXPECT(n < 200);
    }
    cup_context_free(c);
}

/* A shard that is missing, damaged or of another save is noticed, by who reads a share, too. */
TEST(checkpoint_shards_are_checked)
{
    const char *folder = test_folder();
    char out[1000];
    cup__error error = {0};
    cup__checkpoint checkpoint;
    cup_context *c = cpu();
    EXPECT_INT(save_shards(c, folder, 1, 3), CUP_OK);
    for (int rank = 0; rank < 2; rank++) {
        EXPECT_INT(cup__checkpoint_open_share(&error, folder, rank, 2, &checkpoint), CUP_OK);
        cup__checkpoint_close(&checkpoint);
    }
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s' && printf x | dd conv=notrunc bs=1 seek=900 "
                            "of=model-00002-of-00003.safetensors",
                            folder),
               0);
    EXPECT_INT(cup__checkpoint_open_share(&error, folder, 0, 2, &checkpoint), CUP_OK);
    cup__checkpoint_close(&checkpoint);
    EXPECT_INT(cup__checkpoint_open_share(&error, folder, 1, 2, &checkpoint), CUP_FORMAT);
    EXPECT_CONTAINS(error.text, "model-00002-of-00003.safetensors is missing, damaged");
    EXPECT_INT(cup__checkpoint_open(NULL, folder, &checkpoint), CUP_FORMAT);
    EXPECT_INT(test_command(out, sizeof out, "rm '%s'/model-00002-*", folder), 0);
    EXPECT_INT(cup__checkpoint_open_share(NULL, folder, 0, 2, &checkpoint), CUP_FORMAT);
    cup_context_free(c);
}

/* What a shard would replace stands in the way of a new run as the whole does. */
TEST(checkpoint_shards_replace_nothing_of_others)
{
    static const char *const names[] = {PART, NULL};
    const char *folder = test_folder();
    char path[4400];
    cup__error error = {0};
    snprintf(path, sizeof path, "%s/model-00001-of-00009.safetensors", folder);
    EXPECT_INT(cup__file_write(NULL, path, "x", 1), CUP_OK);
    EXPECT_INT(cup__checkpoint_vacant(&error, folder, names), CUP_ARGUMENT);
    EXPECT_CONTAINS(error.text, "model-00001-of-00009.safetensors is there and would be replaced");
}

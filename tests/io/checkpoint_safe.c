/* What must not be lost: faults and kills at every operation of a save, bytes that change in
 * state.json, files of others, two writers. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/lock.h"
#include "base/memory.h"
#include "io/support.h"
#include "test.h"

/* Saves `value` in a process of its own that is killed at its n-th operation on files. Returns
 * whether it came so far. */
static bool killed_at(const char *folder, int32_t value, long n)
{
    pid_t child = fork();
    if (child == 0) {
        cup_context *own = cpu();
        cup__fault_at(n, true);
        _exit(save_value(own, folder, value) != CUP_OK);
    }
    int status;
    EXPECT_INT(waitpid(child, &status, 0), child);
    EXPECT(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
}

/* Whether state.json has a checksum of its own. */
static bool is_checked(const char *folder)
{
    cup__json json;
    EXPECT_INT(cup__checkpoint_state(NULL, folder, &json), CUP_OK);
    bool found = cup__json_find(json.root, "hash") != NULL;
    cup__json_free(&json);
    return found;
}

/* Opening mends: behind it the files have their names, the new ones or the old. */
TEST(checkpoint_is_whole_after_a_kill_at_every_operation)
{
    const char *folder = test_folder();
    cup_context *c = cpu();
    char path[4400];
    int32_t value = 1;
    EXPECT_INT(save_value(c, folder, value), CUP_OK);
    bool new_seen = false, old_seen = false;
    for (long n = 1;; n++) {
        bool killed = killed_at(folder, value + 1, n);
        int32_t found = read_value(c, folder);
        EXPECT(found == value || found == value + 1);
        EXPECT(killed || found == value + 1);
        /* The lock file of the killed process may stay; whoever takes it next takes it away. */
        snprintf(path, sizeof path, "%s/.cupola.lock", folder);
        EXPECT_INT(count_files(folder), 4 + cup__file_exists(path));
        if (!killed) {
            EXPECT(n > 20);
            break;
        }
        new_seen |= found == value + 1;
        old_seen |= found == value;
        value = found;
    }
    EXPECT(new_seen && old_seen);
    cup_context_free(c);
}

TEST(checkpoint_is_whole_after_a_failure_of_every_operation)
{
    const char *folder = test_folder();
    cup_context *c = cpu();
    int32_t value = 1;
    EXPECT_INT(save_value(c, folder, value), CUP_OK);
    cup_status status = CUP_IO;
    for (long n = 1; status != CUP_OK; n++) {
        cup__fault_at(n, false);
        status = save_value(c, folder, value + 1);
        cup__fault_at(0, false);
        EXPECT(status == CUP_OK || status == CUP_IO);
        EXPECT(status == CUP_OK || strstr(cup_error_text(c), "the disk reported an error"));
        cup_error_clear(c);
        int32_t found = read_value(c, folder);
        EXPECT(found == value || found == value + 1);
        EXPECT_INT(count_files(folder), 4);
        value = found;
        EXPECT(n < 100);
    }
    cup_context_free(c);
}

static void put(const char *path, const char *text, size_t size)
{
    EXPECT_INT(cup__file_write(NULL, path, text, size), CUP_OK);
}

TEST(checkpoint_refuses_every_changed_byte_of_its_state)
{
    const char *folder = test_folder();
    char path[4400], *text;
    size_t size;
    cup_context *c = cpu();
    EXPECT_INT(save_value(c, folder, 5), CUP_OK);
    snprintf(path, sizeof path, "%s/state.json", folder);
    EXPECT_INT(cup__file_read(NULL, path, 1 << 20, &text, &size), CUP_OK);
    static const unsigned char changes[] = {1, 2, 3, 4, 8, 16, 32, 0x80};
    for (size_t i = 0; i < size; i++)
        for (size_t k = 0; k < sizeof changes; k++) {
            cup__error error = {0};
            cup__checkpoint checkpoint;
            text[i] = (char)(text[i] ^ changes[k]);
            int handle = open(path, O_WRONLY | O_TRUNC);
            EXPECT(handle >= 0 && write(handle, text, size) == (ssize_t)size && !close(handle));
            if (cup__checkpoint_open(&error, folder, &checkpoint) == CUP_OK)
                test_fail(__FILE__, __LINE__, "byte %zu changed to %d is not noticed", i, text[i]);
            EXPECT_INT(error.status, CUP_FORMAT);
            EXPECT_CONTAINS(error.text, "state.json");
            text[i] = (char)(text[i] ^ changes[k]);
        }
    put(path, text, size - 1);
    EXPECT_INT(cup__checkpoint_open(NULL, folder, &(cup__checkpoint){0}), CUP_FORMAT);
    put(path, text, size);
    EXPECT_INT(read_value(c, folder), 5);
    EXPECT(is_checked(folder));
    cup__free(text);
    cup_context_free(c);
}

/* Version 0.1.0 wrote no checksum of state.json. */
TEST(checkpoint_without_a_checksum_is_read)
{
    const char *folder = test_folder();
    char out[1000];
    cup_context *c = cpu();
    EXPECT_INT(save_value(c, folder, 5), CUP_OK);
    EXPECT_INT(test_command(out, sizeof out,
                            "sed -i 's/\"schema\": 2/\"schema\": 1/' '%s/state.json'", folder),
               0);
    EXPECT_INT(cup__checkpoint_open(NULL, folder, &(cup__checkpoint){0}), CUP_FORMAT);
    EXPECT_INT(test_command(out, sizeof out,
                            "sed -i -z 's/,\\n  \"hash\": \"[0-9a-f]*\"\\n}\\n$/\\n}\\n/' "
                            "'%s/state.json'; tail -n 3 '%s/state.json'",
                            folder, folder),
               0);
    EXPECT(!strstr(out, "hash"));
    EXPECT_INT(read_value(c, folder), 5);
    EXPECT(!is_checked(folder));
    EXPECT_INT(save_value(c, folder, 6), CUP_OK);
    EXPECT(is_checked(folder));
    cup_context_free(c);
}

static const char *const names[] = {"model.safetensors", "losses.csv", NULL};

static void expect_taken(const char *folder, cup_status status, const char *words)
{
    cup__error error = {0};
    EXPECT_INT(cup__checkpoint_vacant(&error, folder, names), status);
    EXPECT_CONTAINS(error.text, words);
}

TEST(checkpoint_replaces_nothing_of_others)
{
    char folder[4400], path[4500], out[1000];
    cup_context *c = cpu();
    snprintf(folder, sizeof folder, "%s/run", test_folder());
    EXPECT_INT(cup__checkpoint_vacant(NULL, folder, names), CUP_OK);
    EXPECT_INT(cup__folder_make(NULL, folder), CUP_OK);
    snprintf(path, sizeof path, "%s/other.txt", folder);
    put(path, "x", 1);
    EXPECT_INT(cup__checkpoint_vacant(NULL, folder, names), CUP_OK);
    snprintf(path, sizeof path, "%s/losses.csv", folder);
    put(path, "x", 1);
    expect_taken(folder, CUP_ARGUMENT, "losses.csv is there");
    EXPECT_INT(unlink(path), 0);
    EXPECT(symlink("nowhere", path) == 0);
    expect_taken(folder, CUP_ARGUMENT, "losses.csv is there");
    EXPECT_INT(unlink(path), 0);
    EXPECT_INT(save_value(c, folder, 1), CUP_OK);
    expect_taken(folder, CUP_ARGUMENT, "holds the checkpoint of a run");
    snprintf(path, sizeof path, "%s/state.json", folder);
    put(path, "{\"schema\": 9}", 13);
    expect_taken(folder, CUP_FORMAT, "later version");
    put(path, "garbage", 7);
    expect_taken(folder, CUP_FORMAT, "not valid JSON");
    EXPECT_INT(test_command(out, sizeof out, "rm '%s' && mkdir '%s'", path, path), 0);
    expect_taken(folder, CUP_FORMAT, "state.json");
    cup_context_free(c);
}

/* Names that only look like those of an interrupted save are other people's files. */
TEST(checkpoint_leaves_other_files_alone)
{
    static const char *const others[] = {"model.safetensors.new.tmp.keep",
                                         "model.safetensors.newer", "model.safetensors.new.tmp.7",
                                         "state.json.tmp.7.b", "model.safetensors.newest.new"};
    const char *folder = test_folder();
    char path[4500];
    cup_context *c = cpu();
    EXPECT_INT(save_value(c, folder, 1), CUP_OK);
    for (size_t i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, others[i]);
        put(path, "x", 1);
    }
    snprintf(path, sizeof path, "%s/model.safetensors.new.tmp.12.0", folder);
    put(path, "x", 1);
    EXPECT_INT(count_files(folder), 10);
    EXPECT_INT(save_value(c, folder, 2), CUP_OK);
    EXPECT_INT(count_files(folder), 9);
    cup_context_free(c);
}

/* A checkpoint that is damaged keeps its new files: they may be what somebody puts it together
 * from. */
TEST(checkpoint_that_is_damaged_is_not_mended)
{
    const char *folder = test_folder();
    char out[1000];
    cup_context *c = cpu();
    EXPECT_INT(save_value(c, folder, 1), CUP_OK);
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s' && mv model.safetensors model.safetensors.new && "
                            "truncate -s -3 optimizer.safetensors",
                            folder),
               0);
    EXPECT_INT(cup__checkpoint_open(NULL, folder, &(cup__checkpoint){0}), CUP_FORMAT);
    EXPECT_INT(count_files(folder), 4);
    EXPECT_INT(test_command(out, sizeof out, "ls '%s/model.safetensors.new'", folder), 0);
    cup_context_free(c);
}

TEST(lock_names_its_holder_and_ends_with_it)
{
    const char *folder = test_folder();
    cup__lock lock, other;
    char holder[40];
    int ends[2];
    EXPECT_INT(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        if (cup__lock_take(NULL, folder, 0, &lock) == CUP_OK && write(ends[1], "x", 1) == 1)
            pause();
        _exit(1);
    }
    EXPECT_INT(read(ends[0], holder, 1), 1);
    cup__error error = {0};
    EXPECT_INT(cup__lock_take(&error, folder, 0.05, &other), CUP_STATE);
    snprintf(holder, sizeof holder, "in use by process %ld", (long)child);
    EXPECT_CONTAINS(error.text, holder);
    /* Who only reads is not kept from it. */
    cup_context *c = cpu();
    EXPECT_INT(cup__checkpoint_open(NULL, folder, &(cup__checkpoint){0}), CUP_FORMAT);
    EXPECT_INT(kill(child, SIGKILL), 0);
    EXPECT_INT(waitpid(child, NULL, 0), child);
    EXPECT_INT(count_files(folder), 1);
    EXPECT_INT(cup__lock_take(NULL, folder, 0, &lock), CUP_OK);
    EXPECT_INT(cup__lock_take(NULL, folder, 0, &other), CUP_STATE);
    cup__lock_drop(&other);
    cup__lock_drop(&lock);
    EXPECT_INT(count_files(folder), 0);
    cup_context_free(c);
}

#include "test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/memory.h"
#include "io/support.h"

TEST(checkpoint_round_trip)
{
    char folder[4400];
    snprintf(folder, sizeof folder, "%s/new/run", test_folder());
    cup_context *c = cpu();
    EXPECT(cup__checkpoint_number(folder) == 0);
    for (int32_t value = 1; value < 4; value++) {
        EXPECT_INT(save_value(c, folder, value), CUP_OK);
        EXPECT_INT(read_value(c, folder), value);
        EXPECT_INT(count_files(folder), 4);
        EXPECT(cup__checkpoint_number(folder) == (uint64_t)value);
    }
    cup_context_free(c);
}

static void shell(const char *format, const char *a, const char *b)
{
    char out[1000];
    if (test_command(out, sizeof out, format, a, b) != 0)
        test_fail(__FILE__, __LINE__, "%s: %s", format, out);
}

/* Every state that a kill can leave behind, made by hand: files of the new save beside a state.json
 * of the old, then beside its own, with any number of them renamed. */
TEST(checkpoint_every_interruption)
{
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors",
                                        "tokenizer.json"};
    char folder[4400], before[4400], after[4400];
    const char *root = test_folder();
    snprintf(folder, sizeof folder, "%s/run", root);
    snprintf(before, sizeof before, "%s/before", root);
    snprintf(after, sizeof after, "%s/after", root);
    cup_context *c = cpu();
    EXPECT_INT(save_value(c, before, 1), CUP_OK);
    shell("cp -r '%s' '%s'", before, after);
    EXPECT_INT(save_value(c, after, 2), CUP_OK);
    for (int state = 0; state < 2; state++)
        for (int renamed = 0; renamed <= (state ? 3 : 0); renamed++)
            for (int written = state ? 3 : 0; written <= 3; written++) {
                shell("rm -rf '%s'%s", folder, "");
                shell("cp -r '%s' '%s'", before, folder);
                for (int i = 0; i < 3; i++) {
                    char from[4500], to[4500];
                    snprintf(from, sizeof from, "%s/%s", after, names[i]);
                    snprintf(to, sizeof to, "%s/%s%s", folder, names[i], i < renamed ? "" : ".new");
                    if (i < written)
                        shell("cp '%s' '%s'", from, to);
                }
                if (state) {
                    char from[4500];
                    snprintf(from, sizeof from, "%s/state.json", after);
                    shell("cp '%s' '%s/'", from, folder);
                } else {
                    shell("echo part > '%s/state.json.tmp.7.1'; echo part > "
                          "'%s/model.safetensors.new.tmp.7.0'",
                          folder, folder);
                }
                EXPECT_INT(read_value(c, folder), state ? 2 : 1);
                EXPECT_INT(save_value(c, folder, 3), CUP_OK);
                EXPECT_INT(read_value(c, folder), 3);
                EXPECT_INT(count_files(folder), 4);
            }
    cup_context_free(c);
}

static void save_until_killed(cup_context *c, const char *folder, int pipe, int32_t value)
{
    for (;; value++) {
        if (save_value(c, folder, value) != CUP_OK)
            _exit(1);
        if (write(pipe, &value, sizeof value) != sizeof value)
            _exit(2);
    }
}

/* Kills a process that saves without pause at random moments. What it said it had saved, or
 * something newer, must be there each time. */
TEST_LIMITED(checkpoint_survives_kill, 60)
{
    const char *folder = test_folder();
    cup_context *c = cpu();
    int32_t saved = 0, value;
    double longest = 1000;
    EXPECT_INT(save_value(c, folder, 0), CUP_OK);
    for (int round = 0; round < 40 || saved < 20; round++) {
        int32_t before = saved;
        int ends[2];
        EXPECT_INT(pipe(ends), 0);
        pid_t child = fork();
        if (child == 0)
            save_until_killed(c, folder, ends[1], saved + 1);
        close(ends[1]);
        usleep((useconds_t)test_uniform(0, longest));
        kill(child, SIGKILL);
        while (read(ends[0], &value, sizeof value) == sizeof value)
            saved = value;
        close(ends[0]);
        int status;
        EXPECT_INT(waitpid(child, &status, 0), child);
        EXPECT(WIFSIGNALED(status));
        int32_t found = read_value(c, folder);
        EXPECT(found == saved || found == saved + 1);
        /* The disk may be slow, or busy: wait longer until saves are completed. */
        longest *= found > before ? 0.9 : 1.3;
        saved = found;
    }
    EXPECT_INT(save_value(c, folder, saved), CUP_OK);
    EXPECT_INT(count_files(folder), 4);
    cup_context_free(c);
}

/* A reader beside a writer always finds a whole checkpoint, and never an older one than before. */
TEST_LIMITED(checkpoint_can_be_read_while_saving, 60)
{
    const char *folder = test_folder();
    cup_context *c = cpu();
    int ends[2];
    EXPECT_INT(save_value(c, folder, 0), CUP_OK);
    EXPECT_INT(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0)
        save_until_killed(c, folder, ends[1], 1);
    int32_t last = 0;
    for (int i = 0; i < 100 || last < 3; i++) {
        int32_t found = read_value(c, folder);
        EXPECT(found >= last);
        last = found;
    }
    kill(child, SIGKILL);
    EXPECT_INT(waitpid(child, NULL, 0), child);
    close(ends[0]);
    close(ends[1]);
    cup_context_free(c);
}

static void expect_refused(const char *folder, const char *words)
{
    cup__error error = {0};
    cup__checkpoint checkpoint;
    cup_status status = cup__checkpoint_open(&error, folder, &checkpoint);
    EXPECT(status == CUP_FORMAT || status == CUP_IO);
    EXPECT_CONTAINS(error.text, folder);
    EXPECT_CONTAINS(error.text, words);
    cup__checkpoint_close(&checkpoint);
}

TEST(checkpoint_bad_folders_have_sentences)
{
    const char *folder = test_folder();
    char other[4400];
    snprintf(other, sizeof other, "%s/other", folder);
    cup_context *c = cpu();
    expect_refused(other, "is no folder");
    expect_refused(folder, "holds no finished checkpoint");
    EXPECT_INT(save_value(c, other, 2), CUP_OK);
    EXPECT_INT(save_value(c, folder, 1), CUP_OK);
    shell("mv '%s/model.safetensors' '%s/keep'", folder, folder);
    expect_refused(folder, "model.safetensors is missing, damaged or from another save");
    shell("cp '%s/model.safetensors' '%s/'", other, folder);
    expect_refused(folder, "from another save than state.json");
    shell("head -c -1 '%s/keep' > '%s/model.safetensors'", folder, folder);
    expect_refused(folder, "damaged");
    shell("cp '%s/keep' '%s/model.safetensors'", folder, folder);
    shell("printf x | dd of='%s/model.safetensors' bs=1 seek=500 conv=notrunc status=none%s",
          folder, "");
    expect_refused(folder, "damaged");
    shell("cp '%s/keep' '%s/model.safetensors'", folder, folder);
    EXPECT_INT(read_value(c, folder), 1);
    shell("echo '{\"schema\":0}' > '%s/state.json'%s", folder, "");
    expect_refused(folder, "\"schema\" must be");
    shell("echo '{\"schema\":2,\"files\":{},\"state\":{}}' > '%s/state.json'%s", folder, "");
    expect_refused(folder, "is damaged or was edited");
    shell("echo '{\"schema\":5}' > '%s/state.json'%s", folder, "");
    expect_refused(folder, "is of a later version of Cupola");
    shell("echo '{\"schema\":1,\"files\":{\"../x\":{}},\"state\":{}}' > '%s/state.json'%s", folder,
          "");
    expect_refused(folder, "\"../x\" is no name of a file beside it");
    shell("echo '{\"schema\":1,\"files\":{\"x\":{\"bytes\":-1}},\"state\":{}}' > '%s/state.json'%s",
          folder, "");
    expect_refused(folder, "\"bytes\" must be");
    shell("echo '{\"schema\":1,\"files\":[],\"state\":{}}' > '%s/state.json'%s", folder, "");
    expect_refused(folder, "\"files\" must be an object");
    shell("echo '{\"schema\":1,\"files\":{}}' > '%s/state.json'%s", folder, "");
    expect_refused(folder, "no key \"state\"");
    shell(": > '%s/state.json'%s", folder, "");
    expect_refused(folder, "not valid JSON");
    EXPECT_INT(save_value(c, folder, 5), CUP_OK);
    EXPECT_INT(read_value(c, folder), 5);
    cup_context_free(c);
}

TEST(checkpoint_of_another_model)
{
    const char *folder = test_folder();
    cup_context *c = cpu();
    cup__checkpoint checkpoint;
    EXPECT_INT(save_value(c, folder, 1), CUP_OK);
    EXPECT_INT(cup__checkpoint_open(NULL, folder, &checkpoint), CUP_OK);
    cup_named one = {"w", filled(c, 0)};
    EXPECT_INT(cup__checkpoint_fill(c, &checkpoint, "model.safetensors", &one, 1), CUP_FORMAT);
    EXPECT_CONTAINS(cup_error_text(c), "holds 2 tensors, but 1 are needed");
    cup_error_clear(c);
    EXPECT_INT(cup__checkpoint_fill(c, &checkpoint, "none", &one, 1), CUP_FORMAT);
    EXPECT_CONTAINS(cup_error_text(c), "has no none");
    cup_error_clear(c);
    cup__checkpoint_close(&checkpoint);
    static const char *const bad[] = {"", "../x", "a/b", "state.json", ".hidden", "x.new"};
    cup__text state = {0};
    cup__text_add(&state, "{}");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cup__checkpoint_part part = {.name = bad[i], .bytes = "x", .size = 1};
        EXPECT_INT(cup__checkpoint_save(c, folder, &part, 1, &state), CUP_ARGUMENT);
        cup_error_clear(c);
    }
    EXPECT_INT(read_value(c, folder), 1);
    cup__text_free(&state);
    cup_context_free(c);
}

/* A limit on file sizes stands for a full disk: the old checkpoint stays, nothing is left over. */
TEST(checkpoint_full_disk)
{
    const char *folder = test_folder();
    cup_context *c = cpu();
    EXPECT_INT(save_value(c, folder, 1), CUP_OK);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, limit;
    EXPECT_INT(getrlimit(RLIMIT_FSIZE, &old), 0);
    for (rlim_t room = 0; room < 25000; room += 5000) {
        limit = (struct rlimit){room, old.rlim_max};
        EXPECT_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
        cup_status status = save_value(c, folder, 2);
        EXPECT_INT(setrlimit(RLIMIT_FSIZE, &old), 0);
        EXPECT_INT(status, CUP_IO);
        EXPECT_CONTAINS(cup_error_text(c), "cannot be written");
        cup_error_clear(c);
        EXPECT_INT(read_value(c, folder), 1);
        EXPECT_INT(count_files(folder), 4);
    }
    cup_context_free(c);
}

TEST(checkpoint_allocation_failures)
{
    const char *folder = test_folder();
    cup_context *c = cpu();
    int32_t value = 1;
    EXPECT_INT(save_value(c, folder, value), CUP_OK);
    cup_named model[] = {{"w", filled(c, 9)}, {"b", filled(c, 9)}};
    cup__checkpoint_part parts[] = {{.name = "model.safetensors", .tensors = model, .count = 2},
                                    {.name = "tokenizer.json", .bytes = "x", .size = 1}};
    cup__text state = {0};
    cup__text_add(&state, "{\"step\": 9}");
    cup_status status = CUP_MEMORY;
    cup__lock lock;
    EXPECT_INT(cup__lock_take(NULL, folder, 1, &lock), CUP_OK);
    for (long n = 1; status != CUP_OK; n++) {
        cup__memory_fail_at(n, false);
        status = cup__checkpoint_save(c, folder, parts, 2, &state);
        cup__memory_fail_at(0, false);
        EXPECT(status == CUP_OK || (status == CUP_MEMORY && cup_error(c) == status && n < 1000));
        cup_error_clear(c);
        cup__checkpoint checkpoint;
        EXPECT_INT(cup__checkpoint_open(&(cup__error){0}, folder, &checkpoint), CUP_OK);
        cup__checkpoint_close(&checkpoint);
    }
    status = CUP_MEMORY;
    for (long n = 1; status != CUP_OK; n++) {
        cup__checkpoint checkpoint;
        cup__error error = {0};
        cup__memory_fail_at(n, false);
        status = cup__checkpoint_open(&error, folder, &checkpoint);
        if (status == CUP_OK)
            status = cup__checkpoint_fill(c, &checkpoint, "model.safetensors", model, 2);
        cup__memory_fail_at(0, false);
        EXPECT(status == CUP_OK || (status == CUP_MEMORY && n < 300));
        EXPECT(status == CUP_OK || error.text[0] || cup_error(c) == CUP_MEMORY);
        cup_error_clear(c);
        cup__checkpoint_close(&checkpoint);
    }
    cup__text_free(&state);
    cup__lock_drop(&lock);
    cup_context_free(c);
}

/* What a run must not lose: its checkpoint when it is killed at a save, and the files of others. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/memory.h"
#include "test.h"
#include "train/session.h"

static void put(const char *folder, const char *name, const char *text)
{
    char path[4500];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    EXPECT_INT(cup__file_write(NULL, path, text, strlen(text)), CUP_OK);
}

static void expect_text(const char *folder, const char *name, const char *want)
{
    char path[4500], *text;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    EXPECT_INT(cup__file_read(NULL, path, 1 << 20, &text, NULL), CUP_OK);
    EXPECT_TEXT(text, want);
    cup__free(text);
}

static cup_training short_run(void)
{
    cup_training training = tiny;
    training.steps = 2;
    training.evaluate_every = 2;
    training.save_every = 1;
    return training;
}

/* The run, from the checkpoint if there is one, in a process that is killed at its n-th operation
 * on files. Returns whether it was. */
static bool killed_at(const cup_training *training, const char *folder, bool resumes, long n)
{
    pid_t child = fork();
    if (child == 0) {
        session s;
        cup__fault_at(n, true);
        begin(&s, training, sample_text(), folder);
        if (resumes)
            cup_trainer_resume(s.trainer);
        _exit(go(&s) != CUP_OK);
    }
    int status;
    EXPECT_INT(waitpid(child, &status, 0), child);
    EXPECT(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
}

/* After each kill the folder is opened, by a resume or by a reader; then its files are those of one
 * save, under their names, and at last those of a run that nobody killed. */
TEST_LIMITED(trainer_loses_nothing_when_killed_at_any_operation, 240)
{
    const char *root = test_folder();
    char folder[4400], out[1000];
    cup_training training = short_run();
    cup_training_point whole[MOST_POINTS], got[MOST_POINTS];
    session s;
    begin(&s, &training, sample_text(), NULL);
    EXPECT_INT(go(&s), CUP_OK);
    int64_t count = points_of(&s, whole);
    end(&s);
    for (long n = 1;; n++) {
        snprintf(folder, sizeof folder, "%s/%ld", root, n);
        bool killed = killed_at(&training, folder, false, n);
        begin(&s, &training, sample_text(), folder);
        char state[4500];
        snprintf(state, sizeof state, "%s/state.json", folder);
        if (cup__file_exists(state)) {
            EXPECT_INT(cup_trainer_resume(s.trainer), CUP_OK);
            EXPECT_INT(test_command(out, sizeof out, "ls '%s'", folder), 0);
            EXPECT_TEXT(out, "losses.csv\nmodel.safetensors\noptimizer.safetensors\nstate.json\n"
                             "tokenizer.json\n");
        }
        EXPECT_INT(go(&s), CUP_OK);
        EXPECT_INT(points_of(&s, got), count);
        expect_same_points(whole, got, count);
        end(&s);
        EXPECT_INT(test_command(out, sizeof out, "rm -r '%s'", folder), 0);
        if (!killed) {
            EXPECT(n > 40);
            break;
        }
    }
}

TEST(trainer_holds_its_folder)
{
    const char *folder = test_folder();
    char text[60];
    cup_training training = short_run();
    session s, other;
    begin(&s, &training, sample_text(), folder);
    EXPECT_INT(cup_error(s.c), CUP_OK);
    begin(&other, &training, sample_text(), folder);
    EXPECT(!other.trainer);
    EXPECT_INT(cup_error(other.c), CUP_STATE);
    snprintf(text, sizeof text, "is in use by process %ld", (long)getpid());
    EXPECT_CONTAINS(cup_error_text(other.c), text);
    end(&other);
    EXPECT_INT(go(&s), CUP_OK);
    end(&s);
    begin(&s, &training, sample_text(), folder);
    EXPECT_INT(cup_trainer_resume(s.trainer), CUP_OK);
    end(&s);
}

TEST(trainer_replaces_nothing_unasked)
{
    const char *folder = test_folder();
    cup_training training = short_run();
    session s;
    put(folder, "model.safetensors", "years of work");
    begin(&s, &training, sample_text(), folder);
    EXPECT_INT(go(&s), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(s.c), "model.safetensors is there and would be replaced");
    end(&s);
    begin(&s, &training, sample_text(), folder);
    EXPECT_INT(cup_trainer_save(s.trainer), CUP_ARGUMENT);
    end(&s);
    expect_text(folder, "model.safetensors", "years of work");
    put(folder, "state.json", "{\"schema\": 7}");
    begin(&s, &training, sample_text(), folder);
    EXPECT_INT(go(&s), CUP_FORMAT);
    EXPECT_CONTAINS(cup_error_text(s.c), "later version");
    cup_error_clear(s.c);
    EXPECT_INT(cup_trainer_overwrite(s.trainer), CUP_OK);
    EXPECT_INT(go(&s), CUP_OK);
    end(&s);
    begin(&s, &training, sample_text(), folder);
    EXPECT_INT(go(&s), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(s.c), "holds the checkpoint of a run");
    cup_error_clear(s.c);
    EXPECT_INT(cup_trainer_resume(s.trainer), CUP_OK);
    EXPECT_INT(cup_trainer_steps(s.trainer), 2);
    end(&s);
}

/* The step of a checkpoint as 0.1.0 wrote it stands under no checksum; the losses tell. */
TEST(trainer_holds_the_step_against_the_losses)
{
    const char *folder = test_folder();
    char out[1000];
    cup_training training = short_run();
    session s;
    begin(&s, &training, sample_text(), folder);
    EXPECT_INT(go(&s), CUP_OK);
    end(&s);
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s' && sed -i -z -e 's/\"schema\": 2/\"schema\": 1/' "
                            "-e 's/,\\n  \"hash\": \"[0-9a-f]*\"\\n}\\n$/\\n}\\n/' state.json",
                            folder),
               0);
    begin(&s, &training, sample_text(), folder);
    EXPECT_INT(cup_trainer_resume(s.trainer), CUP_OK);
    end(&s);
    EXPECT_INT(test_command(out, sizeof out,
                            "cd '%s' && sed -i 's/\"step\": 2/\"step\": 1/' state.json", folder),
               0);
    begin(&s, &training, sample_text(), folder);
    EXPECT_INT(cup_trainer_resume(s.trainer), CUP_FORMAT);
    EXPECT_CONTAINS(cup_error_text(s.c), "1 steps were done, and losses.csv does not tell");
    end(&s);
}

/* Checkpoints that several processes write, each its share, and any number goes on from. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/memory.h"
#include "comm/together.h"
#include "test.h"
#include "train/layered.h"

/* One run in two pieces, of any numbers of processes, saved beside the steps or not. */
typedef struct piece {
    const char *folder;
    int64_t until;
    layered_how how;
} piece;

static void run_piece(cup_context *c, cup_comm *comm, void *user)
{
    const piece *p = user;
    layered m;
    layered_how how = p->how;
    how.folder = p->folder;
    how.steps = p->until;
    cup_loop *loop = layered_make(&m, c, comm, &how);
    if (loop && cup_loop_has_checkpoint(loop))
        cup_loop_resume(loop);
    cup_loop_run(loop, NULL);
    layered_end(&m, loop);
}

/* The test's folder, which can be asked for once. */
static const char *root(void)
{
    static char folder[400];
    snprintf(folder, sizeof folder, "%s", together_address() + strlen("file:"));
    *strrchr(folder, '/') = 0;
    return folder;
}

/* A folder in that, under a name that is a literal. */
static const char *in_folder(const char *name)
{
    static char path[8][500];
    static const char *names[8];
    int i = 0;
    while (names[i] && strcmp(names[i], name) != 0)
        i++;
    EXPECT(i < 8);
    names[i] = name;
    snprintf(path[i], sizeof path[i], "%s/%s", root(), name);
    return path[i];
}

static void expect_losses(const char *a, const char *b, double most)
{
    char *text[2];
    const char *const names[] = {a, b};
    char path[4500];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/losses.csv", names[i]);
        EXPECT_INT(cup__file_read(NULL, path, 1 << 20, &text[i], NULL), CUP_OK);
    }
    char *at = strchr(text[0], '\n'), *other = strchr(text[1], '\n');
    int lines = 0;
    for (; at && at[1] && other && other[1]; lines++) {
        double x = strtod(strchr(at + 1, ',') + 1, NULL);
        double y = strtod(strchr(other + 1, ',') + 1, NULL);
        if (!(fabs(x - y) <= most))
            test_fail(__FILE__, __LINE__, "line %d: %.9g and %.9g", lines, x, y);
        at = strchr(at + 1, '\n');
        other = strchr(other + 1, '\n');
    }
    EXPECT_INT(lines, LAYERED_STEPS);
    EXPECT(!at[1] && !other[1]);
    cup__free(text[0]);
    cup__free(text[1]);
}

static void run_pieces(const char *name, const int *counts, const layered_how *hows, int pieces)
{
    for (int i = 0; i < pieces; i++) {
        piece p = {in_folder(name), LAYERED_STEPS * (i + 1) / pieces, hows[i]};
        together(counts[i], run_piece, &p);
    }
}

TEST(saved_together_goes_on_with_any_number)
{
    static const int numbers[][3] = {{1, 2, 4}, {4, 1, 2}, {2, 4, 1}};
    static const layered_how plain[3], behind[] = {{.background = true, .save_every = 2},
                                                   {.background = true, .save_every = 1},
                                                   {.split = true, .background = true}};
    static const char *const names[] = {"first", "second", "third"};
    static const int one[] = {1};
    run_pieces("one", one, plain, 1);
    for (int i = 0; i < 3; i++) {
        run_pieces(names[i], numbers[i], behind, 3);
        expect_losses(in_folder("one"), in_folder(names[i]), 1e-5);
    }
}

TEST(saved_together_goes_on_at_any_stage)
{
    static const int numbers[][3] = {{2, 4, 4}, {4, 2, 2}, {1, 4, 2}};
    static const layered_how plain[3], stages[][3] = {
                                           {{.stage = 3, .background = true}, {0}, {.stage = 2}},
                                           {{.stage = 1}, {.stage = 3, .save_every = 1}, {0}},
                                           {{.stage = 3}, {.stage = 3}, {.stage = 3}}};
    static const char *const names[] = {"first", "second", "third"};
    static const int one[] = {1};
    run_pieces("one", one, plain, 1);
    for (int i = 0; i < 3; i++) {
        run_pieces(names[i], numbers[i], stages[i], 3);
        expect_losses(in_folder("one"), in_folder(names[i]), 1e-5);
    }
}

/* Each writes its share, and what another number of processes wrote goes. */
TEST(saved_together_has_the_shares_of_all)
{
    static const int counts[] = {4, 2};
    static const layered_how hows[2];
    char listed[1000];
    run_pieces("run", counts, hows, 2);
    EXPECT_INT(test_command(listed, sizeof listed, "ls '%s'", in_folder("run")), 0);
    EXPECT_TEXT(listed, "losses.csv\nmodel.safetensors\noptimizer-00001-of-00002.safetensors\n"
                        "optimizer-00002-of-00002.safetensors\nstate.json\n");
}

/* A checkpoint that is being written when the run comes apart is finished all the same. */
TEST(saved_behind_a_step_that_ends_the_run)
{
    layered m;
    cup_checkpoint found;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_loop *loop = layered_make(&m, c, NULL,
                                  &(layered_how){.folder = in_folder("run"), .background = true,
                                                 .save_every = 3, .breaks = 3});
    EXPECT_INT(cup_loop_run(loop, NULL), CUP_STATE);
    cup_loop_free(loop);
    cup_error_clear(c);
    EXPECT_INT(cup_checkpoint_look(c, in_folder("run"), &found), CUP_OK);
    EXPECT_INT(found.steps, 3);
    layered_end(&m, NULL);
    cup_context_free(c);
}

/* Processes that do not see one folder leave it to rank 0. */
static void run_apart(cup_context *c, cup_comm *comm, void *user)
{
    char path[4400];
    piece p = *(piece *)user;
    snprintf(path, sizeof path, "%s/of%d", p.folder, cup_comm_rank(comm));
    if (cup__folder_make(NULL, path) != CUP_OK || chdir(path))
        wrong("no folder %s", path);
    p.folder = "run";
    run_piece(c, comm, &p);
}

TEST(saved_together_by_rank_0_where_others_do_not_see_it)
{
    char listed[1000];
    for (int i = 0; i < 2; i++) {
        piece p = {root(), LAYERED_STEPS * (i + 1) / 2, {.split = i == 1, .background = i}};
        together(2, run_apart, &p);
    }
    EXPECT_INT(test_command(listed, sizeof listed, "cd '%s' && ls of0/run of1", root()), 0);
    EXPECT_TEXT(listed, "of0/run:\nlosses.csv\nmodel.safetensors\noptimizer.safetensors\n"
                        "state.json\n\nof1:\n");
    static const int one[] = {1};
    static const layered_how plain[1];
    run_pieces("one", one, plain, 1);
    expect_losses(in_folder("one"), in_folder("of0/run"), 1e-5);
}

/* A process that is killed at any operation of a save, or meets a full disk there: what the folder
 * then holds is whole, and a run goes on from it. */
typedef struct fault {
    piece piece;
    long n;
    int rank;
    bool kill;
} fault;

static void run_to_fault(cup_context *c, cup_comm *comm, void *user)
{
    const fault *f = user;
    if (cup_comm_rank(comm) == f->rank)
        cup__fault_at(f->n, f->kill);
    run_piece(c, comm, (void *)(uintptr_t)&f->piece);
}

/* Returns whether it came so far. */
static bool fails_at(const char *folder, int rank, long n, bool kill)
{
    together_end ends[2];
    char said[100];
    fault f = {{folder, LAYERED_STEPS, {.background = n % 2, .stage = n % 3 + 1, .save_every = 3}},
               n, rank, kill};
    together_look(2,
                  CUP_OPTIONS(cup_comm_options, .count = 2, .address = together_address(),
                              .timeout = 30),
                  run_to_fault, &f, ends);
    if (!ends[0].code && !ends[1].code)
        return false;
    if (ends[rank].code != (kill ? 128 + SIGKILL : 1))
        test_fail(__FILE__, __LINE__, "operation %ld of rank %d: %d, %d: %s", n, rank,
                  ends[0].code, ends[1].code, ends[rank].text);
    snprintf(said, sizeof said, "rank %d (process ", rank);
    EXPECT_CONTAINS(ends[!rank].text, said);
    EXPECT_CONTAINS(kill ? "the disk reported an error" : ends[rank].text,
                    "the disk reported an error");
    return true;
}

static void expect_whole(int rank, bool kill, int step)
{
    static const int two[] = {2};
    static const layered_how first[] = {{.split = true}};
    const char *folder = in_folder("run");
    char out[400];
    int times = 0;
    for (long n = 1 + rank; ; n += step, times++) {
        EXPECT_INT(test_command(out, sizeof out, "rm -rf '%s'; cp -r '%s' '%s' 2>&1", folder,
                                in_folder("half"), folder),
                   0);
        bool failed = fails_at(folder, rank, n, kill);
        run_pieces("run", two, first, 1);
        expect_losses(in_folder("one"), folder, 1e-5);
        if (!failed)
            break;
        EXPECT(n < 400);
    }
    EXPECT(times > 3);
}

static void prepare(void)
{
    static const int counts[] = {1, 2};
    static const layered_how plain[2];
    piece p = {in_folder("half"), 4, {.split = true}};
    run_pieces("one", counts, plain, 1);
    together(2, run_piece, &p);
}

TEST(saved_together_is_whole_after_a_kill)
{
    prepare();
    expect_whole(0, true, 7);
    expect_whole(1, true, 3);
}

TEST(saved_together_is_whole_after_a_failure)
{
    prepare();
    expect_whole(0, false, 11);
    expect_whole(1, false, 5);
}

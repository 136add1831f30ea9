/* Checkpoints of processes that have parts, stages or experts of a model: each writes its share,
 * and any other split goes on from them, or begins with their weights. */
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
#include "train/session.h"
#include "train/trainer.h"

/* How so many processes share out the model in a piece of a run. */
typedef struct split {
    int processes;
    int64_t tensor, stages, chunks, expert, ring;
    int zero;
    bool background;
} split;

typedef struct piece {
    cup_training training;
    const char *folder, *from;
    int64_t until;
    split split;
    /* The process that is killed at that operation, or finds the disk full; 0: none. */
    long fault;
    int rank;
    bool kill;
} piece;

static cup_training training_of(bool gated, int64_t experts)
{
    cup_training a = tiny;
    a.model.heads = 4;
    a.model.layers = 4;
    a.model.dropout = 0;
    a.model.bias = true;
    a.model.experts = experts;
    a.model.balance = experts ? 0.02 : 0;
    a.batch = 2;
    a.accumulate = 4;
    a.rate_end = a.rate;
    a.evaluate_every = 1;
    a.evaluate_texts = 3;
    if (gated) {
        a.model.bias = false;
        a.model.kv_heads = 2;
        a.model.hidden = 24;
        a.model.untied = true;
        a.model.positions = CUP_POSITIONS_ROTARY;
        a.model.norm = CUP_NORM_KIND_RMSNORM;
        a.model.mlp = CUP_MLP_KIND_SWIGLU;
    }
    return a;
}

static void run_piece(cup_context *c, cup_comm *comm, void *user)
{
    const piece *p = user;
    const char *text = sample_text();
    cup_training a = p->training;
    session s = {.c = c};
    s.corpus = cup_corpus_new(c, text, strlen(text));
    s.tokenizer = cup_tokenizer_char_new(c, s.corpus);
    s.data = cup_data_new(c, s.corpus, s.tokenizer, a.model.context);
    a.comm = comm;
    a.steps = p->until;
    a.from = p->from;
    a.tensor = p->split.tensor;
    a.stages = p->split.stages;
    a.chunks = p->split.chunks;
    a.expert = p->split.expert;
    a.ring = p->split.ring;
    a.optimizer.split = p->split.zero ? comm : NULL;
    a.optimizer.stage = p->split.zero;
    a.background = p->split.background;
    a.save_every = p->split.background || p->fault ? 2 : 0;
    if (p->fault && cup_comm_rank(comm) == p->rank)
        cup__fault_at(p->fault, p->kill);
    s.trainer = cup_trainer_new(c, s.data, s.tokenizer, p->folder, &a);
    if (s.trainer && cup_loop_has_checkpoint(s.trainer->loop))
        cup_trainer_resume(s.trainer);
    cup_trainer_run(s.trainer, NULL);
    cup_trainer_free(s.trainer);
    cup_data_free(s.data);
    cup_tokenizer_free(s.tokenizer);
    cup_corpus_free(s.corpus);
}

/* A run in as many pieces, each of which another split goes on with. */
static void run_pieces(const char *folder, const cup_training *training, const char *from,
                       const split *splits, int pieces)
{
    for (int i = 0; i < pieces; i++) {
        piece p = {.training = *training,
                   .folder = folder,
                   .from = i ? NULL : from,
                   .until = training->steps * (i + 1) / pieces,
                   .split = splits[i]};
        together(splits[i].processes, run_piece, &p);
    }
}

/* A folder in the test's; which is kept as long as the test runs. */
static const char *in_folder(const char *name)
{
    static char path[512][500];
    static int count;
    const char *root = together_address() + strlen("file:");
    EXPECT(count < 512);
    snprintf(path[count], sizeof path[0], "%.*s/%s", (int)(strrchr(root, '/') - root), root, name);
    return path[count++];
}

static void expect_losses(const char *a, const char *b, int steps)
{
    char *text[2], at[600];
    const char *const names[] = {a, b};
    for (int i = 0; i < 2; i++) {
        snprintf(at, sizeof at, "%s/losses.csv", names[i]);
        EXPECT_INT(cup__file_read(NULL, at, 1 << 20, &text[i], NULL), CUP_OK);
    }
    char *x = strchr(text[0], '\n'), *y = strchr(text[1], '\n');
    int lines = 0;
    for (; x && x[1] && y && y[1]; lines++) {
        double p = strtod(strchr(x + 1, ',') + 1, NULL), q = strtod(strchr(y + 1, ',') + 1, NULL);
        if (!(fabs(p - q) <= 2e-5 * fabs(p)))
            test_fail(__FILE__, __LINE__, "%s, line %d: %.9g and %.9g", b, lines, p, q);
        x = strchr(x + 1, '\n');
        y = strchr(y + 1, '\n');
    }
    EXPECT(lines >= steps);
    EXPECT(!x[1] && !y[1]);
    cup__free(text[0]);
    cup__free(text[1]);
}

static const split one = {.processes = 1};

TEST(saved_parts_go_on_as_any_others)
{
    static const split splits[][4] = {
        {{.processes = 2, .tensor = 2, .background = true},
         {.processes = 4, .tensor = 2, .stages = 2},
         {.processes = 1},
         {.processes = 4, .stages = 2, .chunks = 2, .background = true}},
        {{.processes = 4, .tensor = 4},
         {.processes = 4, .tensor = 2, .zero = 3, .background = true},
         {.processes = 4, .tensor = 2, .background = true},
         {.processes = 3, .stages = 3}},
        {{.processes = 4, .ring = 2, .tensor = 2, .background = true},
         {.processes = 2, .zero = 1},
         {.processes = 4, .stages = 2, .zero = 2, .background = true},
         {.processes = 2, .tensor = 2}}};
    for (int i = 0; i < 3; i++) {
        char name[20];
        cup_training a = training_of(i == 2, 0);
        a.accumulate = i == 0 ? 6 : 4;
        snprintf(name, sizeof name, "one%d", i);
        const char *whole = in_folder(name);
        run_pieces(whole, &a, NULL, &one, 1);
        snprintf(name, sizeof name, "parts%d", i);
        run_pieces(in_folder(name), &a, NULL, splits[i], 4);
        expect_losses(whole, in_folder(name), (int)a.steps);
    }
}

TEST(saved_experts_go_on_as_any_others)
{
    static const split splits[][4] = {
        {{.processes = 4, .expert = 2, .stages = 2, .background = true},
         {.processes = 2, .tensor = 2},
         {.processes = 4, .expert = 2, .stages = 2, .chunks = 2, .zero = 1},
         {.processes = 4, .expert = 4}},
        {{.processes = 2, .expert = 2, .background = true},
         {.processes = 4, .expert = 4, .zero = 2, .background = true},
         {.processes = 1},
         {.processes = 4, .expert = 2, .zero = 3}},
        {{.processes = 2, .tensor = 2, .background = true},
         {.processes = 2, .expert = 2},
         {.processes = 4, .tensor = 2, .stages = 2, .zero = 1},
         {.processes = 1}},
        {{.processes = 4, .expert = 4, .tensor = 2, .background = true},
         {.processes = 8, .expert = 4, .tensor = 2, .stages = 2, .zero = 1},
         {.processes = 4, .expert = 2, .tensor = 2, .zero = 3, .background = true},
         {.processes = 2, .expert = 2}}};
    for (int i = 0; i < 4; i++) {
        char name[20];
        cup_training a = training_of(i == 1, 4);
        snprintf(name, sizeof name, "one%d", i);
        const char *whole = in_folder(name);
        run_pieces(whole, &a, NULL, &one, 1);
        snprintf(name, sizeof name, "parts%d", i);
        run_pieces(in_folder(name), &a, NULL, splits[i], 4);
        expect_losses(whole, in_folder(name), (int)a.steps);
    }
}

static int64_t size_of(const char *folder, const char *name)
{
    char out[100];
    EXPECT_INT(test_command(out, sizeof out, "stat -c %%s '%s/%s'", folder, name), 0);
    return atoll(out);
}

/* Each writes its share, and none the whole; what another split has written goes. */
TEST(saved_parts_are_shares)
{
    static const split splits[] = {{.processes = 4, .tensor = 2, .stages = 2},
                                   {.processes = 2, .tensor = 2, .background = true}};
    cup_training a = training_of(true, 0);
    char listed[1000];
    const char *folder = in_folder("parts");
    run_pieces(folder, &a, NULL, splits, 2);
    EXPECT_INT(test_command(listed, sizeof listed, "ls '%s'", folder), 0);
    EXPECT_TEXT(listed, "losses.csv\nmodel-00001-of-00002.safetensors\n"
                        "model-00002-of-00002.safetensors\noptimizer-00001-of-00002.safetensors\n"
                        "optimizer-00002-of-00002.safetensors\nstate.json\ntokenizer.json\n");
    int64_t first = size_of(folder, "optimizer-00001-of-00002.safetensors");
    int64_t second = size_of(folder, "optimizer-00002-of-00002.safetensors");
    EXPECT(first < second + second / 4 && second < first + first / 4);
    first = size_of(folder, "model-00001-of-00002.safetensors");
    second = size_of(folder, "model-00002-of-00002.safetensors");
    EXPECT(first < 2 * second && second < 2 * first);
}

/* A shard that is damaged, and one that is not there, are named by all who would go on. */
TEST(saved_parts_that_are_damaged_are_named)
{
    static const split parts = {.processes = 2, .tensor = 2};
    static const char name[] = "optimizer-00002-of-00002.safetensors";
    cup_training a = training_of(false, 0);
    const char *folder = in_folder("parts");
    char out[500];
    a.steps = 4;
    run_pieces(folder, &a, NULL, &parts, 1);
    for (int i = 0; i < 4; i++) {
        together_end ends[2];
        piece p = {.training = a, .folder = folder, .until = 8, .split = i % 2 ? parts : one};
        EXPECT_INT(test_command(out, sizeof out,
                                i < 2 ? "printf X | dd of='%s/%s' bs=1 seek=5000 conv=notrunc 2>&1"
                                      : "rm -f '%s/%s'",
                                folder, name),
                   0);
        together_look(p.split.processes,
                      CUP_OPTIONS(cup_comm_options, .count = p.split.processes,
                                  .address = together_address(), .timeout = 30),
                      run_piece, &p, ends);
        bool named = false;
        for (int r = 0; r < p.split.processes; r++) {
            EXPECT(ends[r].code != 0);
            named |= strstr(ends[r].text, name) &&
                     strstr(ends[r].text, "missing, damaged or from another save");
        }
        if (!named)
            test_fail(__FILE__, __LINE__, "%d: %s", i, ends[0].text);
    }
}

/* Returns whether the run came so far. What the folder then holds is whole. */
static bool fails_at(const cup_training *a, const char *folder, long n, int rank, bool kill)
{
    together_end ends[2];
    piece p = {.training = *a,
               .folder = folder,
               .until = 4,
               .split = {.processes = 2,
                         .tensor = n % 2 ? 2 : 0,
                         .stages = n % 2 ? 0 : 2,
                         .background = n % 3},
               .fault = n,
               .rank = rank,
               .kill = kill};
    together_look(
        2, CUP_OPTIONS(cup_comm_options, .count = 2, .address = together_address(), .timeout = 30),
        run_piece, &p, ends);
    if (!ends[0].code && !ends[1].code)
        return false;
    if (ends[rank].code != (kill ? 128 + SIGKILL : 1))
        test_fail(__FILE__, __LINE__, "operation %ld of rank %d: %d, %d: %s", n, rank, ends[0].code,
                  ends[1].code, ends[rank].text);
    EXPECT_CONTAINS(kill ? "the disk reported an error" : ends[rank].text,
                    "the disk reported an error");
    return true;
}

static void expect_whole(int rank, bool kill, int step)
{
    static const split begun = {.processes = 2, .tensor = 2},
                       next = {.processes = 4, .tensor = 2, .stages = 2};
    cup_training a = training_of(false, 0), half = a;
    char out[400];
    a.steps = 4;
    half.steps = 2;
    run_pieces(in_folder("one"), &a, NULL, &one, 1);
    run_pieces(in_folder("half"), &half, NULL, &begun, 1);
    int times = 0;
    for (long n = 1 + rank;; n += step, times++) {
        const char *folder = in_folder("run");
        EXPECT_INT(test_command(out, sizeof out, "rm -rf '%s'; cp -r '%s' '%s' 2>&1", folder,
                                in_folder("half"), folder),
                   0);
        bool failed = fails_at(&a, folder, n, rank, kill);
        run_pieces(folder, &a, NULL, times % 2 ? &next : &one, 1);
        expect_losses(in_folder("one"), folder, 4);
        if (!failed)
            break;
        EXPECT(n < 400);
    }
    EXPECT(times > 3);
}

TEST(saved_parts_are_whole_after_a_kill)
{
    expect_whole(1, true, 8);
    expect_whole(0, true, 29);
}

TEST(saved_parts_are_whole_after_a_failure)
{
    expect_whole(1, false, 9);
}

/* Where not all see the folder, rank 0 alone writes whole tensors and reads them. */
static void run_apart(cup_context *c, cup_comm *comm, void *user)
{
    char path[700];
    piece p = *(piece *)user;
    snprintf(path, sizeof path, "%s/of%d", p.folder, cup_comm_rank(comm));
    if (cup__folder_make(NULL, path) != CUP_OK || chdir(path))
        wrong("no folder %s", path);
    p.folder = "run";
    run_piece(c, comm, &p);
}

/* A run in pieces, each with a split of its own, in a folder that only rank 0 sees. */
static void run_pieces_apart(const cup_training *a, const split *splits, int count)
{
    for (int i = 0; i < count; i++) {
        piece p = {.training = *a,
                   .folder = in_folder("apart"),
                   .until = a->steps * (i + 1) / count,
                   .split = splits[i]};
        EXPECT_INT(cup__folder_make(NULL, p.folder), CUP_OK);
        together(splits[i].processes, run_apart, &p);
    }
}

TEST(saved_parts_by_rank_0_where_others_do_not_see_it)
{
    static const split splits[] = {{.processes = 2, .tensor = 2},
                                   {.processes = 2, .stages = 2, .background = true}};
    cup_training a = training_of(false, 0);
    char listed[1000];
    run_pieces(in_folder("one"), &a, NULL, &one, 1);
    run_pieces_apart(&a, splits, 2);
    EXPECT_INT(test_command(listed, sizeof listed, "cd '%s' && ls of0/run of1", in_folder("apart")),
               0);
    EXPECT_TEXT(listed, "of0/run:\nlosses.csv\nmodel.safetensors\noptimizer.safetensors\n"
                        "state.json\ntokenizer.json\n\nof1:\n");
    expect_losses(in_folder("one"), in_folder("apart/of0/run"), (int)a.steps);
}

/* Parts, experts and stages come to it, and go from it to those who have them. */
TEST(saved_experts_by_rank_0_where_others_do_not_see_it)
{
    static const split splits[] = {{.processes = 4, .expert = 2, .stages = 2},
                                   {.processes = 4, .tensor = 2, .stages = 2},
                                   {.processes = 4, .expert = 4, .tensor = 2},
                                   {.processes = 4, .expert = 2, .stages = 2, .zero = 1}};
    cup_training a = training_of(true, 4);
    run_pieces(in_folder("one"), &a, NULL, &one, 1);
    run_pieces_apart(&a, splits, 4);
    expect_losses(in_folder("one"), in_folder("apart/of0/run"), (int)a.steps);
}

/* What a checkpoint has, as a published model beside it. */
static void publish(const char *folder, const char *published)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_gpt *m = cup_gpt_load(c, folder);
    EXPECT_INT(cup_gpt_export(m, published), CUP_OK);
    cup_gpt_free(m);
    cup_context_free(c);
}

static void expect_begins(const cup_training *a, const char *from, const split *splits, int count)
{
    char name[20];
    const char *whole = in_folder("whole");
    char out[100];
    EXPECT_INT(test_command(out, sizeof out, "rm -rf '%s'*", whole), 0);
    run_pieces(whole, a, from, &one, 1);
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "whole%d", i);
        run_pieces(in_folder(name), a, from, &splits[i], 1);
        expect_losses(whole, in_folder(name), (int)a->steps);
    }
}

TEST(saved_weights_begin_runs_of_parts)
{
    static const split splits[] = {{.processes = 2, .tensor = 2},
                                   {.processes = 4, .tensor = 4},
                                   {.processes = 4, .tensor = 2, .stages = 2},
                                   {.processes = 2, .stages = 2, .chunks = 2}};
    for (int i = 0; i < 2; i++) {
        cup_training a = training_of(i, 0);
        const char *own = in_folder(i ? "own1" : "own0");
        const char *published = in_folder(i ? "published1" : "published0");
        a.steps = 4;
        run_pieces(own, &a, NULL, splits + 3 * i, 1);
        publish(own, published);
        /* Heads of keys and values are two only. */
        expect_begins(&a, own, splits + 2 * i, 2);
        expect_begins(&a, published, splits + i * 2, 2);
    }
}

TEST(saved_weights_begin_runs_of_experts)
{
    static const split splits[] = {{.processes = 2, .expert = 2},
                                   {.processes = 4, .expert = 4, .zero = 2},
                                   {.processes = 2, .tensor = 2},
                                   {.processes = 4, .tensor = 2, .stages = 2},
                                   {.processes = 4, .expert = 2, .stages = 2},
                                   {.processes = 4, .expert = 4, .tensor = 2}};
    cup_training a = training_of(true, 4);
    a.steps = 4;
    run_pieces(in_folder("own"), &a, NULL, splits, 1);
    publish(in_folder("own"), in_folder("published"));
    expect_begins(&a, in_folder("own"), splits, 6);
    expect_begins(&a, in_folder("published"), splits, 6);
}

/* In f32 that run goes on from weights in bf16. */
TEST(saved_weights_of_another_dtype_begin_runs_of_parts)
{
    static const split parts = {.processes = 2, .tensor = 2};
    cup_training a = training_of(false, 0), half = a;
    a.steps = half.steps = 4;
    half.dtype = CUP_BF16;
    run_pieces(in_folder("own"), &half, NULL, &parts, 1);
    expect_begins(&a, in_folder("own"), &parts, 1);
}

TEST(saved_weights_of_others_do_not_begin_runs_of_parts)
{
    static const split parts = {.processes = 2, .tensor = 2};
    static const char *const words[] = {"differs from the one to be trained at", "has adapters",
                                        "no folder"};
    cup_training a = training_of(false, 0), adapted = a;
    a.steps = adapted.steps = 2;
    adapted.lora_rank = 2;
    run_pieces(in_folder("own"), &a, NULL, &parts, 1);
    run_pieces(in_folder("adapted"), &adapted, in_folder("own"), &one, 1);
    for (int i = 0; i < 3; i++) {
        together_end ends[2];
        piece p = {.training = a,
                   .from = in_folder(i == 0   ? "own"
                                     : i == 1 ? "adapted"
                                              : "none"),
                   .until = 2,
                   .split = parts};
        p.training.model.layers += i == 0;
        together_look(
            2,
            CUP_OPTIONS(cup_comm_options, .count = 2, .address = together_address(), .timeout = 30),
            run_piece, &p, ends);
        EXPECT(ends[0].code && ends[1].code);
        if (!strstr(ends[0].text, words[i]) && !strstr(ends[1].text, words[i]))
            test_fail(__FILE__, __LINE__, "%s; %s", ends[0].text, ends[1].text);
    }
}

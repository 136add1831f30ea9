/* Runs that there is no memory for are refused before they begin, and what others take was told. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/room.h"
#include "tensor/tensor.h"
#include "test.h"
#include "train/session.h"
#include "train/trainer.h"

/* A machine without control groups that has so much memory left. */
static void have(int64_t bytes)
{
    static char root[4300];
    char path[4400], text[100];
    if (!*root)
        snprintf(root, sizeof root, "%s", test_folder());
    snprintf(path, sizeof path, "%s/proc", root);
    EXPECT_INT(cup__folder_make(NULL, path), CUP_OK);
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    snprintf(text, sizeof text, "MemTotal: %lld kB\nMemAvailable: %lld kB\n",
             (long long)bytes / 1024, (long long)bytes / 1024);
    EXPECT_INT(cup__file_write(NULL, path, text, strlen(text)), CUP_OK);
    cup__room_root(root);
}

/* The run is refused with a tenth less than what it then takes, and begins with a third more. */
static void expect_bounds(cup_training training)
{
    session s;
    training.steps = 2;
    begin(&s, &training, sample_text(), NULL);
    EXPECT_INT(go(&s), CUP_OK);
    cup__memory_use use;
    s.c->device->calls->memory_use(s.c->device, &use);
    end(&s);
    have((int64_t)(0.9 * (double)use.peak_allocated));
    begin(&s, &training, sample_text(), NULL);
    EXPECT(!s.trainer);
    EXPECT_INT(cup_error(s.c), CUP_MEMORY);
    EXPECT_CONTAINS(cup_error_text(s.c), "need");
    end(&s);
    have((int64_t)(1.34 * (double)use.peak_allocated));
    begin(&s, &training, sample_text(), NULL);
    EXPECT_TEXT(cup_error_text(s.c), "");
    end(&s);
    cup__room_root(NULL);
}

TEST_LIMITED(training_says_what_it_needs, 180)
{
    cup_training training = tiny;
    training.model.width = 128;
    training.model.context = 128;
    training.model.layers = 4;
    training.batch = 8;
    expect_bounds(training);
    training.accumulate = 1;
    expect_bounds(training);
    training.dtype = CUP_BF16;
    expect_bounds(training);
    training.model.vocabulary = 8192;
    expect_bounds(training);
    training.dtype = CUP_F32;
    training.model.vocabulary = 0;
    training.model.layers = 12;
    training.recompute = CUP_RECOMPUTE_POLICY_BLOCK;
    expect_bounds(training);
    training.recompute = CUP_RECOMPUTE_POLICY_NORMS;
    expect_bounds(training);
    training.recompute = CUP_RECOMPUTE_POLICY_NONE;
    training.model.mlp = CUP_MLP_KIND_SWIGLU;
    training.model.norm = CUP_NORM_KIND_RMSNORM;
    expect_bounds(training);
    training.batch = 1;
    training.model.width = 256;
    expect_bounds(training);
}

TEST_LIMITED(training_says_what_experts_need, 180)
{
    cup_training training = tiny;
    training.model.width = 128;
    training.model.context = 128;
    training.model.layers = 4;
    training.model.experts = 8;
    training.batch = 8;
    training.accumulate = 1;
    expect_bounds(training);
    training.dtype = CUP_BF16;
    training.model.mlp = CUP_MLP_KIND_SWIGLU;
    training.batch = 16;
    expect_bounds(training);
    training.dtype = CUP_F32;
    training.batch = 8;
    training.model.experts_each = 3;
    training.model.capacity = 0.5;
    expect_bounds(training);
    training.model.layers = 12;
    training.recompute = CUP_RECOMPUTE_POLICY_NORMS;
    expect_bounds(training);
    training.recompute = CUP_RECOMPUTE_POLICY_BLOCK;
    expect_bounds(training);
}

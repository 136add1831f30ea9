/* Trainings that are checked before there is anything to learn from. */
#include <stdio.h>
#include <string.h>

#include "test.h"
#include "train/session.h"

static void expect(cup_training a, const char *wrong)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_status status = cup_training_check(c, &a);
    if (wrong && status != CUP_ARGUMENT && status != CUP_DTYPE)
        test_fail(__FILE__, __LINE__, "\"%s\" was not refused: %d", wrong, (int)status);
    if (wrong)
        EXPECT_CONTAINS(cup_error_text(c), wrong);
    else
        EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
}

static cup_training with_groups(const char *groups)
{
    cup_training a = tiny;
    snprintf(a.optimizer.groups, sizeof a.optimizer.groups, "%s", groups);
    return a;
}

/* What can be trained passes, parts of it, and in every dtype. */
TEST(training_checks_let_pass_what_can_be)
{
    static const cup_dtype dtypes[] = {CUP_F32, CUP_BF16, CUP_F16};
    for (const cup_preset *p = cup_presets(); p->name; p++)
        expect(p->training, NULL);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        cup_training a = tiny;
        a.dtype = dtypes[i];
        expect(a, NULL);
        a.precision = "fp8";
        expect(a, NULL);
    }
    cup_training a = tiny;
    a.recompute = CUP_RECOMPUTE_POLICY_AUTO;
    a.optimizer.method = CUP_METHOD_MUON;
    a.optimizer.offload = true;
    expect(a, NULL);
    a = tiny;
    a.model.layers = 4;
    a.tensor = a.stages = a.chunks = 2;
    expect(a, NULL);
    a.lora_rank = 2;
    expect(a, NULL);
    a = with_groups("*.weight=0 wte*=0.1,2");
    a.stages = 2;
    a.model.experts = 2;
    expect(a, NULL);
}

TEST(training_checks_refuse_what_cannot_be)
{
    cup_training a = tiny;
    a.model.heads = 3;
    expect(a, "heads");
    a = tiny;
    a.optimizer.method = CUP_METHOD_ADAMW8;
    expect(a, NULL);
    a.tensor = 2;
    expect(a, "states of 8 bits are not of what processes share out");
    a = tiny;
    a.dtype = CUP_F8E4M3;
    expect(a, "take the precision \"fp8\"");
    expect(with_groups("nothing=1"), "no parameter is called nothing");
    expect(with_groups("*=x"), "is no PATTERN=DECAY");
}

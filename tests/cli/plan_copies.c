/* cupola plan of copies beside other splits: what goes between them, and what they need. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "test.h"

typedef struct row {
    double seconds, gradients, weights, tensor, needed;
} row;

static char out[20000];

static double number(const cup__json_node *object, const char *key)
{
    return cup__json_number(cup__json_find(object, key));
}

/* The first split that the command writes, of these words; losses in seconds. */
static row split(const char *words)
{
    cup__json json;
    row r = {0};
    int code = test_command(out, sizeof out, "'%s/cupola' plan --json %s", test_build(), words);
    if (code || cup__json_parse(NULL, "plan", out, strlen(out), &json) != CUP_OK) {
        test_fail(__FILE__, __LINE__, "%s: code %d: %s", words, code, out);
        return r;
    }
    const cup__json_node *first = cup__json_find(json.root, "splits") + 1;
    const cup__json_node *losses = cup__json_find(first, "held_back_by");
    r.seconds = number(first, "seconds");
    r.gradients = r.seconds * number(losses, "gradients");
    r.weights = r.seconds * number(losses, "weights");
    r.tensor = r.seconds * number(losses, "tensor");
    r.needed = number(first, "needed_bytes");
    cup__json_free(&json);
    return r;
}

#define LARGE                                                                                      \
    "--preset gpt2-1558m --heads 32 --width 2048 --gpus 64 --recompute none --texts 2048 "

/* Backward hides nearly all of it, in parts and stages, too; of several chunks of a stage the last
 * one does, which is as much shorter. */
TEST(plan_hides_gradients_beside_parts_and_stages)
{
    row tensor = split(LARGE "--batch 16 --zero 0 --parallel dp=32,tp=2");
    EXPECT(tensor.gradients < 0.01 * tensor.seconds);
    row one = split(LARGE "--batch 4 --zero 0 --parallel dp=16,pp=4 --interleave 1");
    row four = split(LARGE "--batch 4 --zero 0 --parallel dp=16,pp=4 --interleave 4");
    EXPECT(one.gradients < four.gradients);
    EXPECT(one.gradients < 0.02 * one.seconds && four.gradients < 0.1 * four.seconds);
}

#define MIXED "--preset gpt2-350m --experts 16 --gpus 8 --recompute none --texts 8 --batch 1 "

/* Experts that are shared out are less to add up, among fewer. */
TEST(plan_adds_up_experts_among_who_has_them)
{
    row all = split(MIXED "--link 10 --zero 0 --parallel dp=8");
    row shared = split(MIXED "--link 10 --zero 0 --parallel dp=8,ep=4");
    EXPECT(shared.gradients < 0.4 * all.gradients);
}

/* What ZeRO divides each has less of, experts of its own among it; weights of these come from who
 * has the same ones, which are fewer. */
TEST(plan_splits_states_of_experts_that_are_shared_out)
{
    double needed = 1e18;
    for (int stage = 0; stage < 4; stage++) {
        char words[300];
        snprintf(words, sizeof words, MIXED "--zero %d --parallel dp=8,ep=2", stage);
        row r = split(words);
        EXPECT(r.needed < needed);
        needed = r.needed;
    }
    row all = split(MIXED "--zero 3 --link 10 --parallel dp=8");
    row shared = split(MIXED "--zero 3 --link 10 --parallel dp=8,ep=4");
    EXPECT(shared.weights > 0 && shared.weights < 0.5 * all.weights);
}

/* Forward, halves of a batch hide each other's sums where they fill the card, which those of 4,096
 * tokens do not, and what draws random numbers is not computed in halves. */
TEST(plan_hides_sums_of_halves)
{
    static const char *const batches[] = {"--batch 4 --accumulate 16", "--batch 16 --accumulate 4"};
    for (int large = 0; large < 2; large++) {
        char words[300];
        row two[2];
        for (int draws = 0; draws < 2; draws++) {
            snprintf(words, sizeof words,
                     "--gpus 2 --layers 8 --heads 16 --width 2048 --context 1024 --vocabulary 128 "
                     "--recompute none --parallel tp=2 %s --dropout %s",
                     batches[large], draws ? "0.1" : "0");
            two[draws] = split(words);
        }
        double part = two[0].tensor / two[1].tensor;
        EXPECT(large ? part < 0.5 : part > 0.9 && part < 1.1);
    }
}

#define CUT "--preset gpt2-774m --heads 16 --width 2048 --gpus 8 --texts 32 --zero 0 "

/* Tokens between blocks that are shared out are kept in parts, and take longer on the way: nothing
 * of that is hidden, where of four sums two are. */
TEST(plan_shares_out_tokens_between_blocks)
{
    static const char *const policies[] = {"none", "norms", "pointwise", "block"};
    for (int i = 0; i < 4; i++) {
        char words[300];
        row two[2];
        for (int on = 0; on < 2; on++) {
            snprintf(words, sizeof words,
                     CUT "--parallel dp=1,tp=8 --batch 32 --recompute %s %s", policies[i],
                     on ? "--sequence-parallel" : "");
            two[on] = split(words);
            EXPECT((strstr(out, "\"sequence_parallel\": true") != NULL) == on);
        }
        /* Of 35 of 36 blocks 7/8 of 4, 2 or 1 times the width of 32 x 1024 tokens. */
        double less = 35 * 0.875 * 32 * 1024 * 2048 * 2 * (i == 0 ? 4 : i < 3 ? 2 : 1);
        EXPECT_NEAR(two[0].needed - two[1].needed, less, 1);
        double most = i < 3 ? 3 : 1.8;
        EXPECT(two[1].tensor > two[0].tensor && two[1].tensor < most * two[0].tensor);
    }
}

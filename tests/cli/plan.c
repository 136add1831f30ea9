/* cupola plan as a command. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "test.h"

static char out[20000];

static int plan(const char *words)
{
    return test_command(out, sizeof out, "'%s/cupola' plan %s", test_build(), words);
}

TEST(plan_prints_a_table)
{
    EXPECT_INT(plan("--batch 8 --accumulate 1 --card h200 l4"), 0);
    EXPECT_CONTAINS(out, "124M parameters; 8 texts of 1024 tokens");
    EXPECT_CONTAINS(out, "taken from the driver at most");
    EXPECT_CONTAINS(out, "\nh200             none ");
    EXPECT_CONTAINS(out, "\nh200             norms ");
    EXPECT_CONTAINS(out, "\nl4               block ");
    EXPECT_INT(plan("--preset char --card h100 --ops --recompute"), 0);
    EXPECT_CONTAINS(out, "blocks computed twice");
    EXPECT_CONTAINS(out, "qkv_attention_grad ");
    EXPECT(!strstr(out, "h100             no"));
    EXPECT_INT(plan("--preset char --card h100 --recompute norms"), 0);
    EXPECT_CONTAINS(out, "norms computed twice");
    EXPECT(!strstr(out, "h100             none"));
    EXPECT_INT(plan("--card gtx-480"), 2);
    EXPECT_CONTAINS(out, "--card gtx-480 is not known");
    EXPECT_INT(plan("--heads 7"), 2);
    EXPECT_CONTAINS(out, "is not a multiple of --heads 7");
}

/* Whatever the number of batches, a step ends with the optimizer's. */
TEST(plan_counts_the_optimizer_once)
{
    for (int batches = 1; batches <= 3; batches++) {
        char words[100];
        snprintf(words, sizeof words, "--preset char --card h100 --ops --accumulate %d", batches);
        EXPECT_INT(plan(words), 0);
        EXPECT_CONTAINS(out, "\n  adamw                             1 calls");
    }
}

/* States of 8 bits are a quarter, but for what each row of 256 ends with. */
TEST(plan_counts_states_of_8_bits)
{
    double bytes[2];
    for (int coded = 0; coded < 2; coded++) {
        cup__json json;
        EXPECT_INT(plan(coded ? "--preset char --dtype f32 --card h100 --json --optimizer adamw8"
                              : "--preset char --dtype f32 --card h100 --json"),
                   0);
        EXPECT_INT(cup__json_parse(NULL, "plan", out, strlen(out), &json), CUP_OK);
        const cup__json_node *row = cup__json_find(json.root, "plans") + 1;
        bytes[coded] = cup__json_number(cup__json_find(row, "optimizer_bytes"));
        cup__json_free(&json);
    }
    EXPECT_NEAR(bytes[1] / bytes[0], 0.254, 0.002);
}

/* Weights that stay as they are have neither gradients nor states. */
TEST(plan_knows_adapters)
{
    cup__json json;
    EXPECT_INT(plan("--preset char --card h100 --lora 8 --recompute --json"), 0);
    EXPECT_INT(cup__json_parse(NULL, "plan", out, strlen(out), &json), CUP_OK);
    const cup__json_node *row = cup__json_find(json.root, "plans") + 1;
    double weights = cup__json_number(cup__json_find(row, "weight_bytes"));
    double gradients = cup__json_number(cup__json_find(row, "gradient_bytes"));
    EXPECT(gradients > 0 && gradients < weights / 20);
    EXPECT(cup__json_number(cup__json_find(row, "optimizer_bytes")) < weights / 2);
    cup__json_free(&json);
    EXPECT_INT(plan("--preset char --lora 8 --gpus 4 --parallel tp=2,pp=2"), 0);
    EXPECT_CONTAINS(out, "dp=1,pp=2,tp=2");
}

/* The policy that is chosen by memory is the first that fits, or the last. */
TEST(plan_chooses_what_is_computed_again)
{
    static const char *const words[] = {"none", "norms", "pointwise", "block"};
    double held[4];
    for (int i = 0; i < 4; i++) {
        cup__json json;
        char line[160];
        snprintf(line, sizeof line, "--batch 8 --accumulate 1 --card h100 --json --recompute %s",
                 words[i]);
        EXPECT_INT(plan(line), 0);
        EXPECT_INT(cup__json_parse(NULL, "plan", out, strlen(out), &json), CUP_OK);
        const cup__json_node *row = cup__json_find(json.root, "plans") + 1;
        held[i] = cup__json_number(cup__json_find(row, "held_bytes"));
        cup__json_free(&json);
    }
    for (int i = 0; i < 4; i++) {
        char line[160], wanted[64];
        snprintf(line, sizeof line,
                 "--batch 8 --accumulate 1 --card h100 --recompute auto --memory-limit %.0f",
                 i < 3 ? 1.026 * held[i] : held[3] - 1);
        EXPECT_INT(plan(line), 0);
        snprintf(wanted, sizeof wanted, "\nh100             %s ", words[i]);
        EXPECT_CONTAINS(out, wanted);
        EXPECT((strstr(out, "  no ") != NULL) == (i == 3));
    }
}

TEST(plan_writes_json)
{
    cup__json json;
    int count = 0;
    double last = 0;
    EXPECT_INT(plan("--preset gpt2-350m --batch 2 --card h100 a100 --json"), 0);
    EXPECT_INT(cup__json_parse(NULL, "plan", out, strlen(out), &json), CUP_OK);
    CUP__JSON_EACH (row, cup__json_find(json.root, "plans")) {
        double held = cup__json_number(cup__json_find(row, "held_bytes"));
        EXPECT(held > cup__json_number(cup__json_find(row, "peak_bytes")));
        EXPECT(cup__json_number(cup__json_find(row, "tokens_per_second")) > 10000);
        static const char *const words[] = {"none", "norms", "pointwise", "block"};
        EXPECT_TEXT(cup__json_find(row, "recompute")->string, words[count % 4]);
        EXPECT(count % 4 == 0 || held < last);
        last = held;
        count++;
    }
    EXPECT_INT(count, 8);
    cup__json_free(&json);
}

static const cup__json_node *splits_of(const char *words, cup__json *json)
{
    EXPECT_INT(plan(words), 0);
    EXPECT_INT(cup__json_parse(NULL, "plan", out, strlen(out), json), CUP_OK);
    return cup__json_find(json->root, "splits") + 1;
}

static double number(const cup__json_node *row, const char *key)
{
    return cup__json_number(cup__json_find(row, key));
}

/* Runs of two H200, of which bench/NOTES.md tells. */
TEST(plan_has_the_speed_of_two_cards)
{
    static const struct {
        const char *words;
        double measured;
    } runs[] = {{"--batch 4 --accumulate 8 --parallel dp=2 --zero 0", 395e3},
                {"--batch 4 --accumulate 16 --parallel tp=2", 351e3},
                {"--batch 4 --accumulate 8 --parallel pp=2 --interleave 1", 382e3},
                {"--batch 8 --accumulate 2 --parallel dp=2 --zero 0", 391e3},
                {"--batch 8 --accumulate 2 --parallel dp=2 --zero 1", 373e3},
                {"--batch 8 --accumulate 2 --parallel dp=2 --zero 2", 388e3},
                {"--batch 8 --accumulate 2 --parallel dp=2 --zero 3", 334e3}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        cup__json json;
        char words[300];
        snprintf(words, sizeof words,
                 "--json --gpus 2 --layers 8 --heads 16 --width 2048 --context 1024 --vocabulary "
                 "128 %s",
                 runs[i].words);
        double planned = number(splits_of(words, &json), "tokens_per_second");
        if (fabs(planned / runs[i].measured - 1) > 0.1)
            test_fail(__FILE__, __LINE__, "%s: %.0f tokens/s are planned, and were %.0f",
                      runs[i].words, planned, runs[i].measured);
        cup__json_free(&json);
    }
}

/* Texts in parts on two H200, and whole on one, of as many tokens. */
TEST(plan_has_the_speed_of_parts_of_texts)
{
    static const struct {
        const char *words;
        double measured;
    } runs[] = {{"--context 8192 --gpus 1", 463e3},
                {"--context 8192 --gpus 2 --parallel cp=2", 412e3},
                {"--context 32768 --gpus 1", 189e3},
                {"--context 32768 --gpus 2 --parallel cp=2", 311e3}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        cup__json json;
        char words[300];
        snprintf(words, sizeof words,
                 "--json --preset gpt2-124m --vocabulary 128 --batch 1 --accumulate 1 --zero 0 %s",
                 runs[i].words);
        double planned = number(splits_of(words, &json), "tokens_per_second");
        if (fabs(planned / runs[i].measured - 1) > 0.12)
            test_fail(__FILE__, __LINE__, "%s: %.0f tokens/s are planned, and were %.0f",
                      runs[i].words, planned, runs[i].measured);
        cup__json_free(&json);
    }
}

/* A part of each text needs less memory, and all that goes round takes longer over more. */
TEST(plan_cuts_texts)
{
    cup__json json;
    double needed = 1e18;
    for (int ring = 1; ring <= 8; ring *= 2) {
        char words[300];
        snprintf(words, sizeof words,
                 "--json --preset gpt2-124m --context 131072 --batch 1 --zero 0 --accumulate 1 "
                 "--recompute none --gpus %d --parallel cp=%d",
                 ring, ring);
        const cup__json_node *row = splits_of(words, &json);
        EXPECT_INT((int64_t)number(row, "cp"), ring);
        EXPECT(number(row, "needed_bytes") < 0.75 * needed);
        needed = number(row, "needed_bytes");
        double round = cup__json_number(
            cup__json_find(cup__json_find(row, "held_back_by"), "ring"));
        EXPECT(ring > 1 ? round > 0.01 : round == 0);
        cup__json_free(&json);
    }
}

#define MIXED                                                                                      \
    "--json --preset gpt2-350m --experts 16 --batch 8 --accumulate 8 --gpus 8 "

/* Experts that are shared out need less memory the more processes there are, with a capacity the
 * same rows; what goes between them takes longer without one. The best split of a model whose
 * experts fit no card shares them out. */
TEST(plan_shares_out_experts)
{
    cup__json json;
    double needed = 1e18, least = 0;
    for (int experts = 1; experts <= 8; experts *= 2) {
        char words[300];
        double seconds[2];
        for (int bounded = 0; bounded < 2; bounded++) {
            snprintf(words, sizeof words,
                     MIXED "--recompute none --zero 0 --parallel dp=8,ep=%d %s", experts,
                     bounded ? "--capacity 1.25" : "");
            const cup__json_node *row = splits_of(words, &json);
            EXPECT_INT((int64_t)number(row, "ep"), experts);
            double way = cup__json_number(
                cup__json_find(cup__json_find(row, "held_back_by"), "experts"));
            seconds[bounded] = way * number(row, "seconds");
            least = number(row, "needed_bytes");
            EXPECT(experts > 1 ? way > 0.01 : way == 0);
            cup__json_free(&json);
        }
        EXPECT(least < needed && (experts == 1 || seconds[1] < seconds[0]));
        needed = least;
    }
    const cup__json_node *row = splits_of(MIXED "--width 4096 --heads 32 --hidden 16384 "
                                                "--capacity 1.25 --optimizer adamw",
                                          &json);
    EXPECT(cup__json_find(row, "fits")->boolean && number(row, "ep") > 1);
    cup__json_free(&json);
}

static double held_back(const cup__json_node *row, const char *key)
{
    return cup__json_number(cup__json_find(cup__json_find(row, "held_back_by"), key));
}

/* Each stage has groups of its own, which need less, and pass rows of fewer blocks. */
TEST(plan_shares_out_experts_of_stages)
{
    cup__json json;
    double needed = 1e18, least[2], seconds[2];
    for (int experts = 1; experts <= 4; experts *= 2) {
        char words[300];
        snprintf(words, sizeof words,
                 MIXED "--recompute none --zero 0 --capacity 1.25 --parallel dp=4,pp=2,ep=%d",
                 experts);
        const cup__json_node *row = splits_of(words, &json);
        EXPECT_INT((int64_t)number(row, "ep"), experts);
        EXPECT_INT((int64_t)number(row, "pp"), 2);
        EXPECT(experts > 1 ? held_back(row, "experts") > 0.01 : held_back(row, "experts") == 0);
        EXPECT(number(row, "needed_bytes") < needed);
        needed = number(row, "needed_bytes");
        cup__json_free(&json);
    }
    /* Of as many texts for each of those who share out experts, more batches being behind each
     * other in stages. */
    for (int i = 0; i < 2; i++) {
        const cup__json_node *row =
            splits_of(i ? "--json --preset gpt2-350m --experts 16 --batch 1 --accumulate 64 "
                          "--capacity 1.25 --recompute none --zero 0 --gpus 8 --parallel "
                          "dp=2,pp=4,ep=2 --interleave 1"
                        : "--json --preset gpt2-350m --experts 16 --batch 1 --accumulate 64 "
                          "--capacity 1.25 --recompute none --zero 0 --gpus 2 --parallel dp=2,ep=2",
                      &json);
        least[i] = number(row, "needed_bytes");
        seconds[i] = held_back(row, "experts") * number(row, "seconds");
        cup__json_free(&json);
    }
    EXPECT(least[1] < least[0] / 2);
    /* A quarter of the blocks for each of 32 batches, and three more to begin and to end. */
    EXPECT_NEAR(seconds[1] / seconds[0], 35.0 / 32 / 4, 1e-6);
}

/* A part of each expert, too, and the sums of the blocks. */
TEST(plan_shares_out_parts_of_experts)
{
    cup__json json;
    double needed = 1e18;
    for (int parts = 1; parts <= 4; parts *= 2) {
        char words[300];
        snprintf(words, sizeof words,
                 MIXED "--recompute none --zero 0 --parallel dp=%d,tp=%d", 8 / parts, parts);
        const cup__json_node *row = splits_of(words, &json);
        EXPECT_INT((int64_t)number(row, "tp"), parts);
        EXPECT(parts > 1 ? held_back(row, "tensor") > 0.01 : held_back(row, "tensor") == 0);
        EXPECT(held_back(row, "experts") == 0);
        EXPECT(number(row, "needed_bytes") < 0.75 * needed);
        needed = number(row, "needed_bytes");
        cup__json_free(&json);
    }
    /* Of experts that are wide, with few texts, they are what fits. */
    const cup__json_node *row =
        splits_of("--json --preset gpt2-350m --experts 3 --width 4096 --heads 32 --hidden 32768 "
                  "--layers 8 --gpus 8 --texts 2 --zero 0",
                  &json);
    EXPECT(cup__json_find(row, "fits")->boolean && number(row, "tp") > 1);
    cup__json_free(&json);
}

/* Those who share out a model share out whole experts, too: by two the same numbers as parts of all
 * of them, by more fewer. */
TEST(plan_shares_out_experts_beside_parts)
{
    cup__json json;
    double needed = 1e18;
    for (int experts = 1; experts <= 8; experts *= 2) {
        char words[300];
        snprintf(words, sizeof words,
                 MIXED "--recompute none --zero 0 --capacity 1.25 --parallel dp=4,tp=2,ep=%d",
                 experts);
        const cup__json_node *row = splits_of(words, &json);
        EXPECT_INT((int64_t)number(row, "ep"), experts);
        EXPECT(held_back(row, "tensor") > 0.01);
        EXPECT(experts > 1 ? held_back(row, "experts") > 0.01 : held_back(row, "experts") == 0);
        EXPECT(number(row, "needed_bytes") < needed * (experts == 2 ? 1.1 : 1));
        needed = number(row, "needed_bytes");
        cup__json_free(&json);
    }
}

/* Stages of two chunks wait half as long, and keep as much on the first. */
TEST(plan_interleaves_stages)
{
    cup__json json[2];
    double bubble[2], stages[2];
    for (int i = 0; i < 2; i++) {
        char words[300];
        snprintf(words, sizeof words, "--json --preset gpt2-350m --texts 64 --batch 1 --gpus 4 "
                                      "--parallel pp=4 --interleave %d",
                 i + 1);
        const cup__json_node *row = splits_of(words, &json[i]);
        EXPECT_INT((int64_t)number(row, "interleave"), i + 1);
        bubble[i] = number(row, "bubble") * number(row, "seconds");
        stages[i] = cup__json_number(
            cup__json_find(cup__json_find(row, "held_back_by"), "stages"));
        cup__json_free(&json[i]);
    }
    EXPECT_NEAR(bubble[0] / bubble[1], 2, 1e-6);
    EXPECT(stages[0] > 0 && stages[1] > 0);
}

#define LARGE "--json --preset gpt2-1558m --heads 32 --width 2048 --texts 4096 "

TEST(plan_shares_a_step_among_many)
{
    cup__json json;
    int count = 0;
    double before = 0;
    splits_of(LARGE "--gpus 1024 --nodes 128", &json);
    CUP__JSON_EACH (row, cup__json_find(json.root, "splits")) {
        double sum = number(row, "scaling");
        CUP__JSON_EACH (loss, cup__json_find(row, "held_back_by"))
            sum += cup__json_number(loss);
        EXPECT_NEAR(sum, 1, 1e-9);
        EXPECT_INT((int64_t)(number(row, "dp") * number(row, "cp") * number(row, "pp") *
                             number(row, "tp")),
                   1024);
        EXPECT_INT((int64_t)(number(row, "dp") * number(row, "batches") *
                             number(row, "texts_at_once")),
                   4096);
        EXPECT(cup__json_find(row, "fits")->boolean && number(row, "seconds") >= before);
        EXPECT_NEAR(number(row, "tokens_per_second") * number(row, "seconds"), 4096 * 1024, 1);
        before = number(row, "seconds");
        count++;
    }
    EXPECT(count > 3);
    cup__json_free(&json);
}

#define PIPE "--gpus 8 --batch 4 --parallel pp=8 --interleave 1"

/* Each stage of ZeRO needs less than the one before, of a model in stages the first and the third;
 * a slow network takes longer, and a fast one as long as no network at all where it is no longer
 * what is waited for. */
TEST(plan_follows_stages_and_networks)
{
    cup__json json;
    double needed = 1e18, seconds = 0;
    for (int stage = 0; stage < 4; stage++) {
        char words[300];
        snprintf(words, sizeof words, LARGE "--gpus 64 --batch 4 --parallel dp=64 --zero %d",
                 stage);
        double needs = number(splits_of(words, &json), "needed_bytes");
        EXPECT(needs < needed);
        needed = needs;
        cup__json_free(&json);
    }
    needed = 1e18;
    for (int stage = 1; stage < 4; stage += 2) {
        char words[300];
        snprintf(words, sizeof words,
                 LARGE "--gpus 64 --batch 4 --parallel dp=16,pp=4 --interleave 1 --zero %d", stage);
        double needs = number(splits_of(words, &json), "needed_bytes");
        EXPECT(needs < needed - 1e8);
        needed = needs;
        cup__json_free(&json);
    }
    for (int gbit = 800; gbit >= 1; gbit /= 28) {
        char words[300];
        snprintf(words, sizeof words, LARGE "--gpus 64 --batch 4 --parallel dp=64 --network %d",
                 gbit);
        double took = number(splits_of(words, &json), "seconds");
        EXPECT(took > seconds);
        seconds = took;
        cup__json_free(&json);
    }
    double step = number(splits_of(LARGE PIPE, &json), "seconds");
    cup__json_free(&json);
    /* 4096 / 4 batches through 8 stages. */
    const char *few = "--json --preset gpt2-1558m --heads 32 --width 2048 --texts 32 " PIPE;
    double small = number(splits_of(few, &json), "seconds");
    cup__json_free(&json);
    EXPECT_NEAR(step / small, (1024 + 7) / (8 + 7.0), 8);
}

/* Of texts of one token, thousands at once are what one card alone is best at, too. */
TEST(plan_compares_with_the_best_of_one_card)
{
    cup__json json;
    const cup__json_node *row =
        splits_of("--json --preset char --context 1 --texts 65536 --gpus 1", &json);
    EXPECT(number(row, "scaling") > 0.5 && number(row, "scaling") < 1.02);
    cup__json_free(&json);
}

TEST(plan_says_when_no_split_fits)
{
    EXPECT_INT(plan("--gpus 2 --card t4 --preset gpt2-1558m --context 4096"), 0);
    EXPECT_CONTAINS(out, "None fits in the 14.9 GiB of this card");
    EXPECT(!strstr(out, "Best: "));
    EXPECT_INT(plan("--gpus 2 --card h100 --preset char --memory-limit 1000000"), 0);
    EXPECT_CONTAINS(out, "None fits in the 977 KiB of this card that --memory-limit leaves");
}

TEST(plan_refuses_what_cannot_be_shared)
{
    static const struct {
        const char *words, *says;
    } wrong[] = {
        {"--gpus 0", "from 1 to 65536"},
        {"--gpus -3", "from 1 to 65536"},
        {"--gpus 99999999999999999999", "from 1 to 65536"},
        {"--gpus 8 --nodes 3", "is not as many on each"},
        {"--gpus 8 --nodes 16", "is not as many on each"},
        {"--nodes 2", "--nodes is of several GPUs: give --gpus"},
        {"--texts 8", "--texts is of several GPUs: give --gpus"},
        {"--gpus 8 --texts 0", "from 1 to 1099511627776"},
        {"--gpus 8 --network 0", "from 0.001 to 1e+06"},
        {"--gpus 8 --link nan", "from 0.001 to 1e+06"},
        {"--gpus 8 --ops", "--ops tells of one card"},
        {"--gpus 8 --texts 8 --accumulate 2", "both say how many texts"},
        {"--gpus 8 --parallel tp=8", "tp=8 does not divide the model's 12 heads"},
        {"--gpus 8 --parallel tp=3", "is of 6 processes, and the run has 8"},
        {"--gpus 4 --parallel cp=2,dp=2 --context 1026", "1026 tokens has no 4 parts alike"},
        {"--gpus 4 --parallel cp=2 --dropout 0.1 --context 1032", "is a multiple of 64, 32 for"},
        {"--gpus 4 --parallel pp=4 --interleave 4", "too many chunks for 12 blocks"},
        {"--gpus 4 --parallel dp=4 --interleave 2", "--interleave 2 is of the stages"},
        {"--interleave 2", "--interleave is of several GPUs: give --gpus"},
        {"--gpus 4 --experts 3 --parallel dp=4,ep=2", "does not share out 3 experts equally"},
        {"--gpus 4 --dropout 0.1 --sequence-parallel", "does not know of dropout"},
        {"--gpus 4 --experts 4 --parallel tp=4,ep=2", "of tp a multiple, and ep by tp of cp"},
        {"--experts-per-token 2", "of which there are none; set experts"},
        {"--gpus 13 --nodes 1 --parallel pp=13", "pp=13 are too many stages for 12 blocks"},
        {"--gpus 4 --batch 3 --accumulate 1 --parallel dp=4", "cannot be shared equally by 4"},
        {"--gpus 1024 --texts 999", "1024 GPUs cannot share 999 texts of a step"},
        {"--gpus 8 --batch 16777216 --accumulate 1048576", "a grid of 4294967296"},
        {"--gpus 2 --parallel tp=2 --optimizer adamw8", "of 8 bits are not of what GPUs share out"},
        {"--gpus 2 --parallel dp=2,ep=2", "shares out experts, of which the model has none"},
        {"--gpus 5 --preset gpt2-1558m --parallel tp=5", "50304 rows of its vocabulary"},
        {"--gpus 8 --card gtx-480", "--card gtx-480 is not known"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        EXPECT_INT(plan(wrong[i].words), 2);
        EXPECT_CONTAINS(out, wrong[i].says);
    }
}

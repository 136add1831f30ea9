/* cupola plan as a command. */
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
    EXPECT_CONTAINS(out, "\nh200             no ");
    EXPECT_CONTAINS(out, "\nl4               yes ");
    EXPECT_INT(plan("--preset char --card h100 --ops --recompute"), 0);
    EXPECT_CONTAINS(out, "blocks computed twice");
    EXPECT_CONTAINS(out, "qkv_attention_grad ");
    EXPECT(!strstr(out, "h100             no "));
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
}

TEST(plan_writes_json)
{
    cup__json json;
    int count = 0;
    EXPECT_INT(plan("--preset gpt2-350m --batch 2 --card h100 a100 --json"), 0);
    EXPECT_INT(cup__json_parse(NULL, "plan", out, strlen(out), &json), CUP_OK);
    CUP__JSON_EACH (row, cup__json_find(json.root, "plans")) {
        double held = cup__json_number(cup__json_find(row, "held_bytes"));
        EXPECT(held > cup__json_number(cup__json_find(row, "peak_bytes")));
        EXPECT(cup__json_number(cup__json_find(row, "tokens_per_second")) > 10000);
        EXPECT(cup__json_find(row, "recompute")->boolean == (count % 2 == 1));
        count++;
    }
    EXPECT_INT(count, 4);
    cup__json_free(&json);
}

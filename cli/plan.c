/* cupola plan: what a training run needs, and how fast it goes, without a GPU. */
#include <stdio.h>
#include <string.h>

#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/common/progress.h"
#include "cli/plan_split.h"
#include "cli/train.h"
#include "cupola/cupola.h"

#define GPT2_VOCABULARY 50257
#define CHARACTERS 128

static const cli_option options[] = {
    {"card", NAMES(train_given, cards), "NAME", NULL,
     "kinds of GPUs, as h200, a100 or rtx-4090; without it h200, h100, a100 and l40s"},
    {"preset", CHOICE(train_given, preset), "char|demo|gpt2-124m|gpt2-350m|gpt2-774m|gpt2-1558m",
     "gpt2-124m", "a model and how to train it"},
    {"from", TEXT(train_given, from), "DIR", NULL,
     "the model of a checkpoint or of a published folder instead"},
    {"dtype", CHOICE(train_given, dtype), "f32|bf16|f16", NULL,
     "what to compute in; without it bf16 on a card that has it, else f32"},
    {"precision", CHOICE(train_given, precision), "highest|high|medium|fp8", NULL,
     "of f32 products, or fp8 for linear layers inside of blocks; without it high"},
    {"vocabulary", INTEGER(train_given, vocabulary, 1, 1 << 24), "N", NULL,
     "tokens the model knows; without it 50257 for GPT-2's presets, else 128"},
    {"memory-limit", INTEGER(train_given, memory_limit, 0, INT64_MAX), "BYTES", "0",
     "bytes of the card's memory that may be used; 0: no limit"},
    {"ops", FLAG(train_given, ops), NULL, NULL, "tell what each op takes of a step"},
    GROUP("Several GPUs"),
    {"gpus", INTEGER(train_given, gpus, 1, 65536), "N", NULL,
     "plan a step that so many GPUs share, and look for the best split; without it one"},
    {"nodes", INTEGER(train_given, nodes, 1, 65536), "N", NULL,
     "hosts that they stand in, as many in each; without it 8 are in one"},
    {"texts", INTEGER(train_given, texts, 1, INT64_C(1) << 40), "N", NULL,
     "texts that make a step, of which as many are computed at once as is best; without it "
     "--batch times --accumulate"},
    {"parallel", TEXT(train_given, parallel), "dp=N,cp=R,pp=S,tp=M,ep=E", NULL,
     "this split alone, as train takes it; without it all are tried"},
    {"interleave", INTEGER(train_given, interleave, 1, TRAIN_CHUNKS), "N", NULL,
     "so many chunks of blocks on each stage, as train takes it; without it one and more are "
     "tried"},
    {"zero", INTEGER(train_given, zero, 0, 3), "STAGE", NULL,
     "this stage alone; without it all are tried"},
    {"sequence-parallel", FLAG(train_given, sequence), NULL, NULL,
     "share out the tokens between blocks where a split has tp, as train does"},
    {"network", REAL(train_given, nic, 0.001, 1e6), "GBIT", "400",
     "what a GPU's own adapter brings to other nodes in a second, of which 90 % are taken to be "
     "reached"},
    {"link", REAL(train_given, link, 0.001, 1e6), "GB", NULL,
     "what all-reduces reach on the bus between GPUs of a node in a second; without it 372 on H200 "
     "and H100, as NVLink was measured, and what follows for other cards"},
#include "cli/train_rows.def"
    {0}};

typedef struct plan_run {
    cli_call *call;
    cup_context *c;
    cup_training training;
    cli_json json;
    double flops; /* of the model in a step, as mfu counts them */
} plan_run;

/* A plan of one card, with one policy of what is computed again. */
typedef struct plan_row {
    cup_card card;
    cup_recompute_policy recompute;
    int64_t layers;
    cup_plan plan;
    double mfu;
} plan_row;

static const char *size(double bytes, char text[32])
{
    return cup_text_size(bytes, text, 32);
}

static void print_bytes(const plan_run *r, const cup_plan *p)
{
    const struct {
        const char *what;
        int64_t bytes;
    } rows[] = {
        {"weights", p->weight_bytes},
        {"gradients", p->gradient_bytes},
        {"optimizer and master copies", p->optimizer_bytes},
        {"batches and losses", p->batch_bytes},
        {"kept by forward for backward", p->kept_bytes},
        {"in use at most, in a step", p->peak_bytes},
        {"in use at most, in an evaluation", p->evaluation_bytes},
        {"taken from the driver at most", p->held_bytes},
        {"optimizer, in the host's memory", p->host_bytes}, /* where there is any */
    };
    const cup_training *a = &r->training;
    char text[32];
    static const char *const again[] = {
        [CUP_RECOMPUTE_POLICY_NONE] = "",
        [CUP_RECOMPUTE_POLICY_BLOCK] = ", blocks computed twice",
        [CUP_RECOMPUTE_POLICY_NORMS] = ", norms computed twice",
        [CUP_RECOMPUTE_POLICY_POINTWISE] = ", norms and activations computed twice"};
    printf("%s parameters; %lld texts of %lld tokens%s\n",
           progress_number((double)p->parameters, text), (long long)a->batch,
           (long long)a->model.context, again[p->recompute]);
    for (size_t i = 0; i < sizeof rows / sizeof *rows - !p->host_bytes; i++)
        printf("  %-34s %12s\n", rows[i].what, size((double)rows[i].bytes, text));
    printf("\n%-16s %-12s %10s %10s  %-5s %10s %10s %7s\n", "card", "recompute", "needs", "has",
           "fits", "a step", "tokens/s", "MFU");
}

/* As "norms 3/12", of blocks. */
static const char *policy_text(const plan_row *row, char text[80])
{
    const cup_plan *p = &row->plan;
    const char *name = cup_recompute_policy_name(p->recompute);
    if (p->recompute_blocks == 0 || p->recompute_blocks >= row->layers)
        return name;
    snprintf(text, 80, "%s %lld/%lld", name, (long long)p->recompute_blocks,
             (long long)row->layers);
    return text;
}

static void print_row(const plan_row *row)
{
    char needs[32], has[32], speed[32], policy[80];
    const cup_plan *p = &row->plan;
    printf("%-16s %-12s %10s %10s  %-5s %7.1f ms %10s %5.1f %%\n", row->card.name,
           policy_text(row, policy), size((double)p->held_bytes, needs),
           size(row->card.memory_bytes, has), p->fits ? "yes" : "no", 1e3 * p->seconds,
           progress_number(p->tokens_per_second, speed), 100 * row->mfu);
}

static void write_row(cli_json *w, const plan_row *row)
{
    const cup_plan *p = &row->plan;
    json_open_object(w, NULL);
    json_add_string(w, "card", row->card.name);
    json_add_string(w, "recompute", cup_recompute_policy_name(p->recompute));
    json_add_integer(w, "recompute_blocks", p->recompute_blocks);
    json_add_boolean(w, "fits", p->fits);
    json_add_integer(w, "parameters", p->parameters);
    json_add_integer(w, "weight_bytes", p->weight_bytes);
    json_add_integer(w, "gradient_bytes", p->gradient_bytes);
    json_add_integer(w, "optimizer_bytes", p->optimizer_bytes);
    json_add_integer(w, "batch_bytes", p->batch_bytes);
    json_add_integer(w, "kept_bytes", p->kept_bytes);
    json_add_integer(w, "peak_bytes", p->peak_bytes);
    json_add_integer(w, "evaluation_bytes", p->evaluation_bytes);
    json_add_integer(w, "held_bytes", p->held_bytes);
    json_add_integer(w, "host_bytes", p->host_bytes);
    json_add_number(w, "flops", p->flops);
    json_add_number(w, "seconds", p->seconds);
    json_add_number(w, "tokens_per_second", p->tokens_per_second);
    json_add_number(w, "mfu", row->mfu);
    json_close(w);
}

static void on_op(const cup_plan_op *op, void *user)
{
    (void)user;
    printf("  %-28s %6lld calls %10.3f ms %10.1f GFLOP %9.3f GB\n", op->name,
           (long long)op->calls, 1e3 * op->seconds, 1e-9 * op->flops, 1e-9 * op->bytes);
}

static int plan_row_of(plan_run *r, plan_row *row, bool tells_ops)
{
    cup_training a = r->training;
    a.recompute = row->recompute;
    row->layers = a.model.layers;
    /* As train chooses it on such a card. */
    if (!strcmp(row->card.arch, "sm_75") && !call_has(r->call, "dtype"))
        a.dtype = CUP_F32;
    if (cup_training_plan(r->c, &a, row->card.name, &row->plan,
                          tells_ops ? on_op : NULL, r) != CUP_OK)
        return cli_report(r->c);
    row->mfu = plan_mfu(&row->card, &a, row->plan.tokens_per_second);
    return CLI_OK;
}

static int plan_card(plan_run *r, const char *name, bool first)
{
    const train_given *given = r->call->given;
    static const cup_recompute_policy all[] = {
        CUP_RECOMPUTE_POLICY_NONE, CUP_RECOMPUTE_POLICY_NORMS, CUP_RECOMPUTE_POLICY_POINTWISE,
        CUP_RECOMPUTE_POLICY_BLOCK};
    bool one = given->recompute != NULL;
    plan_row row = {.recompute = r->training.recompute};
    if (!cup_card_find(name, &row.card))
        return cli_usage("--card %s is not known; `cupola plan --help` says which are",
                         cli_shown(name));
    int code = CLI_OK;
    /* All policies, so that what recomputing saves is seen; with --recompute it alone. */
    for (int i = 0; i < (one ? 1 : 4) && !code; i++) {
        row.recompute = one ? row.recompute : all[i];
        code = plan_row_of(r, &row, false);
        if (!code && r->call->json)
            write_row(&r->json, &row);
        if (code || r->call->json)
            continue;
        if (first && i == 0)
            print_bytes(r, &row.plan);
        print_row(&row);
        if (given->ops)
            code = plan_row_of(r, &row, true);
    }
    return code;
}

static int plan_all(plan_run *r)
{
    static const char *usual[] = {"h200", "h100", "a100", "l40s"};
    const train_given *given = r->call->given;
    const char **names = given->cards.count ? given->cards.name : usual;
    int count = given->cards.count ? given->cards.count : 4, code = CLI_OK;
    if (r->call->json) {
        json_begin(&r->json, "plan");
        json_open_array(&r->json, "plans");
    }
    for (int i = 0; i < count && !code; i++)
        code = plan_card(r, names[i], i == 0);
    if (!code && r->call->json) {
        json_close(&r->json);
        code = json_end(&r->json);
    }
    json_drop(&r->json);
    return code;
}

static int choose(plan_run *r)
{
    train_given *given = r->call->given;
    bool large = !strncmp(given->preset, "gpt2", 4);
    r->training = cup_preset_find(given->preset)->training;
    r->training.dtype = CUP_BF16;
    r->training.sequence = given->sequence;
    if (given->from && cup_gpt_config_load(r->c, given->from, &r->training.model) != CUP_OK)
        return cli_report(r->c);
    if (given->vocabulary || !given->from)
        r->training.model.vocabulary = given->vocabulary ? given->vocabulary
                                       : large           ? GPT2_VOCABULARY
                                                         : CHARACTERS;
    return train_apply(r->call, &r->training);
}

/* What says something of several GPUs alone, or of one. */
static int check_given(const cli_call *call)
{
    static const char *const several[] = {"nodes",      "texts",   "parallel", "zero",
                                          "interleave", "network", "link",     "sequence-parallel"};
    const train_given *given = call->given;
    for (size_t i = 0; i < sizeof several / sizeof *several && !given->gpus; i++)
        if (call_has(call, several[i]))
            return cli_usage("--%s is of several GPUs: give --gpus", several[i]);
    if (given->gpus && given->ops)
        return cli_usage("--ops tells of one card; leave --gpus out");
    if (given->gpus && given->recompute_blocks)
        return cli_usage("--recompute-blocks is of one card; leave --gpus out");
    return CLI_OK;
}

static int run(cli_call *call)
{
    const train_given *given = call->given;
    int wrong = check_given(call);
    if (wrong)
        return wrong;
    plan_run r = {.call = call,
                  .c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu",
                                                   .memory_limit = given->memory_limit))};
    int code = cli_report(r.c);
    if (!code)
        code = choose(&r);
    if (!code && cup_gpt_config_check(r.c, &r.training.model) != CUP_OK)
        code = cli_report(r.c);
    if (!code)
        code = given->gpus ? plan_gpus(call, r.c, &r.training) : plan_all(&r);
    cup_context_free(r.c);
    return code;
}

const cli_verb verb_plan = {
    .name = "plan",
    .synopsis = "[--preset NAME] [--card NAME...] [OPTION]...",
    .words = "what a training run needs, without a GPU",
    .text =
        "Says what `cupola train` with the same options would need of a GPU's memory and how fast "
        "it would go there, on a machine without one. A step and an evaluation are made as in the "
        "run, on a card that is not there, where all is done but to launch kernels; so the bytes "
        "are those of the run. It is planned with each policy of --recompute, or with the one that "
        "is given.\n\n"
        "What is taken from the driver at most counts for whether it fits: the captured step keeps "
        "its memory, and evaluations have theirs beside it.\n\n"
        "The time of an op is the greater one of its operations and of its bytes, at the part of "
        "the card's peak that the op was measured to reach on an H200; of cards that were not "
        "measured the same part is assumed, so their speed is a guess. Peaks are those of NVIDIA's "
        "data sheets, dense. Cards: h200, h200-nvl, h100, h100-nvl, h100-pcie, a100, a100-80gb, "
        "a100-pcie, a100-pcie-80gb, a30, a40, a10, l40s, l40, l4, t4, rtx-4090, rtx-3090, b200."
        "\n\n"
        "With --gpus the step is shared by many: copies of the model (dp), parts of each text "
        "(cp), stages of blocks (pp) of one chunk or more, blocks of which each GPU has a part "
        "(tp), and stages of ZeRO, as train takes them. All "
        "splits are tried, with all numbers of texts at once and all policies of "
        "--recompute, unless an option says which; the fastest that fit are shown, and what holds "
        "each back, as parts of its step. Scaling is beside as many times what one card reaches "
        "that has all the memory it wants. The numbers are simulated: sums, stages and copies were "
        "measured on two H200, networks between nodes are an assumption; docs/SCALE.md has the "
        "formulas.",
    .examples = "GPT-2 with 32 texts at once, on three cards:\n"
                "cupola plan --batch 32 --accumulate 1 --card h200 h100 l40s\n"
                "Where a step's time goes:\ncupola plan --batch 32 --accumulate 1 --card h200 "
                "--ops\n"
                "How 1,024 GPUs share a model:\ncupola plan --gpus 1024 --nodes 128 --preset "
                "gpt2-1558m --texts 4096\n",
    .options = options,
    .size = sizeof(train_given),
    .run = run,
};

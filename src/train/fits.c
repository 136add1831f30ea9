/* What a run needs of memory, against what there is. On a CPU nobody says no in time: a process
 * that takes more than its control group may hold is killed without a word. */
#include "base/room.h"
#include "base/text.h"
#include "cuda/dry.h"
#include "nn/gpt.h"
#include "optim/method.h"
#include "tensor/tensor.h"
#include "train/trainer.h"

/* Those that share out a model, of which what is on each of them is next to nothing. */
static int processes_of(const cup_training *a)
{
    return a->tensor > 1 ? (int)a->tensor : 1;
}

static int64_t stages_of(const cup_training *a)
{
    return a->stages > 1 ? a->stages : 1;
}

/* The numbers of the experts of all blocks. */
static double inside_experts(const cup_gpt_config *g)
{
    double matrices = g->mlp == CUP_MLP_KIND_SWIGLU ? 3 : 2;
    return matrices * (double)(g->layers * g->experts) * (double)g->width * (double)g->hidden;
}

/* Copies of a model, or of its stage, that share out the experts. */
static int64_t sharing_experts(const cup_training *a)
{
    int64_t copies = a->expert / processes_of(a);
    return copies > 1 ? copies : 1;
}

/* Rows that go through experts of a process for each token that it sends: those of the token, or as
 * many as there is room for where others send theirs. */
static double rows_of_token(const cup_training *a)
{
    const cup_gpt_config *g = &a->model;
    double each = (double)g->experts_each, processes = a->expert > 1 ? (double)a->expert : 1;
    double own = (double)g->experts / processes;
    double rows = processes * (each < own ? each : own);
    double most = g->capacity > 0 ? g->capacity * each : rows;
    return rows < most ? rows : most;
}

/* Tokens of a batch that a process has. */
static double tokens_of(const cup_training *a)
{
    return (double)a->batch * (double)a->model.context / (a->ring > 1 ? (double)a->ring : 1);
}

double cup__experts_away(const cup_training *a)
{
    double all = inside_experts(&a->model) / (double)a->model.layers;
    return a->expert > 1 ? all * (1 / (double)processes_of(a) - 1 / (double)a->expert) : 0;
}

/* What a block keeps of a row that goes through an expert of so many inner features: what is made
 * of it, and these in order. */
static double row_kept(const cup_training *a, double hidden)
{
    double matrices = a->model.mlp == CUP_MLP_KIND_SWIGLU ? 3 : 2;
    return (matrices * hidden + 4 * (double)a->model.width) * (double)cup_dtype_size(a->dtype);
}

double cup__experts_more(const cup_training *a)
{
    double hidden = (double)a->model.hidden, processes = (double)processes_of(a);
    cup_training alone = *a;
    alone.expert = 1;
    if (a->expert < 2)
        return 0;
    double own = rows_of_token(&alone) * tokens_of(a) * row_kept(a, hidden / processes);
    double all = rows_of_token(a) * tokens_of(a) / processes * row_kept(a, hidden);
    return all > own ? all - own : 0;
}

/* It has places for all that may come, whatever the capacity, and beside what a block makes of them
 * what was sent, has come and goes back. */
double cup__experts_evaluated(const cup_training *a)
{
    cup_training free = *a, alone;
    free.model.capacity = 0;
    alone = free;
    alone.expert = 1;
    if (a->expert < 2)
        return 0;
    double matrices = a->model.mlp == CUP_MLP_KIND_SWIGLU ? 3 : 2, width = (double)a->model.width;
    double inside = matrices * (double)a->model.hidden, processes = (double)processes_of(a);
    double all = rows_of_token(&free) * tokens_of(a) / processes * (inside + 6 * width);
    double own = rows_of_token(&alone) * tokens_of(a) * (inside / processes + width);
    return all > own ? (all - own) * (double)cup_dtype_size(a->dtype) : 0;
}

/* The numbers of its experts that a process learns. */
static double learned_experts(const cup_training *a)
{
    double all = inside_experts(&a->model) / (double)(sharing_experts(a) * processes_of(a));
    return a->lora_rank ? 0 : all * (double)cup__training_blocks(a) / (double)a->model.layers;
}

/* Those who share out the states of what this process has: of experts, who have the same ones. */
static int64_t owners_of(const cup_training *a, bool experts)
{
    int64_t each = processes_of(a) * stages_of(a) * (experts ? sharing_experts(a) : 1);
    int64_t owners = cup_comm_count(a->optimizer.split) / each;
    return owners > 1 ? owners : 1;
}

/* The numbers of the model that a process has. */
static double numbers_here(const cup_training *a)
{
    const cup_gpt_config *g = &a->model;
    double inside = (double)cup_gpt_parameter_count(g, false);
    double outside = (double)cup_gpt_parameter_count(g, true) - inside;
    inside -= inside_experts(g) * (1 - 1 / (double)sharing_experts(a));
    inside *= (double)cup__training_blocks(a) / (double)g->layers;
    return (outside + inside) / processes_of(a);
}

/* Those that it learns: all of these, or of the adapters beside linear layers, of which it has the
 * factor on the side that is shared out in part. */
static double learned(const cup_training *a)
{
    const cup_gpt_config *g = &a->model;
    if (!a->lora_rank)
        return numbers_here(a);
    double processes = (double)processes_of(a);
    double width = (double)g->width, hidden = (double)g->hidden;
    double heads = (double)(g->heads * cup__gpt_head_size(g));
    double qkv = (double)(cup__gpt_parts(g) * cup__gpt_head_size(g));
    bool gated = g->mlp == CUP_MLP_KIND_SWIGLU;
    double inputs = 3 * width + heads / processes, outputs = qkv / processes + width;
    if (g->experts == 0) { /* which have none */
        inputs += (gated ? 2 : 1) * width + hidden / processes;
        outputs += (gated ? 2 : 1) * hidden / processes + width;
    }
    return (double)(cup__training_blocks(a) * a->lora_rank) * (inputs + outputs);
}

/* Bytes of a parameter that the optimizer keeps, on all processes: a master copy of one of 16 bits,
 * states and an average. */
static int64_t states_each(const cup_training *a)
{
    bool master =
        a->dtype == CUP_F16 || (a->dtype == CUP_BF16 && !a->optimizer.stochastic);
    return cup__method_state_bytes(&a->optimizer) + 4 * ((a->optimizer.average > 0) + master);
}

/* Those that are there all the time: the weight, and what the optimizer keeps, but for what a GPU's
 * keeps in the host's memory; and of what is copied to be saved. */
static int64_t held_each(const cup_training *a, bool gpu, bool copied, int64_t owners)
{
    int64_t whole = cup_dtype_size(a->dtype);
    int64_t kept = gpu && a->optimizer.offload ? 0 : states_each(a);
    if (a->optimizer.stage > 2) {
        kept += whole;
        whole = 0;
    }
    return (1 + copied) * (whole + (kept + owners - 1) / owners);
}

/* And of its gradient. Stages have all until their last batch has come back. */
static int64_t gradient_each(const cup_training *a, int64_t owners)
{
    owners = a->optimizer.stage > 1 && stages_of(a) == 1 ? owners : 1;
    return (cup_dtype_size(a->dtype) + owners - 1) / owners;
}

/* What is kept less, where a block that has a policy keeps so much less. One of them is there when
 * it has been computed again. */
static double made_again(const cup_training *a, double layers, const double *less)
{
    double those = a->recompute_blocks > 0 ? (double)a->recompute_blocks : layers;
    those = those < layers ? those : layers;
    double each = less[a->recompute], other = less[cup__gpt_policy_before(a->recompute)];
    double there = a->recompute == CUP_RECOMPUTE_POLICY_BLOCK ? 0 : 1;
    return (those - there) * each + (layers - those) * other;
}

double cup__sequence_less(const cup_training *a)
{
    static const double kept[] = {[CUP_RECOMPUTE_POLICY_NONE] = 4,
                                  [CUP_RECOMPUTE_POLICY_NORMS] = 2,
                                  [CUP_RECOMPUTE_POLICY_POINTWISE] = 2,
                                  [CUP_RECOMPUTE_POLICY_BLOCK] = 1};
    double layers = (double)cup__training_blocks(a), processes = (double)processes_of(a);
    double again = a->recompute_blocks > 0 ? (double)a->recompute_blocks : layers;
    again = again < layers ? again : layers;
    double each = kept[a->recompute], other = kept[cup__gpt_policy_before(a->recompute)];
    double bytes = tokens_of(a) * (double)(a->model.width * cup_dtype_size(a->dtype));
    double mean = layers > 0 ? (again * each + (layers - again) * other) / layers : 0;
    return a->sequence ? mean * (1 - 1 / processes) * bytes : 0;
}

/* What forward keeps of a batch for backward. In a block: what both norms give and the sum before
 * the second, queries, keys and values, what attention and the MLP give and add, and inside the MLP
 * what goes into its function and what comes out. A block that is computed again is there together
 * with its gradients. */
static double kept_bytes(const cup_training *a)
{
    int processes = processes_of(a);
    const cup_gpt_config *g = &a->model;
    double size = (double)cup_dtype_size(a->dtype), tokens = tokens_of(a);
    double width = (double)g->width, hidden = (double)g->hidden;
    double heads = (double)(g->heads * cup__gpt_head_size(g));
    double qkv = (double)(cup__gpt_parts(g) * cup__gpt_head_size(g));
    double rows = g->experts > 0 ? rows_of_token(a) : 1;
    double inside = rows * (g->mlp == CUP_MLP_KIND_SWIGLU ? 3 : 2) * hidden;
    /* Rows that go to experts, their results and these in order are there beside: all where each
     * process has a part of the experts, or a part of them. */
    double beside = g->experts > 0 ? 4 * rows * width / (a->expert > 1 ? processes : 1) : 0;
    double shared = heads + (g->qk_norm ? 2 : 1) * qkv + inside;
    double block = 5 * width + beside + shared / processes;
    double layers = (double)cup__training_blocks(a);
    double blocks = layers * block;
    double less[] = {[CUP_RECOMPUTE_POLICY_NONE] = 0,
                     [CUP_RECOMPUTE_POLICY_NORMS] = 2 * width,
                     [CUP_RECOMPUTE_POLICY_POINTWISE] = 2 * width + rows * hidden / processes,
                     [CUP_RECOMPUTE_POLICY_BLOCK] = block - width};
    blocks -= made_again(a, layers, less);
    if (a->recompute == CUP_RECOMPUTE_POLICY_BLOCK)
        blocks += 2 * block;
    /* A stage keeps as many batches as there are stages behind it, and the last one the logits. */
    int64_t kept = a->accumulate < stages_of(a) ? a->accumulate : stages_of(a);
    blocks -= (layers - 1) * cup__sequence_less(a) / (tokens * size);
    blocks *= (double)(kept > 1 ? kept : 1);
    double logits = tokens * (double)cup__gpt_rows(g) * size;
    double most = (double)(a->logits_most > 0 ? a->logits_most : CUP__GPT_LOGITS_MOST);
    /* A part of them is there as numbers of f32, too, and as what each step of its loss gives. */
    if (processes > 1)
        return tokens * blocks * size + 3 * logits * (4 / size) / processes;
    /* In f16 none are made in chunks, and their gradient does not take their place, nor with a cap
     * that of what they were before it. */
    if (a->dtype == CUP_F16 || g->logits_cap > 0)
        return tokens * blocks * size + 2 * logits;
    return tokens * blocks * size + (logits < most ? logits : most);
}

/* Gradients come while what forward kept goes; only from the second batch of a step on they are
 * there as well. */
static void add_up(const cup_training *a, double *parameters, double *batch)
{
    double size = (double)cup_dtype_size(a->dtype), gradients = 0, kept = kept_bytes(a);
    double experts = learned_experts(a);
    *parameters = 0;
    for (int i = 0; i < 2; i++) {
        int64_t owners = owners_of(a, i == 1);
        double numbers = i ? experts : learned(a) - experts;
        gradients += numbers * (double)gradient_each(a, owners);
        *parameters += numbers * (double)held_each(a, false, a->background, owners);
    }
    *parameters += gradients;
    if (a->lora_rank)
        *parameters += numbers_here(a) * size;
    *batch = a->accumulate > 1 ? kept : kept > gradients ? kept - gradients : 0;
}

/* Blocks of memory come in sizes, each up to a quarter above the one before. */
#define SIZES 1.1

double cup__training_needs(const cup_training *a)
{
    double parameters, batch;
    add_up(a, &parameters, &batch);
    return (parameters + batch) * SIZES;
}

/* States of a GPU's optimizer in the host's memory, where those of other GPUs may be, too. */
static cup_status states_fit(cup_context *c, const cup_training *a)
{
    cup__room room;
    char needs[32], free[32], most[32];
    double experts = learned_experts(a);
    double states = ((learned(a) - experts) / (double)owners_of(a, false) +
                     experts / (double)owners_of(a, true)) *
                    (double)states_each(a);
    cup__room_find(&room);
    if (states <= (double)room.free)
        return CUP_OK;
    return cup__fail(&c->error, CUP_MEMORY,
                     "training: the optimizer's states need %s of the host's memory, and there are "
                     "%s: %s allows %s; leave `offload` out, or share the states out (ZeRO)",
                     cup__text_bytes(states, needs),
                     cup__text_bytes((double)room.free, free), room.what,
                     cup__text_bytes((double)room.most, most));
}

cup_status cup__training_fits(cup_context *c, const cup_training *a)
{
    bool adapted = a->lora_rank > 0, gpu = c->device->is_cuda;
    int64_t owners = owners_of(a, false);
    int64_t each = adapted ? cup_dtype_size(a->dtype)
                           : held_each(a, gpu, false, owners) + gradient_each(a, owners);
    CUP_TRY(cup__gpt_fits(c, &a->model, each,
                          adapted ? "weights" : "weights, gradients and optimizer",
                          processes_of(a) * (int)stages_of(a),
                          (int)sharing_experts(a)));
    if (gpu)
        return a->optimizer.offload && !cup__device_is_dry(c->device) ? states_fit(c, a) : CUP_OK;
    cup__room room;
    double parameters, batch;
    char needs[32], first[32], second[32], free[32], most[32];
    cup__room_find(&room);
    add_up(a, &parameters, &batch);
    double needed = (parameters + batch) * SIZES;
    if (needed <= (double)room.free)
        return CUP_OK;
    return cup__fail(
        &c->error, CUP_MEMORY,
        "training: the run needs about %s (%s for weights, gradients and optimizer of %.4g million "
        "parameters, %s for a batch of %lld texts of %lld tokens), and there are %s: %s allows %s; "
        "take a smaller batch with more to accumulate, recompute, a shorter context or a smaller "
        "model, or allow more",
        cup__text_bytes(needed, needs), cup__text_bytes(parameters * SIZES, first),
        1e-6 * (double)cup_gpt_parameter_count(&a->model, true),
        cup__text_bytes(batch * SIZES, second), (long long)a->batch, (long long)a->model.context,
        cup__text_bytes((double)room.free, free), room.what,
        cup__text_bytes((double)room.most, most));
}

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/common/exit.h"
#include "cli/train.h"
#include "cupola/cupola.h"

const cli_option train_options[] = {
    {"data", FILES(train_given, data), "FILE|DIR", NULL,
     "text to learn from, see --text-limit: files, and folders with all text below them, also "
     "JSON Lines (.jsonl, field text) and packed ones (.gz, .zst); or .bin files of tokens and "
     "folders of them, of any size; --resume knows it"},
    {"weights", NAMES(train_given, weights), "WEIGHT", NULL,
     "each name of --data is a set of its own, of which a text is drawn as often as its weight "
     "says: 0.7 0.3, or 7 3"},
    {"order", CHOICE(train_given, order), "random|permuted", "random",
     "read texts at random places, or every text once in each epoch, in an order of the epoch's "
     "own"},
    {"out", TEXT(train_given, out), "DIR", "run",
     "folder for the checkpoint, losses.csv, metrics.jsonl, loss.svg and loss.html"},
    {"from", TEXT(train_given, from), "DIR", NULL,
     "begin with model, weights and tokenizer of a checkpoint, for images with its network, or of "
     "a published GPT-2, Llama, "
     "Mistral, Mixtral, Qwen 2, 3 or 3 MoE (config.json and safetensors, as Hugging Face has "
     "them); with "
     "--resume, where the model beside adapters lies now"},
    {"resume", FLAG(train_given, resume), NULL, NULL,
     "go on from the checkpoint in --out, with its text, model and settings"},
    {"overwrite", FLAG(train_given, overwrite), NULL, NULL,
     "let the first checkpoint of a new run replace what stands in --out; without it a run does "
     "not "
     "begin where it would replace anything"},
    {"task", CHOICE(train_given, task), "text|classify", "text",
     "what is learned: to write text, or to tell images apart"},
    {"preset", CHOICE(train_given, preset),
     "char|demo|gpt2-124m|gpt2-350m|gpt2-774m|gpt2-1558m|" TRAIN_NETWORKS, NULL,
     "a model and how to train it; without it char on a GPU and demo on a CPU, for images cnn"},
    {"device", TEXT(train_given, device), "auto|cpu|cuda[:N]", NULL,
     "where to run; without it CUP_DEVICE, else the first usable GPU, else the CPU"},
    {"dtype", CHOICE(train_given, dtype), "f32|bf16|f16", NULL,
     "what to compute in; without it bf16 on a GPU that has it, else f32; f16 with a scale of the "
     "loss, see --loss-scale"},
    {"precision", CHOICE(train_given, precision), "highest|high|medium|fp8", NULL,
     "of f32 products on a GPU: in f32, rounded to tf32, or rounded to bf16; without it high; or "
     "fp8: linear layers inside of blocks multiply in 8 bits, whatever the dtype is"},
    {"tune", FLAG(train_given, tune), NULL, NULL,
     "measure each matrix product of the model that was never measured on this GPU; on a CPU "
     "there is nothing to measure"},
    {"gpus", INTEGER(train_given, gpus, 0, 4096), "N", "0",
     "train on the first N GPUs of this host, by a process for each; 0: on one"},
    {"processes", INTEGER(train_given, processes, 0, 4096), "N", "0",
     "the same by N processes on the --device there is, as on CPUs; 0: by one"},
    {"restarts", INTEGER(train_given, restarts, 0, 1000000), "N", "0",
     "how often all of several processes go on from the checkpoint when one has failed"},
    {"parallel", TEXT(train_given, parallel), "dp=N,cp=R,pp=S,tp=M,ep=E", NULL,
     "how several processes train: a model has S stages of blocks, one behind the other (pipeline "
     "parallel), M share out each (tensor parallel), R such groups have a part each of every text "
     "(context parallel), and N of those share the texts of a step; each E processes that have the "
     "same blocks share out their experts (expert parallel); what is left out is 1, but for dp, "
     "which follows"},
    {"sequence-parallel", FLAG(train_given, sequence), NULL, NULL,
     "processes of --parallel tp share out the tokens between blocks, too: each norms and adds up "
     "its own, and keeps those alone for backward; without dropout"},
    {"stages", TEXT(train_given, stages), "BLOCKS,..", NULL,
     "how many blocks each stage of --parallel pp has; without it as many each as can be"},
    {"interleave", INTEGER(train_given, interleave, 1, TRAIN_CHUNKS), "N", "1",
     "each stage of --parallel pp has N chunks of blocks that do not follow each other, so that it "
     "waits less for the others; --stages then names the blocks of all chunks in the model's "
     "order"},
    {"zero", INTEGER(train_given, zero, 0, 3), "STAGE", "0",
     "what each of several processes keeps of a share of the parameters only: 1 the optimizer's "
     "states, 2 gradients, too, 3 the parameters, too (ZeRO); 0: nothing. What --parallel tp, pp "
     "or ep shares out is split so among those that have the same of it"},
    {"threads", INTEGER(train_given, threads, 0, 4096), "N", "0",
     "threads on a CPU; 0: all that the process may use"},
    {"deterministic", FLAG(train_given, deterministic), NULL, NULL,
     "take no way whose bits could differ from run to run on the same machine"},
    {"memory-limit", INTEGER(train_given, memory_limit, 0, INT64_MAX), "BYTES", "0",
     "bytes of the device's memory that may be used; 0: no limit"},
    {"memory-share", REAL(train_given, memory_share, 0, 1), "PART", "0",
     "the same as a part of the device's memory, 0.5 for half of it"},
    {"memory-page", TEXT(train_given, memory_page), "FILE", NULL,
     "write an HTML page of the GPU's memory at the end, also when the run fails"},
    {"tensorboard", FLAG(train_given, tensorboard), NULL, NULL,
     "write the numbers of metrics.jsonl as TensorBoard's event files, too, into --out"},
    {"non-finite", CHOICE(train_given, non_finite), "stop|skip", NULL,
     "what becomes of a step whose loss or gradients are not finite: the run stops and names the "
     "op that first gave such a value, or goes on as if the step had not been; without it a loss "
     "stops it and gradients alone are skipped. How many were skipped is said"},
    {"seed", INTEGER(train_given, seed, 0, INT64_MAX), "N", "1337",
     "of the first weights, the batches and dropout"},
    {"sample", INTEGER(train_given, sample, 0, 1000000), "N", "0",
     "tokens to write with the trained model at the end, by one process: where several share it "
     "out, that reads the whole from the checkpoint"},
    GROUP("Text"),
    {"text-limit", INTEGER(train_given, text_limit, 1, 1 << 20), "MIB", "1024",
     "text that is held in memory; of more, tokens are made first, in pieces, in the folder "
     "tokens of --out"},
    {"text-field", TEXT(train_given, text_field), "NAME", NULL,
     "field of JSON Lines that has the text; without it text"},
    {"tokenizer", TEXT(train_given, tokenizer), "char|bpe|PATH", NULL,
     "one token for each character, byte pairs learned from the text, or a saved tokenizer or "
     "GPT-2's files; without it char, for GPT-2's presets bpe"},
    {"vocabulary", INTEGER(train_given, vocabulary, 1, 1 << 24), "N", NULL,
     "tokens that bpe makes; without it 1024, for GPT-2's presets 50257"},
    GROUP("Images (--task classify)"),
    {"epochs", REAL(train_given, epochs, 0, 1e6), "N", "5",
     "how often each image for training is seen, where --steps does not say it; of text, where it "
     "is given with --order permuted, how often each part is read, in place of --steps"},
    {"network", TEXT(train_given, network), "FILE", NULL,
     "layers of a network of your own, one a line, see cupola/network.h, trained as the preset"},
    {"image-size", INTEGER(train_given, image_size, 1, 65535), "N", NULL,
     "height and width to which images are scaled; without it they are taken as they are"},
    {"grey", FLAG(train_given, grey), NULL, NULL, "one channel; without it colours, where there "
     "are any"},
    {"skip-broken", FLAG(train_given, skip_broken), NULL, NULL,
     "leave out files that cannot be decoded, and name them; without it one ends the run"},
    {"as-needed", FLAG(train_given, as_needed), NULL, NULL,
     "decode files whenever a batch has them, for more images than memory holds"},
    {"flip", CHOICE(train_given, flip), "yes|no", NULL,
     "exchange left and right of every other image"},
    {"crop", INTEGER(train_given, crop, 0, 65535), "N", NULL,
     "move images by up to so many pixels"},
    {"rotate", REAL(train_given, rotate, 0, 180), "DEGREES", NULL, "turn them by up to this"},
    {"scale", REAL(train_given, scale, 0, 0.9), "PART", NULL,
     "make them larger or smaller by up to this part"},
    {"recolor", REAL(train_given, recolor, 0, 1), "PART", NULL,
     "change brightness, contrast and saturation by up to this part"},
    {"erase", REAL(train_given, erase, 0, 1), "P", NULL,
     "probability that a rectangle of an image is erased"},
    {"mixup", REAL(train_given, mixup, 0, 1), "A", NULL,
     "mix pairs of images, by a part from Beta(A, A); 0: not"},
    {"label-smoothing", REAL(train_given, label_smoothing, 0, 1), "PART", NULL,
     "part of the target that is spread over all classes"},
#include "cli/train_rows.def"
    {"evaluate-every", INTEGER(train_given, evaluate_every, 0, TRAIN_MOST), "N", NULL,
     "steps between evaluations; 0: only first and last"},
    {"evaluate-texts", INTEGER(train_given, evaluate_texts, 0, TRAIN_MOST), "N", NULL,
     "texts in an evaluation; 0: the whole validation part"},
    {"save-every", INTEGER(train_given, save_every, 0, TRAIN_MOST), "N", NULL,
     "steps between checkpoints; 0: only at the end"},
    {"save-background", FLAG(train_given, save_background), NULL, NULL,
     "steps go on while a checkpoint is written, from a copy of it in host memory"},
    {"check-every", INTEGER(train_given, check_every, 0, TRAIN_MOST), "N", "1000",
     "steps between comparisons of the weights of several processes, which name who has others; "
     "0: only before checkpoints"},
    {0}};

#define NEXT_TO_NOTHING 1e-30 /* where the library takes a 0 for its default */
#define BALANCE 0.01 /* as in Switch transformers */

#define TAKE(option, field, value)                                                                 \
    do {                                                                                           \
        if (call_has(call, option))                                                                \
            t->field = given->value;                                                               \
    } while (0)

static void apply_model(const cli_call *call, cup_training *t)
{
    const train_given *given = call->given;
    TAKE("layers", model.layers, layers);
    TAKE("heads", model.heads, heads);
    TAKE("width", model.width, width);
    TAKE("context", model.context, context);
    TAKE("untied", model.untied, untied);
    TAKE("dropout", model.dropout, dropout);
    TAKE("hidden", model.hidden, hidden);
    TAKE("kv-heads", model.kv_heads, kv_heads);
    TAKE("head-size", model.head_size, head_size);
    TAKE("qk-norm", model.qk_norm, qk_norm);
    TAKE("window", model.window, window);
    TAKE("soft-cap", model.soft_cap, soft_cap);
    TAKE("logits-cap", model.logits_cap, logits_cap);
    TAKE("sinks", model.sinks, sinks);
    TAKE("documents", model.documents, documents);
    TAKE("lora", lora_rank, lora);
    TAKE("lora-scale", lora_alpha, lora_scale);
    TAKE("experts", model.experts, experts);
    TAKE("experts-per-token", model.experts_each, experts_per_token);
    TAKE("capacity", model.capacity, capacity);
    TAKE("balance", model.balance, balance);
    TAKE("router-z", model.router_z, router_z);
    if (call_has(call, "experts") && !call_has(call, "balance") && !given->resume)
        t->model.balance = BALANCE;
    if (given->positions)
        t->model.positions = !strcmp(given->positions, "learned") ? CUP_POSITIONS_LEARNED
                             : !strcmp(given->positions, "alibi") ? CUP_POSITIONS_ALIBI
                                                                  : CUP_POSITIONS_ROTARY;
    if (given->norm)
        t->model.norm =
            strcmp(given->norm, "layernorm") ? CUP_NORM_KIND_RMSNORM : CUP_NORM_KIND_LAYERNORM;
    if (given->mlp)
        t->model.mlp = strcmp(given->mlp, "gelu") ? CUP_MLP_KIND_SWIGLU : CUP_MLP_KIND_GELU;
    if (given->bias) {
        t->model.bias = !strcmp(given->bias, "yes");
        t->model.qkv_bias = !strcmp(given->bias, "qkv");
    }
}

cup_non_finite train_non_finite(const train_given *given)
{
    return strcmp(given->non_finite, "stop") ? CUP_NON_FINITE_SKIP : CUP_NON_FINITE_STOP;
}

void train_memories(const cli_call *call, cup_optimizer_options *out)
{
    const train_given *given = call->given;
    if (call_has(call, "beta1"))
        out->beta1 = fmax(given->beta1, NEXT_TO_NOTHING);
    if (call_has(call, "beta2"))
        out->beta2 = fmax(given->beta2, NEXT_TO_NOTHING);
    if (call_has(call, "momentum"))
        out->momentum = fmax(given->momentum, out->method == CUP_METHOD_MUON ? NEXT_TO_NOTHING : 0);
}

static void apply_run(const cli_call *call, cup_training *t)
{
    const train_given *given = call->given;
    TAKE("steps", steps, steps);
    TAKE("batch", batch, batch);
    TAKE("accumulate", accumulate, accumulate);
    TAKE("lr", rate, lr);
    if (call_has(call, "lr"))
        t->rate_end = given->lr / 10;
    TAKE("lr-end", rate_end, lr_end);
    TAKE("warmup", warmup, warmup);
    TAKE("decline-steps", decline_steps, decline_steps);
    if (given->decline)
        cup_decline_find(given->decline, &t->decline);
    TAKE("weight-decay", optimizer.weight_decay, weight_decay);
    TAKE("clip", optimizer.clip, clip);
    TAKE("loss-scale", loss_scale, loss_scale);
    TAKE("ema", optimizer.average, ema);
    if (given->recompute) {
        cup_recompute_policy_find(given->recompute, &t->recompute);
        t->recompute_blocks = 0; /* what a checkpoint says is of its own policy */
    }
    TAKE("recompute-blocks", recompute_blocks, recompute_blocks);
    if (call_has(call, "logits-memory"))
        t->logits_most = given->logits_memory << 20;
    TAKE("stochastic", optimizer.stochastic, stochastic);
    t->optimizer.offload = given->offload;
    TAKE("evaluate-every", evaluate_every, evaluate_every);
    TAKE("evaluate-texts", evaluate_texts, evaluate_texts);
    TAKE("save-every", save_every, save_every);
    if (call_has(call, "check-every"))
        t->check_every = given->check_every ? given->check_every : -1;
    if (call_has(call, "order"))
        t->order = strcmp(given->order, "random") ? CUP_DATA_ORDER_PERMUTED
                                                  : CUP_DATA_ORDER_RANDOM;
    if (given->precision)
        t->precision = given->precision;
    if (given->optimizer)
        cup_method_find(given->optimizer, &t->optimizer.method);
    train_memories(call, &t->optimizer);
    if (given->non_finite)
        t->non_finite = train_non_finite(given);
}

/* What chooses a new model and its tokenizer has no say where both are there. */
static int check_resume(const cli_call *call, const cup_training *t)
{
    const train_given *given = call->given;
    const char *const news[] = {"preset", "tokenizer", "vocabulary",
                                t->lora_rank > 0 ? NULL : "from", NULL};
    if (call_deny(call, "with --resume", news))
        return CLI_USAGE;
    if (call_has(call, "lora") && !t->lora_rank)
        return cli_usage("--lora trains adapters beside a model, and the run in %s trains the "
                         "whole of one: begin another with --from %s",
                         cli_shown(given->out), cli_shown(given->out));
    return CLI_OK;
}

int train_groups(const train_given *given, char out[CUP_PARAMETER_GROUPS])
{
    size_t used = 0;
    for (int i = 0; i < given->decay_groups.count && used < CUP_PARAMETER_GROUPS; i++)
        used += (size_t)snprintf(out + used, CUP_PARAMETER_GROUPS - used, "%s%s", i ? " " : "",
                                 given->decay_groups.name[i]);
    return used < CUP_PARAMETER_GROUPS ? CLI_OK
                                       : cli_usage("--decay-groups has over %d characters; let * "
                                                   "in a pattern stand for more names",
                                                   CUP_PARAMETER_GROUPS - 1);
}

void train_limit_warmup(const cli_call *call, cup_training *t)
{
    const train_given *given = call->given;
    if (t->warmup > t->steps / 5 && !call_has(call, "warmup") && !given->resume)
        t->warmup = t->steps / 5;
}

int train_apply(const cli_call *call, cup_training *t)
{
    const train_given *given = call->given;
    if (given->resume && !given->again && check_resume(call, t))
        return CLI_USAGE;
    if (call_has(call, "lora-scale") && !call_has(call, "lora") && !t->lora_rank)
        return cli_usage("--lora-scale is of adapters, which --lora trains");
    int64_t heads = t->model.heads, width = t->model.width;
    apply_model(call, t);
    apply_run(call, t);
    if (train_groups(given, t->optimizer.groups))
        return CLI_USAGE;
    /* What follows from others is worked out anew when they change. */
    if (t->model.heads != heads && !call_has(call, "kv-heads"))
        t->model.kv_heads = 0;
    if ((t->model.width != width || given->mlp) && !call_has(call, "hidden"))
        t->model.hidden = 0;
    train_limit_warmup(call, t);
    if (t->accumulate == 0)
        t->accumulate = 1;
    if (given->dtype)
        cup_dtype_find(given->dtype, &t->dtype);
    if (!given->resume || call_has(call, "seed"))
        t->seed = (uint64_t)given->seed;
    if (t->model.width % t->model.heads == 0 || t->model.head_size)
        return CLI_OK;
    return cli_usage("--width %lld is not a multiple of --heads %lld; %lld would be",
                     (long long)t->model.width, (long long)t->model.heads,
                     (long long)((t->model.width / t->model.heads + 1) * t->model.heads));
}

int train_check_device(cup_context *c, const train_given *given)
{
    if (given->memory_page && cup_device_is_cuda(c))
        cup_file_check(c, given->memory_page);
    int code = cli_report(c);
    if (code || cup_device_is_cuda(c))
        return code || cup_tuning(c, given->tune) == CUP_OK ? code : cli_report(c);
    if (given->memory_page)
        return cli_usage("--memory-page draws the memory of a GPU; this run is on the CPU");
    if (given->tune)
        fprintf(stderr, "note: --tune measures on a GPU only; this run is on the CPU\n");
    if (given->offload)
        fprintf(stderr, "note: --optimizer-offload is of a GPU; this run is on the CPU\n");
    return CLI_OK;
}

int train_draw_memory(cup_context *c, const train_given *given)
{
    if (!given->memory_page || !cup_device_is_cuda(c) ||
        cup_memory_page(c, given->memory_page) == CUP_OK)
        return CLI_OK;
    return cli_fail(CLI_FILE, "%s: the page of the memory was not written", given->memory_page);
}

void train_note_unchecked(cup_context *c, const char *folder)
{
    cup_checkpoint checkpoint;
    cup_status status = cup_checkpoint_look(c, folder, &checkpoint);
    if (status != CUP_OK)
        cup_error_clear(c); /* A published model's folder has none. */
    else if (!checkpoint.checked)
        fprintf(stderr,
                "note: %s/state.json is of version 0.1.0 and has no checksum; what changed "
                "in it since would not be noticed\n",
                cli_shown(folder));
}

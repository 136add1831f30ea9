/* cupola train: from text to a model. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/common/exit.h"
#include "cli/launcher.h"
#include "cli/common/signals.h"
#include "cli/common/text.h"
#include "cli/train_run.h"
#include "cli/common/write.h"
#include "cupola/cupola.h"

/* The run itself looks again, when the folder is its own; this is to say so before hours of reading
 * text. */
static int check_out(train_run *r)
{
    const char *out = r->given->out;
    if (r->given->overwrite || !train_speaks(r))
        return CLI_OK;
    cup_status status = cup_training_vacant(r->c, out);
    if (status == CUP_OK && !metrics_vacant(out))
        status = cup_fail(r->c, CUP_ARGUMENT,
                          "%s/metrics.jsonl is not of a run; move it away, or name another --out",
                          out);
    if (status == CUP_OK)
        return CLI_OK;
    return cli_fail(cli_exit_of(status),
                    "%s (--resume goes on with the checkpoint in --out, "
                    "--overwrite lets a new run replace what is there)",
                    cup_error_text(r->c));
}

/* The preset, or the checkpoint's training, changed by the options. */
static int choose_training(train_run *r)
{
    const train_given *given = r->given;
    if (given->resume) {
        if (cup_training_load(r->c, given->out, &r->training, &r->first) != CUP_OK)
            return cli_report(r->c);
        if (train_speaks(r))
            train_note_unchecked(r->c, given->out);
        if (r->training.lora_rank)
            r->training.from = given->from;
        return train_apply(r->call, &r->training);
    }
    int code = given->lora && !given->from
                   ? cli_usage("--lora trains adapters beside a model: name its folder with --from")
                   : check_out(r);
    if (code)
        return code;
    const char *usual = cup_device_is_cuda(r->c) ? "char" : "demo";
    const char *name = given->preset ? given->preset : usual;
    r->training = cup_preset_find(name)->training;
    r->training.dtype = cup_device_computes_in(r->c, CUP_BF16) ? CUP_BF16 : CUP_F32;
    r->training.from = given->from;
    if (given->from && cup_gpt_config_load(r->c, given->from, &r->training.model) != CUP_OK)
        return cli_report(r->c);
    return train_apply(r->call, &r->training);
}

static int choose_parts(train_run *r)
{
    int code = train_parallel(r->given, cup_comm_count(r->comm), &r->parts);
    if (code)
        return code;
    r->training.tensor = r->parts.tensor;
    r->training.stages = r->parts.stages;
    r->training.chunks = r->parts.chunks;
    r->training.ring = r->parts.ring;
    r->training.expert = r->parts.expert;
    r->training.sequence = r->given->sequence;
    r->training.blocks = r->parts.blocks[0] ? r->parts.blocks : NULL;
    r->training.comm = r->comm;
    r->training.background = r->given->save_background;
    r->training.optimizer.split = r->given->zero ? r->comm : NULL;
    r->training.optimizer.stage = (int)r->given->zero;
    return CLI_OK;
}

static int make_trainer(train_run *r)
{
    r->trainer = cup_trainer_new(r->c, r->data, r->tokenizer, r->given->out, &r->training);
    if (r->trainer && r->given->resume) {
        cup_trainer_resume(r->trainer);
        r->first = cup_trainer_steps(r->trainer);
    }
    if (r->trainer && r->given->overwrite)
        cup_trainer_overwrite(r->trainer);
    return cli_report(r->c);
}

static void on_point(const cup_training_point *p, void *user)
{
    train_run *r = user;
    if (!isfinite(p->validation) || !train_speaks(r))
        signals_stake(SIGNALS_WORK);
    if (train_speaks(r))
        train_report(r, p);
}

static void on_saved(int64_t steps, void *user)
{
    (void)steps;
    train_run *r = user;
    r->saved = true;
    progress_pause(&r->progress);
}

static bool on_stop(void *user)
{
    (void)user;
    return signals_caught() != 0;
}

/* Whether no process has the whole model. */
static bool is_shared_out(const train_run *r)
{
    return r->parts.tensor * r->parts.stages * r->parts.expert > 1 ||
           (r->comm && r->given->zero > 2);
}

/* Writes with the trained model, which is the checkpoint's where it is whole nowhere else; to `to`,
 * or as it goes to stdout when it is NULL. */
static int write_sample(train_run *r, FILE *to)
{
    cup_gpt *loaded = is_shared_out(r) ? cup_gpt_load(r->c, r->given->out) : NULL;
    cli_writing writing = {
        .model = loaded ? loaded : cup_trainer_model(r->trainer),
        .tokenizer = r->tokenizer,
        .prompt = "\n",
        .prompt_bytes = 1,
        .tokens = r->given->sample,
        .sampling = {.size = sizeof(cup_sampling), .temperature = 0.8, .seed = r->training.seed},
        .to = to};
    int code = cli_report(r->c);
    code = code ? code : write_text(r->c, &writing);
    cup_gpt_free(loaded);
    return code;
}

static int finish(train_run *r)
{
    cli_text sample = {0};
    if (!train_speaks(r))
        return CLI_OK;
    bool wants = r->given->sample > 0 && !r->stopped && !signals_caught();
    bool kept = wants && r->call->json;
    if (train_draw(r) != CUP_OK)
        return cli_report(r->c);
    train_summarize(r);
    bool fits = !kept || text_open(&sample);
    int code = wants && fits ? write_sample(r, sample.to) : CLI_OK;
    if (kept && !text_close(&sample) && !code)
        code = cli_fail(CLI_MEMORY, "no host memory for the sample");
    if (!code && r->call->json)
        code = train_write_document(r, wants ? &sample : NULL);
    text_free(&sample);
    return code;
}

static int train(train_run *r)
{
    const cup_training_hooks hooks = {
        sizeof hooks, .point = on_point, .saved = on_saved, .stop = on_stop, .user = r};
    r->saved = r->given->resume;
    if (train_speaks(r))
        train_begin_report(r);
    cup_status status = cup_trainer_run(r->trainer, &hooks);
    signals_stake(SIGNALS_OUTPUT);
    if (train_speaks(r))
        train_end_report(r);
    if (status != CUP_OK && status != CUP_INTERRUPTED)
        return cli_report(r->c);
    r->stopped = status == CUP_INTERRUPTED;
    return train_leave(r->comm, status, finish(r));
}

static int run_with(train_run *r)
{
    int code = train_check_device(r->c, r->given);
    if (!code && r->place.run.count > 1) {
        const char *record = getenv("CUP_COMM_RECORD");
        r->comm = cup_comm_new(
            r->c, CUP_OPTIONS(cup_comm_options, .record = record ? record : r->given->out));
        code = cli_report(r->c);
    }
    if (!code && train_goes_on(r->c, r->comm, &r->place, r->given)) {
        train_given *given = r->call->given;
        given->resume = given->again = true;
    }
    if (!code)
        code = choose_training(r);
    if (!code)
        code = choose_parts(r);
    if (!code)
        code = train_load_data(r);
    if (!code)
        code = train_take_epochs(r);
    if (!code)
        code = make_trainer(r);
    if (code)
        return code;
    train_announce(r);
    return train(r);
}

/* The work of one process. */
static int run_one(void *user)
{
    cli_call *call = user;
    train_run r = {.call = call, .given = call->given};
    int code = train_find_place(r.given, &r.place);
    if (code)
        return code;
    /* Until the first step is done there is nothing that a checkpoint could save. */
    signals_stake(SIGNALS_NOTHING);
    signals_catch();
    r.c = cup_context_new(
        CUP_OPTIONS(cup_options, .device = *r.place.device ? r.place.device : r.given->device,
                    .threads = r.place.threads,
                    .deterministic = r.given->deterministic, .memory_limit = r.given->memory_limit,
                    .memory_share = r.given->memory_share));
    code = run_with(&r);
    int drawn = train_draw_memory(r.c, r.given);
    code = code ? code : drawn;
    cup_trainer_free(r.trainer);
    cup_data_free(r.data);
    cup_tokenizer_free(r.tokenizer);
    cup_corpus_free(r.corpus);
    cup_comm_free(r.comm);
    cup_context_free(r.c);
    return code;
}

static int run(cli_call *call)
{
    const train_given *given = call->given;
    int processes;
    if (train_is_images(given))
        return train_images(call);
    if (train_deny_images(call))
        return CLI_USAGE;
    if (!given->data.count && !given->resume)
        return cli_usage("--data is missing: name files or folders with text to learn from");
    if (given->overwrite && given->resume)
        return cli_usage(
            "--resume goes on with a checkpoint and --overwrite replaces one; give one "
            "of them");
    int code = train_plan(given, &processes);
    if (code || processes == 1)
        return code ? code : run_one(call);
    const launcher l = {.processes = processes,
                        .restarts = (int)given->restarts,
                        .first_plain = true,
                        .work = run_one,
                        .user = call};
    return launcher_run(&l);
}

const cli_verb verb_train = {
    .name = "train",
    .synopsis = "--data FILE|DIR... [OPTION]...",
    .words = "train a GPT on text, or a network on images",
    .text =
        "Learns a language model from the text of files and folders: the first nine tenths of it, "
        "the rest is for validation. Files whose names end in .bin, and folders of such, are "
        "tokens already, as llm.c and nanoGPT write them: they are read in pieces and may be of "
        "any size, those with \"train\" in their names are for training and those with \"val\" for "
        "validation, and they need --tokenizer, or a tokenizer.json beside them. Text of over "
        "--text-limit is made to such files first, in the folder tokens of --out, with the last "
        "tenth of it for validation. What the model "
        "looks like and how it is trained comes from a preset; every option changes one thing of "
        "it.\n\n"
        "The folder --out gets a checkpoint, replaced as a whole every --save-every steps and at "
        "the end; losses.csv with every step; and loss.svg with the curves, which is drawn again "
        "every few seconds, and loss.html, a page with it that says how far the run is, with "
        "tokens and operations a second: 6 a token for each weight that multiplies (4 where "
        "adapters are trained beside them), and 12 layers x width x context.\n\n"
        "metrics.jsonl has a line of JSON for each step and evaluation as soon as it is known: "
        "step (those done before it), loss, norm (of the gradients, before they are clipped), rate "
        "(of learning), or validation (the loss); tokens (of the whole run so far), "
        "tokens_per_second (in the last seconds, evaluations and saves included), epoch (how many "
        "so far; null where there are none), mfu, memory, "
        "memory_peak and memory_held (bytes in use by tensors, now and at most, and held at most), "
        "seconds_left and skipped (steps so far that changed nothing, as their gradients or loss "
        "were not finite; see --non-finite), and with a scale of the loss loss_scale. "
        "mfu, the model's share of what the device could do, is "
        "tokens_per_second times the operations of a token, as above, by the peak of the card's "
        "dense products in the dtype, or of the --precision of f32, as NVIDIA's data sheets have "
        "it; null where the card is not among them, or a CPU. A line with \"schema\" stands where "
        "a run begins or goes on. --resume drops the lines of steps that the checkpoint has not "
        "seen. --tensorboard writes the same as event files that TensorBoard reads.\n\n"
        "SIGINT and SIGTERM "
        "end a run within a second, with a checkpoint and exit code 130 or 143, and --resume goes "
        "on from it as if nothing had happened: the same losses, bit for bit. Until the first step "
        "is done there is nothing to save, and they end the run at once; a second one does not "
        "keep the checkpoint from being saved, a third one, half a second after it, does. "
        "--resume finds text or tokens where they were.\n\n"
        "--weights makes each name of --data a set of its own, as in --data books code --weights "
        "0.7 0.3: a text of a batch is from a set as often as its weight says, whatever the sets' "
        "sizes. Which text is from which set follows from the seed, the step and its place in the "
        "batch alone, so that a resumed run reads on as if nothing had happened; what was read of "
        "each is said at the end. The validation part is those of all sets.\n\n"
        "--order permuted cuts the text into windows of --context tokens, and reads each of them "
        "once before any is read again: every epoch has them in an order of its own, which "
        "follows from the seed. With --weights each set has its own epochs, and its share of any "
        "number of texts to within a few. --epochs N is then as many steps as it takes to read "
        "each window N times. Without it texts are read from random places.\n\n"
        "Several processes train one model with --gpus or --processes, or when `cupola launch`, "
        "torchrun, mpirun or Slurm starts them: each computes its share of a step's batches, "
        "--batch times --accumulate texts in all, so that the run is that of one process but for "
        "rounding. Rank 0 writes the checkpoint, from which a run that is started again goes on by "
        "itself, but with --overwrite; another number of processes may go on from it, too. "
        "--parallel dp=2,tp=2 lets groups of two share out one model, each process with a part of "
        "the heads, of the MLPs or of every expert, and of the vocabulary, for models that do not "
        "fit one of them; "
        "pp=2 gives each of two a half of its blocks, through which the batches of a step go one "
        "after the other: with --accumulate many times as many as stages they seldom wait, and "
        "with --interleave 2, which gives each two of four quarters, not those that follow each "
        "other, half as long. cp=2 "
        "gives each of two a half of every text, for contexts that do not fit one of them: keys "
        "and values go round between them while attention is computed; the context must be a "
        "multiple of twice as many, with dropout of 32 times as many. dp=2,ep=2 gives each of two "
        "copies of all else a half of the experts, to which the tokens of both go and come back; "
        "with pp=2, of four processes, those of each stage among its copies. With tp=2 the "
        "processes of a group are among those that share them out, ep=2 by two and ep=4 by two "
        "groups, and each sends a half of its tokens; without ep each has a part of every expert. "
        "Where the run fails, each process writes "
        "flight-RANK.json to --out: why, what it did last, and what it knew of the others.\n\n"
        "--lora RANK trains adapters beside the linear layers of the model in --from, which stays "
        "as it is: two factors of RANK rows and columns for each. Checkpoints have them alone and "
        "say where the model lies, which --resume and cupola generate --from read again; a model "
        "that was changed since is refused. Experts have none, and are left as they are. They go "
        "with all of --parallel, and with --zero, which shares out what is learned alone. cupola "
        "export writes them as peft reads them, or with --merge the model with them in its "
        "weights.\n\n"
        "--task classify learns to tell images apart, from --data as cupola/images.h says: IDX "
        "files, CIFAR's, .npy, a folder with one for each class, or a CSV file. `cupola classify` "
        "asks the network. Several processes share each batch of images, batchnorms take the "
        "statistics of the whole of it, and each has all images in memory, but with --as-needed. "
        "--from DIR begins with the network of another run, its weights and how it was trained, on "
        "images of its size and channels unless they are given; where the classes are others, by "
        "their names and their order, the last layer is new. metrics.jsonl counts images in the "
        "place of tokens, evaluations have an accuracy, and mfu is null.\n\n"
        "Progress goes to stderr; the sample that --sample asks for, and the document of --json, "
        "go to stdout.",
    .examples = "A small model of a book, as large as the device suggests:\n"
                "cupola train --data book.txt --out book\n"
                "The same after an interruption:\ncupola train --out book --resume\n"
                "Adapters beside a published model:\n"
                "cupola train --from smollm --lora 16 --lr 2e-4 --data notes.txt --out tuned\n"
                "nanoGPT's character model, on the first GPU:\n"
                "cupola train --preset char --data shakespeare.txt --device cuda\n",
    .options = train_options,
    .size = sizeof(train_given),
    .run = run,
};

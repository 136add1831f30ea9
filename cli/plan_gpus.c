/* cupola plan --gpus: how a step is best shared among GPUs, and what that takes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/common/progress.h"
#include "cli/plan_search.h"
#include "cupola/cupola.h"

#define SHOWN 6
#define NODE 8 /* GPUs that a node is taken to have */

typedef struct page {
    const cli_call *call;
    const train_given *given;
    cli_json json;
} page;

/* "dp=4,pp=2", as --parallel takes it. */
static const char *split_text(const plan_split *split, char text[64])
{
    int used = snprintf(text, 64, "dp=%lld", (long long)split->copies);
    if (split->ring > 1)
        used += snprintf(text + used, 64 - (size_t)used, ",cp=%lld", (long long)split->ring);
    if (split->stages > 1)
        used += snprintf(text + used, 64 - (size_t)used, ",pp=%lld", (long long)split->stages);
    if (split->tensor > 1)
        used += snprintf(text + used, 64 - (size_t)used, ",tp=%lld", (long long)split->tensor);
    if (split->expert > 1)
        snprintf(text + used, 64 - (size_t)used, ",ep=%lld", (long long)split->expert);
    return text;
}

/* What takes at least a part in two hundred of a step, the most first. */
static void print_losses(const plan_split *split)
{
    bool said[PLAN_LOSSES] = {false}, any = false;
    for (;;) {
        int most = -1;
        for (int i = 0; i < PLAN_LOSSES; i++)
            if (!said[i] && split->losses[i] >= 0.005 &&
                (most < 0 || split->losses[i] > split->losses[most]))
                most = i;
        if (most < 0)
            break;
        said[most] = true;
        printf("%s%s %.1f %%", any ? ", " : "", plan_loss_words[most], 100 * split->losses[most]);
        if (most == PLAN_STAGES)
            printf(" (bubble %.1f %%)", 100 * split->bubble);
        any = true;
    }
    printf("%s\n", any ? "" : "nothing");
}

static void print_split(const plan_split *split)
{
    char text[64], shared[48], needs[32], speed[32];
    snprintf(shared, sizeof shared, "%lldx%lld", (long long)split->batches,
             (long long)split->texts);
    printf("%-20s %6lld %4lld %9s %9s %10s %-4s %9.1f ms %9s %6.1f %% %6.1f %%  ",
           split_text(split, text), (long long)split->chunks, (long long)split->zero, shared,
           cup_recompute_policy_name(split->recompute),
           cup_text_size(split->needed, needs, sizeof needs), split->fits ? "yes" : "no",
           1e3 * split->seconds, progress_number(split->tokens_per_second, speed),
           100 * split->mfu, 100 * split->scaling);
    print_losses(split);
}

static void print_cure(const plan_scene *s, const plan_split *best)
{
    char text[64], has[32], gpus[32] = "", words[64] = "", again[32] = "";
    bool sequence = s->training.sequence && best->tensor > 1;
    if (!best->fits) {
        double room = s->card.memory_bytes;
        room = s->limit ? fmin(room, (double)s->limit) : room;
        printf("\nNone fits in the %s of this card%s; these need least. More GPUs, fewer tokens a "
               "text, or a smaller model would.\n",
               cup_text_size(room, has, sizeof has),
               room < s->card.memory_bytes ? " that --memory-limit leaves" : "");
        return;
    }
    if (best->zero)
        snprintf(words, sizeof words, " --zero %lld", (long long)best->zero);
    if (best->chunks > 1)
        snprintf(words, sizeof words, " --interleave %lld", (long long)best->chunks);
    if (best->recompute)
        snprintf(again, sizeof again, " --recompute %s",
                 cup_recompute_policy_name(best->recompute));
    if (s->cluster.nodes == 1)
        snprintf(gpus, sizeof gpus, " --gpus %lld", (long long)s->cluster.gpus);
    printf("\nBest: cupola train%s --parallel %s%s%s --batch %lld --accumulate %lld%s ..\n",
           gpus, split_text(best, text), sequence ? " --sequence-parallel" : "", words,
           (long long)best->batch, (long long)best->accumulate, again);
}

static void print_head(const plan_scene *s)
{
    char text[32];
    const plan_cluster *k = &s->cluster;
    double guess;
    printf("%s parameters; %lld texts of %lld tokens a step; %lld x %s on %lld %s\n",
           progress_number((double)cup_gpt_parameter_count(&s->training.model, true), text),
           (long long)s->texts, (long long)s->training.model.context, (long long)k->gpus,
           s->card.name, (long long)k->nodes, k->nodes > 1 ? "nodes" : "node");
    printf("simulated: all-reduces reach %.0f GB/s in a node%s", 1e-9 * k->link,
           plan_link_of(s->card.name, &guess) ? "" : ", a guess");
    if (k->nodes > 1)
        printf(", %.1f GB/s a GPU between nodes, an assumption", 1e-9 * k->network);
    printf("\n\n%-20s %6s %4s %9s %9s %10s %-4s %12s %9s %8s %8s  %s\n", "split",
           "chunks", "zero", "batches", "recompute", "needs", "fits", "a step", "tokens/s", "MFU",
           "scaling", "held back by");
}

static void write_split(cli_json *w, const plan_scene *s, const plan_split *split)
{
    static const char *const keys[PLAN_LOSSES] = {"kernels",   "twice",   "optimizer", "stages",
                                                  "tensor",    "ring",      "experts",
                                                  "gradients", "weights",   "slowest"};
    json_open_object(w, NULL);
    json_add_string(w, "card", s->card.name);
    json_add_integer(w, "gpus", s->cluster.gpus);
    json_add_integer(w, "nodes", s->cluster.nodes);
    json_add_integer(w, "dp", split->copies);
    json_add_integer(w, "cp", split->ring);
    json_add_integer(w, "pp", split->stages);
    json_add_integer(w, "interleave", split->chunks);
    json_add_integer(w, "tp", split->tensor);
    json_add_integer(w, "ep", split->expert > 1 ? split->expert : 1);
    json_add_boolean(w, "sequence_parallel", s->training.sequence && split->tensor > 1);
    json_add_integer(w, "zero", split->zero);
    json_add_integer(w, "batch", split->batch);
    json_add_integer(w, "accumulate", split->accumulate);
    json_add_integer(w, "texts_at_once", split->texts);
    json_add_integer(w, "batches", split->batches);
    json_add_string(w, "recompute", cup_recompute_policy_name(split->recompute));
    json_add_boolean(w, "fits", split->fits);
    json_add_number(w, "needed_bytes", split->needed);
    json_add_number(w, "seconds", split->seconds);
    json_add_number(w, "tokens_per_second", split->tokens_per_second);
    json_add_number(w, "mfu", split->mfu);
    json_add_number(w, "scaling", split->scaling);
    json_add_number(w, "bubble", split->bubble);
    json_open_object(w, "held_back_by");
    for (int i = 0; i < PLAN_LOSSES; i++)
        json_add_number(w, keys[i], split->losses[i]);
    json_close(w);
    json_close(w);
}

static int plan_on(page *p, plan_scene *s, const plan_wish *wish)
{
    plan_split splits[SHOWN];
    int count, code = plan_search(s, wish, splits, SHOWN, &count);
    if (code)
        return code;
    if (!p->call->json)
        print_head(s);
    for (int i = 0; i < count; i++)
        if (p->call->json)
            write_split(&p->json, s, &splits[i]);
        else
            print_split(&splits[i]);
    if (!p->call->json)
        print_cure(s, &splits[0]);
    return CLI_OK;
}

static int find_cluster(const train_given *given, plan_cluster *k)
{
    k->gpus = given->gpus;
    k->nodes = given->nodes ? given->nodes : (k->gpus + NODE - 1) / NODE;
    /* The part of a network's speed that is taken to be reached. */
    k->network = given->nic * 1e9 / 8 * 0.9;
    if (k->nodes > k->gpus || k->gpus % k->nodes)
        return cli_usage("--gpus %lld on %lld nodes is not as many on each; give a --nodes that "
                         "divides them",
                         (long long)k->gpus, (long long)k->nodes);
    k->each = k->gpus / k->nodes;
    return CLI_OK;
}

static int find_texts(const cli_call *call, const cup_training *a, int64_t *texts)
{
    const train_given *given = call->given;
    *texts = given->texts ? given->texts : a->batch * a->accumulate;
    if (given->texts && call_has(call, "accumulate"))
        return cli_usage("--texts and --accumulate both say how many texts make a step; give one "
                         "of them");
    return CLI_OK;
}

static int find_wish(const cli_call *call, const cup_training *a, plan_wish *wish)
{
    const train_given *given = call->given;
    train_parts parts;
    if (given->sequence && a->model.dropout > 0)
        return cli_usage("--sequence-parallel does not know of dropout: give --dropout 0, too");
    bool kept = call_has(call, "batch") || call_has(call, "accumulate");
    *wish = (plan_wish){.batch = kept ? a->batch : 0,
                        .chunks = call_has(call, "interleave") ? given->interleave : 0,
                        .zero = call_has(call, "zero") ? given->zero : -1,
                        .one = given->recompute && a->recompute != CUP_RECOMPUTE_POLICY_AUTO};
    if (!given->parallel)
        return CLI_OK;
    int code = train_parallel(given, (int)given->gpus, &parts);
    int64_t each = parts.stages * parts.tensor * parts.ring;
    wish->split = (plan_split){.stages = parts.stages,
                               .tensor = parts.tensor,
                               .ring = parts.ring,
                               .expert = parts.expert,
                               .copies = code ? 1 : given->gpus / each};
    return code;
}

static int plan_cards(page *p, plan_scene *s, const plan_wish *wish)
{
    static const char *usual[] = {"h200"};
    int count = p->given->cards.count, code = CLI_OK;
    const char **names = count ? p->given->cards.name : usual;
    cup_dtype dtype = s->training.dtype;
    for (int i = 0; i < (count ? count : 1) && !code; i++) {
        if (!cup_card_find(names[i], &s->card))
            return cli_usage("--card %s is not known; `cupola plan --help` says which are",
                             cli_shown(names[i]));
        /* As train chooses it on such a card. */
        bool old = !strcmp(s->card.arch, "sm_75") && !call_has(p->call, "dtype");
        s->training.dtype = old ? CUP_F32 : dtype;
        s->one = 0;
        plan_link_of(s->card.name, &s->cluster.link);
        if (p->given->link > 0)
            s->cluster.link = 1e9 * p->given->link;
        if (i && !p->call->json)
            printf("\n");
        code = plan_on(p, s, wish);
        plan_forget(s);
    }
    return code;
}

int plan_gpus(cli_call *call, cup_context *c, const cup_training *training)
{
    page p = {.call = call, .given = call->given};
    plan_scene s = {.c = c, .training = *training, .limit = p.given->memory_limit};
    plan_wish wish;
    int code = find_cluster(p.given, &s.cluster);
    if (!code)
        code = find_texts(call, training, &s.texts);
    if (!code)
        code = find_wish(call, training, &wish);
    if (code)
        return code;
    if (call->json) {
        json_begin(&p.json, "plan");
        json_open_array(&p.json, "splits");
    }
    code = plan_cards(&p, &s, &wish);
    if (!code && call->json) {
        json_close(&p.json);
        code = json_end(&p.json);
    }
    json_drop(&p.json);
    plan_forget(&s);
    return code;
}

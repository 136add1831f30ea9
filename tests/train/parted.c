#include "train/parted.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/together.h"
#include "cuda/support.h"
#include "test.h"

cup_training parted_training(bool gated)
{
    cup_training a = tiny;
    a.model.heads = 4;
    a.model.layers = 4;
    a.model.dropout = 0;
    a.batch = 2;
    a.accumulate = 4;
    a.model.bias = !gated;
    a.recompute = CUP_RECOMPUTE_POLICY_NORMS;
    if (gated) {
        a.model.kv_heads = 2;
        a.model.qk_norm = true;
        a.model.hidden = 24;
        a.model.untied = true;
        a.model.positions = CUP_POSITIONS_ROTARY;
        a.model.norm = CUP_NORM_KIND_RMSNORM;
        a.model.mlp = CUP_MLP_KIND_SWIGLU;
        a.recompute = CUP_RECOMPUTE_POLICY_BLOCK;
    }
    return a;
}

cup_training parted_mixed(const parts *p)
{
    cup_training a = parted_training(p->gated);
    a.model.experts = p->experts;
    /* Which is of each part of a text by itself. */
    a.model.balance = p->experts && !p->ring ? 0.02 : 0;
    a.model.router_z = p->gated && p->experts ? 0.001 : 0;
    a.model.capacity = p->capacity;
    /* Parts of texts know of none of these. */
    if (p->gated && !p->ring) {
        a.model.positions = CUP_POSITIONS_ALIBI;
        a.model.soft_cap = 2;
        a.model.logits_cap = 3;
        a.model.sinks = true;
    }
    a.accumulate = p->batches ? p->batches : a.accumulate;
    return a;
}

int64_t parted_run(cup_context *c, cup_comm *comm, cup_training a, parts p, const char *folder,
                   bool resume, cup_training_point *out)
{
    const char *text = sample_text();
    session s = {.c = c, .stop_at = -1};
    s.corpus = cup_corpus_new(c, text, strlen(text));
    s.tokenizer = cup_tokenizer_char_new(c, s.corpus);
    s.data = cup_data_new(c, s.corpus, s.tokenizer, a.model.context);
    a.comm = comm;
    a.tensor = p.tensor;
    a.stages = p.stages;
    a.chunks = p.chunks;
    a.ring = p.ring;
    a.optimizer.method = p.method;
    a.optimizer.split = p.zero ? comm : NULL;
    a.optimizer.stage = p.zero;
    a.blocks = p.blocks;
    a.expert = p.expert;
    a.sequence = p.sequence;
    a.lora_rank = p.lora_rank;
    a.from = p.from;
    s.trainer = cup_trainer_new(c, s.data, s.tokenizer, folder, &a);
    if (p.chosen && s.trainer) {
        p.chosen[0] = cup_trainer_model(s.trainer)->recompute;
        p.chosen[1] = cup_trainer_model(s.trainer)->recompute_blocks;
    }
    if (resume)
        cup_trainer_resume(s.trainer);
    cup_trainer_run(s.trainer, NULL);
    int64_t count = s.trainer ? points_of(&s, out) : 0;
    cup_trainer_free(s.trainer);
    cup_data_free(s.data);
    cup_tokenizer_free(s.tokenizer);
    cup_corpus_free(s.corpus);
    return count;
}

static bool close_to(double a, double b, double most)
{
    return (isnan(a) && isnan(b)) || fabs(a - b) <= most * fabs(a);
}

void parted_expect(cup_context *c, const cup_training_point *a, int64_t count,
                   const cup_training_point *b, int64_t same, const char *what)
{
    if (count != same || count < 12)
        wrong("%s: %d and %d points; %s", what, (int)count, (int)same, cup_error_text(c));
    for (int64_t i = 0; i < count && i < same; i++)
        if (!close_to(a[i].loss, b[i].loss, 2e-5) || !close_to(a[i].norm, b[i].norm, 2e-4) ||
            !close_to(a[i].validation, b[i].validation, 2e-5))
            wrong("%s, step %d: loss %.8g and %.8g, norm %.8g and %.8g, validation %.8g and %.8g",
                  what, (int)a[i].step, a[i].loss, b[i].loss, a[i].norm, b[i].norm,
                  a[i].validation, b[i].validation);
}

cup_comm *parted_join_gpu(cup_comm *all, cup_context **c)
{
    char path[600];
    const char *address = together_address() + strlen("file:");
    snprintf(path, sizeof path, "%.*s", (int)(strrchr(address, '/') - address), address);
    fake_begin_in(path);
    snprintf(path, sizeof path, "%s/fake/libnccl.so", test_build());
    setenv("CUP_LIBNCCL", path, 1);
    setenv("FAKE_NVRTC_ANY", "1", 1);
    unsetenv("CUP_KERNELS");
    *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    snprintf(path, sizeof path, "%s-gpu", together_address());
    return cup_comm_new(*c, CUP_OPTIONS(cup_comm_options, .count = cup_comm_count(all),
                                        .rank = cup_comm_rank(all), .address = path,
                                        .timeout = 20));
}

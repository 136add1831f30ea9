/* Runs that train adapters beside a published model, and the folders in which others have such
 * adapters. bench/published.py holds those to PyTorch's formulas. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "test.h"
#include "train/session.h"

enum { TOKENS = 16, MOST_LOGITS = TOKENS * 64 };

static const cup_gpt_config llama = {.size = sizeof(cup_gpt_config),
                                     .layers = 2,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .width = 16,
                                     .context = 16,
                                     .positions = CUP_POSITIONS_ROTARY,
                                     .norm = CUP_NORM_KIND_RMSNORM,
                                     .mlp = CUP_MLP_KIND_SWIGLU};

typedef struct places {
    char base[600], run[600], again[600], own[600], merged[600];
} places;

static void find_places(places *p)
{
    const char *folder = test_folder();
    snprintf(p->base, sizeof p->base, "%s/base", folder);
    snprintf(p->run, sizeof p->run, "%s/run", folder);
    snprintf(p->again, sizeof p->again, "%s/again", folder);
    snprintf(p->own, sizeof p->own, "%s/own", folder);
    snprintf(p->merged, sizeof p->merged, "%s/merged", folder);
}

/* A file of a folder, until the next one is asked for. */
static const char *in(const char *folder, const char *name)
{
    static char path[700];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* A model of the sample text's vocabulary, published in the folder. */
static void publish(const cup_gpt_config *like, const char *folder, uint64_t seed)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = seed));
    cup_corpus *corpus = cup_corpus_new(c, sample_text(), strlen(sample_text()));
    cup_tokenizer *tokenizer = cup_tokenizer_char_new(c, corpus);
    cup_gpt_config config = *like;
    config.vocabulary = cup_tokenizer_size(tokenizer);
    cup_gpt *m = cup_gpt_new(c, CUP_F32, &config);
    EXPECT_INT(cup_gpt_export(m, folder), CUP_OK);
    cup_gpt_free(m);
    cup_tokenizer_free(tokenizer);
    cup_corpus_free(corpus);
    cup_context_free(c);
}

static cup_training lora_of(const cup_gpt_config *like, const char *from)
{
    cup_training t = tiny;
    t.model = *like;
    t.from = from;
    t.lora_rank = 3;
    t.lora_alpha = 6;
    t.rate = 0.02;
    return t;
}

static int64_t logits_of(cup_gpt *m, float *out)
{
    int32_t ids[TOKENS];
    int64_t count = TOKENS * m->config.vocabulary;
    for (int i = 0; i < TOKENS; i++)
        ids[i] = i * 5 % (int)m->config.vocabulary;
    EXPECT(count <= MOST_LOGITS);
    cup_tensor *tokens = cup_tensor_from(m->context, CUP_I32, 2, (int64_t[]){1, TOKENS}, ids);
    EXPECT_INT(cup_tensor_read(cup_gpt_logits(m, tokens), out, (size_t)count * sizeof *out),
               CUP_OK);
    return count;
}

static double worst(const float *a, const float *b, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

/* That the model has the weights of the published one, bit for bit. */
static void expect_base(cup_gpt *m, const char *folder)
{
    cup_gpt *base = cup_gpt_import(m->context, folder, CUP_F32);
    int64_t count, others;
    const cup_named *own = cup_parameters_named(m->parameters, &count);
    const cup_named *want = cup_parameters_named(base->parameters, &others);
    EXPECT_INT(count, others);
    for (int64_t i = 0; i < count; i++) {
        static float a[4096], b[4096];
        size_t bytes = (size_t)cup_tensor_count(own[i].tensor) * sizeof *a;
        EXPECT(bytes <= sizeof a);
        EXPECT_INT(cup_tensor_read(own[i].tensor, a, bytes), CUP_OK);
        EXPECT_INT(cup_tensor_read(want[i].tensor, b, bytes), CUP_OK);
        EXPECT(!memcmp(a, b, bytes));
    }
    cup_gpt_free(base);
}

/* That all tensors of a file are of adapters. */
static void expect_adapters(cup_context *c, const char *path, int64_t others)
{
    cup_tensors *all = cup_safetensors_load(c, path);
    EXPECT_INT(cup_error(c), CUP_OK);
    int64_t count = cup_tensors_count(all), found = 0;
    for (int64_t i = 0; i < count; i++)
        found += strstr(cup_tensors_name(all, i), ".lora_") != NULL;
    EXPECT(found > 0);
    EXPECT_INT(count - found, others);
    cup_tensors_free(all);
}

static void expect_run(const cup_gpt_config *like)
{
    static cup_training_point whole[MOST_POINTS], parts[MOST_POINTS];
    static float trained[MOST_LOGITS], loaded[MOST_LOGITS], first[MOST_LOGITS];
    places p;
    session s;
    find_places(&p);
    publish(like, p.base, 7);
    cup_training training = lora_of(like, p.base);
    begin(&s, &training, sample_text(), p.run);
    logits_of(cup_trainer_model(s.trainer), first);
    EXPECT_INT(go(&s), CUP_OK);
    int64_t points = points_of(&s, whole);
    EXPECT(whole[points - 1].validation < whole[0].validation - 0.05);
    expect_base(cup_trainer_model(s.trainer), p.base);
    int64_t count = logits_of(cup_trainer_model(s.trainer), trained);
    EXPECT(worst(first, trained, count) > 0.05);
    expect_adapters(s.c, in(p.run, "model.safetensors"), 0);
    expect_adapters(s.c, in(p.run, "optimizer.safetensors"), 1);
    cup_gpt *m = cup_gpt_load(s.c, p.run);
    EXPECT_INT(cup_error(s.c), CUP_OK);
    logits_of(m, loaded);
    EXPECT(!memcmp(trained, loaded, (size_t)count * sizeof *trained));
    cup_gpt_free(m);
    end(&s);
    /* The same in two parts, of which the second finds the base by itself. */
    begin(&s, &training, sample_text(), p.again);
    s.stop_at = 5;
    EXPECT_INT(go(&s), CUP_INTERRUPTED);
    end(&s);
    training.from = NULL;
    begin(&s, &training, sample_text(), p.again);
    EXPECT_INT(cup_trainer_resume(s.trainer), CUP_OK);
    EXPECT_INT(go(&s), CUP_OK);
    EXPECT_INT(points_of(&s, parts), points);
    expect_same_points(whole, parts, points);
    logits_of(cup_trainer_model(s.trainer), loaded);
    EXPECT(!memcmp(trained, loaded, (size_t)count * sizeof *trained));
    end(&s);
}

TEST(lora_trains_beside_a_llama_and_goes_on_bit_for_bit)
{
    expect_run(&llama);
}

TEST(lora_trains_beside_a_gpt2_and_goes_on_bit_for_bit)
{
    cup_gpt_config gpt2 = tiny.model;
    gpt2.bias = true;
    expect_run(&gpt2);
}

/* That the folder has the adapters in the names and shapes that peft gives them. */
static void expect_names(cup_context *c, const char *folder)
{
    char *text;
    EXPECT_INT(cup__file_read(NULL, in(folder, "adapter_config.json"), 1 << 16, &text, NULL),
               CUP_OK);
    EXPECT_CONTAINS(text, "\"r\": 3");
    EXPECT_CONTAINS(text, "\"lora_alpha\": 6");
    EXPECT_CONTAINS(text, "\"fan_in_fan_out\": false");
    EXPECT_CONTAINS(text, "[\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\", \"gate_proj\", "
                          "\"up_proj\", \"down_proj\"]");
    cup__free(text);
    cup_tensors *all = cup_safetensors_load(c, in(folder, "adapter_model.safetensors"));
    EXPECT_INT(cup_tensors_count(all), 2 * 7 * 2);
    cup_tensor *b = cup_tensors_find(
        all, "base_model.model.model.layers.1.self_attn.k_proj.lora_B.weight");
    EXPECT(b && cup_tensor_size(b, 0) == 8 && cup_tensor_size(b, 1) == 3);
    cup_tensors_free(all);
}

/* How far the logits of a model, which is freed, are from those. */
static double off_by(cup_gpt *m, const float *trained)
{
    static float read[MOST_LOGITS];
    EXPECT(m && cup_error(m->context) == CUP_OK);
    int64_t count = logits_of(m, read);
    cup_gpt_free(m);
    return worst(trained, read, count);
}

/* The run's model merged with its adapters, and what is exported of it, are as trained. */
static void expect_merged(session *s, const places *p, const float *trained)
{
    cup_gpt *m = cup_gpt_load(s->c, p->run);
    EXPECT_INT(cup_gpt_merge(m), CUP_OK);
    EXPECT_INT(cup_gpt_export(m, p->merged), CUP_OK);
    EXPECT(off_by(m, trained) < 1e-4);
    EXPECT(off_by(cup_gpt_load(s->c, p->merged), trained) < 1e-4);
}

TEST(adapters_are_written_and_read_as_others_have_them)
{
    static float trained[MOST_LOGITS];
    char found[700];
    places p;
    session s;
    find_places(&p);
    publish(&llama, p.base, 7);
    cup_training training = lora_of(&llama, p.base);
    training.optimizer.average = 0.5;
    begin(&s, &training, sample_text(), p.run);
    EXPECT_INT(go(&s), CUP_OK);
    cup_gpt *m = cup_trainer_model(s.trainer);
    logits_of(m, trained);
    EXPECT_INT(cup_gpt_export(m, p.merged), CUP_STATE);
    cup_error_clear(s.c);
    EXPECT_INT(cup_gpt_base(s.c, p.run, found, sizeof found), CUP_OK);
    EXPECT_TEXT(found, p.base);
    EXPECT_INT(cup_gpt_base(s.c, p.run, found, 5), CUP_ARGUMENT);
    cup_error_clear(s.c);
    EXPECT_INT(cup_gpt_adapters_export(m, p.own, p.base), CUP_OK);
    expect_names(s.c, p.own);
    m = cup_gpt_load(s.c, p.base);
    EXPECT_INT(cup_gpt_adapters_load(m, p.own), CUP_OK);
    EXPECT(off_by(m, trained) == 0);
    EXPECT(off_by(cup_gpt_load_average(s.c, p.run), trained) > 1e-4);
    expect_merged(&s, &p, trained);
    end(&s);
}

/* Of a Mixtral those of attention, in files as in the run. */
TEST(adapters_beside_experts_are_those_of_attention)
{
    static float trained[MOST_LOGITS];
    cup_gpt_config mixtral = llama;
    places p;
    session s;
    find_places(&p);
    mixtral.experts = 4;
    mixtral.experts_each = 2;
    publish(&mixtral, p.base, 7);
    cup_training training = lora_of(&mixtral, p.base);
    begin(&s, &training, sample_text(), p.run);
    EXPECT_INT(go(&s), CUP_OK);
    cup_gpt *m = cup_trainer_model(s.trainer);
    logits_of(m, trained);
    EXPECT_INT(cup_gpt_adapters_export(m, p.own, NULL), CUP_OK);
    cup_tensors *all = cup_safetensors_load(s.c, in(p.own, "adapter_model.safetensors"));
    EXPECT_INT(cup_tensors_count(all), 2 * 4 * 2);
    cup_tensors_free(all);
    m = cup_gpt_load(s.c, p.base);
    EXPECT_INT(cup_gpt_adapters_load(m, p.own), CUP_OK);
    EXPECT(off_by(m, trained) == 0);
    expect_merged(&s, &p, trained);
    end(&s);
}

TEST(lora_begins_beside_a_model_without_adapters)
{
    static float trained[MOST_LOGITS], read[MOST_LOGITS];
    places p;
    session s;
    find_places(&p);
    publish(&llama, p.base, 7);
    cup_training training = lora_of(&llama, p.base);
    begin(&s, &training, sample_text(), p.run);
    EXPECT_INT(go(&s), CUP_OK);
    int64_t count = logits_of(cup_trainer_model(s.trainer), trained);
    end(&s);
    /* What they made of it is where a run of the whole model may begin. */
    training.from = p.run;
    training.lora_rank = 0;
    training.lora_alpha = 0;
    begin(&s, &training, sample_text(), NULL);
    logits_of(cup_trainer_model(s.trainer), read);
    EXPECT(worst(trained, read, count) < 1e-4);
    end(&s);
    training.lora_rank = 3;
    begin(&s, &training, sample_text(), NULL);
    EXPECT(!s.trainer);
    EXPECT_CONTAINS(cup_error_text(s.c), "has adapters itself");
    end(&s);
    training.from = NULL;
    begin(&s, &training, sample_text(), p.own);
    EXPECT(!s.trainer);
    EXPECT_CONTAINS(cup_error_text(s.c), "name its folder");
    end(&s);
}

/* Replaces a part of adapter_config.json, and expects a failure that says the words. */
static void expect_refused(cup_context *c, const places *p, const char *part, const char *by,
                           cup_status status, const char *words)
{
    char changed[4096], path[700], *text;
    snprintf(path, sizeof path, "%s", in(p->own, "adapter_config.json"));
    EXPECT_INT(cup__file_read(NULL, path, 1 << 16, &text, NULL), CUP_OK);
    char *at = strstr(text, part);
    EXPECT(at);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, by, at + strlen(part));
    EXPECT_INT(cup__file_write(NULL, path, changed, strlen(changed)), CUP_OK);
    cup_gpt *m = cup_gpt_load(c, p->base);
    EXPECT_INT(cup_gpt_adapters_load(m, p->own), status);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_error_clear(c);
    cup_gpt_free(m);
    EXPECT_INT(cup__file_write(NULL, path, text, strlen(text)), CUP_OK);
    cup__free(text);
}

/* Adapters of queries and values alone, as peft makes them of a Llama unless told otherwise, in a
 * model, whose others are next to nothing; how they are called in files goes to `kept`. */
static cup_gpt *make_some(cup_context *c, const char *base, cup_named kept[8])
{
    static char names[8][160];
    int64_t count, used = 0;
    cup_gpt *m = cup_gpt_load(c, base);
    EXPECT_INT(cup_gpt_adapt(m, 2, 8, true), CUP_OK);
    const cup_named *named = cup_parameters_named(m->adapters, &count);
    bool was = cup_grad_recording(c, false);
    for (int64_t i = 0; i < count; i++) {
        const char *name = named[i].name;
        cup_tensor *t = named[i].tensor;
        const int64_t shape[] = {cup_tensor_size(t, 0), cup_tensor_size(t, 1)};
        bool q = strstr(name, ".0.weight"), v = strstr(name, ".2.weight");
        bool is = strstr(name, "c_attn") && (q || v);
        cup_copy_into(c, t, cup_normal(c, CUP_F32, 2, shape, 0, is ? 0.3 : 1e-30));
        if (!is)
            continue;
        EXPECT(used < 8);
        snprintf(names[used], sizeof names[0],
                 "base_model.model.model.layers.%c.self_attn.%c_proj.lora_%c.weight", name[2],
                 q ? 'q' : 'v', strstr(name, "lora_A") ? 'A' : 'B');
        kept[used] = (cup_named){names[used], t};
        used++;
    }
    cup_grad_recording(c, was);
    EXPECT_INT(used, 8);
    return m;
}

TEST(adapters_of_others_may_be_of_some_layers)
{
    static float wanted[MOST_LOGITS];
    cup_named kept[8];
    places p;
    find_places(&p);
    publish(&llama, p.base, 7);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 9));
    cup_gpt *m = make_some(c, p.base, kept);
    EXPECT_INT(cup_gpt_adapters_export(m, p.own, NULL), CUP_OK);
    EXPECT_INT(cup_safetensors_save(c, in(p.own, "adapter_model.safetensors"), kept, 8), CUP_OK);
    logits_of(m, wanted);
    cup_gpt *other = cup_gpt_load(c, p.base);
    EXPECT_INT(cup_gpt_adapters_load(other, p.own), CUP_OK);
    EXPECT_INT(cup_gpt_adapters_load(other, p.own), CUP_STATE);
    cup_error_clear(c);
    EXPECT(off_by(other, wanted) < 1e-5);
    other = cup_gpt_load(c, p.base);
    EXPECT(off_by(other, wanted) > 1e-3);
    cup_gpt_free(m);
    cup_context_free(c);
}

TEST(adapters_of_others_are_refused_where_they_are_other_ones)
{
    cup_named kept[8];
    places p;
    find_places(&p);
    publish(&llama, p.base, 7);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 9));
    cup_gpt *m = make_some(c, p.base, kept);
    const char *last = "\"inference_mode\": true";
    EXPECT_INT(cup_gpt_adapters_export(m, p.own, NULL), CUP_OK);
    expect_refused(c, &p, "\"use_dora\": false", "\"use_dora\": true", CUP_UNSUPPORTED, "use_dora");
    expect_refused(c, &p, "\"LORA\"", "\"IA3\"", CUP_UNSUPPORTED, "peft_type");
    expect_refused(c, &p, "\"none\"", "\"all\"", CUP_UNSUPPORTED, "bias");
    expect_refused(c, &p, last, "\"rank_pattern\": {\"q_proj\": 3}", CUP_UNSUPPORTED,
                   "rank_pattern");
    expect_refused(c, &p, last, "\"modules_to_save\": [\"lm_head\"]", CUP_UNSUPPORTED,
                   "modules_to_save");
    expect_refused(c, &p, "\"none\"", "7", CUP_UNSUPPORTED, "bias");
    expect_refused(c, &p, last, "\"alora_invocation_tokens\": [5]", CUP_UNSUPPORTED,
                   "alora_invocation_tokens");
    expect_refused(c, &p, last, "\"init_lora_weights\": \"pissa_niter_16\"", CUP_UNSUPPORTED,
                   "begin as \"pissa_niter_16\" stand beside other weights");
    expect_refused(c, &p, "\"use_rslora\": false", "\"use_rslora\": 0", CUP_FORMAT,
                   "\"use_rslora\" must be a boolean");
    expect_refused(c, &p, "\"lora_alpha\": ", "\"lora_alpha\": 0, \"was\": ", CUP_FORMAT,
                   "\"lora_alpha\" must be above 0");
    expect_refused(c, &p, "\"r\": 2", "\"r\": 0", CUP_FORMAT, "\"r\"");
    expect_refused(c, &p, "\"r\": 2", "\"r\": 3", CUP_FORMAT, "it must be");
    EXPECT_INT(cup_safetensors_save(c, in(p.own, "adapter_model.safetensors"), kept, 7), CUP_OK);
    expect_refused(c, &p, "LORA", "LORA", CUP_FORMAT, "the weights have no");
    kept[0].name = "base_model.model.lm_head.lora_A.weight";
    EXPECT_INT(cup_safetensors_save(c, in(p.own, "adapter_model.safetensors"), kept, 8), CUP_OK);
    expect_refused(c, &p, "LORA", "LORA", CUP_UNSUPPORTED, "no place for");
    cup_gpt_free(m);
    cup_context_free(c);
}

TEST(lora_is_refused_beside_another_base)
{
    places p;
    session s;
    find_places(&p);
    publish(&llama, p.base, 7);
    cup_training training = lora_of(&llama, p.base);
    begin(&s, &training, sample_text(), p.run);
    EXPECT_INT(go(&s), CUP_OK);
    end(&s);
    training.steps += 2;
    cup_training other = training;
    other.lora_rank = 4;
    begin(&s, &other, sample_text(), p.run);
    EXPECT_INT(cup_trainer_resume(s.trainer), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(s.c), "lora_rank");
    end(&s);
    publish(&llama, p.base, 8);
    begin(&s, &training, sample_text(), p.run);
    EXPECT_INT(cup_trainer_resume(s.trainer), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(s.c), "other weights");
    cup_error_clear(s.c);
    EXPECT(!cup_gpt_load(s.c, p.run));
    EXPECT_INT(cup_error(s.c), CUP_FORMAT);
    EXPECT_CONTAINS(cup_error_text(s.c), "other weights");
    end(&s);
}

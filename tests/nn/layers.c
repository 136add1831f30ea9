/* Layers: each against the ops it is made of, its gradients, its files. */
#include "cupola/layers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cupola/cupola.h"
#include "test.h"

static cup_context *device(const char *name)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = name, .seed = 11));
    if (!strcmp(name, "cuda") && cup_error(c) != CUP_OK)
        test_skip("no GPU");
    EXPECT_INT(cup_error(c), CUP_OK);
    return c;
}

static cup_context *cpu(void)
{
    return device("cpu");
}

/* Waves, so that no two elements are alike. */
static cup_tensor *waves(cup_context *c, int ndim, const int64_t *shape)
{
    static float x[2000];
    int64_t count = 1;
    for (int i = 0; i < ndim; i++)
        count *= shape[i];
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)sin(1 + 0.7 * (double)i);
    return cup_tensor_from(c, CUP_F32, ndim, shape, x);
}

static float got_values[2000], want_values[2000];

static int64_t read(cup_tensor *t, float *to)
{
    int64_t count = cup_tensor_count(t);
    EXPECT_TEXT(cup_error_text(cup_tensor_context(t)), "");
    EXPECT(count > 0 && count <= 2000);
    EXPECT_INT(cup_tensor_read(t, to, (size_t)count * sizeof *to), CUP_OK);
    return count;
}

static void expect_same(cup_tensor *got, cup_tensor *want, double tolerance)
{
    EXPECT(got && want);
    EXPECT_INT(cup_tensor_ndim(got), cup_tensor_ndim(want));
    int64_t count = read(want, want_values);
    EXPECT_INT(read(got, got_values), count);
    for (int64_t i = 0; i < count; i++)
        EXPECT_NEAR(got_values[i], want_values[i], tolerance);
}

/* Gives every parameter other values, so that no bias of 0 or gain of 1 hides anything. */
static void stir(cup_context *c, cup_parameters *list)
{
    int64_t count;
    const cup_named *named = cup_parameters_named(list, &count);
    for (int64_t i = 0; i < count; i++) {
        if (strstr(named[i].name, "running_mean"))
            continue;
        int64_t all = cup_tensor_count(named[i].tensor);
        cup_tensor *x = cup_scale(c, waves(c, 1, &all), 0.3);
        read(cup_add(c, x, cup_full(c, CUP_F32, 0, NULL, 0.5)), got_values);
        cup_tensor_write(named[i].tensor, got_values, (size_t)all * sizeof *got_values);
    }
}

TEST(layers_linear)
{
    cup_context *c = cpu();
    cup_tensor *x = waves(c, 3, (int64_t[]){2, 3, 5});
    for (int a = CUP_ACTIVATION_NONE; a <= CUP_ACTIVATION_SIGMOID; a++)
        for (int no_bias = 0; no_bias < 2; no_bias++) {
            cup_parameters *list = cup_parameters_new(c, CUP_F32);
            cup_linear_layer l;
            cup_linear_layer_new(&l, list, "l", 5, 4,
                                 CUP_OPTIONS(cup_linear_layer_options, .no_bias = no_bias,
                                             .activation = (cup_activation)a));
            stir(c, list);
            bool gated = a == CUP_ACTIVATION_SWIGLU;
            EXPECT_INT(cup_parameters_count(list, true), (gated ? 8 : 4) * (no_bias ? 5 : 6));
            cup_tensor *y = cup_linear(c, x, cup_parameters_find(list, "l.weight"),
                                       cup_parameters_find(list, "l.bias"));
            const int64_t zero[] = {0, 0, 0}, four[] = {0, 0, 4}, sizes[] = {2, 3, 4};
            if (gated)
                y = cup_swiglu(c, cup_slice(c, y, zero, 3, sizes, 3),
                               cup_slice(c, y, four, 3, sizes, 3));
            y = a == CUP_ACTIVATION_RELU      ? cup_relu(c, y)
                : a == CUP_ACTIVATION_GELU    ? cup_gelu(c, y)
                : a == CUP_ACTIVATION_SILU    ? cup_silu(c, y)
                : a == CUP_ACTIVATION_TANH    ? cup_tanh(c, y)
                : a == CUP_ACTIVATION_SIGMOID ? cup_sigmoid(c, y)
                                              : y;
            expect_same(cup_layer_call(&l.layer, x), y, 1e-5);
            cup_tape_clear(c);
            cup_parameters_free(list);
        }
    cup_context_free(c);
}

TEST(layers_embedding)
{
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_embedding_layer l;
    EXPECT_INT(cup_embedding_layer_new(&l, list, "", 7, 3, NULL), CUP_OK);
    cup_tensor *weight = cup_parameters_find(list, "weight");
    cup_tensor *ids = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){2}, (int32_t[]){6, 2});
    cup_tensor *y = cup_layer_call(&l.layer, ids);
    EXPECT(y != NULL);
    read(weight, want_values);
    read(y, got_values);
    EXPECT(!memcmp(got_values, want_values + 18, 3 * sizeof *got_values));
    EXPECT(!memcmp(got_values + 3, want_values + 6, 3 * sizeof *got_values));
    cup_tape_clear(c);
    cup_parameters_free(list);
    cup_context_free(c);
}

TEST(layers_norms_of_rows)
{
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_tensor *x = waves(c, 2, (int64_t[]){4, 6});
    cup_layernorm_layer a, b;
    cup_rmsnorm_layer r;
    cup_layernorm_layer_new(&a, list, "a", 6, NULL);
    cup_layernorm_layer_new(&b, list, "b", 6,
                            CUP_OPTIONS(cup_norm_layer_options, .no_bias = true, .epsilon = 0.1));
    cup_rmsnorm_layer_new(&r, list, "r", 6, NULL);
    stir(c, list);
    cup_tensor *aw = cup_parameters_find(list, "a.weight");
    cup_tensor *ab = cup_parameters_find(list, "a.bias");
    expect_same(cup_layer_call(&a.layer, x), cup_layernorm(c, x, aw, ab, 1e-5), 0);
    expect_same(cup_layer_call(&b.layer, x), cup_layernorm(c, x, aw, NULL, 0.1), 0);
    expect_same(cup_layer_call(&r.layer, x), cup_rmsnorm(c, x, aw, 1e-5), 0);
    EXPECT(!cup_parameters_find(list, "b.bias") && !cup_parameters_find(list, "r.bias"));
    cup_parameters_free(list);
    cup_context_free(c);
}

static void check_batchnorm(bool last)
{
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_BF16);
    cup_tensor *x = cup_cast(c, waves(c, 4, (int64_t[]){3, 4, 4, 4}), CUP_BF16);
    cup_batchnorm_layer l;
    cup_batchnorm_layer_new(&l, list, "n", 4,
                            CUP_OPTIONS(cup_norm_layer_options, .channels_last = last));
    cup_tensor *mean = cup_keep(cup_full(c, CUP_F32, 1, (int64_t[]){4}, 0));
    cup_tensor *var = cup_keep(cup_full(c, CUP_F32, 1, (int64_t[]){4}, 1));
    EXPECT_INT(cup_parameters_count(list, true), 8);
    EXPECT_INT(cup_parameters_count(list, false), 16);
    for (int training = 1; training >= 0; training--) {
        cup_parameters_training(list, training);
        cup_tensor *want = cup_batchnorm(c, x, l.weight, l.bias, mean, var, last ? -1 : 1,
                                         CUP_OPTIONS(cup_batchnorm_options, .train = training));
        expect_same(cup_cast(c, cup_layer_call(&l.layer, x), CUP_F32), cup_cast(c, want, CUP_F32),
                    0);
        expect_same(cup_parameters_find(list, "n.running_mean"), mean, 0);
        expect_same(cup_parameters_find(list, "n.running_var"), var, 0);
        cup_tape_clear(c);
    }
    EXPECT(fabs((double)want_values[0] - 1) > 0.01); /* they moved */
    cup_parameters_free(list);
    cup_context_free(c);
}

TEST(layers_batchnorm)
{
    check_batchnorm(false);
    check_batchnorm(true);
}

TEST(layers_groupnorm)
{
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_tensor *x = waves(c, 4, (int64_t[]){3, 4, 4, 4});
    cup_groupnorm_layer a, b;
    cup_groupnorm_layer_new(&a, list, "a", 4, 2, NULL);
    cup_groupnorm_layer_new(&b, list, "b", 4, 4,
                            CUP_OPTIONS(cup_norm_layer_options, .channels_last = true));
    stir(c, list);
    expect_same(cup_layer_call(&a.layer, x), cup_groupnorm(c, x, a.weight, a.bias, 2, 1, NULL), 0);
    expect_same(cup_layer_call(&b.layer, x), cup_groupnorm(c, x, b.weight, b.bias, 4, -1, NULL), 0);
    cup_tape_clear(c);
    cup_parameters_free(list);
    cup_context_free(c);
}

TEST(layers_dropout_follows_the_list)
{
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_tensor *x = waves(c, 2, (int64_t[]){20, 50});
    cup_dropout_layer l;
    EXPECT_INT(cup_dropout_layer_new(&l, cup_parameters_under(list, "part"), 0.25), CUP_OK);
    cup_random_step(c, 3);
    cup_tensor *want = cup_dropout(c, x, 0.25);
    cup_random_step(c, 3);
    expect_same(cup_layer_call(&l.layer, x), want, 0);
    int zeros = 0;
    for (int i = 0; i < 1000; i++)
        zeros += got_values[i] == 0;
    EXPECT(zeros > 180 && zeros < 320);
    cup_parameters_training(list, false);
    EXPECT(cup_layer_call(&l.layer, x) == x);
    cup_parameters_free(list);
    cup_context_free(c);
}

/* The part of the last dimension from `from` on. */
static cup_tensor *part(cup_context *c, cup_tensor *x, int64_t from, int64_t size)
{
    const int64_t starts[] = {0, 0, from}, sizes[] = {-1, -1, size};
    return cup_slice(c, x, starts, 3, sizes, 3);
}

/* [B,T,heads D] to [B,heads,T,D]. */
static cup_tensor *heads_of(cup_context *c, cup_tensor *x, int64_t heads)
{
    int64_t batch = cup_tensor_size(x, 0), length = cup_tensor_size(x, 1);
    const int64_t apart[] = {batch, length, heads, cup_tensor_size(x, 2) / heads};
    return cup_permute(c, cup_reshape(c, x, 4, apart), (int64_t[]){0, 2, 1, 3}, 4);
}

/* Heads of 6 where they are normed: not those that the width has room for. */
static void check_attention(bool causal, bool rope, int64_t kv_heads, bool normed)
{
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_tensor *x = waves(c, 3, (int64_t[]){2, 5, 16});
    cup_attention_layer l;
    const cup_rope_scaling scaling = {.factor = normed ? 2 : 0, .original = normed ? 20 : 0};
    cup_attention_layer_new(&l, list, "a", 16, 4,
                            CUP_OPTIONS(cup_attention_layer_options, .causal = causal,
                                        .rope = rope, .kv_heads = kv_heads,
                                        .head_size = normed ? 6 : 0, .qk_norm = normed,
                                        .rope_scaling = scaling));
    int64_t keys = kv_heads ? kv_heads : 4, size = normed ? 6 : 4;
    cup_tensor *qkv = cup_linear(c, x, cup_parameters_find(list, "a.qkv.weight"),
                                 cup_parameters_find(list, "a.qkv.bias"));
    cup_tensor *q = heads_of(c, part(c, qkv, 0, 4 * size), 4);
    cup_tensor *k = heads_of(c, part(c, qkv, 4 * size, size * keys), keys);
    cup_tensor *v = heads_of(c, part(c, qkv, (4 + keys) * size, size * keys), keys);
    if (normed) {
        cup_tensor *weights = waves(c, 1, (int64_t[]){6});
        bool was = cup_grad_recording(c, false);
        cup_copy_into(c, cup_parameters_find(list, "a.q_norm.weight"), weights);
        cup_grad_recording(c, was);
        q = cup_rmsnorm(c, q, weights, 1e-5);
        k = cup_rmsnorm(c, k, NULL, 1e-5);
    }
    if (rope) {
        const cup_rope_options turned = {
            .size = sizeof turned, .factor = scaling.factor, .original = scaling.original};
        q = cup_rope(c, q, &turned);
        k = cup_rope(c, k, &turned);
    }
    cup_tensor *o = cup_attention(c, q, k, v, CUP_OPTIONS(cup_attention_options, .causal = causal));
    o = cup_reshape(c, cup_permute(c, o, (int64_t[]){0, 2, 1, 3}, 4), 3,
                    (int64_t[]){2, 5, 4 * size});
    o = cup_linear(c, o, cup_parameters_find(list, "a.out.weight"),
                   cup_parameters_find(list, "a.out.bias"));
    expect_same(cup_layer_call(&l.layer, x), o, 1e-5);
    cup_tape_clear(c);
    cup_parameters_free(list);
    cup_context_free(c);
}

TEST(layers_attention)
{
    check_attention(false, false, 0, false);
    check_attention(true, false, 2, false);
    check_attention(true, true, 0, false);
    check_attention(false, true, 1, false);
    check_attention(true, true, 2, true);
}

static void check_transformer(bool rms)
{
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_tensor *x = waves(c, 3, (int64_t[]){2, 5, 16});
    cup_transformer_layer l;
    cup_transformer_layer_new(
        &l, list, "b", 16, 2,
        CUP_OPTIONS(cup_transformer_layer_options, .causal = true, .rmsnorm = rms, .layers = 8,
                    .activation = rms ? CUP_ACTIVATION_SWIGLU : CUP_ACTIVATION_RELU));
    EXPECT_INT(cup_tensor_size(cup_parameters_find(list, "b.mlp.down.weight"), 1), 64);
    /* What leads back to the stream is smaller by sqrt(2 layers), here 4. */
    double up = cup_tensor_item(cup_norm(c, cup_parameters_find(list, "b.attention.qkv.weight"),
                                         NULL, 0, false)) / sqrt(48 * 16);
    double down = cup_tensor_item(cup_norm(c, cup_parameters_find(list, "b.mlp.down.weight"), NULL,
                                           0, false)) / sqrt(64 * 16);
    EXPECT_NEAR(up, 0.02, 0.002);
    EXPECT_NEAR(down, 0.005, 0.0005);
    cup_tensor *w1 = cup_parameters_find(list, "b.norm1.weight");
    cup_tensor *w2 = cup_parameters_find(list, "b.norm2.weight");
    cup_tensor *y = rms ? cup_rmsnorm(c, x, w1, 1e-5)
                        : cup_layernorm(c, x, w1, cup_parameters_find(list, "b.norm1.bias"), 1e-5);
    cup_tensor *h = cup_add(c, x, cup_layer_call(&l.attention.layer, y));
    y = rms ? cup_rmsnorm(c, h, w2, 1e-5)
            : cup_layernorm(c, h, w2, cup_parameters_find(list, "b.norm2.bias"), 1e-5);
    expect_same(cup_layer_call(&l.layer, x), cup_add(c, h, cup_layer_call(&l.mlp.layer, y)), 1e-5);
    cup_tape_clear(c);
    cup_parameters_free(list);
    cup_context_free(c);
}

TEST(layers_transformer)
{
    check_transformer(false);
    check_transformer(true);
}

/* A model with every kind of layer: tokens [2,8] to a loss. */
typedef struct model {
    cup_parameters *list;
    cup_embedding_layer embedding;
    cup_transformer_layer gelu, swiglu;
    cup_batchnorm_layer batchnorm;
    cup_groupnorm_layer groupnorm;
    cup_dropout_layer dropout;
    cup_rmsnorm_layer rmsnorm;
    cup_mlp_layer mlp;
    cup_linear_layer head;
    cup_sequence_layer sequence;
    const cup_layer *all[9];
} model;

static cup_status make_model(cup_context *c, model *m)
{
    cup_parameters *list = m->list = cup_parameters_new(c, CUP_F32);
    const cup_norm_layer_options *last =
        CUP_OPTIONS(cup_norm_layer_options, .channels_last = true);
    cup_embedding_layer_new(&m->embedding, list, "embedding", 9, 8, NULL);
    cup_transformer_layer_new(&m->gelu, list, "h.0", 8, 2, NULL);
    cup_transformer_layer_new(
        &m->swiglu, list, "h.1", 8, 2,
        CUP_OPTIONS(cup_transformer_layer_options, .rmsnorm = true, .rope = true, .causal = true,
                    .kv_heads = 1, .activation = CUP_ACTIVATION_SWIGLU, .dropout = 0.1));
    cup_batchnorm_layer_new(&m->batchnorm, list, "batchnorm", 8, last);
    cup_groupnorm_layer_new(&m->groupnorm, list, "groupnorm", 8, 2, last);
    cup_dropout_layer_new(&m->dropout, list, 0.1);
    cup_rmsnorm_layer_new(&m->rmsnorm, list, "rmsnorm", 8, NULL);
    cup_mlp_layer_new(&m->mlp, list, "mlp", 8, 12, NULL);
    cup_linear_layer_new(&m->head, list, "head", 8, 9, NULL);
    const cup_layer *all[] = {&m->embedding.layer, &m->gelu.layer,    &m->swiglu.layer,
                              &m->batchnorm.layer, &m->groupnorm.layer, &m->dropout.layer,
                              &m->rmsnorm.layer,   &m->mlp.layer,     &m->head.layer};
    memcpy(m->all, all, sizeof all);
    cup_sequence_layer_new(&m->sequence, list, m->all, 9);
    return cup_error(c);
}

static cup_tensor *loss_of(cup_context *c, const model *m)
{
    int32_t tokens[16], targets[16];
    for (int i = 0; i < 16; i++) {
        tokens[i] = (int32_t)(i * i % 9);
        targets[i] = (int32_t)((i + 4) * i % 9);
    }
    cup_tensor *x = cup_tensor_from(c, CUP_I32, 2, (int64_t[]){2, 8}, tokens);
    cup_tensor *y = cup_tensor_from(c, CUP_I32, 2, (int64_t[]){2, 8}, targets);
    return cup_cross_entropy(c, cup_sequence_layer_call(&m->sequence, x), y, -1, NULL);
}

static double train(cup_context *c, model *m, cup_method method, double rate, int steps)
{
    cup_optimizer *o =
        cup_optimizer_of(m->list, CUP_OPTIONS(cup_optimizer_options, .method = method));
    double loss = 0;
    cup_optimizer_set(o, rate, 1);
    for (int i = 0; i < steps; i++) {
        cup_random_step(c, (uint64_t)i + 1);
        cup_scope_open(c);
        cup_tensor *t = loss_of(c, m);
        loss = cup_tensor_item(t);
        cup_backward(c, t);
        cup_optimizer_step(o);
        cup_optimizer_clear(o);
        cup_scope_close(c);
    }
    EXPECT_TEXT(cup_error_text(c), "");
    cup_optimizer_free(o);
    return loss;
}

TEST(layers_gradients_reach_every_parameter)
{
    cup_context *c = cpu();
    model m;
    EXPECT_INT(make_model(c, &m), CUP_OK);
    stir(c, m.list);
    cup_parameters_training(m.list, false); /* a batch's mean would take biases before it away */
    cup_backward(c, loss_of(c, &m));
    int64_t count, trained = 0;
    const cup_named *named = cup_parameters_named(m.list, &count);
    for (int64_t i = 0; i < count; i++) {
        bool buffer = strstr(named[i].name, "running_") != NULL;
        cup_tensor *d = cup_grad(named[i].tensor);
        if ((d == NULL) != buffer)
            test_fail(__FILE__, __LINE__, "%s has %s gradient", named[i].name, d ? "a" : "no");
        if (d && !(cup_tensor_item(cup_norm(c, d, NULL, 0, false)) > 0))
            test_fail(__FILE__, __LINE__, "%s has a gradient of 0", named[i].name);
        trained += buffer ? 0 : cup_tensor_count(named[i].tensor);
    }
    EXPECT_INT(count, 1 + 12 + 10 + 4 + 2 + 1 + 4 + 2);
    EXPECT_INT(cup_parameters_count(m.list, true), trained);
    cup_parameters_free(m.list);
    cup_context_free(c);
}

TEST(layers_learn_and_come_back_from_a_file)
{
    static char path[400];
    snprintf(path, sizeof path, "%s/m.safetensors", test_folder());
    cup_context *c = cpu(), *fresh = device("cpu");
    model a, b;
    EXPECT_INT(make_model(c, &a), CUP_OK);
    cup_seed(fresh, 99);
    EXPECT_INT(make_model(fresh, &b), CUP_OK);
    EXPECT(train(c, &a, CUP_METHOD_ADAMW, 0.01, 60) < 0.5);
    EXPECT_INT(cup_parameters_save(a.list, path), CUP_OK);
    EXPECT_INT(cup_parameters_load(b.list, path), CUP_OK);
    cup_parameters_training(a.list, false);
    cup_parameters_training(b.list, false);
    double loss = cup_tensor_item(loss_of(c, &a));
    EXPECT(loss < 0.5);
    EXPECT(cup_tensor_item(loss_of(fresh, &b)) == loss);
    cup_parameters_free(a.list);
    cup_parameters_free(b.list);
    cup_context_free(c);
    cup_context_free(fresh);
}

TEST(gpu_layers_learn_as_on_a_cpu)
{
    cup_context *c = cpu(), *g = device("cuda");
    model a, b;
    EXPECT_INT(make_model(c, &a), CUP_OK);
    EXPECT_INT(make_model(g, &b), CUP_OK);
    for (int steps = 1; steps < 9; steps += 7)
        EXPECT_NEAR(train(g, &b, CUP_METHOD_SGD, 0.1, steps),
                    train(c, &a, CUP_METHOD_SGD, 0.1, steps), 1e-3);
    cup_parameters_free(a.list);
    cup_parameters_free(b.list);
    cup_context_free(c);
    cup_context_free(g);
}

/* Each allocation fails once, while the model is made, called and fed to an optimizer. */
TEST(layers_without_memory)
{
    cup_context *c = cpu();
    bool done = false;
    for (long n = 1; !done; n += n < 40 ? 1 : 7) {
        model m;
        cup__memory_fail_at(n, false);
        cup_status status = make_model(c, &m);
        cup_tensor *loss = status == CUP_OK ? loss_of(c, &m) : NULL;
        cup_optimizer *o = cup_optimizer_of(m.list, NULL);
        int64_t count;
        const cup_named *named = cup_parameters_named(m.list, &count);
        done = cup_error(c) == CUP_OK;
        cup__memory_fail_at(0, false);
        EXPECT(done ? loss && o && named : cup_error(c) == CUP_MEMORY);
        cup_error_clear(c);
        cup_optimizer_free(o);
        cup_parameters_free(m.list);
        cup_tape_clear(c);
    }
    cup_context_free(c);
}

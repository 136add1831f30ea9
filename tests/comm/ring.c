/* Attention that goes round between processes, against that of the whole. */
#include <math.h>
#include <string.h>

#include "comm/together.h"
#include "cupola/ops.h"
#include "test.h"

typedef struct shape {
    cup_dtype dtype;
    int64_t batch, length, heads, kv_heads, size;
    bool causal;
    double most, dropout;
} shape;

static cup_tensor *numbers(cup_context *c, const shape *s, int64_t features, uint64_t seed)
{
    cup_seed(c, seed);
    cup_tensor *x =
        cup_normal(c, CUP_F32, 3, (int64_t[]){s->batch, s->length, features}, 0, 1);
    return cup_cast(c, x, s->dtype);
}

static void expect_close(cup_context *c, cup_tensor *a, cup_tensor *b, double most,
                         const char *what)
{
    cup_tensor *d = cup_sub(c, cup_cast(c, a, CUP_F64), cup_cast(c, b, CUP_F64));
    double far = d ? cup_tensor_item(cup_max(c, cup_abs(c, d), NULL, 0, false)) : NAN;
    if (!(far <= most))
        wrong("%s: %g away; %s", what, far, cup_error_text(c));
}

/* The whole on each process, its weights of the loss the same; a part of its result and of its
 * gradient is what the ring makes of a part. */
static void compare(cup_context *c, cup_comm *m, void *user)
{
    const shape *s = user;
    int64_t width = (s->heads + 2 * s->kv_heads) * s->size, features = s->heads * s->size;
    cup_tensor *whole = numbers(c, s, width, 3), *weights = numbers(c, s, features, 4);
    cup_tensor *part = cup_require_grad(cup_copy(c, cup_comm_part(m, whole, 1)));
    cup_require_grad(whole);
    cup_random_step(c, 5);
    cup_tensor *y = cup_qkv_attention(
        c, whole, (int)s->heads,
        CUP_OPTIONS(cup_qkv_attention_options, .kv_heads = (int)s->kv_heads, .causal = s->causal,
                    .dropout = s->dropout));
    cup_random_step(c, 5);
    cup_tensor *z = cup_comm_attention(m, part, (int)s->heads,
                                       CUP_OPTIONS(cup_comm_attention_options,
                                                   .kv_heads = (int)s->kv_heads,
                                                   .causal = s->causal,
                                                   .dropout = s->dropout));
    expect_close(c, cup_comm_part(m, y, 1), z, s->most, "result");
    y = cup_sum(c, cup_mul(c, y, weights), NULL, 0, false);
    z = cup_sum(c, cup_mul(c, z, cup_comm_part(m, weights, 1)), NULL, 0, false);
    cup_backward(c, cup_add(c, y, z));
    expect_close(c, cup_comm_part(m, cup_grad(whole), 1), cup_grad(part), s->most, "gradient");
}

TEST(comm_attention_is_that_of_the_whole)
{
    together(2, compare, &(shape){CUP_F64, 2, 12, 4, 2, 6, true, 1e-12, 0});
    together(3, compare, &(shape){CUP_F64, 1, 18, 2, 2, 5, true, 1e-12, 0});
    together(4, compare, &(shape){CUP_F32, 2, 48, 3, 1, 8, true, 5e-6, 0});
    together(4, compare, &(shape){CUP_F32, 1, 16, 2, 2, 16, false, 5e-6, 0});
    together(1, compare, &(shape){CUP_F32, 2, 8, 2, 2, 8, true, 1e-12, 0});
}

/* The random step decides what is dropped, wherever a position is. */
TEST(comm_attention_drops_what_the_whole_does)
{
    together(2, compare, &(shape){CUP_F64, 2, 64, 4, 2, 6, true, 1e-12, 0.3});
    together(3, compare, &(shape){CUP_F32, 1, 192, 2, 2, 5, false, 5e-6, 0.5});
    together(4, compare, &(shape){CUP_F32, 2, 256, 3, 1, 8, true, 5e-6, 0.2});
}

static void drop(cup_context *c, cup_comm *m, void *user)
{
    const shape *s = user;
    cup_tensor *whole = cup_require_grad(cup_copy(c, numbers(c, s, s->size, 3)));
    cup_tensor *part = cup_comm_part(m, numbers(c, s, s->size, 3), 1);
    part = cup_require_grad(cup_copy(c, part));
    cup_random_step(c, 6);
    cup_tensor *y = cup_dropout(c, whole, s->dropout);
    cup_random_step(c, 6);
    cup_tensor *z = cup_comm_dropout(m, part, s->dropout);
    expect_close(c, cup_comm_part(m, y, 1), z, 0, "what is left");
    cup_backward(c, cup_add(c, cup_sum(c, y, NULL, 0, false), cup_sum(c, z, NULL, 0, false)));
    expect_close(c, cup_comm_part(m, cup_grad(whole), 1), cup_grad(part), 0, "its gradient");
}

TEST(comm_dropout_is_that_of_the_whole)
{
    together(2, drop, &(shape){CUP_F64, 3, 12, 0, 0, 8, false, 0, 0.3});
    together(2, drop, &(shape){CUP_F32, 2, 516, 0, 0, 8, false, 0, 0.4});
    together(4, drop, &(shape){CUP_BF16, 1, 48, 0, 0, 4, false, 0, 0.7});
}

/* Parts of 16 bits are as near to the whole as that is to itself. */
TEST(comm_attention_rounds_once)
{
    together(2, compare, &(shape){CUP_BF16, 1, 64, 2, 2, 16, true, 0.04, 0});
    together(4, compare, &(shape){CUP_F16, 1, 64, 2, 1, 16, true, 0.006, 0});
}

/* A token behind all others changes nothing but itself. */
static void look_ahead(cup_context *c, cup_comm *m, void *user)
{
    static const shape s = {CUP_F32, 1, 16, 2, 2, 4, true, 0, 0};
    (void)user;
    cup_tensor *whole = numbers(c, &s, 24, 5), *other = numbers(c, &s, 24, 6);
    const int64_t starts[] = {0, 15, 0}, first[] = {1, 15, 24}, last[] = {1, 1, 24};
    cup_tensor *both[] = {cup_slice(c, whole, (int64_t[]){0, 0, 0}, 3, first, 3),
                          cup_slice(c, other, starts, 3, last, 3)};
    cup_tensor *changed = cup_concat(c, both, 2, 1);
    const cup_comm_attention_options causal = {.size = sizeof causal, .causal = true};
    cup_tensor *a = cup_comm_attention(m, cup_comm_part(m, whole, 1), 2, &causal);
    cup_tensor *b = cup_comm_attention(m, cup_comm_part(m, changed, 1), 2, &causal);
    /* The last token is the last one of rank 0. */
    const int64_t rows = cup_tensor_size(a, 1) - (cup_comm_rank(m) == 0);
    const int64_t sizes[] = {1, rows, 8};
    expect_close(c, cup_slice(c, a, (int64_t[]){0, 0, 0}, 3, sizes, 3),
                 cup_slice(c, b, (int64_t[]){0, 0, 0}, 3, sizes, 3), 0, "what stands before");
}

TEST(comm_attention_sees_nothing_behind)
{
    together(2, look_ahead, NULL);
    together(4, look_ahead, NULL);
}

static void expect_refused(cup_context *c, const void *made, const char *words)
{
    if (made || !strstr(cup_error_text(c), words))
        wrong("not \"%s\" but \"%s\"", words, cup_error_text(c));
    cup_error_clear(c);
}

static void refuse(cup_context *c, cup_comm *m, void *user)
{
    (void)user;
    cup_tensor *x = cup_zeros(c, CUP_F32, 3, (int64_t[]){1, 5, 12});
    cup_tensor *even = cup_zeros(c, CUP_F32, 3, (int64_t[]){1, 6, 12});
    expect_refused(c, cup_comm_attention(m, x, 2, NULL), "with an even T");
    expect_refused(c, cup_comm_attention(m, even, 5, NULL), "in W 5 heads of q");
    expect_refused(c, cup_comm_attention(m, even, 0, NULL), "heads must be at least 1");
    expect_refused(c, cup_comm_attention(m, NULL, 2, NULL), "is NULL");
    expect_refused(c, cup_comm_attention(m, cup_cast(c, even, CUP_I32), 2, NULL),
                   "must be f32, f64, f16 or bf16");
    expect_refused(c, cup_comm_part(m, x, 1), "a multiple of 4");
    expect_refused(c, cup_comm_part(m, x, 3), "no dimension 3");
    expect_refused(c, cup_comm_dropout(m, x, 0.5), "with an even T");
    expect_refused(c, cup_comm_dropout(m, cup_zeros(c, CUP_F32, 2, (int64_t[]){1, 6}), 0.5),
                   "of a multiple of 8 numbers each");
    expect_refused(c,
                   cup_comm_attention(m, even, 2,
                                      CUP_OPTIONS(cup_comm_attention_options, .dropout = 0.1)),
                   "give each a multiple of 32");
    expect_refused(c,
                   cup_comm_attention(m, even, 2,
                                      CUP_OPTIONS(cup_comm_attention_options, .dropout = 1)),
                   "below 1, not 1");
    if (cup_comm_attention(NULL, x, 2, NULL) || cup_comm_part(NULL, x, 1))
        wrong("something came of no communicator");
}

TEST(comm_attention_of_odd_parts_is_refused)
{
    together(2, refuse, NULL);
}

/* Two of the same weights: of one every process has whole texts, of the other a part. */
static void compare_models(cup_context *c, cup_comm *m, void *user)
{
    static const int32_t some[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3,
                                   2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3, 2, 7, 9, 5};
    cup_gpt_config config = *(const cup_gpt_config *)user;
    int64_t count;
    cup_seed(c, 8);
    cup_gpt *whole = cup_gpt_new(c, CUP_F64, &config);
    cup_seed(c, 8);
    cup_gpt *cut = cup_gpt_new(c, CUP_F64, &config);
    cup_parameters_ring(cut->parameters, m);
    cup_tensor *x = cup_tensor_from(c, CUP_I32, 2, (int64_t[]){2, 16}, some);
    cup_tensor *part = cup_comm_part(m, x, 1);
    cup_tensor *a = cup_gpt_loss(whole, x, x, false), *b = cup_gpt_loss(cut, part, part, false);
    expect_close(c, cup_comm_part(m, cup_gpt_logits(whole, x), 1), cup_gpt_logits(cut, part),
                 1e-12, "logits");
    cup_backward(c, cup_add(c, a, b));
    const cup_named *named = cup_parameters_named(whole->parameters, &count);
    for (int64_t i = 0; i < count; i++) {
        cup_tensor *one = cup_grad(cup_parameters_find(whole->parameters, named[i].name));
        cup_tensor *own = cup_grad(cup_parameters_find(cut->parameters, named[i].name));
        cup_tensor *mean = cup_scale(c, cup_comm_sum(m, own), 1.0 / cup_comm_count(m));
        expect_close(c, one, mean, 1e-12, named[i].name);
    }
    cup_parameters_ring(cut->parameters, NULL);
    expect_close(c, cup_gpt_logits(whole, x), cup_gpt_logits(cut, x), 0, "logits again");
    cup_gpt_free(cut);
    cup_gpt_free(whole);
}

TEST(comm_attention_in_a_model_has_its_gradients)
{
    const cup_gpt_config plain = {.size = sizeof plain,
                                  .vocabulary = 11,
                                  .layers = 2,
                                  .heads = 2,
                                  .width = 12,
                                  .context = 16};
    cup_gpt_config turned = plain;
    turned.kv_heads = 1;
    turned.positions = CUP_POSITIONS_ROTARY;
    turned.norm = CUP_NORM_KIND_RMSNORM;
    turned.mlp = CUP_MLP_KIND_SWIGLU;
    turned.qk_norm = true;
    cup_gpt_config yarn = turned, dynamic = turned;
    yarn.rope_scaling = (cup_rope_scaling){
        .factor = 3, .original = 5, .low = 0.2, .high = 2, .yarn = true, .amplitude = 0.8};
    dynamic.rope_scaling = (cup_rope_scaling){.factor = 3, .original = 6, .dynamic = true};
    together(2, compare_models, (void *)(uintptr_t)&plain);
    together(4, compare_models, &turned);
    together(2, compare_models, &yarn);
    together(2, compare_models, &dynamic);
}

/* What has no form in parts says so. */
static void refuse_layers(cup_context *c, cup_comm *m, void *user)
{
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_attention_layer layer;
    (void)user;
    cup_attention_layer_new(&layer, list, "a", 8, 2,
                            CUP_OPTIONS(cup_attention_layer_options, .dropout = 0.1));
    cup_parameters_ring(list, m);
    if (cup_parameters_ring_comm(list) != m)
        wrong("the list has another ring");
    cup_tensor *x = cup_zeros(c, CUP_F32, 3, (int64_t[]){1, 3, 8});
    expect_refused(c, cup_attention_layer_call(&layer, x), "an even number of its positions");
    cup_parameters_free(list);
    cup_gpt *gpt = cup_gpt_new(c, CUP_F32,
                               CUP_OPTIONS(cup_gpt_config, .vocabulary = 5, .layers = 1,
                                           .heads = 1, .width = 4, .context = 12));
    cup_parameters_ring(gpt->parameters, m);
    x = cup_zeros(c, CUP_I32, 2, (int64_t[]){1, 8});
    expect_refused(c, cup_gpt_logits(gpt, x), "T from 1 to the context 6");
    x = cup_zeros(c, CUP_I32, 2, (int64_t[]){1, 5});
    expect_refused(c, cup_gpt_logits(gpt, x), "an even number of its tokens, not 5");
    cup_gpt_free(gpt);
}

TEST(comm_attention_refuses_what_layers_cannot)
{
    together(2, refuse_layers, NULL);
}

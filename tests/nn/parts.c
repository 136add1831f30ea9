/* Layers that processes share out, against the same ones whole: what they give, and the gradient
 * of each tensor. */
#include "nn/parameters.h"

#include <math.h>
#include <string.h>

#include "comm/together.h"
#include "cupola/cupola.h"
#include "test.h"

#define BATCH 2
#define LENGTH 3
#define WIDTH 16

typedef struct model {
    cup_parameters *list;
    cup_embedding_layer embedding;
    cup_linear_layer rows, columns;
    cup_transformer_layer blocks[3];
} model;

static void make(model *m, cup_context *c, cup_comm *among)
{
    cup_seed(c, 4);
    m->list = cup_parameters_new(c, CUP_F64);
    cup_parameters_among(m->list, among);
    cup_embedding_layer_new(&m->embedding, m->list, "embedding", 8, WIDTH,
                            CUP_OPTIONS(cup_embedding_layer_options, .deviation = 1,
                                        .part = CUP_PART_ROWS));
    cup_linear_layer_new(&m->rows, m->list, "rows", WIDTH, 12,
                         CUP_OPTIONS(cup_linear_layer_options, .part = CUP_PART_ROWS,
                                     .activation = CUP_ACTIVATION_TANH));
    cup_linear_layer_new(&m->columns, m->list, "columns", 12, WIDTH,
                         CUP_OPTIONS(cup_linear_layer_options, .part = CUP_PART_COLUMNS));
    cup_transformer_layer_new(&m->blocks[0], m->list, "plain", WIDTH, 4,
                              CUP_OPTIONS(cup_transformer_layer_options, .causal = true,
                                          .alibi = true));
    cup_transformer_layer_new(&m->blocks[1], m->list, "gated", WIDTH, 4,
                              CUP_OPTIONS(cup_transformer_layer_options, .kv_heads = 2,
                                          .rope = true, .qk_norm = true, .rmsnorm = true,
                                          .hidden = 20, .no_bias = true,
                                          .activation = CUP_ACTIVATION_SWIGLU));
    cup_transformer_layer_new(&m->blocks[2], m->list, "mixed", WIDTH, 4,
                              CUP_OPTIONS(cup_transformer_layer_options, .experts = 4,
                                          .experts_each = 2, .rmsnorm = true, .hidden = 6,
                                          .no_bias = true, .deviation = 0.3,
                                          .activation = CUP_ACTIVATION_SWIGLU));
}

static cup_tensor *call(model *m, cup_context *c)
{
    static const int32_t numbers[] = {7, 0, 3, 4, 4, 1};
    cup_tensor *ids = cup_tensor_from(c, CUP_I32, 2, (int64_t[]){BATCH, LENGTH}, numbers);
    cup_tensor *x = cup_embedding_layer_call(&m->embedding, ids);
    x = cup_add(c, x, cup_linear_layer_call(&m->columns, cup_linear_layer_call(&m->rows, x)));
    x = cup_transformer_layer_call(&m->blocks[0], x);
    x = cup_transformer_layer_call(&m->blocks[1], x);
    return cup_transformer_layer_call(&m->blocks[2], x);
}

static void expect_alike(cup_context *c, cup_tensor *a, cup_tensor *b, double scale,
                         const char *what)
{
    cup_tensor *d = a && b ? cup_sub(c, a, cup_scale(c, b, scale)) : NULL;
    double far = d ? cup_tensor_item(cup_max(c, cup_abs(c, d), NULL, 0, false)) : NAN;
    if (!(far < 1e-10))
        wrong("%s: %g away", what, far);
}

/* The gradients of the sum of all losses: of a part so many times the whole's, of what all have
 * that in sum. */
static void compare_gradients(cup_context *c, cup_comm *comm, model *part, model *whole)
{
    int64_t count;
    const cup_named *named = cup_parameters_named(part->list, &count);
    int parts = 0;
    for (int64_t i = 0; i < count; i++) {
        cup_tensor *own = named[i].tensor, *d = cup_grad(own);
        cup_tensor *all = cup_grad(cup_parameters_find(whole->list, named[i].name));
        const cup__portion *p = cup__parameters_part(part->list, own);
        parts += p != NULL;
        cup_grad_recording(c, false);
        if (p)
            all = cup__part_take(c, all, p);
        else
            d = cup_comm_sum(comm, d);
        expect_alike(c, d, all, cup_comm_count(comm), named[i].name);
        cup_grad_recording(c, true);
    }
    if (count != 32 || parts != (cup_comm_count(comm) > 1 ? 18 : 0))
        wrong("%d of %d tensors are parts", parts, (int)count);
}

static void run(cup_context *c, cup_comm *comm, void *user)
{
    model part = {0}, whole = {0};
    (void)user;
    make(&part, c, comm);
    make(&whole, c, NULL);
    cup_tensor *a = call(&part, c), *b = call(&whole, c);
    expect_alike(c, a, b, 1, "the output");
    cup_tensor *both = cup_add(c, cup_mul(c, a, a), cup_mul(c, b, b));
    cup_backward(c, cup_mean(c, both, NULL, 0, false));
    compare_gradients(c, comm, &part, &whole);
    cup_parameters_free(part.list);
    cup_parameters_free(whole.list);
}

TEST(parts_of_layers_are_those_of_the_whole)
{
    together(1, run, NULL);
    together(2, run, NULL);
}

/* Gathered parts are the whole again, sections and all. */
static void gather(cup_context *c, cup_comm *comm, void *user)
{
    model part = {0}, whole = {0};
    int64_t count;
    (void)user;
    make(&part, c, comm);
    make(&whole, c, NULL);
    const cup_named *named = cup_parameters_named(part.list, &count);
    cup_grad_recording(c, false);
    for (int64_t i = 0; i < count; i++) {
        const cup__portion *p = cup__parameters_part(part.list, named[i].tensor);
        cup_tensor *t = p ? cup__part_gather(c, named[i].tensor, p) : named[i].tensor;
        expect_alike(c, t, cup_parameters_find(whole.list, named[i].name), 1, named[i].name);
    }
    cup_grad_recording(c, true);
    cup_parameters_free(part.list);
    cup_parameters_free(whole.list);
}

TEST(parts_gathered_are_the_whole)
{
    together(2, gather, NULL);
}

static void refuse_one(cup_context *c, const char *words)
{
    if (!cup_error(c) || !strstr(cup_error_text(c), words))
        wrong("not \"%s\" but \"%s\"", words, cup_error_text(c));
    cup_error_clear(c);
}

static void refuse(cup_context *c, cup_comm *comm, void *user)
{
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_attention_layer attention;
    cup_linear_layer linear;
    (void)user;
    cup_parameters_among(list, comm);
    cup_attention_layer_new(&attention, list, "heads", 12, 3, NULL);
    refuse_one(c, "3 heads and 3 of keys and values cannot be shared out equally to 2 processes");
    cup_parameters_sequence(list, true);
    cup_parameters_rows_take(list, cup_zeros(c, CUP_F32, 3, (int64_t[]){1, 3, 4}));
    refuse_one(c, "cannot be shared out equally between blocks to 2 processes");
    cup_linear_layer_new(&linear, list, "odd", 4, 5,
                         CUP_OPTIONS(cup_linear_layer_options, .part = CUP_PART_ROWS));
    refuse_one(c, "odd.weight: 5 rows cannot be shared out equally to 2 processes");
    cup_linear_layer_new(&linear, list, "acts", 4, 4,
                         CUP_OPTIONS(cup_linear_layer_options, .part = CUP_PART_COLUMNS,
                                     .activation = CUP_ACTIVATION_RELU));
    refuse_one(c, "an activation is a call of its own");
    cup_linear_layer_new(&linear, list, "even", 4, 4,
                         CUP_OPTIONS(cup_linear_layer_options, .part = CUP_PART_ROWS));
    cup_parameters_save(list, "parts.safetensors");
    refuse_one(c, "a file is not written by several processes");
    cup_parameters_load(list, "parts.safetensors");
    refuse_one(c, "a file is not read by several processes");
    cup_parameters_among(list, NULL);
    refuse_one(c, "before anything is made in it");
    cup_parameters_free(list);
}

TEST(parts_that_cannot_be_are_refused)
{
    together(2, refuse, NULL);
}

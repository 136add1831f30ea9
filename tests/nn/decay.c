/* Which of a GPT's tensors weight decay pulls at. */
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "cupola/cupola.h"

/* Matrices and embeddings, as in GPT-2's own training; not biases and what norms learn. */
static void expect_groups(const cup_gpt_config *config)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_gpt *m = cup_gpt_new(c, CUP_F32, config);
    cup_optimizer *o = cup_optimizer_of(
        m->parameters, CUP_OPTIONS(cup_optimizer_options, .weight_decay = 0.5));
    int64_t count, decayed = 0, kept = 0;
    const cup_named *named = cup_parameters_named(m->parameters, &count);
    float **before = malloc((size_t)count * sizeof *before);
    for (int64_t i = 0; i < count; i++) {
        size_t bytes = (size_t)cup_tensor_count(named[i].tensor) * sizeof(float);
        before[i] = malloc(bytes);
        EXPECT_INT(cup_tensor_read(named[i].tensor, before[i], bytes), CUP_OK);
    }
    int32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 0};
    const int64_t shape[] = {1, 8};
    cup_scope_open(c);
    cup_tensor *x = cup_tensor_from(c, CUP_I32, 2, shape, tokens);
    cup_tensor *none = cup_full(c, CUP_F32, 0, NULL, 0);
    EXPECT_INT(cup_backward(c, cup_mul(c, cup_gpt_loss(m, x, x, false), none)), CUP_OK);
    cup_scope_close(c);
    EXPECT_INT(cup_optimizer_set(o, 0.1, 1), CUP_OK);
    EXPECT_INT(cup_optimizer_step(o), CUP_OK);
    for (int64_t i = 0; i < count; i++) {
        cup_tensor *t = named[i].tensor;
        int64_t elements = cup_tensor_count(t);
        size_t bytes = (size_t)elements * sizeof(float);
        float *after = malloc(bytes);
        bool decays = cup_tensor_ndim(t) > 1;
        EXPECT_INT(cup_tensor_read(t, after, bytes), CUP_OK);
        for (int64_t k = 0; k < elements; k++)
            if (decays)
                EXPECT_NEAR(after[k], 0.95 * (double)before[i][k], 1e-6);
            else
                EXPECT(after[k] == before[i][k]);
        decayed += decays;
        kept += !decays;
        free(after);
        free(before[i]);
    }
    EXPECT(decayed > 4 && kept > 2);
    free(before);
    cup_optimizer_free(o);
    cup_gpt_free(m);
    cup_context_free(c);
}

TEST(gpt_decays_matrices_and_embeddings_only)
{
    cup_gpt_config config = {.size = sizeof config,
                             .layers = 2,
                             .heads = 2,
                             .width = 16,
                             .context = 8,
                             .vocabulary = 9,
                             .bias = true};
    expect_groups(&config);
    config.bias = false;
    config.norm = CUP_NORM_KIND_RMSNORM;
    config.mlp = CUP_MLP_KIND_SWIGLU;
    config.untied = true;
    expect_groups(&config);
}

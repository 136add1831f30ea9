/* Second derivatives as they are used: a gradient penalty and products with a Hessian, against what
 * PyTorch 2.15 gives in f64 on a CPU, by torch.autograd.grad with create_graph, for the same
 * numbers: number i of a tensor of fill(.., middle, by, from) is middle + by sin(1.3 i + from). */
#include <math.h>

#include "cupola/cupola.h"
#include "test.h"

enum { ROWS = 5, IN = 3, HIDDEN = 4, CLASSES = 3 };

static cup_dtype used = CUP_F64;

static cup_tensor *fill(cup_context *c, int ndim, const int64_t *shape, double middle, double by,
                        double from)
{
    double values[64];
    cup_tensor *t = cup_tensor_new(c, CUP_F64, ndim, shape);
    int64_t count = cup_tensor_count(t);
    for (int64_t i = 0; i < count; i++)
        values[i] = middle + by * sin(1.3 * (double)i + from);
    cup_tensor_write(t, values, (size_t)count * sizeof *values);
    return cup_cast(c, t, used);
}

static void read_values(cup_tensor *t, double *values)
{
    cup_tensor *wide = cup_cast(cup_tensor_context(t), cup_detach(t), CUP_F64);
    cup_tensor_read(wide, values, (size_t)cup_tensor_count(t) * sizeof *values);
}

/* A linear layer, a norm, an activation and another linear layer. */
typedef struct network {
    cup_tensor *weight, *bias, *gamma, *beta, *last, *last_bias;
} network;

static cup_tensor *normalised(cup_context *c, const network *n, cup_tensor *x)
{
    return cup_layernorm(c, cup_linear(c, x, n->weight, n->bias), n->gamma, n->beta, 1e-5);
}

static network network_make(cup_context *c)
{
    network n = {
        .weight = fill(c, 2, (int64_t[]){HIDDEN, IN}, 0, 0.6, 1),
        .bias = fill(c, 1, (int64_t[]){HIDDEN}, 0, 0.2, 2),
        .gamma = fill(c, 1, (int64_t[]){HIDDEN}, 1, 0.3, 3),
        .beta = fill(c, 1, (int64_t[]){HIDDEN}, 0, 0.1, 4),
    };
    cup_require_grad(n.weight);
    cup_require_grad(n.bias);
    cup_require_grad(n.gamma);
    cup_require_grad(n.beta);
    return n;
}

static cup_tensor *critic(cup_context *c, const network *n, cup_tensor *x)
{
    return cup_linear(c, cup_gelu(c, normalised(c, n, x)), n->last, n->last_bias);
}

static cup_tensor *mean(cup_context *c, cup_tensor *t)
{
    return cup_mean(c, t, NULL, 0, false);
}

/* What Wasserstein GANs with a gradient penalty train their critic by: 10 (|d y / d x| - 1)^2. */
static cup_tensor *critic_loss(cup_context *c, const network *n, cup_tensor *real, cup_tensor *fake)
{
    cup_tensor *between = cup_add(c, cup_scale(c, real, 0.25), cup_scale(c, fake, 0.75)), *slope;
    cup_require_grad(between);
    cup_tensor *y = cup_sum(c, critic(c, n, between), NULL, 0, false);
    EXPECT_INT(cup_gradients_recorded(c, y, &between, 1, &slope), CUP_OK);
    cup_tensor *size = cup_norm(c, slope, (int64_t[]){1}, 1, false);
    cup_tensor *apart = cup_sub(c, size, cup_full(c, used, 0, NULL, 1));
    cup_tensor *penalty = cup_scale(c, mean(c, cup_mul(c, apart, apart)), 10);
    cup_tensor *score = cup_sub(c, mean(c, critic(c, n, fake)), mean(c, critic(c, n, real)));
    return cup_add(c, score, penalty);
}

/* p -= 0.02 d p */
static void descend(cup_context *c, cup_tensor *p)
{
    cup_grad_recording(c, false);
    cup_tensor *moved = cup_sub(c, p, cup_scale(c, cup_grad(p), 0.02));
    cup_copy_into(c, p, moved);
    cup_grad_recording(c, true);
    cup_grad_clear(p);
}

static void expect_values(cup_tensor *t, const double *want, double tolerance)
{
    double values[16];
    read_values(t, values);
    for (int64_t i = 0; i < cup_tensor_count(t); i++)
        EXPECT_NEAR(values[i], want[i], tolerance);
}

static void train_critic(cup_context *c, double tolerance)
{
    static const double losses[] = {5.04967629671, 4.02224515117, 3.19638159561,
                                    2.64785128811, 2.31687070555, 2.04368190542};
    static const double weight[] = {0.524662073596,  0.369904599672,  -0.3017002706,
                                    -0.459624860809, -0.0109673088917, 0.533289117398,
                                    0.352203723935,  -0.445292973994, -0.560750628762,
                                    -0.0709403728244, 0.70324719291,  0.312896730531};
    static const double gamma[] = {1.160046726, 0.747428030316, 1.0111648255, 1.30725136148};
    static const double beta[] = {-0.146638355663, -0.0798146597752, 0.0780777331292,
                                  0.0930996941814};
    network n = network_make(c);
    n.last = cup_require_grad(fill(c, 2, (int64_t[]){1, HIDDEN}, 0, 0.7, 5));
    n.last_bias = cup_require_grad(fill(c, 1, (int64_t[]){1}, 0, 0.1, 6));
    cup_tensor *all[] = {n.weight, n.bias, n.gamma, n.beta, n.last, n.last_bias};
    cup_tensor *real = fill(c, 2, (int64_t[]){ROWS, IN}, 0, 1, 7);
    cup_tensor *fake = fill(c, 2, (int64_t[]){ROWS, IN}, 0.5, 1.5, 8);
    for (int step = 0; step < 6; step++) {
        cup_scope_open(c);
        cup_tensor *loss = critic_loss(c, &n, real, fake);
        EXPECT_NEAR(cup_tensor_item(loss), losses[step], tolerance);
        EXPECT_INT(cup_backward(c, loss), CUP_OK);
        for (int i = 0; i < 6; i++)
            descend(c, all[i]);
        cup_scope_close(c);
    }
    expect_values(n.weight, weight, tolerance);
    expect_values(n.gamma, gamma, tolerance);
    expect_values(n.beta, beta, tolerance);
    EXPECT_TEXT(cup_error_text(c), "");
}

TEST(penalty_of_a_gradient_is_trained)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    train_critic(c, 1e-9);
    cup_context_free(c);
}

/* On a GPU the more so, whose products round otherwise. */
TEST(penalty_of_a_gradient_is_trained_in_f32)
{
    used = CUP_F32;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    train_critic(c, 1e-4);
    cup_context_free(c);
}

TEST(gpu_penalty_of_a_gradient_is_trained)
{
    used = CUP_F32;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(c) == CUP_NO_DEVICE)
        test_skip("no GPU: %s", cup_error_text(c));
    train_critic(c, 5e-3);
    cup_context_free(c);
}

/* The derivative of the gradient's product with v is the Hessian's. */
TEST(penalty_hessian_times_vector)
{
    static const double want[5][12] = {
        {0.104747169566, 0.0426939591304, -0.0819060014524, -0.000292552596926, 0.176456615403,
         0.0946964284437, -0.208016146324, -0.177223101643, 0.113202202135, 0.103561529356,
         -0.0419274728903, -0.125992629126},
        {0.130053293235, 0.0509718337942, -0.103171154602, -0.0778539724271},
        {0.0936874358522, -0.363194077062, -0.153323082827, -0.0742031075718},
        {0.132182249758, -0.200666317202, -0.221169419344, 0.0226242652089},
        {0.00610241034896, 0.255831069192, -0.0192239839767, -0.0236437361827, -0.0634421693815,
         -0.144287400632, 0.114936122313, -0.0721774894979, 0.0573397590326, -0.11154366856,
         -0.095712138336, 0.0958212256807},
    };
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    network n = network_make(c);
    n.last = cup_require_grad(fill(c, 2, (int64_t[]){CLASSES, HIDDEN}, 0, 0.5, 9));
    cup_tensor *all[] = {n.weight, n.bias, n.gamma, n.beta, n.last}, *d[5], *product = NULL;
    cup_tensor *x = fill(c, 2, (int64_t[]){ROWS, IN}, 0, 1, 7);
    cup_tensor *classes = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){ROWS},
                                          (int32_t[]){0, 2, 1, 1, 0});
    cup_tensor *scores = cup_linear(c, cup_silu(c, normalised(c, &n, x)), n.last, NULL);
    cup_tensor *loss = cup_cross_entropy(c, scores, classes, -1, NULL);
    EXPECT_NEAR(cup_tensor_item(loss), 1.11270339706, 1e-9);
    EXPECT_INT(cup_gradients_recorded(c, loss, all, 5, d), CUP_OK);
    for (int i = 0; i < 5; i++) {
        int ndim = cup_tensor_ndim(d[i]);
        const int64_t shape[] = {cup_tensor_size(d[i], 0), ndim > 1 ? cup_tensor_size(d[i], 1) : 1};
        cup_tensor *v = fill(c, ndim, shape, 0, 1, 20 + i);
        cup_tensor *part = cup_sum(c, cup_mul(c, d[i], v), NULL, 0, false);
        product = product ? cup_add(c, product, part) : part;
    }
    EXPECT_INT(cup_gradients(c, product, all, 5, d), CUP_OK);
    for (int i = 0; i < 5; i++)
        expect_values(d[i], want[i], 1e-9);
    EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
}

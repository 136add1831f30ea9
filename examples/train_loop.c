/* A training loop written out: a network with two hidden layers learns to tell three spiral arms
 * apart. Runs on a GPU when there is one. */
#include <cupola/cupola.h>
#include <math.h>
#include <stdio.h>

enum { ARMS = 3, POINTS = 600, WIDTH = 64, STEPS = 400 };

/* Two hidden layers, and one that gives a score for each arm. */
typedef struct network {
    cup_parameters *parameters;
    cup_linear_layer first, second, last;
} network;

/* The tensors belong to the list, which feeds the optimizer and could be saved. */
static void make_network(cup_context *c, network *n)
{
    const cup_linear_layer_options *gelu =
        CUP_OPTIONS(cup_linear_layer_options, .activation = CUP_ACTIVATION_GELU);
    n->parameters = cup_parameters_new(c, CUP_F32);
    cup_linear_layer_new(&n->first, n->parameters, "first", 2, WIDTH, gelu);
    cup_linear_layer_new(&n->second, n->parameters, "second", WIDTH, WIDTH, gelu);
    cup_linear_layer_new(&n->last, n->parameters, "last", WIDTH, ARMS, NULL);
}

/* x [POINTS,2] to one score for each arm, [POINTS,ARMS]. */
static cup_tensor *scores(const network *n, cup_tensor *x)
{
    cup_tensor *h = cup_linear_layer_call(&n->first, x);
    h = cup_linear_layer_call(&n->second, h);
    return cup_linear_layer_call(&n->last, h);
}

/* Point i lies on arm i % ARMS, the further out the larger i is. */
static void draw_spirals(float (*x)[2], int32_t *arm)
{
    for (int i = 0; i < POINTS; i++) {
        double radius = (i + 1.0) / POINTS, turn = 4 * radius + i % ARMS * 6.2831853 / ARMS;
        x[i][0] = (float)(radius * sin(turn));
        x[i][1] = (float)(radius * cos(turn));
        arm[i] = i % ARMS;
    }
}

static double part_right(cup_context *c, const network *n, cup_tensor *x, const int32_t *arm)
{
    int64_t guess[POINTS] = {0};
    cup_scope_open(c);
    bool recording = cup_grad_recording(c, false);
    cup_tensor *best = cup_argmax(c, scores(n, x), (int64_t[]){1}, 1, false);
    cup_tensor_read(best, guess, sizeof guess);
    cup_grad_recording(c, recording);
    cup_scope_close(c);
    int right = 0;
    for (int i = 0; i < POINTS; i++)
        right += guess[i] == arm[i];
    return (double)right / POINTS;
}

static void train(cup_context *c, const network *n, cup_optimizer *o, cup_tensor *x, cup_tensor *y)
{
    cup_schedule schedule = {.high = 0.01, .low = 0.001, .warmup = 20, .steps = STEPS};
    for (int step = 0; step < STEPS && !cup_error(c); step++) {
        cup_scope_open(c); /* what a step computes is freed with its scope */
        cup_tensor *loss = cup_cross_entropy(c, scores(n, x), y, -1, NULL);
        cup_backward(c, loss);
        cup_optimizer_set(o, cup_schedule_rate(&schedule, step), 1);
        cup_optimizer_step(o);
        cup_optimizer_clear(o);
        if (step % 100 == 0 || step == STEPS - 1)
            printf("step %3d  loss %.4f\n", step, cup_tensor_item(loss));
        cup_scope_close(c);
    }
}

int main(void)
{
    static float points[POINTS][2];
    static int32_t arms[POINTS];
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .seed = 1));
    printf("on %s\n", cup_device_text(c));
    draw_spirals(points, arms);
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){POINTS, 2}, points);
    cup_tensor *y = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){POINTS}, arms);
    network n;
    make_network(c, &n);
    printf("%lld numbers to be learned\n", (long long)cup_parameters_count(n.parameters, true));
    cup_optimizer *o = cup_optimizer_of(n.parameters, NULL);
    train(c, &n, o, x, y);
    printf("%.1f %% of the points are told right\n", 100 * part_right(c, &n, x, arms));
    int failed = cup_error(c) != CUP_OK;
    if (failed)
        fprintf(stderr, "%s\n", cup_error_text(c));
    cup_optimizer_free(o);
    cup_parameters_free(n.parameters);
    cup_context_free(c);
    return failed;
}

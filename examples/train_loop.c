/* A training loop written out: a network with two hidden layers learns to tell three spiral arms
 * apart. Runs on a GPU when there is one. */
#include <cupola/cupola.h>
#include <math.h>
#include <stdio.h>

enum { ARMS = 3, POINTS = 600, WIDTH = 64, STEPS = 400 };

/* The weights of the network, in the order of their use. */
typedef struct network {
    cup_tensor *weight1, *bias1, *weight2, *bias2, *weight3, *bias3;
} network;

static cup_tensor *random_weight(cup_context *c, int64_t out, int64_t in)
{
    return cup_keep(cup_normal(c, CUP_F32, (int64_t[]){out, in}, 2, 0, 1 / sqrt((double)in)));
}

static cup_tensor *zeros(cup_context *c, int64_t count)
{
    return cup_keep(cup_full(c, CUP_F32, &count, 1, 0));
}

/* x [POINTS,2] to one score for each arm, [POINTS,ARMS]. */
static cup_tensor *scores(cup_context *c, const network *n, cup_tensor *x)
{
    cup_tensor *h = cup_linear_gelu(c, x, n->weight1, n->bias1);
    h = cup_linear_gelu(c, h, n->weight2, n->bias2);
    return cup_linear(c, h, n->weight3, n->bias3);
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
    cup_tensor *best = cup_argmax(c, scores(c, n, x), (int64_t[]){1}, 1, false);
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
        cup_tensor *loss = cup_cross_entropy(c, scores(c, n, x), y, -1, 0, 0, 0, false);
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
    cup_context *c = cup_context_new(&(cup_options){.seed = 1});
    printf("on %s\n", cup_device_text(c));
    draw_spirals(points, arms);
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){POINTS, 2}, points);
    cup_tensor *y = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){POINTS}, arms);
    network n = {random_weight(c, WIDTH, 2),     zeros(c, WIDTH),
                 random_weight(c, WIDTH, WIDTH), zeros(c, WIDTH),
                 random_weight(c, ARMS, WIDTH),  zeros(c, ARMS)};
    const cup_parameter parameters[] = {
        {.name = "weight1", .tensor = n.weight1, .decay = true},
        {.name = "bias1", .tensor = n.bias1},
        {.name = "weight2", .tensor = n.weight2, .decay = true},
        {.name = "bias2", .tensor = n.bias2},
        {.name = "weight3", .tensor = n.weight3, .decay = true},
        {.name = "bias3", .tensor = n.bias3},
    };
    cup_optimizer *o = cup_optimizer_new(c, parameters, 6, NULL);
    train(c, &n, o, x, y);
    printf("%.1f %% of the points are told right\n", 100 * part_right(c, &n, x, arms));
    int failed = cup_error(c) != CUP_OK;
    if (failed)
        fprintf(stderr, "%s\n", cup_error_text(c));
    cup_optimizer_free(o);
    cup_context_free(c);
    return failed;
}

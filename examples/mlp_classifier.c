/* An MLP learns to tell three spiral arms apart, on the library's training loop:
 *
 *     mlp_classifier [FOLDER [STOP]]
 *
 * With a folder it keeps checkpoints there and goes on from what it finds; after STOP steps it
 * stops, as at a signal. Runs on a GPU when there is one. */
#include <cupola/cupola.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ARMS = 3, BATCH = 256, WIDTH = 64, STEPS = 400 };

typedef struct classifier {
    cup_linear_layer first, second, scores;
    cup_tensor *x, *arm; /* of a step's batch: [BATCH,2] and [BATCH] */
    cup_loop *loop;
    int64_t stop;
} classifier;

/* Points of a step are drawn from its number, so that a run that goes on sees the same ones. */
static void draw(int64_t step, float (*x)[2], int32_t *arm)
{
    uint32_t state = (uint32_t)step * 2654435761u + 1;
    for (int i = 0; i < BATCH; i++) {
        state = state * 1664525u + 1013904223u;
        double radius = (state >> 8) / 16777216.0, turn = 4 * radius + i % ARMS * 6.2831853 / ARMS;
        x[i][0] = (float)(radius * sin(turn));
        x[i][1] = (float)(radius * cos(turn));
        arm[i] = i % ARMS;
    }
}

static cup_status write_batch(cup_context *c, int64_t step, void *user)
{
    classifier *m = user;
    float x[BATCH][2];
    int32_t arm[BATCH];
    (void)c;
    draw(step, x, arm);
    cup_tensor_write(m->x, x, sizeof x);
    return cup_tensor_write(m->arm, arm, sizeof arm);
}

static cup_tensor *loss(cup_context *c, int64_t batch, void *user)
{
    classifier *m = user;
    (void)batch; /* there is one a step */
    cup_tensor *h = cup_linear_layer_call(&m->first, m->x);
    h = cup_linear_layer_call(&m->scores, cup_linear_layer_call(&m->second, h));
    return cup_cross_entropy(c, h, m->arm, -1, NULL);
}

/* The loss of points that no step draws. */
static cup_status evaluate(cup_context *c, double *out, void *user)
{
    write_batch(c, STEPS, user);
    *out = cup_tensor_item(loss(c, 0, user));
    return cup_error(c);
}

static void show(const cup_training_point *point, void *user)
{
    (void)user;
    if (!isnan(point->validation))
        printf("step %3d  validation loss %.6f\n", (int)point->step, point->validation);
}

static bool is_over(void *user)
{
    const classifier *m = user;
    return m->stop > 0 && cup_loop_steps(m->loop) >= m->stop;
}

static cup_status train(classifier *m, cup_parameters *list, const char *folder)
{
    const cup_loop_calls calls = {
        .batch = write_batch, .loss = loss, .evaluate = evaluate, .user = m};
    const cup_training_hooks hooks = {.point = show, .stop = is_over, .user = m};
    m->loop = cup_loop_new(
        list, &calls,
        CUP_OPTIONS(cup_loop_options, .folder = folder, .kind = "spiral classifier",
                    .schedule = {.high = 0.01, .low = 0.001, .warmup = 20, .steps = STEPS},
                    .optimizer = {.weight_decay = 0.01, .clip = 1}, .evaluate_every = 100,
                    .save_every = 100));
    if (cup_loop_has_checkpoint(m->loop) && cup_loop_resume(m->loop) == CUP_OK)
        printf("goes on behind %d steps\n", (int)cup_loop_steps(m->loop));
    cup_status status = cup_loop_run(m->loop, &hooks);
    printf("%d of %d steps are done\n", (int)cup_loop_steps(m->loop), STEPS);
    cup_loop_free(m->loop);
    return status == CUP_INTERRUPTED ? CUP_OK : status;
}

int main(int count, char **words)
{
    classifier m = {.stop = count > 2 ? atoi(words[2]) : 0};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .seed = 1));
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    const cup_linear_layer_options *gelu =
        CUP_OPTIONS(cup_linear_layer_options, .activation = CUP_ACTIVATION_GELU);
    cup_linear_layer_new(&m.first, list, "first", 2, WIDTH, gelu);
    cup_linear_layer_new(&m.second, list, "second", WIDTH, WIDTH, gelu);
    cup_linear_layer_new(&m.scores, list, "scores", WIDTH, ARMS, NULL);
    m.x = cup_tensor_new(c, CUP_F32, 2, (int64_t[]){BATCH, 2});
    m.arm = cup_tensor_new(c, CUP_I32, 1, (int64_t[]){BATCH});
    cup_status status = train(&m, list, count > 1 ? words[1] : NULL);
    if (status != CUP_OK)
        fprintf(stderr, "%s\n", cup_error_text(c));
    cup_parameters_free(list);
    cup_context_free(c);
    return status != CUP_OK;
}

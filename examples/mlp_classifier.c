/* An MLP learns to tell three spiral arms apart, on the library's training loop, from batches of
 * the library's loader:
 *
 *     mlp_classifier [FOLDER [STOP]]
 *
 * With a folder it keeps checkpoints there and goes on from what it finds; after STOP steps it
 * stops, as at a signal. Runs on a GPU when there is one. */
#include "run.h"

enum { ARMS = 3, BATCH = 256, POINTS = 24 * BATCH, KEPT = 768, WIDTH = 64, STEPS = 400 };

typedef struct classifier {
    cup_linear_layer first, second, scores;
    cup_loader *loader;
    int64_t next; /* the step whose batch the loader gives next */
    cup_tensor *x, *arm, *kept, *answer; /* of a step's batch; of points that no step reads */
} classifier;

/* Points that lie about the arms in turn. */
static void draw(uint32_t state, int count, float (*x)[2], int32_t *arm)
{
    for (int i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        double radius = (state >> 8) / 16777216.0, turn = 4 * radius + i % ARMS * 6.2831853 / ARMS;
        x[i][0] = (float)(radius * sin(turn));
        x[i][1] = (float)(radius * cos(turn));
        arm[i] = i % ARMS;
    }
}

/* Arrays in memory; those of files would be {.path = "points.npy"} and {.path = "arms.npy"}. */
static cup_loader *open_points(cup_context *c)
{
    static float x[POINTS][2]; /* the loader reads them as long as it lives */
    static int32_t arm[POINTS];
    static const int64_t shape[] = {POINTS, 2};
    draw(1, POINTS, x, arm);
    const cup_loader_array arrays[] = {
        {.data = x, .dtype = CUP_F32, .ndim = 2, .shape = shape},
        {.data = arm, .dtype = CUP_I32, .ndim = 1, .shape = shape}};
    return cup_loader_new(c, arrays, 2,
                          CUP_OPTIONS(cup_loader_options, .batch = BATCH, .shuffle = true));
}

/* The loader goes on by itself; a run that goes on from a checkpoint first takes it there. */
static cup_status read_batch(cup_context *c, int64_t step, void *user)
{
    classifier *m = user;
    cup_tensor *batch[2];
    const int64_t epoch = POINTS / BATCH; /* steps of one */
    const cup_loader_state there = {.epoch = step / epoch, .sample = step % epoch * BATCH};
    if (step != m->next)
        cup_loader_resume(m->loader, &there);
    m->next = step + 1;
    cup_scope_open(c);
    if (cup_loader_next(m->loader, batch) == CUP_OK) {
        cup_copy_into(c, m->x, batch[0]);
        cup_copy_into(c, m->arm, batch[1]);
    }
    cup_scope_close(c);
    return cup_error(c);
}

static cup_tensor *loss_of(cup_context *c, classifier *m, cup_tensor *x, cup_tensor *arm)
{
    cup_tensor *h = cup_linear_layer_call(&m->second, cup_linear_layer_call(&m->first, x));
    return cup_cross_entropy(c, cup_linear_layer_call(&m->scores, h), arm, -1, NULL);
}

static cup_tensor *loss(cup_context *c, int64_t batch, void *user)
{
    classifier *m = user;
    (void)batch; /* there is one a step */
    return loss_of(c, m, m->x, m->arm);
}

static cup_status evaluate(cup_context *c, double *out, void *user)
{
    classifier *m = user;
    *out = cup_tensor_item(loss_of(c, m, m->kept, m->answer));
    return cup_error(c);
}

static void make(classifier *m, cup_context *c, cup_parameters *list)
{
    static float x[KEPT][2];
    static int32_t arm[KEPT];
    const cup_linear_layer_options *gelu =
        CUP_OPTIONS(cup_linear_layer_options, .activation = CUP_ACTIVATION_GELU);
    cup_linear_layer_new(&m->first, list, "first", 2, WIDTH, gelu);
    cup_linear_layer_new(&m->second, list, "second", WIDTH, WIDTH, gelu);
    cup_linear_layer_new(&m->scores, list, "scores", WIDTH, ARMS, NULL);
    draw(2, KEPT, x, arm);
    m->kept = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){KEPT, 2}, x);
    m->answer = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){KEPT}, arm);
    m->x = cup_tensor_new(c, CUP_F32, 2, (int64_t[]){BATCH, 2});
    m->arm = cup_tensor_new(c, CUP_I32, 1, (int64_t[]){BATCH});
    m->loader = open_points(c);
}

int main(int count, char **words)
{
    classifier m = {0};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .seed = 1));
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    make(&m, c, list);
    cup_loop *loop = cup_loop_new(
        list, CUP_OPTIONS(cup_loop_calls, read_batch, loss, evaluate, .user = &m),
        CUP_OPTIONS(cup_loop_options, .folder = count > 1 ? words[1] : NULL,
                    .kind = "spiral classifier", .evaluate_every = 100, .save_every = 100,
                    .schedule = {.high = 0.01, .low = 0.001, .warmup = 20, .steps = STEPS},
                    .optimizer = {.weight_decay = 0.01, .clip = 1}));
    int failed = run_loop(c, loop, STEPS, count, words);
    cup_loader_free(m.loader);
    cup_parameters_free(list);
    cup_context_free(c);
    return failed;
}

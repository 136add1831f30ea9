/* A small convolutional network learns to tell four shapes apart that stand anywhere in noisy
 * images, on the library's training loop:
 *
 *     cnn_classifier [FOLDER [STOP]]
 *
 * With a folder it keeps checkpoints there and goes on from what it finds; after STOP steps it
 * stops, as at a signal. Runs on a GPU when there is one. */
#include "run.h"

enum { SIDE = 16, KINDS = 4, BATCH = 64, KEPT = 512, STEPS = 200, SCORED = 16 * 4 * 4 };

typedef struct classifier {
    cup_conv2d_layer first, second;
    cup_linear_layer scores;
    cup_tensor *x, *kind, *kept, *answer; /* of a step's batch; of images that no step sees */
} classifier;

static uint32_t next(uint32_t *state)
{
    return (*state = *state * 1664525u + 1013904223u) >> 8;
}

/* A bar, a post, a cross or a frame, 5 x 5 somewhere in noise. */
static void draw(uint32_t state, int count, float (*x)[SIDE][SIDE], int64_t *kind)
{
    for (int n = 0; n < count; n++) {
        int k = kind[n] = n % KINDS, top = (int)(next(&state) % (SIDE - 4));
        int left = (int)(next(&state) % (SIDE - 4));
        for (int i = 0; i < SIDE; i++)
            for (int j = 0; j < SIDE; j++)
                x[n][i][j] = (float)(next(&state) / 16777216.0 - 0.5);
        for (int i = 0; i < 5; i++)
            for (int j = 0; j < 5; j++) {
                bool bar = i == 2, post = j == 2, edge = i % 4 == 0 || j % 4 == 0;
                bool ink = k == 0 ? bar : k == 1 ? post : k == 2 ? bar || post : edge;
                x[n][top + i][left + j] += ink ? 1.0F : 0.0F;
            }
    }
}

/* Other images each step: a run that goes on sees those that it would have seen. */
static cup_status read_batch(cup_context *c, int64_t step, void *user)
{
    static float x[BATCH][SIDE][SIDE];
    static int64_t kind[BATCH];
    classifier *m = user;
    draw((uint32_t)step * 7919u + 3, BATCH, x, kind);
    cup_scope_open(c);
    cup_copy_into(c, m->x, cup_tensor_from(c, CUP_F32, 4, (int64_t[]){BATCH, 1, SIDE, SIDE}, x));
    cup_copy_into(c, m->kind, cup_tensor_from(c, CUP_I64, 1, (int64_t[]){BATCH}, kind));
    cup_scope_close(c);
    return cup_error(c);
}

static cup_tensor *scores_of(cup_context *c, classifier *m, cup_tensor *x, int64_t images)
{
    const int64_t window = 2, flat[] = {images, SCORED};
    cup_tensor *h = cup_max_pool2d(c, cup_conv2d_layer_call(&m->first, x), &window, 1, NULL);
    h = cup_max_pool2d(c, cup_conv2d_layer_call(&m->second, h), &window, 1, NULL);
    return cup_linear_layer_call(&m->scores, cup_reshape(c, h, 2, flat));
}

static cup_tensor *loss(cup_context *c, int64_t batch, void *user)
{
    classifier *m = user;
    (void)batch; /* there is one a step */
    return cup_cross_entropy(c, scores_of(c, m, m->x, BATCH), m->kind, -1, NULL);
}

static cup_status evaluate(cup_context *c, double *out, void *user)
{
    classifier *m = user;
    cup_tensor *scores = scores_of(c, m, m->kept, KEPT);
    *out = cup_tensor_item(cup_cross_entropy(c, scores, m->answer, -1, NULL));
    cup_tensor *right = cup_equal(c, cup_argmax(c, scores, (int64_t[]){1}, 1, false), m->answer);
    double share = cup_tensor_item(cup_mean(c, cup_cast(c, right, CUP_F32), NULL, 0, false));
    printf("%.1f %% of the images are told right\n", 100 * share);
    return cup_error(c);
}

static void make(classifier *m, cup_context *c, cup_parameters *list)
{
    static float x[KEPT][SIDE][SIDE];
    static int64_t kind[KEPT];
    const int64_t kernel = 3;
    const cup_conv2d_layer_options *relu = CUP_OPTIONS(
        cup_conv2d_layer_options, .activation = CUP_ACTIVATION_RELU, .same = true);
    cup_conv2d_layer_new(&m->first, list, "first", 1, 8, &kernel, 1, relu);
    cup_conv2d_layer_new(&m->second, list, "second", 8, 16, &kernel, 1, relu);
    cup_linear_layer_new(&m->scores, list, "scores", SCORED, KINDS, NULL);
    draw(1, KEPT, x, kind);
    m->kept = cup_tensor_from(c, CUP_F32, 4, (int64_t[]){KEPT, 1, SIDE, SIDE}, x);
    m->answer = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){KEPT}, kind);
    m->x = cup_tensor_new(c, CUP_F32, 4, (int64_t[]){BATCH, 1, SIDE, SIDE});
    m->kind = cup_tensor_new(c, CUP_I64, 1, (int64_t[]){BATCH});
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
                    .kind = "shape classifier", .evaluate_every = 50, .save_every = 50,
                    .schedule = {.high = 0.02, .low = 0.001, .warmup = 20, .steps = STEPS},
                    .optimizer = {.weight_decay = 0.01, .clip = 1}));
    int failed = run_loop(c, loop, STEPS, count, words);
    cup_parameters_free(list);
    cup_context_free(c);
    return failed;
}

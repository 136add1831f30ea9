/* An autoencoder learns to write pictures of 12 x 12 points as 4 numbers, on the library's
 * training loop, in bf16 with master copies in f32:
 *
 *     autoencoder [FOLDER [STOP]]
 *
 * With a folder it keeps checkpoints there and goes on from what it finds; after STOP steps it
 * stops, as at a signal. Runs on a GPU when there is one. */
#include "run.h"

enum { SIDE = 12, PIXELS = SIDE * SIDE, CODE = 4, BATCH = 64, PARTS = 2, STEPS = 300 };

typedef struct autoencoder {
    cup_linear_layer first, code, second, picture;
    cup_sequence_layer all;
    cup_tensor *x; /* of a step: [PARTS * BATCH, PIXELS] */
} autoencoder;

/* A round spot somewhere, of some size: three numbers say all of it. */
static void draw(uint32_t *state, float *picture)
{
    double at[3];
    for (int i = 0; i < 3; i++) {
        *state = *state * 1664525u + 1013904223u;
        at[i] = (*state >> 8) / 16777216.0;
    }
    for (int i = 0; i < PIXELS; i++) {
        double x = i % SIDE - at[0] * (SIDE - 1), y = i / SIDE - at[1] * (SIDE - 1);
        picture[i] = (float)exp(-(x * x + y * y) / (2 + 10 * at[2]));
    }
}

static cup_status write_batch(cup_context *c, int64_t step, void *user)
{
    autoencoder *m = user;
    static float pictures[PARTS * BATCH][PIXELS];
    uint32_t state = (uint32_t)step * 2654435761u + 1;
    (void)c;
    for (int i = 0; i < PARTS * BATCH; i++)
        draw(&state, pictures[i]);
    return cup_tensor_write(m->x, pictures, sizeof pictures);
}

/* The mean square of what is lost of a batch's pictures. */
static cup_tensor *loss(cup_context *c, int64_t batch, void *user)
{
    autoencoder *m = user;
    int64_t from[] = {batch * BATCH, 0}, size[] = {BATCH, PIXELS};
    cup_tensor *x = cup_slice(c, m->x, from, 2, size, 2);
    cup_tensor *y = cup_layer_call(&m->all.layer, cup_cast(c, x, CUP_BF16));
    cup_tensor *lost = cup_sub(c, cup_cast(c, y, CUP_F32), x);
    return cup_mean(c, cup_mul(c, lost, lost), NULL, 0, false);
}

static cup_status evaluate(cup_context *c, double *out, void *user)
{
    write_batch(c, STEPS, user);
    *out = cup_tensor_item(loss(c, 0, user));
    return cup_error(c);
}

static void make(autoencoder *m, cup_context *c, cup_parameters *list)
{
    const cup_linear_layer_options *gelu =
        CUP_OPTIONS(cup_linear_layer_options, .activation = CUP_ACTIVATION_GELU);
    static const cup_layer *layers[4];
    cup_linear_layer_new(&m->first, list, "first", PIXELS, 64, gelu);
    cup_linear_layer_new(&m->code, list, "code", 64, CODE, NULL);
    cup_linear_layer_new(&m->second, list, "second", CODE, 64, gelu);
    cup_linear_layer_new(&m->picture, list, "picture", 64, PIXELS, NULL);
    layers[0] = &m->first.layer, layers[1] = &m->code.layer;
    layers[2] = &m->second.layer, layers[3] = &m->picture.layer;
    cup_sequence_layer_new(&m->all, list, layers, 4);
    m->x = cup_tensor_new(c, CUP_F32, 2, (int64_t[]){PARTS * BATCH, PIXELS});
}

int main(int count, char **words)
{
    autoencoder m;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .seed = 1));
    cup_parameters *list = cup_parameters_new(c, CUP_BF16);
    make(&m, c, list);
    cup_loop *loop = cup_loop_new(
        list, CUP_OPTIONS(cup_loop_calls, write_batch, loss, evaluate, .user = &m),
        CUP_OPTIONS(cup_loop_options, .folder = count > 1 ? words[1] : NULL,
                    .kind = "autoencoder", .accumulate = PARTS, .evaluate_every = 100,
                    .schedule = {.high = 4e-3, .low = 4e-4, .warmup = 20, .steps = STEPS}));
    int failed = run_loop(c, loop, STEPS, count, words);
    cup_parameters_free(list);
    cup_context_free(c);
    return failed;
}

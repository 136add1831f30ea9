/* A small U-Net learns to take noise out of pictures, and then makes new ones of noise alone, as in
 * Ho, Jain and Abbeel 2020, "Denoising diffusion probabilistic models":
 *
 *     diffusion [DATA [FOLDER [STOP]]]
 *
 * DATA is a folder as cup_images_load takes it, Fashion-MNIST for example; without it a few steps
 * are made with spots that the program draws. With a folder it keeps checkpoints there, goes on
 * from what it finds, and writes samples.pgm, a sheet of 64 new pictures. After STOP steps it
 * stops, as at a signal. Runs on a GPU when there is one. */
#include "run.h"

#include <string.h>

enum { BATCH = 64, NOISES = 200, TIME = 32, SHEET = 8, MOST_SIDE = 28, GROUPS = 8 };
enum { TOY_SIDE = 12, TOY_STEPS = 6, STEPS = 6000 };

/* Two convolutions behind norms, with what the time says added between them. */
typedef struct block {
    cup_groupnorm_layer norm1, norm2;
    cup_conv2d_layer conv1, conv2, shortcut;
    cup_linear_layer time;
    bool widens;
} block;

typedef struct diffusion {
    cup_context *c;
    cup_images *images; /* NULL: spots */
    int side;
    cup_linear_layer time1, time2;
    cup_conv2d_layer first, last, down1, down2, up1, up2;
    block wide, middle, small, after1, after2;
    cup_groupnorm_layer norm;
    cup_tensor *x, *kept, *part; /* a batch; how much of it and of noise; the numbers of its time */
    double left[NOISES + 1];     /* what is left of a picture behind so many noises, squared */
} diffusion;

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) / 9007199254740992.0;
}

/* Layers. Images lie with their channels last: a convolution sees a view of them. */

static cup_tensor *convolved(const cup_conv2d_layer *layer, cup_context *c, cup_tensor *x)
{
    const int64_t first[] = {0, 3, 1, 2}, last[] = {0, 2, 3, 1};
    return cup_permute(c, cup_conv2d_layer_call(layer, cup_permute(c, x, first, 4)), last, 4);
}

static void make_conv(cup_conv2d_layer *layer, cup_parameters *list, const char *name, int in,
                      int out, int kernel, int stride)
{
    const int64_t size = kernel;
    cup_conv2d_layer_new(layer, list, name, in, out, &size, 1,
                         CUP_OPTIONS(cup_conv2d_layer_options, .stride = CUP_INTS(stride),
                                     .padding = CUP_INTS(kernel / 2)));
}

static void make_block(block *b, cup_parameters *list, const char *name, int in, int out)
{
    const cup_norm_layer_options *last = CUP_OPTIONS(cup_norm_layer_options, .channels_last = true);
    list = cup_parameters_under(list, name);
    b->widens = in != out;
    cup_groupnorm_layer_new(&b->norm1, list, "norm1", in, GROUPS, last);
    cup_groupnorm_layer_new(&b->norm2, list, "norm2", out, GROUPS, last);
    make_conv(&b->conv1, list, "conv1", in, out, 3, 1);
    make_conv(&b->conv2, list, "conv2", out, out, 3, 1);
    if (b->widens)
        make_conv(&b->shortcut, list, "shortcut", in, out, 1, 1);
    cup_linear_layer_new(&b->time, list, "time", 2 * TIME, out, NULL);
}

static cup_tensor *call_block(const block *b, cup_context *c, cup_tensor *x, cup_tensor *time)
{
    cup_tensor *h = cup_silu(c, cup_groupnorm_layer_call(&b->norm1, x));
    h = convolved(&b->conv1, c, h);
    cup_tensor *t = cup_linear_layer_call(&b->time, cup_silu(c, time));
    const int64_t shape[] = {cup_tensor_size(t, 0), 1, 1, cup_tensor_size(t, 1)};
    h = cup_add(c, h, cup_reshape(c, t, 4, shape));
    h = convolved(&b->conv2, c, cup_silu(c, cup_groupnorm_layer_call(&b->norm2, h)));
    return cup_add(c, h, b->widens ? convolved(&b->shortcut, c, x) : x);
}

/* Each place becomes four. */
static cup_tensor *doubled(cup_context *c, cup_tensor *x)
{
    const int64_t n = cup_tensor_size(x, 0), h = cup_tensor_size(x, 1), w = cup_tensor_size(x, 2);
    const int64_t channels = cup_tensor_size(x, 3);
    const int64_t apart[] = {n, h, 1, w, 1, channels}, four[] = {n, h, 2, w, 2, channels};
    x = cup_broadcast(c, cup_reshape(c, x, 6, apart), 6, four);
    return cup_reshape(c, x, 4, (int64_t[]){n, 2 * h, 2 * w, channels});
}

static cup_tensor *joined(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    cup_tensor *both[] = {a, b};
    return cup_concat(c, both, 2, 3);
}

/* The noise that the network sees in pictures x, of which `part` says how noisy they are. */
static cup_tensor *noise_in(diffusion *m, cup_tensor *x, cup_tensor *part)
{
    cup_context *c = m->c;
    cup_tensor *time =
        cup_linear_layer_call(&m->time2, cup_linear_layer_call(&m->time1, part));
    cup_tensor *wide = call_block(&m->wide, c, convolved(&m->first, c, x), time);
    cup_tensor *middle = call_block(&m->middle, c, convolved(&m->down1, c, wide), time);
    cup_tensor *h = call_block(&m->small, c, convolved(&m->down2, c, middle), time);
    h = convolved(&m->up1, c, doubled(c, h));
    h = call_block(&m->after1, c, joined(c, h, middle), time);
    h = convolved(&m->up2, c, doubled(c, h));
    h = call_block(&m->after2, c, joined(c, h, wide), time);
    return convolved(&m->last, c, cup_silu(c, cup_groupnorm_layer_call(&m->norm, h)));
}

static void make(diffusion *m, cup_parameters *list)
{
    const cup_linear_layer_options *silu =
        CUP_OPTIONS(cup_linear_layer_options, .activation = CUP_ACTIVATION_SILU);
    const int64_t side = m->side;
    cup_linear_layer_new(&m->time1, list, "time1", TIME, 2 * TIME, silu);
    cup_linear_layer_new(&m->time2, list, "time2", 2 * TIME, 2 * TIME, NULL);
    make_conv(&m->first, list, "first", 1, 32, 3, 1);
    make_block(&m->wide, list, "wide", 32, 32);
    make_conv(&m->down1, list, "down1", 32, 64, 3, 2);
    make_block(&m->middle, list, "middle", 64, 64);
    make_conv(&m->down2, list, "down2", 64, 64, 3, 2);
    make_block(&m->small, list, "small", 64, 64);
    make_conv(&m->up1, list, "up1", 64, 64, 3, 1);
    make_block(&m->after1, list, "after1", 128, 64);
    make_conv(&m->up2, list, "up2", 64, 32, 3, 1);
    make_block(&m->after2, list, "after2", 64, 32);
    cup_groupnorm_layer_new(&m->norm, list, "norm", 32, GROUPS,
                            CUP_OPTIONS(cup_norm_layer_options, .channels_last = true));
    make_conv(&m->last, list, "last", 32, 1, 3, 1);
    m->x = cup_tensor_new(m->c, CUP_F32, 4, (int64_t[]){BATCH, side, side, 1});
    m->kept = cup_tensor_new(m->c, CUP_F32, 5, (int64_t[]){2, BATCH, 1, 1, 1});
    m->part = cup_tensor_new(m->c, CUP_F32, 2, (int64_t[]){BATCH, TIME});
}

/* Batches. */

/* How much is left, as a cosine: Nichol and Dhariwal 2021, "Improved denoising diffusion
 * probabilistic models". */
static void make_schedule(diffusion *m)
{
    for (int t = 0; t <= NOISES; t++) {
        double angle = ((double)t / NOISES + 0.008) / 1.008 * 1.5707963267948966;
        m->left[t] = cos(angle) * cos(angle);
    }
    for (int t = NOISES; t >= 0; t--)
        m->left[t] /= m->left[0];
}

static void write_time(float *part, int t)
{
    for (int i = 0; i < TIME / 2; i++) {
        double angle = t * pow(1000, -2.0 * i / TIME);
        part[2 * i] = (float)sin(angle);
        part[2 * i + 1] = (float)cos(angle);
    }
}

static void draw_spot(uint64_t *state, int side, float *x)
{
    double top = uniform(state) * (side - 1), left = uniform(state) * (side - 1);
    for (int i = 0; i < side * side; i++) {
        double down = i / side - top, right = i % side - left;
        x[i] = (float)(2 * exp(-(down * down + right * right) / 6) - 1);
    }
}

/* Pictures between -1 and 1. */
static cup_status read_pictures(diffusion *m, int64_t step, float *x)
{
    static uint8_t pixels[BATCH * MOST_SIDE * MOST_SIDE];
    static int64_t labels[BATCH];
    uint64_t state = (uint64_t)step * 977 + 5;
    int count = m->side * m->side;
    for (int n = 0; n < BATCH && !m->images; n++)
        draw_spot(&state, m->side, x + n * count);
    if (!m->images)
        return CUP_OK;
    cup_images_batch(m->c, m->images, 1, step * BATCH, BATCH,
                     CUP_OPTIONS(cup_augmentation, .flip = true), pixels, labels);
    for (int i = 0; i < BATCH * count; i++)
        x[i] = pixels[i] / 127.5F - 1;
    return cup_error(m->c);
}

static cup_status write_batch(cup_context *c, int64_t step, void *user)
{
    static float x[BATCH * MOST_SIDE * MOST_SIDE], kept[2][BATCH], part[BATCH][TIME];
    diffusion *m = user;
    uint64_t state = (uint64_t)step * 7919 + 1;
    (void)c;
    for (int i = 0; i < 4; i++)
        uniform(&state);
    for (int n = 0; n < BATCH; n++) {
        int t = 1 + (int)(uniform(&state) * NOISES);
        kept[0][n] = (float)sqrt(m->left[t]);
        kept[1][n] = (float)sqrt(1 - m->left[t]);
        write_time(part[n], t);
    }
    cup_tensor_write(m->kept, kept, sizeof kept);
    cup_tensor_write(m->part, part, sizeof part);
    if (read_pictures(m, step, x) != CUP_OK)
        return cup_error(m->c);
    return cup_tensor_write(m->x, x, sizeof *x * BATCH * (size_t)(m->side * m->side));
}

static cup_tensor *half(diffusion *m, int which)
{
    const int64_t from[] = {which, 0, 0, 0, 0}, size[] = {1, BATCH, 1, 1, 1};
    cup_tensor *t = cup_slice(m->c, m->kept, from, 5, size, 5);
    return cup_reshape(m->c, t, 4, (int64_t[]){BATCH, 1, 1, 1});
}

static cup_tensor *loss(cup_context *c, int64_t batch, void *user)
{
    diffusion *m = user;
    const int64_t shape[] = {BATCH, m->side, m->side, 1};
    (void)batch; /* there is one a step */
    cup_tensor *noise = cup_normal(c, CUP_F32, 4, shape, 0, 1);
    cup_tensor *x = cup_add(c, cup_mul(c, m->x, half(m, 0)), cup_mul(c, noise, half(m, 1)));
    cup_tensor *off = cup_sub(c, noise_in(m, x, m->part), noise);
    return cup_mean(c, cup_mul(c, off, off), NULL, 0, false);
}

/* Of a batch that no step sees. */
static cup_status evaluate(cup_context *c, double *out, void *user)
{
    cup_status status = write_batch(c, INT32_MAX, user);
    *out = cup_tensor_item(loss(c, 0, user));
    return status == CUP_OK ? cup_error(c) : status;
}

/* New pictures: noise, of which the network takes some away again and again. */

static cup_tensor *denoised(diffusion *m, cup_tensor *x, int t)
{
    static float part[SHEET * SHEET][TIME];
    cup_context *c = m->c;
    double alpha = m->left[t] / m->left[t - 1], left = m->left[t], before = m->left[t - 1];
    for (int n = 0; n < SHEET * SHEET; n++)
        write_time(part[n], t);
    cup_tensor *time = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){SHEET * SHEET, TIME}, part);
    cup_tensor *noise = noise_in(m, x, time);
    /* The picture that it believes in, held to what pictures can be. */
    cup_tensor *clean = cup_sub(c, x, cup_scale(c, noise, sqrt(1 - left)));
    clean = cup_clamp(c, cup_scale(c, clean, 1 / sqrt(left)), -1, 1);
    x = cup_add(c, cup_scale(c, clean, sqrt(before) * (1 - alpha) / (1 - left)),
                cup_scale(c, x, sqrt(alpha) * (1 - before) / (1 - left)));
    const int64_t shape[] = {SHEET * SHEET, m->side, m->side, 1};
    double deviation = sqrt((1 - before) / (1 - left) * (1 - alpha));
    return t > 1 ? cup_add(c, x, cup_normal(c, CUP_F32, 4, shape, 0, deviation)) : x;
}

static void write_sheet(diffusion *m, const float *x, const char *folder)
{
    char path[4096], head[40];
    int side = m->side, wide = side * SHEET;
    size_t begin = (size_t)snprintf(head, sizeof head, "P5\n%d %d\n255\n", wide, wide);
    uint8_t *file = calloc(begin + (size_t)(wide * wide), 1);
    if (!file)
        return;
    memcpy(file, head, begin);
    for (int i = 0; i < wide * wide; i++) {
        int n = i / wide / side * SHEET + i % wide / side;
        float value = x[(n * side + i / wide % side) * side + i % side];
        file[begin + (size_t)i] = (uint8_t)(fminf(1, fmaxf(-1, value)) * 127.5F + 127.5F);
    }
    snprintf(path, sizeof path, "%s/samples.pgm", folder);
    if (cup_file_write(m->c, path, file, begin + (size_t)(wide * wide)) == CUP_OK)
        printf("%s: %d new pictures\n", path, SHEET * SHEET);
    free(file);
}

static void sample(diffusion *m, cup_parameters *list, const char *folder)
{
    static float x[SHEET * SHEET * MOST_SIDE * MOST_SIDE];
    cup_context *c = m->c;
    const int64_t shape[] = {SHEET * SHEET, m->side, m->side, 1};
    size_t bytes = sizeof *x * SHEET * SHEET * (size_t)(m->side * m->side);
    cup_grad_recording(c, false);
    cup_parameters_training(list, false);
    cup_tensor_read(cup_normal(c, CUP_F32, 4, shape, 0, 1), x, bytes);
    for (int t = NOISES; t > 0 && cup_error(c) == CUP_OK; t--) {
        cup_scope_open(c);
        cup_tensor_read(denoised(m, cup_tensor_from(c, CUP_F32, 4, shape, x), t), x, bytes);
        cup_scope_close(c);
    }
    write_sheet(m, x, folder);
}

int main(int count, char **words)
{
    const char *folder = count > 2 ? words[2] : NULL;
    const int steps = count > 1 ? STEPS : TOY_STEPS;
    diffusion m = {.c = cup_context_new(CUP_OPTIONS(cup_options, .seed = 1))};
    if (count > 1)
        m.images = cup_images_load(m.c, words[1], CUP_SPLIT_TRAIN,
                                   CUP_OPTIONS(cup_images_options, .height = MOST_SIDE,
                                               .width = MOST_SIDE, .channels = 1));
    m.side = m.images ? MOST_SIDE : TOY_SIDE;
    cup_parameters *list = cup_parameters_new(m.c, CUP_F32);
    make_schedule(&m);
    make(&m, list);
    cup_loop *loop = cup_loop_new(
        list, CUP_OPTIONS(cup_loop_calls, write_batch, loss, evaluate, .user = &m),
        CUP_OPTIONS(cup_loop_options, .folder = folder, .kind = "diffusion",
                    .evaluate_every = 500, .save_every = 500,
                    .schedule = {.high = 1e-3, .low = 1e-5, .warmup = steps / 20, .steps = steps},
                    .optimizer = {.clip = 1}));
    int failed = run_loop(m.c, loop, steps, count - 1, words + 1);
    if (!failed && folder)
        sample(&m, list, folder);
    failed |= cup_error(m.c) != CUP_OK;
    cup_parameters_free(list);
    cup_images_free(m.images);
    cup_context_free(m.c);
    return failed;
}

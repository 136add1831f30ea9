/* A run that trains a network for images: what a batch and an evaluation are, for the loop that
 * does the rest. */
#include "train/classifier.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "base/philox.h"
#include "cupola/functions.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "tensor/tensor.h"

#define MIXUP_KEY UINT32_C(0x1a6e0002)
#define MOST_ASKED 1024 /* images that are computed at once where nobody says how many */

/* Beta(a, a) with a up to 1, of uniform numbers, as Jöhnk 1964 has it. */
static double draw_part(uint64_t seed, uint64_t batch, double a)
{
    for (uint32_t i = 0; i < 10000; i++) {
        cup__philox_words w =
            cup__philox(seed, (uint32_t)batch, (uint32_t)(batch >> 32), MIXUP_KEY, i);
        double x = pow(((double)w.at[0] + 0.5) / 4294967296.0, 1 / a);
        double y = pow(((double)w.at[1] + 0.5) / 4294967296.0, 1 / a);
        if (x + y > 0 && x + y <= 1)
            return x / (x + y);
    }
    return 1;
}

/* Each image is mixed with the one as far from the end of the batch, which another process may
 * have as its own: then the second part of what is made are those. */
static cup_status write_mixture(cup_classifier *m, int64_t step, const int64_t *labels)
{
    int64_t rows = m->share.rows, all = m->share.parts * rows, batches = m->share.batches;
    for (int64_t k = 0; k < batches; k++) {
        uint64_t batch = (uint64_t)(step * batches + k);
        m->host_part[k] = (float)draw_part(m->how.seed, batch, m->how.mixup);
        for (int64_t i = 0; i < rows; i++)
            m->host_others[k * rows + i] = labels[(k + 1) * all - 1 - i];
    }
    CUP_TRY(cup_tensor_write(m->others, m->host_others, (size_t)(batches * rows) * sizeof *labels));
    return cup_tensor_write(m->part, m->host_part, (size_t)batches * sizeof *m->host_part);
}

static size_t bytes_of(const cup_classifier *m, int64_t images)
{
    return (size_t)(images * m->sizes.height * m->sizes.width * m->sizes.channels);
}

static cup_status write_batch(cup_context *c, int64_t step, void *user)
{
    cup_classifier *m = user;
    (void)c;
    int64_t rows = m->share.batches * m->share.parts * m->share.rows;
    const int64_t *labels;
    CUP_TRY(cup__images_ahead_put(m->ahead, step, m->pixels, &labels));
    CUP_TRY(cup_tensor_write(m->labels, labels, (size_t)rows * sizeof *labels));
    return m->how.mixup > 0 ? write_mixture(m, step, labels) : CUP_OK;
}

/* Bytes as the network takes them: with mean 0 and deviation 1 over the images for training. */
static cup_tensor *shown(cup_classifier *m, cup_tensor *pixels)
{
    return cup_expr_call(m->input, (cup_tensor *[]){pixels, m->factor, m->shift}, NULL, NULL);
}

static cup_tensor *scores(cup_classifier *m, cup_tensor *x)
{
    if (cup_tensor_dtype(x) != m->how.dtype)
        x = cup_cast(m->c, x, m->how.dtype);
    cup_recompute_policy was = cup_recompute_results(m->c, m->how.recompute);
    x = cup_network_call(m->network, x);
    cup_recompute_results(m->c, was);
    return x;
}

static cup_tensor *loss_of(cup_classifier *m, cup_tensor *scored, cup_tensor *labels)
{
    return cup_cross_entropy(m->c, scored, labels, -1,
                             CUP_OPTIONS(cup_cross_entropy_options,
                                         .label_smoothing = m->how.label_smoothing));
}

/* a + (b - a) part, with `part` on the device. */
static cup_tensor *between(cup_context *c, cup_tensor *a, cup_tensor *b, cup_tensor *part)
{
    return cup_add(c, a, cup_mul(c, cup_sub(c, b, a), part));
}

/* So many of what stands along the first dimension, from one on. */
static cup_tensor *some_of(cup_context *c, cup_tensor *x, int64_t first, int64_t count)
{
    int ndim = cup_tensor_ndim(x);
    int64_t from[CUP_MAX_DIMS] = {first}, size[CUP_MAX_DIMS] = {count};
    if (count == cup_tensor_size(x, 0))
        return x;
    for (int i = 1; i < ndim; i++)
        size[i] = cup_tensor_size(x, i);
    return cup_slice(c, x, from, ndim, size, ndim);
}

/* Of the batches of a step each process has a share, with one loss for each batch. */
static cup_tensor *loss_of_batch(cup_context *c, int64_t batch, void *user)
{
    cup_classifier *m = user;
    int64_t rows = m->share.rows, all = m->share.parts * rows, k = batch % m->share.batches;
    cup_tensor *x = shown(m, some_of(c, m->pixels, k * all, all)), *y = x;
    cup_tensor *labels = some_of(c, m->labels, k * all, rows);
    if (m->how.mixup <= 0)
        return loss_of(m, scores(m, x), labels);
    if (m->share.parts > 1) {
        x = some_of(c, x, 0, rows);
        y = some_of(c, y, rows, rows);
    }
    cup_tensor *part = some_of(c, m->part, k, 1);
    x = between(c, cup_flip(c, y, (int64_t[]){0}, 1), x, part);
    cup_tensor *scored = scores(m, x);
    cup_tensor *own = loss_of(m, scored, labels);
    cup_tensor *other = loss_of(m, scored, some_of(c, m->others, k * rows, rows));
    return between(c, other, own, cup_reshape(c, part, 0, NULL));
}

/* To the sums of earlier ones, which may be NULL, the loss of some of the images kept, times their
 * number, and how many were told right. */
static cup_tensor *judge(cup_classifier *m, int64_t first, int64_t rows, cup_tensor *sums)
{
    cup_context *c = m->c;
    const cup_images *kept = m->kept;
    const int64_t shape[] = {rows, m->sizes.height, m->sizes.width, m->sizes.channels};
    const uint8_t *from = cup_images_pixels(kept);
    if (!from)
        cup_images_read(c, kept, first, rows, m->host_kept);
    cup_scope_open(c);
    cup_tensor *pixels =
        cup_tensor_from(c, CUP_U8, 4, shape, from ? from + bytes_of(m, first) : m->host_kept);
    cup_tensor *labels = cup_tensor_from(c, CUP_I64, 1, &rows, cup_images_labels(kept) + first);
    cup_tensor *scored = cup_cast(c, scores(m, shown(m, pixels)), CUP_F32);
    cup_tensor *right = cup_equal(c, cup_argmax(c, scored, (int64_t[]){1}, 1, false), labels);
    cup_tensor *pair[] = {
        cup_scale(c, cup_cross_entropy(c, scored, labels, -1, NULL), (double)rows),
        cup_sum(c, cup_cast(c, right, CUP_F32), NULL, 0, false)};
    cup_tensor *both = cup_stack(c, pair, 2, 0);
    return cup_scope_return(c, sums ? cup_add(c, sums, both) : both);
}

static cup_status evaluate(cup_context *c, double *loss, void *user)
{
    cup_classifier *m = user;
    int64_t count = cup_images_count(m->kept), rows = m->share.rows, first, end;
    cup_tensor *sums = NULL;
    float host[2] = {0, 0};
    cup__evaluated_share(m->how.comm, 1, count, &first, &end);
    for (; first < end && c->error.status == CUP_OK; first += rows)
        sums = judge(m, first, end - first < rows ? end - first : rows, sums);
    if (!sums)
        sums = cup_full(c, CUP_F32, 1, (int64_t[]){2}, 0);
    CUP_TRY(c->error.status);
    if (m->how.comm)
        CUP_TRY(cup_comm_all_reduce(m->how.comm, &sums, 1, CUP_COMBINE_SUM));
    CUP_TRY(cup_tensor_read(sums, host, sizeof host));
    *loss = host[0] / (double)count;
    m->accuracy = host[1] / (double)count;
    return CUP_OK;
}

/* An evaluation has batches of two sizes at most, and adds up what they give. */
static void rehearse(cup_context *c, void *user)
{
    cup_classifier *m = user;
    int64_t rows = m->share.rows, begin, end;
    cup_tensor *sums = NULL;
    (void)c;
    cup__evaluated_share(m->how.comm, 1, cup_images_count(m->kept), &begin, &end);
    for (int i = 0; i < 2 && end - begin >= rows; i++)
        sums = judge(m, 0, rows, sums);
    if ((end - begin) % rows)
        judge(m, 0, (end - begin) % rows, sums);
}

/* Making. */

/* What is mixed is mixed in f32. Products are rounded by themselves, so that every device makes the
 * same numbers of the same bytes. */
static cup_status make_input(cup_classifier *m)
{
    char text[64];
    cup_dtype dtype = m->how.mixup > 0 ? CUP_F32 : m->how.dtype;
    snprintf(text, sizeof text, "%s(f32(pixels * factor) + shift)", cup_dtype_name(dtype));
    m->input = cup_expr_new(m->c, "pixels factor shift", NULL, text);
    return m->c->error.status;
}

cup_status cup__classifier_make(cup_classifier *m)
{
    cup_context *c = m->c;
    m->list = cup_parameters_new(c, m->how.dtype);
    cup_parameters_together(m->list, m->how.comm);
    m->network = m->list ? cup_network_new(c, m->list, m->how.network, &m->sizes) : NULL;
    for (int i = 0; i < 2 && m->network; i++) {
        cup_tensor *made = cup_parameter_new(
            m->list, i ? "input.shift" : "input.factor", 1, &m->sizes.channels,
            CUP_OPTIONS(cup_parameter_options, .initializer = CUP_INITIALIZER_ZEROS,
                        .buffer = true, .dtype = "f32"));
        *(i ? &m->shift : &m->factor) = made;
    }
    return c->error.status == CUP_OK ? make_input(m) : c->error.status;
}

cup_status cup__classifier_name(cup_classifier *m)
{
    if (m->sizes.classes < 1)
        return cup__fail(&m->c->error, CUP_FORMAT, "training: there are no classes to tell apart");
    m->classes = cup__calloc((size_t)m->sizes.classes, sizeof *m->classes);
    return m->classes ? CUP_OK : cup__no_memory(&m->c->error, "the names of classes");
}

static cup_status take_names(cup_classifier *m)
{
    CUP_TRY(cup__classifier_name(m));
    for (int64_t i = 0; i < m->sizes.classes; i++) {
        m->classes[i] = cup__strdup(cup_images_class(m->train, i));
        if (!m->classes[i])
            return cup__no_memory(&m->c->error, "the names of classes");
    }
    return CUP_OK;
}

static cup_status set_input(cup_classifier *m)
{
    double mean[3], deviation[3];
    float factor[3], shift[3];
    CUP_TRY(cup_images_statistics(m->c, m->train, mean, deviation));
    for (int64_t k = 0; k < m->sizes.channels; k++) {
        factor[k] = (float)(1 / (255 * deviation[k]));
        shift[k] = (float)(-mean[k] / deviation[k]);
    }
    size_t bytes = (size_t)m->sizes.channels * sizeof *factor;
    CUP_TRY(cup_tensor_write(m->factor, factor, bytes));
    return cup_tensor_write(m->shift, shift, bytes);
}

/* This process's images of each batch, and those that they are mixed with. */
static cup_status take_share(cup_classifier *m)
{
    int64_t batch = m->how.batch, count = cup_comm_count(m->how.comm);
    int64_t rank = cup_comm_rank(m->how.comm), rows = batch / count;
    m->share = (cup__images_share){.parts = count > 1 && m->how.mixup > 0 ? 2 : 1,
                                   .rows = rows,
                                   .batches = m->how.accumulate};
    m->share.from[0] = rank * rows;
    m->share.from[1] = batch - (rank + 1) * rows;
    if (batch % count == 0)
        return CUP_OK;
    return cup__fail(&m->c->error, CUP_ARGUMENT,
                     "training: a batch of %lld images cannot be shared equally by %lld processes; "
                     "make it a multiple of them",
                     (long long)batch, (long long)count);
}

static cup_status make_batch(cup_classifier *m)
{
    cup_context *c = m->c;
    int64_t rows = m->share.rows, batches = m->share.batches, mixed = batches * rows;
    int64_t all = m->share.parts * mixed;
    const int64_t shape[] = {all, m->sizes.height, m->sizes.width, m->sizes.channels};
    m->ahead = cup__images_ahead_new(c, m->train, &m->how, &m->share);
    CUP_TRY(c->error.status);
    m->host_others = cup__calloc((size_t)mixed, sizeof *m->host_others);
    m->host_part = cup__calloc((size_t)batches, sizeof *m->host_part);
    if (m->kept && !cup_images_pixels(m->kept))
        m->host_kept = cup__malloc(bytes_of(m, rows));
    if (!m->host_others || !m->host_part ||
        (m->kept && !cup_images_pixels(m->kept) && !m->host_kept))
        return cup__no_memory(&c->error, "a batch of images");
    m->pixels = cup_keep(cup_tensor_new(c, CUP_U8, 4, shape));
    m->labels = cup_keep(cup_tensor_new(c, CUP_I64, 1, &all));
    m->others = cup_keep(cup_tensor_new(c, CUP_I64, 1, &mixed));
    m->part = cup_keep(cup_tensor_new(c, CUP_F32, 1, &batches));
    return c->error.status;
}

static cup_status check_kept(cup_classifier *m)
{
    const cup_images *a = m->train, *b = m->kept;
    cup__error *error = &m->c->error;
    if (!b)
        return CUP_OK;
    if (cup_images_height(a) != cup_images_height(b) ||
        cup_images_width(a) != cup_images_width(b) ||
        cup_images_channels(a) != cup_images_channels(b))
        return cup__fail(error, CUP_SHAPE,
                         "training: the images kept apart have another size than those for "
                         "training; give the height, width and channels of both");
    for (int64_t i = 0; i < cup_images_count(b); i++) {
        int64_t label = cup_images_labels(b)[i];
        const char *name = cup_images_class(b, label), *other = cup_images_class(a, label);
        if (!name || !other || strcmp(name, other) != 0)
            return cup__fail(error, CUP_ARGUMENT,
                             "training: %s is of a class that the images for training have not",
                             cup_images_path(b, i));
    }
    return CUP_OK;
}

static cup_status make_loop(cup_classifier *m, const char *folder)
{
    cup_context *c = m->c;
    const cup_classification *how = &m->how;
    const cup_loop_calls calls = {.size = sizeof calls,
                                  .batch = write_batch,
                                  .loss = loss_of_batch,
                                  .evaluate = m->kept ? evaluate : NULL,
                                  .rehearse = m->kept ? rehearse : NULL,
                                  .user = m};
    const cup_loop_options options = {.schedule = {.high = how->rate,
                                                   .low = how->rate_end,
                                                   .warmup = how->warmup,
                                                   .steps = how->steps,
                                                   .decline = how->decline,
                                                   .decline_steps = how->decline_steps},
                                      .optimizer = how->optimizer,
                                      .accumulate = how->accumulate * cup_comm_count(how->comm),
                                      .comm = how->comm,
                                      .evaluate_every = how->evaluate_every,
                                      .save_every = how->save_every,
                                      .check_every = how->check_every,
                                      .background = how->background,
                                      .folder = folder,
                                      .kind = "classifier",
                                      .non_finite = how->non_finite,
                                      .loss_scale = how->loss_scale,
                                      .loss_scale_steps = how->loss_scale_steps};
    m->loop = cup__loop_begin(c, &calls, &options, &cup__classifier_checkpoints,
                              &(cup__loop_sharers){0});
    return c->error.status;
}

static cup_status make(cup_classifier *m, const char *folder)
{
    cup_context *c = m->c;
    CUP_TRY(cup__classification_check(c, &m->how));
    CUP_TRY(take_share(m));
    CUP_TRY(check_kept(m));
    CUP_TRY(take_names(m));
    CUP_TRY(make_loop(m, folder));
    CUP_TRY(cup_precision(c, m->how.precision));
    cup_seed(c, m->how.seed);
    CUP_TRY(cup__classifier_make(m));
    CUP_TRY(m->how.from ? cup__classifier_begin(m) : set_input(m));
    CUP_TRY(cup__loop_train(m->loop, m->list));
    return make_batch(m);
}

cup_classifier *cup_classifier_new(cup_context *c, const cup_images *train, const cup_images *kept,
                                   const char *folder, const cup_classification *how)
{
    if (!c || c->error.status != CUP_OK)
        return NULL;
    if (!train || !how) {
        cup__fail(&c->error, CUP_ARGUMENT,
                  "training: the images or the description of the run are NULL");
        return NULL;
    }
    cup_classifier *m = cup__calloc(1, sizeof *m);
    if (!m) {
        cup__no_memory(&c->error, "training");
        return NULL;
    }
    m->c = c;
    m->train = train;
    m->kept = kept;
    m->accuracy = NAN;
    m->sizes = (cup_network_sizes){sizeof m->sizes, cup_images_height(train),
                                   cup_images_width(train), cup_images_channels(train),
                                   cup_images_classes(train)};
    cup_scope_open(c);
    cup_status status =
        cup__options_take(&c->error, "cup_classifier_new", &m->how, sizeof m->how, how);
    if (status == CUP_OK)
        status = make(m, folder);
    cup_scope_return(c, NULL);
    if (status == CUP_OK)
        return m;
    cup_classifier_free(m);
    return NULL;
}

void cup_classifier_free(cup_classifier *m)
{
    if (!m)
        return;
    cup_loop_free(m->loop);
    cup_expr_free(m->input);
    cup_tensor_free(m->pixels);
    cup_tensor_free(m->labels);
    cup_tensor_free(m->others);
    cup_tensor_free(m->part);
    cup_network_free(m->network);
    cup_parameters_free(m->list);
    for (int64_t i = 0; m->classes && i < m->sizes.classes; i++)
        cup__free(m->classes[i]);
    cup__free(m->classes);
    cup__images_ahead_free(m->ahead);
    cup__free(m->host_others);
    cup__free(m->host_part);
    cup__free(m->host_kept);
    cup__free(m);
}

/* Asking. */

static cup_status ask_some(cup_classifier *m, const uint8_t *pixels, int64_t rows, float *to)
{
    cup_context *c = m->c;
    const int64_t shape[] = {rows, m->sizes.height, m->sizes.width, m->sizes.channels};
    cup_tensor *scored = scores(m, shown(m, cup_tensor_from(c, CUP_U8, 4, shape, pixels)));
    cup_tensor *p = cup_softmax(c, cup_cast(c, scored, CUP_F32), 1);
    return cup_tensor_read(p, to, (size_t)(rows * m->sizes.classes) * sizeof *to);
}

cup_status cup_classifier_ask(cup_classifier *m, const uint8_t *pixels, int64_t count,
                              float *probabilities)
{
    if (!m)
        return CUP_ARGUMENT;
    cup_context *c = m->c;
    CUP_TRY(c->error.status);
    if (!pixels || !probabilities || count < 0)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "cup_classifier_ask: the images or the place for results are NULL");
    int64_t bytes = m->sizes.height * m->sizes.width * m->sizes.channels;
    bool recording = cup_grad_recording(c, false);
    bool training = cup_parameters_training(m->list, false);
    cup_status status = CUP_OK;
    for (int64_t first = 0; first < count && status == CUP_OK; first += MOST_ASKED) {
        int64_t rows = count - first < MOST_ASKED ? count - first : MOST_ASKED;
        cup_scope_open(c);
        status = ask_some(m, pixels + first * bytes, rows,
                          probabilities + first * m->sizes.classes);
        cup_scope_return(c, NULL);
    }
    cup_parameters_training(m->list, training);
    cup_grad_recording(c, recording);
    return status;
}

cup_loop *cup_classifier_loop(cup_classifier *m)
{
    return m ? m->loop : NULL;
}

double cup_classifier_accuracy(const cup_classifier *m)
{
    return m ? m->accuracy : NAN;
}

const char *cup_classifier_from_text(const cup_classifier *m)
{
    return m && *m->taken ? m->taken : NULL;
}

int64_t cup_classifier_height(const cup_classifier *m)
{
    return m ? m->sizes.height : 0;
}

int64_t cup_classifier_width(const cup_classifier *m)
{
    return m ? m->sizes.width : 0;
}

int64_t cup_classifier_channels(const cup_classifier *m)
{
    return m ? m->sizes.channels : 0;
}

int64_t cup_classifier_classes(const cup_classifier *m)
{
    return m ? m->sizes.classes : 0;
}

const char *cup_classifier_class(const cup_classifier *m, int64_t index)
{
    return m && index >= 0 && index < m->sizes.classes ? m->classes[index] : NULL;
}

int64_t cup_classifier_count(const cup_classifier *m)
{
    return m ? cup_parameters_count(m->list, true) : 0;
}

/* Connectionist temporal classification. States are the targets with blanks before, between and
 * behind; a step stays in a state, goes to the next, or from a target to the next one of another
 * class. Here in double, on a GPU in the dtype of the log-probabilities. */
#include <math.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "cuda/cuda.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "ops/loss/ctc_call.cuh"

#define SHORT (1 << 28) /* targets of a sequence */

/* A call: its tensors are in their places in the forward call and its gradient. */
typedef struct ctc {
    cup__call *call;
    const cup_tensor *log_probs, *targets, *input_lengths, *target_lengths;
    int64_t steps, batch, classes, most;
    int blank;
    bool failed;
} ctc;

static ctc ctc_of(cup__call *call)
{
    cup_tensor **in = call->in;
    return (ctc){call, in[0], in[1], in[2], in[3], in[0]->shape[0], in[0]->shape[1],
                 in[0]->shape[2], in[1]->shape[1],
                 ((const cup__ctc_loss_attributes *)call->attributes)->blank, false};
}

static cup_status check(cup__call *call)
{
    CUP_TRY(cup__need_ndim(call, 0, 3, 3));
    CUP_TRY(cup__need_ndim(call, 1, 2, 2));
    for (int i = 1; i < 4; i++)
        CUP_TRY(cup__need_index(call, i));
    ctc k = ctc_of(call);
    if (k.log_probs->dtype != CUP_F32 && k.log_probs->dtype != CUP_F64)
        return cup__call_fail(call, CUP_DTYPE, "log_probs must be f32 or f64; convert them with "
                                               "cup_cast");
    if (k.targets->shape[0] != k.batch || k.most > SHORT)
        return cup__call_fail(call, CUP_SHAPE, "targets must be [N,S] for log_probs [T,N,C], with "
                                               "an S of up to 2^28");
    for (int i = 2; i < 4; i++)
        if (call->in[i]->ndim != 1 || call->in[i]->shape[0] != k.batch)
            return cup__call_fail(call, CUP_SHAPE, "there must be a length for each of the N "
                                                   "sequences");
    if (k.blank < 0 || k.blank >= k.classes)
        return cup__call_fail(call, CUP_ARGUMENT, "the blank is %d; it must be one of the %lld "
                                                  "classes",
                              k.blank, (long long)k.classes);
    return CUP_OK;
}

static cup_status infer(cup__call *call)
{
    CUP_TRY(check(call));
    ctc k = ctc_of(call);
    cup_dtype dtype = k.log_probs->dtype;
    call->result[0] = (cup__shape){dtype, 1, {k.batch}};
    call->result[1] = (cup__shape){dtype, 3, {k.batch, k.steps, 2 * k.most + 1}};
    return CUP_OK;
}

static cup_status infer_grad(cup__call *call)
{
    CUP_TRY(check(call));
    ctc k = ctc_of(call);
    const cup__shape want[] = {{CUP_F32, 3, {k.batch, k.steps, 2 * k.most + 1}},
                               {CUP_F32, 1, {k.batch}}};
    for (int i = 4; i < 7; i++) {
        cup__shape own = cup__shape_of(call->in[i]);
        CUP_TRY(cup__need_same_dtype(call, 0, i));
        if (!cup__shape_equal(&own, &want[i > 4]))
            return cup__call_fail(call, CUP_SHAPE, "input %d does not belong to the others", i + 1);
    }
    call->result[0] = cup__shape_of(k.log_probs);
    return CUP_OK;
}

static int64_t whole(const cup_tensor *t, int64_t i)
{
    return (int64_t)cup__load(t, cup__offset_of(t, i));
}

/* Fails with the sequence whose length or target is none. */
static cup_status check_places(const ctc *k)
{
    for (int64_t n = 0; n < k->batch; n++) {
        int64_t steps = whole(k->input_lengths, n), length = whole(k->target_lengths, n);
        if (steps < 0 || steps > k->steps || length < 0 || length > k->most)
            return cup__call_fail(k->call, CUP_ARGUMENT,
                                  "sequence %lld is said to have %lld steps and %lld targets; "
                                  "there are %lld and %lld",
                                  (long long)n, (long long)steps, (long long)length,
                                  (long long)k->steps, (long long)k->most);
        for (int64_t i = 0; i < length; i++) {
            int64_t target = whole(k->targets, n * k->most + i);
            if (target < 0 || target >= k->classes)
                return cup__call_fail(k->call, CUP_ARGUMENT,
                                      "target %lld of sequence %lld is %lld; there are %lld "
                                      "classes",
                                      (long long)i, (long long)n, (long long)target,
                                      (long long)k->classes);
        }
    }
    return CUP_OK;
}

/* One sequence: the classes of its states, and a row of alpha or beta for each step. */
typedef struct sequence {
    const ctc *k;
    int64_t n, steps, states, width;
    const int64_t *class;
} sequence;

static double log_prob(const sequence *s, int64_t t, int64_t state)
{
    const cup_tensor *p = s->k->log_probs;
    return cup__load(p, t * p->stride[0] + s->n * p->stride[1] + s->class[state] * p->stride[2]);
}

static bool skips(const sequence *s, int64_t state)
{
    return state % 2 && state > 1 && s->class[state] != s->class[state - 2];
}

static double joined(double a, double b, double c)
{
    double most = fmax(a, fmax(b, c));
    if (!(most > -INFINITY))
        return a + b + c; /* nothing, or NaN */
    return most + log(exp(a - most) + exp(b - most) + exp(c - most));
}

/* What came into each state of step t, without its own log-probability. */
static double came(const sequence *s, const double *before, int64_t t, int64_t i)
{
    if (t == 0)
        return i < 2 ? 0 : -INFINITY;
    return joined(before[i], i ? before[i - 1] : -INFINITY,
                  skips(s, i) ? before[i - 2] : -INFINITY);
}

/* What follows each state of step t. */
static double follows(const sequence *s, const double *then, int64_t t, int64_t i)
{
    if (t + 1 == s->steps)
        return i + 2 >= s->states ? 0 : -INFINITY;
    return joined(then[i], i + 1 < s->states ? then[i + 1] : -INFINITY,
                  i + 2 < s->states && skips(s, i + 2) ? then[i + 2] : -INFINITY);
}

static void forward(const sequence *s, double *rows)
{
    const cup__call *call = s->k->call;
    cup_tensor *loss = call->out[0], *alpha = call->out_count > 1 ? call->out[1] : NULL;
    for (int64_t t = 0; t < s->k->steps; t++) {
        double *now = rows + t % 2 * s->width, *before = rows + (t + 1) % 2 * s->width;
        for (int64_t i = 0; i < s->width; i++) {
            bool there = t < s->steps && i < s->states;
            if (t < s->steps)
                now[i] = there ? came(s, before, t, i) + log_prob(s, t, i) : -INFINITY;
            if (alpha)
                cup__store(alpha, (s->n * s->k->steps + t) * s->width + i,
                           there ? now[i] : -INFINITY);
        }
    }
    const double *last = rows + (s->steps + 1) % 2 * s->width + s->states - 1;
    double sum = s->steps == 0 ? (s->states > 1 ? -INFINITY : 0)
                               : joined(last[0], s->states > 1 ? last[-1] : -INFINITY, -INFINITY);
    cup__store(loss, s->n, -sum);
}

/* The slopes of all classes stand in `sums` for a step. */
static void backward(const sequence *s, double *rows, double *sums)
{
    cup_tensor *const *in = s->k->call->in, *out = s->k->call->out[0];
    const cup_tensor *alpha = in[4];
    int64_t classes = s->k->classes;
    double loss = cup__load(in[5], cup__offset_of(in[5], s->n));
    double dloss = cup__load(in[6], cup__offset_of(in[6], s->n));
    for (int64_t t = s->k->steps; t-- > 0;) {
        double *now = rows + t % 2 * s->width, *then = rows + (t + 1) % 2 * s->width;
        for (int64_t i = 0; i < classes; i++)
            sums[i] = isnan(loss) ? loss : 0;
        for (int64_t i = 0; i < s->states && t < s->steps && loss < INFINITY; i++) {
            double from = follows(s, then, t, i);
            now[i] = from + log_prob(s, t, i);
            double a = cup__load(alpha, cup__offset_of(alpha, (s->n * s->k->steps + t) * s->width +
                                                                  i));
            sums[s->class[i]] -= a + from > -INFINITY ? dloss * exp(a + from + loss) : 0;
        }
        for (int64_t i = 0; i < classes; i++)
            cup__store(out, (t * s->k->batch + s->n) * classes + i, sums[i]);
    }
}

static void run_part(int64_t begin, int64_t end, void *user)
{
    ctc *k = user;
    int64_t width = 2 * k->most + 1;
    size_t words = (size_t)(3 * width + k->classes);
    double *rows = cup__malloc(words * sizeof *rows);
    if (!rows) {
        __atomic_store_n(&k->failed, true, __ATOMIC_RELAXED);
        return;
    }
    int64_t *class = (int64_t *)(void *)(rows + 2 * width);
    for (int64_t n = begin; n < end; n++) {
        sequence s = {k, n, whole(k->input_lengths, n), 2 * whole(k->target_lengths, n) + 1, width,
                      class};
        for (int64_t i = 0; i < s.states; i++)
            class[i] = i % 2 ? whole(k->targets, n * k->most + i / 2) : k->blank;
        if (k->call->in_count > 4)
            backward(&s, rows, rows + 3 * width);
        else
            forward(&s, rows);
    }
    cup__free(rows);
}

static cup_status each(cup__call *call, bool parallel)
{
    ctc k = ctc_of(call);
    CUP_TRY(check_places(&k));
    if (parallel)
        cup__parallel_for(k.batch, 1, run_part, &k);
    else
        run_part(0, k.batch, &k);
    return k.failed ? cup__call_fail(call, CUP_MEMORY, "out of host memory") : CUP_OK;
}

static cup_status specification(cup__call *call)
{
    return each(call, false);
}

static cup_status run(cup__call *call)
{
    return each(call, true);
}

static cup_status launch(cup__call *call, const char *entry, ctc_call *c)
{
    ctc k = ctc_of(call);
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    c->log_probs = k.log_probs->data;
    c->targets = k.targets->data;
    c->input_lengths = k.input_lengths->data;
    c->target_lengths = k.target_lengths->data;
    c->steps = k.steps;
    c->batch = k.batch;
    c->classes = k.classes;
    c->most = k.most;
    c->blank = k.blank;
    cup__knob knobs[] = {{"CUP_T", k.log_probs->dtype},
                         {"TARGET", k.targets->dtype},
                         {"INPUT_LENGTH", k.input_lengths->dtype},
                         {"TARGET_LENGTH", k.target_lengths->dtype}};
    cup__grid grid = {.x = k.batch, .threads = CTC_THREADS};
    return cup__launch(gpu, cup__kernel_get(gpu, "ctc_loss.cu", entry, knobs, 4), grid,
                       CUP__ARG(*c));
}

static cup_tensor *make_work(const ctc *k)
{
    cup__shape rows = {CUP_F64, 3, {k->batch, 3, 2 * k->most + 1}};
    return cup__tensor_make(k->call->c, &rows, "ctc_loss");
}

static cup_status run_cuda(cup__call *call)
{
    ctc k = ctc_of(call);
    cup__shape shape = {k.log_probs->dtype, 3, {k.batch, k.steps, 2 * k.most + 1}};
    cup_tensor *alpha = call->out_count > 1 ? call->out[1]
                                            : cup__tensor_make(call->c, &shape, "ctc_loss");
    cup_tensor *work = alpha ? make_work(&k) : NULL;
    cup_status status = call->c->error.status;
    if (work) {
        ctc_call c = {.alpha = alpha->data, .loss = call->out[0]->data, .work = work->data};
        status = launch(call, "ctc_fwd", &c);
    }
    cup_tensor_free(work);
    if (call->out_count < 2)
        cup_tensor_free(alpha);
    return status;
}

static cup_status run_grad_cuda(cup__call *call)
{
    ctc k = ctc_of(call);
    cup__shape links = {CUP_I32, 2, {k.batch, 2 * k.most}};
    cup_tensor *work = make_work(&k);
    cup_tensor *next = cup__tensor_make(call->c, &links, "ctc_loss");
    cup_status status = call->c->error.status;
    if (work && next) {
        ctc_call c = {.alpha = call->in[4]->data,
                      .loss = call->in[5]->data,
                      .dloss = call->in[6]->data,
                      .dlog_probs = call->out[0]->data,
                      .work = work->data,
                      .next = next->data};
        status = launch(call, "ctc_bwd", &c);
    }
    cup_tensor_free(work);
    cup_tensor_free(next);
    return status;
}

static cup_status gradient(cup__grad *g)
{
    int blank = ((const cup__ctc_loss_attributes *)g->attributes)->blank;
    g->d_in[0] = cup__ctc_loss_grad(g->c, g->in[0], g->in[1], g->in[2], g->in[3], g->out[1],
                                    g->out[0], g->d_out[0], blank);
    return g->c->error.status;
}

static int64_t places(cup_tensor *const *in, int i, const void *attributes)
{
    (void)attributes;
    if (i == 1)
        return in[0]->shape[2];
    return i == 2 ? in[0]->shape[0] + 1 : i == 3 ? in[1]->shape[1] + 1 : 0;
}

#define BLANK(blank) &(const cup__ctc_loss_attributes){blank}
static const cup__sample samples[] = {
    {"1x1x1 1x1 1 1", BLANK(0)},       {"5x2x3 2x2 2 2", BLANK(0)}, {"12x3x5 3x4 3 3", BLANK(4)},
    {"40x4x7 4x9 4 4", BLANK(2)},      {"4x0x3 0x2 0 0", BLANK(0)}, {"0x2x3 2x2 2 2", BLANK(0)},
    {"150x2x40 2x70 2 2", BLANK(0)},   {"9x2x4 2x0 2 2", BLANK(1)}, {"58x5x1 5x2 5 5", BLANK(0)},
    {NULL, NULL}};
static const cup__sample bench[] = {{"512x64x128 64x96 64 64", BLANK(0)}, {NULL, NULL}};

static const cup__impl impls[] = {
    {.name = "blocks", .place = CUP__CUDA, CUP__THRESHOLDS(64, 128), .run = run_cuda},
    {.name = "threads", .place = CUP__CPU, .strided = true, .run = run},
    {0}};
static const cup__impl grad_impls[] = {
    {.name = "blocks", .place = CUP__CUDA, CUP__THRESHOLDS(64, 128), .run = run_grad_cuda},
    {.name = "threads", .place = CUP__CPU, .strided = true, .run = run},
    {0}};

#define REALS (CUP__DTYPE(F32) | CUP__DTYPE(F64))

const cup__op cup__op_ctc_loss = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_IN(2) | CUP__SAVE_IN(3) |
             CUP__SAVE_OUT(0) | CUP__SAVE_OUT(1),
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .domain = {{-4, 0}, {0, 2}, {0, 1000}, {0, 1000}},
    .in_dtypes = {REALS, CUP__DTYPES_INDEX, CUP__DTYPES_INDEX, CUP__DTYPES_INDEX},
    .indices = places,
    .tolerance = 64, /* sums over all steps */
};

static const cup__sample grad_samples[] = {
    {"5x2x3 2x2 2 2 2x5x5 2 2", BLANK(0)}, {"40x4x7 4x9 4 4 4x40x19 4 4", BLANK(2)}, {NULL, NULL}};

const cup__op cup__op_ctc_loss_grad = {
    .infer = infer_grad,
    .specification = specification,
    .impls = grad_impls,
    .samples = grad_samples,
    .bench = grad_samples,
    .domain = {{-4, 0}, {0, 2}, {0, 1000}, {0, 1000}, {-6, -4}, {0, 1}, {-1, 1}},
    .in_dtypes = {REALS, CUP__DTYPES_INDEX, CUP__DTYPES_INDEX, CUP__DTYPES_INDEX, REALS, REALS,
                  REALS},
    .indices = places,
    .tolerance = 64,
};

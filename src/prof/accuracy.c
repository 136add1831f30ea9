#include "prof/accuracy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "prof/compare.h"
#include "prof/cost.h"
#include "prof/exact.h"

#define MOST_INPUTS 1024
#define MOST_NUMBERS 256
#define MOST_TEXT 1024
#define MOST_ELEMENTS (1 << 23)
#define MOST_WORK 4e7 /* operations and elements, a few tenths of a second */
#define MOST_DRAWN 5e7 /* elements of inputs when the rows of the whole shape are compared */
#define SMALL 64      /* sizes are not cut below this while others are larger */
#define BLOCK 128     /* of which 8-bit matrices may have scales */
#define SEED 20261121u

struct cup__accuracy {
    cup__exact *exact; /* the call itself in double; then nothing else is used */
    cup_context *c;
    const cup__row *row;
    cup__sample sample; /* points to `shapes` */
    char shapes[MOST_TEXT];
    cup_dtype dtype;
    int64_t rows; /* how many rows of the results are known; 0: all */
    cup__call call;
    cup_tensor *in[MOST_INPUTS];
};

/* The sizes in a sample's text, and where each shape ends among them. */
typedef struct sizes {
    int64_t size[MOST_NUMBERS];
    int count, row_length; /* row_length: the place of the first shape's last size, or -1 */
    double elements;
} sizes;

static bool read_sizes(const char *text, sizes *out)
{
    *out = (sizes){.row_length = -1};
    double product = 1;
    bool any = false;
    for (const char *at = text; *at;) {
        if (*at >= '0' && *at <= '9') {
            char *end;
            int64_t size = strtoll(at, &end, 10);
            if (*end == '*') { /* how often something comes */
                at = end + 1;
                continue;
            }
            if (out->count == MOST_NUMBERS)
                return false;
            out->size[out->count] = size;
            product *= (double)out->size[out->count++];
            any = true;
            at = end;
            continue;
        }
        if (*at == ' ' && any) {
            out->row_length = out->row_length < 0 ? out->count - 1 : out->row_length;
            out->elements += product;
            product = 1;
            any = false;
        }
        at++;
    }
    out->elements += any ? product : 0;
    if (out->row_length < 0)
        out->row_length = out->count - 1;
    return true;
}

/* The size to halve next: large ones first, the length of rows last; 0 when all are small. */
static int64_t choose(const sizes *s, bool blocks)
{
    int64_t keep = s->row_length >= 0 ? s->size[s->row_length] : 0, most = 0;
    for (int i = 0; i < s->count; i++)
        if (s->size[i] != keep && s->size[i] > most && !(blocks && s->size[i] * BLOCK == keep))
            most = s->size[i];
    if (most > SMALL)
        return most;
    if (keep > 8 * SMALL || most < 2)
        return keep > 1 ? keep : 0;
    return most;
}

/* With `blocks` sizes that count blocks of 128 are halved with what they count. */
static bool halve(char text[MOST_TEXT], const sizes *s, bool blocks)
{
    char out[MOST_TEXT] = "";
    int64_t victim = choose(s, blocks), half = victim / 2 + victim % 2;
    size_t used = 0;
    if (!victim)
        return false;
    /* What was a multiple of 8 stays one, so that the same kernels take it. */
    if (victim % 8 == 0 && half > 8)
        half = (half + 7) / 8 * 8;
    for (const char *at = text; *at && used < sizeof out - 24;) {
        if (*at < '0' || *at > '9') {
            out[used++] = *at++;
            continue;
        }
        char *end;
        long long size = strtoll(at, &end, 10);
        if (*end != '*' && size == victim)
            size = half;
        else if (blocks && size * BLOCK == victim && half % BLOCK == 0)
            size = half / BLOCK;
        used += (size_t)snprintf(out + used, sizeof out - used, "%lld", size);
        at = end;
    }
    out[used] = 0;
    memcpy(text, out, used + 1);
    return true;
}

/* A call that overwrites an input keeps what backward needs. */
static cup_status allocate(cup__call *call)
{
    call->saving = cup__overwrites(call->op, call->attributes);
    if (call->saving)
        call->out_count = call->row->results_count;
    return cup__call_allocate(call);
}

static bool begin(cup__accuracy *a, uint64_t seed)
{
    int count = cup__sample_inputs_filled(a->c, a->row, &a->sample, a->dtype, CUP_F64,
                                          CUP__ROW_MAJOR, seed, (cup__filling){.alike = true},
                                          a->in, MOST_INPUTS);
    return count >= 0 &&
           cup__call_begin(&a->call, a->c, a->row, a->in, count, a->sample.attributes) == CUP_OK &&
           allocate(&a->call) == CUP_OK;
}

static double work_of(const cup__call *call)
{
    double bytes, flops, elements = 0;
    cup__call_cost(call, &bytes, &flops);
    for (int i = 0; i < call->in_count; i++)
        elements += call->in[i] ? (double)call->in[i]->count : 0;
    for (int i = 0; i < call->out_count; i++)
        elements += (double)call->out[i]->count;
    return flops + 4 * elements;
}

/* Halves the number of rows, which is the first size of all; not below what fills a card. */
static bool halve_first(char text[MOST_TEXT], sizes *s)
{
    char out[MOST_TEXT];
    size_t digits = strspn(text, "0123456789");
    if (!s->count || !digits || s->size[0] < 16 * SMALL)
        return false;
    snprintf(out, sizeof out, "%lld%.1000s", (long long)s->size[0] / 2, text + digits);
    memcpy(text, out, strlen(out) + 1);
    return read_sizes(text, s);
}

/* The first rows of the inputs that go by rows, as many as the specification can manage. */
static bool cut_rows(cup__accuracy *a, int count)
{
    double row = work_of(&a->call) / (double)a->call.out[0]->shape[0];
    a->rows = (int64_t)(MOST_WORK / row);
    if (a->rows < 1)
        a->rows = 1;
    for (int i = 0; i < count; i++) {
        cup_tensor *in = a->in[i];
        if (!in || !(a->row->op->by_rows >> i & 1))
            continue;
        if (in->shape[0] <= a->rows) {
            a->rows = 0;
            return true;
        }
        cup__shape shape = cup__shape_of(in);
        shape.size[0] = a->rows;
        a->in[i] = cup__tensor_view(in, &shape, in->stride, 0);
        if (!a->in[i])
            return false;
    }
    return true;
}

/* Computes the first rows of the whole shape. */
static bool compute_rows(cup__accuracy *a)
{
    sizes s;
    if (a->row->op->by_rows != 1 || !read_sizes(a->shapes, &s))
        return false;
    while (s.elements > MOST_DRAWN)
        if (!halve_first(a->shapes, &s))
            return false;
    int count;
    cup_seed(a->c, SEED);
    if (!begin(a, SEED) || a->call.out[0]->ndim < 1 || a->call.out[0]->shape[0] < 1)
        return false;
    count = a->call.in_count;
    return cut_rows(a, count) &&
           cup__call_begin(&a->call, a->c, a->row, a->in, count, a->sample.attributes) == CUP_OK &&
           allocate(&a->call) == CUP_OK && cup__call_run(&a->call, NULL) == CUP_OK;
}

/* Whether the specification can manage the shapes as they are; *begun: the op takes them. */
static bool is_affordable(cup__accuracy *a, bool *begun)
{
    sizes s;
    *begun = true;
    if (!read_sizes(a->shapes, &s) || s.elements > MOST_ELEMENTS)
        return false;
    cup_scope_open(a->c);
    *begun = begin(a, 0);
    bool fits = *begun && work_of(&a->call) <= MOST_WORK;
    cup__scope_pop(a->c);
    return fits;
}

static bool compute_all(cup__accuracy *a)
{
    cup_seed(a->c, SEED);
    return begin(a, SEED) && cup__call_run(&a->call, NULL) == CUP_OK;
}

/* Cuts the shapes down until the specification can manage them, and computes it. */
static bool compute_cut(cup__accuracy *a, bool blocks)
{
    sizes s;
    bool begun;
    while (!is_affordable(a, &begun))
        if (!begun || !read_sizes(a->shapes, &s) || !halve(a->shapes, &s, blocks))
            return false;
    return compute_all(a);
}

/* The ways in order, each as if the one before had not been tried. */
static bool compute(cup__accuracy *a, const cup__call *timed, const char *shapes)
{
    bool begun;
    if (is_affordable(a, &begun) && compute_all(a))
        return true;
    cup_error_clear(a->c);
    a->exact = cup__exact_new(timed);
    if (a->exact || compute_rows(a))
        return true;
    a->rows = 0;
    for (int blocks = 0; blocks < 2; blocks++) {
        cup_error_clear(a->c);
        memcpy(a->shapes, shapes, strlen(shapes) + 1);
        if (compute_cut(a, blocks == 1))
            return true;
    }
    return false;
}

cup__accuracy *cup__accuracy_new(const cup__call *timed, const cup__sample *sample,
                                 cup_dtype dtype)
{
    size_t length = strlen(sample->shapes);
    cup__accuracy *a = length < MOST_TEXT ? cup__calloc(1, sizeof *a) : NULL;
    if (!a)
        return NULL;
    memcpy(a->shapes, sample->shapes, length + 1);
    a->row = timed->row;
    a->dtype = dtype;
    a->sample = *sample;
    a->sample.shapes = a->shapes;
    a->c = cup__context_cpu(cup__threads());
    if (cup_error(a->c) == CUP_OK && compute(a, timed, sample->shapes))
        return a;
    cup__accuracy_free(a);
    return NULL;
}

void cup__accuracy_free(cup__accuracy *a)
{
    if (a) {
        cup__exact_free(a->exact);
        cup_context_free(a->c);
    }
    cup__free(a);
}

const char *cup__accuracy_shapes(const cup__accuracy *a)
{
    return a->shapes;
}

static void compare(const cup_tensor *want, cup_tensor *got, int64_t rows, double *worst)
{
    char note[200];
    void *memory = NULL;
    cup_tensor host;
    if (rows) {
        cup__shape first = cup__shape_of(got);
        first.size[0] = rows;
        got = cup__tensor_view(got, &first, got->stride, 0);
        if (!got) {
            *worst = INFINITY;
            return;
        }
    }
    cup__shape a = cup__shape_of(want), b = cup__shape_of(got);
    double error = INFINITY;
    if (cup__shape_equal(&a, &b) && cup__on_host(got, &host, &memory))
        error = cup__compare(want, &host, 0, note, sizeof note);
    cup__free(memory);
    *worst = fmax(*worst, error);
}

static double run(const cup__accuracy *a, cup_context *c, const cup__impl *impl)
{
    cup_tensor *in[MOST_INPUTS];
    cup__call call;
    double worst = 0;
    int count = cup__sample_inputs_filled(c, a->row, &a->sample, a->dtype, a->dtype,
                                          CUP__ROW_MAJOR, SEED, (cup__filling){.alike = true}, in,
                                          MOST_INPUTS);
    if (count < 0 ||
        cup__call_begin(&call, c, a->row, in, count, a->sample.attributes) != CUP_OK)
        return NAN;
    /* What was tuned was so for the whole call; the smaller one is done as its own calls are. */
    if (impl->varies && impl->refuses && impl->refuses(&call))
        impl = cup__call_choose(&call);
    if (!impl || (impl->refuses && impl->refuses(&call)) || allocate(&call) != CUP_OK ||
        cup__call_run(&call, impl) != CUP_OK)
        return NAN;
    cup_tensor *want[CUP__MAX_OUT], *got[CUP__MAX_OUT];
    memcpy(want, a->call.out, sizeof want);
    memcpy(got, call.out, sizeof got);
    int results = cup__steady(a->c, a->row->op, want, call.out_count);
    if (results < 0 || cup__steady(c, a->row->op, got, call.out_count) != results)
        return NAN;
    for (int i = 0; i < results; i++)
        compare(want[i], got[i], a->rows, &worst);
    for (int i = 0; i < call.in_count; i++)
        if (call.in[i] && cup__call_changes(&call, i))
            compare(a->call.in[i], call.in[i], 0, &worst);
    return worst;
}

double cup__accuracy_of(cup__accuracy *a, cup_context *c, const cup__impl *impl)
{
    if (a->exact)
        return cup__exact_error(a->exact, impl);
    cup__random before = c->random;
    cup_seed(c, SEED);
    cup_scope_open(c);
    double error = run(a, c, impl);
    cup__scope_pop(c);
    cup__error_clear(&c->error);
    cup_seed(c, before.seed);
    cup_random_step(c, before.step);
    c->random.sequence = before.sequence;
    return error;
}

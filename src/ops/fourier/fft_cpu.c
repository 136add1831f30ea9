/* Transforms on a CPU, in double: a stage for each prime factor, and one for each 4, which read and
 * write all numbers of a line in such an order that the last one leaves them in theirs. Lines with
 * a large prime factor become a product of polynomials: jk is (j^2 + k^2 - (k - j)^2) / 2. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "ops/fourier/fft.h"

#define GRAIN 4096 /* numbers that are worth a thread */

typedef struct pair {
    double re, im;
} pair;

/* The n-th roots of 1 in the order of their angles, and the factors of n. */
typedef struct roots {
    int64_t n;
    pair *root;
    int factors[64], count;
} roots;

typedef struct job {
    cup__call *call;
    cup__fft_lines l;
    roots r;               /* of a line, or of the room for its chirp */
    pair *chirp, *filter;  /* [length], and [room] as transformed */
    bool failed;
} job;

static pair times(pair a, pair b)
{
    return (pair){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

/* The number of size 1 at i n-ths of a turn, by an angle of at most an eighth of one, since the
 * roundings of a larger one are larger. */
static pair root_of(int64_t i, int64_t n, double sign)
{
    int64_t quarter = 4 * i / n, part = 4 * i - quarter * n;
    bool upper = 2 * part > n;
    double angle = acos(-1) / 2 * (double)(upper ? n - part : part) / (double)n;
    double c = upper ? sin(angle) : cos(angle), s = upper ? cos(angle) : sin(angle);
    double re = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
    double im = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
    return (pair){re, sign * im};
}

static bool find_roots(roots *r, int64_t n, double sign)
{
    r->n = n;
    r->count = 0;
    r->root = cup__malloc((size_t)n * sizeof *r->root);
    for (int64_t i = 0; r->root && i < n; i++)
        r->root[i] = root_of(i, n, sign);
    for (int p = 4; n > 1; p = p == 4 ? 2 : p == 2 ? 3 : p + 2)
        for (; n % p == 0; n /= p)
            r->factors[r->count++] = p;
    return r->root != NULL;
}

/* The sums of 4 numbers times the powers of the root of 4, which is i or -i. */
static void four(pair *t, double sign)
{
    pair a = {t[0].re + t[2].re, t[0].im + t[2].im}, b = {t[0].re - t[2].re, t[0].im - t[2].im};
    pair c = {t[1].re + t[3].re, t[1].im + t[3].im};
    pair d = {-sign * (t[1].im - t[3].im), sign * (t[1].re - t[3].re)};
    t[0] = (pair){a.re + c.re, a.im + c.im};
    t[1] = (pair){b.re + d.re, b.im + d.im};
    t[2] = (pair){a.re - c.re, a.im - c.im};
    t[3] = (pair){b.re - d.re, b.im - d.im};
}

static void few(const roots *r, pair *t, int p)
{
    pair sums[CUP__FFT_PRIME];
    if (p == 4) {
        four(t, r->root[r->n / 4].im);
        return;
    }
    if (p == 2) {
        pair a = t[0], b = t[1];
        t[0] = (pair){a.re + b.re, a.im + b.im};
        t[1] = (pair){a.re - b.re, a.im - b.im};
        return;
    }
    for (int k = 0; k < p; k++) {
        sums[k] = t[0];
        for (int j = 1; j < p; j++) {
            pair term = times(t[j], r->root[(int64_t)(j * k % p) * (r->n / p)]);
            sums[k].re += term.re;
            sums[k].im += term.im;
        }
    }
    memcpy(t, sums, (size_t)p * sizeof *t);
}

/* A stage of p: `done` is the product of the factors before. */
static void stage(const roots *r, const pair *from, pair *to, int p, int64_t done)
{
    int64_t rest = r->n / (p * done);
    pair t[CUP__FFT_PRIME];
    for (int64_t i = 0; i < rest; i++)
        for (int64_t q = 0; q < done; q++) {
            for (int k = 0; k < p; k++)
                t[k] = from[q + done * (i + rest * k)];
            few(r, t, p);
            to[q + done * p * i] = t[0];
            for (int k = 1; k < p; k++)
                to[q + done * (p * i + k)] = times(t[k], r->root[i * k * done]);
        }
}

/* Transforms a line; `other` has room for one, too. Returns which of both the result is in. */
static pair *transform(const roots *r, pair *line, pair *other)
{
    int64_t done = 1;
    for (int i = 0; i < r->count; done *= r->factors[i++]) {
        stage(r, line, other, r->factors[i], done);
        pair *swap = line;
        line = other;
        other = swap;
    }
    return line;
}

/* The same for a line of any length, in room for the product with the chirp. A transform of what is
 * conjugate complex goes back. */
static pair *transform_chirp(const job *j, pair *line, pair *other)
{
    int64_t n = j->l.length, room = j->r.n;
    for (int64_t i = 0; i < room; i++)
        line[i] = i < n ? times(line[i], j->chirp[i]) : (pair){0, 0};
    pair *y = transform(&j->r, line, other), *free = y == line ? other : line;
    for (int64_t i = 0; i < room; i++) {
        pair p = times(y[i], j->filter[i]);
        y[i] = (pair){p.re, -p.im};
    }
    y = transform(&j->r, y, free);
    for (int64_t i = 0; i < n; i++) {
        pair p = {y[i].re / (double)room, -y[i].im / (double)room};
        y[i] = times(p, j->chirp[i]);
    }
    return y;
}

static void load_line(const job *j, int64_t at, pair *line)
{
    const cup_tensor *x = j->call->in[0];
    for (int64_t i = 0; i < j->l.length; i++) {
        int64_t from = 2 * (at + i * j->l.inner);
        line[i] = x->dtype == CUP_F64 ? ((const pair *)x->data)[from / 2]
                                      : (pair){(double)((const float *)x->data)[from],
                                               (double)((const float *)x->data)[from + 1]};
    }
}

static void store_line(const job *j, int64_t at, const pair *line)
{
    cup_tensor *y = j->call->out[0];
    double over = j->l.inverse ? (double)j->l.length : 1;
    for (int64_t i = 0; i < j->l.length; i++) {
        int64_t to = 2 * (at + i * j->l.inner);
        pair p = {line[i].re / over, line[i].im / over};
        if (y->dtype == CUP_F64) {
            ((pair *)y->data)[to / 2] = p;
        } else {
            ((float *)y->data)[to] = (float)p.re;
            ((float *)y->data)[to + 1] = (float)p.im;
        }
    }
}

static void run_lines(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    pair *line = cup__malloc(2 * (size_t)j->r.n * sizeof *line);
    if (!line) {
        __atomic_store_n(&j->failed, true, __ATOMIC_RELAXED);
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        int64_t at = i / j->l.inner * j->l.length * j->l.inner + i % j->l.inner;
        load_line(j, at, line);
        store_line(j, at, j->chirp ? transform_chirp(j, line, line + j->r.n)
                                   : transform(&j->r, line, line + j->r.n));
    }
    cup__free(line);
}

/* e^(sign i pi j^2 / n), and its conjugates in a circle, transformed. */
static bool find_chirp(job *j, double sign)
{
    int64_t n = j->l.length, room = j->r.n;
    j->chirp = cup__calloc((size_t)(n + 2 * room), sizeof *j->chirp);
    if (!j->chirp)
        return false;
    pair *filter = j->chirp + n;
    for (int64_t i = 0; i < n; i++) {
        j->chirp[i] = root_of(i * i % (2 * n), 2 * n, sign);
        filter[i] = filter[i ? room - i : 0] = (pair){j->chirp[i].re, -j->chirp[i].im};
    }
    j->filter = transform(&j->r, filter, filter + room);
    return true;
}

cup_status cup__fft_cpu(cup__call *call)
{
    job j = {.call = call, .l = cup__fft_lines_of(call)};
    double sign = j.l.inverse ? 1 : -1;
    bool smooth = cup__fft_smooth(j.l.length);
    j.failed = !find_roots(&j.r, smooth ? j.l.length : cup__fft_room(j.l.length), sign) ||
               (!smooth && !find_chirp(&j, sign));
    if (!j.failed)
        cup__parallel_for(j.l.outer * j.l.inner, GRAIN / j.r.n + 1, run_lines, &j);
    cup__free(j.chirp);
    cup__free(j.r.root);
    return j.failed ? cup__call_fail(call, CUP_MEMORY, "out of host memory") : CUP_OK;
}

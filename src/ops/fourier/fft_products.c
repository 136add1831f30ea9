/* Transforms by matrix products: lines of n = a b numbers are transformed in two stages, of length
 * a and b, with a turn of each number between; short lines and primes are one product. Lines with a
 * large prime factor become a product of polynomials, as on a CPU. */
#include <math.h>

#include "cupola/grad.h"
#include "cupola/ops.h"
#include "ops/fourier/fft.h"
#include "ops/shape/copy.h"

#define DIRECT 64 /* lines that are not cut */

typedef struct fourier {
    cup_context *c;
    cup_dtype dtype;
    double sign; /* of the angles */
} fourier;

static cup_tensor *counted(cup_context *c, int64_t n, int ndim, const int64_t *shape)
{
    return cup_reshape(c, cup_arange(c, CUP_F64, 0, (double)n, NULL), ndim, shape);
}

#define COUNTED(c, n, ...)                                                                         \
    counted(c, n, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__})

/* The cosines of turn (i k mod n) + quarter: as what stands at i and k is whole, no angle is large.
 * Beside what is real, quarters of a turn make what a number is multiplied by: (cos, sin) for its
 * real part and (-sin, cos) for its imaginary one. */
static cup_tensor *waves(const fourier *f, cup_tensor *i, cup_tensor *k, int64_t n, double turn,
                         cup_tensor *quarter)
{
    cup_context *c = f->c;
    cup_tensor *whole = cup_full(c, CUP_F64, 0, NULL, (double)n);
    cup_tensor *angle = cup_scale(c, cup_remainder(c, cup_mul(c, i, k), whole), turn);
    return cup_cast(c, cup_cos(c, cup_add(c, angle, quarter)), f->dtype);
}

/* Quarters of a turn for the real and the imaginary part of a number, and of the result. */
static cup_tensor *quarters(cup_context *c, int ndim, const int64_t *of_number)
{
    cup_tensor *number = counted(c, 2, ndim, of_number);
    return cup_scale(c, cup_sub(c, number, COUNTED(c, 2, 2)), acos(-1) / 2);
}

/* x [..,n,2] times numbers of size 1, or others, [2,..,n,2] as `waves` makes them. */
static cup_tensor *turned(cup_context *c, cup_tensor *x, cup_tensor *by)
{
    int last = x->ndim - 1;
    cup_tensor *sum = NULL;
    for (int part = 0; part < 2 && by; part++) {
        int64_t start[CUP_MAX_DIMS] = {0}, size[CUP_MAX_DIMS], first[CUP_MAX_DIMS] = {part};
        for (int d = 0; d <= last; d++)
            size[d] = d == last ? 1 : x->shape[d];
        start[last] = part;
        cup_tensor *own = cup_slice(c, x, start, last + 1, size, last + 1);
        for (int d = 0; d < by->ndim; d++)
            size[d] = d ? by->shape[d] : 1;
        cup_tensor *factor = cup_slice(c, by, first, by->ndim, size, by->ndim);
        cup_tensor *term = cup_mul(c, own, cup_reshape(c, factor, by->ndim - 1, &by->shape[1]));
        sum = sum ? cup_add(c, sum, term) : term;
    }
    return sum;
}

/* The a of two stages for n, of at most DIRECT where there is one; 1: n is a prime. */
static int64_t part_of(int64_t n)
{
    int64_t best = 1, least = INT64_MAX;
    for (int64_t a = 2; a <= CUP__FFT_PRIME && a < n && (a <= DIRECT || best == 1); a++) {
        int64_t rest = n / a, sum = rest <= DIRECT ? a + rest : 4 * CUP__FFT_PRIME - a;
        if (n % a == 0 && sum < least) {
            best = a;
            least = sum;
        }
    }
    return best;
}

static cup_tensor *transformed(const fourier *f, cup_tensor *x, int64_t n);

/* Numbers [rows,n,2] less their mean over n, whose transform is `mean` [rows,1,2] times n at 0 and
 * nothing elsewhere: in products of what is nearly all alike that nothing would be a difference of
 * sums that are rounded. */
static cup_tensor *less_mean(cup_context *c, cup_tensor *x, cup_tensor **mean)
{
    *mean = cup_mean(c, x, (int64_t[]){1}, 1, true);
    return cup_sub(c, x, *mean);
}

static cup_tensor *direct(const fourier *f, cup_tensor *x, int64_t n)
{
    cup_context *c = f->c;
    cup_tensor *mean, *apart = less_mean(c, x, &mean);
    cup_tensor *first = cup_pad(c, cup_scale(c, mean, (double)n), (int64_t[]){0, 0, 0}, 3,
                                (int64_t[]){0, n - 1, 0}, 3, NULL);
    double turn = f->sign * 2 * acos(-1) / (double)n;
    cup_tensor *m = waves(f, COUNTED(c, n, n, 1, 1, 1), COUNTED(c, n, n, 1), n, turn,
                          quarters(c, 3, (int64_t[]){2, 1, 1}));
    cup_tensor *flat = cup_reshape(c, apart, 2, (int64_t[]){-1, 2 * n});
    cup_tensor *y = cup_matmul(c, flat, cup_reshape(c, m, 2, (int64_t[]){2 * n, 2 * n}), false,
                               false);
    return cup_add(c, cup_reshape(c, y, 3, (int64_t[]){-1, n, 2}), first);
}

/* x[j b + i] as [a,b] becomes y[k + a l]: over j for each i, then over i for each k. */
static cup_tensor *cut(const fourier *f, cup_tensor *x, int64_t n, int64_t a)
{
    cup_context *c = f->c;
    const int64_t b = n / a, rows = x->shape[0];
    const int64_t axes[] = {0, 2, 1, 3};
    cup_tensor *y = cup_permute(c, cup_reshape(c, x, 4, (int64_t[]){rows, a, b, 2}), axes, 4);
    y = transformed(f, cup_reshape(c, y, 3, (int64_t[]){rows * b, a, 2}), a);
    y = cup_permute(c, cup_reshape(c, y, 4, (int64_t[]){rows, b, a, 2}), axes, 4);
    cup_tensor *turns = waves(f, COUNTED(c, a, a, 1, 1), COUNTED(c, b, b, 1), n,
                              f->sign * 2 * acos(-1) / (double)n,
                              quarters(c, 4, (int64_t[]){2, 1, 1, 1}));
    y = y ? turned(c, y, turns) : NULL;
    y = transformed(f, cup_reshape(c, y, 3, (int64_t[]){rows * a, b, 2}), b);
    y = cup_permute(c, cup_reshape(c, y, 4, (int64_t[]){rows, a, b, 2}), axes, 4);
    return cup_reshape(c, y, 3, (int64_t[]){rows, n, 2});
}

/* Numbers [1,n,2] as `turned` takes them. */
static cup_tensor *factors(cup_context *c, cup_tensor *y, int64_t n)
{
    cup_tensor *both = cup_reshape(c, y, 3, (int64_t[]){1, n, 2});
    cup_tensor *re = cup_slice(c, both, (int64_t[]){0, 0, 0}, 3, (int64_t[]){1, n, 1}, 3);
    cup_tensor *im = cup_slice(c, both, (int64_t[]){0, 0, 1}, 3, (int64_t[]){1, n, 1}, 3);
    cup_tensor *across = cup_concat(c, (cup_tensor *[]){cup_neg(c, im), re}, 2, 2);
    return cup_concat(c, (cup_tensor *[]){both, across}, 2, 0);
}

static cup_tensor *chirp_of(const fourier *f, int64_t n, double sign)
{
    cup_context *c = f->c;
    return waves(f, COUNTED(c, n, n, 1), COUNTED(c, n, n, 1), 2 * n, sign * acos(-1) / (double)n,
                 quarters(c, 3, (int64_t[]){2, 1, 1}));
}

/* Conjugates of the chirp in a circle of `room`: [1,room,2]. */
static cup_tensor *filter_of(const fourier *f, int64_t n, int64_t room)
{
    cup_context *c = f->c;
    cup_tensor *all = chirp_of(f, n, -f->sign);
    cup_tensor *g = cup_slice(c, all, (int64_t[]){0, 0, 0}, 3, (int64_t[]){1, n, 2}, 3);
    cup_tensor *end = cup_slice(c, g, (int64_t[]){0, 1, 0}, 3, (int64_t[]){1, n - 1, 2}, 3);
    cup_tensor *gap = cup_zeros(c, f->dtype, 3, (int64_t[]){1, room - 2 * n + 1, 2});
    cup_tensor *parts[] = {g, gap, cup_flip(c, end, (int64_t[]){1}, 1)};
    return cup_concat(c, parts, 3, 1);
}

static cup_tensor *chirped(const fourier *f, cup_tensor *x, int64_t n)
{
    cup_context *c = f->c;
    int64_t room = cup__fft_room(n);
    const int64_t none[] = {0, 0, 0}, after[] = {0, room - n, 0};
    const fourier back = {c, f->dtype, -f->sign};
    cup_tensor *chirp = chirp_of(f, n, f->sign), *filter = filter_of(f, n, room);
    cup_tensor *y = x ? turned(c, x, chirp) : NULL;
    y = transformed(f, cup_pad(c, y, none, 3, after, 3, NULL), room);
    filter = filter ? transformed(f, filter, room) : NULL;
    y = y && filter ? turned(c, y, factors(c, filter, room)) : NULL;
    y = cup_scale(c, transformed(&back, y, room), 1 / (double)room);
    y = y ? cup_slice(c, y, none, 3, (int64_t[]){y->shape[0], n, 2}, 3) : NULL;
    return y ? turned(c, y, chirp) : NULL;
}

/* Lines [rows,n,2]. */
static cup_tensor *transformed(const fourier *f, cup_tensor *x, int64_t n)
{
    if (!x)
        return NULL;
    if (!cup__fft_smooth(n))
        return chirped(f, x, n);
    int64_t part = n <= DIRECT ? 1 : part_of(n);
    return part > 1 ? cut(f, x, n, part) : direct(f, x, n);
}

static void run(cup__call *call)
{
    cup_context *c = call->c;
    cup__fft_lines l = cup__fft_lines_of(call);
    const fourier f = {c, call->in[0]->dtype, l.inverse ? 1 : -1};
    const int64_t axes[] = {0, 2, 1, 3};
    cup_tensor *x = cup_reshape(c, call->in[0], 4, (int64_t[]){l.outer, l.length, l.inner, 2});
    x = cup_reshape(c, cup_permute(c, x, axes, 4), 3,
                    (int64_t[]){l.outer * l.inner, l.length, 2});
    cup_tensor *y = transformed(&f, x, l.length);
    if (l.inverse)
        y = cup_scale(c, y, 1 / (double)l.length);
    y = cup_permute(c, cup_reshape(c, y, 4, (int64_t[]){l.outer, l.inner, l.length, 2}), axes, 4);
    cup_tensor *to = cup_reshape(c, call->out[0], 4,
                                 (int64_t[]){l.outer, l.length, l.inner, 2});
    if (y && to)
        cup__copy_to(c, to, y);
}

cup_status cup__fft_products(cup__call *call)
{
    cup_context *c = call->c;
    cup_scope_open(c);
    bool was = cup_grad_recording(c, false);
    run(call);
    cup_grad_recording(c, was);
    cup_scope_return(c, NULL);
    return c->error.status;
}

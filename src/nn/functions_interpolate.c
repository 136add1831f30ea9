/* Images of another size: along each side in turn, neighbours are picked and weighed; or channels
 * become places. */
#include "nn/functions.h"

#define CUBIC (-0.75) /* the free number of the cubic, as it is common */

/* A side of `from` places that shall have `to`. */
typedef struct scaling {
    cup_context *c;
    cup_interpolation mode;
    bool corners;
    int axis;
    int64_t from, to;
} scaling;

static cup_tensor *plus(cup_context *c, cup_tensor *x, double number)
{
    return cup_add(c, x, cup__single(c, CUP_F64, number));
}

/* Where each place of the result lies among those of the image, in f64. */
static cup_tensor *places_of(const scaling *s)
{
    cup_context *c = s->c;
    cup_tensor *i = cup_arange(c, CUP_F64, 0, (double)s->to, NULL);
    if (s->corners)
        return cup_scale(c, i, s->to > 1 ? (double)(s->from - 1) / (double)(s->to - 1) : 0);
    i = plus(c, cup_scale(c, plus(c, i, 0.5), (double)s->from / (double)s->to), -0.5);
    return s->mode == CUP_INTERPOLATION_BILINEAR ? cup_clamp(c, i, 0, (double)s->from) : i;
}

/* ((a d + b) d + e) d + f */
static cup_tensor *cubic(cup_context *c, cup_tensor *d, double a, double b, double e, double f)
{
    cup_tensor *sum = cup_mul(c, plus(c, cup_scale(c, d, a), b), d);
    return plus(c, cup_mul(c, plus(c, sum, e), d), f);
}

/* The weight of the neighbour `k` places behind the last one before a place, `part` further. */
static cup_tensor *weight_of(const scaling *s, cup_tensor *part, int k)
{
    cup_context *c = s->c;
    if (s->mode == CUP_INTERPOLATION_BILINEAR)
        return k ? part : plus(c, cup_neg(c, part), 1);
    cup_tensor *far = k > 0 ? plus(c, cup_neg(c, part), k) : plus(c, part, -k);
    return k == 0 || k == 1 ? cubic(c, far, CUBIC + 2, -(CUBIC + 3), 0, 1)
                            : cubic(c, far, CUBIC, -5 * CUBIC, 8 * CUBIC, -4 * CUBIC);
}

static cup_tensor *nearest(const scaling *s, cup_tensor *x)
{
    cup_context *c = s->c;
    cup_tensor *i = cup_mul(c, cup_arange(c, CUP_I64, 0, (double)s->to, NULL),
                            cup__single(c, CUP_I64, (double)s->from));
    return cup_index_select(c, x, cup_floor_div(c, i, cup__single(c, CUP_I64, (double)s->to)),
                            s->axis);
}

static cup_tensor *scaled(const scaling *s, cup_tensor *x)
{
    cup_context *c = s->c;
    if (s->mode == CUP_INTERPOLATION_NEAREST)
        return nearest(s, x);
    bool wide = s->mode == CUP_INTERPOLATION_BICUBIC;
    cup_tensor *place = places_of(s), *low = cup_floor(c, place), *sum = NULL;
    cup_tensor *part = cup_sub(c, place, low);
    const int64_t shape[] = {s->to, 1, 1};
    for (int k = wide ? -1 : 0; k <= (wide ? 2 : 1) && x; k++) {
        cup_tensor *at = cup_clamp(c, plus(c, low, k), 0, (double)(s->from - 1));
        cup_tensor *picked = cup_index_select(c, x, cup_cast(c, at, CUP_I64), s->axis);
        cup_tensor *weight = cup_cast(c, weight_of(s, part, k), x->dtype);
        cup_tensor *term =
            cup_mul(c, picked, cup_reshape(c, weight, x->ndim - s->axis, shape));
        sum = sum ? cup_add(c, sum, term) : term;
    }
    return sum;
}

cup_tensor *cup_interpolate(cup_context *c, cup_tensor *x, const int64_t *size, int count,
                            cup_interpolation mode, bool corners)
{
    static const char name[] = "interpolate";
    if (!cup__function_begin(c, name, x))
        return NULL;
    int sides = x->ndim - 2;
    bool good = sides >= 1 && sides <= 3 && cup__dtype_is_float(x->dtype) && size &&
                (count == 1 || count == sides) && (int)mode >= 0 &&
                mode <= CUP_INTERPOLATION_BICUBIC;
    for (int d = 0; good && d < sides; d++)
        good = x->shape[2 + d] >= 1 && size[d < count ? d : 0] >= 1 &&
               size[d < count ? d : 0] <= (int64_t)1 << 29;
    if (!good) {
        cup_fail(c, CUP_ARGUMENT,
                 "%s: x must be floats [N,C,..] with one to three sides of a place or more, the "
                 "size one number or as many, from 1 to 2^29, and the mode one of "
                 "cup_interpolation",
                 name);
        return NULL;
    }
    cup_tensor *y = cup_dtype_size(x->dtype) == 2 ? cup_cast(c, x, CUP_F32) : x;
    for (int d = 0; d < sides; d++) {
        const scaling s = {c, mode, corners, 2 + d, x->shape[2 + d], size[d < count ? d : 0]};
        y = scaled(&s, y);
    }
    return y && y->dtype != x->dtype ? cup_cast(c, y, x->dtype) : y;
}

cup_tensor *cup_interpolate_positions(cup_context *c, cup_tensor *table, int64_t before,
                                      const int64_t *places, const int64_t *size)
{
    int64_t rows;
    if (!cup__function_begin(c, "interpolate_positions", table))
        return NULL;
    if (table->ndim != 2 || !places || !size || before < 0 || places[0] < 1 || places[1] < 1 ||
        __builtin_mul_overflow(places[0], places[1], &rows) || before > table->shape[0] ||
        rows != table->shape[0] - before) {
        cup_fail(c, CUP_SHAPE, "interpolate_positions: the table must be [before + H W,width], of "
                               "places H and W from 1 on; and sizes must be given");
        return NULL;
    }
    int64_t width = table->shape[1];
    const int64_t last[] = {1, places[0], places[1], width};
    const int64_t to_front[] = {0, 3, 1, 2}, to_end[] = {0, 2, 3, 1};
    cup_tensor *x = cup_reshape(c, cup__part(c, table, 0, before, rows), 4, last);
    x = cup_interpolate(c, cup_permute(c, x, to_front, 4), size, 2, CUP_INTERPOLATION_BICUBIC,
                        false);
    if (!x)
        return NULL;
    const int64_t shape[] = {size[0] * size[1], width};
    cup_tensor *both[] = {cup__part(c, table, 0, 0, before),
                          cup_reshape(c, cup_permute(c, x, to_end, 4), 2, shape)};
    return cup_concat(c, both, 2, 0);
}

/* Whether x is of images of which a channel or a side is so many times another number. */
static bool are_divided(cup_context *c, const char *name, const cup_tensor *x, int64_t factor,
                        bool sides)
{
    if (!cup__function_begin(c, name, x))
        return false;
    bool fits = x->ndim == 4 && factor >= 1 && factor <= INT32_MAX;
    if (fits && sides)
        fits = x->shape[2] % factor == 0 && x->shape[3] % factor == 0;
    else if (fits)
        fits = x->shape[1] % (factor * factor) == 0;
    if (!fits)
        cup_fail(c, CUP_SHAPE, "%s: x must be [%s], f from 1 on; f is %lld", name,
                 sides ? "N,C,H f,W f" : "N,C f f,H,W", (long long)factor);
    return fits;
}

cup_tensor *cup_pixel_shuffle(cup_context *c, cup_tensor *x, int64_t factor)
{
    if (!are_divided(c, "pixel_shuffle", x, factor, false))
        return NULL;
    const int64_t *s = x->shape, f = factor, channels = s[1] / (f * f);
    int64_t apart[] = {s[0], channels, f, f, s[2], s[3]};
    int64_t together[] = {s[0], channels, s[2] * f, s[3] * f};
    cup_tensor *y = cup_reshape(c, x, 6, apart);
    y = y ? cup_permute(c, y, (int64_t[]){0, 1, 4, 2, 5, 3}, 6) : NULL;
    return y ? cup_reshape(c, y, 4, together) : NULL;
}

cup_tensor *cup_pixel_unshuffle(cup_context *c, cup_tensor *x, int64_t factor)
{
    if (!are_divided(c, "pixel_unshuffle", x, factor, true))
        return NULL;
    const int64_t *s = x->shape, f = factor;
    int64_t apart[] = {s[0], s[1], s[2] / f, f, s[3] / f, f};
    int64_t together[] = {s[0], s[1] * f * f, s[2] / f, s[3] / f};
    cup_tensor *y = cup_reshape(c, x, 6, apart);
    y = y ? cup_permute(c, y, (int64_t[]){0, 1, 3, 5, 2, 4}, 6) : NULL;
    return y ? cup_reshape(c, y, 4, together) : NULL;
}

/* Pooling along one and three dimensions, as max_pool2d and avg_pool2d do it along two, and
 * normalisation over neighbouring channels. */
#include <limits.h>

#include "base/options.h"
#include "nn/functions.h"
#include "tensor/context.h"

/* Windows over one to three sides: means, or the largest. */
typedef struct pooling {
    const char *name;
    bool mean;
    cup_max_pool2d_options o; /* and of a mean: */
    bool count_include_pad;
    const int64_t *window;
    int window_count;
    bool places; /* whether it is asked for where the largest stood */
} pooling;

static bool take(cup_context *c, pooling *p, const cup_tensor *x, int sides)
{
    const struct {
        const char *name;
        cup_ints list;
    } all[] = {{"window", {p->window, p->window_count}}, {"stride", p->o.stride},
               {"padding", p->o.padding}, {"dilation", p->o.dilation}};
    if (!cup__function_begin(c, p->name, x))
        return false;
    if (x->ndim != 2 + sides) {
        cup_fail(c, CUP_SHAPE, "%s: x has %d dimensions; it must have %d", p->name, x->ndim,
                 2 + sides);
        return false;
    }
    for (int i = 0; i < 4; i++) {
        int n = all[i].list.count;
        if ((n == 1 || n == sides || (n == 0 && i)) && (n == 0 || all[i].list.values))
            continue;
        cup_fail(c, CUP_ARGUMENT, "%s: %s has %d numbers; give it one, or one for each side",
                 p->name, all[i].name, n);
        return false;
    }
    return true;
}

static bool take_max(cup_context *c, pooling *p, const cup_tensor *x, int sides,
                     const cup_max_pool2d_options *options)
{
    return cup__function_begin(c, p->name, x) &&
           cup__options_take(&c->error, p->name, &p->o, sizeof p->o, options) == CUP_OK &&
           take(c, p, x, sides);
}

static bool take_mean(cup_context *c, pooling *p, const cup_tensor *x, int sides,
                      const cup_avg_pool2d_options *options)
{
    cup_avg_pool2d_options o;
    p->mean = true;
    if (!cup__function_begin(c, p->name, x) ||
        cup__options_take(&c->error, p->name, &o, sizeof o, options) != CUP_OK)
        return false;
    p->o = (cup_max_pool2d_options){.stride = o.stride,
                                    .padding = o.padding,
                                    .ceil_mode = o.ceil_mode,
                                    .channels_last = o.channels_last};
    p->count_include_pad = o.count_include_pad;
    return take(c, p, x, sides);
}

/* The numbers of two sides, of which -1 is none: it has `usual`. */
static cup_ints pair_of(const cup_ints *from, const int sides[2], int64_t usual, int64_t to[2])
{
    for (int i = 0; i < 2; i++)
        to[i] = sides[i] < 0 ? usual : from->values[from->count == 1 ? 0 : sides[i]];
    return (cup_ints){to, 2};
}

/* Pools the two middle, or last, of four dimensions by the windows of these sides. `at` takes where
 * the largest stood, if that is asked for. */
static cup_tensor *pool(cup_context *c, const pooling *p, cup_tensor *x, int high, int wide,
                        cup_tensor **at)
{
    const int sides[] = {high, wide};
    const cup_ints window = {p->window, p->window_count}, none = {0};
    int64_t numbers[4][2];
    pair_of(&window, sides, 1, numbers[0]);
    cup_ints stride = p->o.stride.count ? pair_of(&p->o.stride, sides, 1, numbers[1]) : none;
    cup_ints padding = p->o.padding.count ? pair_of(&p->o.padding, sides, 0, numbers[2]) : none;
    cup_ints dilation = p->o.dilation.count ? pair_of(&p->o.dilation, sides, 1, numbers[3]) : none;
    if (p->mean)
        return cup_avg_pool2d(c, x, numbers[0], 2,
                              CUP_OPTIONS(cup_avg_pool2d_options, .stride = stride,
                                          .padding = padding, .ceil_mode = p->o.ceil_mode,
                                          .count_include_pad = p->count_include_pad,
                                          .channels_last = p->o.channels_last));
    const cup_max_pool2d_options o = {.size = sizeof o, .stride = stride, .padding = padding,
                                      .dilation = dilation, .ceil_mode = p->o.ceil_mode,
                                      .channels_last = p->o.channels_last};
    cup_tensor *y = NULL;
    if (!p->places)
        return cup_max_pool2d(c, x, numbers[0], 2, &o);
    cup_max_pool2d_indices(c, x, numbers[0], 2, &o, &y, at);
    return *at ? y : NULL;
}

static cup_tensor *pool_line(cup_context *c, const pooling *p, cup_tensor *x, cup_tensor **places)
{
    int at = p->o.channels_last ? 1 : 2;
    const int64_t *s = x->shape;
    const int64_t shape[] = {s[0], at == 1 ? 1 : s[1], at == 1 ? s[1] : 1, s[2]};
    cup_tensor *y = pool(c, p, cup_reshape(c, x, 4, shape), -1, 0, places);
    if (!y)
        return NULL;
    const int64_t line[] = {y->shape[0], y->shape[at == 1 ? 2 : 1], y->shape[3]};
    if (p->places)
        *places = cup_reshape(c, *places, 3, line);
    return cup_reshape(c, y, 3, line);
}

/* Of the places in planes of height and width, and of those among the depths of such pooled planes,
 * the places in space. -1 is none. */
static cup_tensor *join_places(cup_context *c, cup_tensor *planes, cup_tensor *depths,
                               int64_t plane, int64_t pooled)
{
    cup_tensor *none = cup__single(c, CUP_I64, -1), *zero = cup__single(c, CUP_I64, 0);
    cup_tensor *there = cup_where(c, cup_less(c, depths, zero), zero, depths);
    cup_tensor *within = cup_gather(c, planes, there, 1);
    cup_tensor *deep = cup_floor_div(c, there, cup__single(c, CUP_I64, pooled));
    deep = cup_mul(c, deep, cup__single(c, CUP_I64, plane));
    cup_tensor *joined = cup_where(c, cup_less(c, within, zero), none, cup_add(c, deep, within));
    return cup_where(c, cup_less(c, depths, zero), none, joined);
}

/* Height and width first, then the depth: the first of equal ones is that of the window, too. */
static cup_tensor *pool_space(cup_context *c, const pooling *p, cup_tensor *x, cup_tensor **places)
{
    bool last = p->o.channels_last, narrow = p->mean && cup_dtype_size(x->dtype) == 2;
    const int64_t s[] = {x->shape[0], x->shape[1], x->shape[2], x->shape[3], x->shape[4]};
    cup_tensor *y = narrow ? cup_cast(c, x, CUP_F32) : x;
    y = cup_reshape(c, y, 4, last ? (int64_t[]){s[0] * s[1], s[2], s[3], s[4]}
                                  : (int64_t[]){s[0], s[1] * s[2], s[3], s[4]});
    cup_tensor *planes = NULL, *depths = NULL;
    y = pool(c, p, y, 1, 2, &planes);
    if (!y)
        return NULL;
    int64_t high = y->shape[last ? 1 : 2], wide = y->shape[last ? 2 : 3];
    y = cup_reshape(c, y, 4, last ? (int64_t[]){s[0], s[1], high * wide, s[4]}
                                  : (int64_t[]){s[0], s[1], s[2], high * wide});
    y = pool(c, p, y, 0, -1, &depths);
    if (!y)
        return NULL;
    int64_t deep = y->shape[last ? 1 : 2], lines = last ? s[0] : s[0] * s[1];
    int64_t inner = last ? s[4] : 1, pooled = high * wide;
    const int64_t shape[] = {s[0], last ? deep : s[1], last ? high : deep, last ? wide : high,
                             last ? s[4] : wide};
    y = cup_reshape(c, y, 5, shape);
    if (p->places) {
        planes = cup_reshape(c, planes, 3,
                             (int64_t[]){lines, (last ? s[1] : s[2]) * pooled, inner});
        depths = cup_reshape(c, depths, 3, (int64_t[]){lines, deep * pooled, inner});
        int64_t plane = last ? s[2] * s[3] : s[3] * s[4];
        *places = cup_reshape(c, join_places(c, planes, depths, plane, pooled), 5, shape);
    }
    return narrow ? cup_cast(c, y, x->dtype) : y;
}

cup_tensor *cup_max_pool1d(cup_context *c, cup_tensor *x, int64_t window,
                           const cup_max_pool2d_options *options)
{
    pooling p = {.name = "max_pool1d", .window = &window, .window_count = 1};
    return take_max(c, &p, x, 1, options) ? pool_line(c, &p, x, NULL) : NULL;
}

cup_tensor *cup_avg_pool1d(cup_context *c, cup_tensor *x, int64_t window,
                           const cup_avg_pool2d_options *options)
{
    pooling p = {.name = "avg_pool1d", .window = &window, .window_count = 1};
    return take_mean(c, &p, x, 1, options) ? pool_line(c, &p, x, NULL) : NULL;
}

cup_tensor *cup_max_pool3d(cup_context *c, cup_tensor *x, const int64_t *window, int window_count,
                           const cup_max_pool2d_options *options)
{
    pooling p = {.name = "max_pool3d", .window = window, .window_count = window_count};
    return take_max(c, &p, x, 3, options) ? pool_space(c, &p, x, NULL) : NULL;
}

cup_tensor *cup_avg_pool3d(cup_context *c, cup_tensor *x, const int64_t *window, int window_count,
                           const cup_avg_pool2d_options *options)
{
    pooling p = {.name = "avg_pool3d", .window = window, .window_count = window_count};
    return take_mean(c, &p, x, 3, options) ? pool_space(c, &p, x, NULL) : NULL;
}

/* Gives both, or neither. */
static cup_status give(cup_context *c, cup_tensor *made, cup_tensor *at, cup_tensor **y,
                       cup_tensor **indices)
{
    bool good = made && (!indices || at) && cup_error(c) == CUP_OK;
    if (y)
        *y = good ? made : NULL;
    if (indices)
        *indices = good ? at : NULL;
    return good ? CUP_OK : c ? cup_error(c) : CUP_ARGUMENT;
}

cup_status cup_max_pool1d_indices(cup_context *c, cup_tensor *x, int64_t window,
                                  const cup_max_pool2d_options *options, cup_tensor **y,
                                  cup_tensor **indices)
{
    pooling p = {.name = "max_pool1d_indices", .window = &window, .window_count = 1,
                 .places = indices != NULL};
    cup_tensor *at = NULL;
    cup_tensor *made = take_max(c, &p, x, 1, options) ? pool_line(c, &p, x, &at) : NULL;
    return give(c, made, at, y, indices);
}

cup_status cup_max_pool3d_indices(cup_context *c, cup_tensor *x, const int64_t *window,
                                  int window_count, const cup_max_pool2d_options *options,
                                  cup_tensor **y, cup_tensor **indices)
{
    pooling p = {.name = "max_pool3d_indices", .window = window, .window_count = window_count,
                 .places = indices != NULL};
    cup_tensor *at = NULL;
    cup_tensor *made = take_max(c, &p, x, 3, options) ? pool_space(c, &p, x, &at) : NULL;
    return give(c, made, at, y, indices);
}

cup_tensor *cup_local_response_norm(cup_context *c, cup_tensor *x, int64_t channels, double alpha,
                                    double beta, double k)
{
    static const char name[] = "local_response_norm";
    if (!cup__function_begin(c, name, x))
        return NULL;
    if (x->ndim < 3 || channels < 1 || channels > INT_MAX || !cup__dtype_is_float(x->dtype)) {
        cup_fail(c, CUP_ARGUMENT,
                 "%s: %lld channels of %d dimensions; x must be floats [N,C,..] with at least "
                 "three dimensions, and there must be a channel",
                 name, (long long)channels, x->ndim);
        return NULL;
    }
    int64_t rest = 1, before[] = {0, 0, channels / 2, 0}, after[] = {0, 0, (channels - 1) / 2, 0};
    for (int d = 2; d < x->ndim; d++)
        rest *= x->shape[d];
    cup_tensor *wide = x->dtype == CUP_F64 ? x : cup_cast(c, x, CUP_F32);
    cup_tensor *squares = cup_square(
        c, cup_reshape(c, wide, 4, (int64_t[]){x->shape[0], 1, x->shape[1], rest}));
    cup_tensor *mean = cup_avg_pool2d(
        c, cup_pad(c, squares, before, 4, after, 4, NULL), (int64_t[]){channels, 1}, 2,
        CUP_OPTIONS(cup_avg_pool2d_options, .stride = CUP_INTS(1)));
    cup_dtype dtype = x->dtype == CUP_F64 ? CUP_F64 : CUP_F32;
    cup_tensor *base = cup_add(c, cup_scale(c, mean, alpha), cup__single(c, dtype, k));
    cup_tensor *power = cup_pow(c, base, cup__single(c, dtype, beta));
    cup_tensor *y = cup_div(c, wide, cup_reshape(c, power, x->ndim, x->shape));
    return x->dtype == CUP_F64 ? y : cup_cast(c, y, x->dtype);
}

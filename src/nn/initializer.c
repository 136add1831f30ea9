/* First values of parameters. */
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "nn/parameters.h"
#include "tensor/tensor.h"

#define DEVIATION 0.02
#define ROOT_2 1.4142135623730951

typedef enum family { NORMAL, UNIFORM, CONSTANT, ORTHOGONAL } family;

/* One row an initializer: what it draws, and its deviation where it has one. */
typedef struct kind {
    const char *name;
    family family;
    bool fans; /* the deviation follows from the shape, which then needs two dimensions */
    double gain, value;
    double (*deviation)(double in, double out);
    bool in_order; /* from the random numbers that come next */
} kind;

static double of_xavier(double in, double out)
{
    return sqrt(2 / (in + out));
}

static double of_kaiming(double in, double out)
{
    (void)out;
    return sqrt(1 / in);
}

static const kind kinds[] = {
    [CUP_INITIALIZER_DEFAULT] = {.name = "normal", .family = NORMAL},
    [CUP_INITIALIZER_NORMAL] = {.name = "normal", .family = NORMAL},
    [CUP_INITIALIZER_UNIFORM] = {.name = "uniform", .family = UNIFORM},
    [CUP_INITIALIZER_XAVIER_NORMAL] = {"Xavier", NORMAL, true, 1, 0, of_xavier},
    [CUP_INITIALIZER_XAVIER_UNIFORM] = {"Xavier", UNIFORM, true, 1, 0, of_xavier},
    [CUP_INITIALIZER_KAIMING_NORMAL] = {"Kaiming", NORMAL, true, ROOT_2, 0, of_kaiming},
    [CUP_INITIALIZER_KAIMING_UNIFORM] = {"Kaiming", UNIFORM, true, ROOT_2, 0, of_kaiming},
    [CUP_INITIALIZER_ZEROS] = {.name = "zeros", .family = CONSTANT, .value = 0},
    [CUP_INITIALIZER_ONES] = {.name = "ones", .family = CONSTANT, .value = 1},
    [CUP_INITIALIZER_ORTHOGONAL] = {"orthogonal", ORTHOGONAL, true, 1, 0, NULL},
    [CUP_INITIALIZER_NORMAL_IN_ORDER] = {.name = "normal", .family = NORMAL, .in_order = true},
};
#define KINDS ((int)(sizeof kinds / sizeof *kinds))

static double deviation_of(const kind *k, int ndim, const int64_t *shape,
                           const cup_parameter_options *o)
{
    double gain = o->gain > 0 ? o->gain : k->gain;
    if (!k->deviation)
        return k->fans ? gain : o->deviation > 0 ? o->deviation : DEVIATION;
    double window = 1;
    for (int i = 2; i < ndim; i++)
        window *= (double)shape[i];
    double in = window * (double)shape[1], out = window * (double)shape[0];
    return in > 0 && out > 0 ? gain * k->deviation(in, out) : 0;
}

static double dot(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Makes rows of normal numbers orthogonal and of length 1. Each gives up its parts along those
 * before it twice, since once leaves what rounding made of them; and the row itself is never
 * turned round, so that every orthogonal matrix is as likely as any other. */
static void orthogonalise(double *rows, int64_t count, int64_t length)
{
    for (int64_t i = 0; i < count; i++) {
        double *row = rows + i * length;
        for (int64_t j = 0; j < 2 * i; j++) {
            const double *other = rows + j % i * length;
            double part = dot(row, other, length);
            for (int64_t k = 0; k < length; k++)
                row[k] -= part * other[k];
        }
        double norm = sqrt(dot(row, row, length));
        for (int64_t k = 0; k < length; k++)
            row[k] /= norm;
    }
}

static cup_tensor *orthogonal(cup_context *c, cup_dtype dtype, int ndim, const int64_t *shape,
                              double gain)
{
    int64_t all = 1;
    for (int i = 0; i < ndim; i++)
        all *= shape[i];
    if (all == 0)
        return cup_full(c, dtype, ndim, shape, 0);
    int64_t rows = shape[0], columns = all / rows;
    bool tall = rows > columns;
    int64_t sizes[] = {tall ? columns : rows, tall ? rows : columns};
    cup_tensor *drawn = cup_normal(c, CUP_F64, 2, sizes, 0, 1);
    size_t bytes = (size_t)all * sizeof(double);
    double *host = cup__malloc(bytes);
    cup_tensor *t = NULL;
    if (!host)
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for an orthogonal matrix");
    else if (cup_tensor_read(drawn, host, bytes) == CUP_OK) {
        orthogonalise(host, sizes[0], sizes[1]);
        t = cup_scale(c, cup_tensor_from(c, CUP_F64, 2, sizes, host), gain);
        if (tall)
            t = cup_permute(c, t, (int64_t[]){1, 0}, 2);
        t = cup_copy(c, cup_reshape(c, cup_cast(c, t, dtype), ndim, shape));
    }
    cup__free(host);
    return t;
}

static cup_tensor *draw(cup_context *c, const kind *k, cup_dtype dtype, int ndim,
                        const int64_t *shape, double deviation)
{
    double most = sqrt(3) * deviation;
    switch (k->family) {
    case NORMAL:
        return cup_normal(c, dtype, ndim, shape, 0, deviation);
    case UNIFORM:
        return cup_uniform(c, dtype, ndim, shape, -most, most);
    case ORTHOGONAL:
        return orthogonal(c, dtype, ndim, shape, deviation);
    case CONSTANT:
        break;
    }
    return cup_full(c, dtype, ndim, shape, k->value);
}

bool cup__dtype_learns(cup_dtype dtype)
{
    return cup__dtype_is_float(dtype) && cup_dtype_size(dtype) > 1;
}

static cup_status check(cup_context *c, const char *name, cup_dtype dtype, int ndim,
                        const cup_parameter_options *o)
{
    if ((int)o->initializer < 0 || (int)o->initializer >= KINDS)
        return cup__fail(&c->error, CUP_ARGUMENT, "parameter %.200s: initializer %d is none", name,
                         (int)o->initializer);
    if ((int)o->part < 0 || o->part > CUP_PART_EXPERTS_COLUMNS)
        return cup__fail(&c->error, CUP_ARGUMENT, "parameter %.200s: part %d is none", name,
                         (int)o->part);
    const kind *k = &kinds[o->initializer];
    if (k->fans && ndim < 2)
        return cup__fail(&c->error, CUP_SHAPE,
                         "parameter %.200s: the %s initializer needs at least 2 dimensions, not %d",
                         name, k->name, ndim);
    if (!(o->deviation >= 0 && o->deviation < INFINITY) || !(o->gain >= 0 && o->gain < INFINITY) ||
        !(o->rate >= 0 && o->rate < INFINITY))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "parameter %.200s: deviation %g, gain %g and rate %g must be finite and "
                         "at least 0",
                         name, o->deviation, o->gain, o->rate);
    if (o->buffer && k->family != CONSTANT)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "parameter %.200s: a buffer begins with zeros or ones, not with %s "
                         "numbers",
                         name, k->name);
    if (!o->buffer && !cup__dtype_learns(dtype))
        return cup__fail(&c->error, CUP_DTYPE,
                         "parameter %.200s: numbers of %s cannot be learned; make it a buffer",
                         name, cup_dtype_name(dtype));
    return CUP_OK;
}

cup_tensor *cup__initial(cup_context *c, const char *name, cup_dtype dtype, int ndim,
                         const int64_t *shape, const cup_parameter_options *options)
{
    cup__shape wanted = {.dtype = dtype, .ndim = ndim};
    int64_t count;
    if (check(c, name, dtype, ndim, options) != CUP_OK)
        return NULL;
    if (ndim > 0 && !shape) {
        cup__fail(&c->error, CUP_ARGUMENT, "parameter %.200s: its shape is NULL", name);
        return NULL;
    }
    if (ndim > 0 && ndim <= CUP_MAX_DIMS)
        memcpy(wanted.size, shape, sizeof *shape * (size_t)ndim);
    if (cup__shape_check(&c->error, &wanted, &count) != CUP_OK) {
        cup__error_prefix(&c->error, "parameter %.200s: ", name);
        return NULL;
    }
    const kind *k = &kinds[options->initializer];
    cup__random before = c->random;
    bool was = cup_grad_recording(c, false);
    cup_scope_open(c);
    bool named = k->family != CONSTANT && !k->in_order;
    if (named)
        cup_random_step(c, cup__hash_bytes(name, strlen(name)));
    cup_tensor *t = cup_keep(
        draw(c, k, dtype, ndim, wanted.size, deviation_of(k, ndim, wanted.size, options)));
    cup__scope_pop(c);
    if (named) {
        cup_random_step(c, before.step);
        c->random.sequence = before.sequence;
    }
    cup_grad_recording(c, was);
    return t;
}

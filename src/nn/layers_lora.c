/* What is learned beside linear layers that stay as they are. */
#ifdef CUP_LAYERS_H
/* What is learned beside a linear layer whose own weights stay as they are, as two factors with few
 * numbers: x [..,in] to alpha / rank (x A^T) B^T [..,out]. "lora_A.weight" [rank,in] begins uniform
 * between -+ 1 / sqrt(in), "lora_B.weight" [out,rank] with zeros; both have weight decay and are
 * Muon's. Where the linear layer is several that are computed as one, as that of queries, keys and
 * values is, each may have factors of its own, by its number: "lora_A.0.weight". Hu and others
 * 2021, "LoRA: low-rank adaptation of large language models". A linear layer adds what its `lora`
 * gives, before its activation:
 *
 *     cup_lora_layer_new(&beside, list, "beside", 64, 3, 8, NULL);
 *     down.lora = &beside;
 */
#define CUP_LORA_PARTS 3
typedef struct cup_lora_layer {
    cup_layer layer;
    cup_tensor *a[CUP_LORA_PARTS], *b[CUP_LORA_PARTS];
    int parts;
    double scale; /* alpha / rank */
} cup_lora_layer;

typedef struct cup_lora_layer_options {
    size_t size;
    double alpha;  /* 0: the rank */
    cup_ints rows; /* outputs of each part, at most CUP_LORA_PARTS of them; none: one of all */
    /* In a list that several processes share out, that of the linear layer: beside ROWS each has
     * all of A and its rows of B; beside COLUMNS its columns of A and all of B, so that what it
     * gives is a part of the sum that the linear layer makes over processes. */
    cup_part part;
    int64_t sections[3]; /* of ROWS without parts, see cup_parameter_options */
} cup_lora_layer_options;

CUP_API cup_status cup_lora_layer_new(cup_lora_layer *layer, cup_parameters *list,
                                      const char *name, int64_t in, int64_t out, int64_t rank,
                                      const cup_lora_layer_options *options);
CUP_API cup_tensor *cup_lora_layer_call(const cup_lora_layer *layer, cup_tensor *x);

/* What it gives of x, added to y [..,out]. */
CUP_API cup_tensor *cup_lora_layer_add(const cup_lora_layer *layer, cup_tensor *x, cup_tensor *y);

/* Adds alpha / rank B A to the weight [out,in] of the layer that it stands beside, in f32 (in f64
 * for one of f64) with one rounding, so that the layer gives the same without it; of a part of the
 * weight to that part. Nothing is recorded. */
CUP_API cup_status cup_lora_layer_merge(const cup_lora_layer *layer, cup_tensor *weight);
#endif
#include <math.h>
#include <stdio.h>

#include "base/options.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "nn/layers.h"
#include "tensor/tensor.h"

CUP__LAYER_CALL(lora)

static cup_status check_lora(cup_parameters *list, int64_t out, const cup_lora_layer_options *o)
{
    cup_context *c = cup__parameters_context(list);
    int64_t sum = 0;
    if (!(o->alpha >= 0 && isfinite(o->alpha)))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "lora under \"%s\": alpha must be a number of at least 0, not %g",
                         cup__parameters_prefix(list), o->alpha);
    if ((int)o->part < 0 || o->part > CUP_PART_COLUMNS)
        return cup__fail(&c->error, CUP_ARGUMENT, "lora under \"%s\": there is no part %d",
                         cup__parameters_prefix(list), (int)o->part);
    if (o->rows.count < 0 || o->rows.count > CUP_LORA_PARTS ||
        (o->rows.count > 0 && !o->rows.values))
        return cup__fail(&c->error, CUP_ARGUMENT, "lora under \"%s\": %d parts; there can be %d",
                         cup__parameters_prefix(list), o->rows.count, CUP_LORA_PARTS);
    for (int i = 0; i < o->rows.count; i++) {
        CUP_TRY(cup__layer_size(list, "rows of a part", o->rows.values[i]));
        sum += o->rows.values[i];
    }
    if (o->rows.count == 0 || sum == out)
        return CUP_OK;
    return cup__fail(&c->error, CUP_ARGUMENT,
                     "lora under \"%s\": its parts have %lld rows together, and its outputs are "
                     "%lld",
                     cup__parameters_prefix(list), (long long)sum, (long long)out);
}

static void make_factors(cup_lora_layer *layer, cup_parameters *list, int part, int64_t in,
                         int64_t out, int64_t rank, const cup_lora_layer_options *o)
{
    char a[32] = "lora_A.weight", b[32] = "lora_B.weight";
    if (layer->parts > 1) {
        snprintf(a, sizeof a, "lora_A.%d.weight", part);
        snprintf(b, sizeof b, "lora_B.%d.weight", part);
    }
    cup_parameter_options options = {.size = sizeof options,
                                     .initializer = CUP_INITIALIZER_KAIMING_UNIFORM,
                                     .gain = 1 / sqrt(3),
                                     .decay = true,
                                     .hidden = true};
    if (o->part == CUP_PART_COLUMNS)
        options.part = CUP_PART_COLUMNS;
    layer->a[part] = cup_parameter_new(list, a, 2, (int64_t[]){rank, in}, &options);
    options.initializer = CUP_INITIALIZER_ZEROS;
    options.part = o->part == CUP_PART_ROWS ? CUP_PART_ROWS : CUP_PART_WHOLE;
    for (int i = 0; i < 3 && layer->parts == 1 && options.part == CUP_PART_ROWS; i++)
        options.sections[i] = o->sections[i];
    layer->b[part] = cup_parameter_new(list, b, 2, (int64_t[]){out, rank}, &options);
}

cup_status cup_lora_layer_new(cup_lora_layer *layer, cup_parameters *list, const char *name,
                              int64_t in, int64_t out, int64_t rank,
                              const cup_lora_layer_options *options)
{
    cup_lora_layer_options o;
    list = cup_parameters_under(list, name);
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_lora));
    cup_context *c = cup__parameters_context(list);
    if (cup__options_take(&c->error, "lora", &o, sizeof o, options) == CUP_OK &&
        cup__layer_size(list, "in", in) == CUP_OK && cup__layer_size(list, "out", out) == CUP_OK &&
        cup__layer_size(list, "the rank", rank) == CUP_OK && check_lora(list, out, &o) == CUP_OK) {
        layer->parts = o.rows.count ? o.rows.count : 1;
        layer->scale = (o.alpha == 0 ? (double)rank : o.alpha) / (double)rank;
        for (int i = 0; i < layer->parts; i++)
            make_factors(layer, list, i, in, o.rows.count ? o.rows.values[i] : out, rank, &o);
    }
    return cup__layer_end(layer, sizeof *layer);
}

/* The As of all parts one below the other, [parts rank,in]. */
static cup_tensor *all_a(const cup_lora_layer *layer, cup_context *c)
{
    return layer->parts == 1 ? layer->a[0] : cup_concat(c, layer->a, layer->parts, 0);
}

/* The Bs of all parts along the diagonal, [out,parts rank]: so small that zeros beside them cost
 * less than products apart. */
static cup_tensor *all_b(const cup_lora_layer *layer, cup_context *c)
{
    cup_tensor *wide[CUP_LORA_PARTS];
    if (layer->parts == 1)
        return layer->b[0];
    for (int i = 0; i < layer->parts; i++) {
        int64_t rank = layer->b[i]->shape[1];
        const int64_t before[] = {0, i * rank}, after[] = {0, (layer->parts - 1 - i) * rank};
        wide[i] = cup_pad(c, layer->b[i], before, 2, after, 2, NULL);
    }
    return cup_concat(c, wide, layer->parts, 0);
}

static cup_context *context_of(const cup_lora_layer *layer, cup_tensor *x)
{
    return cup__layer_context((const cup_layer *)layer, x);
}

/* alpha / rank x A^T */
static cup_tensor *narrow(const cup_lora_layer *layer, cup_context *c, cup_tensor *x)
{
    cup_tensor *y = cup_linear(c, x, all_a(layer, c), NULL);
    return layer->scale == 1 ? y : cup_scale(c, y, layer->scale);
}

cup_tensor *cup_lora_layer_call(const cup_lora_layer *layer, cup_tensor *x)
{
    cup_context *c = context_of(layer, x);
    if (!c)
        return NULL;
    cup_scope_open(c);
    return cup_scope_return(c, cup_linear(c, narrow(layer, c, x), all_b(layer, c), NULL));
}

cup_tensor *cup_lora_layer_add(const cup_lora_layer *layer, cup_tensor *x, cup_tensor *y)
{
    cup_context *c = context_of(layer, x);
    if (!c)
        return NULL;
    cup_scope_open(c);
    return cup_scope_return(c, cup_linear_add(c, narrow(layer, c, x), all_b(layer, c), y, NULL));
}

static void merge(const cup_lora_layer *layer, cup_context *c, cup_tensor *weight)
{
    cup_dtype dtype = weight->dtype == CUP_F64 ? CUP_F64 : CUP_F32;
    cup_tensor *a = cup_cast(c, all_a(layer, c), dtype), *b = cup_cast(c, all_b(layer, c), dtype);
    cup_tensor *sum = cup_add(c, cup_cast(c, weight, dtype),
                              cup_scale(c, cup_matmul(c, b, a, false, false), layer->scale));
    cup_copy_into(c, weight, cup_cast(c, sum, weight->dtype));
}

cup_status cup_lora_layer_merge(const cup_lora_layer *layer, cup_tensor *weight)
{
    cup_context *c = context_of(layer, weight);
    if (!c)
        return weight ? cup_tensor_context(weight)->error.status : CUP_ARGUMENT;
    CUP_TRY(c->error.status);
    bool was = cup_grad_recording(c, false);
    cup__precision precision = c->precision;
    c->precision = CUP__HIGHEST;
    cup_scope_open(c);
    merge(layer, c, weight);
    cup_scope_return(c, NULL);
    c->precision = precision;
    cup_grad_recording(c, was);
    return c->error.status;
}

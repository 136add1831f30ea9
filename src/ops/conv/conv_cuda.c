/* The kernels without tensor cores: knobs, grids and launches. */
#include "ops/conv/conv_cuda.h"

#include "base/divide.h"
#include "ops/lowbit/scaled.h"

#define TILE 64         /* of conv_simt.cu and conv_weight.cu, which have another of 128 */
#define LARGE_TILE 128
#define GRID_YZ_MOST 65535
#define MOST_BLOCKS ((int64_t)INT32_MAX)
#define MOST_EACH 4     /* channels and results of a group that a thread takes by itself */
#define LEAST_PART 256  /* places */
#define MOST_PARTS 256
#define MOST_SUMS ((int64_t)1 << 26) /* elements of all parts, where there are several */
#define SLICES 8        /* of parts that warps add at the same time, */
#define MANY 65536      /* where there are fewer elements */

/* Along what the image's elements are neighbours. */
static int along_of(const conv_call *c)
{
    return c->x_step[1] == 1 && c->x_step[3] != 1 ? CONV_ALONG_CHANNELS : CONV_ALONG_ROWS;
}

conv_tiles cup__conv_tiles_of(const conv_call *c, int64_t tile_places, int64_t tile_results,
                              int64_t *blocks)
{
    conv_tiles t = {0};
    int64_t places = c->images, classes = 1;
    for (int d = 0; d < 2; d++) {
        t.classes[d] = (unsigned)conv_classes(&c->side[d], c->back);
        classes *= t.classes[d];
        places *= conv_line_of(&c->side[d], c->back, 0).count;
    }
    int64_t place_tiles = divide_up(places, tile_places);
    int64_t result_tiles = divide_up(c->results, tile_results);
    t.places = (unsigned)place_tiles;
    t.results = (unsigned)result_tiles;
    *blocks = classes && place_tiles > MOST_BLOCKS / result_tiles / classes
                  ? MOST_BLOCKS + 1
                  : place_tiles * result_tiles * classes;
    return t;
}

const char *cup__conv_simt_refuses(const cup__call *call)
{
    const conv_call c = cup__conv_of(call).call;
    int64_t blocks, taps = (int64_t)c.side[0].taps * c.side[1].taps;
    if (cup__conv_is_scaled(call) && cup__scaled_refuses(call))
        return cup__scaled_refuses(call);
    if (call->result[0].size[0] == 0 || call->result[0].size[1] == 0 || c.images == 0)
        return NULL;
    if (c.channels && taps > INT32_MAX / 2 / c.channels)
        return "a result is a sum of more than 2^30 products";
    cup__conv_tiles_of(&c, TILE, TILE, &blocks);
    return blocks > MOST_BLOCKS ? "it has more tiles than a grid has blocks" : NULL;
}

const char *cup__conv_few_refuses(const cup__call *call)
{
    const conv_call c = cup__conv_of(call).call;
    if (c.groups == 1 || c.channels > MOST_EACH || c.results > MOST_EACH)
        return "its groups have more channels than a thread should sum by itself";
    int64_t image = (int64_t)c.groups * c.results, classes = 1;
    for (int d = 0; d < 2; d++) {
        int64_t side = c.back ? c.side[d].in : c.side[d].out;
        if (side && image > INT32_MAX / side)
            return "an image is too large for 32 bits";
        image *= side;
        classes *= conv_classes(&c.side[d], c.back);
    }
    return classes > GRID_YZ_MOST ? "its strides are too large" : cup__conv_simt_refuses(call);
}

cup_status cup__conv_simt(cup__call *call)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__conv v = cup__conv_of(call);
    if (call->out[0]->count == 0)
        return CUP_OK;
    int64_t blocks, tile = LARGE_TILE;
    conv_tiles tiles = cup__conv_tiles_of(&v.call, tile, tile, &blocks);
    if (v.dtype == CUP_F64 || v.call.results <= TILE ||
        blocks * v.call.groups < cup__cuda_facts(gpu)->multiprocessors) {
        tile = TILE;
        tiles = cup__conv_tiles_of(&v.call, tile, tile, &blocks);
    }
    cup__knob knobs[] = {{"CUP_T", v.dtype}, {"TILE", tile}, {"ALONG", along_of(&v.call)},
                         {"Y_T", v.y_dtype}};
    cup__kernel *kernel = cup__kernel_get(gpu, "conv_simt.cu", "conv_simt", knobs, 4);
    if (!kernel)
        return call->c->error.status;
    cup__grid grid = {.x = blocks, .y = smaller(v.call.groups, GRID_YZ_MOST),
                      .threads = CONV_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(v.call), CUP__ARG(tiles));
}

cup_status cup__conv_few(cup__call *call)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__conv v = cup__conv_of(call);
    if (call->out[0]->count == 0)
        return CUP_OK;
    int64_t blocks, all = (int64_t)v.call.groups * v.call.results;
    conv_tiles tiles = cup__conv_tiles_of(&v.call, CONV_THREADS, 1, &blocks);
    for (int d = 0; d < 2; d++)
        all *= conv_line_of(&v.call.side[d], v.call.back, 0).count;
    cup__knob knobs[] = {{"CUP_T", v.dtype}, {"ALONG", along_of(&v.call)}, {"Y_T", v.y_dtype}};
    cup__kernel *kernel = cup__kernel_get(gpu, "conv_direct.cu", "conv_direct", knobs, 3);
    if (!kernel)
        return call->c->error.status;
    cup__grid grid = {.x = divide_up(all, CONV_THREADS), .y = smaller(v.call.images, GRID_YZ_MOST),
                      .z = (int64_t)tiles.classes[0] * tiles.classes[1], .threads = CONV_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(v.call), CUP__ARG(tiles));
}

cup_tensor *cup__conv_parts_make(cup__call *call, const cup__conv *v, int64_t blocks, int64_t step,
                                 conv_parts *out)
{
    const conv_call *c = &v->call;
    int64_t depth = (int64_t)c->channels * c->side[0].taps * c->side[1].taps;
    int64_t size = (int64_t)c->groups * c->results * depth;
    int64_t all = (int64_t)c->images * c->side[0].out * c->side[1].out;
    int64_t busy = 2 * cup__cuda_facts(cup__cuda_of(call->c->device))->multiprocessors;
    int64_t parts = smaller(divide_up(busy, blocks), divide_up(all, LEAST_PART));
    parts = smaller(smaller(parts, MOST_PARTS), MOST_SUMS / size);
    int64_t part = round_up(divide_up(all, parts > 0 ? parts : 1), step);
    *out = (conv_parts){.all = all, .part = part, .parts = (int)divide_up(all, part),
                        .depth = (int)depth};
    cup__shape shape = {v->dtype == CUP_F64 ? CUP_F64 : CUP_F32, 2, {out->parts, size}};
    cup_tensor *sums = cup__tensor_make(call->c, &shape, "partial sums");
    out->sums = sums ? sums->data : NULL;
    return sums;
}

/* Parts with what their sums are added to; whether there is something. */
static bool take_base(conv_parts *p, const cup__conv *v)
{
    p->base = v->residual;
    for (int d = 0; d < 4; d++)
        p->base_step[d] = v->residual_step[d];
    return v->residual != NULL;
}

cup_status cup__conv_join(cup__call *call, const cup__conv *v, const conv_parts *p, int along)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    conv_parts all_parts = *p;
    cup__knob knobs[] = {{"CUP_T", v->dtype},
                         {"SUM_T", v->dtype == CUP_F64 ? CUP_F64 : CUP_F32},
                         {"ALONG", along},
                         {"BASE", true}};
    int count = take_base(&all_parts, v) ? 4 : 3;
    cup__kernel *kernel = cup__kernel_get(gpu, "conv_join.cu", "conv_join", knobs, count);
    if (!kernel)
        return call->c->error.status;
    int64_t all = (int64_t)v->call.groups * v->call.results * p->depth;
    cup__grid grid = {.x = smaller(divide_up(all, CONV_THREADS), MOST_BLOCKS),
                      .threads = CONV_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(v->call), CUP__ARG(all_parts));
}

cup_status cup__conv_add_parts(cup__call *call, const cup__conv *v, const conv_parts *p)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    int64_t all = (int64_t)v->call.results * p->depth;
    int slices = all < MANY && p->parts >= SLICES ? SLICES : 1;
    conv_parts all_parts = *p;
    bool scaled = v->call.x_scale != NULL, based = take_base(&all_parts, v);
    cup__knob knobs[] = {
        {"CUP_T", v->dtype}, {"SLICES", slices}, {"BASE", based}, {"SCALED", scaled}};
    int count = scaled ? 4 : based ? 3 : 2;
    cup__kernel *kernel = cup__kernel_get(gpu, "conv_sums.cu", "conv_sums", knobs, count);
    cup__grid grid = {.x = divide_up(all, CONV_THREADS / slices), .threads = CONV_THREADS,
                      .dependent = true};
    return kernel ? cup__launch(gpu, kernel, grid, CUP__ARG(v->call), CUP__ARG(all_parts))
                  : call->c->error.status;
}

/* The sums over no place are zeros, which conv_join finds in no part. */
static cup_status no_places(cup__call *call, const cup__conv *v)
{
    conv_parts none = {.depth = v->call.channels * v->call.side[0].taps * v->call.side[1].taps};
    return cup__conv_join(call, v, &none, CONV_ALONG_ROWS);
}

static cup_status simt_sums(cup__call *call, const cup__conv *v, int along)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const conv_call *c = &v->call;
    int64_t depth = (int64_t)c->channels * c->side[0].taps * c->side[1].taps;
    int64_t tile = v->dtype == CUP_F64 || c->results <= TILE || depth <= TILE ? TILE : LARGE_TILE;
    int64_t depths = divide_up(depth, tile), results = divide_up(c->results, tile);
    conv_parts parts;
    cup_tensor *sums = cup__conv_parts_make(call, v, depths * results * c->groups, TILE, &parts);
    parts.results = (unsigned)results;
    parts.depths = (unsigned)depths;
    cup__knob knobs[] = {{"CUP_T", v->dtype}, {"TILE", tile}, {"ALONG", along}};
    cup__kernel *kernel =
        sums ? cup__kernel_get(gpu, "conv_weight.cu", "conv_weight", knobs, 3) : NULL;
    cup__grid grid = {.x = depths * results, .y = smaller(c->groups, GRID_YZ_MOST),
                      .z = parts.parts, .threads = CONV_THREADS};
    if (kernel && cup__launch(gpu, kernel, grid, CUP__ARG(v->call), CUP__ARG(parts)) == CUP_OK)
        cup__conv_join(call, v, &parts, along);
    cup_tensor_free(sums);
    return call->c->error.status;
}

static cup_status few_sums(cup__call *call, const cup__conv *v, int along)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const conv_call *c = &v->call;
    int64_t pairs = (int64_t)c->groups * c->results * c->channels;
    int64_t taps = (int64_t)c->side[0].taps * c->side[1].taps;
    int64_t blocks = divide_up(pairs, along == CONV_ALONG_CHANNELS ? 32 : 1);
    conv_parts parts;
    cup_tensor *sums = cup__conv_parts_make(call, v, blocks * taps, CONV_THREADS, &parts);
    cup__knob knobs[] = {{"CUP_T", v->dtype}, {"ALONG", along}};
    cup__kernel *kernel = sums ? cup__kernel_get(gpu, "conv_weight_direct.cu", "conv_weight_direct",
                                                 knobs, 2)
                               : NULL;
    cup__grid grid = {.x = blocks, .y = smaller(taps, GRID_YZ_MOST), .z = parts.parts,
                      .threads = CONV_THREADS};
    if (kernel && cup__launch(gpu, kernel, grid, CUP__ARG(v->call), CUP__ARG(parts)) == CUP_OK)
        cup__conv_join(call, v, &parts, along);
    cup_tensor_free(sums);
    return call->c->error.status;
}

/* Sums over all places, or none. */
static cup_status weight_of(cup__call *call,
                            cup_status (*sums)(cup__call *call, const cup__conv *v, int along))
{
    cup__conv v = cup__conv_of(call);
    if (call->out[0]->count == 0)
        return CUP_OK;
    return v.call.images == 0 ? no_places(call, &v) : sums(call, &v, along_of(&v.call));
}

cup_status cup__conv_weight_simt(cup__call *call)
{
    return weight_of(call, simt_sums);
}

cup_status cup__conv_weight_few(cup__call *call)
{
    return weight_of(call, few_sums);
}

/* The host side of conv_mma.cu and conv_mma_weight.cu. */
#include <string.h>

#include "base/divide.h"
#include "cupola/ops.h"
#include "ops/conv/conv_cuda.h"

#define TILE 128
#define SMALL_TILE 64
#define NARROW 32        /* results up to which tiles are no wider, beside TILE of the others */
#define LINE_BYTES 64    /* of k in a stage */
#define STAGES 4
#define FIXED 4096       /* bytes of shared memory beside the stages, at most */
#define LEAST 16         /* elements of the columns of a group that make a tile */
#define GRID_YZ_MOST 65535
#define MOST_INPUTS 5

const char *cup__conv_mma_refuses(const cup__call *call)
{
    if (!call->c->device->is_cuda)
        return "it is for GPUs";
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(call->c->device));
    cup__conv v = cup__conv_of(call);
    const conv_call *c = &v.call;
    bool newer = v.dtype == CUP_BF16 || v.dtype == CUP_F32;
    if (!newer && v.dtype != CUP_F16 && v.dtype != CUP_I8 && v.dtype != CUP_F8E4M3)
        return "it multiplies f32, bf16, f16 and codes of 8 bits only";
    if (facts->major * 10 + facts->minor < (newer ? 80 : 75))
        return v.dtype == CUP_BF16  ? "the tensor cores of this card do not know bf16"
               : v.dtype == CUP_F32 ? "the tensor cores of this card do not know tf32"
                                    : "the card has no tensor cores it can use";
    if (v.dtype == CUP_F32 && call->c->precision == CUP__HIGHEST)
        return "it takes f32 where products may be rounded (CUP_PRECISION=high)";
    int64_t depth = (int64_t)c->channels * c->side[0].taps * c->side[1].taps;
    if (c->results == 0 || depth < LEAST)
        return "a group has too few elements for a tile";
    if (call->op->kind == CUP__CONV_WEIGHT &&
        (int64_t)c->images * c->side[0].out > INT32_MAX / (c->side[1].out + 1) - TILE)
        return "the places are too many for 32 bits";
    return cup__conv_simt_refuses(call);
}

/* Channels as neighbours: the tensor itself where they are, else a copy that lies so. `first` is
 * the dimension that takes their part. */
static cup_tensor *channels_last(cup_context *c, cup_tensor *t, int first)
{
    const int64_t out[2][4] = {{1, 2, 3, 0}, {0, 2, 3, 1}}, back[2][4] = {{3, 0, 1, 2},
                                                                         {0, 3, 1, 2}};
    if (t->stride[first] == 1 || t->shape[first] == 1)
        return t;
    cup_tensor *turned = cup_permute(c, t, out[first], 4);
    cup_tensor *copy = turned ? cup_copy(c, turned) : NULL;
    cup_tensor *last = copy ? cup_permute(c, copy, back[first], 4) : NULL;
    cup_tensor_free(turned);
    cup_tensor_free(copy);
    return last;
}

/* Runs with both inputs so, and without what is remembered of the call's own memory. */
static cup_status run_last(cup__call *call, cup_status (*run)(cup__call *call))
{
    cup_context *c = call->c;
    cup_tensor **given = call->in;
    cup_tensor *in[MOST_INPUTS];
    memcpy(in, given, (size_t)call->in_count * sizeof *in);
    in[0] = channels_last(c, given[0], 1);
    in[1] = channels_last(c, given[1], call->op->kind == CUP__CONV_INPUT ? 0 : 1);
    call->in = in;
    if (in[0] && in[1])
        run(call);
    call->in = given;
    for (int i = 0; i < 2; i++)
        if (in[i] != given[i])
            cup_tensor_free(in[i]);
    return c->error.status;
}

/* How many neighbouring channels can be read at once wherever a tap lies. */
static int vector_of(const void *data, const long long step[4], int channel, long long group,
                     int channels, int size)
{
    int64_t steps = channels | group;
    for (int i = 0; i < 4; i++)
        steps |= i == channel ? 0 : step[i];
    int vector = 16 / size;
    while (vector > 1 && (lowest_bit(steps) < vector || (uintptr_t)data % (size_t)(size * vector)))
        vector /= 2;
    return vector;
}

/* Tiles of a product, over which warps are spread so that the narrow side has as few as it can. */
typedef struct tiling {
    int64_t m, n;
    int warps_m, stages, shared; /* bytes */
} tiling;

static int narrow(int64_t results)
{
    return results <= NARROW / 2 ? NARROW / 2 : NARROW;
}

static tiling tiling_of(const cup__cuda *gpu, int64_t m, int64_t n)
{
    tiling t = {m, n, n <= NARROW ? 8 : m <= NARROW ? 1 : 2, STAGES, 0};
    int room = cup__cuda_facts(gpu)->shared_per_block - FIXED;
    while (t.stages > 2 && t.stages * (m + n) * LINE_BYTES > room)
        t.stages--;
    t.shared = (int)(t.stages * (m + n) * LINE_BYTES);
    return t;
}

/* Whether results that are neighbours can be written two at a time. */
static bool writes_pairs(const cup__conv *v)
{
    const conv_call *c = &v->call;
    uintptr_t pair = 2 * (uintptr_t)cup_dtype_size(v->y_dtype);
    long long steps = c->y_step[0] | c->y_step[2] | c->y_step[3] | c->y_group | c->results;
    return c->y_step[1] == 1 && steps % 2 == 0 && (uintptr_t)c->y % pair == 0;
}

static cup_status launch(cup__call *call)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__conv v = cup__conv_of(call);
    const conv_call *c = &v.call;
    int64_t blocks;
    tiling t = tiling_of(gpu, TILE, c->results <= NARROW ? narrow(c->results) : TILE);
    conv_tiles tiles = cup__conv_tiles_of(c, t.m, t.n, &blocks);
    if (c->results > NARROW && (c->results <= SMALL_TILE ||
                                blocks * c->groups < cup__cuda_facts(gpu)->multiprocessors)) {
        t = tiling_of(gpu, SMALL_TILE, SMALL_TILE);
        tiles = cup__conv_tiles_of(c, t.m, t.n, &blocks);
    }
    int size = (int)cup_dtype_size(v.dtype);
    int vector = (int)smaller(vector_of(c->x, c->x_step, 1, c->x_group, c->channels, size),
                              vector_of(c->w, c->w_step, 1, c->w_group, c->channels, size));
    cup__knob knobs[] = {{"CUP_T", v.dtype},   {"TILE_M", t.m}, {"TILE_N", t.n},
                         {"WARPS_M", t.warps_m}, {"STAGES", t.stages}, {"A_VEC", vector},
                         {"PAIRS", writes_pairs(&v)}, {"Y_T", v.y_dtype}, {"B_T", v.dtype},
                         {"FAST", v.fast}};
    cup__kernel *kernel = cup__kernel_get(gpu, "conv_mma.cu", "conv_mma", knobs,
                                          cup__conv_is_scaled(call) ? 10 : 7);
    if (!kernel)
        return call->c->error.status;
    cup__grid grid = {.x = blocks, .y = smaller(c->groups, GRID_YZ_MOST), .threads = CONV_THREADS,
                      .shared = t.shared};
    return cup__launch(gpu, kernel, grid, CUP__ARG(v.call), CUP__ARG(tiles));
}

cup_status cup__conv_mma(cup__call *call)
{
    return call->out[0]->count ? run_last(call, launch) : CUP_OK;
}

static cup_status launch_weight(cup__call *call)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__conv v = cup__conv_of(call);
    const conv_call *c = &v.call;
    int64_t depth = (int64_t)c->channels * c->side[0].taps * c->side[1].taps;
    int size = (int)cup_dtype_size(v.dtype);
    int64_t tile = c->results <= SMALL_TILE || depth <= SMALL_TILE ? SMALL_TILE : TILE;
    tiling t = c->results <= NARROW ? tiling_of(gpu, narrow(c->results), TILE)
                                    : tiling_of(gpu, tile, tile);
    conv_parts parts;
    int64_t depths = divide_up(depth, t.n), results = divide_up(c->results, t.m);
    cup_tensor *sums = cup__conv_parts_make(call, &v, depths * results * c->groups, TILE, &parts);
    parts.depths = (unsigned)depths;
    parts.results = (unsigned)results;
    parts.by_columns = divisor_of(c->side[1].out);
    parts.by_rows = divisor_of(c->side[0].out);
    cup__knob knobs[] = {{"CUP_T", v.dtype},
                         {"TILE_M", t.m},
                         {"TILE_N", t.n},
                         {"WARPS_M", t.warps_m},
                         {"STAGES", t.stages},
                         {"A_VEC", vector_of(c->w, c->w_step, 1, c->w_group, c->results, size)},
                         {"B_VEC", vector_of(c->x, c->x_step, 1, c->x_group, c->channels, size)}};
    cup__kernel *kernel =
        sums ? cup__kernel_get(gpu, "conv_mma_weight.cu", "conv_mma_weight", knobs, 7) : NULL;
    cup__grid grid = {.x = depths * results, .y = smaller(c->groups, GRID_YZ_MOST),
                      .z = parts.parts, .threads = CONV_THREADS, .shared = t.shared};
    if (kernel && cup__launch(gpu, kernel, grid, CUP__ARG(v.call), CUP__ARG(parts)) == CUP_OK)
        cup__conv_join(call, &v, &parts, CONV_ALONG_CHANNELS);
    cup_tensor_free(sums);
    return call->c->error.status;
}

cup_status cup__conv_weight_mma(cup__call *call)
{
    if (call->out[0]->count == 0)
        return CUP_OK;
    return call->in[1]->shape[0] == 0 ? cup__conv_weight_simt(call)
                                      : run_last(call, launch_weight);
}

/* The host side of kv_attention_wgmma.cu. */
#include "base/divide.h"
#include "cuda/loader.h"
#include "dispatch/tensor_map.h"
#include "ops/kv_cache/kv_attention_cuda.h"

#define TILE_BYTES 16384 /* of keys, or of values */
#define RESERVED 1024    /* of shared memory, by the driver for each block */
#define ROWS 64
#define SIZE_MOST 128
#define TILES_ROWS 16 /* up to which kv_attention_tiles.cu holds the rows of a head in one warp */
#define SHARE_LEAST 512 /* keys that are worth a block */

static int64_t padded(const cup__kv *kv)
{
    return round_up(kv->size, 64);
}

/* Keys of a tile. */
static int64_t step_of(const cup__kv *kv)
{
    return TILE_BYTES / 2 / padded(kv);
}

/* Keys of a box, which is of one page; 0 where pages and tiles do not end together. */
static int64_t box_of(const cup__kv *kv)
{
    int64_t step = step_of(kv);
    if (!kv->table || kv->page % step == 0)
        return step;
    return step % kv->page == 0 && kv->page % 8 == 0 ? kv->page : 0;
}

/* Slots of the ring, where two blocks share a multiprocessor. */
static int64_t slots_of(int shared)
{
    return ((shared + RESERVED) / 2 - RESERVED) / (TILE_BYTES + 16);
}

static bool repeats(const cup_tensor *t)
{
    for (int i = 0; i < 3; i++)
        if (t->shape[i] > 1 && t->stride[i] == 0)
            return true;
    return false;
}

const char *cup__kv_wgmma_refuses(const cup__call *call)
{
    cup__kv_attention a = cup__kv_attention_of(call);
    const cup__kv *kv = &a.kv;
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(call->c->device));
    cup_dtype dtype = a.q->dtype;
    if (facts->major != 9)
        return "it is for Hopper (sm_90)";
    if (!cup__driver.cuTensorMapEncodeTiled)
        return "the driver is too old for tensor maps";
    if ((dtype != CUP_F16 && dtype != CUP_BF16) || kv->keys->dtype != dtype || kv->key_scales)
        return "it takes f16 and bf16 that are kept as they are";
    if (kv->size != kv->value_size || kv->size % 8 || kv->size > SIZE_MOST || kv->size == 0)
        return "keys and values must have heads of one size, a multiple of 8 up to 128";
    if (a.scale <= 0)
        return "the scale is not positive";
    if (!cup__kv_lies_in_16_bytes(a.q) || !cup__kv_lies_in_16_bytes(kv->keys) ||
        !cup__kv_lies_in_16_bytes(kv->values))
        return "rows do not begin at multiples of 16 bytes";
    if (kv->keys->count == 0 || repeats(kv->keys) || repeats(kv->values))
        return "there are no keys, or several in one place";
    if (!kv->table && a.heads / kv->heads * kv->tokens <= TILES_ROWS)
        return "for so few rows of a cache without pages tiles are as fast";
    if (!box_of(kv))
        return "pages and tiles of keys do not end together";
    return slots_of(facts->shared_per_block) < 2 ? "tiles do not fit in shared memory" : NULL;
}

static cup_status encode(cup__cuda *gpu, const cup__kv *kv, const cup_tensor *t, CUtensorMap *map)
{
    cup__boxes boxes = {.data = t->data,
                        .dtype = t->dtype,
                        .ndim = 4,
                        .size = {kv->size, t->shape[2], t->shape[1], t->shape[0]},
                        .box = {64, box_of(kv)}};
    /* A dimension of one element may have any stride; the driver wants a usable one. */
    for (int i = 1; i < 4; i++)
        boxes.stride[i] = 2 * (boxes.size[i] == 1 ? round_up(kv->size, 8) : t->stride[3 - i]);
    return cup__tensor_map_make(gpu, &boxes, map);
}

cup_status cup__kv_wgmma(cup__call *call)
{
    cup__kv_attention a = cup__kv_attention_of(call);
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup__gpu_facts *facts = cup__cuda_facts(gpu);
    int64_t rows = a.heads / a.kv.heads * a.kv.tokens, slots = slots_of(facts->shared_per_block);
    CUtensorMap maps[2];
    CUP_TRY(encode(gpu, &a.kv, a.kv.keys, &maps[0]));
    CUP_TRY(encode(gpu, &a.kv, a.kv.values, &maps[1]));
    cup__kv_kernel by = {.file = "kv_attention_wgmma.cu", .entry = "kv_sm90", .maps = maps};
    by.count = cup__kv_attention_knobs(&a, by.knobs);
    by.knobs[by.count++] = (cup__knob){"SIZE", padded(&a.kv)};
    by.knobs[by.count++] = (cup__knob){"STEP", step_of(&a.kv)};
    by.knobs[by.count++] = (cup__knob){"BOX", box_of(&a.kv)};
    by.knobs[by.count++] = (cup__knob){"SLOTS", slots};
    if (a.window < CUP__KV_POSITIONS)
        by.knobs[by.count++] = (cup__knob){"WINDOWED", 1};
    by.grid = (cup__grid){.x = a.kv.batch * a.kv.heads,
                          .z = divide_up(rows, ROWS),
                          .threads = 160,
                          .shared = (int)(slots * (TILE_BYTES + 16)),
                          .dependent = true};
    by.grid.y = cup__kv_shares(&a, by.grid.x * by.grid.z,
                               2 * facts->multiprocessors, SHARE_LEAST);
    return cup__kv_run(call, &by);
}

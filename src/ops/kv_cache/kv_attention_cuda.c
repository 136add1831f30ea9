/* The host side of kv_attention.cu and kv_attention_tiles.cu. How long sequences are stands on the
 * device: what is decided here goes by the room that they have. */
#include "ops/kv_cache/kv_attention_cuda.h"

#include <math.h>

#include "base/divide.h"

#define LOG2_E 1.4426950408889634
#define LANES_WARPS 8
#define LANES_ROWS 4
#define SIZE_MOST 256
#define SHARE_LEAST 256 /* keys that are worth a block */
#define ROWS_MOST 4 /* warps that stand one below the other in a tile */
#define STAGES_MOST 6

bool cup__kv_lies_in_16_bytes(const cup_tensor *t)
{
    int64_t elements = 16 / cup_dtype_size(t->dtype);
    return (uintptr_t)t->data % 16 == 0 && t->stride[3] == 1 && t->stride[0] % elements == 0 &&
           t->stride[1] % elements == 0 && t->stride[2] % elements == 0;
}

int64_t cup__kv_shares(const cup__kv_attention *a, int64_t blocks, int64_t busy, int64_t least)
{
    int64_t reach = a->window < a->kv.room ? a->window : a->kv.room;
    int64_t wanted = busy / (blocks > 0 ? blocks : 1), most = reach / least;
    int64_t shares = wanted < most ? wanted : most;
    return shares < 1 ? 1 : shares > KV_SHARES_MOST ? KV_SHARES_MOST : shares;
}

static kv_call call_of(const cup__kv_attention *a)
{
    kv_call c;
    cup__kv_fill(&c, &a->kv);
    c.q = cup__kv_heads(a->q);
    c.o = cup__kv_heads(a->o);
    c.sinks = a->sinks ? a->sinks->data : NULL;
    c.sinks_step = a->sinks ? a->sinks->stride[0] : 0;
    c.heads = (int)a->heads;
    c.window = (int)a->window;
    c.scale = a->soft_cap > 0 ? a->scale / a->soft_cap : a->scale * LOG2_E;
    c.cap = a->soft_cap * LOG2_E;
    return c;
}

int cup__kv_attention_knobs(const cup__kv_attention *a, cup__knob *out)
{
    int count = cup__kv_knobs(&a->kv, a->q->dtype, out);
    if (a->soft_cap > 0)
        out[count++] = (cup__knob){"SOFT_CAP", 1};
    if (a->sinks)
        out[count++] = (cup__knob){"SINKS", 1};
    return count;
}

static cup_status launch(cup__cuda *gpu, cup__kernel *kernel, const cup__kv_kernel *by,
                         const kv_call *argument)
{
    return by->maps ? cup__launch(gpu, kernel, by->grid, CUP__ARG(by->maps[0]),
                                  CUP__ARG(by->maps[1]), CUP__ARG(*argument))
                    : cup__launch(gpu, kernel, by->grid, CUP__ARG(*argument));
}

cup_status cup__kv_run(cup__call *call, const cup__kv_kernel *by)
{
    cup__kv_attention a = cup__kv_attention_of(call);
    cup_context *c = call->c;
    cup__cuda *gpu = cup__cuda_of(c->device);
    int64_t rows = a.kv.batch * a.heads * a.kv.tokens;
    kv_call argument = call_of(&a);
    if (rows == 0 || a.kv.value_size == 0)
        return CUP_OK;
    argument.shares = (int)by->grid.y;
    cup__shape room = {a.q->dtype == CUP_F64 ? CUP_F64 : CUP_F32, 1,
                       {rows * by->grid.y * (a.kv.value_size + 2)}};
    cup_tensor *part = by->grid.y > 1 ? cup__tensor_make(c, &room, "kv_attention") : NULL;
    if (by->grid.y > 1 && !part)
        return c->error.status;
    argument.part = part ? part->data : NULL;
    cup__kernel *kernel = cup__kernel_get(gpu, by->file, by->entry, by->knobs, by->count);
    cup_status status = kernel ? launch(gpu, kernel, by, &argument) : c->error.status;
    if (status == CUP_OK && part) {
        cup__knob knobs[CUP__KV_KNOBS];
        int count = cup__kv_attention_knobs(&a, knobs);
        kernel = cup__kernel_get(gpu, "kv_attention.cu", "kv_join", knobs, count);
        cup__grid grid = {.x = rows, .threads = 128, .dependent = true};
        status = kernel ? cup__launch(gpu, kernel, grid, CUP__ARG(argument)) : c->error.status;
    }
    cup_tensor_free(part);
    return status;
}

const char *cup__kv_lanes_refuses(const cup__call *call)
{
    cup__kv_attention a = cup__kv_attention_of(call);
    return a.kv.size > SIZE_MOST || a.kv.value_size > SIZE_MOST ? "heads have over 256 elements"
                                                                : NULL;
}

/* Elements a lane holds: an access of 16 bytes, or 8 of codes, or more where 32 lanes are too
 * few. */
static int64_t each_of(const cup__kv *kv)
{
    int64_t each = 16 / cup_dtype_size(kv->keys->dtype);
    int64_t larger = kv->size > kv->value_size ? kv->size : kv->value_size;
    int64_t least = power_from((larger + 31) / 32);
    each = each > 8 ? 8 : each;
    return each > least ? each : least;
}

cup_status cup__kv_lanes(cup__call *call)
{
    cup__kv_attention a = cup__kv_attention_of(call);
    const cup__kv *kv = &a.kv;
    int64_t each = each_of(kv), larger = kv->size > kv->value_size ? kv->size : kv->value_size;
    int64_t all = a.heads / kv->heads * kv->tokens;
    int64_t rows = a.q->dtype == CUP_F64 ? 1 : power_from(all);
    rows = rows < LANES_ROWS ? rows : LANES_ROWS;
    bool whole = kv->size % each == 0 && kv->value_size % each == 0 &&
                 cup__kv_lies_in_16_bytes(kv->keys) && cup__kv_lies_in_16_bytes(kv->values);
    cup__kv_kernel by = {.file = "kv_attention.cu", .entry = "kv_lanes"};
    by.count = cup__kv_attention_knobs(&a, by.knobs);
    by.knobs[by.count++] = (cup__knob){"EACH", (int)each};
    by.knobs[by.count++] = (cup__knob){"LANES", (int)power_from((larger + each - 1) / each)};
    by.knobs[by.count++] = (cup__knob){"ROWS", (int)rows};
    by.knobs[by.count++] = (cup__knob){"WARPS", LANES_WARPS};
    by.knobs[by.count++] = (cup__knob){"WHOLE", whole};
    by.grid = (cup__grid){.x = kv->batch * kv->heads,
                          .z = rows ? (all + rows - 1) / rows : 1,
                          .threads = 32 * LANES_WARPS,
                          .dependent = true};
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(call->c->device));
    by.grid.y = cup__kv_shares(&a, by.grid.x * by.grid.z, 2 * facts->multiprocessors, SHARE_LEAST);
    return cup__kv_run(call, &by);
}

/* How a block of kv_attention_tiles.cu is made up. */
typedef struct tiling {
    int size, row_warps, key_warps, keys, stages, bytes;
} tiling;

static tiling tiling_of(const cup__kv_attention *a, int shared)
{
    const cup__kv *kv = &a->kv;
    int64_t rows = a->heads / kv->heads * kv->tokens;
    bool codes = cup__kv_is_codes(kv);
    tiling t = {.size = (int)((kv->size + 15) / 16 * 16)};
    t.row_warps = rows <= 16 ? 1 : rows <= 32 ? 2 : ROWS_MOST;
    t.key_warps = ROWS_MOST / t.row_warps;
    t.keys = t.key_warps == ROWS_MOST ? 64 : 32;
    int pitch = 2 * t.size + 16, tile_rows = 16 * t.row_warps;
    int fixed = tile_rows * pitch + (codes ? 2 * t.keys * pitch : 0);
    int stage = 2 * t.keys * (codes ? t.size : pitch) + (kv->key_scales ? 8 * t.keys : 0);
    int sums = t.key_warps * tile_rows * (t.size + 4) * 4;
    t.stages = (shared / 2 - 2048 - fixed) / stage; /* two blocks on a multiprocessor */
    if (t.stages < 2)
        t.stages = (shared - fixed) / stage < 2 ? 0 : 2;
    t.stages = t.stages > STAGES_MOST ? STAGES_MOST : t.stages;
    t.bytes = fixed + t.stages * stage > sums ? fixed + t.stages * stage : sums;
    if (t.bytes > shared)
        t.stages = 0;
    return t;
}

const char *cup__kv_tiles_refuses(const cup__call *call)
{
    cup__kv_attention a = cup__kv_attention_of(call);
    const cup__kv *kv = &a.kv;
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(call->c->device));
    cup_dtype dtype = a.q->dtype;
    if (dtype != CUP_F16 && dtype != CUP_BF16)
        return "it takes f16 and bf16";
    if (facts->major * 10 + facts->minor < (dtype == CUP_F16 ? 75 : 80))
        return "the GPU's tensor cores do not take this dtype";
    if (kv->size != kv->value_size)
        return "keys and values have heads of other sizes";
    if (kv->key_scales && !cup__kv_is_codes(kv))
        return "it knows of scales of codes alone";
    if (kv->size > SIZE_MOST || kv->size % (cup__kv_is_codes(kv) ? 16 : 8))
        return "the size of a head must be a multiple of 8, of codes of 16, up to 256";
    if (a.scale < 0)
        return "the scale is negative";
    if (!cup__kv_lies_in_16_bytes(a.q) || !cup__kv_lies_in_16_bytes(kv->keys) ||
        !cup__kv_lies_in_16_bytes(kv->values))
        return "rows do not begin at multiples of 16 bytes";
    return tiling_of(&a, facts->shared_per_block).stages < 2 ? "tiles do not fit in shared memory"
                                                             : NULL;
}

cup_status cup__kv_tiles(cup__call *call)
{
    cup__kv_attention a = cup__kv_attention_of(call);
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(call->c->device));
    tiling t = tiling_of(&a, facts->shared_per_block);
    int64_t rows = a.heads / a.kv.heads * a.kv.tokens;
    cup__kv_kernel by = {.file = "kv_attention_tiles.cu", .entry = "kv_tiles"};
    by.count = cup__kv_attention_knobs(&a, by.knobs);
    by.knobs[by.count++] = (cup__knob){"SIZE", t.size};
    by.knobs[by.count++] = (cup__knob){"ROW_WARPS", t.row_warps};
    by.knobs[by.count++] = (cup__knob){"KEY_WARPS", t.key_warps};
    by.knobs[by.count++] = (cup__knob){"KEYS", t.keys};
    by.knobs[by.count++] = (cup__knob){"STAGES", t.stages};
    if (a.window < CUP__KV_POSITIONS)
        by.knobs[by.count++] = (cup__knob){"WINDOWED", 1};
    by.grid = (cup__grid){.x = a.kv.batch * a.kv.heads,
                          .z = (rows + 16 * t.row_warps - 1) / (16 * t.row_warps),
                          .threads = 32 * t.row_warps * t.key_warps,
                          .shared = t.bytes,
                          .dependent = true};
    by.grid.y = cup__kv_shares(&a, by.grid.x * by.grid.z, 2 * facts->multiprocessors, SHARE_LEAST);
    return cup__kv_run(call, &by);
}

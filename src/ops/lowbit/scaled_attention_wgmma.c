/* Attention of codes on Hopper: the host side of scaled_attention_wgmma.cu and
 * scaled_attention_turn.cu. */
#include "cuda/loader.h"
#include "dispatch/attributes.h"
#include "dispatch/tensor_map.h"
#include "ops/attention/attention_launch.h"
#include "ops/lowbit/scaled_attention.h"
#include "ops/lowbit/scaled_attention_call.cuh"

#define SIZE_MOST 128
#define LINE 16 /* bytes, of which tensor maps have multiples */
#define STEP 128
#define ROWS 128
#define STAGES 4
#define ONES_BYTES 1024  /* behind the values of a stage */
#define BARRIER_BYTES 16 /* of a stage of one ring */

/* A call on its way: what attention knows of it, the call itself and its turned values. */
typedef struct codes_call {
    cup__attention a; /* first */
    const cup__call *call;
    cup_tensor *turned;
    int64_t room; /* keys, up to whole lines */
} codes_call;

const char *cup__scaled_attention_wgmma_refuses(const cup__call *call)
{
    cup__attention a = cup__scaled_attention_of(call);
    if (cup__cuda_facts(cup__cuda_of(a.c->device))->major != 9)
        return "it is for Hopper (sm_90)";
    if (!cup__driver.cuTensorMapEncodeTiled)
        return "the driver is too old for tensor maps";
    for (int i = 0; i < call->in_count; i++)
        if (call->in[i] && call->in[i]->dtype == CUP_F64)
            return "it does not take f64";
    if (a.size % LINE || a.size > SIZE_MOST)
        return "the size of a head must be a multiple of 16 up to 128";
    if (!cup__attention_is_any(&a))
        return "there are no queries or no keys";
    return a.queries > CUP__POSITIONS_MOST || a.keys > CUP__POSITIONS_MOST
               ? "there are over 2^30 positions"
               : NULL;
}

static int64_t padded(const cup__attention *a)
{
    return a->size > 64 ? 128 : 64;
}

/* Boxes of some positions of one head. */
static cup_status map_heads(const cup__attention *a, CUtensorMap *map, const cup__heads *h,
                            int64_t heads, int64_t positions, int64_t box_positions)
{
    cup__boxes boxes = {.data = (char *)h->tensor->data + h->offset, .dtype = a->dtype,
                        .ndim = 4, .size = {a->size, positions, heads, a->batch},
                        .box = {padded(a), box_positions}};
    /* A dimension of one element may have any stride; the driver wants a usable one. */
    for (int i = 1; i < 4; i++)
        boxes.stride[i] = boxes.size[i] == 1 ? a->size : h->stride[3 - i];
    return cup__tensor_map_make(cup__cuda_of(a->c->device), &boxes, map);
}

/* Boxes of all features of some keys. */
static cup_status map_turned(const codes_call *w, CUtensorMap *map)
{
    const cup__attention *a = &w->a;
    int64_t head = a->size * w->room;
    cup__boxes boxes = {.data = w->turned->data, .dtype = a->dtype, .ndim = 4,
                        .size = {w->room, a->size, a->kv_heads, a->batch},
                        .stride = {0, w->room, head, head * a->kv_heads},
                        .box = {STEP, padded(a)}};
    return cup__tensor_map_make(cup__cuda_of(a->c->device), &boxes, map);
}

static cup_status turn(const codes_call *w)
{
    const cup__attention *a = &w->a;
    cup__cuda *gpu = cup__cuda_of(a->c->device);
    cup__kernel *kernel =
        cup__kernel_get(gpu, "scaled_attention_turn.cu", "scaled_attention_turn", NULL, 0);
    if (!kernel)
        return a->c->error.status;
    turn_call argument = {.v = (char *)a->v.tensor->data + a->v.offset,
                          .turned = w->turned->data,
                          .batch = a->v.stride[0],
                          .head = a->v.stride[1],
                          .position = a->v.stride[2],
                          .kv_heads = (int)a->kv_heads,
                          .keys = (int)a->keys,
                          .size = (int)a->size,
                          .room = (int)w->room};
    cup__grid grid = {.x = cup__attention_tiles(a->keys, TURN_KEYS) * a->batch * a->kv_heads,
                      .threads = TURN_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}

static head_scale scale_for(const cup__call *call, int i)
{
    const cup_tensor *t = call->in[CUP__CODES_SCALES + i];
    if (!t)
        return (head_scale){NULL, 0, 0};
    return (head_scale){t->data, t->shape[0] > 1 ? t->stride[0] : 0,
                        t->shape[1] > 1 ? t->stride[1] : 0};
}

static cup__kernel *kernel_of(const codes_call *w, cup__grid *grid)
{
    const cup__attention *a = &w->a;
    cup__cuda *gpu = cup__cuda_of(a->c->device);
    int64_t tiles = cup__attention_tiles(a->queries, ROWS), size = padded(a);
    int64_t units = (a->mask.causal ? (tiles + 1) / 2 : tiles) * a->batch * a->heads;
    int64_t most = cup__cuda_facts(gpu)->multiprocessors;
    cup__knob knobs[] = {{"CUP_T", a->dtype},
                         {"Y_T", a->o.tensor->dtype},
                         {"SIZE", size},
                         {"CAUSAL", a->mask.causal},
                         {"WINDOW", a->mask.window},
                         {"STAGES", STAGES}};
    *grid = (cup__grid){
        .x = units < most ? units : most,
        .threads = 3 * 128,
        .dependent = true, /* of what turns the values */
        .shared = (int)((ROWS + 2 * STAGES * STEP) * size + STAGES * ONES_BYTES +
                        BARRIER_BYTES * (2 * STAGES + 1))};
    return cup__kernel_get(gpu, "scaled_attention_wgmma.cu", "scaled_attention_sm90", knobs,
                           sizeof knobs / sizeof *knobs);
}

static cup_status attend(codes_call *w)
{
    cup__attention *a = &w->a;
    CUtensorMap q, k, v;
    cup__grid grid;
    CUP_TRY(turn(w));
    CUP_TRY(map_heads(a, &q, &a->q, a->heads, a->queries, 64));
    CUP_TRY(map_heads(a, &k, &a->k, a->kv_heads, a->keys, STEP));
    CUP_TRY(map_turned(w, &v));
    attention_call argument = cup__attention_call_of(a);
    head_scales scales = {scale_for(w->call, 0), scale_for(w->call, 1), scale_for(w->call, 2)};
    cup__kernel *kernel = kernel_of(w, &grid);
    if (!kernel)
        return a->c->error.status;
    return cup__launch(cup__cuda_of(a->c->device), kernel, grid, CUP__ARG(q), CUP__ARG(k),
                       CUP__ARG(v), cup__attention_argument(a, &argument), CUP__ARG(scales));
}

/* With room for the turned values. */
static cup_status run(cup__attention *a)
{
    codes_call *w = (codes_call *)a;
    w->room = (a->keys + LINE - 1) / LINE * LINE;
    w->turned = cup__attention_numbers(a, a->dtype, a->batch * a->kv_heads * a->size * w->room);
    cup_status status = w->turned ? attend(w) : a->c->error.status;
    cup_tensor_free(w->turned);
    return status;
}

cup_status cup__scaled_attention_wgmma(cup__call *call)
{
    codes_call w = {.a = cup__scaled_attention_of(call), .call = call};
    return cup__attention_with_copies(&w.a, run);
}

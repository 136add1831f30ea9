/* The host side of qkv_attention_read.cu and qkv_read_texts.cu. Where tokens come is known on the
 * device alone: what is decided here goes by the room that there is. */
#include <math.h>

#include "base/divide.h"
#include "cuda/cuda.h"
#include "ops/attention/qkv_attention_read_call.cuh"
#include "ops/kv_cache/qkv_read.h"

#define WARPS 8
#define HEADS_MOST 4
#define ALONE 2048 /* keys that one block takes */
#define SHARE_LEAST 256
#define SHARES_MOST 64
#define TEXTS_SIZE_MOST 128
/* Of qkv_read_texts.cu. */
#define TEXTS_WARPS 4
#define TEXTS_SLOTS 2    /* of each warp */
#define TEXTS_BYTES 4096 /* of a slot of all warps, with a key and a value for each lane */

/* Elements a lane holds: an access of 16 bytes, or more where 32 lanes are too few. */
static int64_t each_of(const cup__qkv_read *r)
{
    int64_t each = 16 / cup_dtype_size(r->qkv->dtype), least = power_from((r->size + 31) / 32);
    return each > least ? each : least;
}

const char *cup__qkv_read_lanes_refuses(const cup__call *call)
{
    cup__qkv_read r = cup__qkv_read_of(call);
    return r.size > 2 * READ_PAIRS ? "its heads have over 256 elements" : NULL;
}

static bool is_whole(const cup__qkv_read *r, int64_t each)
{
    return r->size % each == 0 && ((uintptr_t)r->keys->data | (uintptr_t)r->values->data) % 16 == 0;
}

static void fill(read_call *to, const cup__qkv_read *r)
{
    double cap = r->score.soft_cap;
    *to = (read_call){.qkv = r->qkv->data,
                      .position = r->position->data,
                      .keys = r->keys->data,
                      .values = r->values->data,
                      .o = r->o->data,
                      .heads = (int)r->heads,
                      .kv_heads = (int)r->kv_heads,
                      .size = (int)r->size,
                      .length = (int)r->length,
                      .positions = (int)r->position->count,
                      .scale = cap > 0 ? r->scale / cap : r->scale * M_LOG2E,
                      .amplitude = cup__rope_amplitude(&r->rope),
                      .place = r->place->data,
                      .slopes = r->score.slopes ? r->score.slopes->data : NULL,
                      .sinks = r->score.sinks ? r->score.sinks->data : NULL,
                      .window = (int)r->window,
                      .cap = cap * M_LOG2E,
                      .factor = r->growth,
                      .original = (int)r->original};
    if (r->rope.base > 0)
        cup__rope_frequencies(&r->rope, r->size / 2, r->qkv->dtype == CUP_F64, to->frequency);
}

/* What kernels do to queries and keys: nothing, turn them, or multiply cosines and sines, too. */
static int turned_knob(const cup__qkv_read *r)
{
    if (!(r->rope.base > 0))
        return 0;
    return cup__rope_amplitude(&r->rope) == 1 ? 1 : 2;
}

#define KNOBS_MOST 15

/* What few calls have: each has kernels of its own, so that others know nothing of it. */
static int add_knobs(const cup__qkv_read *r, cup__knob *knobs, int count)
{
    const cup__knob rare[] = {{"WINDOWED", r->window > 0},
                              {"SOFT_CAP", r->score.soft_cap > 0},
                              {"SLOPES", r->score.slopes != NULL},
                              {"SINKS", r->score.sinks != NULL},
                              {"PLACED", r->place != r->position},
                              {"GROWS", r->growth > 0}};
    for (size_t i = 0; i < sizeof rare / sizeof *rare; i++)
        if (rare[i].value)
            knobs[count++] = rare[i];
    return count;
}

#define AHEAD_BYTES (24 << 20) /* of all blocks, so that weights find a place in L2 beside them */

/* Into how many shares the keys that may be seen are cut, so that the card has blocks enough. */
static void cut(read_call *to, int64_t blocks, int multiprocessors)
{
    int keys = to->window ? to->window : to->length;
    int64_t wanted = 2 * (int64_t)multiprocessors / blocks, most = keys / SHARE_LEAST;
    int64_t shares = keys <= ALONE ? 1 : wanted < most ? wanted : most;
    shares = shares < 1 ? 1 : shares > SHARES_MOST ? SHARES_MOST : shares;
    to->share = (int)((keys + shares - 1) / shares);
    to->shares = (int)((keys + to->share - 1) / to->share);
    to->ahead = AHEAD_BYTES / 2 / (int)(blocks * to->shares);
}

static int64_t heads_of(const cup__qkv_read *r)
{
    int64_t heads = r->qkv->dtype == CUP_F64 ? 1 : power_from(r->heads / r->kv_heads);
    return heads < HEADS_MOST ? heads : HEADS_MOST;
}

/* How a block of qkv_read_texts.cu is made. */
typedef struct texts_plan {
    int64_t unroll; /* keys that a lane reads at once */
    int64_t blocks; /* that the registers of a multiprocessor have to suffice for */
} texts_plan;

/* A warp's slot has 16 keys of 64 elements in 2 bytes, two slots of all warps 32 KB: six blocks
 * find room on a multiprocessor, so that those of 64 texts of 12 heads are all there at once; the
 * registers of a seventh are left to the kernel in front. Over two queries leave registers for half
 * as many keys at once. No block takes over 40 KB, which every card has. */
static texts_plan texts_plan_of(int64_t heads)
{
    return (texts_plan){.unroll = heads > 2 ? 2 : 4, .blocks = heads > 1 ? 4 : 7};
}

const char *cup__qkv_read_texts_refuses(const cup__call *call)
{
    cup__qkv_read r = cup__qkv_read_of(call);
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(call->c->device));
    if (facts->major < 9)
        return "it is for Hopper and later (sm_90)";
    if (r.qkv->dtype == CUP_F64)
        return "it does not take f64";
    if (r.size > TEXTS_SIZE_MOST || !is_whole(&r, each_of(&r)) || (uintptr_t)r.qkv->data % 16)
        return "its heads have over 128 elements, or not whole pieces of 16 bytes";
    if (r.heads > HEADS_MOST * r.kv_heads)
        return "over 4 heads share keys";
    if (r.batch * r.kv_heads < facts->multiprocessors || r.batch * r.kv_heads > 1 << 24)
        return "there are too few keys' heads of all texts for the card, or over 2^24";
    return NULL;
}

/* Whether the kernel in front leaves it as it is, whose elements lie side by side. */
static bool is_spared(const cup__cuda *gpu, const cup_tensor *t)
{
    return cup__launched_spares(gpu, t->data, t->count * cup_dtype_size(t->dtype));
}

cup_status cup__qkv_read_texts(cup__call *call)
{
    cup__qkv_read r = cup__qkv_read_of(call);
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup__gpu_facts *facts = cup__cuda_facts(gpu);
    const texts_plan plan = texts_plan_of(heads_of(&r));
    int64_t pairs = r.batch * r.kv_heads, most = plan.blocks * facts->multiprocessors;
    read_call argument;
    fill(&argument, &r);
    cup__grid grid = {.x = pairs,
                      .threads = 32 * TEXTS_WARPS,
                      .shared = (int)(TEXTS_SLOTS * plan.unroll * TEXTS_BYTES),
                      .dependent = true};
    argument.ahead = AHEAD_BYTES / 2 / (int)(pairs < most ? pairs : most);
    argument.early = is_spared(gpu, r.keys) && is_spared(gpu, r.values) && is_spared(gpu, r.place);
    cup__knob knobs[KNOBS_MOST] = {{"CUP_T", r.qkv->dtype},
                                   {"CUP_ID", r.position->dtype},
                                   {"EACH", each_of(&r)},
                                   {"LANES", power_from((r.size + each_of(&r) - 1) / each_of(&r))},
                                   {"HEADS", heads_of(&r)},
                                   {"SLOTS", TEXTS_SLOTS},
                                   {"UNROLL", plan.unroll},
                                   {"BLOCKS", plan.blocks},
                                   {"TURNED", turned_knob(&r)}};
    const int count = add_knobs(&r, knobs, 9);
    cup__kernel *kernel = cup__kernel_get(gpu, "qkv_read_texts.cu", "read_texts", knobs, count);
    if (!kernel)
        return call->c->error.status;
    CUP_TRY(cup__launch(gpu, kernel, grid, CUP__ARG(argument)));
    cup__launch_known(gpu);
    const cup_tensor *written[] = {r.keys, r.values, r.o};
    for (int i = 0; i < 3; i++)
        cup__launch_writes(gpu, written[i]->data,
                           written[i]->count * cup_dtype_size(written[i]->dtype));
    return CUP_OK;
}

cup_status cup__qkv_read_lanes(cup__call *call)
{
    cup__qkv_read r = cup__qkv_read_of(call);
    cup_context *c = call->c;
    cup__cuda *gpu = cup__cuda_of(c->device);
    int64_t group = r.heads / r.kv_heads, each = each_of(&r), heads = heads_of(&r);
    read_call argument;
    fill(&argument, &r);
    int64_t chunks = (group + heads - 1) / heads;
    cut(&argument, r.batch * r.kv_heads * chunks, cup__cuda_facts(gpu)->multiprocessors);
    cup__shape room = {r.qkv->dtype == CUP_F64 ? CUP_F64 : CUP_F32, 1,
                       {r.batch * r.heads * argument.shares * (r.size + 2)}};
    cup_tensor *part =
        argument.shares > 1 ? cup__tensor_make(c, &room, "qkv_attention_read") : NULL;
    if (argument.shares > 1 && !part)
        return c->error.status;
    argument.part = part ? part->data : NULL;
    cup__knob knobs[KNOBS_MOST] = {{"CUP_T", r.qkv->dtype},
                                   {"CUP_ID", r.position->dtype},
                                   {"EACH", each},
                                   {"LANES", power_from((r.size + each - 1) / each)},
                                   {"HEADS", heads},
                                   {"WARPS", WARPS},
                                   {"TURNED", turned_knob(&r)},
                                   {"WHOLE", is_whole(&r, each)}};
    const int count = add_knobs(&r, knobs, 8);
    cup__grid grid = {.x = r.batch * r.kv_heads,
                      .y = argument.shares,
                      .z = chunks,
                      .threads = 32 * WARPS,
                      .dependent = true};
    cup__kernel *kernel = cup__kernel_get(gpu, "qkv_attention_read.cu", "read_fwd", knobs, count);
    cup_status status =
        kernel ? cup__launch(gpu, kernel, grid, CUP__ARG(argument)) : c->error.status;
    if (status == CUP_OK && part) {
        grid = (cup__grid){
            .x = r.batch * r.heads, .threads = 32 * WARPS, .dependent = true};
        kernel = cup__kernel_get(gpu, "qkv_attention_read.cu", "read_join", knobs, count);
        status = kernel ? cup__launch(gpu, kernel, grid, CUP__ARG(argument)) : c->error.status;
    }
    cup_tensor_free(part);
    return status;
}

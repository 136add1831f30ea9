/* The host side of attention_decode.cu. */
#include "ops/attention/attention_launch.h"

#define PACKED_MOST 64 /* rows: queries of all heads of a group */
#define DECODE_KEYS 16
#define DECODE_STAGES 3
#define SHARE_LEAST 16 /* tiles of keys that are worth a block */

static const char *refuses(const cup__call *call)
{
    cup__attention a = cup__attention_of(call);
    if (a.lists.given)
        return "there are lists of blocks of keys";
    if (a.dropout > 0)
        return "there is dropout";
    if (a.kv_heads > 0 && a.heads / a.kv_heads * a.queries > PACKED_MOST)
        return "there are over 64 queries in a group of heads";
    return a.keys < 64 ? "there are fewer than 64 keys" : NULL;
}

const char *cup__attention_decode_refuses(const cup__call *call)
{
    const char *why = cup__attention_flash_refuses(call);
    return why ? why : refuses(call);
}

const char *cup__attention_decode_f32_refuses(const cup__call *call)
{
    const char *why = cup__attention_flash_f32_refuses(call);
    return why ? why : refuses(call);
}

static int64_t decode_bytes(const cup__attention *a, int warps)
{
    int64_t tiles = (16 + warps * DECODE_STAGES * 2 * DECODE_KEYS) * cup__attention_pitch(a);
    int64_t sums = warps * 16 * (cup__attention_padded(a) + 4) * 4;
    return tiles > sums ? tiles : sums;
}

/* Into how many shares the keys are cut, so that the blocks fill the GPU twice. */
static int64_t shares_of(const cup__attention *a, int64_t blocks, int multiprocessors)
{
    int64_t most = cup__attention_tiles(a->keys, DECODE_KEYS) / SHARE_LEAST;
    int64_t wanted = 2 * multiprocessors / blocks;
    int64_t shares = wanted < most ? wanted : most;
    return shares < 1 ? 1 : shares;
}

static cup_status decode(cup__attention *a)
{
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(a->c->device));
    int64_t size = cup__attention_padded(a), warps = 4;
    while (warps > 1 && decode_bytes(a, (int)warps) > facts->shared_per_block)
        warps /= 2;
    int64_t pairs = a->batch * a->kv_heads;
    int64_t row_blocks = cup__attention_tiles(a->heads / a->kv_heads * a->queries, 16);
    int64_t splits = shares_of(a, pairs * row_blocks, facts->multiprocessors);
    int64_t rows = a->batch * a->heads * a->queries;
    cup_tensor *space =
        splits > 1 ? cup__attention_numbers(a, CUP_F32, rows * splits * (a->size + 2)) : NULL;
    if (splits > 1 && !space)
        return a->c->error.status;
    attention_call argument = cup__attention_call_of(a);
    argument.splits = (int)splits;
    argument.part = space ? space->data : NULL;
    cup__attention_kernel l = {
        .file = "attention_decode.cu",
        .entry = "attention_decode",
        .knobs = {{"CUP_T", a->dtype},
                  {"SIZE", size},
                  {"WARPS", warps},
                  {"KEYS", DECODE_KEYS},
                  {"STAGES", DECODE_STAGES},
                  {"CAUSAL", a->mask.causal && a->queries > 1},
                  {"SPLIT", cup__attention_splits(a)}},
        .knob_count = 7,
        .grid = {.x = pairs,
                 .y = splits,
                 .z = row_blocks,
                 .threads = (int)warps * 32,
                 .shared = (int)decode_bytes(a, (int)warps)},
    };
    cup_status status = cup__attention_launch(a, &l, &argument);
    l.entry = "attention_combine";
    l.grid = (cup__grid){.x = (rows + 3) / 4, .threads = 128};
    if (status == CUP_OK && splits > 1)
        status = cup__attention_launch(a, &l, &argument);
    cup_tensor_free(space);
    return status;
}

cup_status cup__attention_decode(cup__attention *a)
{
    return cup__attention_with_copies(a, decode);
}

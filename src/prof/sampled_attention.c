/* Some queries of a call of attention, each as a call of its own with the keys that it sees. */
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "prof/draw.h"
#include "prof/sampled.h"

#define QUERIES 6
#define SEED 20261122u

/* Steps `first` and on of one head, [1,1,count,D]. */
static cup_tensor *steps_of(cup_tensor *t, int64_t batch, int64_t head, int64_t first,
                            int64_t count)
{
    int64_t starts[] = {batch, head, first, 0}, sizes[] = {1, 1, count, t->shape[3]};
    return cup_slice(t->context, t, starts, 4, sizes, 4);
}

int64_t cup__sampled_attention(const cup__call *done, cup_context *cpu, char *note, size_t size)
{
    const cup__attention_attributes *a = done->attributes;
    cup__attention_attributes own = *a;
    const cup_tensor *q = done->in[0], *k = done->in[1];
    uint64_t state = SEED;
    int64_t held = 0;
    /* Whose masks and scores do not follow from the keys alone that one query sees. */
    if (a->dropout > 0 || (!a->causal && a->window_left > 0) || a->window_right > 0)
        return 0;
    for (int i = 3; i < done->in_count; i++)
        if (done->in[i])
            return 0;
    for (int i = 0; i < QUERIES; i++) {
        int64_t steps = q->shape[2], keys = k->shape[2], head, batch, query;
        batch = cup__draw_below(&state, q->shape[0]);
        head = cup__draw_below(&state, q->shape[1]);
        query = i == 0 ? 0 : i == 1 ? steps - 1 : cup__draw_below(&state, steps);
        int64_t group = head * k->shape[1] / q->shape[1];
        int64_t seen = query + 1 + (a->top_left ? 0 : keys - steps);
        if (a->causal && (seen <= 0 || (seen > keys && a->window_left > 0)))
            continue;
        keys = a->causal && seen < keys ? seen : keys;
        own.top_left = false; /* of a single query the last key is its own */
        cup_tensor *in[] = {steps_of(done->in[0], batch, head, query, 1),
                            steps_of(done->in[1], batch, group, 0, keys),
                            steps_of(done->in[2], batch, group, 0, keys)};
        cup_tensor *got = steps_of(done->out[0], batch, head, query, 1);
        int64_t now = cup__sampled_compare(done->row, cpu, in, 3, &own, got, note, size);
        if (now < 0)
            return now;
        held += now;
    }
    return held;
}

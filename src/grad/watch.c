/* Which node uses a parameter first: from there on down its gradient changes no more. */
#include "grad/watch.h"

#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "grad/tape.h"

void cup__grad_watch_set(cup_context *c, const cup__grad_watch *watch)
{
    if (c->tape)
        c->tape->watch = watch;
}

void cup__tape_use(cup__uses *uses, cup_tensor *const *in, int count)
{
    for (int i = 0; i < count; i++) {
        if (!in[i] || !in[i]->is_parameter)
            continue;
        if (!cup__grow(&uses->list, &uses->capacity, uses->count, sizeof *uses->list)) {
            uses->failed = true;
            return;
        }
        cup__tensor_retain(in[i]);
        uses->list[uses->count++] = in[i];
    }
}

void cup__uses_free(cup__uses *uses)
{
    for (size_t i = 0; uses && i < uses->count; i++)
        cup__tensor_release(uses->list[i]);
    if (uses)
        cup__free(uses->list);
    cup__free(uses);
}

/* From the last node to the first, so that the first use is what stays. What is not known of a
 * block counts as all. */
void cup__tape_first_uses(cup_context *c, const cup__grad_watch *watch)
{
    for (int i = 0; i < watch->count; i++)
        watch->parameters[i]->first_use = 0;
    for (size_t n = c->tape->count; n > 0; n--) {
        const cup__node *node = c->tape->nodes[n - 1];
        for (int i = 0; i < node->in_count; i++)
            if (node->edges[i].parameter)
                node->edges[i].parameter->first_use = (uint32_t)n;
        const cup__uses *uses = node->uses;
        for (size_t i = 0; uses && i < uses->count; i++)
            uses->list[i]->first_use = (uint32_t)n;
        bool unknown = cup__node_is_block(node) && (!uses || uses->failed);
        for (int i = 0; unknown && i < watch->count; i++)
            watch->parameters[i]->first_use = (uint32_t)n;
    }
}

cup_status cup__tape_watched(cup_context *c, const cup__grad_watch **watch)
{
    const cup__grad_watch *w = *watch = c->tape->watch;
    c->tape->watch = NULL;
    if (!w)
        return CUP_OK;
    cup__tape_first_uses(c, w);
    return w->begins ? w->begins(w->user) : CUP_OK;
}

void cup__tape_hides(cup_context *c)
{
    if (c->tape)
        c->tape->hides = c->tape->began = true;
}

uint64_t cup__tape_hash(const cup_context *c)
{
    uint64_t hash = c->tape->count;
    for (size_t i = 0; i < c->tape->count; i++) {
        const cup__node *node = c->tape->nodes[i];
        const char *name = cup__node_name(node);
        const uint64_t all[] = {hash, cup__hash_bytes(name, strlen(name)),
                                (uint64_t)node->in_count, (uint64_t)node->out_count};
        hash = cup__hash_bytes(all, sizeof all);
    }
    return hash;
}

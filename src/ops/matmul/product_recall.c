#include "ops/matmul/product_recall.h"

#include <string.h>

#include "base/hash.h"
#include "base/memory.h"

#define PLACES 512
#define ALIGNMENT 32 /* no implementation looks at more of a pointer */

struct cup__recalled_table {
    cup__recalled place[PLACES];
};

/* What is the same for pointers that are as good as each other. */
static char *class_of(const void *pointer)
{
    return (char *)((uintptr_t)pointer % ALIGNMENT + (pointer ? ALIGNMENT : 0));
}

/* A copy byte by byte, as it is compared so. */
static void make_key(cup__product *key, const cup__product *p)
{
    memcpy(key, p, sizeof *key);
    key->a.data = class_of(p->a.data);
    key->b.data = class_of(p->b.data);
    key->y.data = class_of(p->y.data);
    key->bias = class_of(p->bias);
    key->other = class_of(p->other);
    key->pre = class_of(p->pre);
    key->a_sums = class_of(p->a_sums);
}

/* A hash of what products mostly differ in. */
static uint64_t hash_of(const cup__product *p)
{
    const int64_t most[] = {
        p->m,         p->n,        p->k,
        p->a.row,     p->a.column, p->b.row,
        p->b.column,  p->y.row,    p->batch_count,
        p->dtype << 8 | p->y_dtype, p->activation << 8 | p->kind, p->saving << 1 | p->summing,
        (int64_t)(uintptr_t)p->bias};
    return cup__hash_bytes(most, sizeof most);
}

cup__recalled *cup__product_recalled(cup_context *c, const cup__product *p)
{
    cup__product_state *state = cup__product_state_of(c);
    if (!state || p->scaling || p->groups.kind || p->dropping || p->y_scale)
        return NULL;
    if (!state->recalled)
        state->recalled = cup__calloc(1, sizeof *state->recalled);
    if (!state->recalled)
        return NULL;
    cup__product key;
    make_key(&key, p);
    cup__recalled *place = &state->recalled->place[hash_of(&key) % PLACES];
    if (memcmp(&place->key, &key, sizeof key) || place->precision != c->precision) {
        cup__free(place->launch);
        memset(place, 0, sizeof *place);
        memcpy(&place->key, &key, sizeof key);
        place->precision = c->precision;
    }
    return place;
}

void cup__product_forget(cup__product_state *state)
{
    for (int i = 0; state && state->recalled && i < PLACES; i++)
        state->recalled->place[i].impl = NULL;
}

void cup__recalled_free(struct cup__recalled_table *table)
{
    for (int i = 0; table && i < PLACES; i++)
        cup__free(table->place[i].launch);
    cup__free(table);
}

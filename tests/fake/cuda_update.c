/* The kernel of AdamW's step, of which the fake driver does what a test can see: each element that
 * it would change of master copies and states becomes one more. */
#define FAKE_INSIDE
#include "fake.h"

#include <stdlib.h>
#include <string.h>

/* update_entry of optim/update.cuh. */
typedef struct entry {
    void *value;
    const void *gradient;
    float *state[3];
    int64_t count;
    uint32_t chunk, row;
} entry;

struct fake_update {
    fake_update *next;
    uint32_t blocks;
    int count;
    entry entries[];
};

fake_update *fake_update_new(void **arguments, unsigned blocks, fake_update *next)
{
    int count = *(const int *)arguments[1];
    fake_update *u = malloc(sizeof *u + (size_t)count * sizeof *u->entries);
    *u = (fake_update){next, blocks, count};
    memcpy(u->entries, arguments[0], (size_t)count * sizeof *u->entries);
    return u;
}

void fake_update_free(fake_update *first)
{
    while (first) {
        fake_update *gone = first;
        first = gone->next;
        free(gone);
    }
}

static void change_chunk(const fake_update *u, uint32_t block)
{
    int low = 0, high = u->count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (u->entries[middle].chunk <= block)
            low = middle;
        else
            high = middle;
    }
    const entry *e = &u->entries[low];
    int64_t chunk = e->state[0] ? 2048 : 1024, from = (int64_t)(uint32_t)(block - e->chunk) * chunk;
    for (int k = 0; k < 3; k++)
        for (int64_t i = from; e->state[k] && i < from + chunk && i < e->count; i++)
            e->state[k][i] += 1;
}

void fake_update_run(const fake_update *u)
{
    for (uint32_t block = 0; block < u->blocks; block++)
        change_chunk(u, block);
}

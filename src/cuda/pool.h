/* Device memory that is used again. Freed blocks are kept, split and merged; memory comes from
 * the driver in large pieces, mapped into reserved addresses where it can be.
 *
 * A pool serves one stream: memory that is released may be handed out at once, because what uses
 * it next is queued behind what used it last. Another stream that touches a block must be joined
 * to the pool's stream before the block is released; for work that cannot be, open another pool. */
#ifndef CUP_CUDA_POOL_H
#define CUP_CUDA_POOL_H

#include "base/device.h"
#include "cuda/cuda.h"

typedef struct cup__pool cup__pool;

cup_status cup__pool_open(cup__cuda *gpu, int64_t limit, cup__pool **out);
/* Without `driver` only host memory is freed. */
void cup__pool_close(cup__pool *pool, bool driver);

/* Memory aligned to 256 bytes. Both calls are short and reach the driver only when the pool has to
 * grow. The tag is a literal. */
cup_status cup__pool_allocate(cup__pool *pool, size_t bytes, const char *tag, void **out);
void cup__pool_release(cup__pool *pool, void *memory);

void cup__pool_use(cup__pool *pool, cup__memory_use *use);

/* What is held stays, but nothing more is taken from the driver beyond the limit; 0: none. */
void cup__pool_limit(cup__pool *pool, int64_t bytes);

/* Waits for the stream and gives idle memory back to the driver; the bytes given back. */
int64_t cup__pool_trim(cup__pool *pool);

/* Memory of a captured graph: what is allocated between begin and end stays with it, and what is
 * released meanwhile is not handed out to others before the graph is freed. Graphs that are always
 * launched one after the other may share one: *out is then that of the first, else NULL. */
typedef struct cup__pool_private cup__pool_private;
cup_status cup__pool_private_begin(cup__pool *pool, cup__pool_private **out);
void cup__pool_private_end(cup__pool *pool);
void cup__pool_private_free(cup__pool_private *private);

/* The bytes in use under one tag. */
typedef struct cup__pool_user {
    const char *tag;
    int64_t bytes, blocks;
} cup__pool_user;
/* Fills `users` with the largest, most first; returns how many. */
int cup__pool_users(cup__pool *pool, cup__pool_user *users, int most);

/* The last events, for memory reports. */
typedef enum cup__pool_action {
    CUP__POOL_ALLOCATE,
    CUP__POOL_RELEASE,
    CUP__POOL_GROW,
    CUP__POOL_SHRINK,
    CUP__POOL_FAIL
} cup__pool_action;

typedef struct cup__pool_event {
    uint64_t number; /* counts from 1 */
    cup__pool_action action;
    uint64_t address;
    size_t bytes;
    const char *tag, *op;
} cup__pool_event;
/* Event `back` before the newest; false when there is none so far back. */
bool cup__pool_history(const cup__pool *pool, uint64_t back, cup__pool_event *out);

/* One block as a report sees it. */
typedef struct cup__pool_block {
    uint64_t segment, address; /* where its segment begins, where it does */
    size_t bytes;
    const char *tag;
    enum cup__pool_state {
        CUP__POOL_FREE,
        CUP__POOL_USED,
        CUP__POOL_HOLE, /* addresses without memory */
        CUP__POOL_HELD  /* released, but a captured graph goes on using it */
    } state;
    bool small, of_graph; /* what its segment is for */
} cup__pool_block;
/* Visits every block, segment by segment in the order of addresses. */
void cup__pool_walk(const cup__pool *pool,
                    void (*visit)(const cup__pool_block *block, void *user), void *user);

/* The pool of a GPU. */
cup__pool *cup__pool_of(const cup__cuda *gpu);

/* Tests: walks all blocks; NULL when they are sound, else what is wrong. */
const char *cup__pool_check(const cup__pool *pool);

#endif

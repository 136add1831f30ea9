/* The part of the pool that knows blocks and where memory comes from. Sizes are counted in units
 * of 256 bytes and sorted into bins, 16 for each power of two, so that finding a block that fits
 * takes a few instructions however many there are. */
#ifndef CUP_CUDA_HEAP_H
#define CUP_CUDA_HEAP_H

#include "cuda/gpu.h"

#define CUP__UNIT 256
#define CUP__BINS 640

typedef enum cup__block_state {
    CUP__BLOCK_FREE,
    CUP__BLOCK_USED,
    CUP__BLOCK_HOLE, /* reserved addresses without memory */
    CUP__BLOCK_HELD  /* released while a graph is captured that may use it */
} cup__block_state;

typedef struct cup__block cup__block;
typedef struct cup__heap cup__heap;
typedef struct cup__segment cup__segment;

struct cup__block {
    uint64_t address;
    size_t bytes;
    cup__block *before, *after;   /* neighbours in the segment */
    cup__block *previous, *next;  /* in a bin, among the held ones, or among the spare structs */
    cup__segment *segment;
    cup__heap *heap;
    const char *tag;
    cup__block_state state;
};

/* Addresses: a reserved range that is mapped piece by piece, or one allocation of the driver. */
struct cup__segment {
    cup__segment *next;
    uint64_t address;
    size_t bytes;
    cup__block *first;
    bool reserved;
    struct cup__mapping {
        uint64_t address;
        size_t bytes;
    } *mappings; /* by address */
    size_t mapping_count, mapping_capacity;
};

struct cup__heap {
    cup__pool *pool;
    cup__heap *next;    /* of the pool's */
    bool private;       /* of a graph: its free memory is the graph's */
    size_t round;       /* sizes are multiples of this, a power of two */
    size_t piece;       /* the least it grows by, where that fits */
    uint64_t filled[CUP__BINS / 64]; /* a bit for each bin that is not empty */
    cup__block *bins[CUP__BINS];
    cup__segment *segments;
    size_t used_blocks;
};

/* Small blocks have a heap of their own, so that a few long-lived ones do not cut up the memory
 * of the large ones. */
typedef struct cup__heaps {
    cup__heap *small, *large;
} cup__heaps;
#define CUP__SMALL_MOST ((size_t)1 << 20)

/* Used blocks by address: open addressing, half full at most. */
typedef struct cup__block_table {
    cup__block **slots;
    size_t capacity, count;
} cup__block_table;

#define CUP__HISTORY 8192

struct cup__pool {
    cup__cuda *gpu;
    int64_t limit;
    size_t granularity; /* of mapped memory */
    cup__memory_use use;
    cup__block_table used;
    cup__block *spare;  /* structs to use again */
    void **slabs;       /* what they were cut from */
    size_t slab_count, slab_capacity;
    cup__heaps main, current;
    cup__heap *heaps;   /* all of them */
    cup__pool_private *capturing;
    uint64_t events;
    cup__pool_event history[CUP__HISTORY];
};

struct cup__pool_private {
    cup__heaps heaps;
    cup__block *held;
    int graphs; /* that share it */
};

cup__heap *cup__heap_new(cup__pool *pool, bool small, bool private);
void cup__heap_free(cup__heap *heap, bool driver);

/* A free block of at least `bytes`, a multiple of heap->round, made used; NULL when there is
 * none. */
cup__block *cup__heap_take(cup__heap *heap, size_t bytes);
void cup__heap_give(cup__block *block);

/* Gets memory from the driver so that a block of `bytes` fits. CUDA_ERROR_OUT_OF_MEMORY also when
 * the pool's limit would be passed, which sets *limited. */
CUresult cup__heap_grow(cup__heap *heap, size_t bytes, bool *limited);

/* Gives idle memory back to the driver; nothing of the GPU may be using it. */
int64_t cup__heap_trim(cup__heap *heap);

size_t cup__heap_largest(const cup__heap *heap);
int64_t cup__heap_free_bytes(const cup__heap *heap);

/* Structs. NULL when there is no host memory. */
cup__block *cup__block_new(cup__pool *pool);
void cup__block_free(cup__pool *pool, cup__block *block);
/* Links `made` behind `block` in its segment. */
void cup__block_insert(cup__block *block, cup__block *made);
void cup__heap_shelve(cup__block *block);   /* into its bin, as free */
void cup__heap_unshelve(cup__block *block); /* out of its bin */
/* Joins a free block, in no bin, with the free neighbours; gives the whole, in no bin. */
cup__block *cup__heap_merge(cup__block *block);

void cup__pool_note(cup__pool *pool, cup__pool_action action, uint64_t address, size_t bytes,
                    const char *tag);

/* The sentence of an allocation that failed for good. */
cup_status cup__pool_fail(cup__pool *pool, size_t bytes, const char *tag, bool limited);

#endif

/* The arguments of the kernels of embedding's gradient, as the host fills them and the kernels
 * read them. Rows are dealt out to the blocks of the sort: row r is number r / blocks of block
 * r % blocks. They are numbered block by block. */
#ifndef CUP_OPS_INDEX_EMBEDDING_CALL_CUH
#define CUP_OPS_INDEX_EMBEDDING_CALL_CUH

#include "divide.cuh"

typedef struct embedding_call {
    const void *dy, *ids;
    void *table; /* what is written */
    void *parts; /* sums of chunks */
    int *places; /* in order; start[n] is where those of number n begin, the last how many */
    int *start;
    int *pieces; /* the row of the long run that each PIECE places belong to, or -1 */
    int *arrived;
    long long count, segment;    /* ids; of a warp of the sort */
    long long arrivals;          /* counters to clear */
    long long row_bytes;         /* of the table */
    long long ahead;             /* pieces of dy that the sort has fetched into the L2 cache */
    int rows, width;             /* of the table; vectors of a row */
    int spans;                   /* parts of a row that are summed one after another */
    int room;                    /* places that have room in shared memory */
    int piece_count;
    divisor blocks;
} embedding_call;

#define EMBEDDING_AHEAD 4096 /* bytes fetched at once */

#endif

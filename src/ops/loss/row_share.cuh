/* Which vectors of a row belong to which warp where a row is shared out by lines of 32 vectors,
 * and which of its parts holds a vector. Plain enough to be compiled on the host, where a test
 * goes through all widths. */
#ifndef CUP_OPS_LOSS_ROW_SHARE_CUH
#define CUP_OPS_LOSS_ROW_SHARE_CUH

#include "dtype.cuh"

/* A warp's vectors; `count` is 0 where there are fewer lines than warps. */
struct row_share {
    int first, count;
};

/* Of warp `place` among `all`. */
DEVICE struct row_share row_share_of(int vectors, int place, int all)
{
    int lines = (vectors + 31) / 32;
    int first = lines * place / all * 32, end = lines * (place + 1) / all * 32;
    struct row_share share = {first, (end < vectors ? end : vectors) - first};
    return share;
}

/* Vectors that a share has room for, whatever warp's it is. */
DEVICE int row_share_room(int vectors, int all)
{
    return ((vectors + 31) / 32 + all - 1) / all * 32;
}

/* Of a part, `most` vectors or what is left of the share. */
DEVICE int row_part_count(struct row_share share, int part, int most)
{
    int left = share.count - part * most;
    return left < most ? left : most;
}

/* Whether a vector of the row is one of the part; of vector -1 no part is. */
DEVICE bool row_part_holds(struct row_share share, int part, int most, int vector)
{
    return (unsigned)(vector - share.first - part * most) <
           (unsigned)row_part_count(share, part, most);
}

#endif

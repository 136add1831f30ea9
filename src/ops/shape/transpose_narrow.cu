/* Transposes matrices with few columns, SMALL, that lie dense on one side: in x, or with SPREAD
 * in y, the SMALL elements of a row are neighbours and rows follow each other; on the other side
 * neighbouring rows are neighbours. A thread moves VEC rows in registers; all accesses are of VEC
 * elements. With STAGED lanes that stand side by side read or write the dense side side by side,
 * and hand each other what is theirs through shared memory. Grid: a thread for VEC rows, then
 * matrices. Bytes: every element read and written once. */
#include "copy_call.cuh"
#include "vec.cuh"

/* Knobs: SIZE (bytes of an element), SMALL, VEC, SPREAD, STAGED. */

#define AT(i) ((i) + (i) / 8) /* in shared memory: fewer lanes meet in a bank */

typedef word_of<SIZE>::type element;
typedef vec<element, VEC> piece;

#if STAGED
/* Piece `i` of the dense side of this warp, and where it lies: of lane i / SMALL, which begins at
 * `own`. */
DEVICE int64_t place_of_piece(int64_t own, int i)
{
    int owner = i / SMALL;
    int64_t base = __shfl_sync(0xffffffffu, (long long)own, owner);
    return base < 0 ? -1 : base + (i - owner * SMALL) * VEC;
}
#endif

extern "C" __global__ void __launch_bounds__(COPY_THREADS)
    thin_fwd(const __grid_constant__ tiles_call c)
{
    unsigned index = blockIdx.x * COPY_THREADS + threadIdx.x;
    bool there = index < c.rows;
    if (!STAGED && !there)
        return;
    unsigned rest = divided(index, c.across);
    int64_t first = (int64_t)(index - rest * c.across.size) * VEC;
    int64_t x_at = first * (SPREAD ? 1 : SMALL), y_at = first * (SPREAD ? SMALL : 1);
#pragma unroll 1
    for (int d = 0; d < COPY_DIMS && rest; d++) {
        unsigned next = divided(rest, c.dim[d]), place = rest - next * c.dim[d].size;
        x_at += place * c.x_stride[d];
        y_at += place * c.y_stride[d];
        rest = next;
    }
    const element *x = (const element *)c.x;
    element *y = (element *)c.y, held[SMALL * VEC];
#if STAGED
    __shared__ piece staged[COPY_THREADS / 32][AT(32 * SMALL)];
    piece *own = staged[threadIdx.x / 32];
    int lane = (int)threadIdx.x % 32;
#endif
#if STAGED && !SPREAD
#pragma unroll
    for (int i = 0; i < SMALL; i++) {
        int64_t at = place_of_piece(there ? x_at : -1, 32 * i + lane);
        if (at >= 0)
            own[AT(32 * i + lane)] = load<VEC>(x + at);
    }
    __syncwarp();
#endif
#pragma unroll
    for (int i = 0; i < SMALL; i++) {
        piece v;
#if STAGED && !SPREAD
        v = own[AT(lane * SMALL + i)];
#else
        if (there)
            v = load<VEC>(x + x_at + (SPREAD ? i * c.x_row : (int64_t)i * VEC));
#endif
#pragma unroll
        for (int k = 0; k < VEC; k++)
            held[i * VEC + k] = v.at[k];
    }
#pragma unroll
    for (int i = 0; i < SMALL; i++) {
        piece v;
#pragma unroll
        for (int k = 0; k < VEC; k++)
            v.at[k] = SPREAD ? held[(i * VEC + k) % SMALL * VEC + (i * VEC + k) / SMALL]
                             : held[k * SMALL + i];
#if STAGED && SPREAD
        own[AT(lane * SMALL + i)] = v;
#else
        if (there)
            store(y + y_at + (SPREAD ? (int64_t)i * VEC : i * c.y_column), v);
#endif
    }
#if STAGED && SPREAD
    __syncwarp();
#pragma unroll
    for (int i = 0; i < SMALL; i++) {
        int64_t at = place_of_piece(there ? y_at : -1, 32 * i + lane);
        if (at >= 0)
            store(y + at, own[AT(32 * i + lane)]);
    }
#endif
}

/* Rows of a table by number: y[i,:] = table[ids[i],:], NaN (or 0 for integers) where the id is no
 * row.
 *
 * Grid: a thread for each vector of UNROLL * 256 a block. Bytes: each looked-up row is read and
 * written once; the ids come from the cache. */
#include "dependent.cuh"
#include "vec.cuh"

/* Knobs: CUP_ID, VEC. */
#define UNROLL 4

typedef dtype_of<CUP_ID>::type id_type;

extern "C" __global__ void __launch_bounds__(256)
embedding_fwd(const T *table, const id_type *ids, T *y, int64_t rows, int64_t count, int32_t width)
{
    /* `width` and `count` are in vectors. */
    int64_t first = (int64_t)blockIdx.x * 256 * UNROLL + threadIdx.x;
    vec<T, VEC> v[UNROLL];
    wait_for_previous_kernel();
    let_next_kernel_start();
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int64_t at = first + u * 256;
        if (at >= count)
            break;
        int64_t place = count >> 31 ? at / width : (uint32_t)at / (uint32_t)width;
        int64_t id = ids[place];
        if (id >= 0 && id < rows) {
            v[u] = load_plain<VEC>(table + (id * width + (at - place * width)) * VEC);
        } else {
#pragma unroll
            for (int k = 0; k < VEC; k++)
                v[u].at[k] = from_real<T>((real)(0.0f / 0.0f));
        }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (first + u * 256 < count)
            store(y + (first + u * 256) * VEC, v[u]);
}

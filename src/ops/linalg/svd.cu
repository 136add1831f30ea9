/* u, s and vt with a = u diag(s) vt of each small matrix, the values from the largest on: a block a
 * matrix. Its columns, or its rows where these are longer, are turned into each other in pairs
 * until all stand at right angles: then they are u s, and the turns together v. A round has as many
 * pairs as find place, each column in one, and a sweep a round for each way to pair them. They lie
 * in shared memory where they fit and in `work` otherwise. Grid: a block a matrix. Bytes: a, u, s
 * and vt once. */
#include "columns.cuh"

#define SWEEPS 40 /* some ten are needed */
#define EPSILON (sizeof(T) == 8 ? (T)2.220446049250313e-16 : (T)1.1920929e-7f)
/* A column below this part of the largest element is noise, and 0 as far as angles go. */
#define NOISE (EPSILON / 2 * (EPSILON / 2))

struct turning {
    T *x, *v;
    int rows, count, distance, across;
    __device__ __forceinline__ T *column(int j) const { return x + (int64_t)j * distance; }
    __device__ __forceinline__ T *turns(int j) const { return v + (int64_t)j * across; }
};

/* By an angle of sine s and, of half of it, tangent u: with cosines near 1, whose rounding is no
 * matter of luck, lengths would grow from turn to turn. The larger one stays, or becomes, the
 * first. */
DEVICE void turn(T *first, T *second, int count, T s, T u, bool exchange)
{
    for (int i = group_lane(); i < count; i += LANES) {
        T a = first[i], b = second[i];
        T less = a - s * (b + u * a), more = b + s * (a - u * b);
        first[i] = exchange ? more : less;
        second[i] = exchange ? less : more;
    }
}

DEVICE bool turn_pair(const turning &t, int p, int q, T bound)
{
    T *first = t.column(p), *second = t.column(q);
    T aa = 0, bb = 0, ab = 0, s = 0, u = 0;
    for (int i = group_lane(); i < t.rows; i += LANES) {
        aa += first[i] * first[i];
        bb += second[i] * second[i];
        ab += first[i] * second[i];
    }
    aa = group_sum(aa);
    bb = group_sum(bb);
    ab = group_sum(ab);
    bool exchange = bb > aa, turned = fabs(ab) > bound * sqrt(aa * bb) && aa > NOISE && bb > NOISE;
    if (turned) {
        T zeta = (bb - aa) / (2 * ab);
        T tangent = 1 / ((T)fabs(zeta) + sqrt(1 + zeta * zeta));
        tangent = zeta < 0 ? -tangent : tangent;
        T c = 1 / sqrt(1 + tangent * tangent);
        s = c * tangent;
        u = s / (1 + c);
    }
    if (turned || exchange) {
        turn(first, second, t.rows, s, u, exchange);
        turn(t.turns(p), t.turns(q), t.count, s, u, exchange);
    }
    return turned || exchange;
}

/* Pair i of a round, with p < q: one player keeps its place, the others move on around a table.
 * Where their number is odd, one has nobody. */
DEVICE bool pair_of(int round, int i, int count, int *p, int *q)
{
    int places = (count + 1) / 2 * 2 - 1;
    int a = i == 0 ? places : (round + i) % places;
    int b = (round + places - i) % places;
    *p = a < b ? a : b;
    *q = a < b ? b : a;
    return *q < count;
}

DEVICE void turn_all(const turning &t)
{
    int pairs = (t.count + 1) / 2;
    T least = sqrt((T)t.rows) / 2, bound = (least > 8 ? least : (T)8) * EPSILON;
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        bool any = false;
        for (int round = 0; round < 2 * pairs - 1; round++) {
            for (int i = group_number(); i < pairs; i += GROUPS) {
                int p, q;
                if (pair_of(round, i, t.count, &p, &q))
                    any |= turn_pair(t, p, q, bound);
            }
            __syncthreads();
        }
        if (!__syncthreads_or(any))
            break;
    }
}

/* A unit vector at right angles to the columns before: of the unit vectors the one that is least
 * among them, less what it has of them, twice as rounding leaves some. By one group, each lane of
 * which reads and writes rows of its own. */
DEVICE void complete(const turning &t, int column)
{
    T *own = t.column(column), most = -highest((T)0);
    int at = t.rows;
#pragma unroll 1
    for (int i = group_lane(); i < t.rows; i += LANES) {
        T among = 0;
#pragma unroll 1
        for (int j = 0; j < column; j++)
            among += t.column(j)[i] * t.column(j)[i];
        if (-among > most) {
            most = -among;
            at = i;
        }
    }
    at = group_place(most, at);
#pragma unroll 1
    for (int i = group_lane(); i < t.rows; i += LANES)
        own[i] = i == at ? (T)1 : (T)0;
#pragma unroll 1
    for (int j = 0; j < 2 * column; j++) {
        const T *other = t.column(j < column ? j : j - column);
        T part = group_product(own, other, t.rows);
#pragma unroll 1
        for (int i = group_lane(); i < t.rows; i += LANES)
            own[i] -= part * other[i];
    }
    T size = sqrt(group_product(own, own, t.rows));
#pragma unroll 1
    for (int i = group_lane(); i < t.rows; i += LANES)
        own[i] /= size;
}

/* Makes unit vectors of columns, and notes their lengths. Those of noise are the last. */
DEVICE void measure(const turning &t, T *lengths)
{
    for (int j = group_number(); j < t.count; j += GROUPS) {
        T *own = t.column(j), length = sqrt(group_product(own, own, t.rows));
#pragma unroll 1
        for (int i = group_lane(); i < t.rows && length > EPSILON / 2; i += LANES)
            own[i] /= length;
        if (group_lane() == 0)
            lengths[j] = length;
    }
    __syncthreads();
    if (group_number() == 0)
        for (int j = 0; j < t.count; j++)
            if (!(lengths[j] > EPSILON / 2))
                complete(t, j);
    __syncthreads();
}

/* -1 where of the largest elements the first is below 0, else 1. All have read it at the end. */
DEVICE T sign_of(const T *x, int count)
{
    T most = -1;
    int at = count;
#pragma unroll 1
    for (int i = group_lane(); i < count; i += LANES)
        if ((T)fabs(x[i]) > most) {
            most = (T)fabs(x[i]);
            at = i;
        }
    T sign = x[group_place(most, at)] < 0 ? (T)-1 : (T)1;
    __syncwarp(group_members());
    return sign;
}

DEVICE void set_signs(const turning &t, bool wide)
{
    for (int j = group_number(); j < t.count; j += GROUPS) {
        T sign = sign_of(wide ? t.column(j) : t.turns(j), wide ? t.rows : t.count);
#pragma unroll 1
        for (int i = group_lane(); i < t.rows; i += LANES)
            t.column(j)[i] *= sign;
#pragma unroll 1
        for (int i = group_lane(); i < t.count; i += LANES)
            t.turns(j)[i] *= sign;
    }
    __syncthreads();
}

DEVICE void fill(T *to, int count, T value)
{
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < count; i += THREADS)
        to[i] = value;
}

/* At a scale at which squares neither vanish nor grow too large. */
DEVICE void load(const turning &t, const T *a, int columns, bool wide, int exponent)
{
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < t.rows * t.count; i += THREADS) {
        int row = i / columns, column = i - row * columns;
        t.column(wide ? row : column)[wide ? column : row] = scalbn(a[i], -exponent);
    }
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < t.count * t.count; i += THREADS)
        t.turns(i / t.count)[i % t.count] = i / t.count == i % t.count ? (T)1 : (T)0;
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) svd_fwd(const T *a, T *u, T *s, T *vt,
                                                              T *work, int rows, int columns,
                                                              int distance, int across)
{
    bool wide = rows < columns;
    int k = wide ? rows : columns;
    a += blockIdx.x * ((int64_t)rows * columns);
    u += blockIdx.x * ((int64_t)rows * k);
    s += blockIdx.x * (int64_t)k;
    vt += blockIdx.x * ((int64_t)k * columns);
#if SHARED
    extern __shared__ uint4 memory[];
    T *x = (T *)memory;
#else
    T *x = work + blockIdx.x * ((int64_t)(distance + across + 1) * k);
#endif
    turning t = {x,        x + (int64_t)distance * k, wide ? columns : rows, k,
                 distance, across};
    T *lengths = t.v + (int64_t)across * k, most = 0;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < rows * columns; i += THREADS)
        most = maximum(most, (T)fabs(a[i]));
    most = block_max(most);
    if (!(most - most == 0)) {
        T nan = most - most;
        fill(u, rows * k, nan);
        fill(s, k, nan);
        fill(vt, k * columns, nan);
        return;
    }
    int exponent = most > 0 ? ilogb(most) + 1 : 0;
    load(t, a, columns, wide, exponent);
    turn_all(t);
    measure(t, lengths);
    set_signs(t, wide);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < rows * k; i += THREADS)
        u[i] = wide ? t.turns(i % k)[i / k] : t.column(i % k)[i / k];
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < k * columns; i += THREADS)
        vt[i] = wide ? t.column(i / columns)[i % columns] : t.turns(i / columns)[i % columns];
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < k; i += THREADS)
        s[i] = scalbn(lengths[i], exponent);
}

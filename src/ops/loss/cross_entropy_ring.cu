/* Cross-entropy of long rows on Hopper and later, f32 and 16-bit floats; see
 * ops/loss/cross_entropy.h for the formulas and ops/loss/row_ring.cuh for the way of a row. One
 * launch does it all: a block counts the targets that count while its first rows arrive, a row's
 * logsumexp is found as its parts come in, with IN_PLACE its gradient is written over it, and
 * the block that ends last adds the losses in order. Logits are read once and written once: 4
 * bytes an element of 16 bits, and two exponentials, of which a multiprocessor does 16 a clock.
 * A target that is no class makes its loss and its gradient NaN. */
#include "row_found.cuh"

/* Knobs: INDEX, IN_PLACE. */

typedef dtype_of<INDEX>::type target_type;

struct rule {
    int64_t rows, ignore;
    int width, classes;
    float smoothing, z_loss;
};

/* __CUDA_ARCH__ is not known where the host's half of a file is read. */
#if __CUDA_ARCH__ >= 900

DEVICE float not_a_number()
{
    return highest(0.0f) - highest(0.0f);
}

DEVICE found take_row(const row_ring &ring, const T *logits, int vectors, const rule &r, int64_t k,
                      int target)
{
    found f = {lowest(0.0f), 0, 0, 0};
    for (int part = 0; part < ring.parts; part++) {
        ring.wait(k, part);
        if (ring.holds(part, target / VEC))
            f.other = to_real(((const T *)ring.slot(k))[target - ring.own.first * VEC]);
        take_part(f, ring, k, part, r.classes, r.smoothing > 0);
        if (!IN_PLACE) {
            __syncwarp();
            if (lane() == 0)
                ring.fetch(logits, vectors, k + RING, part);
        }
    }
    return f;
}

DEVICE float loss_of(const rule &r, int64_t target, const found &f, float lse)
{
    if (target == r.ignore)
        return 0;
    if (target < 0 || target >= r.classes)
        return not_a_number();
    float s = r.smoothing, loss = lse - (1 - s) * f.other + r.z_loss * lse * lse;
    return s > 0 ? loss - s * (f.total / (float)r.classes) : loss;
}

/* The gradient of one row: p a - b, and less `hit` at the target. */
struct slope {
    exponential e;
    float a, b, hit, logit;

    __device__ __forceinline__ slope(const rule &r, int64_t target, float lse, float share,
                                     float logit_)
        : e(lse)
    {
        logit = logit_;
        if (target < 0 || target >= r.classes)
            share = not_a_number();
        a = share * (1 + 2 * r.z_loss * lse);
        b = share * r.smoothing / (float)r.classes;
        hit = share * (1 - r.smoothing);
    }
    __device__ __forceinline__ float operator()(float x) const { return e(x) * a - b; }
};

/* Count vectors, a line apart, are overwritten by their gradients. */
template <int Count> DEVICE void overwrite(unit *at, const slope &s)
{
#pragma unroll
    for (int p = 0; p < Count; p++) {
        unit v = load_plain<VEC>((const T *)(at + p * 32));
        float out[VEC];
#pragma unroll
        for (int k = 0; k < VEC; k++)
            out[k] = s(to_real(v.at[k]));
        store((T *)(at + p * 32), from_reals<T, VEC>(out));
    }
}

DEVICE void overwrite_part(const row_ring &ring, int64_t k, int part, const rule &r,
                           const slope &s)
{
    int at = part * RING_PART, count = ring.part_count(part);
    unit *to = ring.slot(k) + at + lane();
    if (count == RING_PART && (ring.own.first + at + RING_PART) * VEC <= r.classes) {
        overwrite<PIECES>(to, s);
        return;
    }
    for (int i = 0; i + lane() < count; i += 32) {
        overwrite<1>(to + i, s);
        int left = r.classes - (ring.own.first + at + i + lane()) * VEC;
        for (int e = left < 0 ? 0 : left; e < VEC; e++)
            to[i].at[e] = from_real<T>(0.0f);
    }
}

DEVICE void write_row(const row_ring &ring, T *logits, int vectors, const rule &r, int64_t k,
                      int64_t target, int hit, const slope &s)
{
    for (int part = 0; part < ring.parts; part++) {
        if (target == r.ignore) {
            unit *to = ring.slot(k) + part * RING_PART;
            for (int i = lane(); i < ring.part_count(part); i += 32)
                to[i] = unit();
        } else {
            overwrite_part(ring, k, part, r, s);
            if (ring.holds(part, hit / VEC) && (hit / VEC - ring.own.first) % 32 == lane())
                ((T *)ring.slot(k))[hit - ring.own.first * VEC] = from_real<T>(s(s.logit) - s.hit);
        }
        publish_shared();
        __syncwarp();
        if (lane() == 0) {
            ring.put(logits, vectors, k, part);
            if (part > 0) {
                bulk_stores_read<1>();
                ring.fetch(logits, vectors, k + RING, part - 1);
            }
        }
    }
}

/* The last part of row k, when the copy out of it has been read. */
DEVICE void fetch_last(const row_ring &ring, const T *logits, int vectors, int64_t k)
{
    if (!IN_PLACE || lane() || k < 0 || ring.parts == 0)
        return;
    bulk_stores_read<0>();
    ring.fetch(logits, vectors, k + RING, ring.parts - 1);
}

/* A target's column; out of the way of all columns where it is none. */
DEVICE int column_of(const rule &r, int64_t target)
{
    return target >= 0 && target < r.classes ? (int)target : -VEC;
}

DEVICE void finish_row(const row_ring &ring, T *logits, int vectors, const rule &r, int64_t k,
                       int64_t target, float share, float *losses, float *lses)
{
    found f = receive(ring, k, r.smoothing > 0);
    float lse = f.most + log_of(f.sum);
    if (ring.place == 0 && lane() == 0) {
        losses[ring.row(k)] = loss_of(r, target, f, lse);
        if (lses)
            lses[ring.row(k)] = lse;
    }
    if (IN_PLACE)
        write_row(ring, logits, vectors, r, k, target, column_of(r, target),
                  slope(r, target, lse, share, f.other));
}

/* 1 / (rows that count) */
DEVICE float share_of(const target_type *targets, const rule &r)
{
    int64_t count = 0;
    for (int64_t i = threadIdx.x; i < r.rows; i += RING_THREADS)
        count += (int64_t)targets[i] != r.ignore;
    count = block_sum(count);
    return count ? (float)(1 / (double)count) : 0.0f;
}

/* How many clusters have written their losses; 0 between launches, of which no two run at a time:
 * a context loads modules of its own and has one stream. */
__device__ unsigned arrived;

/* The cluster that comes last adds the losses, always in the same order. */
DEVICE void finish(const float *losses, int64_t rows, float share, float *loss)
{
    __shared__ bool last;
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(&arrived, 1u) == gridDim.x / CLUSTER - 1;
        if (last)
            arrived = 0;
        __threadfence();
    }
    __syncthreads();
    if (!last)
        return;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < rows; i += RING_THREADS)
        sum += (double)__ldcg(losses + i);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *loss = (float)(sum * (double)share);
}

#endif

extern "C" __global__ void __launch_bounds__(RING_THREADS, BLOCKS)
cross_entropy_sm90(T *logits, const target_type *targets, const float *given, float *shares,
                   float *lses, float *losses, float *loss, const __grid_constant__ rule r)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ row_ring_shared shared;
    int vectors = r.width / VEC;
    row_ring ring(&shared, (unit *)memory, vectors, r.rows);
    ring.fetch_first(logits, vectors);
    float share = given ? *given : share_of(targets, r);
    if (shares && blockIdx.x == 0 && threadIdx.x == 0)
        *shares = share;
    int64_t next = ring.rows ? (int64_t)targets[ring.row(0)] : 0;
    for (int64_t k = 0; k < ring.rows; k++) {
        int64_t target = next;
        if (k + 1 < ring.rows)
            next = (int64_t)targets[ring.row(k + 1)];
        found f = take_row(ring, logits, vectors, r, k, column_of(r, target));
        if (RING > 1)
            fetch_last(ring, logits, vectors, k - 1);
        send(ring, k, f, r.smoothing > 0);
        finish_row(ring, logits, vectors, r, k, target, share, losses, lses);
        if (RING == 1)
            fetch_last(ring, logits, vectors, k);
    }
    if (CLUSTER == 1 || cluster_rank() == 0)
        finish(losses, r.rows, share, loss);
    ring.leave();
#endif
}

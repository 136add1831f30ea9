/* Cross-entropy of long rows on Hopper and later, f32 and 16-bit floats; see ops/cross_entropy.h
 * for the formulas and kernels/row_ring.cuh for the way of a row. One launch does it all: a block
 * counts the targets that count while its first rows arrive, a row's logsumexp is found as its
 * parts come in, with IN_PLACE its gradient is written over it, and the block that ends last adds
 * the losses in order. Logits are read once and written once: 4 bytes an element of 16 bits, and
 * two exponentials, of which a multiprocessor does 16 a clock. A target that is no class makes its
 * loss and its gradient NaN. */
#if CUP_T == 2 || CUP_T == 3
#define SHORT_MATH 1
#endif
#include "real_math.cuh"
#include "reduce.cuh"
#include "row_ring.cuh"

#ifndef INDEX
#define INDEX CUP_I64
#endif
#ifndef IN_PLACE
#define IN_PLACE 0
#endif
#define LOG2_E 1.44269504f

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

/* e^(x - shift): for 16-bit elements in one multiplication and one exponential. */
struct exponential {
    float shift;

    __device__ __forceinline__ explicit exponential(float most)
    {
        shift = SHORT_MATH ? most * LOG2_E : most;
    }
    __device__ __forceinline__ float operator()(float x) const
    {
        return SHORT_MATH ? exp2_short(x * LOG2_E - shift) : exp_of(x - shift);
    }
};

DEVICE uint32_t larger_pair(uint32_t a, uint32_t b, bf16)
{
    uint32_t c;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}

DEVICE uint32_t larger_pair(uint32_t a, uint32_t b, f16)
{
    uint32_t c;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}

DEVICE float larger(float a, float b)
{
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

DEVICE float largest_of(const unit (&v)[PIECES], float)
{
    float most = to_real(v[0].at[0]);
#pragma unroll
    for (int p = 0; p < PIECES; p++)
#pragma unroll
        for (int k = 0; k < VEC; k++)
            most = larger(most, to_real(v[p].at[k]));
    return most;
}

/* Two elements at a time. */
template <typename Half> DEVICE float largest_of(const unit (&v)[PIECES], Half)
{
    union {
        uint32_t word;
        Half half[2];
    } most;
    vec_words<T, VEC> first;
    first.elements = v[0];
    uint32_t lane_most[4] = {first.words[0].x, first.words[0].y, first.words[0].z,
                             first.words[0].w};
#pragma unroll
    for (int p = 1; p < PIECES; p++) {
        vec_words<T, VEC> u;
        u.elements = v[p];
        lane_most[0] = larger_pair(lane_most[0], u.words[0].x, Half());
        lane_most[1] = larger_pair(lane_most[1], u.words[0].y, Half());
        lane_most[2] = larger_pair(lane_most[2], u.words[0].z, Half());
        lane_most[3] = larger_pair(lane_most[3], u.words[0].w, Half());
    }
    most.word = larger_pair(larger_pair(lane_most[0], lane_most[1], Half()),
                            larger_pair(lane_most[2], lane_most[3], Half()), Half());
    return larger(to_real(most.half[0]), to_real(most.half[1]));
}

/* What a lane has found of a row: the largest, the sum of exponentials of the distances to it,
 * the plain sum, and the logit of the target where it is the warp's. */
struct found {
    float most, sum, total, logit;
};

/* The vectors of a lane in a part: the first of them in the row, and whether all of them are
 * there and made of classes. */
struct place {
    int vector, left; /* left: vectors of the part from the lane's first on */
    bool whole;

    __device__ __forceinline__ place(const row_ring &ring, int part, int classes)
    {
        int at = part * RING_PART;
        vector = ring.first + at + lane();
        left = ring.part_count(part) - lane();
        whole = ring.part_count(part) == RING_PART &&
                (ring.first + at + RING_PART) * VEC <= classes;
    }
    /* The same in all lanes. */
    __device__ __forceinline__ bool holds(int column) const
    {
        return (unsigned)(column / VEC - (vector - lane())) < RING_PART;
    }
    __device__ __forceinline__ bool has(int p) const { return p * 32 < left; }
    __device__ __forceinline__ int column(int p) const { return (vector + p * 32) * VEC; }
};

template <bool Whole>
DEVICE void take_part(found &f, const unit *from, const place &at, const rule &r)
{
    unit v[PIECES];
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        if (Whole || at.has(p))
            v[p] = load_plain<VEC>((const T *)(from + p * 32));
        if (!Whole)
#pragma unroll
            for (int k = 0; k < VEC; k++)
                if (!at.has(p) || at.column(p) + k >= r.classes)
                    v[p].at[k] = from_real<T>(lowest(0.0f));
    }
    float most = larger(f.most, largest_of(v, T()));
    /* Where all is -infinity there is no distance to it. */
    exponential e(most == lowest(0.0f) ? 0.0f : most);
    float sum[4] = {f.sum * e(f.most), 0, 0, 0};
#pragma unroll
    for (int p = 0; p < PIECES; p++)
#pragma unroll
        for (int k = 0; k < VEC; k++)
            sum[k % 4] += e(to_real(v[p].at[k]));
    f.most = most;
    f.sum = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    if (r.smoothing > 0)
#pragma unroll
        for (int p = 0; p < PIECES; p++)
#pragma unroll
            for (int k = 0; k < VEC; k++)
                if (Whole || (at.has(p) && at.column(p) + k < r.classes))
                    f.total += to_real(v[p].at[k]);
}

DEVICE found take_row(const row_ring &ring, const T *logits, int vectors, const rule &r, int64_t k,
                      int target)
{
    found f = {lowest(0.0f), 0, 0, 0};
    for (int part = 0; part < ring.parts; part++) {
        ring.wait(k, part);
        const unit *from = ring.slot(k) + part * RING_PART + lane();
        place at(ring, part, r.classes);
        if (at.holds(target))
            f.logit = to_real(((const T *)ring.slot(k))[target - ring.first * VEC]);
        if (at.whole)
            take_part<true>(f, from, at, r);
        else
            take_part<false>(f, from, at, r);
        if (!IN_PLACE) {
            __syncwarp();
            if (lane() == 0)
                ring.fetch(logits, vectors, k + RING, part);
        }
    }
    return f;
}

/* Joins what the lanes of a warp have found, and then the warps. */
DEVICE found join(const row_ring &ring, int64_t k, const rule &r, found f, int target)
{
    float most = warp_reduce(f.most, max_op());
    f.sum = warp_sum(f.sum * exponential(most == lowest(0.0f) ? 0.0f : most)(f.most));
    if (r.smoothing > 0)
        f.total = warp_sum(f.total);
    int slot = target / VEC;
    row_word word = {{most, f.sum, f.total, f.logit}};
    const row_word *words = ring.exchange(k, word);
    found all = {lowest(0.0f), 0, 0, words[slot / ring.slice].at[3]};
#pragma unroll
    for (int i = 0; i < CLUSTER * WARPS; i += 32) {
        row_word own = {{lowest(0.0f), 0, 0, 0}};
        if (i + lane() < CLUSTER * WARPS)
            own = words[i + lane()];
        float both = larger(all.most, own.at[0]);
        exponential e(both == lowest(0.0f) ? 0.0f : both);
        all.sum = all.sum * e(all.most) + own.at[1] * e(own.at[0]);
        all.most = both;
        all.total += own.at[2];
    }
    most = warp_reduce(all.most, max_op());
    all.sum = warp_sum(all.sum * exponential(most == lowest(0.0f) ? 0.0f : most)(all.most));
    all.most = most;
    if (r.smoothing > 0)
        all.total = warp_sum(all.total);
    return all;
}

DEVICE float loss_of(const rule &r, int64_t target, const found &f, float lse)
{
    if (target == r.ignore)
        return 0;
    if (target < 0 || target >= r.classes)
        return not_a_number();
    float s = r.smoothing, loss = lse - (1 - s) * f.logit + r.z_loss * lse * lse;
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

template <bool Whole>
DEVICE void slope_part(const slope &s, unit *at_lane, const place &at, const rule &r)
{
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        if (!Whole && !at.has(p))
            continue;
        unit v = load_plain<VEC>((const T *)(at_lane + p * 32));
        float out[VEC];
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            out[k] = s(to_real(v.at[k]));
            if (!Whole && at.column(p) + k >= r.classes)
                out[k] = 0;
        }
        store((T *)(at_lane + p * 32), from_reals<T, VEC>(out));
    }
}

DEVICE void write_row(const row_ring &ring, T *logits, int vectors, const rule &r, int64_t k,
                      int64_t target, int hit, const slope &s)
{
    for (int part = 0; part < ring.parts; part++) {
        unit *to = ring.slot(k) + part * RING_PART + lane();
        place at(ring, part, r.classes);
        if (target == r.ignore) {
            for (int p = 0; at.has(p); p++)
                to[p * 32] = unit();
        } else if (at.whole) {
            slope_part<true>(s, to, at, r);
        } else {
            slope_part<false>(s, to, at, r);
        }
        if (target != r.ignore && at.holds(hit) && (hit / VEC - ring.first) % 32 == lane())
            ((T *)ring.slot(k))[hit - ring.first * VEC] = from_real<T>(s(s.logit) - s.hit);
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

/* The last part of the row before, whose copy out had time by now. */
DEVICE void fetch_last(const row_ring &ring, const T *logits, int vectors, int64_t k)
{
    if (lane() || k == 0 || ring.parts == 0)
        return;
    bulk_stores_read<0>();
    ring.fetch(logits, vectors, k - 1 + RING, ring.parts - 1);
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

/* How many clusters have written their losses; 0 between launches. */
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

extern "C" __global__ void __launch_bounds__(RING_THREADS, 1)
cross_entropy_sm90(T *logits, const target_type *targets, float *shares, float *lses,
                   float *losses, float *loss, const __grid_constant__ rule r)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ row_ring_shared shared;
    int vectors = r.width / VEC;
    row_ring ring(&shared, (unit *)memory, vectors, r.rows);
    bool leads = threadIdx.x == 0 && (CLUSTER == 1 || cluster_rank() == 0);
    ring.fetch_first(logits, vectors);
    float share = share_of(targets, r);
    if (leads && shares && blockIdx.x == 0)
        *shares = share;
    int64_t next = ring.rows ? (int64_t)targets[ring.row(0)] : 0;
    for (int64_t k = 0; k < ring.rows; k++) {
        int64_t target = next;
        if (k + 1 < ring.rows)
            next = (int64_t)targets[ring.row(k + 1)];
        /* Out of the way of any column where there is none. */
        int hit = target >= 0 && target < r.classes ? (int)target : -VEC;
        found f = take_row(ring, logits, vectors, r, k, hit);
        if (IN_PLACE)
            fetch_last(ring, logits, vectors, k);
        f = join(ring, k, r, f, hit < 0 ? 0 : hit);
        float lse = f.most + log_of(f.sum);
        if (leads) {
            losses[ring.row(k)] = loss_of(r, target, f, lse);
            if (lses)
                lses[ring.row(k)] = lse;
        }
        if (IN_PLACE)
            write_row(ring, logits, vectors, r, k, target, hit,
                      slope(r, target, lse, share, f.logit));
    }
    if (CLUSTER == 1 || cluster_rank() == 0)
        finish(losses, r.rows, share, loss);
    ring.leave();
#endif
}

/* Convolutions with a few results of many channels, at strides of 1, on Hopper: each place of x is
 * multiplied once by the weights of all taps, and a result adds up what its taps left of their
 * places, so that x is read once and not once a tap.
 *
 * A block goes over neighbouring places by steps. One warp orders copies of their channels, by TMA.
 * Two warpgroups multiply TILES times 64 places each, and put the sums over channels into a ring of
 * shared memory that holds as many places as a result's taps lie apart, and a step more: a row for
 * each tap and result, so that threads which have neighbouring places never meet in a bank, neither
 * when products are written nor when taps are read. Then a thread adds up a result's taps in order,
 * those inside the image alone. */
#include "conv_taps.cuh"
#include "tma.cuh"
#include "vec.cuh"
#include "wgmma.cuh"

#ifndef HIGH /* taps */
#define HIGH 3
#endif
#ifndef WIDE
#define WIDE 3
#endif
#ifndef RESULTS
#define RESULTS 3
#endif
#ifndef RING /* places, a multiple of 64 */
#define RING 512
#endif
#ifndef TILES
#define TILES 2
#endif
#ifndef STRIPS /* whether places are those of strips */
#define STRIPS 0
#endif
#ifndef Y_VEC /* results that are written at once */
#define Y_VEC 1
#endif

#define COLUMNS (HIGH * WIDE * RESULTS)
#define N ((COLUMNS + 15) / 16 * 16)
#define STEP (2 * TILES * CONV_TAPS_BOX)
#define BOX_BYTES (CONV_TAPS_BOX * CONV_TAPS_LINE)
#define STAGE_BYTES (STEP * CONV_TAPS_LINE)
#define WEIGHT_BYTES (N * CONV_TAPS_LINE) /* of a chunk */
#define PITCH (RING + CONV_TAPS_APART)
#define WARPS (CONV_TAPS_THREADS / 32)

#if CUP_HAS_WGMMA

/* What shared memory holds. */
struct layout {
    uint32_t stages, weight, full, empty;
    char *weights;
    float *sums;

    __device__ __forceinline__ layout(const conv_taps &c)
    {
        extern __shared__ __align__(1024) char shared[];
        stages = shared_address(shared);
        weight = stages + c.stages * STAGE_BYTES;
        weights = shared + c.stages * STAGE_BYTES;
        sums = (float *)(weights + c.chunks * WEIGHT_BYTES);
        full = weight + c.chunks * WEIGHT_BYTES + COLUMNS * PITCH * 4;
        empty = full + c.stages * 8;
    }
};

/* A stage, and the parity of its turn. */
struct turn {
    int stage, phase;

    __device__ __forceinline__ void next(const conv_taps &c)
    {
        stage++;
        phase ^= stage == c.stages;
        stage = stage == c.stages ? 0 : stage;
    }
};

/* A block's places that have results, and its steps until the last of them. */
struct share {
    int first, count, places, steps; /* `places` are read for the results of `count` */

    __device__ __forceinline__ share(const conv_taps &c)
    {
        unsigned begin = blockIdx.x * c.each, left = c.all - begin;
        first = (int)begin;
        count = (int)(left < c.each ? left : c.each);
        places = count + c.reach;
        steps = (places + STEP - 1) / STEP;
    }
};

/* Orders a copy of one chunk of the channels of 64 places. */
DEVICE void bring(const conv_taps &c, const tensor_map &x, uint32_t to, int channel, int place,
                  uint32_t barrier)
{
    if (STRIPS) {
        unsigned image = (unsigned)place;
        int column = (int)split(&image, c.columns), row = (int)split(&image, c.rows);
        int strip = (int)split(&image, c.strips);
        column += strip * c.strip + c.origin[1];
        const box b = {{channel, column, row + c.origin[0], (int)image}};
        tma_load<4>(x, to, b, barrier, TMA_EVICT_FIRST);
    } else {
        const box b = {{channel, place}};
        tma_load<2>(x, to, b, barrier, TMA_EVICT_FIRST);
    }
}

/* Of the last step only what results are made of: what lies in the place of the others is
 * multiplied, too, and not read. */
DEVICE void produce(const conv_taps &c, const tensor_map &x, const layout &at, const share &mine)
{
    turn t = {0, 1};
    int place = mine.first + c.first, left = mine.places;
#pragma unroll 1
    for (; left > 0; left -= STEP, place += STEP) {
        int boxes = left < STEP ? (left + CONV_TAPS_BOX - 1) / CONV_TAPS_BOX : STEP / CONV_TAPS_BOX;
#pragma unroll 1
        for (int chunk = 0; chunk < c.chunks; chunk++, t.next(c)) {
            uint32_t full = at.full + t.stage * 8, to = at.stages + t.stage * STAGE_BYTES;
            barrier_wait(at.empty + t.stage * 8, t.phase);
            barrier_expect(full, boxes * BOX_BYTES);
#pragma unroll
            for (int i = 0; i < STEP / CONV_TAPS_BOX; i++)
                if (i < boxes)
                    bring(c, x, to + i * BOX_BYTES, chunk * CONV_TAPS_CHUNK,
                          place + i * CONV_TAPS_BOX, full);
        }
    }
}

/* The weight of all taps and results by channels, as products take it, with zeros beyond. */
DEVICE void take_weight(const conv_taps &c, const layout &at)
{
    for (int e = threadIdx.x; e < c.chunks * N * CONV_TAPS_CHUNK; e += CONV_TAPS_THREADS) {
        int line = e / CONV_TAPS_CHUNK, k = e % CONV_TAPS_CHUNK;
        int chunk = line / N, column = line % N, channel = chunk * CONV_TAPS_CHUNK + k;
        int tap = column / RESULTS, result = column % RESULTS;
        T v = T();
        if (column < COLUMNS && channel < c.channels)
            v = ((const T *)c.weight)[result * c.weight_step[0] + channel * c.weight_step[1] +
                                      tap / WIDE * c.weight_step[2] +
                                      tap % WIDE * c.weight_step[3]];
        char *to = at.weights + line * CONV_TAPS_LINE + ((k / 8 ^ line % 8) * 16 + k % 8 * 2);
        *(T *)to = v;
    }
    publish_shared();
}

/* The products of a step's places that this warpgroup has. */
DEVICE void multiply(const conv_taps &c, const layout &at, turn &t, int group,
                     wgmma_sum (&d)[TILES][N / 2])
{
#pragma unroll 1
    for (int chunk = 0; chunk < c.chunks; chunk++, t.next(c)) {
        uint32_t x = at.stages + t.stage * STAGE_BYTES + group * TILES * BOX_BYTES;
        uint64_t b = wgmma_describe(at.weight + chunk * WEIGHT_BYTES, PRODUCT_ALONG_K, 0);
        barrier_wait(at.full + t.stage * 8, t.phase);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            uint64_t a = wgmma_describe(x + i * BOX_BYTES, PRODUCT_ALONG_K, 0);
#pragma unroll
            for (int k = 0; k < WGMMA_K_STEPS; k++) {
                uint64_t by = wgmma_step(PRODUCT_ALONG_K, k);
                wgmma<N>::template run<PRODUCT_ALONG_K, PRODUCT_ALONG_K>(d[i], a + by, b + by,
                                                                         chunk || k);
            }
        }
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < TILES; i++)
            wgmma_hold(d[i]);
        if (lane() == 0)
            barrier_arrive(at.empty + t.stage * 8);
    }
}

/* A place of the ring, `by` places on. */
DEVICE int ring_on(int slot, int by)
{
    slot += by;
    return slot >= RING ? slot - RING : slot;
}

/* Puts products of 64 places into the ring, the first of which has its place `slot`. */
DEVICE void keep(const layout &at, int slot, const wgmma_sum (&d)[N / 2])
{
    float *to = at.sums + slot + (int)threadIdx.x % 128 / 32 * 16 + lane() / 4;
    int right = 2 * (lane() % 4);
    to += right * PITCH;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (8 * j + i + right < COLUMNS) {
                to[(8 * j + i) * PITCH] = d[4 * j + i];
                to[(8 * j + i) * PITCH + 8] = d[4 * j + 2 + i];
            }
}

/* Where a result is. */
struct result_place {
    int row, column, image;

    /* Whether there is one at a place. */
    __device__ __forceinline__ bool find(const conv_taps &c, int place)
    {
        unsigned rest = (unsigned)place;
        column = (int)split(&rest, c.columns);
        row = (int)split(&rest, c.rows);
        bool is = column < c.strip && row < c.count[0];
        if (STRIPS)
            column += (int)split(&rest, c.strips) * c.strip;
        image = (int)rest;
        return is && column < c.count[1];
    }
};

/* The sums over taps; `slot` is where the ring has the first tap. */
DEVICE void add_taps(const conv_taps &c, const layout &at, int slot, const result_place &p,
                     float (&sum)[RESULTS])
{
#pragma unroll
    for (int i = 0; i < HIGH; i++) {
        int row = p.row + c.from[0] + i * c.apart[0];
        bool inside = (unsigned)row < (unsigned)c.size[0];
#pragma unroll
        for (int j = 0; j < WIDE; j++) {
            int column = p.column + c.from[1] + j * c.apart[1];
            bool there = inside && (unsigned)column < (unsigned)c.size[1];
            int tap = c.tap + i * c.tap_step[0] + j * c.tap_step[1];
            const float *from = at.sums + (i * WIDE + j) * RESULTS * PITCH + ring_on(slot, tap);
#pragma unroll
            for (int k = 0; k < RESULTS; k++)
                sum[k] += there ? from[k * PITCH] : 0.0f;
        }
    }
}

DEVICE void finish(const conv_taps &c, const result_place &p, float (&sum)[RESULTS],
                   const float (&bias)[RESULTS])
{
    T *to = (T *)c.y + p.image * c.y_step[0] + p.row * c.y_step[2] + p.column * c.y_step[3];
#pragma unroll
    for (int k = 0; k < RESULTS; k += Y_VEC) {
        real part[Y_VEC];
#pragma unroll
        for (int i = 0; i < Y_VEC; i++)
            part[i] = sum[k + i] + bias[k + i];
        store(to + k * c.y_step[1], from_reals<T, Y_VEC>(part));
    }
}

DEVICE void consume(const conv_taps &c, const layout &at, const share &mine)
{
    float bias[RESULTS];
#pragma unroll
    for (int k = 0; k < RESULTS; k++)
        bias[k] = c.bias ? to_real(((const T *)c.bias)[k * c.bias_step]) : 0.0f;
    take_weight(c, at);
    int group = (int)threadIdx.x / 128;
    int begin = 0, behind = RING - c.reach; /* where the ring has the step, and its first results */
    int i = (int)threadIdx.x - c.reach;
    turn t = {0, 0};
    meet(1, CONV_TAPS_THREADS);
#pragma unroll 1
    for (int step = 0; step < mine.steps; step++, i += STEP) {
        wgmma_sum d[TILES][N / 2];
        multiply(c, at, t, group, d);
        meet(1, CONV_TAPS_THREADS); /* the ring has been read */
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
            keep(at, ring_on(begin, (group * TILES + tile) * CONV_TAPS_BOX), d[tile]);
        meet(1, CONV_TAPS_THREADS);
        result_place p;
        bool has = (TILES == 2 || threadIdx.x < STEP) && (unsigned)i < (unsigned)mine.count;
        if (has && p.find(c, mine.first + i)) {
            float sum[RESULTS] = {};
            add_taps(c, at, ring_on(behind, threadIdx.x), p, sum);
            finish(c, p, sum, bias);
        }
        begin = ring_on(begin, STEP);
        behind = ring_on(behind, STEP);
    }
}

#endif

extern "C" __global__ void __launch_bounds__(CONV_TAPS_THREADS + 32, 1)
    conv_taps_sm90(const __grid_constant__ tensor_map x, const __grid_constant__ conv_taps c)
{
#if CUP_HAS_WGMMA
    const layout at(c);
    const share mine(c);
    if (threadIdx.x == 0) {
        if (at.stages % 1024)
            __trap();
        tma_prefetch_map(x);
        for (int i = 0; i < c.stages; i++) {
            barrier_init(at.full + i * 8, 1);
            barrier_init(at.empty + i * 8, WARPS);
        }
        barrier_init_done();
        publish_shared();
    }
    __syncthreads();
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (threadIdx.x < CONV_TAPS_THREADS)
        consume(c, at, mine);
    else if (elected())
        produce(c, x, at, mine);
#endif
}

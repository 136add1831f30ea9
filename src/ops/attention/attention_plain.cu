/* Attention, forward and backward, for any element type, size and strides: a warp for each row of
 * the result, on plain arithmetic. The last resort, and what the fast kernels are held against.
 *
 * Each lane computes the score of one key (or query) of 32; then all lanes add up the 32 rows, each
 * its own features: CHUNK of them in block y, so that a head may have any size.
 * The sums of o times d_o come first, by attention_plain_delta: a thread each, which adds in the
 * order of the products with v, so that a query that sees one key has gradients of exactly 0. */
#ifndef DROPOUT
#define DROPOUT 0
#endif

#define CAUSAL c.causal /* of a call c, not a knob */
#undef SHORT_MATH       /* which formulas have with 16 bits; these kernels are what is exact */
#include "attention_call.cuh"
#include "philox.cuh"
#include "real_math.cuh"

#define WARPS 4
#define CHUNK 256
#define EACH (CHUNK / 32)
#define EVERYONE 0xffffffffu

DEVICE real infinite()
{
    return (real)__int_as_float(0x7f800000);
}

/* A row of the result, and the features of this block. */
struct place {
    int batch, head, position, first, count;
    long long row; /* in lse and delta */
};

DEVICE bool find_place(const attention_call &c, int heads, int positions, place *p)
{
    long long at = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    if (at >= (long long)c.batch * heads * positions)
        return false;
    p->row = at;
    p->position = (int)(at % positions);
    p->head = (int)(at / positions % heads);
    p->batch = (int)(at / positions / heads);
    p->first = (int)blockIdx.y * CHUNK;
    p->count = c.size - p->first < CHUNK ? c.size - p->first : CHUNK;
    return true;
}

DEVICE T *row_of(const attention_heads &h, int batch, int head, int position)
{
    return (T *)h.data + batch * h.batch + head * h.head + position * h.position;
}

/* Of x and `factor` times y. Four sums side by side round less than one, which the difference of
 * two such products shows; in f64 there is one, which has the bits of the specification. */
#define SUMS ((int)(sizeof(real) == 8 ? 1 : 4))
DEVICE real product_of(const attention_call &c, const T *x, long long x_step, const T *y,
                       long long y_step, real factor = 1)
{
    real sum[4] = {0};
    for (int first = 0; first < c.size; first += SUMS) {
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            int d = first + i;
            if (d < c.size)
                sum[i] += to_real(x[d * x_step]) * (to_real(y[d * y_step]) * factor);
        }
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* What dropout multiplies the probability of a score by. */
DEVICE real keep_factor(const attention_call &c, int row, int query, int key)
{
#if DROPOUT
    uint64_t block = DRAWN_TILE(c, row, query, key) * 32 + query % 8 * 4 + key % 8 / 2;
    struct philox_words words = philox_block((const uint64_t *)c.random, c.sequence, block);
    uint32_t e = key & 1, r = query >> 3 & 1;
    uint32_t word = e ? (r ? words.at[3] : words.at[2]) : (r ? words.at[1] : words.at[0]);
    uint32_t number = key >> 3 & 1 ? word >> 16 : word & 0xffff;
    return number < c.threshold ? 0 : (real)c.factor_f64;
#else
    return 1;
#endif
}

DEVICE real warp_most(real x)
{
    for (int mask = 16; mask > 0; mask /= 2) {
        real other = __shfl_xor_sync(EVERYONE, x, mask);
        x = other > x ? other : x;
    }
    return x;
}

DEVICE real warp_total(real x)
{
    for (int mask = 16; mask > 0; mask /= 2)
        x += __shfl_xor_sync(EVERYONE, x, mask);
    return x;
}

/* sum[i] += weight of lane k times feature i of row k, for the `count` first lanes. */
DEVICE void add_rows(real (&sum)[EACH], const place &p, real weight, const T *first,
                     long long position, long long feature, int count)
{
    for (int k = 0; k < count; k++) {
        real w = __shfl_sync(EVERYONE, weight, k);
        const T *row = first + k * position + p.first * feature;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int d = (int)threadIdx.x % 32 + 32 * i;
            if (d < p.count)
                sum[i] += w * to_real(row[d * feature]);
        }
    }
}

DEVICE void store_row(const attention_heads &h, const place &p, const real (&sum)[EACH], real scale)
{
    T *row = row_of(h, p.batch, p.head, p.position) + p.first * h.feature;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int d = (int)threadIdx.x % 32 + 32 * i;
        if (d < p.count)
            row[d * h.feature] = from_real<T>(sum[i] * scale);
    }
}

/* Puts a sink into a row's sum; returns what its other sums are multiplied by. */
DEVICE real take_sink(real sink, real *most, real *sum)
{
    real before = *most;
    *most = before > sink ? before : sink;
    if (*most == -infinite())
        return 1;
    real fade = exp_of(before - *most);
    *sum = *sum * fade + exp_of(sink - *most);
    return fade;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    attention_plain_fwd(const __grid_constant__ attention_call c)
{
    place p;
    if (!find_place(c, c.heads, c.queries, &p))
        return;
    int lane = (int)threadIdx.x % 32, kv = p.head / (c.heads / c.kv_heads);
    int seen = seen_by(c, p.batch, p.position), row = p.batch * c.heads + p.head;
    const T *q = row_of(c.q, p.batch, p.head, p.position);
    real o[EACH] = {0}, most = -infinite(), sum = 0, slope;
#if FORMULA
    formula_row<real> formula = formula_row_of<real>(c, p.batch, p.head, p.position);
#endif
    for (int first = first_seen(c, p.batch, p.position); first < seen; first += 32) {
        int key = first + lane, count = seen - first < 32 ? seen - first : 32;
        real score = -infinite();
        bool listed = lane < count && is_listed(c, p.batch, p.head, p.position, 1, key, 1);
#if FORMULA
        if (listed)
            score = formula_of(c, formula,
                               product_of(c, q, c.q.feature, row_of(c.k, p.batch, kv, key),
                                          c.k.feature),
                               (real)key, key)
                        .score;
#else
        if (listed)
            score = (real)c.scale_f64 *
                    product_of(c, q, c.q.feature, row_of(c.k, p.batch, kv, key), c.k.feature);
#endif
        if (CHANGED && !FORMULA && listed)
            score = changed(c.score, score, slope_of<real>(c, p.head),
                            position_of(c, p.batch, p.position) - key, &slope);
        if (BIAS && listed)
            score += to_real(*pair_of(c, c.score.bias, p.batch, p.head, p.position, key));
        real before = most, chunk_most = warp_most(score);
        most = chunk_most > most ? chunk_most : most;
        real base = most == -infinite() ? 0 : most, fade = exp_of(before - base);
        real weight = exp_of(score - base);
        sum = sum * fade + warp_total(weight);
        if (lane < count)
            weight *= keep_factor(c, row, p.position, key);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            o[i] *= fade;
        add_rows(o, p, weight, row_of(c.v, p.batch, kv, first), c.v.position, c.v.feature, count);
    }
    real fade = SINKS ? take_sink(sink_of<real>(c, p.head), &most, &sum) : 1;
    store_row(c.o, p, o, sum == 0 ? 0 : fade / sum);
    if (c.lse && lane == 0 && p.first == 0)
        ((real *)c.lse)[p.row] = sum == 0 ? -infinite() : most + log_of(sum);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    attention_plain_delta(const __grid_constant__ attention_call c)
{
    long long row = (long long)blockIdx.x * (WARPS * 32) + threadIdx.x;
    if (row >= (long long)c.batch * c.heads * c.queries)
        return;
    int query = (int)(row % c.queries), head = (int)(row / c.queries % c.heads);
    int batch = (int)(row / c.queries / c.heads);
    ((real *)c.delta)[row] = product_of(c, row_of(c.d_o, batch, head, query), c.d_o.feature,
                                        row_of(c.o, batch, head, query), c.o.feature);
}

/* What a formula gives beside a score. */
struct score_more {
#if FORMULA
    formula_value<real> formula;
#endif
};

/* The gradient of one score but for the scale, in *kept the probability that dropout keeps, and to
 * *d_slope what the slope gets; *d_score is that of the changed score. */
DEVICE real score_back(const attention_call &c, int batch, int head, int kv, int query, int key,
                       real *kept, real *d_slope, real *d_score, score_more *more)
{
    long long at = ((long long)batch * c.heads + head) * c.queries + query;
    real lse = ((const real *)c.lse)[at];
    *kept = *d_score = 0;
    if (key >= seen_by(c, batch, query) || (WINDOW && key < first_seen(c, batch, query)) ||
        !is_listed(c, batch, head, query, 1, key, 1) || lse == -infinite())
        return 0;
#if FORMULA
    more->formula = formula_of(c, formula_row_of<real>(c, batch, head, query),
                               product_of(c, row_of(c.q, batch, head, query), c.q.feature,
                                          row_of(c.k, batch, kv, key), c.k.feature),
                               (real)key, key);
    real score = more->formula.score;
#else
    real score = (real)c.scale_f64 * product_of(c, row_of(c.q, batch, head, query), c.q.feature,
                                                row_of(c.k, batch, kv, key), c.k.feature);
#endif
    int distance = position_of(c, batch, query) - key;
    real slope = 1;
    if (CHANGED && !FORMULA)
        score = changed(c.score, score, slope_of<real>(c, head), distance, &slope);
    if (BIAS)
        score += to_real(*pair_of(c, c.score.bias, batch, head, query, key));
    /* What dropout multiplies with is taken to each number, as in the row of o that sees one key,
     * so that delta is the same sum. */
    real keep = keep_factor(c, batch * c.heads + head, query, key);
    real dp = product_of(c, row_of(c.d_o, batch, head, query), c.d_o.feature,
                         row_of(c.v, batch, kv, key), c.v.feature, keep);
    real p = exp_of(score - lse);
    *kept = p * keep;
    real ds = p * (dp - ((const real *)c.delta)[at]);
    if (SLOPES)
        *d_slope -= ds * (real)(distance < 0 ? -distance : distance);
    *d_score = ds;
#if FORMULA
    return passed_on(ds, more->formula.slope);
#else
    return SOFT_CAP ? ds * slope : ds;
#endif
}

/* Of a row whose lanes have what their scores give the slope. */
DEVICE void store_score_numbers(const attention_call &c, const place &p, real d_slope)
{
    real all = SLOPES ? warp_total(d_slope) : 0;
    if (threadIdx.x % 32 || p.first)
        return;
    if (SLOPES)
        store_number(c.score.d_slopes, p.batch, p.head, p.position, all);
    real lse = ((const real *)c.lse)[p.row];
    if (SINKS)
        store_number(c.score.d_sinks, p.batch, p.head, p.position,
                     lse == -infinite() ? 0
                                        : -exp_of(sink_of<real>(c, p.head) - lse) *
                                              ((const real *)c.delta)[p.row]);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    attention_plain_queries(const __grid_constant__ attention_call c)
{
    place p;
    if (!find_place(c, c.heads, c.queries, &p))
        return;
    int lane = (int)threadIdx.x % 32, kv = p.head / (c.heads / c.kv_heads);
    int seen = seen_by(c, p.batch, p.position);
    real dq[EACH] = {0}, kept, d_slope = 0, d_score = 0;
    score_more more;
#if FORMULA
    real d_rows[TENSORS_ROOM] = {0};
#endif
    for (int first = first_seen(c, p.batch, p.position); first < seen; first += 32) {
        int count = seen - first < 32 ? seen - first : 32;
        real ds = 0;
        if (lane < count)
            ds = score_back(c, p.batch, p.head, kv, p.position, first + lane, &kept, &d_slope,
                            &d_score, &more);
#if FORMULA
        if (lane < count) {
            add_rows_back(d_rows, more.formula, d_score);
            if (PAIR_GRADS && p.first == 0)
                store_pairs_back(c, more.formula, d_score, p.batch, p.head, p.position,
                                 first + lane);
        }
#endif
        if (BIAS_GRAD && lane < count && p.first == 0)
            *pair_of(c, c.score.d_bias, p.batch, p.head, p.position, first + lane) =
                from_real<T>(d_score);
        add_rows(dq, p, ds, row_of(c.k, p.batch, kv, first), c.k.position, c.k.feature, count);
    }
    store_row(c.dq, p, dq, (real)c.scale_f64);
    if (SLOPES || SINKS)
        store_score_numbers(c, p, d_slope);
#if FORMULA
#pragma unroll
    for (int i = 0; i < FORMULA_TENSORS; i++)
        if (ROW_GRADS >> i & 1)
            d_rows[i] = warp_total(d_rows[i]);
    if (lane == 0 && p.first == 0)
        store_rows_back(c, d_rows, p.batch, p.head, p.position);
#endif
}

#define END (WINDOW ? end_seeing(c, p.batch, p.position) : c.queries)

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    attention_plain_keys(const __grid_constant__ attention_call c)
{
    place p;
    if (!find_place(c, c.kv_heads, c.keys, &p))
        return;
    int lane = (int)threadIdx.x % 32, group = c.heads / c.kv_heads;
    int unseen = CAUSAL ? p.position - (c.keys - c.queries) : 0;
    if (WINDOW)
        unseen = first_seeing(c, p.batch, p.position);
    real dk[EACH] = {0}, dv[EACH] = {0}, d_slope = 0, d_score = 0;
    score_more more;
    for (int head = p.head * group; head < (p.head + 1) * group; head++)
        for (int first = unseen > 0 ? unseen : 0; first < END; first += 32) {
            int count = END - first < 32 ? END - first : 32;
            real ds = 0, kept = 0;
            if (lane < count)
                ds = score_back(c, p.batch, head, p.head, first + lane, p.position, &kept, &d_slope,
                                &d_score, &more);
            add_rows(dk, p, ds, row_of(c.q, p.batch, head, first), c.q.position, c.q.feature,
                     count);
            add_rows(dv, p, kept, row_of(c.d_o, p.batch, head, first), c.d_o.position,
                     c.d_o.feature, count);
        }
    store_row(c.dk, p, dk, (real)c.scale_f64);
    store_row(c.dv, p, dv, 1);
}

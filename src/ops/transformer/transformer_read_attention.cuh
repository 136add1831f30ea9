/* Attention of the new row to a head of keys, its own key among them; transformer_read.cu includes
 * it. The blocks of a cluster share the keys. */

#define KEY_LANES lanes_of(SIZE) /* lanes that read a key, 8 elements each */
#define AT_ONCE (32 / KEY_LANES)  /* keys of a warp */
#define UNROLL 4

DEVICE float lowest()
{
    return -__int_as_float(0x7f800000);
}

DEVICE float factor_of(float base, float most)
{
    return base == lowest() ? 0 : exp2f(base - most);
}

/* What a group of lanes has summed for one query. */
struct sums {
    float base, weight, o[8];
};

DEVICE void fade(sums &s, float base)
{
    float factor = factor_of(s.base, base);
    s.base = base;
    s.weight *= factor;
#pragma unroll
    for (int e = 0; e < 8; e++)
        s.o[e] *= factor;
}

DEVICE void join_groups(sums &s)
{
#pragma unroll
    for (int mask = KEY_LANES; mask < 32; mask *= 2) {
        float base = fmaxf(s.base, __shfl_xor_sync(0xffffffffu, s.base, mask));
        if (base > lowest())
            fade(s, base);
        s.weight += __shfl_xor_sync(0xffffffffu, s.weight, mask);
#pragma unroll
        for (int e = 0; e < 8; e++)
            s.o[e] += __shfl_xor_sync(0xffffffffu, s.o[e], mask);
    }
}

/* Queries, the key and the value of this row, with their biases; those of all the cluster. */
DEVICE void run_qkv(place &p, const ring<STAGES> &pipe, ring_place<STAGES> &at, int kv, int round)
{
    float x[X_PIECES][8];
    if (round > 0)
        read_qkv_bias(p, kv);
    norm(p, p.m.x, 0, x);
    meet_workers();
    for (int head = 0; head < HEADS + 2; head++)
        multiply<qkv_boxes, 32>(
            p, pipe, at, HEAD_LINES, WIDTH, x, [&](int i, const float(&sum)[1]) {
                if (lane() < CLUSTER)
                    send(&p.m.qkv[head * SIZE + p.rank * HEAD_LINES + i], &p.m.come[QKV], lane(),
                         sum[0] + p.m.qkv_bias[head * HEAD_LINES + i]);
            });
    wait_inbox(p, QKV, round);
}

/* Turns queries and the key, and scales queries; every block for itself. */
DEVICE void turn(place &p, long long position)
{
    const int pairs = SIZE / 2;
    for (int i = threadIdx.x; i < (HEADS + 1) * pairs; i += WORKERS) {
        int head = i / pairs, pair = i % pairs;
        float *u = &p.m.qkv[head * SIZE + (TURNED ? pair : 2 * pair)];
        float *v = u + (TURNED ? pairs : 1), scale = head < HEADS ? p.c.scale : 1;
        float cosine = 1, sine = 0, a = *u, b = *v;
        if (TURNED)
            turn_of(p.c.frequency[pair], position, &cosine, &sine);
        *u = (a * cosine - b * sine) * scale;
        *v = (a * sine + b * cosine) * scale;
    }
    meet_workers();
}

/* Adds a key's value, a score in each group of lanes, to what the group has. */
DEVICE void add_key(sums &s, float score, float base, const float (&value)[8])
{
    float weight = factor_of(score, base);
    s.weight += weight;
#pragma unroll
    for (int e = 0; e < 8; e++)
        s.o[e] += weight * value[e];
}

DEVICE void unpack(uint4 words, float (&to)[8])
{
    union {
        uint4 words;
        vec<T, 8> elements;
    } u;
    u.words = words;
    to_reals(u.elements, to);
}

/* q times a key, in all lanes of the group. */
DEVICE float score_of(const float (&q)[8], const float (&key)[8])
{
    float score = 0;
#pragma unroll
    for (int e = 0; e < 8; e++)
        score += q[e] * key[e];
#pragma unroll
    for (int mask = 1; mask < KEY_LANES; mask *= 2)
        score += __shfl_xor_sync(0xffffffffu, score, mask);
    return score;
}

/* The sums of one query over the warp's keys, which are kept from `from` on; `fresh`: and the new
 * one. */
DEVICE sums sum_keys(const place &p, const T *keys, const T *values, int head, int from, int to,
                     bool fresh)
{
    const int step = WARPS * AT_ONCE;
    int warp = threadIdx.x / 32, own = lane() / KEY_LANES, column = 8 * (lane() % KEY_LANES);
    const uint4 none = make_uint4(0, 0, 0, 0);
    float q[1][8], element[1][8];
    sums s = {lowest(), 0, {}};
    load_pieces<KEY_LANES, SIZE>(p.m.qkv + head * SIZE, SIZE, q);
#pragma unroll 1
    for (int k = from + warp * AT_ONCE; k < to; k += step * UNROLL) {
        uint4 key[UNROLL], value[UNROLL];
        float score[UNROLL], base = s.base;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int at = k + u * step + own;
            bool inside = at < to && column < SIZE;
            long long element = (long long)at * SIZE + column;
            key[u] = inside ? *(const uint4 *)(keys + element) : none;
            value[u] = inside ? *(const uint4 *)(values + element) : none;
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            unpack(key[u], element[0]);
            score[u] = score_of(q[0], element[0]);
            if (k + u * step + own >= to)
                score[u] = lowest();
            base = fmaxf(base, score[u]);
        }
        if (base > s.base)
            fade(s, base);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            unpack(value[u], element[0]);
            add_key(s, score[u], base, element[0]);
        }
    }
    if (fresh && warp == 0) {
        load_pieces<KEY_LANES, SIZE>(p.m.qkv + TAKEN, SIZE, element);
        float score = score_of(q[0], element[0]), base = fmaxf(s.base, score);
        load_pieces<KEY_LANES, SIZE>(p.m.qkv + TAKEN + SIZE, SIZE, element);
        if (base > s.base)
            fade(s, base);
        add_key(s, own == 0 ? score : lowest(), base, element[0]);
    }
    join_groups(s);
    return s;
}

/* The sums of `count` rows, each of HEADS PART numbers, for element d of a head, and their base and
 * weight. */
DEVICE float join(const float *rows, int count, int head, int d, float *base, float *weight)
{
    float most = lowest(), value = 0;
    const float *row = rows + head * PART;
    *weight = 0;
    for (int i = 0; i < count; i++)
        most = fmaxf(most, row[i * HEADS * PART + SIZE]);
    for (int i = 0; i < count; i++) {
        float factor = factor_of(row[i * HEADS * PART + SIZE], most);
        *weight += factor * row[i * HEADS * PART + SIZE + 1];
        value += factor * row[i * HEADS * PART + d];
    }
    *base = most;
    return value;
}

/* Asks for the block's keys or values while queries are computed. */
DEVICE void prefetch(const T *from, int count)
{
    const int line = 64;
    for (int i = line * threadIdx.x; i < count * SIZE; i += line * WORKERS)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
}

/* What the heads of queries that share a head of keys add to x. */
DEVICE void attend(place &p, const ring<STAGES> &pipe, ring_place<STAGES> &at, int kv,
                   long long position, int round)
{
    const layer_call &c = p.c;
    bool known = position >= 0 && position < c.length;
    int count = known ? (int)position : 0; /* of keys that are kept */
    int from = share_of(count, p.rank, CLUSTER), to = share_of(count, p.rank + 1, CLUSTER);
    T *keys = (T *)c.keys + (long long)kv * c.length * SIZE;
    T *values = (T *)c.values + (long long)kv * c.length * SIZE;
    expect(p, QKV, LINES);
    expect(p, PARTS, CLUSTER * HEADS * PART);
    prefetch(keys + (long long)from * SIZE, to - from);
    prefetch(values + (long long)from * SIZE, to - from);
    run_qkv(p, pipe, at, kv, round);
    turn(p, position);
    bool fresh = known && p.rank == CLUSTER - 1;
    for (int i = threadIdx.x; fresh && i < SIZE; i += WORKERS) {
        keys[position * SIZE + i] = from_real<T>(p.m.qkv[TAKEN + i]);
        values[position * SIZE + i] = from_real<T>(p.m.qkv[TAKEN + SIZE + i]);
    }
    for (int head = 0; head < HEADS; head++) {
        sums s = sum_keys(p, keys, values, head, from, to, fresh);
        float *row = &p.m.joined[threadIdx.x / 32][head * PART];
        int column = 8 * lane();
        if (lane() < KEY_LANES && column < SIZE)
#pragma unroll
            for (int e = 0; e < 8; e++)
                row[column + e] = s.o[e];
        if (lane() == 0) {
            row[SIZE] = s.base;
            row[SIZE + 1] = s.weight;
        }
    }
    meet_workers();
    for (int i = threadIdx.x; i < TAKEN; i += WORKERS) {
        float base, weight, value = join(p.m.joined[0], WARPS, i / SIZE, i % SIZE, &base, &weight);
        float *row = &p.m.parts[p.rank][i / SIZE * PART];
        for (int block = 0; block < CLUSTER; block++) {
            send(row + i % SIZE, &p.m.come[PARTS], block, value);
            if (i % SIZE == 0) {
                send(row + SIZE, &p.m.come[PARTS], block, base);
                send(row + SIZE + 1, &p.m.come[PARTS], block, weight);
            }
        }
    }
    wait_inbox(p, PARTS, round);
    for (int i = threadIdx.x; i < TAKEN; i += WORKERS) {
        float base, weight, value = join(p.m.parts[0], CLUSTER, i / SIZE, i % SIZE, &base, &weight);
        p.m.attended[i] = known ? value / weight : lowest() * 0;
    }
    meet_workers();
    const int lanes = lanes_of(TAKEN);
    float x[out_boxes::pieces][8], *added = c.attended + (long long)kv * WIDTH + p.rank * OWN;
    load_pieces<lanes, out_boxes::piece>(p.m.attended, TAKEN, x);
    multiply<out_boxes, lanes>(p, pipe, at, OWN, TAKEN, x, [&](int i, const float(&sum)[1]) {
        if (lane() % lanes == 0)
            added[i] = sum[0];
    });
}

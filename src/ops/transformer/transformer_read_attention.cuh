/* Attention of the new row to a head of keys, its own key among them; transformer_read.cu includes
 * it. The blocks of a cluster share the keys. */

#define KEY_LANES lanes_of(SIZE) /* lanes that read a key, 8 elements each */
#define AT_ONCE (32 / KEY_LANES)  /* keys of a warp */
#define UNROLL 4

DEVICE float factor_of(float base, float most)
{
    return base == lowest() ? 0 : exp2_fast(base - most);
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
    factors<qkv_boxes> x;
    if (round > 0)
        read_qkv_bias(p, kv);
    norm(p, p.m.x, 0);
    x.load(p.m.normed, WIDTH);
#pragma unroll 1
    for (int head = 0; head < HEADS + 2; head++)
        multiply(p, pipe, at, HEAD_LINES, WIDTH, x, head * HEAD_LINES);
    meet_workers();
#pragma unroll 1
    for (int i = threadIdx.x; i < OWN_LINES * CLUSTER; i += WORKERS) {
        int line = i / CLUSTER, head = line / HEAD_LINES;
        send(&p.m.qkv[head * SIZE + p.rank * HEAD_LINES + line % HEAD_LINES], &p.m.come[QKV],
             i % CLUSTER, product_of<qkv_boxes>(p, line) + p.m.qkv_bias[line]);
    }
    wait_inbox(p, QKV, round);
}

/* Turns queries and the key, and scales queries; every block for itself. */
DEVICE void turn(place &p, long long position)
{
    const int pairs = SIZE / 2;
#pragma unroll 1
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

/* What the warp has for a head, to the block's rows, all with the base of the whole block. */
DEVICE void put_sums(place &p, sums &s, int head)
{
    int warp = threadIdx.x / 32, column = 8 * lane();
    if (lane() == 0)
        p.m.bases[warp][head] = s.base;
    meet_workers();
    float base = lowest();
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        base = fmaxf(base, p.m.bases[i][head]);
    fade(s, base);
    float *row = &p.m.joined[warp][head * PART];
    if (lane() < KEY_LANES && column < SIZE)
#pragma unroll
        for (int e = 0; e < 8; e++)
            row[column + e] = s.o[e];
    if (lane() == 0) {
        row[SIZE] = base;
        row[SIZE + 1] = s.weight;
    }
}

/* The sums of the block, to all of the cluster. */
DEVICE void send_sums(place &p)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < HEADS * PART; i += WORKERS) {
        float value = p.m.joined[0][i];
#pragma unroll
        for (int warp = 1; warp < WARPS; warp++)
            value = i % PART == SIZE ? value : value + p.m.joined[warp][i];
#pragma unroll
        for (int block = 0; block < CLUSTER; block++)
            send(&p.m.parts[p.rank][i], &p.m.come[PARTS], block, value);
    }
}

/* Element d of a head, of the sums of all blocks. */
DEVICE float join(const place &p, int head, int d)
{
    float base[CLUSTER], most = lowest(), value = 0, weight = 0;
#pragma unroll
    for (int i = 0; i < CLUSTER; i++) {
        base[i] = p.m.parts[i][head * PART + SIZE];
        most = fmaxf(most, base[i]);
    }
#pragma unroll
    for (int i = 0; i < CLUSTER; i++) {
        float factor = factor_of(base[i], most);
        weight += factor * p.m.parts[i][head * PART + SIZE + 1];
        value += factor * p.m.parts[i][head * PART + d];
    }
    return value / weight;
}

/* Asks for the block's keys or values while queries are computed. */
DEVICE void prefetch(const T *from, int count)
{
    const int line = 64;
#pragma unroll 1
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
#pragma unroll 1
    for (int i = threadIdx.x; fresh && i < SIZE; i += WORKERS) {
        keys[position * SIZE + i] = from_real<T>(p.m.qkv[TAKEN + i]);
        values[position * SIZE + i] = from_real<T>(p.m.qkv[TAKEN + SIZE + i]);
    }
#pragma unroll 1
    for (int head = 0; head < HEADS; head++) {
        sums s = sum_keys(p, keys, values, head, from, to, fresh);
        put_sums(p, s, head);
    }
    meet_workers();
    send_sums(p);
    wait_inbox(p, PARTS, round);
#pragma unroll 1
    for (int i = threadIdx.x; i < TAKEN; i += WORKERS)
        p.m.attended[i] = split(known ? join(p, i / SIZE, i % SIZE) : lowest() * 0);
    meet_workers();
    factors<out_boxes> x;
    float *added = c.attended + (long long)kv * WIDTH + p.rank * OWN;
    x.load(p.m.attended, TAKEN);
    multiply(p, pipe, at, OWN, TAKEN, x, 0);
    meet_workers();
#pragma unroll 1
    for (int i = threadIdx.x; i < OWN; i += WORKERS)
        added[i] = product_of<out_boxes>(p, i);
}

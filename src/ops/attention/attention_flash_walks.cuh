/* What the two kernels of attention_flash_grad.cu walk over, whose file says how large
 * tiles are, and what of it they skip because no list names it. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_FLASH_WALKS_CUH
#define CUP_OPS_ATTENTION_ATTENTION_FLASH_WALKS_CUH

/* Where in the ring step n is, the `met`-th that is met. */
#define PLACE(n, met) ((LISTS ? (met) : (n)) % STAGES)

/* The first of the steps [n, all) of walks over `tiles` tiles of keys, of which the first is number
 * `skipped`, whose tile the lists name. */
DEVICE int next_of_keys(const attention_call &c, int batch, int head, int first, int n, int all,
                        int skipped, int tiles)
{
    if (!LISTS)
        return n;
    while (n < all) {
        int walk = n / tiles * tiles, end = skipped + tiles;
        int tile = listed_from(c, batch, head, first, ROWS, skipped + n - walk, end, STEP);
        n = walk + tile - skipped;
        if (tile < end)
            break;
    }
    return n;
}

#define NEXT(n) next_of_keys(c, batch, head, first, n, all_steps, skipped, tiles)

/* What a block of keys walks over: tile `n` counts the tiles of queries from the first that sees
 * any of the keys, through all heads of the group. */
struct walk {
    int first, tiles; /* of each head */
};

/* The first of the steps [n, all) whose queries' lists name a key of this block. */
DEVICE int next_of_queries(const attention_call &c, const walk &w, int n, int all, int batch,
                           int kv, int first)
{
    if (!LISTS)
        return n;
    for (; n < all; n++) {
        int head = kv * (c.heads / c.kv_heads) + n / w.tiles;
        int query = (w.first + n % w.tiles) * STEP;
        if (is_listed(c, batch, head, query, STEP, first, ROWS))
            break;
    }
    return n;
}

DEVICE void load_queries(const attention_call &c, const walk &w, int n, int batch, int kv,
                         uint32_t q_tile, uint32_t d_o_tile, uint32_t numbers)
{
    int head = kv * (c.heads / c.kv_heads) + n / w.tiles, query = (w.first + n % w.tiles) * STEP;
    load_tile<STEP, THREADS>(threadIdx.x, q_tile, head_of(c.q, batch, head), c.q.position, query,
                             c.queries, c.size);
    load_tile<STEP, THREADS>(threadIdx.x, d_o_tile, head_of(c.d_o, batch, head), c.d_o.position,
                             query, c.queries, c.size);
    int i = (int)threadIdx.x;
    if (i < NUMBERS * STEP) {
        int at = query + i % STEP;
        bool valid = at < c.queries;
        const void *all = i < STEP ? c.lse_log2 : i < 2 * STEP ? c.delta : c.inverse;
        const float *from = (const float *)all;
        from += valid ? ((long long)batch * c.heads + head) * c.queries + at : 0;
        copy_async4(numbers + i * 4, from, valid);
    }
}

#endif

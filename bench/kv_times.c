/* How long attention of new tokens to a cache of keys and values takes: in one piece and in pages,
 * as they are and as codes, for one new token and several.
 * Build and run: make build/bench/kv_times && build/bench/kv_times [device]
 * CUP_IMPL=kv_attention=NAME prefers an implementation. */
#include <stdio.h>
#include <time.h>

#include "cupola/cupola.h"

#define SIZE 128
#define PIECE 512 /* tokens that are put into the cache at a time */
#define ROUNDS 4

typedef struct times {
    cup_dtype kept;
    int64_t batch, heads, group, tokens, length, page; /* page: 0 for one piece */
} times;

static const times all[] = {
    {CUP_BF16, 32, 32, 1, 1, 8192, 0},  {CUP_BF16, 32, 32, 1, 8, 8192, 0},
    {CUP_BF16, 32, 32, 1, 16, 8192, 0}, {CUP_BF16, 32, 32, 1, 32, 8192, 0},
    {CUP_BF16, 32, 32, 1, 64, 8192, 0}, {CUP_BF16, 32, 32, 1, 1, 8192, 16},
    {CUP_BF16, 32, 32, 1, 64, 8192, 16}, {CUP_BF16, 32, 32, 1, 1, 8192, 64},
    {CUP_BF16, 1, 8, 4, 1, 131072, 0},  {CUP_BF16, 1, 8, 4, 16, 131072, 0},
    {CUP_BF16, 64, 8, 4, 1, 4096, 0},   {CUP_BF16, 64, 8, 4, 1, 4096, 16},
    {CUP_BF16, 64, 8, 4, 8, 4096, 16},  {CUP_BF16, 8, 8, 8, 1, 1024, 0},
    {CUP_I8, 32, 32, 1, 1, 8192, 0}};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static cup_kv_cache *filled(cup_context *c, const times *t)
{
    const int64_t shape[] = {t->batch, t->heads, PIECE, SIZE};
    cup_kv_cache *cache =
        cup_kv_cache_new(c, t->kept, t->batch, t->length, t->heads, SIZE,
                         CUP_OPTIONS(cup_kv_cache_options, .page = t->page));
    for (int64_t i = 0; i < t->batch; i++)
        cup_kv_cache_reserve(cache, i, t->length);
    for (int64_t at = 0; at < t->length; at += PIECE) {
        cup_scope_open_without_grad(c);
        cup_tensor *x = cup_normal(c, CUP_BF16, 4, shape, 0, 1);
        cup_kv_cache_append(cache, 0, x, x, NULL);
        cup_kv_cache_advance(cache, PIECE, NULL);
        cup_scope_return(c, NULL);
    }
    for (int64_t i = 0; i < t->batch; i++)
        cup_kv_cache_set(cache, i, t->length - t->tokens);
    for (int64_t i = 0; i < t->batch; i++)
        cup_kv_cache_reserve(cache, i, t->length);
    return cache;
}

static double seconds_of(cup_context *c, cup_kv_cache *cache, cup_tensor *q, int count)
{
    cup_synchronize(c);
    double begin = now();
    for (int i = 0; i < count; i++) {
        cup_scope_open_without_grad(c);
        cup_kv_cache_attend(cache, 0, q, NULL, NULL);
        cup_scope_return(c, NULL);
    }
    cup_synchronize(c);
    return (now() - begin) / count;
}

static int time_one(const char *device, const times *t)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device, .seed = 5));
    const int64_t shape[] = {t->batch, t->heads * t->group, t->tokens, SIZE};
    double best = 1e9, keys = (double)(t->batch * t->heads * t->length);
    cup_scope_open_without_grad(c);
    cup_kv_cache *cache = filled(c, t);
    cup_tensor *q = cup_normal(c, CUP_BF16, 4, shape, 0, 1);
    for (int i = 0; i < ROUNDS; i++) {
        double took = seconds_of(c, cache, q, keys > 1e6 ? 20 : 100);
        best = took < best ? took : best;
    }
    double bytes = 2 * keys * SIZE * (double)cup_dtype_size(t->kept);
    printf("%-5s %lldx%lldx%lld, %lld new of %lld, pages of %lld: %.1f us, %.0f GB/s\n",
           cup_dtype_name(t->kept), (long long)t->batch, (long long)t->heads, (long long)t->group,
           (long long)t->tokens, (long long)t->length, (long long)t->page, best * 1e6,
           bytes / best * 1e-9);
    int failed = cup_error(c) != CUP_OK;
    if (failed)
        fprintf(stderr, "%s\n", cup_error_text(c));
    cup_scope_return(c, NULL);
    cup_kv_cache_free(cache);
    cup_context_free(c);
    return failed;
}

int main(int argc, char **argv)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all && !failed; i++)
        failed = time_one(argc > 1 ? argv[1] : "cuda", &all[i]);
    return failed;
}

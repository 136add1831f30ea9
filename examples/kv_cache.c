/* Two texts of different lengths are read and then written on token by token: their keys and values
 * stay in pages of a cache, as codes of 8 bits. A real model would make q, k and v from its tokens;
 * here they are random. */
#include <cupola/cupola.h>
#include <stdio.h>

enum { TEXTS = 2, HEADS = 8, KV_HEADS = 2, SIZE = 64, ROOM = 512, PAGE = 16, STEPS = 8 };

static cup_tensor *draw(cup_context *c, int64_t heads, int64_t tokens)
{
    return cup_normal(c, CUP_F32, 4, (int64_t[]){TEXTS, heads, tokens, SIZE}, 0, 1);
}

int main(void)
{
    cup_context *c = cup_context_new(NULL);
    cup_kv_cache *cache =
        cup_kv_cache_new(c, CUP_I8, TEXTS, ROOM, KV_HEADS, SIZE,
                         CUP_OPTIONS(cup_kv_cache_options, .page = PAGE, .pages = 40));
    cup_scope_open_without_grad(c);

    /* The prompts, of 100 and 37 tokens, in one call: what is missing of the shorter one is not
     * kept, and its rows of the result are 0. */
    int32_t lengths[TEXTS] = {100, 37};
    cup_tensor *counts = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){TEXTS}, lengths);
    for (int text = 0; text < TEXTS; text++)
        cup_kv_cache_reserve(cache, text, lengths[text] + STEPS);
    cup_kv_cache_append(cache, 0, draw(c, KV_HEADS, 100), draw(c, KV_HEADS, 100), counts);
    cup_tensor *o = cup_kv_cache_attend(cache, 0, draw(c, HEADS, 100), counts, NULL);
    cup_kv_cache_advance(cache, 100, counts);

    for (int step = 0; step < STEPS; step++) {
        cup_kv_cache_append(cache, 0, draw(c, KV_HEADS, 1), draw(c, KV_HEADS, 1), NULL);
        o = cup_kv_cache_attend(cache, 0, draw(c, HEADS, 1), NULL, NULL);
        cup_kv_cache_advance(cache, 1, NULL);
    }
    cup_tensor_print(cup_kv_cache_lengths(cache), stdout);
    printf("%lld of 40 pages are free, the last result has a mean square of %.3f\n",
           (long long)cup_kv_cache_pages_free(cache),
           cup_tensor_item(cup_mean(c, cup_square(c, o), NULL, 0, false)));

    if (cup_error(c))
        fprintf(stderr, "%s\n", cup_error_text(c));
    int status = cup_error(c) != CUP_OK;
    cup_scope_close(c);
    cup_kv_cache_free(cache);
    cup_context_free(c);
    return status;
}

/* Documents that lie one behind the other in texts, each behind the token that ends the one before:
 * what attention and positions need to know of them. */
#include "cupola/ops.h"
#include "nn/gpt.h"

static cup_tensor *number(cup_context *c, cup_dtype dtype, int64_t value)
{
    return cup_full(c, dtype, 0, NULL, (double)value);
}

/* Whether a token is one that ends a document, [B,T]. */
static cup_tensor *is_end(const cup_gpt *m, cup_tensor *tokens)
{
    cup_context *c = m->context;
    return cup_equal(c, tokens, number(c, cup_tensor_dtype(tokens), m->config.document_end));
}

/* There are as many ends as tokens, so that their number does not depend on these: behind the
 * documents of a text come others that are empty. */
cup_tensor *cup__gpt_document_ends(const cup_gpt *m, cup_tensor *tokens)
{
    cup_context *c = m->context;
    int64_t length = cup_tensor_size(tokens, 1);
    cup_tensor *behind = cup_arange(c, CUP_I32, 1, (double)length + 1, NULL);
    cup_tensor *ends = cup_where(c, is_end(m, tokens), behind, number(c, CUP_I32, length));
    cup_tensor *sorted = NULL, *places;
    cup_sort(c, ends, 1, false, &sorted, &places);
    return sorted;
}

cup_tensor *cup__gpt_document_places(const cup_gpt *m, cup_tensor *tokens, cup_tensor *ends)
{
    cup_context *c = m->context;
    int64_t batch = cup_tensor_size(tokens, 0), length = cup_tensor_size(tokens, 1);
    cup_tensor *end = cup_cast(c, is_end(m, tokens), CUP_I32);
    cup_tensor *before = cup_sub(c, cup_cumsum(c, end, 1, false), end);
    cup_tensor *none = cup_zeros(c, CUP_I32, 2, (const int64_t[]){batch, 1});
    cup_tensor *begins = cup_concat(c, (cup_tensor *[]){none, ends}, 2, 1);
    cup_tensor *place = cup_arange(c, CUP_I32, 0, (double)length, NULL);
    return cup_sub(c, place, cup_gather(c, begins, before, 1));
}

/* Learns from the first half of any text and encodes all of it. */
#include "encode.h"

#include "base/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    cup_tokenizer *t = cup__calloc(1, sizeof *t);
    t->calls = &cup__tokenizer_bpe;
    for (int i = 0; i < 256; i++)
        t->byte_token[i] = 255 - i;
    MUST(cup__splitter_new(NULL, "gpt2", &t->splitter) == CUP_OK);
    MUST(cup__bpe_train(NULL, t, text, size / 2, 100) == CUP_OK);
    int32_t end = 256 + (int32_t)t->merge_count;
    cup__special special = {"<|endoftext|>", 13, end};
    t->size = end + 1;
    MUST(cup__bpe_complete(NULL, t, "trained", &special, 1) == CUP_OK);
    fuzz_encode(t, text, size);
    cup_tokenizer_free(t);
    return 0;
}

/* Learns from the first half of any text and encodes all of it. */
#include "encode.h"

#include "base/memory.h"
#include "data/words.h"

static cup_status count_word(void *user, const char *text, size_t length)
{
    return cup__words_add(user, text, length) ? CUP_OK : CUP_MEMORY;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    cup_tokenizer *t = cup__calloc(1, sizeof *t);
    t->calls = &cup__tokenizer_bpe;
    for (int i = 0; i < 256; i++)
        t->byte_token[i] = 255 - i;
    MUST(cup__splitter_new(NULL, "gpt2", &t->splitter) == CUP_OK);
    cup__words *words = cup__calloc(1, sizeof *words);
    MUST(cup__split(NULL, t->splitter, text, size / 2, count_word, words) == CUP_OK);
    MUST(cup__bpe_learn(NULL, t, words, 100, (cup__watch){NULL, NULL}) == CUP_OK);
    cup__free(words);
    int32_t end = 256 + (int32_t)t->merge_count;
    cup__special special = {"<|endoftext|>", 13, end, false};
    t->size = end + 1;
    MUST(cup__bpe_complete(NULL, t, "trained", &special, 1) == CUP_OK);
    fuzz_encode(t, text, size);
    cup_tokenizer_free(t);
    return 0;
}

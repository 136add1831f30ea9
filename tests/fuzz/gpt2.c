/* GPT-2's two files: the input is vocab.json, a zero byte, merges.txt. */
#include "encode.h"

#include "base/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = memchr(data, 0, size);
    size_t first = zero ? (size_t)(zero - data) : size;
    char vocabulary[64], merges[64];
    int a = fuzz_file(data, first, vocabulary);
    int b = fuzz_file(data + first + !!zero, size - first - !!zero, merges);
    cup__error error = {0};
    cup_tokenizer *t = cup__calloc(1, sizeof *t);
    t->calls = &cup__tokenizer_bpe;
    if (cup__gpt2_load(&error, vocabulary, merges, t) == CUP_OK)
        fuzz_encode(t, (const char *)data, size);
    else
        MUST(error.text[0]);
    cup_tokenizer_free(t);
    close(a);
    close(b);
    return 0;
}

/* A tokenizer's file is refused with a sentence, or works and is written as it was read. */
#include "encode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cup__error error = {0};
    cup__json json, again;
    cup_tokenizer *t, *copy;
    cup__text a, b;
    if (cup__json_parse(NULL, "input", (const char *)data, size, &json) != CUP_OK)
        return 0;
    if (cup__tokenizer_parse(&error, &json, &t) != CUP_OK) {
        MUST(error.text[0]);
        cup__json_free(&json);
        return 0;
    }
    fuzz_encode(t, "the end <|endoftext|> \xe6\x97\xa5\xff", 26);
    fuzz_encode(t, (const char *)data, size);
    MUST(cup__tokenizer_text(NULL, t, &a) == CUP_OK);
    MUST(cup__json_parse(NULL, "output", a.bytes, a.length, &again) == CUP_OK);
    MUST(cup__tokenizer_parse(NULL, &again, &copy) == CUP_OK);
    MUST(cup__tokenizer_text(NULL, copy, &b) == CUP_OK);
    MUST(a.length == b.length && memcmp(a.bytes, b.bytes, a.length) == 0);
    cup__text_free(&a);
    cup__text_free(&b);
    cup_tokenizer_free(t);
    cup_tokenizer_free(copy);
    cup__json_free(&json);
    cup__json_free(&again);
    return 0;
}

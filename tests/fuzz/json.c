/* What is accepted, written out and read again, must stay the same. */
#include "fuzz.h"

#include "base/json.h"

static void write_again(const cup__json *json, cup__text *out)
{
    cup__json_writer writer = {.lines = 2};
    cup__json_add_node(&writer, NULL, json->root);
    MUST(!writer.text.failed);
    *out = writer.text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cup__error error = {0};
    cup__json first, second;
    cup__text a, b;
    if (cup__json_parse(&error, "input", (const char *)data, size, &first) != CUP_OK) {
        MUST(error.text[0]);
        return 0;
    }
    write_again(&first, &a);
    MUST(cup__json_parse(NULL, "output", a.bytes, a.length, &second) == CUP_OK);
    MUST(second.count == first.count);
    write_again(&second, &b);
    MUST(a.length == b.length && memcmp(a.bytes, b.bytes, a.length) == 0);
    cup__text_free(&a);
    cup__text_free(&b);
    cup__json_free(&first);
    cup__json_free(&second);
    return 0;
}

#include "cli/common/json.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "test.h"

/* What the command writes is read by the strict reader of the library. */
TEST(json_document_is_read_back)
{
    static const char odd[] = "\"\\/\b\n\r\t\x01\x1f\x7f\xc3\xa9\xf0\x9f\x8d\x8a";
    static const double numbers[] = {0.1, 1e300, -2.5e-308, 1.0 / 3, 123456789, 5e-324};
    enum { NUMBERS = sizeof numbers / sizeof *numbers };
    cli_json j;
    cup__json read;
    int64_t integer = 0;
    json_begin(&j, "test");
    json_add_string(&j, "odd", odd);
    json_add_bytes(&j, "bytes", "a\0b\xff", 4);
    json_add_integer(&j, "integer", INT64_MIN);
    json_add_boolean(&j, "yes", true);
    json_add_number(&j, "nan", NAN);
    json_add_null(&j, "null");
    json_open_array(&j, "numbers");
    for (int i = 0; i < NUMBERS; i++)
        json_add_number(&j, NULL, numbers[i]);
    json_close(&j);
    json_open_array(&j, "empty");
    json_close(&j);
    json_open_array(&j, "deep");
    json_open_object(&j, NULL);
    json_open_object(&j, "x");
    json_add_string(&j, "k\"", "");
    json_close(&j);
    json_close(&j);
    json_close(&j);
    json_close(&j);
    EXPECT(text_close(&j.text));
    EXPECT_CONTAINS(j.text.bytes, "{\n  \"schema\": 1,\n  \"verb\": \"test\",\n");
    EXPECT_CONTAINS(j.text.bytes, "\"deep\": [\n    {\"x\": {\"k\\\"\": \"\"}}\n  ]\n}");
    EXPECT_INT(cup__json_parse(NULL, "test", j.text.bytes, j.text.length, &read), CUP_OK);
    EXPECT_TEXT(cup__json_find(read.root, "odd")->string, odd);
    const cup__json_node *bytes = cup__json_find(read.root, "bytes");
    EXPECT(bytes->count == 6 && !memcmp(bytes->string, "a\0b\xef\xbf\xbd", 6));
    EXPECT(cup__json_integer(cup__json_find(read.root, "integer"), &integer));
    EXPECT(integer == INT64_MIN && cup__json_find(read.root, "yes")->boolean);
    EXPECT_INT(cup__json_find(read.root, "nan")->kind, CUP__JSON_NULL);
    EXPECT_INT(cup__json_find(read.root, "null")->kind, CUP__JSON_NULL);
    EXPECT_INT(cup__json_find(read.root, "empty")->count, 0);
    const cup__json_node *list = cup__json_find(read.root, "numbers");
    EXPECT_INT(list->count, NUMBERS);
    for (int i = 0; i < NUMBERS; i++)
        EXPECT(cup__json_number(list + 1 + i) == numbers[i]);
    cup__json_free(&read);
    json_drop(&j);
}

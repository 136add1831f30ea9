#include "test.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/utf8.h"

static cup__json parse(const char *text)
{
    cup__error error = {0};
    cup__json json;
    if (cup__json_parse(&error, "test.json", text, strlen(text), &json) != CUP_OK)
        test_fail(__FILE__, __LINE__, "%s: %s", text, error.text);
    return json;
}

TEST(json_values)
{
    cup__json json = parse(" {\"a\": [1, -2.5e1, true, null, []], \"b\\n\\u00e9\\ud83d\\ude00\": "
                           "{\"c\": \"x\\\"y\"}} ");
    const cup__json_node *a = cup__json_find(json.root, "a");
    EXPECT_INT(json.root->count, 2);
    EXPECT_INT(a->count, 5);
    EXPECT_INT(a[1].magnitude, 1);
    EXPECT_NEAR(a[2].number, -25, 0);
    EXPECT(!a[2].is_integer && a[3].boolean && a[4].kind == CUP__JSON_NULL);
    EXPECT_INT(a[5].kind, CUP__JSON_ARRAY);
    const cup__json_node *b = a + a->span;
    EXPECT_TEXT(b->key, "b\n\xc3\xa9\xf0\x9f\x98\x80");
    EXPECT_TEXT(cup__json_find(b, "c")->string, "x\"y");
    EXPECT(cup__json_find(b, "d") == NULL && cup__json_find(a, "a") == NULL);
    int children = 0;
    CUP__JSON_EACH(child, json.root)
    children += child->key[0] != 0;
    EXPECT_INT(children, 2);
    cup__json_free(&json);
}

static void expect_refused(const char *text, size_t length, const char *words)
{
    cup__error error = {0};
    cup__json json;
    /* A block of just this size, so that a sanitizer sees a read behind it. */
    char *exact = malloc(length ? length : 1);
    memcpy(exact, text, length);
    if (cup__json_parse(&error, "test.json", exact, length, &json) != CUP_FORMAT)
        test_fail(__FILE__, __LINE__, "accepted: %s", text);
    EXPECT_CONTAINS(error.text, "test.json");
    EXPECT_CONTAINS(error.text, words);
    EXPECT(json.text == NULL);
    free(exact);
}

TEST(json_refuses_what_is_malformed)
{
    static const struct {
        const char *text, *words;
    } cases[] = {{"", "an early end at byte 0"},
                 {"  ", "early end"},
                 {"{", "a key that is not a string"},
                 {"[", "early end"},
                 {"[1", "missing \",\" or \"]\""},
                 {"[1,]", "unexpected"},
                 {"[,1]", "unexpected"},
                 {"{\"a\":1,}", "key"},
                 {"{\"a\"}", "without \":\""},
                 {"{\"a\":}", "unexpected"},
                 {"{a:1}", "key"},
                 {"[1 2]", "missing"},
                 {"1 2", "more than one"},
                 {"01", "malformed"},
                 {"-", "malformed"},
                 {"+1", "unexpected"},
                 {"1.", "malformed"},
                 {".5", "unexpected"},
                 {"1e", "malformed"},
                 {"1e+", "malformed"},
                 {"0x10", "more than one"},
                 {"1e999", "out of range"},
                 {"NaN", "unexpected"},
                 {"-Infinity", "malformed"},
                 {"nul", "unexpected"},
                 {"True", "unexpected"},
                 {"\"", "without end"},
                 {"\"\\", "without end"},
                 {"\"\\x\"", "escape"},
                 {"\"\\u12\"", "hexadecimal"},
                 {"\"\\ud800\"", "surrogate"},
                 {"\"\\ud800\\u0041\"", "surrogate"},
                 {"\"\\udc00\"", "surrogate"},
                 {"\"a\nb\"", "control"},
                 {"{\"a\":1,\"a\":2}", "the key \"a\" twice"},
                 {"{\"a\":1,\"b\":0,\"\\u0061\":2}", "twice"},
                 {"{\"a\\u0000\":1}", "zero character"},
                 {"\xff", "not UTF-8 at byte 0"},
                 {"\"a\xc3\"", "not UTF-8 at byte 2"},
                 {"\"\xed\xa0\x80\"", "not UTF-8"},
                 {"\"\xc0\x80\"", "not UTF-8"},
                 {"\xef\xbb\xbf{}", "unexpected"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refused(cases[i].text, strlen(cases[i].text), cases[i].words);
    expect_refused("[1\0]", 4, "missing");
    expect_refused("\"\0\"", 3, "control");
}

TEST(json_depth)
{
    char deep[300];
    memset(deep, '[', 64);
    memset(deep + 64, ']', 64);
    deep[128] = 0;
    cup__json json = parse(deep);
    EXPECT_INT(json.count, 64);
    cup__json_free(&json);
    memset(deep, '[', 65);
    expect_refused(deep, 65, "nesting deeper than 64");
}

TEST(json_integers_are_exact)
{
    cup__json json = parse("{\"u\": 18446744073709551615, \"i\": -9223372036854775808, "
                           "\"big\": 18446744073709551616, \"f\": 1.0, \"n\": -1, \"s\": \"1\", "
                           "\"z\": \"a\\u0000\"}");
    cup__error error = {0};
    uint64_t u;
    int64_t i;
    double d;
    bool b;
    const char *s;
    EXPECT_INT(cup__json_get_unsigned(&error, &json, json.root, "u", &u), CUP_OK);
    EXPECT(u == UINT64_MAX);
    EXPECT_INT(cup__json_get_integer(&error, &json, json.root, "i", INT64_MIN, 0, &i), CUP_OK);
    EXPECT(i == INT64_MIN);
    EXPECT_INT(cup__json_get_number(&error, &json, json.root, "big", &d), CUP_OK);
    EXPECT_NEAR(d, 0x1p64, 0);
    EXPECT_INT(cup__json_get_integer(&error, &json, json.root, "u", 0, INT64_MAX, &i), CUP_FORMAT);
    EXPECT_CONTAINS(error.text, "test.json: \"u\" must be a whole number from 0");
    EXPECT_INT(cup__json_get_integer(NULL, &json, json.root, "f", 0, 9, &i), CUP_FORMAT);
    EXPECT_INT(cup__json_get_integer(NULL, &json, json.root, "n", 0, 9, &i), CUP_FORMAT);
    EXPECT_INT(cup__json_get_unsigned(NULL, &json, json.root, "n", &u), CUP_FORMAT);
    EXPECT_INT(cup__json_get_unsigned(NULL, &json, json.root, "big", &u), CUP_FORMAT);
    EXPECT_INT(cup__json_get_string(NULL, &json, json.root, "z", &s), CUP_FORMAT);
    cup__error_clear(&error);
    EXPECT_INT(cup__json_get_boolean(&error, &json, json.root, "s", &b), CUP_FORMAT);
    EXPECT_TEXT(error.text, "test.json: \"s\" must be a boolean, but is a string");
    cup__error_clear(&error);
    EXPECT_INT(cup__json_get_string(&error, &json, json.root, "none", &s), CUP_FORMAT);
    EXPECT_TEXT(error.text, "test.json has no key \"none\"");
    cup__json_free(&json);
}

static void write_sample(cup__json_writer *writer)
{
    cup__json_open(writer, NULL, CUP__JSON_OBJECT);
    cup__json_add_integer(writer, "i", INT64_MIN);
    cup__json_add_unsigned(writer, "u", UINT64_MAX);
    cup__json_add_number(writer, "tenth", 0.1);
    cup__json_add_number(writer, "nan", NAN);
    cup__json_add_number(writer, "inf", -INFINITY);
    cup__json_open(writer, "list", CUP__JSON_ARRAY);
    cup__json_add_boolean(writer, NULL, true);
    cup__json_add_null(writer, NULL);
    cup__json_add_string(writer, NULL, "a\"\\\n\x01\xff\xc3\xa9");
    cup__json_close(writer);
    cup__json_open(writer, "none", CUP__JSON_OBJECT);
    cup__json_close(writer);
    cup__json_close(writer);
}

TEST(json_writer)
{
    cup__json_writer writer = {0};
    write_sample(&writer);
    EXPECT(!writer.text.failed);
    EXPECT_TEXT(writer.text.bytes,
                "{\"i\": -9223372036854775808, \"u\": 18446744073709551615, \"tenth\": 0.1, "
                "\"nan\": null, \"inf\": null, \"list\": [true, null, "
                "\"a\\\"\\\\\\n\\u0001\xef\xbf\xbd\xc3\xa9\"], \"none\": {}}");
    cup__json json = parse(writer.text.bytes);
    cup__json_writer again = {0};
    cup__json_add_node(&again, NULL, json.root);
    EXPECT_TEXT(again.text.bytes, writer.text.bytes);
    cup__json_writer lines = {.lines = 1};
    cup__json_add_node(&lines, NULL, cup__json_find(json.root, "list"));
    EXPECT_CONTAINS(lines.text.bytes, "[\n  true,\n  null,\n");
    cup__json_free(&json);
    cup__text_free(&writer.text);
    cup__text_free(&again.text);
    cup__text_free(&lines.text);
}

static void expect_number(double value)
{
    cup__json_writer writer = {0};
    cup__json_add_number(&writer, NULL, value);
    cup__json json = parse(writer.text.bytes);
    double got = cup__json_number(json.root);
    if (memcmp(&got, &value, sizeof value) != 0)
        test_fail(__FILE__, __LINE__, "%a became %s", value, writer.text.bytes);
    cup__json_free(&json);
    cup__text_free(&writer.text);
}

TEST(json_numbers_round_trip_in_any_locale)
{
    static const char *const locales[] = {"C", "de_DE.UTF-8", "fr_FR.UTF-8"};
    for (size_t l = 0; l < sizeof locales / sizeof *locales; l++) {
        setlocale(LC_ALL, locales[l]);
        expect_number(-0.0);
        expect_number(5e-324);
        expect_number(1.7976931348623157e308);
        for (int i = 0; i < 2000; i++) {
            uint64_t bits = test_random();
            double value;
            memcpy(&value, &bits, sizeof value);
            if (isfinite(value))
                expect_number(value);
        }
    }
}

/* The densest texts there are take 12 bytes of nodes a byte, and no more while they are read. */
TEST(json_memory_is_a_multiple_of_the_text)
{
    static const char *const parts[] = {"0,", "[0],", "[[[],0],\"\\\",[\"],", "\"a,b\","};
    for (int i = 0; i < 4; i++) {
        cup__text text = {0};
        cup__text_add(&text, "[");
        for (int k = 0; k < 10000; k++)
            cup__text_add(&text, "%s", parts[i]);
        cup__text_add(&text, "0]");
        cup__json json = parse(text.bytes);
        EXPECT(json.capacity * sizeof *json.root <= 12 * text.length + 24);
        EXPECT(json.capacity <= 2 * json.count);
        cup__json_free(&json);
        cup__text_free(&text);
    }
}

TEST(json_allocation_failures)
{
    const char *text = "{\"a\": [1, 2, 3, 4, 5, 6, 7, 8, 9], \"b\": {\"c\": \"d\", \"e\": 1}}";
    cup_status status = CUP_MEMORY;
    for (long n = 1; status != CUP_OK; n++) {
        cup__error error = {0};
        cup__json json;
        cup__memory_fail_at(n, false);
        status = cup__json_parse(&error, "test.json", text, strlen(text), &json);
        cup__memory_fail_at(0, false);
        EXPECT(status == CUP_OK || (status == CUP_MEMORY && error.text[0] && n < 100));
        cup__json_free(&json);
    }
    bool failed = true;
    for (long n = 1; failed; n++) {
        cup__json_writer writer = {0};
        cup__memory_fail_at(n, false);
        write_sample(&writer);
        cup__memory_fail_at(0, false);
        failed = writer.text.failed;
        EXPECT(n < 100);
        cup__text_free(&writer.text);
    }
}

TEST(utf8_every_code_point)
{
    char bytes[4];
    uint32_t code;
    for (uint32_t c = 0; c < 0x110000; c++) {
        int length = cup__utf8_encode(c, bytes);
        if (c >= 0xd800 && c < 0xe000) {
            EXPECT_INT(length, 0);
            continue;
        }
        EXPECT_INT(cup__utf8_decode(bytes, (size_t)length, &code), length);
        EXPECT_INT(code, c);
        for (int part = 0; part < length; part++)
            EXPECT_INT(cup__utf8_decode(bytes, (size_t)part, &code), 0);
    }
    EXPECT_INT(cup__utf8_encode(0x110000, bytes), 0);
}

/* The rule in other words: decoding is right when encoding gives the same bytes back. */
TEST(utf8_all_three_byte_sequences)
{
    for (uint32_t i = 0; i < 1u << 24; i++) {
        unsigned char in[3] = {(unsigned char)(i >> 16), (unsigned char)(i >> 8), (unsigned char)i};
        uint32_t code;
        int length = cup__utf8_decode(in, 3, &code);
        char out[4];
        if (length > 0 &&
            (cup__utf8_encode(code, out) != length || memcmp(in, out, (size_t)length)))
            test_fail(__FILE__, __LINE__, "%02x %02x %02x", in[0], in[1], in[2]);
        if (length == 0 && (in[0] < 0xf0 || in[0] > 0xf4))
            test_fail(__FILE__, __LINE__, "%02x %02x %02x is no beginning", in[0], in[1], in[2]);
    }
}

TEST(utf8_check_names_the_place)
{
    EXPECT_INT(cup__utf8_check("0123456789abcdef", 16), 16);
    EXPECT_INT(cup__utf8_check("0123456789\xff"
                               "bcdef",
                               16),
               10);
    EXPECT_INT(cup__utf8_check("01234567\xc3\xa9\xc3", 11), 10);
    EXPECT_INT(cup__utf8_check("\xf4\x90\x80\x80", 4), 0);
    EXPECT_INT(cup__utf8_check("", 0), 0);
}

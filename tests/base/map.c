#include "test.h"

#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"

TEST(map_finds_what_was_added)
{
    cup__map map = {0};
    EXPECT(cup__map_find(&map, 0) == CUP__NOT_THERE);
    for (uint32_t i = 0; i < 5000; i++)
        EXPECT(cup__map_add(&map, (uint64_t)i << 32 | (i * 7), i));
    EXPECT_INT(map.count, 5000);
    EXPECT_INT(cup__map_find(&map, (uint64_t)4999 << 32 | (4999 * 7)), 4999);
    EXPECT(cup__map_find(&map, 0xdeadbeefdeadbeef) == CUP__NOT_THERE);
    cup__map_free(&map);
}

TEST(map_strings_keep_their_numbers)
{
    static char text[3000][8];
    cup__strings strings = {0};
    EXPECT(cup__strings_find(&strings, "x", 1) == CUP__NOT_THERE);
    for (uint32_t i = 0; i < 3000; i++) {
        snprintf(text[i], sizeof text[i], "%u", (unsigned)i);
        EXPECT_INT(cup__strings_add(&strings, text[i], strlen(text[i])), i);
    }
    for (uint32_t i = 0; i < 3000; i++)
        EXPECT_INT(cup__strings_add(&strings, text[i], strlen(text[i])), i);
    EXPECT_INT(cup__strings_find(&strings, "2999", 4), 2999);
    EXPECT(cup__strings_find(&strings, "2999", 5) == CUP__NOT_THERE);
    EXPECT(cup__strings_find(&strings, "", 0) == CUP__NOT_THERE);
    EXPECT_INT(cup__strings_add(&strings, "", 0), 3000);
    cup__strings_free(&strings);
}

TEST(map_allocation_failures)
{
    cup__map map = {0};
    cup__strings strings = {0};
    cup__memory_fail_at(1, true);
    EXPECT(!cup__map_add(&map, 1, 1));
    EXPECT(cup__strings_add(&strings, "a", 1) == CUP__NOT_THERE);
    cup__memory_fail_at(2, true);
    EXPECT(cup__strings_add(&strings, "a", 1) == CUP__NOT_THERE);
    cup__memory_fail_at(0, false);
    EXPECT_INT(cup__strings_add(&strings, "a", 1), 0);
    EXPECT_INT(strings.count, 1);
    cup__strings_free(&strings);
    cup__map_free(&map);
}

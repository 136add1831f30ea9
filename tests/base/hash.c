#include "test.h"

#include <string.h>

#include "base/hash.h"

/* The values that xxhsum -H2 prints. */
TEST(hash_known_values)
{
    char text[CUP__HASH_TEXT];
    cup__hash hash;
    cup__hash_begin(&hash);
    EXPECT_TEXT(cup__hash_text(&hash, text), "99aa06d3014798d86001c324468d497f");
    EXPECT(cup__hash_bytes("", 0) == 0x2d06800538d394c2u);
}

TEST(hash_does_not_depend_on_the_pieces)
{
    unsigned char bytes[4000];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)test_random();
    char whole[CUP__HASH_TEXT], pieces[CUP__HASH_TEXT];
    cup__hash hash;
    cup__hash_begin(&hash);
    cup__hash_add(&hash, bytes, sizeof bytes);
    cup__hash_text(&hash, whole);
    cup__hash_begin(&hash);
    for (size_t at = 0, next; at < sizeof bytes; at = next) {
        next = at + 1 + test_random() % 700;
        next = next < sizeof bytes ? next : sizeof bytes;
        cup__hash_add(&hash, bytes + at, next - at);
    }
    EXPECT_TEXT(cup__hash_text(&hash, pieces), whole);
    cup__hash_add(&hash, "x", 1);
    EXPECT(strcmp(cup__hash_text(&hash, pieces), whole) != 0);
}

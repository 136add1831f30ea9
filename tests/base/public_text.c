#include "cupola/text.h"

#include <string.h>

#include "test.h"

TEST(public_text_calls)
{
    char text[32];
    uint32_t code = 0;
    EXPECT_TEXT(cup_text_visible("a\n\x1b[31mb\xff", NULL, text, sizeof text),
                "a\\n\\x1b[31mb\\xff");
    EXPECT_TEXT(cup_text_visible("a\nb", "\n", text, sizeof text), "a\nb");
    EXPECT_TEXT(cup_text_visible("abc\xc3\xa9", NULL, text, 5), "abc");
    EXPECT_TEXT(cup_text_visible(NULL, NULL, text, sizeof text), "");
    EXPECT_TEXT(cup_text_size(1536, text, sizeof text), "1.5 KiB");
    EXPECT_TEXT(cup_text_size(17, text, 3), "17");
    EXPECT_INT(cup_text_character("\xe2\x82\xac!", 4, &code), 3);
    EXPECT_INT(code, 0x20ac);
    EXPECT_INT(cup_text_character("\xe2\x82", 2, NULL), 0);
    EXPECT_INT(cup_text_character("\xff", 1, NULL), -1);
    EXPECT_INT(cup_text_character("", 0, NULL), 0);
}

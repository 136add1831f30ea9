#include "test.h"

#include <stddef.h>
#include <string.h>

#include "base/fields.h"

typedef struct numbers {
    int64_t a, b;
    int choice;
} numbers;

/* What was added to a table later has its 0 in files from before, and its value in newer ones. */
TEST(fields_of_older_files_are_zero)
{
    static const char *const words[] = {"none", "some", NULL};
    static const cup__field fields[] = {
        {"a", CUP__FIELD_WHOLE, offsetof(numbers, a), 0, 9, true, NULL},
        {"b", CUP__LATER(WHOLE), offsetof(numbers, b), 0, 9, true, NULL},
        {"choice", CUP__LATER(CHOICE), offsetof(numbers, choice), 0, 0, true, words},
        {0}};
    static const char *const texts[] = {"{\"a\": 5}", "{\"a\": 5, \"b\": 7, \"choice\": \"some\"}",
                                        "{\"b\": 7}"};
    for (int i = 0; i < 3; i++) {
        cup__error error = {0};
        cup__json json;
        numbers found = {0};
        EXPECT_INT(cup__json_parse(&error, "text", texts[i], strlen(texts[i]), &json), CUP_OK);
        cup_status status = cup__fields_read(&error, &json, json.root, fields, &found);
        EXPECT_INT(status, i == 2 ? CUP_FORMAT : CUP_OK);
        EXPECT_INT(found.a, i == 2 ? 0 : 5);
        EXPECT_INT(found.b, i == 1 ? 7 : 0);
        EXPECT_INT(found.choice, i == 1);
        cup__json_free(&json);
    }
    cup__error error = {0};
    numbers bad = {.b = 10};
    EXPECT_INT(cup__fields_check(&error, "numbers", fields, &bad), CUP_ARGUMENT);
    EXPECT_CONTAINS(error.text, "b must be");
}

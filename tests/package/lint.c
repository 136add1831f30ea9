#include "test.h"

/* The rules of docs/RULES.md that a machine can check. */
TEST(lint)
{
    static char out[20000];
    if (test_command(out, sizeof out, "tools/lint"))
        test_fail(__FILE__, __LINE__, "%s", out);
}

/* Each public header compiles alone, as C11 and as C++, without a warning. */
#include <stdlib.h>

#include "test.h"

static char out[20000];

static void compile_each(const char *compiler, const char *flags)
{
    if (test_command(out, sizeof out, "command -v %s", compiler))
        test_skip("%s is not installed", compiler);
    test_command(out, sizeof out,
                 "for header in include/cupola/*.h; do "
                 "echo \"#include \\\"${header#include/}\\\"\" | %s %s -Wall -Wextra -pedantic "
                 "-Wundef -Werror -Iinclude -fsyntax-only -; done",
                 compiler, flags);
    EXPECT_TEXT(out, "");
}

TEST(headers_alone_as_c)
{
    compile_each("gcc", "-x c -std=c11 -Wstrict-prototypes");
}

TEST(headers_alone_as_cpp)
{
    compile_each("g++", "-x c++ -std=c++11");
}

TEST(headers_alone_with_clang)
{
    compile_each("clang", "-x c -std=c11 -Wstrict-prototypes");
}

TEST_LIMITED(program_in_cpp, 120)
{
    const char *sanitize = getenv("SANITIZE"), *folder = test_folder();
    if (test_command(out, sizeof out, "command -v g++"))
        test_skip("g++ is not installed");
    int code = test_command(
        out, sizeof out,
        "g++ %s -std=c++17 -Wall -Wextra -pedantic -Werror -Iinclude -o '%s/program' "
        "tests/package/program.cpp '%s/libcupola.a' -lpcre2-8 -lm -ldl -lpthread && '%s/program'",
        sanitize ? sanitize : "", folder, test_build(), folder);
    EXPECT_TEXT(out, "");
    EXPECT_INT(code, 0);
}

/* The command, linked with the shared library alone: all it calls is exported, and so are there for
 * every program. Only check and bench look inside the library, and are left out. */
#include <stdlib.h>

#include "test.h"

static char out[100000];

static const char absent[] =
    "#include \\\"cli/common/options.h\\\"\n"
    "#define ABSENT .synopsis = \\\"\\\", .words = \\\"\\\", .text = \\\"\\\"\n"
    "const cli_verb verb_check = {.name = \\\"check\\\", ABSENT};\n"
    "const cli_verb verb_bench = {.name = \\\"bench\\\", ABSENT};\n";

TEST_LIMITED(command_stands_on_the_shared_library, 300)
{
    const char *folder = test_folder(), *sanitize = getenv("SANITIZE");
    if (test_command(out, sizeof out, "test -e %s/libcupola.so", test_build()))
        test_skip("there is no shared library; make all");
    int code = test_command(
        out, sizeof out,
        "root=$PWD; build=$(realpath '%s'); cd '%s' && printf '%%s' \"%s\" >absent.c &&\n"
        "cp $build/libcupola.so . && ln -s libcupola.so $(readelf -d libcupola.so | sed -n "
        "'s/.*SONAME.*\\[\\(.*\\)\\]/\\1/p') &&\n"
        "${CC:-cc} %s -std=c11 -I$root -I$root/include -o cupola "
        "$(find $build/cli -name '*.o' | grep -vE '/(check|bench)[a-z_]*\\.o$') absent.c -L. "
        "-lcupola -lm",
        test_build(), folder, absent, sanitize ? sanitize : "");
    if (code)
        test_fail(__FILE__, __LINE__, "%s", out);
    static const char *const words[] = {"info", "ops gelu", "help", "kernels path",
                                        "train --data t --steps 2 --layers 1 --width 16 --heads 1 "
                                        "--context 16 --sample 5 --json"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        code = test_command(out, sizeof out,
                            "cd '%s' && seq 3000 >t; LD_LIBRARY_PATH=. CUP_CACHE=k CUP_DEVICE=cpu "
                            "./cupola %s",
                            folder, words[i]);
        if (code)
            test_fail(__FILE__, __LINE__, "cupola %s: %d: %s", words[i], code, out);
    }
    EXPECT_CONTAINS(out, "\"finished\": true");
}

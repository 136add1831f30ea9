/* What make install leaves: programs are built against it as users build theirs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "data/shapes.h"
#include "test.h"

static char out[100000];

static void skip_without(const char *command)
{
    if (test_command(out, sizeof out, "command -v %s", command))
        test_skip("%s is not installed", command);
}

/* Installs below the folder, as a packager does: DESTDIR and the usual PREFIX. Returns DESTDIR. */
static const char *install(const char *prefix)
{
    const char *sanitize = getenv("SANITIZE");
    if (sanitize && *sanitize)
        test_skip("a library with a sanitizer is not one to install");
    const char *folder = test_folder();
    int code = test_command(out, sizeof out,
                            "MAKEFLAGS= make -s install BUILD='%s' DESTDIR='%s' PREFIX=%s",
                            test_build(), folder, prefix);
    if (code)
        test_fail(__FILE__, __LINE__, "make install: %s", out);
    return folder;
}

static void expect_sum(int code)
{
    EXPECT_INT(code, 0);
    EXPECT_CONTAINS(out, "11");
    EXPECT_CONTAINS(out, "36");
}

static char *read_text(const char *path)
{
    cup__error error = {0};
    char *text;
    if (cup__file_read(&error, path, 1 << 20, &text, NULL) != CUP_OK)
        test_fail(__FILE__, __LINE__, "%s", error.text);
    return text;
}

TEST_LIMITED(install_and_uninstall, 300)
{
    char name[60];
    const char *folder = install("/usr");
    EXPECT_INT(test_command(out, sizeof out, "readelf -d '%s/usr/lib/libcupola.so'", folder), 0);
    snprintf(name, sizeof name, CUP_VERSION_MAJOR ? "[libcupola.so.%d]" : "[libcupola.so.%d.%d]",
             CUP_VERSION_MAJOR, CUP_VERSION_MINOR);
    EXPECT_CONTAINS(out, name);
    EXPECT_INT(test_command(out, sizeof out, "'%s/usr/bin/cupola' --version", folder), 0);
    EXPECT_INT(test_command(out, sizeof out, "ls '%s/usr/share/man/man1/cupola.1'", folder), 0);
    EXPECT_INT(test_command(out, sizeof out,
                            "MAKEFLAGS= make -s uninstall BUILD='%s' DESTDIR='%s' PREFIX=/usr",
                            test_build(), folder),
               0);
    test_command(out, sizeof out, "find '%s' ! -type d", folder);
    EXPECT_TEXT(out, "");
}

TEST_LIMITED(install_pkg_config, 300)
{
    skip_without("pkg-config");
    const char *folder = install("/usr");
    static const char *const ways[] = {"", "--static"};
    for (int i = 0; i < 2; i++) {
        /* With --static, the library's own dependencies are named as well. */
        expect_sum(test_command(
            out, sizeof out,
            "export PKG_CONFIG_PATH='%s/usr/lib/pkgconfig' PKG_CONFIG_SYSROOT_DIR='%s'\n"
            "${CC:-cc} -std=c11 -Wall -Wextra -Werror -o '%s/add' examples/add.c "
            "$(pkg-config --cflags --libs %s cupola) && "
            "LD_LIBRARY_PATH='%s/usr/lib' CUP_DEVICE=cpu '%s/add'",
            folder, folder, folder, ways[i], folder, folder));
    }
    EXPECT_INT(test_command(out, sizeof out,
                            "PKG_CONFIG_PATH='%s/usr/lib/pkgconfig' pkg-config --modversion cupola",
                            folder),
               0);
    EXPECT_CONTAINS(out, "0.");
}

/* Runs what a user types who has the library in $folder. */
static void expect_typed(const char *folder, const char *script)
{
    int code = test_command(
        out, sizeof out,
        "folder='%s'\n"
        "export PKG_CONFIG_PATH=\"$folder/usr/lib/pkgconfig\" PKG_CONFIG_SYSROOT_DIR=\"$folder\"\n"
        "export LD_LIBRARY_PATH=\"$folder/usr/lib\" CUP_DEVICE=cpu\n"
        "%s",
        folder, script);
    if (code)
        test_fail(__FILE__, __LINE__, "%s", out);
}

/* Each example is built and run as a user does it. */
TEST_LIMITED(install_examples, 300)
{
    skip_without("pkg-config");
    expect_typed(install("/usr"),
                 "for source in examples/*.c; do "
                 "${CC:-cc} -std=c11 -Wall -Wextra -pedantic -Werror -o \"$folder/example\" "
                 "\"$source\" $(pkg-config --cflags --libs cupola) -lm && "
                 "\"$folder/example\" || exit 1; done");
    EXPECT_CONTAINS(out, "the derivative of (x * (x * x)) - a is");
    EXPECT_CONTAINS(out, "largest error");
    /* The last of train_loop.c. */
    EXPECT_CONTAINS(out, "step 399  loss 0.0");
    EXPECT_CONTAINS(out, " % of the points are told right");
    EXPECT_CONTAINS(out, "\n99."); /* of the images by cnn_classifier.c */
}

/* What one run computes, another computes that was stopped and goes on. */
TEST_LIMITED(install_examples_go_on, 300)
{
    skip_without("pkg-config");
    expect_typed(install("/usr"),
                 "cp examples/* \"$folder\" && cd \"$folder\" && "
                 "for name in mlp_classifier autoencoder cnn_classifier; do "
                 "${CC:-cc} -std=c11 -o $name $name.c $(pkg-config --cflags --libs cupola) -lm && "
                 "./$name whole && ./$name parts 130 && ./$name parts && "
                 "cmp whole/model.safetensors parts/model.safetensors && "
                 "cmp whole/losses.csv parts/losses.csv && rm -r whole parts || exit 1; done");
    EXPECT_CONTAINS(out, "400 of 400 steps are done\n");
    EXPECT_CONTAINS(out, "goes on behind 130 steps\n");
    EXPECT_CONTAINS(out, "300 of 300 steps are done\n");
    EXPECT_CONTAINS(out, "step 400  validation loss 0.02");
    EXPECT_CONTAINS(out, "step 300  validation loss 0.00");
    EXPECT_CONTAINS(out, "step 200  validation loss 0.02");
}

/* Of pictures in a folder, made smaller for the time that a test has. What is stopped and goes on
 * is as what was not, and new pictures are written each time. */
TEST_LIMITED(install_examples_of_pictures, 300)
{
    skip_without("pkg-config");
    const char *folder = install("/usr");
    char path[4200];
    snprintf(path, sizeof path, "%s/shapes", folder);
    EXPECT(cup__folder_make(NULL, path) == CUP_OK);
    shapes_write(path, "train", 30, 1);
    shapes_write(path, "t10k", 10, 2);
    expect_typed(folder,
                 "cp examples/* \"$folder\" && cd \"$folder\" && "
                 "sed -i 's/NOISES = 200/NOISES = 9/; s/MOST_SIDE = 28/MOST_SIDE = 8/; "
                 "s/ STEPS = [36]00*/ STEPS = 5/' diffusion.c autoencoder.c && "
                 "for name in 'diffusion shapes' autoencoder; do set -- $name; "
                 "${CC:-cc} -std=c11 -o $1 $1.c $(pkg-config --cflags --libs cupola) -lm && "
                 "./$name whole && ./$name parts 2 && ./$name parts && "
                 "cmp whole/model.safetensors parts/model.safetensors && "
                 "if [ $1 = diffusion ]; then head -c 9 parts/samples.pgm; "
                 "wc -c <parts/samples.pgm; fi && rm -r whole parts || exit 1; done; "
                 "./diffusion nowhere && exit 1; true");
    EXPECT_CONTAINS(out, "goes on behind 2 steps\n");
    EXPECT_CONTAINS(out, "5 of 5 steps are done\n");
    EXPECT_CONTAINS(out, "P5\n64 64\n4109\n");
    EXPECT_CONTAINS(out, "step   5  validation loss 0.");
    EXPECT_CONTAINS(out, "nowhere is no folder of images");
}

TEST_LIMITED(install_static_library, 300)
{
    const char *folder = install("/usr");
    expect_sum(test_command(out, sizeof out,
                            "${CC:-cc} -std=c11 -o '%s/add' examples/add.c -I'%s/usr/include' "
                            "'%s/usr/lib/libcupola.a' -lpcre2-8 -lm -ldl -lpthread && "
                            "CUP_DEVICE=cpu '%s/add'",
                            folder, folder, folder, folder));
}

/* The tree is moved after installing, and the library's folder is a deeper one, as Debian has it.
 */
TEST_LIMITED(install_cmake, 300)
{
    skip_without("cmake");
    const char *folder = install("/usr LIBDIR=/usr/lib/x86_64-linux-gnu");
    cup__error error = {0};
    char path[4300];
    snprintf(path, sizeof path, "%s/CMakeLists.txt", folder);
    static const char text[] = "cmake_minimum_required(VERSION 3.16)\n"
                               "project(user C)\n"
                               "find_package(Cupola 0.2 REQUIRED CONFIG)\n"
                               "add_executable(add add.c)\n"
                               "target_link_libraries(add PRIVATE Cupola::cupola)\n";
    EXPECT_INT(cup__file_write(&error, path, text, sizeof text - 1), CUP_OK);
    expect_sum(test_command(
        out, sizeof out,
        "cp examples/add.c '%s' && cd '%s' && mv usr moved && "
        "cmake -S . -B build -DCMAKE_PREFIX_PATH=\"$PWD/moved\" -DCMAKE_LIBRARY_ARCHITECTURE="
        "x86_64-linux-gnu >log 2>&1 && cmake --build build >>log 2>&1 || { cat log; exit 1; }\n"
        "CUP_DEVICE=cpu build/add",
        folder, folder));
}

/* Nothing leaves the library but what the headers declare, and it neither ends the process nor
 * writes to its streams. */
TEST_LIMITED(shared_library_symbols, 300)
{
    const char *folder = install("/usr");
    test_command(out, sizeof out,
                 "nm -D --defined-only '%s/usr/lib/libcupola.so' | awk '$2 ~ /[A-Z]/ && "
                 "$3 !~ /^(cup_[a-z]|CUPOLA_)/'",
                 folder);
    EXPECT_TEXT(out, "");
    test_command(out, sizeof out,
                 "nm -D --undefined-only '%s/usr/lib/libcupola.so' | sed 's/@.*//' | awk '$2 ~ "
                 "/^(abort|exit|_exit|__assert_fail|printf|__printf_chk|puts|putchar|perror|stdout)"
                 "$/'",
                 folder);
    EXPECT_TEXT(out, "");
    EXPECT_INT(test_command(out, sizeof out,
                            "nm -D --defined-only '%s/usr/lib/libcupola.so' | grep -c ' cup_add'",
                            folder),
               0);
}

/* The program of README.md and of cupola.h is that of examples/add.c. */
TEST(first_program_is_one)
{
    char *example = read_text("examples/add.c"), *readme = read_text("README.md");
    EXPECT_CONTAINS(readme, example);
    EXPECT_INT(
        test_command(out, sizeof out,
                     "sed -n '/#include <cup/,/^ \\*     }$/s/^ \\*\\( \\{5\\}\\)\\{0,1\\}//p' "
                     "include/cupola/cupola.h"),
        0);
    EXPECT_TEXT(out, example);
    cup__free(example);
    cup__free(readme);
}

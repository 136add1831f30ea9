/* ./run, with programs in place of make and the command. */
#include <stdio.h>
#include <sys/stat.h>

#include "../test.h"

/* Three files, the second of which takes a while; then the command, if it does not fail. */
static const char maker[] =
    "case \" $* \" in *' -n '*)\n"
    "  for i in 1 2 3; do echo 'echo \"  CC src/a.c\"'; done; exit ;; esac\n"
    "echo '  CC src/a.c'; sleep 2.2; echo '  CC src/b.c'\n"
    "[ -z \"$BREAK\" ] || { echo 'src/b.c:1: error: broken'; exit 2; }\n"
    "mkdir -p build; printf '#!/bin/sh\\necho it does $1\\n' >build/cupola\n"
    "chmod +x build/cupola\n";

static void program(const char *folder, const char *name, const char *text)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    if (!file || fprintf(file, "#!/bin/sh\n%s", text) < 0 || fclose(file) || chmod(path, 0755))
        test_fail(__FILE__, __LINE__, "%s cannot be written", path);
}

/* Nothing is installed meanwhile, whatever is missing here. */
static int run(const char *folder, const char *with, char *out, size_t room)
{
    return test_command(out, room,
                        "cp run '%s' && cd '%s' && env PATH=\"$PWD:$PATH\" %s ./run demo", folder,
                        folder, with);
}

TEST(run_script_says_how_far_the_build_is)
{
    char out[4000];
    const char *folder = test_folder();
    program(folder, "make", maker);
    program(folder, "apt-get", "exit 1\n");
    program(folder, "sudo", "exit 1\n");
    EXPECT_INT(run(folder, "", out, sizeof out), 0);
    EXPECT_CONTAINS(out, "Building with");
    EXPECT_CONTAINS(out, "\n  1 of 3 files\n");
    EXPECT_CONTAINS(out, "it does train\n");
    EXPECT_CONTAINS(out, "it does generate\n");
    EXPECT_INT(run(folder, "BREAK=1", out, sizeof out), 1);
    EXPECT_CONTAINS(out, "src/b.c:1: error: broken\nrun: the build failed; the lines above");
}

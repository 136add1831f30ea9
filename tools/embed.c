/* Writes a C file that holds the text of every device source named on the command line, so that
 * the library can compile its kernels without any file beside it. */
#include <stdio.h>
#include <string.h>

static void write_text(FILE *file)
{
    int c, column = 0;
    while ((c = fgetc(file)) != EOF) {
        column += printf("%d,", c);
        if (column > 90) {
            putchar('\n');
            column = 0;
        }
    }
    puts("0};");
}

int main(int argc, char **argv)
{
    puts("#include \"cuda/sources.h\"\n");
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (!file) {
            fprintf(stderr, "embed: %s cannot be read\n", argv[i]);
            return 1;
        }
        printf("static const char text_%d[] = {", i);
        write_text(file);
        fclose(file);
    }
    puts("const cup__source cup__sources[] = {");
    for (int i = 1; i < argc; i++) {
        const char *slash = strrchr(argv[i], '/');
        printf("    {\"%s\", \"%s\", text_%d, sizeof text_%d - 1},\n",
               slash ? slash + 1 : argv[i], argv[i], i, i);
    }
    puts("    {0, 0, 0, 0}};");
    return 0;
}

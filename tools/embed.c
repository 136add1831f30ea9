/* Writes a C file that holds the text of every device source named on the command line, so that
 * the library can compile its kernels without any file beside it. The texts stand packed, which
 * takes a third of their size: src/cuda/sources.h says how. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HASHES (1 << 16)
#define WINDOW 65535
#define LEAST 4   /* bytes of a repetition */
#define TRIES 64

static unsigned char *text; /* all files one behind the other, each ended by a 0 */
static size_t size, capacity;
static int column;

static void fail(const char *what, const char *path)
{
    fprintf(stderr, "embed: %s %s\n", path, what);
    exit(1);
}

static void add(int byte)
{
    if (size == capacity) {
        capacity = capacity ? 2 * capacity : 1 << 20;
        text = realloc(text, capacity);
        if (!text)
            fail("has no place in memory", "the text");
    }
    text[size++] = (unsigned char)byte;
}

static size_t read_file(const char *path)
{
    size_t begin = size;
    FILE *file = fopen(path, "rb");
    if (!file)
        fail("cannot be read", path);
    for (int c; (c = fgetc(file)) != EOF;)
        add(c);
    fclose(file);
    add(0);
    return size - begin - 1;
}

static void put(unsigned byte)
{
    column += printf("%u,", byte);
    if (column > 90) {
        putchar('\n');
        column = 0;
    }
}

static void put_number(size_t number)
{
    for (; number >= 128; number >>= 7)
        put((unsigned)(number & 127) | 128);
    put((unsigned)number);
}

static unsigned hash_at(size_t at)
{
    unsigned four;
    memcpy(&four, text + at, sizeof four);
    return four * 2654435761u >> 16;
}

/* The longest repetition that was tried; 0 when it is too short. */
static size_t find(const size_t *last, const size_t *before, size_t at, size_t *from)
{
    size_t best = 0, place = last[hash_at(at)];
    for (int i = 0; i < TRIES && place && at - (place - 1) <= WINDOW; i++) {
        size_t length = 0, begin = place - 1;
        while (at + length < size && text[begin + length] == text[at + length])
            length++;
        if (length > best) {
            best = length;
            *from = begin;
        }
        place = before[begin];
    }
    return best < LEAST ? 0 : best;
}

static void pack(void)
{
    size_t *last = calloc(HASHES, sizeof *last), *before = calloc(size, sizeof *before);
    size_t literals = 0;
    if (!last || !before)
        fail("has no place in memory", "the text");
    for (size_t at = 0; at < size;) {
        size_t from = 0, length = at + LEAST <= size ? find(last, before, at, &from) : 0;
        if (length || at + 1 == size) {
            size_t end = length ? at : size;
            put_number(end - literals);
            for (; literals < end; literals++)
                put(text[literals]);
        }
        if (length) {
            put_number(length - LEAST);
            put((unsigned)(at - from) & 255);
            put((unsigned)(at - from) >> 8);
            literals += length;
        }
        for (size_t end = at + (length ? length : 1); at < end; at++)
            if (at + LEAST <= size) { /* places count from 1 */
                before[at] = last[hash_at(at)];
                last[hash_at(at)] = at + 1;
            }
    }
}

int main(int argc, char **argv)
{
    puts("#include \"cuda/sources.h\"\n\nconst unsigned char cup__sources_packed[] = {");
    size_t *sizes = calloc((size_t)argc, sizeof *sizes), at = 0;
    for (int i = 1; sizes && i < argc; i++)
        sizes[i] = read_file(argv[i]);
    pack();
    printf("};\nstatic char texts[%zu];\nchar *const cup__sources_text = texts;\n"
           "const size_t cup__sources_size = sizeof texts;\n"
           "const cup__source cup__sources_rows[] = {\n",
           size);
    for (int i = 1; sizes && i < argc; i++) {
        const char *slash = strrchr(argv[i], '/');
        printf("    {\"%s\", \"%s\", texts + %zu, %zu},\n", slash ? slash + 1 : argv[i],
               argv[i], at, sizes[i]);
        at += sizes[i] + 1;
    }
    puts("    {0, 0, 0, 0}};");
    return !sizes;
}

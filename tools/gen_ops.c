/* Reads src/dispatch/ops.def and writes what follows from its rows: the public prototypes, the
 * attribute structs, the table with the functions behind the prototypes, and the page of ops.
 * Files are only rewritten when their content changes. */
#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ROWS 512
#define MOST_PARTS 16

typedef struct part {
    char type[16]; /* of an attribute */
    char name[40];
    bool optional, list, hidden;
} part;

typedef struct row {
    char name[48], section[64], words[400];
    char inputs_text[200], attributes_text[200], results_text[200];
    bool is_public;
    part inputs[MOST_PARTS], attributes[MOST_PARTS], results[MOST_PARTS];
    int input_count, attribute_count, result_count, visible;
} row;

static row rows[MOST_ROWS];
static int row_count;
static const char *source_name;
static int line_number;

static void fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: ", source_name, line_number);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static void skip(const char **at)
{
    while (isspace((unsigned char)**at) || **at == ',')
        (*at)++;
}

static void take_name(const char **at, char *out, size_t size)
{
    skip(at);
    size_t n = strspn(*at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    if (n == 0 || n >= size)
        fail("a name is missing at: %.20s", *at);
    memcpy(out, *at, n);
    out[n] = 0;
    *at += n;
}

static void take_group(const char **at, char *out, size_t size)
{
    skip(at);
    const char *end = strchr(*at, ')');
    if (**at != '(' || !end || (size_t)(end - *at) >= size)
        fail("a group in parentheses is missing at: %.20s", *at);
    memcpy(out, *at + 1, (size_t)(end - *at) - 1);
    out[end - *at - 1] = 0;
    *at = end + 1;
}

static void take_string(const char **at, char *out, size_t size)
{
    skip(at);
    const char *end = **at == '"' ? strchr(*at + 1, '"') : NULL;
    if (!end || (size_t)(end - *at) >= size)
        fail("a text in quotes is missing at: %.20s", *at);
    memcpy(out, *at + 1, (size_t)(end - *at) - 1);
    out[end - *at - 1] = 0;
    *at = end + 1;
}

static int parse_parts(const char *text, part *parts, bool typed)
{
    int count = 0;
    bool hidden = false;
    for (const char *at = text;;) {
        while (isspace((unsigned char)*at) || *at == ',' || *at == ';')
            hidden |= *at++ == ';';
        if (!*at)
            return count;
        if (count == MOST_PARTS)
            fail("more than %d parts", MOST_PARTS);
        part *p = &parts[count++];
        if (typed)
            take_name(&at, p->type, sizeof p->type);
        take_name(&at, p->name, sizeof p->name);
        p->hidden = hidden;
        p->optional = *at == '?' && *at++;
        p->list = !strncmp(at, "...", 3);
        at += p->list ? 3 : 0;
    }
}

/* What would otherwise be met as an error of the compiler in a generated file. */
static void check_row(const row *r, const char *rest)
{
    if (!islower((unsigned char)r->name[0]))
        fail("%s: a name begins with a small letter", r->name);
    for (int i = 0; i < row_count - 1; i++)
        if (!strcmp(rows[i].name, r->name))
            fail("there is an op %s already", r->name);
    if (r->visible < r->result_count && r->visible == 0)
        fail("%s has only hidden results", r->name);
    skip(&rest);
    if (*rest != ')')
        fail("%s: a closing parenthesis is missing", r->name);
}

static void parse_row(const char *at, const char *section)
{
    if (row_count == MOST_ROWS)
        fail("more than %d rows", MOST_ROWS);
    row *r = &rows[row_count++];
    r->is_public = !strncmp(at, "OP(", 3);
    at = strchr(at, '(') + 1;
    snprintf(r->section, sizeof r->section, "%s", section);
    take_name(&at, r->name, sizeof r->name);
    take_group(&at, r->inputs_text, sizeof r->inputs_text);
    take_group(&at, r->attributes_text, sizeof r->attributes_text);
    take_group(&at, r->results_text, sizeof r->results_text);
    take_string(&at, r->words, sizeof r->words);
    r->input_count = parse_parts(r->inputs_text, r->inputs, false);
    r->attribute_count = parse_parts(r->attributes_text, r->attributes, true);
    r->result_count = parse_parts(r->results_text, r->results, false);
    for (int i = 0; i < r->result_count; i++)
        r->visible += !r->results[i].hidden;
    check_row(r, at);
}

static void parse(FILE *file)
{
    char line[2048], section[64] = "";
    bool comment = false;
    while (fgets(line, sizeof line, file)) {
        line_number++;
        const char *at = line;
        skip(&at);
        comment = comment || !strncmp(at, "/*", 2);
        if (comment || !*at) {
            comment = comment && !strstr(at, "*/");
            continue;
        }
        if (!strncmp(at, "OP(", 3) || !strncmp(at, "INTERNAL(", 9)) {
            while (!strchr(line, '"') || !strchr(strchr(line, '"') + 1, '"')) {
                size_t used = strlen(line);
                if (used + 2 >= sizeof line || !fgets(line + used, (int)(sizeof line - used), file))
                    fail("the row does not end");
                line_number++;
            }
            parse_row(at, section);
        } else if (!strncmp(at, "SECTION(", 8)) {
            at += 8;
            take_string(&at, section, sizeof section);
        } else {
            fail("a row begins with OP, INTERNAL or SECTION");
        }
    }
}

static const char *c_type(const part *attribute)
{
    static const char *const types[][2] = {{"int", "int "},         {"int64", "int64_t "},
                                           {"float", "double "},    {"bool", "bool "},
                                           {"dtype", "cup_dtype "}, {"ints", "const int64_t *"}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(attribute->type, types[i][0]))
            return types[i][1];
    fail("attribute %s: type %s is unknown", attribute->name, attribute->type);
    return NULL;
}

static bool is_ints(const part *attribute)
{
    return !strcmp(attribute->type, "ints");
}

static char *out_text;
static size_t out_length, out_capacity;

static void put(const char *format, ...)
{
    va_list args;
    char piece[4096];
    va_start(args, format);
    int n = vsnprintf(piece, sizeof piece, format, args);
    va_end(args);
    if (out_length + (size_t)n + 1 > out_capacity) {
        out_capacity = (out_length + (size_t)n) * 2 + 4096;
        out_text = realloc(out_text, out_capacity);
        if (!out_text)
            exit(1);
    }
    memcpy(out_text + out_length, piece, (size_t)n + 1);
    out_length += (size_t)n;
}

/* Writes words wrapped at 100 columns as a comment that starts with the given text. */
static void put_wrapped(const char *words, const char *first, const char *next)
{
    size_t column = strlen(first);
    put("%s", first);
    while (*words) {
        size_t n = strcspn(words, " ");
        if (column + n + 1 > 96) {
            put("\n%s", next);
            column = strlen(next);
        }
        put(" %.*s", (int)n, words);
        column += n + 1;
        words += n;
        while (*words == ' ')
            words++;
    }
}

static const char *folder; /* of what is built, and not committed */

static void save(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file) {
        char *old = malloc(out_length + 2);
        size_t n = old ? fread(old, 1, out_length + 1, file) : 0;
        fclose(file);
        bool same = n == out_length && !memcmp(old, out_text, n);
        free(old);
        if (same) {
            out_length = 0;
            return;
        }
    }
    file = fopen(path, "wb");
    if (!file || fwrite(out_text, 1, out_length, file) != out_length || fclose(file)) {
        fprintf(stderr, "gen_ops: %s cannot be written\n", path);
        exit(1);
    }
    printf("%s\n", path);
    out_length = 0;
}

static void save_below(const char *path)
{
    char whole[4096];
    snprintf(whole, sizeof whole, "%s/%s", folder, path);
    save(whole);
}

/* Breaks the last line behind commas so that it fits into 100 columns with what still follows;
 * the new lines begin under its first parenthesis. */
static void wrap_prototype(void)
{
    char line[4096];
    size_t start = out_length;
    while (start > 0 && out_text[start - 1] != '\n')
        start--;
    snprintf(line, sizeof line, "%s", out_text + start);
    out_length = start;
    int indent = (int)strcspn(line, "(") + 1, column = 0;
    for (char *at = line; *at;) {
        int n = (int)strcspn(at, ",");
        n += at[n] == ',';
        if (column + n > 98) {
            put("\n%*s", indent, "");
            column = indent;
            at += *at == ' ';
            n -= at[-1] == ' ';
        }
        put("%.*s", n, at);
        column += n;
        at += n;
    }
}

static void put_prototype(const row *r, const char *prefix)
{
    put("%s%s%s(cup_context *c", r->visible == 1 ? "cup_tensor *" : "cup_status ", prefix, r->name);
    for (int i = 0; i < r->input_count; i++)
        if (r->inputs[i].list)
            put(", cup_tensor *const *%s, int %s_count", r->inputs[i].name, r->inputs[i].name);
        else
            put(", cup_tensor *%s", r->inputs[i].name);
    for (int i = 0; i < r->attribute_count; i++) {
        put(", %s%s", c_type(&r->attributes[i]), r->attributes[i].name);
        if (is_ints(&r->attributes[i]))
            put(", int %s_count", r->attributes[i].name);
    }
    if (r->visible > 1)
        for (int i = 0; i < r->visible; i++)
            put(", cup_tensor **%s", r->results[i].name);
    put(")");
    wrap_prototype();
}

static void write_header(void)
{
    put("/* cupola/ops.h: every op, generated from src/dispatch/ops.def by `make gen`.\n *\n"
        " * Inputs are borrowed; the result belongs to the innermost scope. An input marked with "
        "?\n"
        " * may be NULL. Axes count from 0, or from the end when negative. Floating-point inputs "
        "of\n"
        " * one call have one dtype; arithmetic is done in at least single precision and rounded\n"
        " * once. A failure returns NULL (or a status) and leaves its sentence in the context.\n"
        " * Where there are several results, the pointer for one not wanted may be NULL. */\n"
        "#ifndef CUPOLA_OPS_H\n#define CUPOLA_OPS_H\n\n#include \"cupola/tensor.h\"\n\n"
        "#ifdef __cplusplus\nextern \"C\" {\n#endif\n");
    const char *section = "";
    for (int i = 0; i < row_count; i++) {
        row *r = &rows[i];
        if (!r->is_public)
            continue;
        if (strcmp(section, r->section))
            put("\n/* %s */\n", section = r->section);
        put("\n");
        char words[900];
        snprintf(words, sizeof words, "(%s) -> %s: %s", r->inputs_text, r->results_text, r->words);
        if (strchr(words, ';'))
            snprintf(words, sizeof words, "(%s): %s", r->inputs_text, r->words);
        put_wrapped(words, "/*", " *");
        put(" */\nCUP_API ");
        put_prototype(r, "cup_");
        put(";\n");
    }
    put("\n#ifdef __cplusplus\n}\n#endif\n#endif\n");
    save("include/cupola/ops.h");
}

static void write_attributes(void)
{
    put("/* Generated from src/dispatch/ops.def by `make gen`: the attributes of each op as a "
        "struct,\n * the descriptors, and the prototypes of the internal ops. */\n"
        "#ifndef CUP_DISPATCH_ATTRIBUTES_H\n#define CUP_DISPATCH_ATTRIBUTES_H\n\n"
        "#include \"cupola/ops.h\"\n#include \"dispatch/op.h\"\n\ntypedef enum cup__op_id {\n");
    for (int i = 0; i < row_count; i++)
        put("    CUP__OP_%s,\n", rows[i].name);
    put("    CUP__OP_COUNT\n} cup__op_id;\n");
    for (int i = 0; i < row_count; i++) {
        row *r = &rows[i];
        put("\nextern const cup__op cup__op_%s;\n", r->name);
        if (r->attribute_count) {
            put("typedef struct cup__%s_attributes {\n", r->name);
            for (int k = 0; k < r->attribute_count; k++)
                if (is_ints(&r->attributes[k]))
                    put("    int64_t %s[8];\n    int %s_count;\n", r->attributes[k].name,
                        r->attributes[k].name);
                else
                    put("    %s%s;\n", c_type(&r->attributes[k]), r->attributes[k].name);
            put("} cup__%s_attributes;\n", r->name);
        }
        if (!r->is_public) {
            put_prototype(r, "cup__");
            put(";\n");
        }
    }
    put("\n#endif\n");
    save_below("dispatch/attributes.h");
}

static void put_attribute_rows(const row *r)
{
    if (!r->attribute_count)
        return;
    put("static const cup__attribute %s_attributes[] = {\n", r->name);
    for (int k = 0; k < r->attribute_count; k++) {
        const part *a = &r->attributes[k];
        char kind[16];
        size_t n = 0;
        for (; a->type[n]; n++)
            kind[n] = (char)toupper((unsigned char)a->type[n]);
        kind[n] = 0;
        put("    {\"%s\", CUP__KIND_%s, offsetof(cup__%s_attributes, %s)},\n", a->name, kind,
            r->name, a->name);
    }
    put("    {NULL, 0, 0}};\n");
}

static void put_function(const row *r)
{
    bool list = r->input_count == 1 && r->inputs[0].list;
    put("\n");
    put_prototype(r, r->is_public ? "cup_" : "cup__");
    put("\n{\n");
    if (r->attribute_count) {
        put("    cup__%s_attributes attributes = {0};\n", r->name);
        for (int k = 0; k < r->attribute_count; k++) {
            const char *name = r->attributes[k].name;
            if (is_ints(&r->attributes[k]))
                put("    attributes.%s_count = cup__take_ints(attributes.%s, %s, %s_count);\n",
                    name, name, name, name);
            else
                put("    attributes.%s = %s;\n", name, name);
        }
    }
    const char *given = r->attribute_count ? "&attributes" : "NULL";
    char inputs[400];
    if (list) {
        snprintf(inputs, sizeof inputs, "%s, %s_count", r->inputs[0].name, r->inputs[0].name);
    } else {
        put("    cup_tensor *const in[] = {");
        for (int k = 0; k < r->input_count; k++)
            put("%s%s", k ? ", " : "", r->inputs[k].name);
        put(r->input_count ? "};\n" : "NULL};\n");
        snprintf(inputs, sizeof inputs, "in, %d", r->input_count);
    }
    if (r->visible == 1) {
        put("    return cup__op_call(c, &cup__rows[CUP__OP_%s], %s, %s, NULL);\n}\n", r->name,
            inputs, given);
        return;
    }
    put("    cup_tensor *out[CUP__MAX_OUT] = {NULL};\n"
        "    bool done = cup__op_call(c, &cup__rows[CUP__OP_%s], %s, %s, out) != NULL;\n",
        r->name, inputs, given);
    for (int k = 0; k < r->visible; k++)
        put("    if (%s)\n        *%s = out[%d];\n", r->results[k].name, r->results[k].name, k);
    put("    return done ? CUP_OK : cup__call_status(c);\n}\n");
}

static void write_table(void)
{
    put("/* Generated from src/dispatch/ops.def by `make gen`. */\n#include <limits.h>\n\n"
        "#include \"dispatch/attributes.h\"\n#include \"dispatch/call.h\"\n\n");
    for (int i = 0; i < row_count; i++)
        put_attribute_rows(&rows[i]);
    put("\nconst cup__row cup__rows[] = {\n");
    for (int i = 0; i < row_count; i++) {
        row *r = &rows[i];
        int least = 0;
        bool list = false;
        for (int k = 0; k < r->input_count; k++) {
            least += !r->inputs[k].optional;
            list |= r->inputs[k].list;
        }
        put("    {\"%s\", &cup__op_%s, \"%s\", \"%s\",\n     \"%s\",\n     \"%s\", %d, ", r->name,
            r->name, r->inputs_text, r->attributes_text, r->results_text, r->words, least);
        if (list)
            put("INT_MAX");
        else
            put("%d", r->input_count);
        put(", %d, %d, %s, ", r->visible, r->result_count, r->is_public ? "true" : "false");
        if (r->attribute_count)
            put("sizeof(cup__%s_attributes), %s_attributes},\n", r->name, r->name);
        else
            put("0, NULL},\n");
    }
    put("    {0}};\n");
    for (int i = 0; i < row_count; i++)
        put_function(&rows[i]);
    save_below("dispatch/table.c");
}

static void write_page(void)
{
    put("# The ops\n\nGenerated from `src/dispatch/ops.def` by `make gen`. An op NAME is NAME.c "
        "in a folder\nof `src/ops` (specification, gradient, CPU) and NAME.cu beside it (GPU). In "
        "C the call\nis `cup_NAME(context, inputs, attributes)`; `?` marks an input that may be "
        "NULL.\n");
    const char *section = "";
    for (int i = 0; i < row_count; i++) {
        row *r = &rows[i];
        if (!r->is_public)
            continue;
        if (strcmp(section, r->section))
            put("\n## %s\n\n| op | inputs | attributes | what it computes |\n|---|---|---|---|\n",
                section = r->section);
        put("| `%s` | %s | %s | %s |\n", r->name, r->inputs_text, r->attributes_text, r->words);
    }
    save("docs/OPS.md");
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: gen_ops OPS.DEF FOLDER\n");
        return 2;
    }
    source_name = argv[1];
    folder = argv[2];
    FILE *file = fopen(source_name, "rb");
    if (!file) {
        fprintf(stderr, "gen_ops: %s cannot be read; run it in the root\n", source_name);
        return 1;
    }
    parse(file);
    fclose(file);
    write_header();
    write_attributes();
    write_table();
    write_page();
    return 0;
}

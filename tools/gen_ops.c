/* Reads src/dispatch/ops.def and writes what follows from its rows: the public prototypes, the
 * attribute structs, the table with the functions behind the prototypes, and the page of ops.
 * Files are only rewritten when their content changes. */
#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "gen_ops.h"

static const char *c_type(const part *attribute)
{
    static const char *const types[][2] = {{"int", "int "},         {"int64", "int64_t "},
                                           {"float", "double "},    {"bool", "bool "},
                                           {"dtype", "cup_dtype "}, {"ints", "const int64_t *"},
                                           {"tensor", "cup_tensor *"},
                                           {"activation", "cup_activation "},
                                           {"padding_mode", "cup_padding_mode "}};
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

/* The number that a default is; 0 where it is words for what an op makes of 0. */
static double number_of(const part *attribute)
{
    char *end;
    double number = strtod(attribute->preset, &end);
    return *end ? 0 : number;
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
    bool is_part = r->is_function && strcmp(prefix, "cup__") == 0;
    put("%s%s%s%s(cup_context *c", r->visible == 1 ? "cup_tensor *" : "cup_status ", prefix,
        r->name, is_part ? "_op" : "");
    for (int i = 0; i < r->input_count; i++)
        if (r->inputs[i].list)
            put(", cup_tensor *const *%s, int %s_count", r->inputs[i].name, r->inputs[i].name);
        else if (!r->inputs[i].is_option)
            put(", cup_tensor *%s", r->inputs[i].name);
    for (int i = 0; i < r->attribute_count; i++) {
        const part *a = &r->attributes[i];
        if (a->is_option)
            continue;
        if (!strcmp(a->name, "shape"))
            put(", int ndim, const int64_t *shape");
        else if (is_ints(a))
            put(", const int64_t *%s, int %s_count", a->name, a->name);
        else
            put(", %s%s", c_type(a), a->name);
    }
    if (r->has_options)
        put(", const cup_%s_options *options", r->name);
    if (r->visible > 1)
        for (int i = 0; i < r->visible; i++)
            put(", cup_tensor **%s", r->results[i].name);
    put(")");
    wrap_prototype();
}

static void put_options(const row *r)
{
    put("typedef struct cup_%s_options {\n    size_t size;\n", r->name);
    size_t widest = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < r->attribute_count; i++) {
            const part *a = &r->attributes[i];
            char field[80];
            if (!a->is_option)
                continue;
            int n = snprintf(field, sizeof field, "%s%s;", is_ints(a) ? "cup_ints " : c_type(a),
                             a->name);
            widest = (size_t)n > widest ? (size_t)n : widest;
            if (pass)
                put("    %-*s /* default: %s */\n", (int)widest, field, a->preset);
        }
    put("} cup_%s_options;\n\n", r->name);
}

static void write_header(void)
{
    put("/* cupola/ops.h: every op, generated from src/dispatch/ops.def by `make gen`.\n *\n"
        " * Inputs are borrowed; the result belongs to the innermost scope. An input marked with "
        "?\n"
        " * may be NULL. Axes count from 0, or from the end when negative. Floating-point inputs "
        "of\n"
        " * one call have one dtype; those of elementwise ops, the two that where takes of and\n"
        " * the inputs of concat are brought to the one that holds the numbers of all, as NumPy\n"
        " * does: f64 for i32 beside floats; nothing holds those of i64 and floats. Arithmetic is\n"
        " * done in at least single precision and rounded once. A failure returns NULL (or a\n"
        " * status) and leaves its sentence in the context. Where there are several results, the\n"
        " * pointer for one not wanted may be NULL.\n *\n"
        " * Arguments stand in one order: the context, tensors, the dtype, the shape, other\n"
        " * attributes, options, results. Options may be NULL. A field that is 0, false or has no\n"
        " * numbers means the default that stands beside it; see CUP_OPTIONS and CUP_INTS:\n *\n"
        " *     y = cup_max_pool2d(c, x, (int64_t[]){3, 3}, 2,\n"
        " *                        CUP_OPTIONS(cup_max_pool2d_options, .stride = CUP_INTS(2),\n"
        " *                                    .ceil_mode = true)); */\n"
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
        char words[2200];
        snprintf(words, sizeof words, "(%s) -> %s: %s", r->inputs_text, r->results_text, r->words);
        if (strchr(words, ';'))
            snprintf(words, sizeof words, "(%s): %s", r->inputs_text, r->words);
        put_wrapped(words, "/*", " *");
        put(" */\n");
        if (r->has_options)
            put_options(r);
        put("CUP_API ");
        put_prototype(r, "cup_");
        put(";\n");
    }
    put("\n#ifdef __cplusplus\n}\n#endif\n#endif\n");
    save("include/cupola/ops.h");
}

static void put_capitals(const char *text)
{
    for (; *text; text++)
        put("%c", toupper((unsigned char)*text));
}

/* The optimizers that programs choose among. */
static void write_methods(void)
{
    put("/* cupola/methods.h: the optimizers, generated from src/dispatch/ops.def by `make gen`.\n"
        " * In parentheses the fields of cup_optimizer_options that each heeds beside those for "
        "all,\n * with what 0 means. */\n"
        "#ifndef CUPOLA_METHODS_H\n#define CUPOLA_METHODS_H\n\n"
        "#ifdef __cplusplus\nextern \"C\" {\n#endif\n\ntypedef enum cup_method {\n");
    const char *separator = "";
    int count = 0;
    for (int i = 0; i < row_count; i++) {
        const row *r = &rows[i];
        char words[2200];
        if (!r->is_optimizer)
            continue;
        int n = snprintf(words, sizeof words, "%s (", r->words);
        for (int k = 0; k + 1 < r->attribute_count; k++) {
            const part *a = &r->attributes[k];
            bool is_flag = !strcmp(a->type, "bool");
            n += snprintf(words + n, sizeof words - (size_t)n, "%s%s%s%s", k ? ", " : "", a->name,
                          is_flag ? "" : ": ", is_flag ? "" : *a->preset ? a->preset : "0");
        }
        snprintf(words + n, sizeof words - (size_t)n, ")");
        put_wrapped(words, "    /*", "     *");
        put(" */");
        put("\n    CUP_METHOD_");
        put_capitals(r->name);
        put(" = %d,\n", count++);
    }
    put("} cup_method;\n\n/* The name of each, as cup_method_find takes it. */\n"
        "#define CUP_METHOD_NAMES \"");
    for (int i = 0; i < row_count; i++)
        if (rows[i].is_optimizer) {
            put("%s%s", separator, rows[i].name);
            separator = "|";
        }
    put("\"\n\n#ifdef __cplusplus\n}\n#endif\n#endif\n");
    save("include/cupola/methods.h");
}

static void write_attributes(void)
{
    put("/* Generated from src/dispatch/ops.def by `make gen`: the attributes of each op as a "
        "struct,\n * the descriptors, and the prototypes of the internal ops. */\n"
        "#ifndef CUP_DISPATCH_ATTRIBUTES_H\n#define CUP_DISPATCH_ATTRIBUTES_H\n\n"
        "#include \"cupola/ops.h\"\n#include \"dispatch/op.h\"\n\ntypedef enum cup__op_id {\n");
    for (int i = 0; i < row_count; i++)
        put("    CUP__OP_%s,\n", rows[i].name);
    put("    CUP__OP_COUNT\n} cup__op_id;\n\n"
        "/* The op of each cup_method, and behind the last CUP__OP_COUNT. */\n"
        "extern const cup__op_id cup__methods[];\n"
        "extern const char *const cup__method_words[]; /* ends with NULL */\n");
    for (int i = 0; i < row_count; i++) {
        row *r = &rows[i];
        put("\nextern const cup__op cup__op_%s;\n", r->name);
        if (r->has_struct) {
            put("typedef struct cup__%s_attributes {\n", r->name);
            for (int k = 0; k < r->attribute_count; k++)
                if (is_ints(&r->attributes[k]))
                    put("    int64_t %s[8];\n    int %s_count;\n", r->attributes[k].name,
                        r->attributes[k].name);
                else if (!r->attributes[k].is_tensor)
                    put("    %s%s;\n", c_type(&r->attributes[k]), r->attributes[k].name);
            put("} cup__%s_attributes;\n", r->name);
        }
        if (!r->is_public || r->is_function) {
            put_prototype(r, "cup__");
            put(";\n");
        }
    }
    put("\n#endif\n");
    save_below("dispatch/attributes.h");
}

static void put_attribute_rows(const row *r)
{
    if (!r->has_struct)
        return;
    put("static const cup__attribute %s_attributes[] = {\n", r->name);
    for (int k = 0; k < r->attribute_count; k++) {
        const part *a = &r->attributes[k];
        char kind[16];
        size_t n = 0;
        if (a->is_tensor)
            continue;
        for (; a->type[n]; n++)
            kind[n] = (char)toupper((unsigned char)a->type[n]);
        kind[n] = 0;
        put("    {\"%s\", CUP__KIND_%s, offsetof(cup__%s_attributes, %s), ", a->name, kind, r->name,
            a->name);
        if (a->is_option)
            put("offsetof(cup_%s_options, %s), ", r->name, a->name);
        else
            put("0, ");
        put("%s},\n", number_of(a) != 0 ? a->preset : "0");
    }
    put("    {NULL, 0, 0, 0, 0}};\n");
}

/* The attributes of a call, from its arguments and its options. */
static void put_attribute_values(const row *r)
{
    if (r->has_options)
        put("    cup_%s_options given;\n"
            "    bool taken = cup__take_options(c, \"%s\", &given, sizeof given, options);\n",
            r->name, r->name);
    if (r->has_struct)
        put("    cup__%s_attributes attributes = {0};\n", r->name);
    for (int k = 0; k < r->attribute_count; k++) {
        const part *a = &r->attributes[k];
        const char *n = a->name;
        if (a->is_tensor)
            continue;
        if (is_ints(a))
            put(a->is_option ? "    attributes.%s_count = cup__take_ints(attributes.%s, "
                               "given.%s.values, given.%s.count);\n"
                : strcmp(n, "shape") != 0
                    ? "    attributes.%s_count = cup__take_ints(attributes.%s, %s, %s_count);\n"
                    : "    attributes.%s_count = cup__take_ints(attributes.%s, %s, ndim);\n",
                n, n, n, n);
        else if (a->is_option && number_of(a) != 0)
            put("    attributes.%s = given.%s != 0 ? given.%s : %s;\n", n, n, n, a->preset);
        else
            put("    attributes.%s = %s%s;\n", n, a->is_option ? "given." : "", n);
    }
}

static void put_function(const row *r)
{
    bool list = r->input_count == 1 && r->inputs[0].list;
    put("\n");
    put_prototype(r, r->is_public && !r->is_function ? "cup_" : "cup__");
    put("\n{\n");
    put_attribute_values(r);
    const char *given = r->has_struct ? "&attributes" : "NULL";
    char inputs[400];
    if (list) {
        snprintf(inputs, sizeof inputs, "%s, %s_count", r->inputs[0].name, r->inputs[0].name);
    } else {
        put("    cup_tensor *const in[] = {");
        for (int k = 0; k < r->input_count; k++)
            put("%s%s%s", k ? ", " : "", r->inputs[k].is_option ? "given." : "", r->inputs[k].name);
        put(r->input_count ? "};\n" : "NULL};\n");
        snprintf(inputs, sizeof inputs, "in, %d", r->input_count);
    }
    const char *when = r->has_options ? "!taken ? NULL : " : "";
    if (r->visible == 1) {
        put("    return %scup__op_call(c, &cup__rows[CUP__OP_%s], %s, %s, NULL);\n}\n", when,
            r->name, inputs, given);
        return;
    }
    put("    cup_tensor *out[CUP__MAX_OUT] = {NULL};\n"
        "    bool done = %scup__op_call(c, &cup__rows[CUP__OP_%s], %s, %s, out) != NULL;\n",
        r->has_options ? "taken && " : "", r->name, inputs, given);
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
        int least = 0, arguments = 0;
        bool list = false;
        for (int k = 0; k < r->input_count; k++) {
            least += !r->inputs[k].optional;
            list |= r->inputs[k].list;
            arguments += !r->inputs[k].is_option;
        }
        put("    {\"%s\", &cup__op_%s, \"%s\", \"", r->name, r->name, r->inputs_text);
        const char *separator = "";
        for (int k = 0; k < r->attribute_count; k++)
            if (!r->attributes[k].is_tensor) {
                put("%s%s %s", separator, r->attributes[k].type, r->attributes[k].name);
                separator = ", ";
            }
        put("\",\n     \"%s\",\n     \"%s\", %d, ", r->results_text, r->words, least);
        if (list)
            put("INT_MAX");
        else
            put("%d", r->input_count);
        put(", %d, %d, %d, %s, ", arguments, r->visible, r->result_count,
            r->is_public ? "true" : "false");
        if (r->has_struct)
            put("sizeof(cup__%s_attributes), %s_attributes, ", r->name, r->name);
        else
            put("0, NULL, ");
        if (r->has_options)
            put("sizeof(cup_%s_options)},\n", r->name);
        else
            put("0},\n");
    }
    put("    {0}};\n\nconst cup__op_id cup__methods[] = {");
    for (int i = 0; i < row_count; i++)
        if (rows[i].is_optimizer)
            put("CUP__OP_%s, ", rows[i].name);
    put("CUP__OP_COUNT};\nconst char *const cup__method_words[] = {");
    for (int i = 0; i < row_count; i++)
        if (rows[i].is_optimizer)
            put("\"%s\", ", rows[i].name);
    put("NULL};\n");
    for (int i = 0; i < row_count; i++)
        put_function(&rows[i]);
    save_below("dispatch/table.c");
}

static void write_page(void)
{
    put("# The ops\n\nGenerated from `src/dispatch/ops.def` by `make gen`. An op NAME is NAME.c "
        "in a folder\nof `src/ops` (specification, gradient, CPU) and NAME.cu beside it (GPU). In "
        "C the call\nis `cup_NAME(context, inputs, attributes)`; `?` marks an input that may be "
        "NULL, and attributes\nwith a default are fields of the call's `cup_NAME_options`. "
        "[GRADIENTS.md](GRADIENTS.md) says\nwhich have gradients, and second derivatives.\n");
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
    folder = argv[2];
    FILE *file = fopen(argv[1], "rb");
    if (!file) {
        fprintf(stderr, "gen_ops: %s cannot be read; run it in the root\n", argv[1]);
        return 1;
    }
    read_rows(file, argv[1]);
    fclose(file);
    write_header();
    write_methods();
    write_attributes();
    write_table();
    write_page();
    return 0;
}

/* Reads the rows of src/dispatch/ops.def, and refuses what could not be generated from. */
#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "gen_ops.h"

#define MOST_ROWS 512

row rows[MOST_ROWS];
int row_count;
static const char *source_name;
static int line_number;

void fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: ", source_name, line_number);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static void skip_blanks(const char **at)
{
    while (isspace((unsigned char)**at))
        (*at)++;
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

/* What stands behind a = up to the next part. */
static void take_preset(const char **at, char *out, size_t size)
{
    skip_blanks(at);
    if (**at != '=')
        return;
    (*at)++;
    skip_blanks(at);
    size_t n = strcspn(*at, ",");
    while (n > 0 && isspace((unsigned char)(*at)[n - 1]))
        n--;
    if (n == 0 || n >= size)
        fail("a default is missing, or too long, at: %.20s", *at);
    memcpy(out, *at, n);
    *at += n;
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
        if (typed)
            take_preset(&at, p->preset, sizeof p->preset);
    }
}

/* An optional input that the attributes name, as a tensor, is a field of the options, at that place
 * among them; so is what only a function that is written by hand looks at. */
static void place_tensor(row *r, part *a)
{
    bool is_choice = !strcmp(a->type, "padding_mode") || !strcmp(a->type, "activation");
    if (strcmp(a->type, "tensor") != 0 && !is_choice)
        return;
    a->is_tensor = true;
    if (r->is_function && a->preset[0])
        return;
    for (int i = 0; i < r->input_count; i++)
        if (!strcmp(r->inputs[i].name, a->name) && r->inputs[i].optional && a->preset[0]) {
            r->inputs[i].is_option = true;
            return;
        }
    fail("%s: the tensor %s must be an optional input, with what is done without it as its default",
         r->name, a->name);
}

/* Attributes are arguments of the call; where there are over two, those that have a default are
 * fields of its options. The dtype and shape of a tensor that is made from none do not count. */
static void place_attributes(row *r)
{
    int counted = 0, others = 0;
    for (int i = 0; i < r->attribute_count; i++) {
        part *a = &r->attributes[i];
        bool is_dtype = !strcmp(a->type, "dtype"), is_shape = !strcmp(a->name, "shape");
        a->is_option = a->preset[0] && !r->is_optimizer;
        place_tensor(r, a);
        r->has_struct |= !a->is_tensor;
        r->has_options |= a->is_option;
        counted += r->input_count > 0 || !(is_dtype || is_shape);
        others += !is_dtype && !is_shape;
        if (r->is_public && ((is_dtype && i > 0) || (is_shape && others > 0)))
            fail("%s: a dtype comes first, then a shape, then all else", r->name);
        if (a->is_option && !strcmp(a->name, "size"))
            fail("%s: size is that of the options; give the attribute another name", r->name);
        if (!strcmp(a->type, "bool") && a->preset[0] && strcmp(a->preset, "false") != 0)
            fail("%s: the default of %s must be false, as a field is that was not set", r->name,
                 a->name);
    }
    if (r->has_options && !r->is_public)
        fail("%s: an internal op is called with all its attributes, so none has a default",
             r->name);
    if (r->has_options != (r->is_public && counted > 2))
        fail("%s: with up to two attributes none has a default; with more, those that are not "
             "needed have one",
             r->name);
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

/* The value of a method is its place among the optimizers. */
static void take_method(const char **at, const row *r)
{
    int before = 0;
    for (int i = 0; i < row_count; i++)
        before += rows[i].is_optimizer && &rows[i] != r;
    skip(at);
    char *end;
    if (strtol(*at, &end, 10) != before || end == *at)
        fail("%s: the value of this method must be %d; new ones come last", r->name, before);
    *at = end;
}

/* OPTIMIZER(name, value, (attributes), "words"): an internal op that changes a list of inputs. */
static void take_optimizer(const char **at, row *r)
{
    char attributes[sizeof r->attributes_text - 20];
    take_method(at, r);
    take_group(at, attributes, sizeof attributes);
    snprintf(r->inputs_text, sizeof r->inputs_text, "x...");
    snprintf(r->attributes_text, sizeof r->attributes_text, "%s%sbool stochastic", attributes,
             *attributes ? ", " : "");
}

static void parse_row(const char *at, const char *section)
{
    if (row_count == MOST_ROWS)
        fail("more than %d rows", MOST_ROWS);
    row *r = &rows[row_count++];
    r->is_function = !strncmp(at, "FUNCTION(", 9);
    r->is_public = r->is_function || !strncmp(at, "OP(", 3);
    r->is_optimizer = !strncmp(at, "OPTIMIZER(", 10);
    at = strchr(at, '(') + 1;
    snprintf(r->section, sizeof r->section, "%s", section);
    take_name(&at, r->name, sizeof r->name);
    if (r->is_optimizer) {
        take_optimizer(&at, r);
    } else {
        take_group(&at, r->inputs_text, sizeof r->inputs_text);
        take_group(&at, r->attributes_text, sizeof r->attributes_text);
        take_group(&at, r->results_text, sizeof r->results_text);
    }
    take_string(&at, r->words, sizeof r->words);
    r->input_count = parse_parts(r->inputs_text, r->inputs, false);
    r->attribute_count = parse_parts(r->attributes_text, r->attributes, true);
    r->result_count = parse_parts(r->results_text, r->results, false);
    for (int i = 0; i < r->result_count; i++)
        r->visible += !r->results[i].hidden;
    check_row(r, at);
    place_attributes(r);
    for (int i = 0; i < r->attribute_count; i++)
        r->has_struct |= !r->attributes[i].is_tensor;
}

void read_rows(FILE *file, const char *name)
{
    source_name = name;
    char line[4096], section[64] = "";
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
        if (!strncmp(at, "OP(", 3) || !strncmp(at, "INTERNAL(", 9) ||
            !strncmp(at, "FUNCTION(", 9) || !strncmp(at, "OPTIMIZER(", 10)) {
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
            fail("a row begins with OP, FUNCTION, INTERNAL, OPTIMIZER or SECTION");
        }
    }
}


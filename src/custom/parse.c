/* Formulas from text: one function a level of precedence. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "custom/graph.h"
#include "cupola/expr.h"

#define TEXT_MOST 65536

typedef struct parser {
    cup__graph *graph;
    const char *text, *at;
    cup__names_in_text locals; /* the last of equal names counts */
    int depth;
} parser;

static const struct {
    const char *name, *arguments, *text;
} macros[] = {
#define MACRO(name, arguments, text) {name, arguments, text},
#include "custom/macros.def"
#undef MACRO
};
#define MACROS (sizeof macros / sizeof *macros)

/* Fails at a place in the text, of which the message quotes what comes next. */
__attribute__((format(printf, 3, 4))) static int fail_at(parser *p, const char *at,
                                                         const char *format, ...)
{
    char words[256];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    int shown = (int)strcspn(at, "\n");
    if (*at)
        cup__fail(p->graph->error, CUP_ARGUMENT, "formula: at character %d, \"%.*s%s\": %s",
                  (int)(at - p->text) + 1, shown > 24 ? 24 : shown, at, shown > 24 ? ".." : "",
                  words);
    else
        cup__fail(p->graph->error, CUP_ARGUMENT, "formula: at its end: %s", words);
    return -1;
}

static void skip_blanks(parser *p)
{
    p->at += strspn(p->at, " \t\r\n");
}

static bool take(parser *p, const char *sign)
{
    skip_blanks(p);
    size_t length = strlen(sign);
    if (strncmp(p->at, sign, length))
        return false;
    p->at += length;
    return true;
}

static int expect(parser *p, const char *sign, const char *where)
{
    if (take(p, sign))
        return 0;
    return fail_at(p, p->at, "\"%s\" is missing %s", sign, where);
}

/* Names. */

static size_t name_length(const char *at)
{
    size_t length = 0;
    if (isalpha((unsigned char)*at) || *at == '_')
        while (isalnum((unsigned char)at[length]) || at[length] == '_')
            length++;
    return length;
}

static int find_name(const cup__names_in_text *names, const char *name, size_t length)
{
    for (size_t i = names->count; i-- > 0;)
        if (strlen(names->names[i].name) == length && !memcmp(names->names[i].name, name, length))
            return names->names[i].node;
    return -1;
}

static int add_local(parser *p, const char *name, size_t length, int node)
{
    if (length >= sizeof p->locals.names->name)
        return fail_at(p, name, "a name has at most %zu letters",
                       sizeof p->locals.names->name - 1);
    if (!cup__grow(&p->locals.names, &p->locals.capacity, p->locals.count,
                   sizeof *p->locals.names)) {
        cup__fail(p->graph->error, CUP_MEMORY, "out of host memory for a formula");
        return -1;
    }
    cup__scope_name *to = &p->locals.names[p->locals.count++];
    memset(to, 0, sizeof *to);
    memcpy(to->name, name, length);
    to->node = node;
    return 0;
}

static int parse_sum(parser *p);
static int parse_any(parser *p);

/* Functions made of others: their text, with the arguments as names. */
static int expand(cup__graph *g, size_t macro, const int *arguments, int count)
{
    parser p = {.graph = g, .text = macros[macro].text, .at = macros[macro].text};
    const char *name = macros[macro].arguments;
    int node = 0;
    for (int i = 0; i < count && node >= 0; i++) {
        size_t length = strcspn(name, " ");
        node = add_local(&p, name, length, arguments[i]);
        name += length + (name[length] == ' ');
    }
    if (node >= 0)
        node = parse_any(&p);
    cup__free(p.locals.names);
    return node;
}

static int words_in(const char *text)
{
    int count = 1;
    for (; *text; text++)
        count += *text == ' ';
    return count;
}

/* The number of arguments a function takes; -1: there is no such function. */
static int arity_of(const char *name, size_t length, size_t *macro, int *function)
{
    *macro = MACROS;
    *function = -1;
    for (int f = CUP__PARAMETER + 1; f < CUP__FUNCTIONS; f++)
        if (strlen(cup__functions[f].name) == length &&
            !memcmp(cup__functions[f].name, name, length)) {
            *function = f;
            return cup__functions[f].arity;
        }
    for (size_t i = 0; i < MACROS; i++)
        if (strlen(macros[i].name) == length && !memcmp(macros[i].name, name, length)) {
            *macro = i;
            return words_in(macros[i].arguments);
        }
    return -1;
}

static int apply(cup__graph *g, size_t macro, int function, const int *x, int count)
{
    if (function < 0)
        return expand(g, macro, x, count);
    return cup__graph_add(g, (cup__function)function, x[0], count > 1 ? x[1] : -1,
                          count > 2 ? x[2] : -1);
}

int cup__apply(cup__graph *g, const char *name, const int *arguments, int count)
{
    size_t macro;
    int function, arity = arity_of(name, strlen(name), &macro, &function);
    for (int i = 0; i < count; i++)
        if (arguments[i] < 0)
            return -1;
    if (arity == count)
        return apply(g, macro, function, arguments, count);
    if (arity < 0)
        cup__fail(g->error, CUP_ARGUMENT, "formula: there is no function \"%.40s\"", name);
    else
        cup__fail(g->error, CUP_ARGUMENT, "formula: %.40s takes %d terms, not %d", name, arity,
                  count);
    return -1;
}

static int apply_at(parser *p, const char *name, int a, int b)
{
    if (a < 0 || b < 0)
        return -1;
    return cup__apply(p->graph, name, (int[]){a, b}, 2);
}

static int parse_call(parser *p, const char *name, size_t length)
{
    size_t macro;
    int function, arity = arity_of(name, length, &macro, &function), x[3] = {-1, -1, -1};
    if (arity < 0)
        return fail_at(p, name, "there is no function \"%.*s\"", (int)length, name);
    for (int i = 0; i < arity; i++) {
        if (i && expect(p, ",", "between the arguments") < 0)
            return -1;
        x[i] = parse_any(p);
        if (x[i] < 0)
            return -1;
    }
    if (!take(p, ")")) {
        skip_blanks(p);
        return *p->at == ',' ? fail_at(p, p->at, "%.*s takes %d argument%s", (int)length, name,
                                       arity, arity == 1 ? "" : "s")
                             : fail_at(p, p->at, "\")\" is missing after the arguments of %.*s",
                                       (int)length, name);
    }
    return apply(p->graph, macro, function, x, arity);
}

static bool is_fold(const char *name, size_t length)
{
    return (length == 3 && (!memcmp(name, "sum", 3) || !memcmp(name, "min", 3) ||
                            !memcmp(name, "max", 3))) ||
           (length == 4 && !memcmp(name, "mean", 4));
}

static int parse_name(parser *p)
{
    const char *name = p->at;
    size_t length = name_length(name);
    p->at += length;
    if (take(p, "("))
        return parse_call(p, name, length);
    int node = find_name(&p->locals, name, length);
    if (node >= 0)
        return node;
    if (length == 2 && !memcmp(name, "pi", 2))
        return cup__graph_number(p->graph, 3.14159265358979323846);
    if (length == 3 && !memcmp(name, "inf", 3))
        return cup__graph_number(p->graph, __builtin_inf());
    if (is_fold(name, length) && *p->at == '[')
        return fail_at(p, name, "a fold can only be around a whole result");
    return fail_at(p, name, "there is no input, parameter or name \"%.*s\"",
                   length > 40 ? 40 : (int)length, name);
}

static int parse_primary(parser *p)
{
    skip_blanks(p);
    if (isdigit((unsigned char)*p->at) || (*p->at == '.' && isdigit((unsigned char)p->at[1]))) {
        char *end;
        const char *from = p->at;
        double value = cup__text_number(from, &end);
        p->at = end;
        if (from[0] == '0' && (from[1] == 'x' || from[1] == 'X'))
            return fail_at(p, from, "numbers are decimal");
        if (name_length(p->at))
            return fail_at(p, p->at, "an operator is missing after the number");
        return cup__graph_number(p->graph, value);
    }
    if (take(p, "(")) {
        int node = parse_any(p);
        return node < 0 || expect(p, ")", "here") < 0 ? -1 : node;
    }
    if (name_length(p->at))
        return parse_name(p);
    return fail_at(p, p->at, "a number, a name or \"(\" is missing");
}

static int parse_unary(parser *p);

static int parse_power(parser *p)
{
    int base = parse_primary(p);
    if (base < 0 || !take(p, "^"))
        return base;
    return apply_at(p, "^", base, parse_unary(p));
}

/* Every way down leads through here, so this bounds how deep a text can nest. */
static int parse_unary(parser *p)
{
    if (p->depth == CUP_EXPR_DEPTH)
        return fail_at(p, p->at, "it is nested more than %d deep; name parts of it, as in "
                                 "\"h = x * y; h + 1\"",
                       CUP_EXPR_DEPTH);
    p->depth++;
    int node;
    skip_blanks(p);
    if (take(p, "-"))
        node = cup__graph_add(p->graph, CUP__NEG, parse_unary(p), -1, -1);
    else if (*p->at == '!' && p->at[1] != '=' && take(p, "!"))
        node = cup__graph_add(p->graph, CUP__NOT, parse_unary(p), -1, -1);
    else
        node = parse_power(p);
    p->depth--;
    return node;
}

static int parse_product(parser *p)
{
    int node = parse_unary(p);
    while (node >= 0) {
        if (take(p, "*"))
            node = apply_at(p, "*", node, parse_unary(p));
        else if (take(p, "/"))
            node = apply_at(p, "/", node, parse_unary(p));
        else
            break;
    }
    return node;
}

static int parse_sum(parser *p)
{
    int node = parse_product(p);
    while (node >= 0) {
        if (take(p, "+"))
            node = apply_at(p, "+", node, parse_product(p));
        else if (take(p, "-"))
            node = apply_at(p, "-", node, parse_product(p));
        else
            break;
    }
    return node;
}

static int parse_comparison(parser *p)
{
    static const char *const signs[] = {"==", "!=", "<=", ">=", "<", ">"};
    int node = parse_sum(p);
    for (size_t i = 0; i < sizeof signs / sizeof *signs && node >= 0; i++) {
        if (!take(p, signs[i]))
            continue;
        node = apply_at(p, signs[i], node, parse_sum(p));
        skip_blanks(p);
        if (node >= 0 && (*p->at == '<' || *p->at == '>'))
            return fail_at(p, p->at, "comparisons do not chain; write a < b && b < c");
        break;
    }
    return node;
}

static int parse_and(parser *p)
{
    int node = parse_comparison(p);
    while (node >= 0 && take(p, "&&"))
        node = apply_at(p, "&&", node, parse_comparison(p));
    return node;
}

static int parse_any(parser *p)
{
    int node = parse_and(p);
    while (node >= 0 && take(p, "||"))
        node = apply_at(p, "||", node, parse_and(p));
    return node;
}

/* What ends a result: a dtype, then a fold. */

static int parse_axes(parser *p, cup__ending *ending)
{
    while (!take(p, "]")) {
        const char *at = p->at;
        if (take(p, "keep")) {
            ending->keep = true;
        } else {
            char *end;
            bool signs = *at == '-';
            if (!isdigit((unsigned char)at[signs]) || ending->axis_count == 8)
                return fail_at(p, at, "axes are up to 8 whole numbers, then perhaps \"keep\"");
            long axis = strtol(at, &end, 10);
            ending->axes[ending->axis_count++] = axis > 99 ? 99 : axis < -99 ? -99 : (int)axis;
            p->at = end;
        }
        skip_blanks(p);
        if (*p->at != ']' && expect(p, ",", "between the axes") < 0)
            return -1;
    }
    return 0;
}

static int parse_fold(parser *p, cup__ending *ending)
{
    static const char *const names[] = {"", "sum", "mean", "min", "max"};
    skip_blanks(p);
    const char *name = p->at;
    size_t length = name_length(name);
    const char *after = name + length + strspn(name + length, " \t\r\n");
    if (!is_fold(name, length) || *after != '[')
        return parse_any(p);
    for (int i = CUP_EXPR_FOLD_SUM; i <= CUP_EXPR_FOLD_MAX; i++)
        if (strlen(names[i]) == length && !memcmp(names[i], name, length))
            ending->fold = i;
    p->at = after + 1;
    if (parse_axes(p, ending) < 0 || expect(p, "(", "after the axes") < 0)
        return -1;
    int node = parse_any(p);
    if (node < 0 || expect(p, ")", "after what is folded") < 0)
        return -1;
    return node;
}

static bool is_end(parser *p)
{
    skip_blanks(p);
    return !*p->at || *p->at == ',' || *p->at == ';';
}

/* A dtype around a whole result; one around a part of it is a function like others. */
static int parse_result(parser *p, cup__ending *ending)
{
    static const cup_dtype dtypes[] = {CUP_F32, CUP_F64, CUP_F16, CUP_BF16, CUP_BOOL};
    *ending = (cup__ending){.dtype = -1};
    skip_blanks(p);
    const char *from = p->at;
    size_t length = name_length(from);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        const char *name = cup_dtype_name(dtypes[i]);
        if (strlen(name) != length || memcmp(name, from, length))
            continue;
        p->at += length;
        if (!take(p, "("))
            break;
        int node = parse_fold(p, ending);
        if (node < 0 || expect(p, ")", "after the result") < 0)
            return -1;
        ending->dtype = (int)dtypes[i];
        if (is_end(p))
            return node;
        if (ending->fold)
            return fail_at(p, p->at, "a fold can only be around a whole result");
        break;
    }
    p->at = from;
    *ending = (cup__ending){.dtype = -1};
    return parse_fold(p, ending);
}

/* `name = formula;`, as often as it comes. */
static int parse_locals(parser *p)
{
    for (;;) {
        skip_blanks(p);
        const char *name = p->at;
        size_t length = name_length(name);
        const char *sign = name + length + strspn(name + length, " \t\r\n");
        if (!length || *sign != '=' || sign[1] == '=')
            return 0;
        p->at = sign + 1;
        int node = parse_any(p);
        if (node < 0 || expect(p, ";", "after what a name stands for") < 0 ||
            add_local(p, name, length, node) < 0)
            return -1;
    }
}

static int parse_results(parser *p, cup__parsed *results, int most)
{
    int count = 0;
    cup__parsed one;
    do {
        if (count == (most ? most : 1))
            return most ? fail_at(p, p->at, "there can be %d results at most", most)
                        : fail_at(p, p->at, "this must be one formula");
        cup__parsed *to = most ? &results[count] : &one;
        to->node = parse_result(p, &to->ending);
        if (to->node < 0)
            return -1;
        if (!most && (to->ending.fold || to->ending.dtype >= 0))
            return fail_at(p, p->text, "a term has no fold and no dtype of its own");
        count++;
    } while (take(p, ","));
    skip_blanks(p);
    if (*p->at)
        return fail_at(p, p->at, "this does not belong to a formula");
    return most ? count : one.node;
}

int cup__parse(cup__graph *g, const cup__names_in_text *given, const char *text,
               cup__parsed *results, int most)
{
    parser p = {.graph = g, .text = text, .at = text};
    if (strnlen(text, TEXT_MOST + 1) > TEXT_MOST) {
        cup__fail(g->error, CUP_UNSUPPORTED, "formula: its text has more than %d bytes", TEXT_MOST);
        return -1;
    }
    int done = 0;
    for (size_t i = 0; i < given->count && done >= 0; i++)
        done = add_local(&p, given->names[i].name, strlen(given->names[i].name),
                         given->names[i].node);
    if (done >= 0)
        done = parse_locals(&p);
    if (done >= 0)
        done = parse_results(&p, results, most);
    cup__free(p.locals.names);
    return done;
}

/* cupola ops: the table of ops. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "cli/exit.h"
#include "cli/help.h"
#include "cli/json.h"
#include "cli/op_names.h"
#include "cli/options.h"
#include "cli/pages.h"
#include "cli/terminal.h"

static const char *const place_names[] = {[CUP__CPU] = "cpu", [CUP__CUDA] = "cuda"};

static bool is_wanted(const cli_call *call, const cup__row *row)
{
    return op_is_named(row, call->operands, call->operand_count, false);
}

static void write_row(cup__json_writer *writer, const cup__row *row)
{
    cup__json_open(writer, NULL, CUP__JSON_OBJECT);
    cup__json_add_string(writer, "name", row->name);
    cup__json_add_string(writer, "inputs", row->inputs);
    cup__json_add_string(writer, "attributes", row->attributes_text);
    cup__json_add_string(writer, "results", row->results);
    cup__json_add_string(writer, "computes", row->words);
    cup__json_add_boolean(writer, "gradient", row->op->gradient != NULL);
    cup__json_add_boolean(writer, "second_derivatives", row->op->composed != NULL);
    cup__json_add_boolean(writer, "public", row->is_public);
    cup__json_open(writer, "implementations", CUP__JSON_ARRAY);
    for (const cup__impl *impl = row->op->impls; impl && impl->name; impl++) {
        cup__json_open(writer, NULL, CUP__JSON_OBJECT);
        cup__json_add_string(writer, "name", impl->name);
        cup__json_add_string(writer, "place", place_names[impl->place]);
        cup__json_close(writer);
    }
    cup__json_close(writer);
    cup__json_close(writer);
}

static int write_document(const cli_call *call)
{
    cup__json_writer writer;
    json_begin(&writer, call->verb->name);
    cup__json_open(&writer, "ops", CUP__JSON_ARRAY);
    for (const cup__row *row = cup__rows; row->name; row++)
        if (is_wanted(call, row))
            write_row(&writer, row);
    cup__json_close(&writer);
    return json_end(&writer);
}

/* The names of public ops that have these, in lines of 100 columns. */
static void list_ops(cup__text *page, bool gradient, bool second)
{
    size_t column = 0;
    for (const cup__row *row = cup__rows; row->name; row++) {
        const cup__op *op = row->op;
        if (!row->is_public || !op->gradient != !gradient || !op->composed != !second)
            continue;
        size_t length = strlen(row->name) + 3;
        cup__text_add(page, column + length > 98 ? ",\n" : column ? ", " : "");
        cup__text_add(page, "`%s`", row->name);
        column = column + length > 98 ? length : column + length + 1;
    }
    cup__text_add(page, ".\n");
}

void gradients_page(cup__text *page)
{
    cup__text_add(page, "# Which ops have gradients\n\nGenerated from the ops by `make gen`; "
                        "`cupola ops NAME` says the same of one.\n\n## Gradients, and second "
                        "derivatives\n\nThat is, `cup_gradients_recorded` goes through "
                        "them.\n\n");
    list_ops(page, true, true);
    cup__text_add(page, "\nOf these, `attention` and `qkv_attention` with dropout, `cross_entropy` "
                        "in place, and `batchnorm`\nwhose running mean or variance leads to a "
                        "parameter are refused.\n\n## Gradients alone\n\n");
    list_ops(page, true, false);
    cup__text_add(page, "\n## No gradient\n\nA call of one of these where an input leads to "
                        "a parameter is refused if its results are\nfloats.\n\n");
    list_ops(page, false, false);
}

static void print_details(const cup__row *row)
{
    printf("%s%s%s(%s)", color(stdout, COLOR_BOLD), row->name, color(stdout, COLOR_OFF),
           row->inputs);
    printf("%s%s -> %s\n", *row->attributes_text ? "; " : "", row->attributes_text, row->results);
    printf("    %s\n    gradient: %s\n    implementations, best first:", row->words,
           row->op->composed   ? "yes, and second derivatives"
           : row->op->gradient ? "yes"
                               : "no");
    for (const cup__impl *impl = row->op->impls; impl && impl->name; impl++)
        printf(" %s on %s,", impl->name, place_names[impl->place]);
    puts(row->op->view ? " view" : " specification");
}

static void print_line(const cup__row *row)
{
    char words[1024];
    snprintf(words, sizeof words, "(%s%s%s): %s", row->inputs, *row->attributes_text ? "; " : "",
             row->attributes_text, row->words);
    help_row(stdout, row->name, words);
}

static int run(cli_call *call)
{
    int code = op_names_check(call->operands, call->operand_count);
    if (code)
        return code;
    if (call->json)
        return write_document(call);
    for (const cup__row *row = cup__rows; row->name; row++)
        if (is_wanted(call, row))
            (call->operand_count ? print_details : print_line)(row);
    return CLI_OK;
}

const cli_verb verb_ops = {
    .name = "ops",
    .synopsis = "[NAME]... [OPTION]...",
    .words = "the table of ops",
    .text = "Prints every op with its inputs, its attributes and what it computes. With names, "
            "prints these ops alone, with their implementations in the order in which they are "
            "tried.\n\n"
            "An op's C call is cup_NAME(context, inputs, attributes); see cupola/ops.h.",
    .examples = "How gelu can be computed:\ncupola ops gelu\n"
                "The names alone:\ncupola ops --json | jq -r '.ops[].name'\n",
    .operand_most = INT_MAX,
    .run = run,
};

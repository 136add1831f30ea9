/* cupola ops: the table of ops. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "cli/common/exit.h"
#include "cli/common/help.h"
#include "cli/common/json.h"
#include "cli/common/op_names.h"
#include "cli/common/options.h"
#include "cli/common/pages.h"
#include "cli/common/terminal.h"
#include "cupola/facts.h"

static bool is_wanted(const cli_call *call, int op)
{
    return op_is_named(op, call->operands, call->operand_count, false);
}

static const char *place_of(const cup_op_way *way)
{
    return way->is_cuda ? "cuda" : "cpu";
}

static void write_op(cli_json *json, int number, const cup_op_facts *op)
{
    cup_op_way way;
    json_open_object(json, NULL);
    json_add_string(json, "name", op->name);
    json_add_string(json, "inputs", op->inputs);
    json_add_string(json, "attributes", op->attributes);
    json_add_string(json, "results", op->results);
    json_add_string(json, "computes", op->words);
    json_add_boolean(json, "gradient", op->has_gradient);
    json_add_boolean(json, "second_derivatives", op->has_second_derivatives);
    json_add_boolean(json, "public", op->is_public);
    json_open_array(json, "implementations");
    for (int i = 0; cup_op_way_at(number, i, &way); i++) {
        json_open_object(json, NULL);
        json_add_string(json, "name", way.name);
        json_add_string(json, "place", place_of(&way));
        json_close(json);
    }
    json_close(json);
    json_close(json);
}

static int write_document(const cli_call *call)
{
    cli_json json;
    cup_op_facts op;
    json_begin(&json, call->verb->name);
    json_open_array(&json, "ops");
    for (int i = 0; cup_op_at(i, &op); i++)
        if (is_wanted(call, i))
            write_op(&json, i, &op);
    json_close(&json);
    return json_end(&json);
}

/* The names of public ops that have these, in lines of 100 columns. */
static void list_ops(FILE *page, bool gradient, bool second)
{
    size_t column = 0;
    cup_op_facts op;
    for (int i = 0; cup_op_at(i, &op); i++) {
        if (!op.is_public || op.has_gradient != gradient || op.has_second_derivatives != second)
            continue;
        size_t length = strlen(op.name) + 3;
        fputs(column + length > 98 ? ",\n" : column ? ", " : "", page);
        fprintf(page, "`%s`", op.name);
        column = column + length > 98 ? length : column + length + 1;
    }
    fputs(column ? ".\n" : "None.\n", page);
}

void gradients_page(FILE *page)
{
    fprintf(page, "# Which ops have gradients\n\nGenerated from the ops by `make gen`; "
                  "`cupola ops NAME` says the same of one.\n\n## Gradients, and second "
                  "derivatives\n\nThat is, `cup_gradients_recorded` goes through "
                  "them.\n\n");
    list_ops(page, true, true);
    fprintf(page, "\nOf these, `attention` and `qkv_attention` with offsets or `key_blocks`, "
                  "`cross_entropy` in place,\nand `batchnorm` whose running mean or variance leads "
                  "to a parameter are refused.\n\n## Gradients alone\n\n");
    list_ops(page, true, false);
    fprintf(page, "\n## No gradient\n\nA call of one of these where an input leads to "
                  "a parameter is refused if its results are\nfloats.\n\n");
    list_ops(page, false, false);
}

static void print_details(int number, const cup_op_facts *op)
{
    cup_op_way way;
    printf("%s%s%s(%s)", color(stdout, COLOR_BOLD), op->name, color(stdout, COLOR_OFF), op->inputs);
    printf("%s%s -> %s\n", *op->attributes ? "; " : "", op->attributes, op->results);
    printf("    %s\n    gradient: %s\n    implementations, best first:", op->words,
           op->has_second_derivatives ? "yes, and second derivatives"
           : op->has_gradient         ? "yes"
                                      : "no");
    for (int i = 0; cup_op_way_at(number, i, &way); i++)
        printf(" %s on %s,", way.name, place_of(&way));
    puts(op->is_view ? " view" : " specification");
}

static void print_line(const cup_op_facts *op)
{
    char words[1024];
    snprintf(words, sizeof words, "(%s%s%s): %s", op->inputs, *op->attributes ? "; " : "",
             op->attributes, op->words);
    help_row(stdout, op->name, words);
}

static int run(cli_call *call)
{
    cup_op_facts op;
    int code = op_names_check(call->operands, call->operand_count);
    if (code)
        return code;
    if (call->json)
        return write_document(call);
    for (int i = 0; cup_op_at(i, &op); i++) {
        if (is_wanted(call, i) && call->operand_count)
            print_details(i, &op);
        else if (is_wanted(call, i))
            print_line(&op);
    }
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

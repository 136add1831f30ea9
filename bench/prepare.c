/* Compiles on all cores what a list of calls needs, so that a benchmark does not wait for one
 * kernel after the other. The list comes from stdin, a call a line: op, shapes, dtype and
 * attributes with tabs between, as bench/peers.py --list prints it.
 * python3 bench/peers.py --list | build/bench/prepare [sm_90a] */
#include <stdio.h>
#include <string.h>

#include "cuda/dry.h"
#include "dispatch/op.h"
#include "prof/attributes.h"
#include "prof/check.h"

#define MOST_INPUTS 1024

/* Runs the call dry by the implementation that is taken. */
static cup_status run_call(cup_context *c, const cup__row *row, const cup__sample *sample,
                           cup_dtype dtype, cup__filling filling)
{
    cup_tensor *in[MOST_INPUTS];
    cup__call call;
    int count = cup__sample_inputs_filled(c, row, sample, dtype, dtype, CUP__ROW_MAJOR, 0, filling,
                                          in, MOST_INPUTS);
    if (count < 0)
        return c->error.status;
    CUP_TRY(cup__call_begin(&call, c, row, in, count, sample->attributes));
    CUP_TRY(cup__call_allocate(&call));
    const cup__impl *taken = cup__call_choose(&call);
    return taken ? cup__call_run(&call, taken) : CUP_UNSUPPORTED;
}

/* Takes a word off the attributes, and what stands behind its `=`; whether it is there. */
static bool take_word(char *attributes, const char *name, char value[32])
{
    size_t length = strlen(name);
    char *at = strstr(attributes, name);
    if (!at || (at > attributes && at[-1] != ' ') || at[length] != '=')
        return false;
    char *end = at + length + 1 + strcspn(at + length + 1, " ");
    snprintf(value, 32, "%.*s", (int)(end - at - (int)length - 1), at + length + 1);
    end += strspn(end, " ");
    memmove(at, end, strlen(end) + 1);
    for (end = attributes + strlen(attributes); end > attributes && end[-1] == ' ';)
        *--end = 0;
    return true;
}

/* What no attribute of the op is: how f32 products may round, and how the inputs lie. */
static cup_status take_words(cup_context *c, char *attributes, cup__filling *filling)
{
    char value[32] = "highest";
    take_word(attributes, "precision", value);
    cup_status status = cup_precision(c, value);
    filling->reversed = take_word(attributes, "transposed", value) && *value == '1';
    filling->channels_last = take_word(attributes, "channels_last", value) && *value == '1';
    return status;
}

static void read_line(cup_context *c, char *line)
{
    char *field[4] = {line, "", "", ""}, attributes[4096] = {0};
    line[strcspn(line, "\n")] = 0;
    for (int i = 1; i < 4; i++) {
        char *tab = strchr(field[i - 1], '\t');
        if (!tab)
            break;
        *tab = 0;
        field[i] = tab + 1;
    }
    const cup__row *row = cup__row_find(field[0]);
    cup_dtype dtype;
    if (!row || row->op->view || row->attributes_size > sizeof attributes ||
        cup_dtype_find(field[2], &dtype) != CUP_OK)
        return;
    cup__sample sample = {field[1], attributes};
    cup__filling filling = {0};
    cup_scope_open(c);
    cup_status status = take_words(c, field[3], &filling);
    if (status == CUP_OK)
        status = cup__attributes_parse(&c->error, row, field[3], attributes);
    if (status == CUP_OK)
        status = run_call(c, row, &sample, dtype, filling);
    if (status != CUP_OK)
        fprintf(stderr, "%s %s: %s\n", field[0], field[1], c->error.text);
    cup__error_clear(&c->error);
    cup_scope_close(c);
}

int main(int argc, char **argv)
{
    const char *arch = argc > 1 ? argv[1] : "sm_90a";
    cup_context *c = cup__context_dry(arch);
    char line[65536];
    cup__error error = {0};
    int count = 0;
    while (cup_error(c) == CUP_OK && fgets(line, sizeof line, stdin))
        read_line(c, line);
    if (cup_error(c) == CUP_OK) {
        const cup__kernel_request *requests = cup__dry_requests(cup__cuda_of(c->device), &count);
        cup__kernels_prepare(&error, arch, requests, count, 0, NULL, NULL);
    }
    printf("%d kernels are ready for %s%s%s\n", count, arch, error.status ? ", but " : "",
           error.text);
    int code = cup_error(c) != CUP_OK || error.status != CUP_OK;
    cup_context_free(c);
    return code;
}

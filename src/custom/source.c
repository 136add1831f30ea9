/* A formula as the source of its kernels. */
#include <ctype.h>
#include <math.h>

#include "custom/program.h"

static void add_number(cup__text *out, const char *real, double value)
{
    if (value != value)
        cup__text_add(out, "(%s)__int_as_float(0x7fffffff)", real);
    else if (isinf(value))
        cup__text_add(out, "(%s)__int_as_float(0x%s)", real, value > 0 ? "7f800000" : "ff800000");
    else {
        cup__text_add(out, "(%s)", real);
        cup__text_add_number(out, value);
        if (value == rint(value) && fabs(value) < 1e15)
            cup__text_add(out, ".0");
    }
}

void cup__node_source(const cup__expr_node *n, const char *real, cup__text *out)
{
    const cup__function_row *row = &cup__functions[n->function];
    char name[24];
    int length = 0;
    if (n->function == CUP__NUMBER) {
        add_number(out, real, n->value);
        return;
    }
    for (; row->id[length] && length < 23; length++)
        name[length] = (char)tolower((unsigned char)row->id[length]);
    cup__text_add(out, "f_%.*s(", length, name);
    for (int i = 0; i < row->arity; i++)
        cup__text_add(out, "%st%d", i ? ", " : "", n->in[i]);
    cup__text_add(out, ")");
}

static void add_node(const cup__program *p, int node, int input, cup__text *out)
{
    const cup__expr_node *n = &p->nodes[node];
    cup__text_add(out, "    const real t%d = ", node);
    if (n->function == CUP__INPUT)
        cup__text_add(out, "x[%d]", input);
    else if (n->function == CUP__PARAMETER)
        cup__text_add(out, "p[%d]", n->in[0]);
    else
        cup__node_source(n, "real", out);
    cup__text_add(out, ";\n");
}

bool cup__program_source(const cup__program *p, cup__text *out)
{
    cup__text_add(out, "#define RESULTS %d\n", p->results);
    for (int j = 0; j < CUP_EXPR_RESULTS; j++)
        cup__text_add(out, "#define FOLD%d %d\n", j, j < p->results ? p->result[j].fold : 0);
    cup__text_add(out, "#include \"expression.cuh\"\n\n"
                       "DEVICE void formula(const real *x, const real *p, real *y)\n{\n");
    for (int node = 0, input = 0; node < p->count; node++) {
        add_node(p, node, input, out);
        input += p->nodes[node].function == CUP__INPUT;
    }
    for (int j = 0; j < p->results; j++)
        cup__text_add(out, "    y[%d] = t%d;\n", j, p->result[j].node);
    cup__text_add(out, "}\n\nFORMULA_KERNELS\n");
    return !out->failed;
}

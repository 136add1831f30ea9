#include "custom/graph.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "tensor/tensor.h"

const cup__function_row cup__functions[] = {
    [CUP__NUMBER] = {"NUMBER", "", 0, {"", "", ""}},
    [CUP__INPUT] = {"INPUT", "", 0, {"", "", ""}},
    [CUP__PARAMETER] = {"PARAMETER", "", 0, {"", "", ""}},
#define FUNCTION(id, arity, name, f64, f32, da, db, dc)                                            \
    [CUP__##id] = {#id, name, arity, {da, db, dc}},
#include "custom/functions.def"
#undef FUNCTION
};

static double rounded_to(double value, cup_dtype dtype)
{
    uint16_t word;
    cup_tensor one = {.data = &word, .dtype = dtype};
    cup__store(&one, 0, value);
    return cup__load(&one, 0);
}

double cup__round_bf16(double value)
{
    return rounded_to(value, CUP_BF16);
}

double cup__round_f16(double value)
{
    return rounded_to(value, CUP_F16);
}

double cup__function_f64(cup__function function, double a, double b, double c)
{
    switch (function) {
#define FUNCTION(id, arity, name, f64, f32, da, db, dc)                                            \
    case CUP__##id:                                                                                \
        return f64;
#include "custom/functions.def"
#undef FUNCTION
    default:
        return NAN;
    }
}

bool cup__is_condition(int function)
{
    return function >= CUP__EQUAL && function <= CUP__NOT;
}

void cup__graph_open(cup__graph *g, cup__error *error, int most)
{
    *g = (cup__graph){.error = error, .most = most};
}

void cup__graph_close(cup__graph *g)
{
    cup__free(g->nodes);
    cup__free(g->slots);
    *g = (cup__graph){0};
}

/* Equal nodes are one. */

static bool same(const cup__expr_node *a, const cup__expr_node *b)
{
    return a->function == b->function && !memcmp(a->in, b->in, sizeof a->in) &&
           !memcmp(&a->value, &b->value, sizeof a->value);
}

static size_t slot_of(const cup__graph *g, const cup__expr_node *node)
{
    uint64_t bits, hash = (uint64_t)(uint32_t)node->function;
    memcpy(&bits, &node->value, sizeof bits);
    for (int i = 0; i < 3; i++)
        hash = (hash ^ (uint64_t)(uint32_t)node->in[i]) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ bits) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
    size_t slot = (size_t)hash & (g->slot_count - 1);
    while (g->slots[slot] && !same(&g->nodes[g->slots[slot] - 1], node))
        slot = (slot + 1) & (g->slot_count - 1);
    return slot;
}

static bool reserve(cup__graph *g)
{
    if (!cup__grow(&g->nodes, &g->capacity, (size_t)g->count, sizeof *g->nodes))
        return false;
    if ((size_t)g->count * 2 < g->slot_count)
        return true;
    size_t wanted = g->slot_count ? g->slot_count * 2 : 64;
    int32_t *slots = cup__calloc(wanted, sizeof *slots);
    if (!slots)
        return false;
    cup__free(g->slots);
    g->slots = slots;
    g->slot_count = wanted;
    for (int i = 0; i < g->count; i++)
        g->slots[slot_of(g, &g->nodes[i])] = i + 1;
    return true;
}

static int insert(cup__graph *g, cup__expr_node node)
{
    if (!reserve(g)) {
        cup__fail(g->error, CUP_MEMORY, "out of host memory for a formula");
        return -1;
    }
    size_t slot = slot_of(g, &node);
    if (g->slots[slot])
        return g->slots[slot] - 1;
    if (g->count == g->most) {
        cup__fail(g->error, CUP_UNSUPPORTED,
                  "a formula of more than %d operations; make several of it", g->most);
        return -1;
    }
    g->nodes[g->count] = node;
    g->slots[slot] = ++g->count;
    return g->count - 1;
}

bool cup__graph_copy(cup__graph *g, const cup__graph *from)
{
    for (int i = 0; i < from->count; i++)
        if (insert(g, from->nodes[i]) < 0)
            return false;
    return true;
}

int cup__graph_number(cup__graph *g, double value)
{
    if (value != value)
        value = NAN; /* one of all its bit patterns */
    return insert(g, (cup__expr_node){CUP__NUMBER, {-1, -1, -1}, value});
}

int cup__graph_leaf(cup__graph *g, cup__function kind, int index)
{
    return insert(g, (cup__expr_node){kind, {index, -1, -1}, 0});
}

/* Simplification. What it changes is at most the sign of a zero and how constants round. */

static bool is_number(const cup__graph *g, int node)
{
    return node >= 0 && g->nodes[node].function == CUP__NUMBER;
}

static bool is_value(const cup__graph *g, int node, double value)
{
    return is_number(g, node) && g->nodes[node].value == value;
}

static bool is_function(const cup__graph *g, int node, cup__function function)
{
    return g->nodes[node].function == (int)function;
}

static int power(cup__graph *g, int a, int exponent)
{
    int result = -1;
    for (int square = a; exponent; exponent >>= 1) {
        if (exponent & 1)
            result = result < 0 ? square : cup__graph_add(g, CUP__MUL, result, square, -1);
        if (exponent > 1)
            square = cup__graph_add(g, CUP__MUL, square, square, -1);
        if (square < 0 || (result < 0 && exponent & 1))
            return -1;
    }
    return result;
}

#define POWER_MOST 16

/* Gives -2 where nothing is to be done, here and below. */
static int simplify_pow(cup__graph *g, int a, int b)
{
    if (!is_number(g, b))
        return -2;
    double exponent = g->nodes[b].value;
    if (exponent == 0)
        return cup__graph_number(g, 1);
    if (exponent != rint(exponent) || fabs(exponent) > POWER_MOST)
        return -2;
    int whole = power(g, a, (int)fabs(exponent));
    if (exponent > 0 || whole < 0)
        return whole;
    return cup__graph_add(g, CUP__DIV, cup__graph_number(g, 1), whole, -1);
}

/* 1/x is exact when x is a power of two. */
static bool has_exact_inverse(double x)
{
    int exponent;
    return x != 0 && isfinite(x) && fabs(frexp(x, &exponent)) == 0.5 && abs(exponent) < 100;
}

static int simplify_sum(cup__graph *g, cup__function function, int a, int b)
{
    bool add = function == CUP__ADD;
    if (is_value(g, b, 0))
        return a;
    if (is_value(g, a, 0))
        return add ? b : cup__graph_add(g, CUP__NEG, b, -1, -1);
    if (is_function(g, b, CUP__NEG))
        return cup__graph_add(g, add ? CUP__SUB : CUP__ADD, a, g->nodes[b].in[0], -1);
    if (add && is_function(g, a, CUP__NEG))
        return cup__graph_add(g, CUP__SUB, b, g->nodes[a].in[0], -1);
    return -2;
}

static int simplify_product(cup__graph *g, int a, int b)
{
    if (is_value(g, b, 1))
        return a;
    if (is_value(g, a, 1))
        return b;
    if (is_value(g, b, -1) || is_value(g, a, -1))
        return cup__graph_add(g, CUP__NEG, is_value(g, b, -1) ? a : b, -1, -1);
    if (is_function(g, a, CUP__NEG) && is_function(g, b, CUP__NEG))
        return cup__graph_add(g, CUP__MUL, g->nodes[a].in[0], g->nodes[b].in[0], -1);
    /* k (l x) = (k l) x */
    int number = is_number(g, a) ? a : is_number(g, b) ? b : -1, other = number == a ? b : a;
    if (number >= 0 && is_function(g, other, CUP__MUL)) {
        const cup__expr_node *inner = &g->nodes[other];
        int first = inner->in[0], second = inner->in[1];
        int inside = is_number(g, first) ? first : is_number(g, second) ? second : -1;
        if (inside >= 0) {
            double value = g->nodes[number].value * g->nodes[inside].value;
            int rest = inside == first ? second : first;
            return cup__graph_add(g, CUP__MUL, cup__graph_number(g, value), rest, -1);
        }
    }
    return -2;
}

static int simplify(cup__graph *g, cup__function function, int a, int b, int c)
{
    switch (function) {
    case CUP__ADD:
    case CUP__SUB:
        return simplify_sum(g, function, a, b);
    case CUP__MUL:
        return simplify_product(g, a, b);
    case CUP__DIV:
        if (is_number(g, b) && has_exact_inverse(g->nodes[b].value))
            return cup__graph_add(g, CUP__MUL, a, cup__graph_number(g, 1 / g->nodes[b].value), -1);
        return -2;
    case CUP__POW:
        return simplify_pow(g, a, b);
    case CUP__NEG:
        return is_function(g, a, CUP__NEG) ? g->nodes[a].in[0] : -2;
    case CUP__MIN:
    case CUP__MAX:
        return a == b ? a : -2;
    case CUP__WHERE:
        if (b == c)
            return b;
        return is_number(g, a) ? (g->nodes[a].value != 0 ? b : c) : -2;
    default:
        return -2;
    }
}

static bool commutes(cup__function function)
{
    return function == CUP__ADD || function == CUP__MUL || function == CUP__EQUAL ||
           function == CUP__NOT_EQUAL || function == CUP__AND || function == CUP__OR;
}

int cup__graph_add(cup__graph *g, cup__function function, int a, int b, int c)
{
    int arity = cup__functions[function].arity, in[3] = {a, b, c};
    bool numbers = true;
    for (int i = 0; i < 3; i++) {
        if (i < arity && in[i] < 0)
            return -1;
        numbers &= i >= arity || is_number(g, in[i]);
    }
    if (numbers) {
        double x[3] = {0};
        for (int i = 0; i < arity; i++)
            x[i] = g->nodes[in[i]].value;
        return cup__graph_number(g, cup__function_f64(function, x[0], x[1], x[2]));
    }
    int simple = simplify(g, function, a, b, c);
    if (simple != -2)
        return simple;
    if (commutes(function) && a > b) {
        in[0] = b;
        in[1] = a;
    }
    return insert(g, (cup__expr_node){function, {in[0], in[1], in[2]}, 0});
}

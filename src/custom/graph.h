/* A formula as a list of nodes, each after those it is made of. Equal nodes are one, and what is
 * added is simplified at once. */
#ifndef CUP_CUSTOM_GRAPH_H
#define CUP_CUSTOM_GRAPH_H

#include "base/error.h"
#include "base/text.h"

/* The leaves, then the functions of functions.def. */
typedef enum cup__function {
    CUP__NUMBER,
    CUP__INPUT,
    CUP__PARAMETER,
#define FUNCTION(id, arity, name, f64, f32, da, db, dc) CUP__##id,
#include "custom/functions.def"
#undef FUNCTION
    CUP__FUNCTIONS
} cup__function;

typedef struct cup__function_row {
    const char *id;      /* "LESS_EQUAL": in kernels f_less_equal */
    const char *name;    /* in texts */
    int arity;
    const char *slope[3]; /* derivative by each argument, as text; "" is 0 */
} cup__function_row;

extern const cup__function_row cup__functions[];

typedef struct cup__expr_node {
    int32_t function;
    int32_t in[3]; /* nodes, -1 where there is none; of a leaf in[0] is its number */
    double value;  /* of a number */
} cup__expr_node;

typedef struct cup__graph {
    cup__error *error;
    cup__expr_node *nodes;
    size_t capacity;
    int count, most;
    int32_t *slots; /* hash table of nodes + 1 */
    size_t slot_count;
} cup__graph;

void cup__graph_open(cup__graph *g, cup__error *error, int most);
void cup__graph_close(cup__graph *g);
/* The same nodes with the same numbers, in an empty graph. */
bool cup__graph_copy(cup__graph *g, const cup__graph *from);

/* Each gives the number of a node, -1 with an error when that fails; an argument of -1 gives -1. */
int cup__graph_number(cup__graph *g, double value);
int cup__graph_leaf(cup__graph *g, cup__function kind, int index);
int cup__graph_add(cup__graph *g, cup__function function, int a, int b, int c);

/* The value of one node from the values of its arguments, in double. */
double cup__function_f64(cup__function function, double a, double b, double c);
bool cup__is_condition(int function); /* gives 1 or 0 */
/* Rounded to bf16 or f16 and back. */
double cup__round_bf16(double value);
double cup__round_f16(double value);

/* Names a text may use. */
typedef struct cup__scope_name {
    char name[32];
    int node;
} cup__scope_name;

typedef struct cup__names_in_text {
    cup__scope_name *names;
    size_t count, capacity;
} cup__names_in_text;

/* How a result ends, as parsed. */
typedef struct cup__ending {
    int fold;       /* cup_expr_fold */
    int axes[8];
    int axis_count;
    bool keep;
    int dtype;      /* -1: what promotion gives */
} cup__ending;

typedef struct cup__parsed {
    int node;
    cup__ending ending;
} cup__parsed;

/* Parses a text into the graph. With `most` 0 it must be one formula without an ending. Returns
 * how many results were found, -1 with an error. */
int cup__parse(cup__graph *g, const cup__names_in_text *given, const char *text,
               cup__parsed *results, int most);

/* A function by its name with arguments; -1 with an error. */
int cup__apply(cup__graph *g, const char *name, const int *arguments, int count);

/* Gives the nodes of the derivatives of sum(seed[j] * result[j]) by the inputs; -1: it is 0.
 * Returns -1 with an error. */
int cup__derive(cup__graph *g, const int *results, const int *seeds, int count, int *slopes,
                int inputs);

/* The formulas of nodes as text, each with words before and after it; false without memory. */
bool cup__graph_words(const cup__graph *g, const int *nodes, int count, const char *const *inputs,
                      const char *const *parameters, const char *const *before,
                      const char *const *after, cup__text *out);

#endif

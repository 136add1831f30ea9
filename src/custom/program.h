/* A formula that can be run: an op of its own, made once for each structure and kept with the
 * context, with what the CPU and the GPU make of it. */
#ifndef CUP_CUSTOM_PROGRAM_H
#define CUP_CUSTOM_PROGRAM_H

#include "cupola/expr.h"
#include "custom/graph.h"
#include "dispatch/loop.h"
#include "dispatch/op.h"

/* A derivative has the gradients of the results as inputs too, and the number of folded elements
 * as a parameter. */
#define CUP__PROGRAM_INPUTS (CUP_EXPR_INPUTS + CUP_EXPR_RESULTS)
#define CUP__PROGRAM_PARAMETERS (CUP_EXPR_PARAMETERS + 1)
#define CUP__PROGRAM_NODES (20 * CUP_EXPR_NODES)

typedef struct cup__program_result {
    int node;
    int fold;  /* cup_expr_fold */
    int dtype; /* -1: what promotion gives */
} cup__program_result;

typedef struct cup__program cup__program;

/* What makes programs equal. */
typedef struct cup__formula {
    cup__graph *graph;
    int inputs, parameters, results;
    cup__program_result result[CUP_EXPR_RESULTS];
    bool folded, keep;
    int axes[8], axis_count; /* of the folds; none: all */
    bool derivative;         /* of which no further derivative is taken */
} cup__formula;

struct cup__program {
    cup__row row; /* first: the gradient finds the program by it */
    cup__op op;
    cup__program *next;
    cup__expr_node *nodes; /* those that results need, leaves included */
    int count;
    int inputs, parameters, results;
    cup__program_result result[CUP_EXPR_RESULTS];
    bool folded, keep, derivative;
    int axes[8], axis_count;
    int used[CUP__PROGRAM_INPUTS], used_count; /* inputs that are read */
    int32_t *slot; /* where the CPU keeps a node's values, -1: in place */
    int slots;
    char *source;                   /* of the kernels, made when first needed */
    struct cup__program_kernel *kernels;
    struct cup__slopes *slopes; /* programs of the gradients */
};

/* What a call's attributes hold. */
typedef struct cup__expr_attributes {
    const cup__program *program;
    double parameters[CUP__PROGRAM_PARAMETERS];
    const cup__shape *full; /* the shape before folding, where inputs alone do not give it */
} cup__expr_attributes;

/* The program of this formula, which may have been made before; NULL with an error. */
cup__program *cup__program_get(cup_context *c, const cup__formula *formula);

/* The shape before folding, and a bit for each dimension of it that is folded. */
typedef struct cup__expr_plan {
    const cup__program *program;
    const double *parameters;
    cup__shape full;
    uint32_t folded;
    int64_t length; /* elements folded into one */
    bool wide;      /* computed in double */
} cup__expr_plan;

cup_status cup__expr_plan_make(cup__call *call, cup__expr_plan *plan);

/* The call's loops: over the dimensions that are kept and, for each of their elements, over those
 * that are folded. Tensor 0 stands for a result in row-major order, tensor k + 1 is the k-th used
 * input. */
typedef struct cup__expr_loops {
    cup__loop kept, folded;
} cup__expr_loops;
void cup__expr_loops_make(const cup__call *call, const cup__expr_plan *plan,
                          cup__expr_loops *loops);

cup_status cup__expr_infer(cup__call *call);
cup_status cup__expr_specification(cup__call *call);
cup_status cup__expr_gradient(cup__grad *g);
cup_status cup__expr_composed(cup__grad *g);
cup_status cup__expr_cpu(cup__call *call);
cup_status cup__expr_cuda(cup__call *call);
extern const cup__impl cup__expr_impls[];

/* Which inputs derivatives need, as bits. */
cup_status cup__slopes_need(cup_context *c, const cup__program *program, uint32_t *need);
void cup__slopes_free(struct cup__slopes *slopes);

/* Derivatives by the inputs, as nodes of a graph, and what its leaves are. */
typedef struct cup__slopes_call {
    cup_context *c;
    const cup__graph *graph;
    cup_tensor *const *source; /* inputs, then gradients of results */
    const double *parameters;
    cup__shape full;           /* before folding */
    cup_dtype dtype;           /* that is computed in */
} cup__slopes_call;
cup_status cup__slopes_compose(const cup__slopes_call *s, cup__grad *g, const int *slopes);
void cup__program_kernels_free(struct cup__program_kernel *kernels);

/* What computes a node, a number or a function, from those before it, t0, t1 and so on. */
void cup__node_source(const cup__expr_node *n, const char *real, cup__text *out);
/* The CUDA source of a program; false without memory. */
bool cup__program_source(const cup__program *program, cup__text *out);

#endif

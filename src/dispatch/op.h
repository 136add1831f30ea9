/* How an op is described and called.
 *
 * An op is one row in ops.def and NAME.c, beside which its kernels stand in NAME.cu where they are
 * not made of a formula. The row gives the name, the inputs, the attributes and the results; from
 * it tools/gen_ops makes the public prototype, the attribute struct and the table entry. NAME.c
 * ends in the descriptor below. */
#ifndef CUP_DISPATCH_OP_H
#define CUP_DISPATCH_OP_H

#include "tensor/tensor.h"

#define CUP__MAX_OUT 6
#define CUP__SLOTS 12 /* inputs that a descriptor can tell apart; later ones are as the last */

typedef struct cup__op cup__op;
typedef struct cup__row cup__row;

/* Numbers that an implementation can be run with, where it has several plans to choose from. */
#define CUP__PLAN_NUMBERS 10
typedef struct cup__plan {
    int number[CUP__PLAN_NUMBERS];
} cup__plan;

/* An implementation with a plan; all zero where it makes one itself, or has none. */
typedef struct cup__way {
    const struct cup__impl *impl; /* NULL: there is none */
    cup__plan plan;
} cup__way;

/* One call of an op, from inference to the run. */
typedef struct cup__call {
    cup_context *c;
    const cup__row *row;
    const cup__op *op;
    const void *attributes;  /* the op's own struct, of dispatch/attributes.h */
    cup_tensor **in;         /* an optional input that was left out is NULL */
    int in_count;
    cup_tensor *out[CUP__MAX_OUT];
    int out_count;           /* with the hidden ones when `saving` */
    /* Set by inference where a new result shall not lie row-major: its dimensions, outermost in
     * memory first, as digits ("0213"). Implementations follow the strides of call->out. */
    const char *order[CUP__MAX_OUT];
    cup__shape result[CUP__MAX_OUT]; /* what inference says the results are */
    bool saving;             /* hidden results, which only backward needs, are wanted */
    uint32_t sequence;       /* of the random numbers, for an op that draws some */
    uint32_t share;          /* as cup__random has it, and the next one, too */
    const cup__stretched *drawn;
    const uint64_t *random;  /* device memory: seed and step */
    cup__way tuned;          /* the way that was measured to be the fastest, if that was taken */
    struct cup__memo *memo;  /* what is remembered of equal calls, see dispatch/memo.h; or NULL */
} cup__call;

typedef enum cup__place { CUP__CPU, CUP__CUDA } cup__place;

/* What an implementation with plans of its own offers the tuner. */
typedef struct cup__planning {
    const char *const *names; /* of a plan's numbers, ends with NULL */
    /* Those that may be the fastest for a call, likely ones first; returns how many. */
    int (*list)(const cup__call *call, cup__plan *out, int most);
    /* Why a plan cannot be used, where the implementation itself takes the call. */
    const char *(*refuses)(const cup__call *call, const cup__plan *plan);
    cup_status (*run)(cup__call *call, const cup__plan *plan);
} cup__planning;

/* One way to compute an op. They stand in order, best first. */
typedef struct cup__impl {
    const char *name; /* "blas", "flash", "plain" */
    cup__place place;
    bool strided;     /* takes inputs of any strides; otherwise they are packed before */
    /* Why it cannot do this call, in words; NULL when it can. No function means it always can. */
    const char *(*refuses)(const cup__call *call);
    cup_status (*run)(cup__call *call);
    const cup__planning *planning; /* NULL: it has no plans to measure */
    bool eager; /* a later implementation without the doubts of its `refuses`: is not measured */
    double tolerance; /* in place of the op's, when not 0 */
    double slack;     /* what its results may be off beside, as a part of the element's size and
                         of the whole's: sums that are not kept in f32 */
    bool overflows;   /* where a result is beyond the dtype's range, it may give anything that is
                         not finite, as a library that keeps parts of sums in the dtype */
    double hidden_slack; /* the same of hidden results, where those may be off more: not 0 */
    /* Why equal calls may give other bits, in words; NULL when they never do. A deterministic
     * context does without it. */
    const char *varies;
    /* Sizes of a dimension at which its path changes (tiles, rings, vectors, limits of `refuses`);
     * ends with 0. Random calls are drawn about them and their multiples. */
    const int64_t *thresholds;
} cup__impl;

/* As an initialiser of an implementation: CUP__THRESHOLDS(64, 128). */
#define CUP__THRESHOLDS(...) .thresholds = (const int64_t[]){__VA_ARGS__, 0}

/* dy weight, the gradient of an activation's result, taken through the activation at `pre`. */
typedef cup_tensor *(*cup__past)(cup_context *c, cup_tensor *dy, cup_tensor *weight,
                                 cup_tensor *pre);

/* What backward works on: the recorded call and the gradients of its results. Values that the
 * op's `saves` does not name are NULL; shapes are always there. */
typedef struct cup__grad {
    cup_context *c;
    const cup__row *row;
    const void *attributes;
    int in_count, out_count;
    cup_tensor *const *in, *const *out;
    const cup__shape *in_shape, *out_shape;
    const bool *wanted;        /* which inputs need a gradient */
    cup_tensor *const *d_out;  /* NULL where nothing flowed back */
    cup_tensor **d_in;         /* to be set; may stay NULL: no gradient */
    /* Where input i is the first result of an op that hands gradients past its activation, the
     * value before the activation and the op's way past it; then d_pre[i], the gradient with
     * respect to that value, may be set in place of d_in[i]. */
    cup_tensor *const *pre;
    const cup__past *past;
    cup_tensor **d_pre;
    /* The gradient that input i has already, where it may be added to in place; then d_in[i] stays
     * NULL. */
    cup_tensor *const *sum;
    int64_t sequence;          /* of the recorded call, and above 32 bits its share */
    bool kept;                 /* backward may come again: what was saved must not be changed */
} cup__grad;

/* Bits of `saves`: the value of input or result i is needed by the gradient. */
#define CUP__SAVE_IN(i) (1u << (i))
#define CUP__SAVE_OUT(i) (1u << (16 + (i)))
#define CUP__AGAIN_MOST 8

/* A call that the tests, `cupola check` and the benchmark make. Shapes as text, one for each
 * input: "2x3 3", "0x5", "()" for a scalar, "-" for an optional input left out. */
typedef struct cup__sample {
    const char *shapes;
    const void *attributes;
} cup__sample;

/* Values an input is tested with: uniform in [low, high), whole numbers for an integer dtype. */
typedef struct cup__domain {
    double low, high;
} cup__domain;

struct cup__pointwise;
struct cup__epilogue;
struct cup__text;
struct cup__fold;
struct cup__update;

struct cup__op {
    const struct cup__pointwise *pointwise; /* of an elementwise op */
    const struct cup__fold *fold;           /* of a fold along axes */
    const struct cup__update *update;       /* of a step of an optimizer */
    const struct cup__epilogue *epilogue;   /* of a matrix product */
    int kind; /* which of several ops this is, for functions that serve them all */
    /* Checks the inputs and fills call->result for every result, hidden ones included. */
    cup_status (*infer)(cup__call *call);
    /* A view op makes call->out[0] here instead of running an implementation. */
    cup_status (*view)(cup__call *call);
    /* The specification: plain, in double through cup__load and cup__store, any strides. */
    cup_status (*specification)(cup__call *call);
    cup_status (*gradient)(cup__grad *g);
    /* The same gradient made of calls alone that have one themselves, which is taken where what
     * computes a gradient is recorded, for second derivatives: `gradient` itself where it is so
     * made. It works in 32 bits where the op does, and takes hidden results only as numbers, by
     * cup__detached, unless `gradient` uses what comes back to them. NULL: it is refused. */
    cup_status (*composed)(cup__grad *g);
    /* Of an op whose first result is an activation of its second, which is hidden: how a product
     * that this result goes into hands its gradient past the activation. The op's own gradient
     * then finds in d_out[1] what came that way. */
    cup__past past;
    /* Whether the gradients of its parameters take as long by themselves as beside that of the
     * rest, where these gradients of its results are there. NULL: they do not. */
    bool (*apart)(const cup__op *op, cup_tensor *const *d_out);
    /* Computes the first result again, at about the price of reading and writing it once, from what
     * `saves` and `again_saves` name, of up to CUP__AGAIN_MOST inputs and results; see
     * cup_recompute_results. NULL: it is kept. */
    cup_tensor *(*again)(const cup__grad *g);
    uint32_t again_saves;
    bool is_norm; /* the one kind that the policy NORMS computes again */
    const cup__impl *impls; /* ends with a NULL name */
    /* What makes a call another one for its speed, in words of the op's own, which other ops may
     * share; NULL: its name, inputs and attributes. `similar` asks for those of a plainer call
     * whose records count as well; false: there is none. */
    bool (*words)(const cup__call *call, bool similar, struct cup__text *to);
    uint32_t saves;
    bool random;            /* draws random numbers */
    bool slack_by_rows;     /* an implementation's slack is a part of a row's size in place of the
                               whole's, as rows are sums of other numbers of terms */
    bool images;            /* takes images, which may lie with their channels last */
    bool strided_out;       /* implementations can write to a result of any strides */
    /* Bit i: a caller's input i is brought to the dtype that holds the numbers of all these; the
     * last bit is that of all further inputs. */
    uint32_t promotes;
    uint32_t in_place;      /* bit i: input i is changed by the call (only updates do this) */
    /* Whether a call that saves, with these attributes, changes input 0 as well. */
    bool (*overwrites)(const void *attributes);
    /* Inputs from list_from on come in records of list_step, and what is said of an input by its
     * number (in_place, domain, in_dtypes) is said of its place in the record. */
    int list_from, list_step;

    /* For tests and benchmark. */
    const cup__sample *samples; /* each ends with NULL shapes */
    const cup__sample *bench;
    cup__domain domain[CUP__SLOTS]; /* all zero means [-2, 2) */
    /* Of how many things input i names some, by the inputs before it; 0: it names none. Samples
     * name any of them, and now and then those of the domain, so that some come often. */
    int64_t (*indices)(cup_tensor *const *in, int i, const void *attributes);
    /* Bit i: row r of the results, along the first dimension, is made of row r of input i and of
     * the inputs whose bit is not set. 0: not so, or not worth saying. */
    uint32_t by_rows;
    /* Bit i: the same of this call, hidden results included, so that it may be made of some rows at
     * a time (dispatch/halves.h). 0: not so. NULL: not so, but of elementwise ops that draw no
     * random numbers it is known. */
    uint32_t (*by_texts)(const cup__op *op, cup_tensor *const *in, int in_count,
                         const void *attributes);
    /* What is rounded on the way is part of what the op means, so that its specification is run in
     * the dtype itself, not in f64. */
    bool rounds;
    /* Results in 8-bit floats are codes of a value, which the specification stores unrounded where
     * a check gives it a result in f64: near the middle of two codes either is right. */
    bool codes;
    /* The hidden result in u8 has a bit for each element of the first result that is above 0, and
     * is held against these. */
    bool signs;
    /* Of results that rounding turns far, as the vectors of near singular values: makes of the
     * visible ones, in f64, what it does not, up to 6 tensors, which checks compare in their place;
     * returns how many. No gradient is asked for where rows repeat. */
    int (*steady)(cup_context *c, cup_tensor *const *out, cup_tensor **made);
    /* Bit i: the whole numbers of input i go up, from 0 to the number of rows of input 0. */
    uint32_t ascending;
    int64_t bench_indices;      /* whole numbers of bench calls are below this; 0: as the domain */
    uint32_t in_dtypes[CUP__SLOTS]; /* bits 1 << cup_dtype; 0: the floats, all inputs the same */
    double tolerance;           /* in units of the dtype's epsilon; 0 means 4 */
    /* Bytes that must move and operations that must be done; NULL: inputs and results once, one
     * operation an element of the first result. */
    void (*cost)(const cup__call *call, double *bytes, double *flops);
    /* Operations of the specification, to which random calls are limited; NULL: those of `cost`. */
    double (*specified)(const cup__call *call);
};

#define CUP__DTYPE(name) (1u << CUP_##name)
#define CUP__DTYPES_FLOAT                                                                          \
    (CUP__DTYPE(F32) | CUP__DTYPE(F64) | CUP__DTYPE(F16) | CUP__DTYPE(BF16))
#define CUP__DTYPES_INDEX (CUP__DTYPE(I32) | CUP__DTYPE(I64))

/* An attribute as the row describes it, to print, to parse and to bind. */
typedef enum cup__kind {
    CUP__KIND_INT,
    CUP__KIND_INT64,
    CUP__KIND_FLOAT,
    CUP__KIND_BOOL,
    CUP__KIND_DTYPE,
    CUP__KIND_INTS /* int64_t name[8] followed by int name_count */
} cup__kind;

typedef struct cup__attribute {
    const char *name;
    cup__kind kind;
    size_t offset;
    size_t option; /* its place in the options of the call; 0: it is an argument */
    double usual;  /* the default that the row names, where that is a number */
} cup__attribute;

struct cup__row {
    const char *name;
    const cup__op *op;
    const char *inputs, *attributes_text, *results, *words;
    int in_least, in_most;       /* in_most is INT_MAX for a list */
    int in_arguments;            /* those of in_most that are arguments; others are in options */
    int visible, results_count;  /* results a caller sees, and all of them */
    bool is_public;
    size_t attributes_size;
    const cup__attribute *attributes; /* ends with a NULL name */
    size_t options_size;              /* of cup_NAME_options; 0: the call has none */
};

/* The number by which in_place, domain and in_dtypes speak of input i. */
static inline int cup__input_slot(const cup__op *op, int i)
{
    int slot = op->list_step && i >= op->list_from
                   ? op->list_from + (i - op->list_from) % op->list_step
                   : i;
    return slot < CUP__SLOTS ? slot : CUP__SLOTS - 1;
}

static inline bool cup__overwrites(const cup__op *op, const void *attributes)
{
    return op->overwrites && op->overwrites(attributes);
}

static inline bool cup__input_changes(const cup__op *op, int i)
{
    return op->in_place >> cup__input_slot(op, i) & 1;
}

static inline bool cup__call_changes(const cup__call *call, int i)
{
    return (i == 0 && call->saving && cup__overwrites(call->op, call->attributes)) ||
           cup__input_changes(call->op, i);
}

extern const cup__row cup__rows[]; /* ends with a NULL name; the order is that of cup__op_id */
const cup__row *cup__row_find(const char *name);

/* Runs an op: infers, allocates, picks an implementation, runs, records. Returns the first
 * result (of an update without results its first input), or NULL. `out` may be NULL; else it takes
 * all visible results, and those that are already set in it are written to instead of new ones
 * (nothing is recorded then). */
cup_tensor *cup__op_call(cup_context *c, const cup__row *row, cup_tensor *const *in, int in_count,
                         const void *attributes, cup_tensor **out);

/* An `again` that makes the recorded call once more, of an op that saves all its inputs. */
cup_tensor *cup__call_again(const cup__grad *g);

/* The steps of a call, for tests and benchmark: checks and inference; memory for the results that
 * are not set; one implementation, or the specification when `impl` is NULL. */
cup_status cup__call_begin(cup__call *call, cup_context *c, const cup__row *row,
                           cup_tensor *const *in, int in_count, const void *attributes);
cup_status cup__call_allocate(cup__call *call);
cup_status cup__call_run(cup__call *call, const cup__impl *impl);
/* The implementation that would run; NULL: none, or on a CPU the specification. */
const cup__impl *cup__call_choose(cup__call *call);

/* Fails with the op's name and the shapes of its inputs in front of the words. */
cup_status cup__call_fail(cup__call *call, cup_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A reason of implementations on the CPU. */
const char *cup__refuses_f64(const cup__call *call);

/* Checks an inference makes; `i` is the number of an input. */
cup_status cup__need_float(cup__call *call, int i);
cup_status cup__need_index(cup__call *call, int i);
cup_status cup__need_same_dtype(cup__call *call, int i, int j);
cup_status cup__need_ndim(cup__call *call, int i, int least, int most);
/* What stands beside a variance under a root: from 0, and finite. */
cup_status cup__need_eps(cup__call *call, double eps);
/* Lists of numbers for height and width: one for both, one each, or none but of `required`. */
cup_status cup__need_pairs(cup__call *call, const char *required);
/* Makes a dimension that may count from the end into a plain one. */
cup_status cup__need_axis(cup__call *call, int i, int64_t axis, int *out);

/* The same elements in row-major order: the tensor itself when it is so already. */
cup_tensor *cup__contiguous(cup_context *c, cup_tensor *t);

/* A tensor of `like`'s dtype and shape filled with one value; sums `t` to the shape it was
 * broadcast from. For gradients. */
cup_tensor *cup__full(cup_context *c, const cup__shape *shape, double value);
cup_tensor *cup__sum_to(cup_context *c, cup_tensor *t, const cup__shape *shape);
/* For composed ones: a number in `like`'s dtype; `t` in f32 where it is in 16 bits, else itself. */
cup_tensor *cup__number(cup_context *c, const cup_tensor *like, double value);
cup_tensor *cup__widen(cup_context *c, cup_tensor *t);
/* Gradients of 0 of all wanted inputs. */
cup_status cup__no_slopes(cup__grad *g);
/* What cup_detach gives. */
cup_tensor *cup__detached(cup_tensor *t);
/* The composed gradient of another op: of a call of up to 4 inputs without attributes and with the
 * one result y, one of which may be NULL where the op does not save it. */
cup_status cup__composed_of(cup_context *c, const cup__row *row, cup_tensor *const *in,
                            int in_count, cup_tensor *y, cup_tensor *dy, cup_tensor **d_in);

#endif

/* Random calls of an op: drawn from a seed, written as one line of text and read back, and made
 * with the same numbers in any context. */
#ifndef CUP_PROF_DRAW_H
#define CUP_PROF_DRAW_H

#include "base/text.h"
#include "dispatch/op.h"

#define CUP__DRAWN_INPUTS 64
#define CUP__DRAWN_ATTRIBUTES 512 /* bytes */

/* Whole numbers that mean places: any below `below`, or ascending ones up to it, or different ones
 * along the call's axis. */
typedef enum cup__places {
    CUP__PLACES_NONE,
    CUP__PLACES_ANY,
    CUP__PLACES_ASCENDING,
    CUP__PLACES_DIFFERENT
} cup__places;

typedef struct cup__drawn_input {
    bool given;
    cup__shape shape;
    int64_t stride[CUP_MAX_DIMS]; /* in elements, 0 where a dimension is broadcast */
    int64_t offset;               /* of the first element in its memory, in elements */
    cup__places places;
    int64_t below;
} cup__drawn_input;

/* One call. It holds no memory of its own and can be copied. */
typedef struct cup__drawn {
    const cup__row *row;
    cup_dtype dtype; /* that the op is called with */
    int count;
    cup__drawn_input in[CUP__DRAWN_INPUTS];
    _Alignas(16) char attributes[CUP__DRAWN_ATTRIBUTES];
    uint64_t seed;  /* of the values */
    int scale;      /* floats are those of the op's domain times 2^scale */
    double shift;   /* plus this */
    bool special;   /* some are infinite, NaN, -0 or 0 */
    int out_offset; /* elements by which the results' memory is off from where vectors begin */
} cup__drawn;

/* What a drawing may take. 0 stands for the usual. */
typedef struct cup__draw_limits {
    double elements; /* of inputs and results together */
    double least;    /* of them, where the op has such calls */
    double work;     /* operations */
    uint32_t dtypes; /* bits 1 << cup_dtype */
    bool tame;       /* values of the op's own domain only: no scale, shift or special ones */
    bool row_major;  /* inputs without strides or offsets */
    bool large;      /* one of a hundred is drawn to fill a card several times */
} cup__draw_limits;

/* Draws call `number` of the seed; a function of the two, the limits and the library alone.
 * `scratch` is a CPU context without an error, for inference. False when the op refused all that
 * was tried; `tries` says how many that were. */
bool cup__draw(cup_context *scratch, const cup__row *row, const cup__draw_limits *limits,
               uint64_t seed, int64_t number, cup__drawn *out, int *tries);

/* The same, or at a sibling above 0 a call much like it: other values, mostly other strides and
 * offsets, and now and then another size or other attributes. */
bool cup__draw_sibling(cup_context *scratch, const cup__row *row, const cup__draw_limits *limits,
                       uint64_t seed, int64_t number, int sibling, cup__drawn *out, int *tries);

/* Whether the op takes the call; its error, if any, is in `scratch`. */
bool cup__drawn_infer(const cup__drawn *d, cup_context *scratch, cup__call *call);

/* The elements of inputs and results, and the operations, those of the specification where they are
 * more. False when the op refuses the call. */
bool cup__drawn_cost(const cup__drawn *d, cup_context *scratch, double *elements, double *work);

/* Whether all inputs must lie row-major, because one is changed. */
bool cup__drawn_row_major(const cup__drawn *d);
void cup__drawn_lay_plain(cup__drawn_input *in);

/* "linear bf16 3x64@80,1+5 9x64 - /seed=7": an op, its dtype, its inputs, each with its strides
 * and its offset where it is not row-major, its dtype where that is not the call's, "<N" where it
 * holds places; the attributes that are not 0; and with a slash what is said of the values. */
void cup__drawn_text(const cup__drawn *d, cup__text *out);
void cup__drawn_shapes_text(const cup__drawn *d, cup__text *out); /* the inputs alone */
cup_status cup__drawn_parse(cup__error *error, const char *text, cup__drawn *out);

/* Makes the inputs in a context: floats held in `hold` (f64 for a specification) or, where that is
 * the call's dtype, in their own, with the same numbers either way. What lies between the elements
 * is filled with bytes of 0xff. Returns how many there are, or -1 with an error in the context. */
int cup__drawn_inputs(const cup__drawn *d, cup_context *c, cup_dtype hold, cup_tensor **in,
                      int most);

/* How calls of an op are drawn: rows of prof/recipes.def, which says what the texts mean. */
typedef struct cup__recipe {
    const char *op, *forward, *shapes, *attributes, *values;
} cup__recipe;
extern const cup__recipe cup__recipes[]; /* ends with a NULL op */

/* A small generator: a word of state that is stirred. */
uint64_t cup__draw_word(uint64_t *state);
int64_t cup__draw_below(uint64_t *state, int64_t n); /* from 0 up to, not including, n */
bool cup__draw_chance(uint64_t *state, int percent);

/* Sizes by name: the letters of a recipe. */
typedef struct cup__symbols {
    const cup__row *row;
    uint64_t state;
    int64_t size[128];
    bool set[128];
    int lead; /* how many dimensions "*" stands for; their sizes are those of '0', '1' and '2' */
} cup__symbols;
int64_t cup__symbol(cup__symbols *s, char letter);
void cup__symbols_begin(cup__symbols *s, const cup__row *row, uint64_t state);
/* Draws one of the sizes that were used anew, small; false when all are small already. */
bool cup__symbols_shrink(cup__symbols *s);

/* Forgets one of the sizes that were used, to be drawn anew. */
void cup__symbols_vary(cup__symbols *s, uint64_t *state);

/* The value of "2N", "GR", "K/128", "V+p"; moves `at` behind it. */
int64_t cup__expression(cup__symbols *s, const char **at);

/* Sets attributes by a recipe's text; the inputs are drawn already. */
bool cup__draw_attributes(cup__drawn *d, cup__symbols *s, uint64_t *state, const char *text);

#endif

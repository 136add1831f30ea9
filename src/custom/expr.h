/* The inside of cup_expr. */
#ifndef CUP_CUSTOM_EXPR_H
#define CUP_CUSTOM_EXPR_H

#include "custom/program.h"

struct cup_expr {
    cup_context *c;
    cup__graph graph;
    cup__names_in_text names; /* inputs, then parameters */
    cup__formula formula;
    cup__program *program; /* NULL until it is needed, and after a result was added */
    cup__text words;
    struct cup__score *score; /* as one of attention's scores; NULL as the program */
};

/* One without inputs. */
cup_expr *cup__expr_new(cup_context *c);

#endif

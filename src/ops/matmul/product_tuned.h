/* Products done the way that was measured to be fastest for them on the card. */
#ifndef CUP_OPS_MATMUL_PRODUCT_TUNED_H
#define CUP_OPS_MATMUL_PRODUCT_TUNED_H

#include "ops/matmul/wgmma.h"
#include "dispatch/tuning.h"

#define CUP__WAYS_MOST 24

/* Who does a product. */
#define CUP__DOER(upper, name, best) CUP__BY_##upper,
typedef enum cup__doer { CUP__PRODUCT_WAYS(CUP__DOER) CUP__DOERS } cup__doer;

/* One way to do a product. */
typedef struct cup__way {
    cup__doer doer;
    cup__wgmma_plan plan; /* of wgmma */
    int rank;             /* of cuBLASLt: among the algorithms it proposes, best guess first */
    int known;            /* the first so many doers took part when it was found to be fastest */
} cup__way;

/* The ways that could be the fastest, likely ones first; returns how many. */
int cup__ways_of(cup_context *c, const cup__product *p, cup__way ways[CUP__WAYS_MOST]);
const char *cup__way_refuses(cup_context *c, const cup__product *p, const cup__way *way);
cup_status cup__way_run(cup__call *call, const cup__product *p, const cup__way *way);

/* A way and what it is for, as they stand in a tuning record. */
void cup__way_text(const cup__way *way, cup__text *text);
bool cup__way_parse(const char *text, cup__way *way);
void cup__product_text(cup_context *c, const cup__product *p, cup__text *text);

/* From now on, for this context: the product is done this way. */
cup_status cup__product_prefer(cup_context *c, const cup__product *p, const cup__way *way);

/* As an implementation: refuses what was not measured. */
const char *cup__product_tuned_refuses(cup_context *c, const cup__product *p);
cup_status cup__product_tuned(cup__call *call, const cup__product *p);

/* The same for a product that only wgmma can do, because something is fused into it: by the plan
 * that was measured, or where none was, by the one that the cost model takes. */
cup_status cup__product_wgmma_tuned(cup__call *call, const cup__product *p);
bool cup__product_has_plans_only(const cup__product *p);

typedef struct cup__product_table cup__product_table;
void cup__product_table_free(cup__product_table *table);

#endif

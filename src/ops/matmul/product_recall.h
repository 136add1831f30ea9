/* What a context remembers of the products that it was asked for, by their shapes, strides and the
 * alignment of their pointers: which implementation takes them, and the last launch of Hopper's
 * kernel, so that equal calls are not chosen and described again. */
#ifndef CUP_OPS_MATMUL_PRODUCT_RECALL_H
#define CUP_OPS_MATMUL_PRODUCT_RECALL_H

#include "ops/matmul/product_state.h"
#include "tensor/context.h"

typedef struct cup__recalled {
    cup__product key;
    cup__precision precision;
    const cup__impl *impl; /* of cup__product_impls; NULL: not known */
    void *launch;          /* what wgmma.c keeps, one piece of memory; NULL: nothing yet */
} cup__recalled;

/* The place of a product, which takes that of another where their hashes meet; NULL where nothing
 * can be remembered: there is no memory, or the product depends on more than can be compared. */
cup__recalled *cup__product_recalled(cup_context *c, const cup__product *p);

/* Forgets what was chosen, because another choice may be better now. */
void cup__product_forget(cup__product_state *state);

void cup__recalled_free(struct cup__recalled_table *table);

#endif

/* The inside of the tape, shared by recording, backward and recompute. */
#ifndef CUP_GRAD_TAPE_H
#define CUP_GRAD_TAPE_H

#include "cupola/grad.h"
#include "dispatch/op.h"

/* A value as it was when the call was recorded; no tensor when the gradient does not need it. */
typedef struct cup__saved {
    cup__shape shape;
    cup_tensor *tensor;
    uint32_t version;
} cup__saved;

/* Where the gradient of an input goes: to a parameter, to a result of an earlier node (numbered
 * from 1), or nowhere. */
typedef struct cup__edge {
    cup_tensor *parameter;
    uint32_t node;
    int output;
} cup__edge;

typedef struct cup__node {
    const cup__row *row; /* NULL: a recomputed block */
    cup_block block;
    void *block_user;
    int in_count, out_count;
    cup__saved *in, *out;
    cup__edge *edges;
    cup_tensor **d_out; /* gradients that have arrived, references */
    void *attributes;
    uint32_t sequence;  /* of the random numbers */
} cup__node;

typedef struct cup__tape {
    cup__node **nodes;
    size_t count, capacity;
    uint32_t generation; /* numbers of nodes are good within one generation */
} cup__tape;

bool cup__leads_to_parameter(cup_context *c, const cup_tensor *t);
bool cup__tape_wants(cup_context *c, cup_tensor *const *in, int in_count);

/* A new node at the end of the tape, cleared; NULL with an error when there is no memory. */
cup__node *cup__tape_node(cup_context *c, int in_count, int out_count, size_t attributes_size);

/* Links input i of the node to what made `t`; marks `t` as result of the last node. */
void cup__tape_link(cup_context *c, cup__node *node, int i, cup_tensor *t);
void cup__tape_mark(cup_context *c, cup_tensor *t, int output);

/* Frees the nodes from `count` on. */
void cup__tape_truncate(cup_context *c, size_t count);

/* Walks the nodes from the last down to number `first` + 1, freeing each when done. */
cup_status cup__tape_walk(cup_context *c, size_t first);

/* Backward through a recomputed block; sets d_in as a gradient function does. */
cup_status cup__recompute_backward(cup_context *c, cup__node *node, cup_tensor **d_in);

/* Adds a gradient to what has arrived in a slot, which holds a reference. */
cup_status cup__grad_add(cup_context *c, cup_tensor **sum, cup_tensor *d);

#endif

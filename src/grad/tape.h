/* The inside of the tape, shared by recording, backward and recompute. */
#ifndef CUP_GRAD_TAPE_H
#define CUP_GRAD_TAPE_H

#include "cupola/grad.h"
#include "dispatch/op.h"
#include "grad/watch.h"

/* A value as it was when the call was recorded; no tensor when the gradient does not need it, or
 * where it is computed again by `maker`, the number of the node whose first result it is. */
typedef struct cup__saved {
    cup__shape shape;
    cup_tensor *tensor;
    uint32_t version, maker;
} cup__saved;

/* Where the gradient of an input goes: to a parameter, to a result of an earlier node (numbered
 * from 1), or nowhere. */
typedef struct cup__edge {
    cup_tensor *parameter;
    uint32_t node;
    int output;
} cup__edge;

/* Parameters, references. */
typedef struct cup__uses {
    cup_tensor **list;
    size_t count, capacity;
    bool failed; /* there was no memory to note one */
} cup__uses;

typedef struct cup__node {
    const cup__row *row; /* or one of the next three */
    const cup_custom_op *custom; /* stands behind the attributes */
    cup_block block;
    cup_blocks blocks;
    void *block_user;
    int in_count, out_count;
    cup__saved *in, *out;
    cup__edge *edges;
    cup_tensor **d_out; /* gradients that have arrived, references */
    cup_tensor **retained; /* results whose gradient is wanted, references; or NULL */
    struct cup__uses *uses; /* of a block: the parameters used inside of it */
    void *attributes;
    uint32_t sequence;  /* of the random numbers */
    uint32_t share;     /* as cup__random has it */
    bool makes_again;   /* has saved what its op's `again` needs */
    cup_tensor *again;  /* the first result, computed again and not used up yet, a reference */
} cup__node;

/* Gradients of parameters that a node has yet to give, see cup__tape_hides. */
typedef struct cup__later {
    cup__node *node; /* no longer the tape's */
    const struct cup__walk *walk;
} cup__later;

#define CUP__LATER_MOST 2 /* at a time, since each keeps values */

typedef struct cup__tape {
    cup__node **nodes;
    size_t count, capacity;
    uint32_t generation; /* numbers of nodes are good within one generation */
    bool keep;           /* backward leaves what was recorded */
    bool walking;        /* a backward goes on */
    cup_recompute_policy again; /* see cup_recompute_results */
    cup__uses *inside;   /* of the block that is computed without being recorded; or NULL */
    int blocks;          /* that are computed again, one within the other */
    const cup__grad_watch *watch; /* of the next backward; or NULL */
    bool hides; /* what was recorded has sums between processes, see cup__tape_hides */
    bool began; /* one of those has begun */
    cup__later later[CUP__LATER_MOST];
    int later_count;
} cup__tape;

/* Where gradients go at the ends of one walk: what goes to an input of the walk is added to its
 * place in `out`, or without that to the tensor's own gradient; what goes to another parameter, as
 * the walk around this one says, at last to its own gradient. */
typedef struct cup__walk {
    cup_tensor *const *inputs;
    cup_tensor **out; /* references */
    int count;
    bool only;          /* what goes to no input is not wanted */
    const bool *needed; /* by node: whether it leads to an input; NULL: not known */
    bool keep;          /* leaves the nodes for another walk */
    const struct cup__walk *outer;
    const cup__grad_watch *watch;
} cup__walk;

bool cup__leads_to_parameter(cup_context *c, const cup_tensor *t);

/* The context's tape, made when there is none; NULL with an error when there is no memory. */
cup__tape *cup__tape_make(cup_context *c);

/* A tape of its own for one of several passes forward whose backwards come later, each to be in the
 * context's place meanwhile: exchange puts it there and gives what was there. NULL with an error
 * when there is no memory. */
cup__tape *cup__tape_new(cup_context *c, int number);
cup__tape *cup__tape_exchange(cup_context *c, cup__tape *other);
void cup__tape_free(cup__tape *tape);

/* Whether it is a block that is computed again. */
static inline bool cup__node_is_block(const cup__node *node)
{
    return node->block || node->blocks;
}

/* A new node at the end of the tape, cleared; NULL with an error when there is no memory. */
cup__node *cup__tape_node(cup_context *c, int in_count, int out_count, size_t attributes_size);

/* Links input i of the node to what made `t`; marks `t` as result of the last node. */
void cup__tape_link(cup_context *c, cup__node *node, int i, cup_tensor *t);
void cup__tape_mark(cup_context *c, cup_tensor *t, int output);

/* Notes those of the tensors that are parameters; frees what was noted. */
void cup__tape_use(cup__uses *uses, cup_tensor *const *in, int count);
void cup__uses_free(cup__uses *uses);
/* Sets the first uses of what is watched. */
void cup__tape_first_uses(cup_context *c, const cup__grad_watch *watch);
/* Who watches the backward that begins, or NULL, who is told of it. */
cup_status cup__tape_watched(cup_context *c, const cup__grad_watch **watch);

/* Fails where a callback of a call that goes on would go through the tape, or drop what is
 * recorded, beneath that call. `verb` is what it asked for. */
cup_status cup__tape_free_to(cup_context *c, const char *verb, bool drops);
/* Drops all. */
void cup__tape_drop(cup_context *c);

/* Frees the nodes from `count` on. */
void cup__tape_truncate(cup_context *c, size_t count);

/* Walks the nodes from number `last` down to number `first` + 1, of which there must be none after
 * `last` unless they are kept; frees each when done, or leaves it without gradients. */
cup_status cup__tape_walk(cup_context *c, const cup__walk *walk, size_t last, size_t first);

void cup__node_free(cup__node *node);

/* Backward through a recomputed block; sets d_in of the wanted inputs as a gradient function
 * does. */
cup_status cup__recompute_backward(cup_context *c, const cup__walk *walk, cup__node *node,
                                   const bool *wanted, cup_tensor **d_in);

/* Whether backward makes a value again that a call reads: then only what that takes is kept. */
bool cup__tape_makes_again(const cup_context *c, const cup_tensor *t);
/* The first result of a node, computed again once and then there until that node's own turn; NULL
 * with an error. */
cup_tensor *cup__tape_again(cup_context *c, uint32_t number);

/* Fails where a value that the node has saved was changed since. */
cup_status cup__tape_check(cup_context *c, const cup__node *node);

/* The first output of a user's op once more, from inputs of which those are there that it saves;
 * NULL with an error. */
cup_tensor *cup__custom_again(cup_context *c, const cup__node *node, cup_tensor *const *inputs);
/* Runs the backward of a user's op and checks what it gives. */
cup_status cup__custom_backward(cup_context *c, const cup__node *node, const cup_custom_grad *g);

/* Adds a gradient to what has arrived in a slot, which holds a reference. */
cup_status cup__grad_add(cup_context *c, cup_tensor **sum, cup_tensor *d);

/* The same at the end of a walk: what is there belongs to the caller and shares memory with
 * nothing. */
cup_status cup__grad_give(cup_context *c, cup_tensor **sum, cup_tensor *d);

/* Where the gradient of a parameter goes; NULL: nowhere. */
cup_tensor **cup__walk_end(const cup__walk *walk, cup_tensor *parameter);

/* For messages: "gelu", "a recomputed block". */
const char *cup__node_name(const cup__node *node);

#endif

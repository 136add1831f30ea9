/* What a context watches with CUP_DEBUG=1: tensors after their end, threads, released memory and
 * what is left in the end. Without it `debug` of the context is NULL, and asking that is all it
 * costs; every function here but the inline ones needs it. */
#ifndef CUP_TENSOR_DEBUG_H
#define CUP_TENSOR_DEBUG_H

#include "tensor/tensor.h"

#define CUP__MARK_TEXT 64

typedef struct cup__debug cup__debug;

cup_status cup__debug_open(cup_context *c);
/* Says what the program kept and did not free; from then on nothing is watched. */
void cup__debug_leaks(cup_context *c);
void cup__debug_close(cup_context *c);

/* A call of the public interface begins and ends. It has the context for itself: one in another
 * thread waits for its end, and fails. Calls inside of it are its own. */
void cup__debug_enter(cup_context *c, const char *name);
void cup__debug_leave(cup_context *c);

/* Of the op that runs, whose name new tensors are given; returns the one it runs inside of. */
const char *cup__debug_op(cup_context *c, const char *name);
/* Counts a call of an op, and how many there were. */
uint64_t cup__debug_count(cup_context *c);

/* The struct of a new tensor, and the last of one that nothing holds: it is not used again for
 * long, so that who still has it is told. */
cup_tensor *cup__debug_tensor(cup_context *c);
void cup__debug_bury(cup_tensor *t);
void cup__debug_poison(cup__storage *storage);

/* Its owner let go of it, and may not use it any more, whatever else still holds it. */
void cup__debug_gone(cup_tensor *t, const char *how);

/* CUP_STATE where `t` may not be used; `of_owner` says that the caller does not hold it, so that
 * its owner must. `what` names the use: "add: input 1". */
cup_status cup__debug_usable(const cup_tensor *t, bool of_owner, const char *what);

/* " (call 3, at train.c:40)": where the program is. Returns `out`. */
#define CUP__PLACE_TEXT 128
const char *cup__debug_place(cup_context *c, char out[CUP__PLACE_TEXT]);

/* Whether a NaN was named before; one is now. */
bool cup__debug_named(cup_context *c);
/* Whether calls are those of a search for NaNs, which is not searched itself. */
bool cup__debug_searching(const cup_context *c);
void cup__debug_search(cup_context *c, bool on);

static inline cup_context *cup__debug_in(cup_context *c, const char *name)
{
    if (!c || !c->debug)
        return NULL;
    cup__debug_enter(c, name);
    return c;
}

static inline void cup__debug_out(cup_context **c)
{
    if (*c)
        cup__debug_leave(*c);
}

/* At the head of a public function: it is a call until it returns. */
#define CUP__DEBUG_CALL(context)                                                                   \
    __attribute__((cleanup(cup__debug_out), unused)) cup_context *debug_call =                     \
        cup__debug_in(context, __func__)

static inline bool cup__usable(const cup_tensor *t, bool of_owner, const char *what)
{
    return t && (!t->context->debug || cup__debug_usable(t, of_owner, what) == CUP_OK);
}

#endif

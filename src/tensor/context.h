/* The inside of a context: one device, its scopes, tape, random state and first error. */
#ifndef CUP_TENSOR_CONTEXT_H
#define CUP_TENSOR_CONTEXT_H

#include "base/device.h"
#include "cupola/tensor.h"

struct cup__tape;
struct cup__bringer;
struct cup__coming;
struct cup__halves;
struct cup_graph;

/* What the layers below ask of a tape whose inside only the grad layer knows. */
struct cup__call;
typedef struct cup__tape_calls {
    bool (*wants)(cup_context *c, cup_tensor *const *in, int in_count);
    cup_status (*record)(struct cup__call *call);
    /* Whether gradients rely on what the tensor's memory holds being a recorded result. */
    bool (*holds)(const cup_tensor *t);
    void (*clear)(cup_context *c);
    void (*free)(cup_context *c);
} cup__tape_calls;

typedef struct cup__scope {
    cup_tensor *tensors; /* head of a doubly linked list */
    bool without_grad;   /* nothing is recorded in it */
    bool recorded;       /* whether it was before, to be so again */
} cup__scope;

/* Which of a dimension's places a call has that are parts of a whole: `half` from place[0] on, and
 * behind them as many from place[1] on, of `all`. */
typedef struct cup__stretches {
    int64_t all, half, place[2];
} cup__stretches;

/* Of the positions of a sequence, and of the keys that attention has beside its queries. */
typedef struct cup__stretched {
    cup__stretches rows, keys;
} cup__stretched;

/* Random numbers are a pure function of (seed, step, sequence, element): `state` holds seed and
 * step in device memory, so that a captured graph advances; `sequence` counts the calls of a
 * step that draw numbers. */
typedef struct cup__random {
    uint64_t *state; /* device memory: seed, step */
    uint64_t seed, step;
    uint32_t sequence;
    uint32_t share; /* of heads that processes share out: their number << 16 and this one's; or 0 */
    const cup__stretched *drawn; /* of sequences in parts: what dropout draws for; or NULL */
} cup__random;

/* What the layers above keep for a context: freed with it, in this order, before its device. */
typedef enum cup__slot_id {
    CUP__SLOT_PROGRAMS,  /* formulas that were made, see custom/program.h */
    CUP__SLOT_SCORES,    /* those that attention takes, see custom/score.c */
    CUP__SLOT_PRODUCTS,  /* of matrix products on a GPU, see ops/matmul/product_state.h */
    CUP__SLOT_CONVOLUTIONS, /* of those by cuDNN, see ops/conv/conv_cudnn.c */
    CUP__SLOT_TRANSFORMS, /* plans of cuFFT, see ops/fourier/fft_cufft.c */
    CUP__SLOT_FACTORS,   /* cuSOLVER, see ops/linalg/cusolver.c */
    CUP__SLOT_MEMOS,     /* what is remembered of calls, see dispatch/memo.h */
    CUP__SLOT_TUNED,     /* ways that were measured, see dispatch/tuned.h */
    CUP__SLOTS
} cup__slot_id;

typedef struct cup__slot {
    void *kept; /* NULL until its module makes it */
    void (*free)(void *kept);
} cup__slot;

/* What must come to rest before a context ends, as threads that fill its memory; asked for it
 * first of all. */
typedef struct cup__helper {
    void (*stop)(void *user);
    void *user;
    struct cup__helper *next;
} cup__helper;
void cup__helper_add(cup_context *c, cup__helper *helper);
void cup__helper_remove(cup_context *c, cup__helper *helper);

/* How far f32 matrix products may round on a GPU, see cup_precision. */
typedef enum cup__precision { CUP__HIGHEST, CUP__HIGH, CUP__MEDIUM } cup__precision;
extern const char *const cup__precision_names[];
cup_status cup__precision_find(cup__error *error, const char *name, cup__precision *out);

/* See tensor/moments.h. */
typedef struct cup__moments {
    bool wanted;
    cup_tensor *lines; /* [lines,columns,2], or NULL */
    const void *of;    /* memory of what they are of */
    int64_t line;      /* rows of one */
} cup__moments;

struct cup_context {
    cup__error error;
    cup__device *device;
    cup_options options;
    cup__scope *scopes; /* scopes[0] is the context's own and is never closed */
    size_t depth, scope_capacity;
    size_t unopened; /* scopes inside the innermost that there was no memory for */
    size_t floor;    /* open scopes, these included, that are not the caller's to close: see
                        cup__callback_begin; 0: none */
    int lent; /* ops and blocks of the caller's that run now, for which the tape has to stay */
    cup_tensor *kept;
    cup_tensor *held; /* in no scope and not kept, but by others: see CUP__SCOPE_NONE */
    cup_tensor *spare; /* structs to use again */
    struct cup__storage *spare_storage;
    struct cup__tape *tape;            /* made by the grad layer for the first parameter */
    const cup__tape_calls *tape_calls; /* NULL until then */
    bool recording;
    bool twice; /* the gradients that are computed are recorded, to be differentiated themselves */
    cup__random random;
    cup__precision precision;
    cup__moments moments;
    bool tuning; /* see cup_tuning */
    bool (*stop)(void *user); /* or NULL; asked before each op: true fails it, see cup__stopped */
    void *stop_user;
    bool away;                    /* some tensor's memory is or was, see tensor/away.h */
    struct cup__bringer *bringer; /* of that, or NULL */
    struct cup__coming *coming;   /* values on their way, a list; see tensor/coming.h */
    struct cup__halves *halves;   /* calls that wait for sums, see dispatch/halves.h; or NULL */
    int guests;  /* see cup__context_join */
    int holds;   /* those of them that hold memory, for which the device stays open */
    bool closed; /* freed, but for its guests */
    cup__helper *helpers;
    cup__slot slots[CUP__SLOTS];
    struct cup__debug *debug; /* see tensor/debug.h; NULL: nothing is watched */
    struct cup__finite *finite; /* see dispatch/finite.h; NULL: nothing is looked for */
    const char *preferences; /* what CUP_IMPL said when the context was made */
};

/* A context on the CPU with so many threads; 0: all. */
cup_context *cup__context_cpu(int threads);

/* A context on a dry GPU (cuda/dry.h), to learn which kernels an architecture needs. */
cup_context *cup__context_dry(const char *arch);

/* A context's calls on its own tensors, but on a dry GPU like its own (cuda/dry.h), so that the
 * kernels they need are noted and nothing is computed. What is made meanwhile is freed before the
 * end, gradients included. */
typedef struct cup__rehearsal {
    cup__device *device; /* the dry one meanwhile, the context's behind the end */
    cup__slot slots[CUP__SLOTS];
    cup__random random;
    bool (*stop)(void *user);
} cup__rehearsal;

cup_status cup__rehearsal_begin(cup_context *c, cup__rehearsal *r);
/* The context has its device again, with `device` the dry one, to be asked what was noted. Fails
 * where tensors made meanwhile were kept; they are freed. */
cup_status cup__rehearsal_end(cup_context *c, cup__rehearsal *r);
void cup__rehearsal_close(cup__rehearsal *r);

/* CUP_INTERRUPTED, also as the context's error, where its stop says so. */
cup_status cup__stopped(cup_context *c);

/* Begins a capture that shares the memory of a graph that is launched before it each time, and may
 * use what that graph has left in it. */
cup_status cup__capture_after(cup_context *c, struct cup_graph *before);

/* What a program makes of a context and frees by itself joins it, and leaves it when freed. Where
 * the context is freed first, its struct stays until the last guest left, with an error: so a
 * wrong order of freeing harms nobody. */
void cup__context_join(cup_context *c);
void cup__context_leave(cup_context *c);

/* Closes the innermost scope and leaves the tape alone. What else holds a tensor of it may go on
 * using it. */
void cup__scope_pop(cup_context *c);

/* While code of the caller's runs within a call, as an op or a block of its own: the scopes that
 * are open when it begins it cannot close. Behind it they are even where it closed all of its own;
 * the end closes those, and makes recording what it was. */
typedef struct cup__callback {
    size_t scopes, floor;
    bool recording;
} cup__callback;
void cup__callback_begin(cup_context *c, cup__callback *callback);
bool cup__callback_is_even(const cup_context *c, const cup__callback *callback);
void cup__callback_end(cup_context *c, const cup__callback *callback);

#endif

/* Arguments of the kernels of scaled_attention, as the host fills them and the kernels read them.
 * Plain C, included by both. */
#ifndef CUP_OPS_LOWBIT_SCALED_ATTENTION_CALL_CUH
#define CUP_OPS_LOWBIT_SCALED_ATTENTION_CALL_CUH

/* One number for each batch and head; NULL: all are 1. A distance of 0: they are alike. */
typedef struct head_scale {
    const float *data;
    long long batch, head;
} head_scale;

typedef struct head_scales {
    head_scale q, k, v;
} head_scales;

#define TURN_KEYS 128 /* of a block */
#define TURN_THREADS 256

/* The order of keys in turned values: byte i of a line of 16 is this one of 16 keys. And the order
 * of a thread's scores in a word of A: byte e of word r of 32 keys is this one of its 16, which lie
 * as wgmma.cuh says. Sums over keys are the same in any order that both sides have. */
#define TURNED_KEY(i) ((i) / 4 * 2 + (i) % 2 + (i) % 4 / 2 * 8)
#define HELD_SCORE(r, e) ((r) / 2 * 8 + (r) % 2 * 2 + (e) / 2 * 4 + (e) % 2)

/* Values [batch, kv_heads, keys, size] and what they become: [batch, kv_heads, size, room], where
 * room is the keys up to a multiple of 16. Strides in elements. */
typedef struct turn_call {
    const void *v;
    void *turned;
    long long batch, head, position;
    int kv_heads, keys, size, room;
} turn_call;

#endif

/* The one argument of the kernels of qkv_attention_read, as the host fills it and they read it.
 * Plain C, included by both. */
#ifndef CUP_OPS_ATTENTION_QKV_ATTENTION_READ_CALL_CUH
#define CUP_OPS_ATTENTION_QKV_ATTENTION_READ_CALL_CUH

#define READ_PAIRS 128

typedef struct read_call {
    const void *qkv, *position;
    void *keys, *values, *o;
    void *part; /* with several shares: [batch, heads, shares, size + 2] */
    int heads, kv_heads, size, length;
    int positions;     /* 1: all texts stand at the same */
    int share, shares; /* keys of a block, and blocks for all of them */
    int ahead;         /* bytes of keys, and as many of values, that a block asks for beforehand */
    int early;         /* whether the kernel in front leaves keys, values and places as they are */
    double scale;      /* of a score, for powers of 2 */
    double frequency[READ_PAIRS];
    double amplitude; /* of cosines and sines, where TURNED is 2 */
    const void *place; /* of the new key and value, like position, where PLACED */
    const void *slopes, *sinks; /* f32, or f64 as the rest; with SLOPES and SINKS */
    int window;        /* keys that are seen, with WINDOWED */
    double cap;        /* with SOFT_CAP a score is cap tanh(scale q k) */
    double factor;     /* with GROWS, of a base that grows from `original` positions on */
    int original;
} read_call;

#endif

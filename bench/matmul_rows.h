/* The products of bf16 that models make, which the benchmarks of products share: GPT-2 and Llama 3
 * of 8 and 70 billion weights, forward and both gradients. Include matmul_rig.h before. */
#ifndef BENCH_MATMUL_ROWS_H
#define BENCH_MATMUL_ROWS_H

typedef struct layer {
    const char *name;
    int64_t n, k; /* weight is n by k */
} layer;

enum { QKV2, OUT2, UP2, DOWN2, HEAD2, QKV8, OUT8, UP8, DOWN8, HEAD8, QKV70, OUT70, UP70, DOWN70,
       GATE8, CUBE1, CUBE2, CUBE4, CUBE8 };

static const layer layers[] = {
    [QKV2] = {"gpt2 qkv", 2304, 768},       [OUT2] = {"gpt2 out", 768, 768},
    [UP2] = {"gpt2 up", 3072, 768},         [DOWN2] = {"gpt2 down", 768, 3072},
    [HEAD2] = {"gpt2 head", 50304, 768},    [QKV8] = {"llama8 qkv", 6144, 4096},
    [OUT8] = {"llama8 out", 4096, 4096},    [UP8] = {"llama8 up", 28672, 4096},
    [DOWN8] = {"llama8 down", 4096, 14336}, [HEAD8] = {"llama8 head", 128256, 4096},
    [QKV70] = {"llama70 qkv", 10240, 8192}, [OUT70] = {"llama70 out", 8192, 8192},
    [UP70] = {"llama70 up", 57344, 8192},   [DOWN70] = {"llama70 down", 8192, 28672},
    [GATE8] = {"llama8 gate", 14336, 4096}, [CUBE1] = {"cube", 1024, 1024},
    [CUBE2] = {"cube", 2048, 2048},         [CUBE4] = {"cube", 4096, 4096},
    [CUBE8] = {"cube", 8192, 8192},
};

typedef enum pass { FORWARD, BY_X, BY_WEIGHT } pass;

static const char *const pass_names[] = {"NT", "NN dx", "TN dw"};

typedef struct row {
    int layer, tokens;
    pass pass;
} row;

#define ALL(layer, tokens)                                                                         \
    {layer, tokens, FORWARD}, {layer, tokens, BY_X}, {layer, tokens, BY_WEIGHT}
static const row rows[] = {
    ALL(QKV2, 32768),      ALL(OUT2, 32768),       ALL(UP2, 32768),        ALL(DOWN2, 32768),
    ALL(HEAD2, 32768),     ALL(QKV2, 4096),        ALL(DOWN2, 4096),       ALL(QKV8, 8192),
    ALL(OUT8, 8192),       ALL(UP8, 8192),         ALL(DOWN8, 8192),       ALL(OUT8, 2048),
    {QKV8, 1, FORWARD},    {DOWN8, 16, FORWARD},   {QKV8, 32, FORWARD},    {OUT8, 64, FORWARD},
    {UP8, 64, FORWARD},    {DOWN8, 64, FORWARD},   {QKV8, 128, FORWARD},   {OUT8, 128, FORWARD},
    {UP8, 128, FORWARD},   {DOWN8, 128, FORWARD},  {HEAD8, 128, FORWARD},  {QKV8, 512, FORWARD},
    {OUT8, 512, FORWARD},  {UP8, 512, FORWARD},    {DOWN8, 512, FORWARD},  {HEAD8, 4096, FORWARD},
    {QKV70, 64, FORWARD},  {DOWN70, 64, FORWARD},  {QKV70, 256, FORWARD},  {OUT70, 256, FORWARD},
    {UP70, 256, FORWARD},  {DOWN70, 1024, FORWARD}, {QKV70, 2048, FORWARD}, {OUT70, 2048, FORWARD},
    {OUT70, 4096, BY_X},   {OUT70, 4096, BY_WEIGHT}, {QKV70, 32768, FORWARD},
    {DOWN70, 4096, FORWARD}, {GATE8, 8192, FORWARD},  {CUBE1, 1024, FORWARD},
    {CUBE2, 2048, FORWARD},  {CUBE4, 4096, FORWARD},  {CUBE8, 8192, FORWARD},
};

static shape shape_of_row(const row *w)
{
    int64_t n = layers[w->layer].n, k = layers[w->layer].k, t = w->tokens;
    shape s = {t, n, k, 1, false, true, false, false, false, 1, CUP_BF16};
    if (w->pass == BY_X)
        s = (shape){t, k, n, 1, false, false, false, false, false, 1, CUP_BF16};
    else if (w->pass == BY_WEIGHT)
        s = (shape){n, k, t, 1, true, false, false, false, false, 1, CUP_BF16};
    return s;
}

#endif

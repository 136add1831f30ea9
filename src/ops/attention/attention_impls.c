/* The implementations of the rows of attention, and what they have in common. */
#include <string.h>

#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "ops/attention/attention.h"

#define INPUTS_MOST 16

cup__attention cup__attention_of(const cup__call *call)
{
    static cup__attention (*const of[])(const cup__call *) = {
        [CUP__ATTENTION] = cup__attention_of_three,
        [CUP__ATTENTION_GRAD] = cup__attention_of_three_grad,
        [CUP__QKV_ATTENTION] = cup__attention_of_one,
        [CUP__QKV_ATTENTION_GRAD] = cup__attention_of_one_grad,
        [CUP__ATTENTION_FORMULA] = cup__attention_of_formula,
        [CUP__ATTENTION_FORMULA_GRAD] = cup__attention_of_formula_grad,
    };
    return of[call->op->kind](call);
}

void cup__attention_infer_numbers(cup__call *call, int input, int first, const int64_t *sizes,
                                  bool bias_grad)
{
    cup_dtype dtype = call->in[0]->dtype == CUP_F64 ? CUP_F64 : CUP_F32;
    for (int i = 0; i < CUP__NUMBERED; i++)
        call->result[first + i] =
            cup__attention_extra(call, input + i)
                ? (cup__shape){dtype, 3, {sizes[0], sizes[1], sizes[2]}}
                : (cup__shape){dtype, 1, {0}};
    cup__shape *bias = &call->result[first + CUP__NUMBERED];
    *bias = (cup__shape){call->in[0]->dtype, 1, {0}};
    if (!bias_grad)
        return;
    bias->ndim = 4;
    memcpy(bias->size, sizes, 4 * sizeof *sizes);
}

static cup_status clear(cup_context *c, cup_tensor *t)
{
    if (!t || !t->count)
        return CUP_OK;
    bool was = c->recording;
    cup__zeros_attributes z = {.dtype = t->dtype, .shape_count = t->ndim};
    cup_tensor *out[CUP__MAX_OUT] = {t};
    memcpy(z.shape, t->shape, sizeof z.shape);
    c->recording = false;
    cup__op_call(c, &cup__rows[CUP__OP_zeros], NULL, 0, &z, out);
    c->recording = was;
    return c->error.status;
}

cup_status cup__attention_clear_bias(const cup__attention *a)
{
    return clear(a->c, a->d_bias);
}

cup_status cup__score_clear(const cup__attention *a)
{
    return clear(a->c, a->d_pairs);
}

static bool wants_bias(const cup__grad *g, int first)
{
    int i = first + CUP__BIAS;
    return i < g->in_count && g->in[i] && g->wanted[i];
}

cup_status cup__attention_back(cup__grad *g, const cup__row *row, cup_tensor *const *in, int count,
                               int first)
{
    union {
        cup__attention_grad_attributes three;
        cup__qkv_attention_grad_attributes one;
        char bytes[1];
    } to = {.one = {0}};
    for (const cup__attribute *b = row->attributes; b->name; b++) {
        size_t size = b->kind == CUP__KIND_BOOL  ? sizeof(bool)
                      : b->kind == CUP__KIND_INT ? sizeof(int)
                                                 : sizeof(int64_t);
        int64_t sequence = g->sequence;
        if (!strcmp(b->name, "sequence"))
            memcpy(to.bytes + b->offset, &sequence, size);
        bool of_bias = wants_bias(g, first);
        if (!strcmp(b->name, "bias_grad"))
            memcpy(to.bytes + b->offset, &of_bias, size);
        for (const cup__attribute *a = g->row->attributes; a->name; a++)
            if (!strcmp(a->name, b->name))
                memcpy(to.bytes + b->offset, (const char *)g->attributes + a->offset, size);
    }
    cup_tensor *made[CUP__MAX_OUT] = {NULL}, *all[INPUTS_MOST] = {NULL};
    memcpy(all, in, (size_t)count * sizeof *in);
    for (int i = first; i < g->in_count; i++)
        all[count + i - first] = g->in[i];
    cup__op_call(g->c, row, all, count + g->in_count - first, &to, made);
    int tensors = row->visible - CUP__NUMBERED - 1;
    for (int i = 0; i < tensors; i++)
        g->d_in[i] = made[i];
    for (int i = first; i < g->in_count && i < first + CUP__NUMBERED; i++)
        if (g->in[i] && g->wanted[i])
            g->d_in[i] = cup_sum(g->c, made[tensors + i - first], (int64_t[]){0, 2}, 2, false);
    int bias = first + CUP__BIAS;
    if (wants_bias(g, first) && made[row->visible - 1])
        g->d_in[bias] = cup__sum_to(g->c, made[row->visible - 1], &g->in_shape[bias]);
    return g->c->error.status;
}

/* As if the blocks of a list were different ones, and within what masks leave. */
static double keys_seen(const cup__attention *a, int64_t query)
{
    int64_t seen =
        cup__attention_end(&a->mask, 0, query) - cup__attention_first(&a->mask, 0, query);
    int64_t listed = a->lists.given ? a->lists.given->shape[3] * a->lists.size : seen;
    return (double)(listed < seen ? listed : seen);
}

/* Forward does two matrix products over the scores that the mask leaves, backward five. */
void cup__attention_cost(const cup__call *call, double *bytes, double *flops)
{
    cup__attention a = cup__attention_of(call);
    int kind = call->op->kind;
    bool backward = kind == CUP__ATTENTION_GRAD || kind == CUP__QKV_ATTENTION_GRAD ||
                    kind == CUP__ATTENTION_FORMULA_GRAD;
    double pairs = 0;
    /* As if all were one document: offsets may lie where they cannot be read. */
    a.mask.query_offsets = a.mask.key_offsets = NULL;
    for (int64_t query = 0; query < a.queries; query++)
        pairs += keys_seen(&a, query);
    double rows = (double)(a.queries * a.heads + a.keys * a.kv_heads);
    double size = (double)(a.batch * a.size);
    *bytes = (backward ? 4 : 2) * rows * size * (double)cup_dtype_size(a.dtype);
    *flops = (backward ? 5 : 2) * 2 * pairs * (double)a.heads * size;
}

#define RUN(name, by)                                                                              \
    cup_status name(cup__call *call)                                                               \
    {                                                                                              \
        cup__attention a = cup__attention_of(call);                                                \
        CUP_TRY(cup__attention_offsets_read(&a.mask, a.batch, &call->c->error));                   \
        CUP_TRY(cup__attention_clear_bias(&a));                                                    \
        CUP_TRY(cup__score_clear(&a));                                                             \
        return cup__attention_on_host(&a, by);                                                     \
    }
#define RUN_EVEN(name, by)                                                                         \
    static cup_status name(cup__attention *a)                                                      \
    {                                                                                              \
        cup__attention_evened all;                                                                 \
        CUP_TRY(cup__attention_even(a, &all));                                                     \
        return cup__attention_uneven(a, &all, by(a));                                              \
    }
#define RUN_CUDA(name, by)                                                                         \
    static cup_status name(cup__call *call)                                                        \
    {                                                                                              \
        cup__attention a = cup__attention_of(call);                                                \
        CUP_TRY(cup__attention_clear_bias(&a));                                                    \
        CUP_TRY(cup__score_clear(&a));                                                             \
        cup__attention_evened all;                                                                 \
        CUP_TRY(cup__attention_even(&a, &all));                                                    \
        return cup__attention_uneven(&a, &all, cup__attention_with_lists(&a, by));                \
    }
RUN(cup__attention_specification, cup__attention_plain)
RUN(cup__attention_specification_grad, cup__attention_plain_grad)
RUN_EVEN(cpu, cup__attention_cpu)
RUN_EVEN(cpu_grad, cup__attention_cpu_grad)
static RUN(run_cpu, cpu)
static RUN(run_cpu_grad, cpu_grad)
RUN_CUDA(run_hopper, cup__attention_hopper)
RUN_CUDA(run_hopper_grad, cup__attention_hopper_grad)
RUN_CUDA(run_pass, cup__attention_pass)
RUN_CUDA(run_rounded, cup__attention_rounded)
RUN_CUDA(run_rounded_grad, cup__attention_rounded_grad)
RUN_CUDA(run_flash, cup__attention_flash)
RUN_CUDA(run_flash_grad, cup__attention_flash_grad)
RUN_CUDA(run_decode, cup__attention_decode)
RUN_CUDA(run_simple, cup__attention_simple)
RUN_CUDA(run_simple_grad, cup__attention_simple_grad)

/* The tensor cores take probabilities and the gradients of scores rounded to 16 bits; the sums of
 * these are what is rounded again. */
#define ROUNDED 6
/* f32 is multiplied as the sum of two tf32, which have 22 bits, not 24. */
#define SPLIT 64

const cup__impl cup__attention_impls[] = {
    {.name = "blocks", .place = CUP__CPU, CUP__THRESHOLDS(32, 64),
     .strided = true, .refuses = cup__refuses_f64, .run = run_cpu},
    {.name = "decode", .place = CUP__CUDA, CUP__THRESHOLDS(16, 64, 256),
     .strided = true, .tolerance = ROUNDED,
     .refuses = cup__attention_decode_refuses, .run = run_decode},
    {.name = "decode_f32", .place = CUP__CUDA, CUP__THRESHOLDS(16, 64, 256),
     .strided = true, .tolerance = SPLIT,
     .refuses = cup__attention_decode_f32_refuses, .run = run_decode},
    {.name = "hopper", .place = CUP__CUDA, CUP__THRESHOLDS(64, 128, 192, 256, 320, 448, 576),
     .strided = true, .tolerance = ROUNDED,
     .refuses = cup__attention_hopper_refuses, .run = run_hopper},
    {.name = "flash", .place = CUP__CUDA, CUP__THRESHOLDS(16, 64, 128),
     .strided = true, .tolerance = ROUNDED,
     .refuses = cup__attention_flash_refuses, .run = run_flash},
    {.name = "rounded", .place = CUP__CUDA, .strided = true,
     .refuses = cup__attention_rounded_refuses, .run = run_rounded},
    {.name = "flash_f32", .place = CUP__CUDA, CUP__THRESHOLDS(16, 64, 128),
     .strided = true, .tolerance = SPLIT,
     .refuses = cup__attention_flash_f32_refuses, .run = run_flash},
    {.name = "plain", .place = CUP__CUDA, CUP__THRESHOLDS(256), .strided = true, .run = run_simple},
    {0},
};

const cup__impl cup__attention_grad_impls[] = {
    {.name = "blocks", .place = CUP__CPU, CUP__THRESHOLDS(32, 64),
     .strided = true, .refuses = cup__refuses_f64,
     .run = run_cpu_grad},
    {.name = "hopper_pass", .place = CUP__CUDA, CUP__THRESHOLDS(64, 128, 192, 256),
     .strided = true, .tolerance = 2 * ROUNDED,
     .refuses = cup__attention_pass_refuses, .run = run_pass},
    {.name = "hopper", .place = CUP__CUDA, CUP__THRESHOLDS(64, 128, 192, 256),
     .strided = true, .tolerance = 2 * ROUNDED,
     .refuses = cup__attention_hopper_grad_refuses, .run = run_hopper_grad},
    {.name = "flash", .place = CUP__CUDA, CUP__THRESHOLDS(16, 64, 128),
     .strided = true, .tolerance = 2 * ROUNDED,
     .refuses = cup__attention_flash_refuses, .run = run_flash_grad},
    {.name = "rounded", .place = CUP__CUDA, .strided = true,
     .refuses = cup__attention_rounded_grad_refuses, .run = run_rounded_grad},
    {.name = "flash_f32", .place = CUP__CUDA, CUP__THRESHOLDS(16, 64, 128),
     .strided = true, .tolerance = 2 * SPLIT,
     .refuses = cup__attention_flash_f32_refuses, .run = run_flash_grad},
    {.name = "plain", .place = CUP__CUDA, CUP__THRESHOLDS(256),
     .strided = true, .run = run_simple_grad},
    {0},
};

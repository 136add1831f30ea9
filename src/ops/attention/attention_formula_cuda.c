/* The host side of attention_formula.cuh: what kernels are told of a formula, and their text. */
#include <math.h>
#include <string.h>

#include "ops/attention/attention_launch.h"

attention_formula cup__attention_formula_of(const cup__attention *a)
{
    const cup__attention_score *s = &a->score;
    attention_formula to = {.rows_step = a->batch * a->heads * a->queries};
    to.pairs_step = to.rows_step * a->keys;
    if (!s->formula)
        return to;
    for (int i = 0; i < s->formula->tensors; i++) {
        const int64_t *step = s->tensor[i].stride;
        to.tensors[i] = (attention_pairs){s->tensor[i].tensor->data, step[0], step[1], step[2],
                                          step[3]};
    }
    for (int i = 0; i < CUP_EXPR_PARAMETERS; i++) {
        to.parameters_f64[i] = s->parameters[i];
        to.parameters[i] = (float)s->parameters[i];
        to.inverses[i] = (float)(1 / s->parameters[i]);
    }
    if (a->d_rows)
        to.d_rows = (attention_numbers){a->d_rows->data, a->d_rows->stride[1],
                                        a->d_rows->stride[2], a->d_rows->stride[3]};
    if (a->d_pairs)
        to.d_pairs = (attention_pairs){a->d_pairs->data, a->d_pairs->stride[1],
                                       a->d_pairs->stride[2], a->d_pairs->stride[3],
                                       a->d_pairs->stride[4]};
    return to;
}

int cup__attention_ahead(const cup__attention *a)
{
    uint32_t by_key = cup__score_varies(&a->score, 3);
    for (int i = 0; by_key >> i; i++)
        if (by_key >> i & 1 && a->score.tensor[i].tensor->dtype == a->dtype)
            return i;
    return -1;
}

static bool has_usual_parameters(const cup__attention_score *s)
{
    for (int i = 0; s->formula->parameters >> i; i++)
        if (s->formula->parameters >> i & 1 && !(fabs(s->parameters[i]) <= CUP__PARAMETER_MOST &&
                                                 fabs(s->parameters[i]) >= 1 / CUP__PARAMETER_MOST))
            return false;
    return true;
}

int cup__attention_formula_knobs(const cup__attention *a, cup__knob *out)
{
    const cup__attention_score *s = &a->score;
    const cup__score_formula *f = s->formula;
    uint32_t narrow = 0;
    int count = 0;
    if (!f)
        return 0;
    bool is_short = cup_dtype_size(a->dtype) == 2;
    for (int i = 0; i < f->tensors && is_short; i++)
        narrow |= a->score.tensor[i].tensor->dtype == a->dtype ? 1u << i : 0;
    const cup__knob all[] = {
        {"BY_QUERY", cup__score_varies(&a->score, 2)},
        {"BY_KEY", cup__score_varies(&a->score, 3)},
        {"NARROW", narrow},
        {"ROW_GRADS", a->row_grads},
        {"PAIR_GRADS", a->pair_grads},
        {"SHORT_MATH", is_short},
        {"UNUSUAL", !has_usual_parameters(s)},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].value)
            out[count++] = all[i];
    return count;
}

cup__kernel *cup__attention_kernel_get(const cup__attention *a, const char *file,
                                       const char *entry, const cup__knob *knobs, int count)
{
    cup__cuda *gpu = cup__cuda_of(a->c->device);
    cup__score_formula *f = a->score.formula;
    const char *text = f ? f->source(f, file) : NULL;
    if (!f)
        return cup__kernel_get(gpu, file, entry, knobs, count);
    if (!text) {
        cup__fail(&a->c->error, CUP_MEMORY, "out of host memory for the source of a formula");
        return NULL;
    }
    return cup__kernel_of_text(gpu, "score_formula.cu", text, entry, knobs, count);
}

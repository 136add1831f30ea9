#include "optim/orthogonal.h"

#include <math.h>

#include "base/memory.h"
#include "cuda/cuda.h"
#include "cupola/grad.h"
#include "dispatch/attributes.h"
#include "optim/update.h"

#define ROUNDS 5
/* A step has this root mean square, about that of AdamW's, so that one learning rate fits both. */
#define STEP_SIZE 0.2

/* Matrices of one shape and dtype, or parts of such ones alike. */
typedef struct group {
    cup_tensor *directions; /* [count, rows, columns] */
    int count;
    bool divided;
    cup__portion part; /* of the directions */
    double size; /* what orthogonal matrices of the shape are multiplied with */
} group;

struct cup__muon_steps {
    cup_context *c;
    int count, groups;
    bool single;
    cup__muon_matrix *matrices;
    group *group;
    cup_tensor **views; /* each matrix' place in its group's directions */
    cup_tensor *settings;
    cup_tensor **momentum, **step; /* the inputs of the two halves */
};

/* The rounds of Newton and Schulz, by Jordan's quintic: each takes a singular value s to
 * a s + b s^3 + c s^5, which lifts small ones quickly and leaves none far from 1. */
static cup_tensor *round_of(cup_context *c, cup_tensor *x, bool tall)
{
    const double a = 3.4445, b = -4.7750, quintic = 2.0315;
    cup_tensor *square = cup_matmul(c, x, x, tall, !tall);
    cup_tensor *fourth = cup_matmul(c, square, square, false, false);
    cup_tensor *polynomial = cup_add(c, cup_scale(c, square, b), cup_scale(c, fourth, quintic));
    cup_tensor *rest = tall ? cup_matmul(c, x, polynomial, false, false)
                            : cup_matmul(c, polynomial, x, false, false);
    return cup_add(c, cup_scale(c, x, a), rest);
}

cup_tensor *cup__orthogonal(cup_context *c, cup_tensor *x)
{
    cup_scope_open(c);
    int64_t axes[] = {-2, -1};
    cup_tensor *length = cup_norm(c, x, axes, 2, true);
    cup_tensor *least = length ? cup_full(c, length->dtype, 0, NULL, 1e-7) : NULL;
    x = cup_div(c, x, cup_add(c, length, least));
    bool tall = x && x->shape[x->ndim - 2] > x->shape[x->ndim - 1];
    for (int i = 0; i < ROUNDS && x; i++)
        x = round_of(c, x, tall);
    return cup_scope_return(c, x);
}

/* Rounds in bf16 where the card multiplies that much faster: what they make is rough anyway. */
static cup_dtype dtype_of_rounds(cup_context *c, bool single)
{
    if (single || !c->device->is_cuda || cup__cuda_facts(cup__cuda_of(c->device))->major < 8)
        return CUP_F32;
    return CUP_BF16;
}

/* Whole matrices, of which all that have parts make the same. */
static cup_tensor *whole_of(cup_context *c, const group *g, cup_tensor *x)
{
    return x && g->divided ? cup__part_gather(c, x, &g->part) : x;
}

static cup_tensor *own_of(cup_context *c, const group *g, cup_tensor *x)
{
    return x && g->divided ? cup__part_take(c, x, &g->part) : x;
}

static cup_status make_orthogonal(cup__muon_steps *m, const group *g)
{
    cup_context *c = m->c;
    cup_dtype rounds = dtype_of_rounds(c, m->single), own = g->directions->dtype;
    cup_scope_open(c);
    cup_tensor *x = own == rounds ? g->directions : cup_cast(c, g->directions, rounds);
    x = cup__orthogonal(c, whole_of(c, g, x));
    x = cup_scale(c, own_of(c, g, x), g->size);
    const cup__cast_attributes to = {own};
    cup_tensor *out = g->directions;
    if (x)
        cup__op_call(c, &cup__rows[CUP__OP_cast], &x, 1, &to, &out);
    cup_scope_return(c, NULL);
    return c->error.status;
}

static bool same_part(const cup__muon_matrix *a, const cup__muon_matrix *b)
{
    const cup__portion *x = &a->part, *y = &b->part;
    bool same = a->divided == b->divided;
    if (!same || !a->divided)
        return same;
    same = x->comm == y->comm && x->axis == y->axis && x->sections == y->sections;
    for (int i = 0; i < x->sections && same; i++)
        same = x->section[i] == y->section[i];
    return same;
}

static bool same_group(const cup__muon_matrix *a, const cup__muon_matrix *b)
{
    cup__shape x = cup__shape_of(a->value), y = cup__shape_of(b->value);
    return x.dtype == y.dtype && cup__shape_equal(&x, &y) && same_part(a, b);
}

/* What is orthogonal has the whole's shape. */
static double size_of(const cup__muon_matrix *first)
{
    cup__shape shape = first->divided ? cup__part_whole_shape(first->value, &first->part)
                                      : cup__shape_of(first->value);
    return STEP_SIZE * sqrt((double)(shape.size[0] > shape.size[1] ? shape.size[0]
                                                                    : shape.size[1]));
}

/* The group that begins with matrix `first`. */
static cup_status make_group(cup__muon_steps *m, int first)
{
    const cup_tensor *like = m->matrices[first].value;
    group *g = &m->group[m->groups++];
    for (int i = first; i < m->count; i++)
        g->count += same_group(&m->matrices[first], &m->matrices[i]);
    int64_t rows = like->shape[0], columns = like->shape[1];
    g->size = size_of(&m->matrices[first]);
    g->divided = m->matrices[first].divided;
    g->part = m->matrices[first].part;
    g->part.axis++;
    int64_t shape[] = {g->count, rows, columns};
    g->directions = cup_keep(cup_full(m->c, like->dtype, 3, shape, 0));
    if (!g->directions)
        return m->c->error.status;
    cup__shape one = cup__shape_of(like);
    int64_t stride[] = {columns, 1}, at = 0;
    for (int i = first; i < m->count; i++) {
        if (!same_group(&m->matrices[first], &m->matrices[i]))
            continue;
        m->views[i] = cup_keep(cup__tensor_view(g->directions, &one, stride, at));
        at += rows * columns;
    }
    return m->c->error.status;
}

static cup_status make_settings(cup__muon_steps *m)
{
    float *values = cup__malloc((size_t)m->count * CUP__SETTING_COUNT * sizeof *values);
    if (!values)
        return cup__fail(&m->c->error, CUP_MEMORY, "out of host memory for an optimizer");
    for (int i = 0; i < m->count; i++) {
        values[i * CUP__SETTING_COUNT + CUP__SETTING_RATE] = m->matrices[i].rate;
        values[i * CUP__SETTING_COUNT + CUP__SETTING_DECAY] = m->matrices[i].decay;
    }
    int64_t shape[] = {m->count, CUP__SETTING_COUNT};
    m->settings = cup_keep(cup_tensor_from(m->c, CUP_F32, 2, shape, values));
    cup__free(values);
    return m->c->error.status;
}

static cup_status make(cup__muon_steps *m, const cup__muon_matrix *matrices)
{
    size_t count = (size_t)m->count, inputs = CUP__RECORDS_AT + count * CUP__RECORD;
    m->matrices = cup__calloc(count, sizeof *m->matrices);
    m->group = cup__calloc(count, sizeof *m->group);
    m->views = cup__calloc(count, sizeof(cup_tensor *));
    m->momentum = cup__calloc(inputs, sizeof(cup_tensor *));
    m->step = cup__calloc(inputs, sizeof(cup_tensor *));
    if (!m->matrices || !m->group || !m->views || !m->momentum || !m->step)
        return cup__fail(&m->c->error, CUP_MEMORY, "out of host memory for an optimizer");
    for (int i = 0; i < m->count; i++)
        m->matrices[i] = matrices[i];
    CUP_TRY(make_settings(m));
    for (int i = 0; i < m->count; i++) {
        if (!m->views[i])
            CUP_TRY(make_group(m, i));
        cup_tensor **a = m->momentum + CUP__RECORDS_AT + i * CUP__RECORD;
        cup_tensor **b = m->step + CUP__RECORDS_AT + i * CUP__RECORD;
        a[CUP__VALUE] = m->views[i];
        a[CUP__FIRST] = m->matrices[i].first;
        b[CUP__VALUE] = m->matrices[i].value;
        b[CUP__MASTER] = m->matrices[i].master;
    }
    return CUP_OK;
}

cup__muon_steps *cup__muon_new(cup_context *c, const cup__muon_matrix *matrices, int count,
                               bool single)
{
    cup__muon_steps *m = cup__calloc(1, sizeof *m);
    if (!m) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for an optimizer");
        return NULL;
    }
    m->c = c;
    m->count = count;
    m->single = single;
    if (make(m, matrices) == CUP_OK)
        return m;
    cup__muon_free(m);
    return NULL;
}

void cup__muon_free(cup__muon_steps *m)
{
    if (!m)
        return;
    for (int i = 0; m->views && i < m->count; i++)
        cup_tensor_free(m->views[i]);
    for (int i = 0; m->group && i < m->groups; i++)
        cup_tensor_free(m->group[i].directions);
    cup_tensor_free(m->settings);
    cup__free(m->matrices);
    cup__free(m->group);
    cup__free(m->views);
    cup__free(m->momentum);
    cup__free(m->step);
    cup__free(m);
}

cup_status cup__muon_step_all(cup__muon_steps *m, cup_tensor *factors, double momentum,
                              bool stochastic)
{
    int inputs = CUP__RECORDS_AT + m->count * CUP__RECORD;
    m->momentum[0] = m->step[0] = factors;
    m->momentum[1] = m->step[1] = m->settings;
    for (int i = 0; i < m->count; i++) {
        int at = CUP__RECORDS_AT + i * CUP__RECORD + CUP__GRADIENT;
        m->momentum[at] = cup_grad(m->matrices[i].value);
        m->step[at] = m->momentum[at] ? m->views[i] : NULL;
    }
    const cup__muon_attributes a = {.momentum = momentum};
    const cup__muon_step_attributes b = {stochastic};
    cup_context *c = m->c;
    cup__op_call(c, &cup__rows[CUP__OP_muon], m->momentum, inputs, &a, NULL);
    for (int i = 0; i < m->groups && c->error.status == CUP_OK; i++)
        make_orthogonal(m, &m->group[i]);
    cup__op_call(c, &cup__rows[CUP__OP_muon_step], m->step, inputs, &b, NULL);
    return c->error.status;
}

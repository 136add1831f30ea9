#include "gradient_error.h"

#include <math.h>
#include <string.h>

#include "cupola/grad.h"
#include "dispatch/attributes.h"
#include "prof/check.h"

#define MOST_INPUTS 64
/* Elements of an input that are moved; fewer of large ones, whose calls take long, and one where it
 * is memory that is watched. */
#ifdef __SANITIZE_ADDRESS__
#define PROBES 1
#define PROBES_OF_LARGE 1
#else
#define PROBES 12
#define PROBES_OF_LARGE 4
#endif
#define LARGE 4096
#define STEP 1e-5

typedef struct probe {
    cup_context *c;
    const cup__row *row;
    const cup__sample *sample;
    cup_tensor *in[MOST_INPUTS];
    int count;
    cup_tensor *weights[CUP__MAX_OUT];
} probe;

/* sum over the visible results of weights * result: a loss that no gradient can hide from. */
static cup_tensor *loss_of(probe *p)
{
    cup_tensor *out[CUP__MAX_OUT] = {NULL}, *loss = NULL;
    cup_tensor *in[MOST_INPUTS];
    if (p->row->op->random)
        cup_random_step(p->c, 1);
    memcpy(in, p->in, sizeof in);
    if (cup__overwrites(p->row->op, p->sample->attributes))
        in[0] = cup_scale(p->c, in[0], 1);
    if (!cup__op_call(p->c, p->row, in, p->count, p->sample->attributes, out))
        return NULL;
    for (int i = 0; i < p->row->visible; i++) {
        if (out[i]->dtype != CUP_F64)
            continue; /* rounding would hide the differences */
        cup__shape shape = cup__shape_of(out[i]);
        if (!p->weights[i]) {
            p->weights[i] = cup__full(p->c, &shape, 0);
            double *w = p->weights[i] ? p->weights[i]->data : NULL;
            for (int64_t k = 0; w && k < out[i]->count; k++)
                w[k] = sin(1.0 + (double)k * 0.7 + i);
        }
        cup_tensor *part = cup_sum(p->c, cup_mul(p->c, out[i], p->weights[i]), NULL, 0, false);
        loss = loss ? cup_add(p->c, loss, part) : part;
    }
    return loss;
}

static double loss_at(probe *p, double *element, double value)
{
    double before = *element;
    cup_scope_open(p->c);
    *element = value;
    double loss = cup_tensor_item(loss_of(p));
    *element = before;
    cup__scope_pop(p->c);
    return loss;
}

static double worst_of_input(probe *p, cup_tensor *in)
{
    cup_tensor *d = cup_grad(in);
    double worst = 0;
    int probes = in->count > LARGE ? PROBES_OF_LARGE : PROBES;
    for (int k = 0; k < probes && k < in->count; k++) {
        int64_t at =
            in->count <= PROBES ? k : (int64_t)((uint64_t)k * 2654435761u % (uint64_t)in->count);
        double *element = (double *)in->data + at;
        double step = STEP * (1 + fabs(*element));
        double up = loss_at(p, element, *element + step);
        double down = loss_at(p, element, *element - step);
        double numeric = (up - down) / (2 * step);
        double analytic = d ? cup__load(d, at) : 0;
        double error = fabs(numeric - analytic) / (1 + fabs(numeric));
        if (!(error <= worst))
            worst = error;
    }
    return worst;
}

double test_gradient_error(cup_context *c, const cup__row *row, const cup__sample *sample)
{
    probe p = {.c = c, .row = row, .sample = sample};
    double worst = 0;
    p.count = cup__sample_inputs(c, row, sample, CUP_F64, CUP_F64, CUP__ROW_MAJOR, 7, p.in,
                                 MOST_INPUTS);
    if (p.count < 0)
        return NAN;
    for (int i = 0; i < p.count; i++)
        if (p.in[i] && p.in[i]->dtype == CUP_F64)
            cup_require_grad(p.in[i]);
    cup_tensor *loss = loss_of(&p);
    if (!loss)
        return c->error.status == CUP_OK ? 0 : NAN;
    if (cup_backward(c, loss) != CUP_OK)
        return NAN;
    bool was = cup_grad_recording(c, false);
    for (int i = 0; i < p.count && c->error.status == CUP_OK; i++)
        if (p.in[i] && p.in[i]->is_parameter)
            worst = fmax(worst, worst_of_input(&p, p.in[i]));
    cup_grad_recording(c, was);
    return c->error.status == CUP_OK ? worst : NAN;
}

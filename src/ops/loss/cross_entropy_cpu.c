/* Cross-entropy on all cores, a row at a time in single precision. */
#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/loss/cross_entropy.h"
#include "ops/elementwise/pointwise.h"
#include "ops/loss/softmax.h"
#include "tensor/floats.h"

#define GRAIN 32768

typedef struct job {
    cup__cross_entropy e;
    cup__call *call;
    cup_tensor *to; /* where slopes go, or NULL */
    double *losses; /* one a row */
    double factor;  /* of the slopes */
    float *buffers; /* two rows a task */
    int64_t tasks;
    bool is_grad;
} job;

CUP__WIDE static void slopes(float *to, const float *x, int64_t count, float lse, float factor,
                             float offset)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = cup__exp_f32(x[i] - lse) * factor - offset;
}

static void put_slopes(const job *j, int64_t row, const float *x, float lse, float *buffer)
{
    const cup__cross_entropy *e = &j->e;
    cup_tensor *to = j->to;
    bool direct = to->dtype == CUP_F32;
    float *slope = direct ? (float *)to->data + row * e->width : buffer;
    double factor = cup__target_counts(e, row) ? j->factor : 0;
    if (factor == 0) {
        memset(slope, 0, (size_t)e->width * sizeof *slope);
    } else {
        slopes(slope, x, e->classes, lse,
               (float)(factor * (1 + 2 * e->z_loss * (double)lse)),
               (float)(factor * e->smoothing / (double)e->classes));
        slope[cup__target_of(e, row)] -= (float)(factor * (1 - e->smoothing));
        memset(slope + e->classes, 0, (size_t)(e->width - e->classes) * sizeof *slope);
    }
    if (!direct)
        cup__floats_write(to, row * e->width, 1, slope, e->width);
}

static void run_row(const job *j, int64_t row, float *buffer)
{
    const cup__cross_entropy *e = &j->e;
    const float *x = cup__floats_of(e->logits, row * e->width, e->classes, buffer);
    if (j->is_grad) {
        put_slopes(j, row, x, ((const float *)j->call->in[2]->data)[row], buffer + e->width);
        return;
    }
    float most = cup__row_shift(x, e->classes);
    double lse = (double)most + log(cup__row_exp(NULL, x, e->classes, most));
    double loss = 0, s = e->smoothing;
    if (cup__target_counts(e, row)) {
        double mean = s > 0 ? cup__row_sum(x, e->classes) / (double)e->classes : 0;
        loss = lse - (1 - s) * (double)x[cup__target_of(e, row)] - s * mean + e->z_loss * lse * lse;
    }
    j->losses[row] = loss;
    if (j->call->out_count > 1)
        ((float *)j->call->out[1]->data)[row] = (float)lse;
    if (j->to)
        put_slopes(j, row, x, (float)lse, buffer + e->width);
}

static void run_task(int64_t begin, int64_t end, void *user)
{
    const job *j = user;
    for (int64_t task = begin; task < end; task++) {
        int64_t row = j->e.rows * task / j->tasks, last = j->e.rows * (task + 1) / j->tasks;
        for (; row < last; row++)
            run_row(j, row, j->buffers + task * 2 * j->e.width);
    }
}

static cup_status run(job *j)
{
    const cup__cross_entropy *e = &j->e;
    j->tasks = e->rows * e->width / GRAIN + 1;
    j->tasks = j->tasks > cup__threads() ? cup__threads() : j->tasks;
    cup__shape shape = {.dtype = CUP_F32, .ndim = 1, .size = {2 * (j->tasks * e->width + e->rows)}};
    cup_tensor *memory = cup__tensor_make(j->call->c, &shape, "rows");
    if (!memory)
        return j->call->c->error.status;
    j->losses = memory->data;
    j->buffers = (float *)memory->data + 2 * e->rows;
    cup__parallel_for(j->tasks, 1, run_task, j);
    double loss = 0;
    for (int64_t row = 0; row < e->rows && !j->is_grad; row++)
        loss += j->losses[row];
    if (!j->is_grad)
        cup__store(j->call->out[0], 0, loss * j->factor);
    cup_tensor_free(memory);
    return CUP_OK;
}

const char *cup__cross_entropy_cpu_refuses(const cup__call *call)
{
    return call->in[0]->dtype == CUP_F64 ? "it computes in single precision" : NULL;
}

cup_status cup__cross_entropy_cpu(cup__call *call)
{
    job j = {.e = cup__cross_entropy_of(call), .call = call};
    CUP_TRY(cup__cross_entropy_share(call, &j.e, &j.factor));
    if (j.e.in_place)
        j.to = j.e.logits;
    if (call->out_count > 2)
        cup__store(call->out[2], 0, j.factor);
    return run(&j);
}

cup_status cup__cross_entropy_grad_cpu(cup__call *call)
{
    job j = {.e = cup__cross_entropy_of(call), .call = call, .to = call->out[0], .is_grad = true};
    CUP_TRY(cup__cross_entropy_share(call, &j.e, &j.factor));
    j.factor = cup__load(call->in[3], 0) * cup__load(call->in[4], 0);
    return run(&j);
}

/* How what was made in a list behaves, and what its layers have in common. */
#include <math.h>

#include "base/env.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "cupola/facts.h"
#include "nn/parameters.h"
#include "tensor/context.h"

#define FALL 8 /* the last of the heads' slopes is 2^-8 */

static bool switched(bool *at, bool on)
{
    bool was = *at;
    *at = on;
    return was;
}

bool cup_parameters_training(cup_parameters *list, bool on)
{
    return list && switched(&cup__parameters_modes_of(list)->training, on);
}

bool cup__parameters_is_training(const cup_parameters *list)
{
    return cup__parameters_modes_of(list)->training;
}

bool cup_parameters_fp8(cup_parameters *list, bool on)
{
    return list && switched(&cup__parameters_modes_of(list)->fp8, on);
}

bool cup_parameters_sequence(cup_parameters *list, bool on)
{
    return list && switched(&cup__parameters_modes_of(list)->sequence, on);
}

cup_status cup_parameters_together(cup_parameters *list, cup_comm *m)
{
    if (!list)
        return CUP_ARGUMENT;
    CUP_TRY(cup__parameters_context(list)->error.status);
    cup__parameters_modes_of(list)->sharing = cup_comm_count(m) > 1 ? m : NULL;
    return CUP_OK;
}

cup_comm *cup__parameters_sharing(const cup_parameters *list)
{
    return cup__parameters_modes_of(list)->sharing;
}

cup_status cup_parameters_ring(cup_parameters *list, cup_comm *m)
{
    if (!list)
        return CUP_ARGUMENT;
    CUP_TRY(cup__parameters_context(list)->error.status);
    cup__parameters_modes_of(list)->ring = cup_comm_count(m) > 1 ? m : NULL;
    return CUP_OK;
}

cup_comm *cup_parameters_ring_comm(const cup_parameters *list)
{
    return list ? cup__parameters_modes_of(list)->ring : NULL;
}

cup_tensor *cup_parameters_documents(cup_parameters *list, cup_tensor *ends)
{
    if (!list)
        return NULL;
    cup_tensor **at = &cup__parameters_modes_of(list)->documents, *was = *at;
    *at = ends;
    return was;
}

/* Who has parts of it must be known before any is made. */
static cup_status share_out(cup_parameters *list, cup_comm *m, cup_comm **place)
{
    cup_context *c = cup__parameters_context(list);
    const cup__parameters_modes *modes = cup__parameters_modes_of(list);
    const char *first = cup__parameters_first(list);
    CUP_TRY(c->error.status);
    if (first)
        return cup__fail(&c->error, CUP_STATE,
                         "parameters: %.200s is there already; say among whom a list is shared out "
                         "before anything is made in it",
                         first);
    *place = cup_comm_count(m) > 1 ? m : NULL;
    int experts = cup_comm_count(modes->experts), all = cup_comm_count(modes->among);
    if (experts == 1 || experts % all == 0)
        return CUP_OK;
    *place = NULL;
    return cup__fail(&c->error, CUP_UNSUPPORTED,
                     "parameters: %d processes share out a list's experts and %d all else that is "
                     "in it; let whole groups of these share out the experts",
                     experts, all);
}

/* What CUP_COMM_BESIDE says. Halves fill a GPU, and none of the processes has a larger one. */
#define HALVES 2
#define HALVES_ALWAYS 3
#define WAVES 2

static cup_status set_halves(cup_context *c, cup__parameters_modes *modes, int64_t beside)
{
    cup_gpu gpu;
    modes->half_tiles = beside == HALVES_ALWAYS ? 0 : -1;
    if (!modes->among || beside != HALVES)
        return CUP_OK;
    modes->half_tiles = cup_gpu_of(c, &gpu) ? WAVES * gpu.multiprocessors : -1;
    return cup_comm_agree(modes->among, &modes->half_tiles, 1);
}

cup_status cup_parameters_among(cup_parameters *list, cup_comm *m)
{
    int64_t beside;
    if (!list)
        return CUP_ARGUMENT;
    cup__parameters_modes *modes = cup__parameters_modes_of(list);
    cup_context *c = cup__parameters_context(list);
    CUP_TRY(cup__env_integer(&c->error, CUP__ENV_COMM_BESIDE, &beside));
    CUP_TRY(share_out(list, m, &modes->among));
    modes->beside = beside;
    CUP_TRY(set_halves(c, modes, beside));
    return modes->among && beside ? cup__comm_sum_direct(m) : CUP_OK;
}

cup_comm *cup_parameters_comm(const cup_parameters *list)
{
    return list ? cup__parameters_modes_of(list)->among : NULL;
}

cup_status cup_parameters_experts(cup_parameters *list, cup_comm *m)
{
    return list ? share_out(list, m, &cup__parameters_modes_of(list)->experts) : CUP_ARGUMENT;
}

cup_comm *cup_parameters_experts_comm(const cup_parameters *list)
{
    return list ? cup__parameters_modes_of(list)->experts : NULL;
}

cup_comm *cup__parameters_sharers(const cup_parameters *list)
{
    const cup__parameters_modes *modes = cup__parameters_modes_of(list);
    return modes->experts ? modes->experts : modes->among;
}

typedef struct cup__slopes slopes;
struct cup__slopes {
    slopes *next;
    cup_tensor *tensor; /* held */
    int first, all;
};

/* Of heads whose number is no power of two the first have the slopes of the largest power below
 * it, and the others each second one of twice as many. */
static double slope_of(int head, int all)
{
    int even = 1;
    while (even <= all / 2)
        even *= 2;
    double number = head < even ? head + 1 : head - even + 0.5;
    return exp2(-FALL * number / even);
}

static cup_tensor *make_slopes(cup_context *c, cup_dtype dtype, int first, int count, int all)
{
    double *wide = cup__malloc((size_t)count * sizeof *wide);
    float *narrow = (float *)(void *)wide;
    if (!wide) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for the slopes of attention");
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        double slope = slope_of(first + i, all);
        if (dtype == CUP_F64)
            wide[i] = slope;
        else
            narrow[i] = (float)slope;
    }
    cup_tensor *t = cup_keep(cup_tensor_from(c, dtype, 1, (int64_t[]){count}, wide));
    cup__free(wide);
    return t;
}

cup_tensor *cup__parameters_slopes(cup_parameters *list, cup_dtype dtype, int first, int count,
                                   int all)
{
    cup_context *c = cup__parameters_context(list);
    cup__parameters_modes *modes = cup__parameters_modes_of(list);
    for (slopes *s = modes->slopes; s; s = s->next)
        if (s->tensor->dtype == dtype && s->tensor->count == count && s->first == first &&
            s->all == all)
            return s->tensor;
    slopes *s = cup__malloc(sizeof *s);
    cup_tensor *t = s ? make_slopes(c, dtype, first, count, all) : NULL;
    if (!t) {
        if (!s)
            cup__fail(&c->error, CUP_MEMORY, "out of host memory for the slopes of attention");
        cup__free(s);
        return NULL;
    }
    cup__tensor_retain(t);
    *s = (slopes){modes->slopes, t, first, all};
    modes->slopes = s;
    return t;
}

void cup__parameters_slopes_free(cup_parameters *list)
{
    for (slopes *s = cup__parameters_modes_of(list)->slopes; s;) {
        slopes *next = s->next;
        if (!cup__parameters_context(list)->closed)
            cup_tensor_free(s->tensor);
        cup__tensor_release(s->tensor);
        cup__free(s);
        s = next;
    }
}

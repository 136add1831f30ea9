/* How what was made in a list behaves. */
#include "nn/parameters.h"
#include "tensor/context.h"

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

/* Who has parts of it must be known before any is made, and is of one kind. */
static cup_status share_out(cup_parameters *list, cup_comm *m, cup_comm **place,
                            const cup_comm *other)
{
    cup_context *c = cup__parameters_context(list);
    const char *first = cup__parameters_first(list);
    CUP_TRY(c->error.status);
    if (first)
        return cup__fail(&c->error, CUP_STATE,
                         "parameters: %.200s is there already; say among whom a list is shared out "
                         "before anything is made in it",
                         first);
    if (other && cup_comm_count(m) > 1)
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "parameters: processes share out a list's experts or all that is in it, "
                         "not both; leave one of them out");
    *place = cup_comm_count(m) > 1 ? m : NULL;
    return CUP_OK;
}

cup_status cup_parameters_among(cup_parameters *list, cup_comm *m)
{
    cup__parameters_modes *modes = list ? cup__parameters_modes_of(list) : NULL;
    return list ? share_out(list, m, &modes->among, modes->experts) : CUP_ARGUMENT;
}

cup_comm *cup_parameters_comm(const cup_parameters *list)
{
    return list ? cup__parameters_modes_of(list)->among : NULL;
}

cup_status cup_parameters_experts(cup_parameters *list, cup_comm *m)
{
    cup__parameters_modes *modes = list ? cup__parameters_modes_of(list) : NULL;
    return list ? share_out(list, m, &modes->experts, modes->among) : CUP_ARGUMENT;
}

cup_comm *cup_parameters_experts_comm(const cup_parameters *list)
{
    return list ? cup__parameters_modes_of(list)->experts : NULL;
}

cup_comm *cup__parameters_sharers(const cup_parameters *list)
{
    const cup__parameters_modes *modes = cup__parameters_modes_of(list);
    return modes->among ? modes->among : modes->experts;
}

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

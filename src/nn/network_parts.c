/* What others ask about the tensors of a network. */
#include "cupola/functions.h"
#include "nn/network.h"

bool cup__network_is_sized(const cup_network *n, const cup_tensor *t)
{
    for (int i = 0; i < n->count; i++) {
        const cup__network_step *s = &n->steps[i];
        if (s->sized && (s->as.linear.weight == t || s->as.linear.bias == t))
            return true;
    }
    return false;
}

cup_tensor *cup__network_positions(const cup_network *n, const cup_tensor *t,
                                   const cup_network *from)
{
    for (int i = 0; i < n->count && i < from->count; i++) {
        const cup__network_step *s = &n->steps[i], *f = &from->steps[i];
        if (s->kind != CUP__STEP_POSITIONS || s->tensor != t || f->kind != s->kind ||
            !s->places[0] || !f->places[0] || s->before != f->before)
            continue;
        return cup_interpolate_positions(n->c, f->tensor, f->before, f->places, s->places);
    }
    return NULL;
}

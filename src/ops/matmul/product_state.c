#include "ops/matmul/product_state.h"

#include "base/memory.h"
#include "ops/f32_split/split_call.cuh"
#include "tensor/context.h"

static void state_free(void *user)
{
    cup__product_state *state = user;
    cup__product_cublaslt_close(state);
    if (state->workspace)
        state->device->calls->release(state->device, state->workspace);
    cup__free(state);
}

cup__product_state *cup__product_state_of(cup_context *c)
{
    cup__slot *slot = &c->slots[CUP__SLOT_PRODUCTS];
    if (slot->kept)
        return slot->kept;
    cup__product_state *state = cup__calloc(1, sizeof *state);
    if (!state) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for matrix products");
        return NULL;
    }
    size_t counters = (CUP__COUNTERS + SPLIT_WORDS) * sizeof *state->counters;
    cup__device *device = state->device = c->device;
    if (device->calls->allocate(device, CUP__WORKSPACE_BYTES + counters,
                                "matrix product workspace", &state->workspace) != CUP_OK) {
        cup__free(state);
        return NULL;
    }
    state->counters = (unsigned *)((char *)state->workspace + CUP__WORKSPACE_BYTES);
    state->split = state->counters + CUP__COUNTERS;
    if (device->calls->fill(device, state->counters, 0, counters) != CUP_OK) {
        state_free(state);
        return NULL;
    }
    *slot = (cup__slot){state, state_free};
    return state;
}

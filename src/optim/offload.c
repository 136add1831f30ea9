/* States in the host's memory, which the kernels of a GPU read and write over the bus. */
#include "dispatch/attributes.h"
#include "optim/optimizer.h"

cup_tensor *cup__optimizer_room(cup_optimizer *o, const cup__shape *shape)
{
    return o->options.offload && o->c->device->is_cuda
               ? cup__tensor_pinned(o->c, shape, "the optimizer's states")
               : cup__full(o->c, shape, 0);
}

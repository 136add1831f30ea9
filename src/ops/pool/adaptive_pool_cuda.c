/* Adaptive pooling on the GPU: its knobs, and as many planes a launch as 32 bits can number. */
#include "cuda/cuda.h"
#include "ops/pool/adaptive_call.cuh"
#include "ops/pool/pool.h"

#define MOST_INDEX ((int64_t)INT32_MAX - 65536)
#define WINDOW_SHARE 16 /* elements of a window for a thread, from which it has several */
#define MOST_WARP 4096  /* elements of a window that a warp takes */

const char *cup__adaptive_cuda_refuses(const cup__call *call)
{
    cup__pooling p = cup__pooling_of(call);
    for (int d = 0; d < 2; d++)
        if ((p.in[d] + 1) * (p.out[d] + 1) > INT32_MAX)
            return "its sides are too long for 32 bits";
    int64_t inner = p.inner ? p.inner : 1;
    return p.in[0] * p.in[1] > MOST_INDEX / inner || p.out[0] * p.out[1] > MOST_INDEX / inner
               ? "a plane is too large for 32 bits"
               : NULL;
}

/* Threads of a window: several for a large one, so that enough of the card works. */
static int group_of(const cup__pooling *p)
{
    int64_t elements = p->window[0] * p->window[1];
    int group = 1;
    while (group < 32 && group * WINDOW_SHARE < elements)
        group *= 2;
    return elements > MOST_WARP ? ADAPTIVE_THREADS : group;
}

static cup_status launch(cup__call *call, const cup__pooling *p, const cup_tensor *places,
                         const adaptive_call *c, int vec)
{
    bool is_grad = call->op->kind & CUP__POOL_GRAD;
    int group = is_grad ? 1 : group_of(p);
    cup__knob knobs[] = {{"CUP_T", call->in[0]->dtype},
                         {"MAX", p->is_max},
                         {"VEC", vec},
                         {"BACKWARD", is_grad},
                         {"GROUP", group},
                         {"LAST", p->inner > 1},
                         {"PLACE", places ? (int64_t)places->dtype : -1}};
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__kernel *kernel = cup__kernel_get(gpu, "adaptive_pool.cu",
                                          is_grad ? "adaptive_bwd" : "adaptive_fwd", knobs, 7);
    int64_t items = ADAPTIVE_THREADS / group;
    cup__grid grid = {.x = (c->count + items - 1) / items, .threads = ADAPTIVE_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(*c));
}

cup_status cup__adaptive_cuda(cup__call *call)
{
    cup__pooling p = cup__pooling_of(call);
    bool is_grad = call->op->kind & CUP__POOL_GRAD;
    const cup_tensor *x = call->in[0], *y = call->out[0];
    const cup_tensor *places = call->out_count > 1 ? call->out[1] : NULL;
    if (is_grad && p.is_max)
        places = call->in[1];
    int vec = cup__pool_vector(x, p.inner, 16);
    vec = cup__pool_vector(y, p.inner, vec);
    vec = places ? cup__pool_vector(places, p.inner, vec) : vec;
    int64_t in_plane = p.in[0] * p.in[1] * p.inner, out_plane = p.out[0] * p.out[1] * p.inner;
    int64_t read = is_grad ? out_plane : in_plane, written = is_grad ? in_plane : out_plane;
    int64_t size = cup_dtype_size(x->dtype), most = MOST_INDEX / written;
    for (int64_t i = 0; i < p.planes; i += most) {
        int64_t planes = p.planes - i < most ? p.planes - i : most;
        adaptive_call c = {.x = (const char *)x->data + i * read * size,
                           .y = (char *)y->data + i * written * size,
                           .count = (unsigned)(planes * written / vec),
                           .inner = divisor_of(p.inner / vec),
                           .reach = (int)p.window[1]};
        if (places)
            c.places = (char *)places->data + i * out_plane * cup_dtype_size(places->dtype);
        for (int d = 0; d < 2; d++) {
            c.in[d] = divisor_of(p.in[d]);
            c.out[d] = divisor_of(p.out[d]);
        }
        CUP_TRY(launch(call, &p, places, &c, vec));
    }
    return CUP_OK;
}

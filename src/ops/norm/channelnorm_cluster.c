/* Batchnorm and groupnorm of planes on Hopper and later, in one pass: knobs and launches of
 * channelnorm_cluster.cu. */
#include "base/divide.h"
#include "dispatch/attributes.h"
#include "ops/norm/channelnorm_cuda.h"
#include "dispatch/rows.h"

#define BLOCK 256
#define WARPS (BLOCK / 32)
#define PART 4096       /* bytes of a part, at most */
#define PLANE_LEAST 512 /* bytes of a plane, below which copies are too small */
#define SPARE 2048      /* shared memory of a block for other things */
#define CLUSTER_MOST 2  /* larger ones wait for each other longer than a second reading takes */
#define BLOCKS_MOST 2

typedef struct cluster_plan {
    channels_call call;
    int cluster, slots, blocks; /* blocks that run at once on a multiprocessor */
    int64_t shared, clusters;
} cluster_plan;

/* Clusters large enough to hold what is behind a statistic, and so that all multiprocessors have
 * work. Says why not when that cannot be. */
static const char *plan_cluster(cluster_plan *p, const cup__gpu_facts *facts, int bytes)
{
    int64_t tasks = p->call.tasks, all = p->call.before * p->call.each * p->call.parts;
    int64_t room = facts->shared_per_block, slot = (int64_t)p->call.part * bytes;
    int64_t most = (room - SPARE) / (slot * WARPS);
    p->cluster = 1;
    while (p->cluster < CLUSTER_MOST &&
           (divide_up(divide_up(all, p->cluster), WARPS) > most ||
            (tasks * p->cluster < facts->multiprocessors * 9 / 10 && all >= 4 * p->cluster)))
        p->cluster *= 2;
    p->slots = (int)divide_up(divide_up(all, p->cluster), WARPS);
    if (p->slots > most)
        return "what is behind one mean does not fit into the shared memory of a cluster";
    if (tasks * p->cluster < facts->multiprocessors / 3)
        return "too few multiprocessors would have work";
    p->shared = slot * WARPS * p->slots;
    p->blocks = (int)(room / (p->shared + SPARE));
    if (p->blocks > BLOCKS_MOST)
        p->blocks = BLOCKS_MOST;
    p->clusters = (int64_t)facts->multiprocessors / p->cluster * p->blocks;
    if (p->clusters > tasks)
        p->clusters = tasks;
    return NULL;
}

static const char *plan(cluster_plan *p, const cup__call *call, const cup__channels *at,
                        const cup_tensor *x, const cup_tensor *dy, const cup_tensor *out)
{
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(call->c->device));
    int size = (int)cup_dtype_size(x->dtype), vec = 16 / size;
    if (facts->major < 9)
        return "it needs the clusters of Hopper";
    if (at->count == 0 || at->after * size < PLANE_LEAST)
        return "its planes are too small";
    if (cup__row_vec(x, at->after, vec) != vec || cup__row_vec(dy, at->after, vec) != vec ||
        cup__row_vec(out, at->after, vec) != vec)
        return "its planes are not whole 16-byte vectors";
    if (x->count / at->after * divide_up(at->after * size, PART) > INT32_MAX)
        return "it has too many planes";
    *p = (cluster_plan){.cluster = 1};
    p->call = cup__channelnorm_planes(at, PART / size, vec);
    return plan_cluster(p, facts, size * (dy ? 2 : 1));
}

static cup_status launch(const cup__call *call, const cluster_plan *p, const cup_tensor *x,
                         cup_dtype param, cup_dtype result, const cup__argument *arguments)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup__knob knobs[] = {{"CUP_T", x->dtype},
                               {"PARAM", param},
                               {"RESULT", result},
                               {"BACK", call->op == &cup__op_channelnorm_grad},
                               {"VEC", 16 / cup_dtype_size(x->dtype)},
                               {"THREADS", BLOCK},
                               {"CLUSTER", p->cluster},
                               {"SLOTS", p->slots},
                               {"BLOCKS", p->blocks}};
    cup__kernel *kernel =
        cup__kernel_get(gpu, "channelnorm_cluster.cu", "channel_cluster", knobs, 9);
    if (!kernel)
        return call->c->error.status;
    cup__grid grid = {.x = p->clusters * p->cluster, .threads = BLOCK, .shared = (int)p->shared,
                      .cluster = p->cluster};
    return cup__launch_arguments(gpu, kernel, grid, arguments, 10);
}

const char *cup__channelnorm_cluster_refuses(const cup__call *call)
{
    cup__channelnorm n = cup__channelnorm_of(call);
    cluster_plan p;
    if (n.constant)
        return "it makes statistics";
    if (n.relu || n.residual)
        return "it adds no residual and has no relu";
    return plan(&p, call, &n.at, n.x, NULL, n.y);
}

static cup_dtype param_dtype(const cup_tensor *gamma, const cup_tensor *beta, cup_dtype otherwise)
{
    return gamma ? gamma->dtype : beta ? beta->dtype : otherwise;
}

cup_status cup__channelnorm_cluster(cup__call *call)
{
    cup__channelnorm n = cup__channelnorm_of(call);
    cluster_plan p;
    plan(&p, call, &n.at, n.x, NULL, n.y);
    p.call.eps = n.eps;
    p.call.momentum = n.momentum;
    int64_t statistics = n.at.instances * n.at.groups;
    cup_dtype dtype = n.x->dtype == CUP_F64 ? CUP_F64 : CUP_F32;
    cup_tensor *own = NULL;
    if (!n.mean) {
        cup__shape shape = {dtype, 2, {2, statistics}};
        own = cup__tensor_make(call->c, &shape, "statistics");
        if (!own)
            return call->c->error.status;
    }
    void *none = NULL, *mean = own ? own->data : n.mean->data;
    void *rstd = own ? (char *)own->data + statistics * cup_dtype_size(dtype) : n.rstd->data;
    void *gamma = cup__data_of(n.gamma), *beta = cup__data_of(n.beta);
    void *running_mean = cup__data_of(n.running_mean), *running_var = cup__data_of(n.running_var);
    cup_dtype param = param_dtype(n.gamma, n.beta, n.x->dtype);
    const cup__argument arguments[] = {
        CUP__ARG(p.call),    CUP__ARG(n.x->data), CUP__ARG(none),         CUP__ARG(gamma),
        CUP__ARG(beta),      CUP__ARG(n.y->data), CUP__ARG(mean),         CUP__ARG(rstd),
        CUP__ARG(running_mean), CUP__ARG(running_var)};
    cup_status status = launch(call, &p, n.x, param, param, arguments);
    cup_tensor_free(own);
    return status;
}

const char *cup__channelnorm_back_cluster_refuses(const cup__call *call)
{
    cup__channelnorm_back b = cup__channelnorm_back_of(call);
    cluster_plan p;
    if (b.at.instances != 1 || b.at.each != 1)
        return "dgamma and dbeta are sums over several statistics";
    if (b.constant)
        return "it needs no sums";
    if (b.mask || b.dresidual)
        return "it knows of no relu and no residual";
    return plan(&p, call, &b.at, b.x, b.dy, b.dx);
}

cup_status cup__channelnorm_back_cluster(cup__call *call)
{
    const cup__channelnorm_grad_attributes *a = call->attributes;
    cup__channelnorm_back b = cup__channelnorm_back_of(call);
    cluster_plan p;
    plan(&p, call, &b.at, b.x, b.dy, b.dx);
    void *none = NULL, *gamma = cup__data_of(b.gamma);
    void *dgamma = cup__data_of(b.dgamma), *dbeta = cup__data_of(b.dbeta);
    const cup__argument arguments[] = {
        CUP__ARG(p.call), CUP__ARG(b.x->data),  CUP__ARG(b.dy->data),   CUP__ARG(gamma),
        CUP__ARG(none),   CUP__ARG(b.dx->data), CUP__ARG(b.mean->data), CUP__ARG(b.rstd->data),
        CUP__ARG(dgamma), CUP__ARG(dbeta)};
    return launch(call, &p, b.x, param_dtype(b.gamma, NULL, b.x->dtype), a->dtype, arguments);
}

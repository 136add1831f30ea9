/* Measures the ways to do a product and remembers the fastest. */
#include "ops/matmul/product_tune.h"

#include "base/memory.h"
#include "cuda/dry.h"
#include "dispatch/contest.h"
#include "tensor/context.h"

typedef struct contest {
    cup__call *call;
    const cup__product *p;
    cup__way ways[CUP__WAYS_MOST];
    int count;
} contest;

/* Compiles what all ways need on all cores, by doing them on a GPU that is not there. */
static void prepare(contest *k)
{
    const char *arch = cup__cuda_facts(cup__cuda_of(k->call->c->device))->arch;
    cup_context *dry = cup__context_dry(arch);
    if (cup_error(dry) == CUP_OK) {
        for (int i = 0; i < k->count; i++)
            if (k->ways[i].doer == CUP__BY_WGMMA)
                cup__product_wgmma_by(dry, k->p, &k->ways[i].plan);
        cup__error error = {0};
        int count;
        const cup__kernel_request *requests =
            cup__dry_requests(cup__cuda_of(dry->device), &count);
        cup__kernels_prepare(&error, arch, requests, count, 0, NULL, NULL);
    }
    cup_context_free(dry);
}

static cup_status run_way(void *user, int i)
{
    const contest *k = user;
    return cup__way_refuses(k->call->c, k->p, &k->ways[i])
               ? CUP_UNSUPPORTED
               : cup__way_run(k->call, k->p, &k->ways[i]);
}

cup_status cup__product_tune(cup__call *call, const cup__product *p, cup__tuned_way *out)
{
    contest *k = cup__calloc(1, sizeof *k);
    if (!k)
        return cup__fail(&call->c->error, CUP_MEMORY, "out of host memory for tuning");
    call->memo = NULL; /* of which each way would make its own */
    k->call = call;
    k->p = p;
    k->count = cup__ways_of(call->c, p, k->ways);
    *out = (cup__tuned_way){.ways = k->count};
    double start = cup__seconds_now();
    prepare(k);
    int best = cup__contest(call->c, k->count, run_way, k, &out->us);
    if (best >= 0)
        out->way = k->ways[best];
    out->seconds = cup__seconds_now() - start;
    cup__free(k);
    if (best >= 0)
        return cup__product_prefer(call->c, p, &out->way);
    cup_status status = call->c->error.status;
    return status ? status
                  : cup__call_fail(call, CUP_UNSUPPORTED, "there is no way to do it on this GPU");
}

cup_status cup__tuned_way_save(cup_context *c, const cup__product *p, const cup__tuned_way *found)
{
    cup__text call = {0}, way = {0};
    cup__product_text(c, p, &call);
    cup__way_text(&found->way, &way);
    cup_status status = cup__tuning_remember(c, &call, &way, found->us);
    cup__text_free(&call);
    cup__text_free(&way);
    return status;
}

/* Kernels before the first step: a step is made on a GPU that is not there, and what it asks for is
 * got on all cores, instead of one after the other as the real step meets it. A failure here is
 * none: the step meets it again and says what it belongs to. */

#include "base/clock.h"
#include "base/log.h"
#include "cuda/dry.h"
#include "cupola/grad.h"
#include "optim/optimizer.h"
#include "tensor/context.h"
#include "train/loop.h"

void cup__loop_rehearse_evaluation(cup_loop *l)
{
    double ignored;
    bool recorded = cup_grad_recording(l->c, false);
    bool trained = cup_parameters_training(l->list, false);
    cup_scope_open(l->c);
    if (l->calls.rehearse)
        l->calls.rehearse(l->c, l->calls.user);
    else if (l->calls.evaluate)
        l->calls.evaluate(l->c, &ignored, l->calls.user);
    cup_scope_return(l->c, NULL);
    cup_parameters_training(l->list, trained);
    cup_grad_recording(l->c, recorded);
}

void cup__loop_rehearse_step(cup_loop *l)
{
    int64_t all = l->share;
    cup_optimizer_set(l->optimizer, l->options.schedule.high, 1);
    /* Of many batches two, so that gradients are added to those that are there. */
    if (all <= 2 || cup__loop_compute(l, 0, 2) == CUP_OK)
        cup__loop_compute(l, all <= 2 ? 0 : all, all);
    cup__loop_clear(l);
}

void cup__loop_rehearse(cup_loop *l)
{
    cup__loop_rehearse_step(l);
    cup__loop_rehearse_evaluation(l);
    cup__split_let_go(l->optimizer);
}

cup_status cup__loop_prepare(cup_loop *l)
{
    cup_context *c = l->c;
    if (!cup_device_is_cuda(c) || cup__device_is_dry(c->device))
        return CUP_OK;
    double start = cup__clock();
    cup__rehearsal rehearsal;
    CUP_TRY(cup__rehearsal_begin(c, &rehearsal));
    cup__loop_rehearse(l);
    cup_status status = cup__rehearsal_end(c, &rehearsal);
    cup_error_clear(c);
    if (status == CUP_OK) {
        cup__error ignored = {0};
        int count = 0;
        const cup__cuda *dry = cup__cuda_of(rehearsal.device);
        const cup__kernel_request *requests = cup__dry_requests(dry, &count);
        double asked = cup__clock();
        cup__kernels_prepare(&ignored, cup__cuda_facts(dry)->arch, requests, count, 0, NULL, NULL);
        cup__log(CUP__INFO, "training: %d kernels are ready after %.2f s, %.2f s of it to find out "
                            "which",
                 count, cup__clock() - start, asked - start);
    } else {
        cup__fail(&c->error, status,
                  "training: a tensor that the loss or the evaluation makes is kept, and would not "
                  "be computed again when the step is replayed; make it before the run");
    }
    cup__rehearsal_close(&rehearsal);
    return status;
}

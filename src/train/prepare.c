/* Kernels before the first step: a step of the same shapes is made on a GPU that is not there, and
 * what it asks for is got on all cores, instead of one after the other as the real step meets it.
 * A failure here is none: the step meets it again and says what it belongs to. */
#include <time.h>

#include "base/log.h"
#include "base/memory.h"
#include "cuda/dry.h"
#include "tensor/context.h"
#include "train/trainer.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void evaluate(cup_context *c, cup_gpt *m, int64_t rows)
{
    const int64_t shape[] = {rows, m->config.context};
    cup_scope_open(c);
    cup_gpt_loss(m, cup_tensor_new(c, CUP_I32, 2, shape), cup_tensor_new(c, CUP_I32, 2, shape),
                 false);
    cup_scope_close(c);
}

static void step(cup_context *c, cup_gpt *m, cup_optimizer *o, const cup_training *a,
                 int64_t texts)
{
    const int64_t shape[] = {a->batch, a->model.context};
    cup_scope_open(c);
    cup_tensor *tokens = cup_tensor_new(c, CUP_I32, 2, shape);
    cup_tensor *targets = cup_tensor_new(c, CUP_I32, 2, shape);
    cup_backward(c, cup_gpt_loss(m, tokens, targets, true));
    /* Once more, so that gradients are added to those that are there. */
    if (a->accumulate > 1)
        cup_backward(c, cup_gpt_loss(m, tokens, targets, true));
    cup_optimizer_step(o);
    cup_optimizer_clear(o);
    cup_scope_close(c);
    cup_grad_recording(c, false);
    if (texts == 0 || texts >= a->batch)
        evaluate(c, m, a->batch);
    if (texts % a->batch)
        evaluate(c, m, texts % a->batch);
}

void cup__training_kernels(cup_context *c, const cup_training *a, int64_t texts)
{
    cup_gpt *m = cup_gpt_new(c, &a->model, a->dtype);
    cup_optimizer *o =
        m ? cup_optimizer_new(c, m->parameters, m->parameter_count, &a->optimizer) : NULL;
    if (o) {
        m->recompute = a->recompute;
        m->logits_most = a->logits_most;
        cup_optimizer_set(o, a->rate, 1);
        step(c, m, o, a, texts);
    }
    cup_optimizer_free(o);
    cup_gpt_free(m);
}

void cup__trainer_prepare(cup_trainer *t)
{
    if (!cup_device_is_cuda(t->c))
        return;
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(t->c->device));
    double start = now();
    cup_context *c = cup__context_dry(facts->arch);
    if (cup_error(c) == CUP_OK) {
        cup__cuda *dry = cup__cuda_of(c->device);
        cup__error ignored = {0};
        int count = 0;
        cup__dry_like(dry, facts);
        c->precision = t->c->precision;
        c->options.deterministic = t->c->options.deterministic;
        cup__training_kernels(c, &t->training,
                              cup__evaluated_texts(t->data, CUP_VALIDATION,
                                                   t->training.model.context,
                                                   t->training.evaluate_texts));
        const cup__kernel_request *requests = cup__dry_requests(dry, &count);
        double asked = now();
        cup__kernels_prepare(&ignored, facts->arch, requests, count, 0, NULL, NULL);
        cup__log(CUP__INFO, "training: %d kernels are ready after %.2f s, %.2f s of it to find out "
                            "which",
                 count, now() - start, asked - start);
    }
    cup_context_free(c);
}

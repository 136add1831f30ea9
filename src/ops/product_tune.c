/* Measures the ways to do a product and remembers the fastest. */
#include "ops/product_tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "cuda/dry.h"
#include "tensor/context.h"

#define RUNS_MOST 15
#define RUNS_FIRST 3
#define HOPELESS 1.25    /* times the best of the first runs: not measured further */
#define SECONDS_MOST 1.5 /* of measuring one product */
#define FLUSH_BYTES ((size_t)128 << 20)

typedef struct contest {
    cup__call *call;
    const cup__product *p;
    cup__way ways[CUP__WAYS_MOST];
    double us[CUP__WAYS_MOST][RUNS_MOST];
    int runs[CUP__WAYS_MOST]; /* -1: it failed */
    int count;
    cup__timer *timer;
    void *flush; /* NULL where there was no memory for it */
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

static void run(contest *k, int i)
{
    cup_context *c = k->call->c;
    double ms = 0;
    cup_status status = CUP_OK;
    if (k->flush)
        status = c->device->calls->fill(c->device, k->flush, 0, FLUSH_BYTES);
    if (status == CUP_OK)
        status = cup__timer_start(k->timer);
    if (status == CUP_OK)
        status = cup__way_run(k->call, k->p, &k->ways[i]);
    if (status == CUP_OK)
        status = cup__timer_stop(k->timer, &ms);
    if (status == CUP_OK) {
        k->us[i][k->runs[i]++] = ms * 1e3;
        return;
    }
    cup__log(CUP__INFO, "tuning: one way was left out: %s", c->error.text);
    cup__error_clear(&c->error);
    k->runs[i] = -1;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const contest *k, int i)
{
    double sorted[RUNS_MOST];
    if (k->runs[i] < 1)
        return INFINITY;
    memcpy(sorted, k->us[i], sizeof sorted);
    qsort(sorted, (size_t)k->runs[i], sizeof *sorted, by_value);
    return sorted[k->runs[i] / 2];
}

static int best_of(const contest *k)
{
    int best = 0;
    for (int i = 1; i < k->count; i++)
        if (median(k, i) < median(k, best))
            best = i;
    return best;
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void compete(contest *k)
{
    bool in[CUP__WAYS_MOST];
    for (int i = 0; i < k->count; i++) {
        in[i] = !cup__way_refuses(k->call->c, k->p, &k->ways[i]);
        if (in[i])
            run(k, i); /* which loads its kernel, and does not count */
        k->runs[i] = in[i] && k->runs[i] > 0 ? 0 : -1;
    }
    double end = seconds_now() + SECONDS_MOST;
    for (int round = 0; round < RUNS_MOST && (round < 1 || seconds_now() < end); round++) {
        double limit = round < RUNS_FIRST ? INFINITY : HOPELESS * median(k, best_of(k));
        for (int i = 0; i < k->count; i++)
            if (k->runs[i] == 0 || (k->runs[i] > 0 && median(k, i) <= limit))
                run(k, i);
    }
}

static cup_status open_contest(contest *k)
{
    cup_context *c = k->call->c;
    CUP_TRY(cup__timer_new(cup__cuda_of(c->device), &k->timer));
    if (c->device->calls->allocate(c->device, FLUSH_BYTES, "cache flush", &k->flush) != CUP_OK) {
        cup__error_clear(&c->error);
        k->flush = NULL;
    }
    return CUP_OK;
}

static void close_contest(contest *k)
{
    cup_context *c = k->call->c;
    if (k->flush)
        c->device->calls->release(c->device, k->flush);
    if (k->timer)
        cup__timer_free(k->timer);
}

cup_status cup__product_tune(cup__call *call, const cup__product *p, cup__tuned_way *out)
{
    contest *k = cup__calloc(1, sizeof *k);
    if (!k)
        return cup__fail(&call->c->error, CUP_MEMORY, "out of host memory for tuning");
    double start = seconds_now();
    k->call = call;
    k->p = p;
    k->count = cup__ways_of(call->c, p, k->ways);
    cup_status status = open_contest(k);
    if (status == CUP_OK) {
        prepare(k);
        compete(k);
        int best = best_of(k);
        *out = (cup__tuned_way){.way = k->ways[best], .us = median(k, best), .ways = k->count};
        if (k->count == 0 || !isfinite(out->us))
            status = cup__call_fail(call, CUP_UNSUPPORTED, "there is no way to do it on this GPU");
    }
    close_contest(k);
    cup__free(k);
    out->seconds = seconds_now() - start;
    return status == CUP_OK ? cup__product_prefer(call->c, p, &out->way) : status;
}

cup_status cup__tuned_way_save(cup_context *c, const cup__product *p, const cup__tuned_way *found)
{
    char *path;
    CUP_TRY(cup__tuning_path(&c->error, &path));
    if (!path)
        return CUP_OK;
    cup__tuning_place place;
    cup__tuning tuning = {0};
    cup__text call = {0}, way = {0};
    cup__tuning_place_of(c, &place);
    cup__product_text(c, p, &call);
    cup__way_text(&found->way, &way);
    cup__tuning_line line = {place.card,  place.driver, place.version,
                             call.bytes, way.bytes,    found->us};
    cup_status status = cup__tuning_read(&c->error, path, false, &tuning);
    if (status == CUP_OK && (call.failed || way.failed))
        status = cup__fail(&c->error, CUP_MEMORY, "out of host memory for tuning records");
    if (status == CUP_OK)
        status = cup__tuning_put(&c->error, &tuning, &line);
    if (status == CUP_OK)
        status = cup__tuning_save(&c->error, &tuning, path);
    cup__tuning_free(&tuning);
    cup__text_free(&call);
    cup__text_free(&way);
    cup__free(path);
    return status;
}

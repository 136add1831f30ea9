#include "dispatch/contest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "cuda/cuda.h"
#include "tensor/context.h"

#define RUNS_MOST 15
#define RUNS_FIRST 3
#define HOPELESS 1.25    /* times the best of the first runs: not measured further */
#define SECONDS_MOST 1.5 /* of measuring, once all is compiled */
#define FLUSH_BYTES ((size_t)128 << 20)

typedef struct contest {
    cup_context *c;
    cup_status (*run)(void *user, int way);
    void *user;
    double us[CUP__CONTEST_MOST][RUNS_MOST];
    int runs[CUP__CONTEST_MOST]; /* -1: it failed */
    int count;
    cup__timer *timer;
    void *flush; /* NULL where there was no memory for it */
} contest;

double cup__seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void run(contest *k, int i)
{
    cup_context *c = k->c;
    double ms = 0;
    cup_status status = CUP_OK;
    if (k->flush)
        status = c->device->calls->fill(c->device, k->flush, 0, FLUSH_BYTES);
    if (status == CUP_OK)
        status = cup__timer_start(k->timer);
    if (status == CUP_OK)
        status = k->run(k->user, i);
    if (status == CUP_OK)
        status = cup__timer_stop(k->timer, &ms);
    if (status == CUP_OK) {
        k->us[i][k->runs[i]++] = ms * 1e3;
        return;
    }
    if (c->error.status != CUP_OK)
        cup__log(CUP__INFO, "tuning: one way was left out: %s", c->error.text);
    cup__error_clear(&c->error);
    k->runs[i] = -1;
}

static double median(const contest *k, int i)
{
    double sorted[RUNS_MOST];
    if (k->runs[i] < 1)
        return INFINITY;
    memcpy(sorted, k->us[i], sizeof sorted);
    return cup__median(sorted, k->runs[i]);
}

static int best_of(const contest *k)
{
    int best = 0;
    for (int i = 1; i < k->count; i++)
        if (median(k, i) < median(k, best))
            best = i;
    return best;
}

static void compete(contest *k)
{
    for (int i = 0; i < k->count; i++) {
        run(k, i); /* which loads its kernel, and does not count */
        k->runs[i] = k->runs[i] > 0 ? 0 : -1;
    }
    double end = cup__seconds_now() + SECONDS_MOST;
    for (int round = 0; round < RUNS_MOST && (round < 1 || cup__seconds_now() < end); round++) {
        double limit = round < RUNS_FIRST ? INFINITY : HOPELESS * median(k, best_of(k));
        for (int i = 0; i < k->count; i++)
            if (k->runs[i] == 0 || (k->runs[i] > 0 && median(k, i) <= limit))
                run(k, i);
    }
}

int cup__contest(cup_context *c, int count, cup_status (*how)(void *user, int way), void *user,
                 double *us)
{
    contest k = {.c = c, .run = how, .user = user};
    k.count = count < CUP__CONTEST_MOST ? count : CUP__CONTEST_MOST;
    *us = INFINITY;
    if (k.count < 1 || cup__timer_new(cup__cuda_of(c->device), &k.timer) != CUP_OK)
        return -1;
    if (c->device->calls->allocate(c->device, FLUSH_BYTES, "cache flush", &k.flush) != CUP_OK) {
        cup__error_clear(&c->error);
        k.flush = NULL;
    }
    compete(&k);
    int best = best_of(&k);
    *us = median(&k, best);
    if (k.flush)
        c->device->calls->release(c->device, k.flush);
    cup__timer_free(k.timer);
    return isfinite(*us) ? best : -1;
}

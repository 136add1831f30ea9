/* Making and freeing communicators, and what hosts agree on. */
#include "comm/comm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/options.h"
#include "tensor/coming.h"
#include "tensor/debug.h"

#define AGREED_MOST 64
#define COUNT_MOST 65536

cup_status cup_launched_look(cup_context *c, cup_launched *out)
{
    if (c && c->error.status != CUP_OK)
        return c->error.status;
    if (!out)
        return cup__fail(c ? &c->error : NULL, CUP_ARGUMENT,
                         "launched_look: what takes the facts is NULL");
    return cup__launched(c ? &c->error : NULL, out, NULL);
}

static cup_status seconds(cup__error *error, double given, cup__env variable, double *out)
{
    int64_t standard;
    CUP_TRY(cup__env_integer(error, variable, &standard));
    *out = given > 0 ? given : (double)standard;
    if (given >= 0 && *out <= 1e6)
        return CUP_OK;
    return cup__fail(error, CUP_ARGUMENT,
                     "communicator: %g s to wait for others; give from 0, the default, to 1e6",
                     given);
}

/* What the options say, and of what they do not, the launcher. */
static cup_status take_options(cup__error *error, const cup_comm_options *from,
                               cup_comm_options *o, cup__meeting *meeting)
{
    cup_launched run;
    CUP_TRY(cup__options_take(error, "communicator", o, sizeof *o, from));
    CUP_TRY(seconds(error, o->timeout, CUP__ENV_COMM_TIMEOUT, &o->timeout));
    CUP_TRY(seconds(error, o->silence, CUP__ENV_COMM_SILENCE, &o->silence));
    if (!o->record)
        o->record = cup__env_get(CUP__ENV_COMM_RECORD);
    if (o->count == 0) {
        CUP_TRY(cup__launched(error, &run, meeting));
        o->count = run.count;
        o->rank = run.rank;
    }
    if (o->count < 1 || o->count > COUNT_MOST || o->rank < 0 || o->rank >= o->count)
        return cup__fail(error, CUP_ARGUMENT,
                         "communicator: rank %d of %d processes; there are 1 to %d, and ranks "
                         "count from 0",
                         o->rank, o->count, COUNT_MOST);
    if (o->address)
        CUP_TRY(cup__meeting_at(error, o->address, meeting));
    else if (o->count > 1 && !*meeting->place.host && !*meeting->file)
        return cup__fail(error, CUP_ARGUMENT,
                         "communicator: the address where %d processes meet is missing", o->count);
    return CUP_OK;
}

static void free_comm(cup_comm *m)
{
    for (size_t i = 0; i < sizeof m->stage / sizeof *m->stage; i++)
        cup__free(m->stage[i]);
    cup__free(m->members);
    cup__free(m->progress);
    cup__free(m);
}

static cup_comm *make(cup_context *c, int count)
{
    cup_comm *m = cup__calloc(1, sizeof *m);
    int *members = cup__calloc((size_t)count, sizeof *members);
    void *progress = cup__calloc((size_t)count, cup__progress_size);
    if (!m || !members || !progress) {
        cup__free(m);
        cup__free(members);
        cup__free(progress);
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a communicator");
        return NULL;
    }
    *m = (cup_comm){.c = c, .count = count, .members = members, .progress = progress, .step = -1};
    return m;
}

static bool wants_nccl(const cup_context *c)
{
    const char *wish = cup__env_get(CUP__ENV_COMM);
    return c->device->is_cuda && strcmp(wish, "sockets") != 0;
}

static cup_status open_backend(cup_comm *m)
{
    if (!wants_nccl(m->c) && !strcmp(cup__env_get(CUP__ENV_COMM), "nccl"))
        return cup__fail(&m->c->error, CUP_ARGUMENT,
                         "CUP_COMM=nccl: NCCL joins GPUs, and this process is on %s; use "
                         "--device cuda, or CUP_COMM=sockets",
                         m->c->device->text);
    return wants_nccl(m->c) ? cup__nccl_open(m) : CUP_OK;
}

cup_comm *cup_comm_new(cup_context *c, const cup_comm_options *from)
{
    if (!c || c->error.status != CUP_OK)
        return NULL;
    CUP__DEBUG_CALL(c);
    cup_comm_options o;
    cup__meeting *meeting = cup__calloc(1, sizeof *meeting);
    if (!meeting) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a communicator");
        return NULL;
    }
    cup_status status = take_options(&c->error, from, &o, meeting);
    cup_comm *m = status == CUP_OK ? make(c, o.count) : NULL;
    if (m)
        m->mesh = cup__mesh_new(&c->error, meeting, &o);
    cup__free(meeting);
    if (!m || !m->mesh) {
        if (m)
            free_comm(m);
        return NULL;
    }
    m->rank = o.rank;
    for (int i = 0; i < o.count; i++)
        m->members[i] = i;
    cup__context_join(c);
    if (open_backend(m) == CUP_OK)
        return m;
    cup_comm_free(m);
    return NULL;
}

void cup_comm_free(cup_comm *m)
{
    if (!m)
        return;
    char why[CUP__NEWS_TEXT] = "";
    const cup__error *error = &m->c->error;
    cup__coming_end_all(m->c);
    if (error->status != CUP_OK && error->status != CUP_PEER)
        snprintf(why, sizeof why, "%s has failed: %.500s", m->mesh->peers[m->mesh->rank].name,
                 error->text);
    cup__nccl_close(m->nccl, m->mesh->failed || *why);
    cup__mesh_leave(m->mesh, why);
    cup__context_leave(m->c);
    free_comm(m);
}

static cup_comm *make_part(cup_comm *m, const int64_t *colors, int color)
{
    int count = 0;
    for (int i = 0; i < m->count; i++)
        count += colors[i] == color;
    cup_comm *part = make(m->c, count);
    if (!part)
        return NULL;
    part->count = 0;
    for (int i = 0; i < m->count; i++) {
        if (colors[i] != color)
            continue;
        if (i == m->rank)
            part->rank = part->count;
        part->members[part->count++] = m->members[i];
    }
    const uint64_t of[] = {m->group, m->sequence, (uint64_t)color};
    part->group = (uint32_t)cup__hash_bytes(of, sizeof of) | 1;
    part->mesh = m->mesh;
    pthread_mutex_lock(&m->mesh->lock);
    m->mesh->refs++;
    pthread_mutex_unlock(&m->mesh->lock);
    cup__context_join(m->c);
    if (!m->nccl || cup__nccl_open(part) == CUP_OK)
        return part;
    cup_comm_free(part);
    return NULL;
}

cup_comm *cup_comm_split_new(cup_comm *m, int color)
{
    if (!m || m->c->error.status != CUP_OK)
        return NULL;
    CUP__DEBUG_CALL(m->c);
    int64_t *colors = cup__calloc((size_t)m->count, sizeof *colors);
    if (!colors) {
        cup__fail(&m->c->error, CUP_MEMORY, "out of host memory for a communicator");
        return NULL;
    }
    colors[m->rank] = color;
    cup_status status = cup__operation_begin(m, CUP__AGREE);
    if (status == CUP_OK)
        status = cup__host_all_gather(m, (cup__block){&colors[m->rank], 1, CUP_I64}, colors);
    cup__operation_end(m);
    cup_comm *part = status == CUP_OK && color >= 0 ? make_part(m, colors, color) : NULL;
    cup__free(colors);
    return part;
}

int cup_comm_rank(const cup_comm *m)
{
    return m ? m->rank : 0;
}

int cup_comm_count(const cup_comm *m)
{
    return m ? m->count : 1;
}

const char *cup_comm_backend(const cup_comm *m)
{
    return !m ? "nothing" : m->nccl ? "NCCL" : "sockets";
}

cup_status cup__comm_check(cup_comm *m)
{
    return m && m->mesh->failed ? cup__mesh_error(m->mesh, &m->c->error) : CUP_OK;
}

cup_status cup__comm_collect(cup_comm *m, int64_t *own, int count, int64_t *all)
{
    cup_status status = cup__operation_begin(m, CUP__AGREE);
    if (status == CUP_OK)
        status = cup__host_all_gather(m, (cup__block){own, count, CUP_I64}, all);
    cup__operation_end(m);
    return status;
}

const char *cup__comm_name(const cup_comm *m, int rank)
{
    return m->mesh->peers[m->members[rank]].name;
}

cup_status cup_comm_agree(cup_comm *m, int64_t *numbers, int count)
{
    if (!m)
        return CUP_ARGUMENT;
    CUP__DEBUG_CALL(m->c);
    if (m->c->error.status != CUP_OK)
        return m->c->error.status;
    if (count < 0 || count > AGREED_MOST || (count && !numbers))
        return cup__fail(&m->c->error, CUP_ARGUMENT,
                         "agree: %d numbers%s; give an array of up to %d", count,
                         numbers ? "" : " at NULL", AGREED_MOST);
    int64_t *all = cup__malloc((size_t)(m->count * count + 1) * sizeof *all);
    if (!all)
        return cup__fail(&m->c->error, CUP_MEMORY, "out of host memory for what hosts agree on");
    cup_status status = cup__comm_collect(m, numbers, count, all);
    for (int i = 0; status == CUP_OK && i < m->count * count; i++)
        if (all[i] > numbers[i % count])
            numbers[i % count] = all[i];
    cup__free(all);
    return status;
}

cup_status cup_comm_barrier(cup_comm *m)
{
    return cup_comm_agree(m, NULL, 0);
}

void cup_comm_step(cup_comm *m, int64_t step)
{
    if (m)
        m->step = step;
}

void cup_comm_busy(cup_comm *m, bool busy)
{
    if (!m)
        return;
    cup__doing doing = m->mesh->mine;
    doing.busy = busy;
    cup__mesh_does(m->mesh, &doing);
}

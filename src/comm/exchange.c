/* Sends to and takes from many processes at once, without a wait that has no end. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/memory.h"
#include "comm/comm.h"

#define SLICE_MS 100 /* so soon it is seen that the mesh has failed */
#define GRACE 1.0    /* seconds in which the watching thread may know better why a peer is gone */

/* Goes before the bytes of each transfer. */
typedef struct header {
    char magic[4];
    uint32_t id, group, detail;
    uint64_t sequence;
    int64_t step;
    uint64_t bytes;
} header;

typedef struct cup__progress {
    header out, in;
    size_t sent, got; /* the header included */
} progress;

const size_t cup__progress_size = sizeof(progress);

typedef struct exchange {
    cup_comm *m;
    cup__transfer *transfers;
    struct pollfd *polls;
    double moved; /* when a byte went last */
} exchange;

static bool sends(const exchange *e, int i)
{
    return e->transfers[i].sends &&
           e->m->progress[i].sent < sizeof(header) + e->transfers[i].out_bytes;
}

static bool receives(const exchange *e, int i)
{
    return e->transfers[i].receives &&
           e->m->progress[i].got < sizeof(header) + e->transfers[i].in_bytes;
}

static const char *name_of(const cup_comm *m, int i)
{
    return cup__comm_name(m, i);
}

static cup__doing doing_of(const header *h)
{
    return (cup__doing){.id = h->id, .group = h->group, .sequence = h->sequence, .step = h->step};
}

/* Gives the watching thread a moment to hear what became of a peer. */
static void lost(exchange *e, int i)
{
    cup__mesh *mesh = e->m->mesh;
    char doing[128];
    cup__doing mine = mesh->mine;
    for (double until = cup__clock() + GRACE; cup__clock() < until && !mesh->failed;)
        cup__pause(0.01);
    cup__mesh_fail(mesh, "%s has left while %s was %s", name_of(e->m, i),
                   mesh->peers[mesh->rank].name, cup__doing_text(&mine, doing));
}

/* Whether both are in the same operation. */
static bool agrees(exchange *e, int i)
{
    cup_comm *m = e->m;
    const header *own = &m->progress[i].out, *in = &m->progress[i].in;
    char here[128], there[128];
    cup__doing mine = doing_of(own), theirs = doing_of(in);
    if (memcmp(in->magic, own->magic, sizeof in->magic)) {
        cup__mesh_fail(m->mesh, "%s sent %s what is no message of this library",
                       name_of(m, i), name_of(m, m->rank));
        return false;
    }
    if (in->id != own->id || in->group != own->group || in->sequence != own->sequence ||
        in->detail != own->detail || in->step != own->step) {
        cup__mesh_fail(m->mesh,
                       "%s is %s while %s is %s%s; all must call the same operations in the same "
                       "order",
                       name_of(m, i), cup__doing_text(&theirs, there), name_of(m, m->rank),
                       cup__doing_text(&mine, here),
                       in->detail != own->detail ? ", of another dtype or reduction" : "");
        return false;
    }
    if (in->bytes == e->transfers[i].in_bytes)
        return true;
    cup__mesh_fail(m->mesh, "%s sends %llu bytes in %s, where %s takes %zu; sizes must be the same",
                   name_of(m, i), (unsigned long long)in->bytes, cup__doing_text(&theirs, there),
                   name_of(m, m->rank), e->transfers[i].in_bytes);
    return false;
}

static void push(exchange *e, int i)
{
    progress *p = &e->m->progress[i];
    const cup__transfer *t = &e->transfers[i];
    int handle = e->m->mesh->peers[e->m->members[i]].data;
    while (sends(e, i)) {
        size_t head = p->sent < sizeof(header) ? sizeof(header) - p->sent : 0;
        size_t done = head ? 0 : p->sent - sizeof(header);
        struct iovec parts[] = {{(char *)&p->out + sizeof(header) - head, head},
                                {(char *)(uintptr_t)t->out + done, t->out_bytes - done}};
        const struct msghdr both = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t sent = sendmsg(handle, &both, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (sent < 0) {
            lost(e, i);
            return;
        }
        p->sent += (size_t)sent;
        e->moved = cup__clock();
    }
}

static void pull(exchange *e, int i)
{
    progress *p = &e->m->progress[i];
    const cup__transfer *t = &e->transfers[i];
    int handle = e->m->mesh->peers[e->m->members[i]].data;
    while (receives(e, i)) {
        bool head = p->got < sizeof(header);
        char *to = head ? (char *)&p->in + p->got : (char *)t->in + (p->got - sizeof(header));
        size_t left = head ? sizeof(header) - p->got : t->in_bytes + sizeof(header) - p->got;
        ssize_t got = recv(handle, to, left, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got <= 0) {
            lost(e, i);
            return;
        }
        p->got += (size_t)got;
        e->moved = cup__clock();
        if (head && p->got == sizeof(header) && !agrees(e, i))
            return;
    }
}

/* Fills the list of what is waited for; 0: nothing. */
static int fill_polls(exchange *e, int *who)
{
    int count = 0;
    for (int i = 0; i < e->m->count; i++) {
        short events = (short)((sends(e, i) ? POLLOUT : 0) | (receives(e, i) ? POLLIN : 0));
        if (!events)
            continue;
        e->polls[count] =
            (struct pollfd){.fd = e->m->mesh->peers[e->m->members[i]].data, .events = events};
        who[count++] = i;
    }
    return count;
}

/* Names whoever lets this process wait too long; one that says it is busy may. */
static void look_for_late(exchange *e)
{
    cup_comm *m = e->m;
    char here[128], there[128];
    if (cup__clock() - e->moved < m->mesh->timeout)
        return;
    for (int i = 0; i < m->count; i++) {
        if (!receives(e, i) && !sends(e, i))
            continue;
        cup__doing theirs = cup__mesh_heard(m->mesh, m->members[i]), mine = m->mesh->mine;
        if (theirs.busy)
            return;
        cup__mesh_fail(m->mesh, "%s let %s wait for more than %.0f s: this one is %s, and that one "
                                "is %s",
                       name_of(m, i), name_of(m, m->rank), m->mesh->timeout,
                       cup__doing_text(&mine, here), cup__doing_text(&theirs, there));
        return;
    }
}

static cup_status run(exchange *e, int *who)
{
    cup__mesh *mesh = e->m->mesh;
    e->moved = cup__clock();
    for (int count; !mesh->failed && (count = fill_polls(e, who)) > 0;) {
        int found = poll(e->polls, (nfds_t)count, SLICE_MS);
        for (int i = 0; i < count && found > 0 && !mesh->failed; i++) {
            short seen = e->polls[i].revents;
            if (seen & POLLOUT)
                push(e, who[i]);
            if (seen & (POLLIN | POLLHUP | POLLERR) && !mesh->failed) {
                if (receives(e, who[i]))
                    pull(e, who[i]);
                else if (seen & (POLLHUP | POLLERR))
                    lost(e, who[i]);
            }
        }
        if (!mesh->failed)
            look_for_late(e);
    }
    return mesh->failed ? cup__mesh_error(mesh, &e->m->c->error) : CUP_OK;
}

cup_status cup__exchange(cup_comm *m, uint32_t detail, cup__transfer *transfers)
{
    size_t count = (size_t)m->count;
    transfers[m->rank].sends = transfers[m->rank].receives = false;
    struct pollfd *polls = cup__stage(m, 2, count * (sizeof *polls + sizeof(int)));
    if (!polls)
        return m->c->error.status;
    for (int i = 0; i < m->count; i++)
        m->progress[i] = (progress){.out = {.magic = {'C', 'U', 'P', 'd'},
                                            .id = m->mesh->mine.id,
                                            .group = m->group,
                                            .detail = detail,
                                            .sequence = m->sequence,
                                            .step = m->step,
                                            .bytes = transfers[i].out_bytes}};
    exchange e = {.m = m, .transfers = transfers, .polls = polls};
    return run(&e, (int *)(polls + count));
}

cup_status cup__operation_begin(cup_comm *m, cup__operation_id id)
{
    if (m->mesh->failed)
        return cup__mesh_error(m->mesh, &m->c->error);
    m->sequence++;
    cup__mesh_does(m->mesh, &(cup__doing){.id = id,
                                          .group = m->group,
                                          .sequence = m->sequence,
                                          .step = m->step});
    return CUP_OK;
}

void cup__operation_end(cup_comm *m)
{
    cup__doing doing = m->mesh->mine;
    doing.id = CUP__COMPUTING;
    cup__mesh_does(m->mesh, &doing);
}

void *cup__stage(cup_comm *m, int which, size_t bytes)
{
    if (m->stage_bytes[which] >= bytes && m->stage[which])
        return m->stage[which];
    cup__free(m->stage[which]);
    m->stage_bytes[which] = 0;
    m->stage[which] = cup__malloc(bytes);
    if (!m->stage[which]) {
        cup__fail(&m->c->error, CUP_MEMORY, "out of host memory for tensors on their way");
        return NULL;
    }
    m->stage_bytes[which] = bytes;
    return m->stage[which];
}

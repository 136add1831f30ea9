/* How the processes of a run find each other. Rank 0 listens where all know; the others connect to
 * it, twice, and say where they listen themselves; rank 0 gives the list to all; then each connects
 * to those of lower rank. Every greeting is checked before it counts, and strangers are let go. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/memory.h"
#include "comm/mesh.h"
#include "cupola/text.h"

#define MAGIC "CUPOLA-1"
#define STRANGERS 64     /* connections that have not said yet who they are */
#define GREETING_SECONDS 5

typedef enum channel { DATA, CONTROL, CHANNELS } channel;

typedef struct greeting {
    char magic[8];
    uint64_t job;
    uint32_t rank, count, channel, port;
    uint64_t process;
    char host[64];
} greeting;

/* Of one process, in the list. */
typedef struct entry {
    char host[CUP__HOST_TEXT]; /* "": that of rank 0 */
    uint32_t port;
    uint32_t unused;
    uint64_t process;
    char name[64];
} entry;

typedef struct stranger {
    int handle;
    double since;
    size_t got;
    greeting said;
} stranger;

typedef struct meeting {
    cup__error *error;
    cup__mesh *mesh;
    uint64_t job;
    double deadline;
    int listener, port;
    cup__endpoint place; /* of rank 0 */
    entry *list;      /* [count] */
    stranger strangers[STRANGERS];
    int stranger_count;
} meeting;

static void name_peer(cup__peer *peer, int rank, uint64_t process, const char *host)
{
    char shown[64];
    snprintf(peer->name, sizeof peer->name, "rank %d (process %llu on %.40s)", rank,
             (unsigned long long)process, cup_text_visible(host, "", shown, sizeof shown));
}

static greeting greeting_of(const meeting *m, channel which)
{
    greeting g = {.magic = MAGIC,
                  .job = m->job,
                  .rank = (uint32_t)m->mesh->rank,
                  .count = (uint32_t)m->mesh->count,
                  .channel = which,
                  .port = (uint32_t)m->port,
                  .process = (uint64_t)getpid()};
    memcpy(g.magic, MAGIC, sizeof g.magic);
    gethostname(g.host, sizeof g.host - 1);
    return g;
}

static int *slot_of(const meeting *m, uint32_t rank, uint32_t which)
{
    cup__peer *peer = &m->mesh->peers[rank];
    return which == DATA ? &peer->data : &peer->control;
}

/* Takes a connection whose greeting is whole; false: it is none of ours. */
static bool welcome(meeting *m, const stranger *s, int least)
{
    const greeting *g = &s->said;
    cup__mesh *mesh = m->mesh;
    if (memcmp(g->magic, MAGIC, sizeof g->magic) || g->job != m->job ||
        g->count != (uint32_t)mesh->count || g->rank >= (uint32_t)mesh->count ||
        (int)g->rank < least || (int)g->rank == mesh->rank || g->channel >= CHANNELS ||
        g->port > 65535 || *slot_of(m, g->rank, g->channel) >= 0)
        return false;
    entry *e = &m->list[g->rank];
    if (!cup__host_of(s->handle, e->host) ||
        !cup__send_all(s->handle, MAGIC, 8, cup__clock() + GREETING_SECONDS))
        return false;
    if (cup__host_is_loopback(e->host))
        e->host[0] = 0;
    e->port = g->port;
    e->process = g->process;
    memcpy(e->name, g->host, sizeof e->name);
    e->name[sizeof e->name - 1] = 0;
    name_peer(&mesh->peers[g->rank], (int)g->rank, e->process, e->name);
    *slot_of(m, g->rank, g->channel) = s->handle;
    return true;
}

static void accept_all(meeting *m)
{
    int handle;
    while (m->stranger_count < STRANGERS && (handle = cup__accept(m->listener)) >= 0)
        m->strangers[m->stranger_count++] = (stranger){.handle = handle, .since = cup__clock()};
}

/* Reads on; true: nothing more is to be waited for from this one. */
static bool hear(meeting *m, stranger *s, int least)
{
    ssize_t got = read(s->handle, (char *)&s->said + s->got, sizeof s->said - s->got);
    bool gone = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR) ||
                cup__clock() - s->since > GREETING_SECONDS;
    s->got += got > 0 ? (size_t)got : 0;
    if (s->got == sizeof s->said) {
        if (!welcome(m, s, least))
            close(s->handle);
        return true;
    }
    if (gone)
        close(s->handle);
    return gone;
}

static int missing(const meeting *m, int least)
{
    int count = 0;
    for (int i = least; i < m->mesh->count; i++)
        count += i != m->mesh->rank &&
                 (m->mesh->peers[i].data < 0 || m->mesh->peers[i].control < 0);
    return count;
}

/* "ranks 2 and 5" of those that are missing. */
static void name_missing(const meeting *m, int least, char *out, size_t size)
{
    int all = missing(m, least), told = 0;
    size_t used = (size_t)snprintf(out, size, all == 1 ? "rank" : "ranks");
    for (int i = least; i < m->mesh->count && told < 8; i++)
        if (i != m->mesh->rank && (m->mesh->peers[i].data < 0 || m->mesh->peers[i].control < 0)) {
            const char *before = told == 0 ? " " : told + 1 == all ? " and " : ", ";
            used += (size_t)snprintf(out + used, size - used, "%s%d", before, i);
            told++;
        }
    if (told < all)
        snprintf(out + used, size - used, " and %d more", all - told);
}

/* Waits for the connections of all ranks from `least` on. */
static cup_status gather(meeting *m, int least)
{
    char names[160];
    while (missing(m, least)) {
        struct pollfd polls[STRANGERS + 1] = {{.fd = m->listener, .events = POLLIN}};
        for (int i = 0; i < m->stranger_count; i++)
            polls[i + 1] = (struct pollfd){.fd = m->strangers[i].handle, .events = POLLIN};
        poll(polls, (nfds_t)m->stranger_count + 1, 100);
        accept_all(m);
        int kept = 0;
        for (int i = 0; i < m->stranger_count; i++)
            if (!hear(m, &m->strangers[i], least))
                m->strangers[kept++] = m->strangers[i];
        m->stranger_count = kept;
        if (cup__clock() < m->deadline)
            continue;
        name_missing(m, least, names, sizeof names);
        return cup__fail(m->error, CUP_PEER,
                         "communicator: %s did not come to rank %d, at port %d, within %.0f s; see "
                         "whether all %d processes were started, and set CUP_COMM_TIMEOUT if they "
                         "need longer",
                         names, m->mesh->rank, m->port, m->mesh->timeout, m->mesh->count);
    }
    return CUP_OK;
}

/* One attempt at one port. */
static int greet(const meeting *m, const cup__endpoint *place, channel which)
{
    char answer[8];
    double now = cup__clock(), soon = now + GREETING_SECONDS;
    int handle = cup__connect(place, soon < m->deadline ? soon : m->deadline);
    if (handle < 0)
        return -1;
    greeting g = greeting_of(m, which);
    /* One who listens at that port for something else may never answer. */
    if (cup__send_all(handle, &g, sizeof g, soon) &&
        cup__receive_all(handle, answer, sizeof answer, soon) && !memcmp(answer, MAGIC, 8))
        return handle;
    close(handle);
    return -1;
}

/* Reads where rank 0 is from the file that it writes; what stands there may be of an earlier run.
 */
static bool read_file(const char *path, cup__endpoint *place, uint64_t *job)
{
    char text[CUP__HOST_TEXT + 64] = "", host[CUP__HOST_TEXT];
    unsigned long long found;
    int port, handle = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = handle >= 0 ? read(handle, text, sizeof text - 1) : -1;
    if (handle >= 0)
        close(handle);
    if (got < 1 || sscanf(text, "%255s %d %llx", host, &port, &found) != 3 || port < 1 ||
        port > 65535)
        return false;
    snprintf(place->host, sizeof place->host, "%s", host);
    place->port = port;
    *job = found;
    return true;
}

static cup_status write_file(meeting *m, const char *path)
{
    char text[CUP__HOST_TEXT + 64], host[CUP__HOST_TEXT] = "", next[4200];
    gethostname(host, sizeof host - 1);
    m->job ^= (uint64_t)getpid() << 32 ^ (uint64_t)(cup__clock() * 1e9);
    int length = snprintf(text, sizeof text, "%s %d %llx\n", host, m->port,
                          (unsigned long long)m->job);
    snprintf(next, sizeof next, "%s.new", path);
    int handle = open(next, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool done = handle >= 0 && write(handle, text, (size_t)length) == length;
    if (handle >= 0)
        done &= close(handle) == 0;
    if (done && !rename(next, path))
        return CUP_OK;
    return cup__fail(m->error, CUP_IO,
                     "communicator: the file %s, in which the processes meet, cannot be written: "
                     "%s",
                     path, strerror(errno));
}

static cup_status open_rank_0(meeting *m, const cup__meeting *where)
{
    cup__endpoint place = where->place;
    m->listener = cup__listen(&place, where->more);
    m->port = place.port;
    if (m->listener < 0)
        return cup__fail(m->error, CUP_IO,
                         "communicator: rank 0 cannot listen at %s:%d: %s; name another port",
                         where->place.host, where->place.port, strerror(errno));
    return *where->file ? write_file(m, where->file) : CUP_OK;
}

/* Where rank 0 may be, one attempt after the other. */
static int find_rank_0(meeting *m, const cup__meeting *where, channel which)
{
    for (int i = 0; cup__clock() < m->deadline; i = (i + 1) % (where->more + 1)) {
        m->place = where->place;
        m->place.port += i;
        bool known = !*where->file || read_file(where->file, &m->place, &m->job);
        int handle = known ? greet(m, &m->place, which) : -1;
        if (handle >= 0)
            return handle;
        if (i == where->more)
            cup__pause(0.02);
    }
    return -1;
}

static cup_status join_rank_0(meeting *m, const cup__meeting *where)
{
    cup__peer *first = &m->mesh->peers[0];
    cup__endpoint any = {.port = 0};
    m->listener = cup__listen(&any, 0);
    m->port = any.port;
    if (m->listener < 0)
        return cup__fail(m->error, CUP_IO, "communicator: rank %d cannot listen at any port: %s",
                         m->mesh->rank, strerror(errno));
    first->data = find_rank_0(m, where, DATA);
    if (first->data >= 0)
        first->control = greet(m, &m->place, CONTROL);
    if (first->control >= 0)
        return CUP_OK;
    return cup__fail(m->error, CUP_PEER,
                     "communicator: rank %d did not find rank 0 %s%s%s within %.0f s; see whether "
                     "it was started, is told of as many processes, and can be reached",
                     m->mesh->rank, *where->file ? "by the file " : "at ",
                     *where->file ? where->file : where->place.host, *where->file ? "" : "",
                     m->mesh->timeout);
}

/* The list, from rank 0 to all. */
static cup_status share_list(meeting *m)
{
    cup__mesh *mesh = m->mesh;
    size_t bytes = (size_t)mesh->count * sizeof *m->list;
    bool done = true;
    if (mesh->rank == 0) {
        greeting own = greeting_of(m, DATA);
        m->list[0].process = own.process;
        memcpy(m->list[0].name, own.host, sizeof own.host);
        for (int i = 1; i < mesh->count; i++)
            done &= cup__send_all(mesh->peers[i].data, m->list, bytes, m->deadline);
    } else {
        done = cup__receive_all(mesh->peers[0].data, m->list, bytes, m->deadline);
    }
    if (!done)
        return cup__fail(m->error, CUP_PEER,
                         "communicator: rank 0 and the others lost each other at the beginning; "
                         "see what the first process that ended said");
    for (int i = 0; i < mesh->count; i++) {
        m->list[i].host[CUP__HOST_TEXT - 1] = m->list[i].name[63] = 0;
        name_peer(&mesh->peers[i], i, m->list[i].process, m->list[i].name);
    }
    return CUP_OK;
}

static cup_status join_lower(meeting *m)
{
    for (int i = 1; i < m->mesh->rank; i++) {
        cup__endpoint place = {.port = (int)m->list[i].port};
        snprintf(place.host, sizeof place.host, "%s",
                 *m->list[i].host ? m->list[i].host : m->place.host);
        for (int which = DATA; which < CHANNELS; which++) {
            int *slot = slot_of(m, (uint32_t)i, (uint32_t)which);
            while (*slot < 0 && cup__clock() < m->deadline) {
                *slot = greet(m, &place, (channel)which);
                if (*slot < 0)
                    cup__pause(0.02);
            }
            if (*slot < 0)
                return cup__fail(m->error, CUP_PEER,
                                 "communicator: rank %d cannot reach %s at %s:%d", m->mesh->rank,
                                 m->mesh->peers[i].name, place.host, place.port);
        }
    }
    return CUP_OK;
}

static cup_status meet(meeting *m, const cup__meeting *where)
{
    if (m->mesh->rank == 0) {
        CUP_TRY(open_rank_0(m, where));
        CUP_TRY(gather(m, 1));
        CUP_TRY(share_list(m));
        if (*where->file)
            unlink(where->file);
        return CUP_OK;
    }
    CUP_TRY(join_rank_0(m, where));
    CUP_TRY(share_list(m));
    CUP_TRY(join_lower(m));
    return gather(m, m->mesh->rank + 1);
}

cup_status cup__mesh_meet(cup__error *error, cup__mesh *mesh, const cup__meeting *where)
{
    meeting *m = cup__calloc(1, sizeof *m);
    entry *list = cup__calloc((size_t)mesh->count, sizeof *list);
    cup_status status = CUP_OK;
    if (m && list) {
        m->error = error;
        m->mesh = mesh;
        m->job = where->job;
        m->deadline = cup__clock() + mesh->timeout;
        m->listener = -1;
        m->list = list;
        status = mesh->count > 1 ? meet(m, where) : CUP_OK;
        if (m->listener >= 0)
            close(m->listener);
        for (int i = 0; i < m->stranger_count; i++)
            close(m->strangers[i].handle);
    } else {
        status = cup__fail(error, CUP_MEMORY, "out of host memory for a communicator");
    }
    cup__free(list);
    cup__free(m);
    return status;
}

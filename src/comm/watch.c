/* The thread that tells the others what this process does, and hears of them. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"
#include "comm/mesh.h"
#include "cupola/text.h"

#define TICK_MS 100
/* Beats are this often within the time after which a process counts as silent. */
#define BEATS 5
/* A pause of this thread longer than that is one of this process, and says nothing of others. */
#define OWN_PAUSE 1.0

typedef enum kind { BEAT, FAILED, LEAVING, KINDS } kind;

/* What goes over a control socket. */
typedef struct frame {
    char magic[4];
    uint32_t kind;
    cup__doing doing;
    char text[CUP__NEWS_TEXT];
} frame;

/* A frame on its way in from one peer. */
typedef struct incoming {
    frame frame;
    size_t got;
} incoming;

typedef struct watch {
    cup__mesh *mesh;
    incoming *in;          /* [count] */
    struct pollfd *polls;  /* [count + 1] */
    double last, beaten;
} watch;

static frame frame_of(cup__mesh *mesh, kind what, const char *text)
{
    frame f = {.magic = {'C', 'U', 'P', 'c'}, .kind = what, .doing = mesh->mine};
    snprintf(f.text, sizeof f.text, "%s", text);
    return f;
}

/* A beat may be left out where the other end does not read; what ends the run has a second. */
static void tell_all(cup__mesh *mesh, kind what, const char *text)
{
    frame f = frame_of(mesh, what, text);
    for (int i = 0; i < mesh->count; i++) {
        int handle = mesh->peers[i].control;
        if (handle < 0 || mesh->peers[i].left)
            continue;
        double now = cup__clock();
        if (what != BEAT)
            cup__send_all(handle, &f, sizeof f, now + 1);
        else if (cup__wait(handle, true, now))
            cup__send_all(handle, &f, sizeof f, now + 0.1);
    }
}

/* With the lock held. */
static void fail(cup__mesh *mesh, const char *text)
{
    if (mesh->failed)
        return;
    snprintf(mesh->news, sizeof mesh->news, "%s", text);
    atomic_store(&mesh->failed, true);
}

static void take(cup__mesh *mesh, int peer, const frame *f)
{
    char text[CUP__NEWS_TEXT];
    cup__peer *p = &mesh->peers[peer];
    p->heard = cup__clock();
    p->doing = f->doing;
    cup_text_visible(f->text, "", text, sizeof text);
    if (f->kind == LEAVING)
        p->left = true;
    if (f->kind == FAILED)
        fail(mesh, text);
}

static void lose(cup__mesh *mesh, int peer)
{
    char text[CUP__NEWS_TEXT], doing[128];
    cup__peer *p = &mesh->peers[peer];
    close(p->control);
    p->control = -1;
    if (p->left)
        return;
    snprintf(text, sizeof text, "%s has ended, or its host has; it was last %s", p->name,
             cup__doing_text(&p->doing, doing));
    fail(mesh, text);
}

static void hear(watch *w, int peer)
{
    cup__mesh *mesh = w->mesh;
    incoming *in = &w->in[peer];
    for (;;) {
        ssize_t got = recv(mesh->peers[peer].control, (char *)&in->frame + in->got,
                           sizeof in->frame - in->got, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got <= 0) {
            lose(mesh, peer);
            return;
        }
        in->got += (size_t)got;
        if (in->got < sizeof in->frame)
            continue;
        in->got = 0;
        in->frame.text[sizeof in->frame.text - 1] = 0;
        if (memcmp(in->frame.magic, "CUPc", 4) || in->frame.kind >= KINDS) {
            lose(mesh, peer);
            return;
        }
        take(mesh, peer, &in->frame);
    }
}

static void look_for_silence(watch *w, double now)
{
    char text[CUP__NEWS_TEXT], doing[128];
    cup__mesh *mesh = w->mesh;
    bool paused = now - w->last > OWN_PAUSE;
    for (int i = 0; i < mesh->count; i++) {
        cup__peer *p = &mesh->peers[i];
        if (paused)
            p->heard = now;
        if (i == mesh->rank || p->left || p->control < 0 || now - p->heard < mesh->silence)
            continue;
        snprintf(text, sizeof text,
                 "%s has given no sign of life for %.0f s: it was stopped, or the network is cut; "
                 "it was last %s",
                 p->name, now - p->heard, cup__doing_text(&p->doing, doing));
        fail(mesh, text);
    }
    w->last = now;
}

static void look_at_ropes(cup__mesh *mesh)
{
    char why[256], text[CUP__NEWS_TEXT];
    for (cup__rope *rope = mesh->ropes; rope && !mesh->failed; rope = rope->next)
        if (rope->broken && rope->broken(rope->user, why, sizeof why)) {
            snprintf(text, sizeof text, "%s: %s", mesh->peers[mesh->rank].name, why);
            fail(mesh, text);
        }
}

/* With the lock held, but for the pulling itself, behind which the thread that computes goes on. */
static void pull_ropes(cup__mesh *mesh)
{
    cup__rope *rope = mesh->ropes;
    while (rope && rope->pulled)
        rope = rope->next;
    if (!rope)
        return;
    rope->pulled = rope->held = true;
    pthread_mutex_unlock(&mesh->lock);
    rope->pull(rope->user);
    pthread_mutex_lock(&mesh->lock);
    rope->held = false;
    pthread_cond_broadcast(&mesh->let_go);
}

/* One round; false: the end. */
static bool turn(watch *w)
{
    cup__mesh *mesh = w->mesh;
    char waste[64];
    cup__text flight = {0};
    bool was_told = mesh->told;
    w->polls[mesh->count] = (struct pollfd){.fd = mesh->wake[0], .events = POLLIN};
    for (int i = 0; i < mesh->count; i++)
        w->polls[i] = (struct pollfd){.fd = mesh->peers[i].control, .events = POLLIN};
    poll(w->polls, (nfds_t)mesh->count + 1, TICK_MS);
    if (w->polls[mesh->count].revents)
        (void)!read(mesh->wake[0], waste, sizeof waste);
    pthread_mutex_lock(&mesh->lock);
    for (int i = 0; i < mesh->count; i++)
        if (w->polls[i].revents)
            hear(w, i);
    double now = cup__clock();
    look_for_silence(w, now);
    look_at_ropes(mesh);
    bool beats = now - w->beaten >= mesh->silence / BEATS;
    if (mesh->failed && !mesh->told)
        tell_all(mesh, FAILED, mesh->news);
    else if (!mesh->failed && beats)
        tell_all(mesh, BEAT, "");
    mesh->told |= mesh->failed;
    w->beaten = beats ? now : w->beaten;
    bool goes_on = !mesh->ending;
    const char *why = mesh->failed ? mesh->news : !goes_on ? mesh->last_words : "";
    if (*why && !was_told && mesh->flight.folder)
        cup__flight_text(mesh, why, &flight);
    if (!goes_on && *mesh->last_words && !mesh->told)
        tell_all(mesh, FAILED, mesh->last_words);
    else if (!goes_on && !mesh->told)
        tell_all(mesh, LEAVING, "");
    if (mesh->failed)
        pull_ropes(mesh);
    pthread_mutex_unlock(&mesh->lock);
    if (flight.bytes)
        cup__flight_write(mesh, &flight);
    return goes_on;
}

static void *run(void *user)
{
    watch *w = user;
    while (turn(w)) {
    }
    cup__free(w->in);
    cup__free(w->polls);
    cup__free(w);
    return NULL;
}

static watch *watch_new(cup__mesh *mesh)
{
    size_t count = (size_t)mesh->count;
    watch *w = cup__calloc(1, sizeof *w);
    incoming *in = cup__calloc(count, sizeof *in);
    struct pollfd *polls = cup__calloc(count + 1, sizeof *polls);
    if (w && in && polls) {
        *w = (watch){.mesh = mesh, .in = in, .polls = polls, .last = cup__clock()};
        return w;
    }
    cup__free(w);
    cup__free(in);
    cup__free(polls);
    return NULL;
}

cup_status cup__watch_start(cup__error *error, cup__mesh *mesh)
{
    sigset_t all, before;
    for (int i = 0; i < mesh->count; i++)
        mesh->peers[i].heard = cup__clock();
    watch *w = watch_new(mesh);
    if (!w || pipe(mesh->wake)) {
        if (w) {
            cup__free(w->in);
            cup__free(w->polls);
        }
        cup__free(w);
        return cup__fail(error, CUP_MEMORY, "out of host memory for a communicator");
    }
    /* Signals are for the thread that computes. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&mesh->thread, NULL, run, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    mesh->running = !failed;
    if (!failed)
        return CUP_OK;
    cup__free(w->in);
    cup__free(w->polls);
    cup__free(w);
    return cup__fail(error, CUP_MEMORY, "communicator: no thread can be started: %s",
                     strerror(failed));
}

void cup__watch_stop(cup__mesh *mesh)
{
    if (!mesh->running)
        return;
    pthread_mutex_lock(&mesh->lock);
    mesh->ending = true;
    pthread_mutex_unlock(&mesh->lock);
    (void)!write(mesh->wake[1], "!", 1);
    pthread_join(mesh->thread, NULL);
    mesh->running = false;
}

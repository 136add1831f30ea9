#include "comm/mesh.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"

const char *const cup__operation_names[CUP__OPERATIONS] = {
    "computing", "agree", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all",
    "reduce", "send and receive", "rotate"};

const char *cup__doing_text(const cup__doing *doing, char out[128])
{
    char step[32] = "";
    if (doing->step >= 0)
        snprintf(step, sizeof step, " of step %lld", (long long)doing->step);
    const char *name =
        cup__operation_names[doing->id < CUP__OPERATIONS ? doing->id : CUP__COMPUTING];
    if (doing->busy)
        snprintf(out, 128, "busy, as with a file, behind operation %llu%s",
                 (unsigned long long)doing->sequence, step);
    else if (doing->id == CUP__COMPUTING)
        snprintf(out, 128, "computing behind operation %llu%s",
                 (unsigned long long)doing->sequence, step);
    else
        snprintf(out, 128, "in %s, operation %llu%s", name, (unsigned long long)doing->sequence,
                 step);
    return out;
}

static void free_mesh(cup__mesh *mesh)
{
    for (int i = 0; mesh->peers && i < mesh->count; i++) {
        if (mesh->peers[i].data >= 0)
            close(mesh->peers[i].data);
        if (mesh->peers[i].control >= 0)
            close(mesh->peers[i].control);
    }
    for (int i = 0; i < 2; i++)
        if (mesh->wake[i] >= 0)
            close(mesh->wake[i]);
    pthread_cond_destroy(&mesh->let_go);
    pthread_mutex_destroy(&mesh->lock);
    cup__free(mesh->peers);
    cup__free(mesh->flight.folder);
    cup__free(mesh);
}

cup__mesh *cup__mesh_new(cup__error *error, const cup__meeting *meeting,
                         const cup_comm_options *options)
{
    int count = options->count;
    char *folder = options->record && *options->record ? cup__strdup(options->record) : NULL;
    cup__mesh *mesh = cup__calloc(1, sizeof *mesh);
    cup__peer *peers = cup__calloc((size_t)count, sizeof *peers);
    if (!mesh || !peers) {
        cup__free(mesh);
        cup__free(peers);
        cup__free(folder);
        cup__fail(error, CUP_MEMORY, "out of host memory for a communicator");
        return NULL;
    }
    *mesh = (cup__mesh){.rank = options->rank,
                        .count = count,
                        .refs = 1,
                        .timeout = options->timeout,
                        .silence = options->silence,
                        .flight = {.folder = folder},
                        .peers = peers,
                        .wake = {-1, -1},
                        .mine = {.step = -1}};
    pthread_mutex_init(&mesh->lock, NULL);
    pthread_cond_init(&mesh->let_go, NULL);
    for (int i = 0; i < count; i++) {
        peers[i] = (cup__peer){.data = -1, .control = -1, .doing = {.step = -1}};
        snprintf(peers[i].name, sizeof peers[i].name, "rank %d", i);
    }
    if (cup__mesh_meet(error, mesh, meeting) == CUP_OK && cup__watch_start(error, mesh) == CUP_OK)
        return mesh;
    free_mesh(mesh);
    return NULL;
}

void cup__mesh_leave(cup__mesh *mesh, const char *why)
{
    pthread_mutex_lock(&mesh->lock);
    bool last = --mesh->refs == 0;
    /* An error that was cleared before the last communicator left is nobody's business. */
    if (last && why && *why)
        snprintf(mesh->last_words, sizeof mesh->last_words, "%s", why);
    pthread_mutex_unlock(&mesh->lock);
    if (!last)
        return;
    cup__watch_stop(mesh);
    free_mesh(mesh);
}

void cup__mesh_fail(cup__mesh *mesh, const char *format, ...)
{
    va_list args;
    pthread_mutex_lock(&mesh->lock);
    if (!mesh->failed) {
        va_start(args, format);
        vsnprintf(mesh->news, sizeof mesh->news, format, args);
        va_end(args);
        atomic_store(&mesh->failed, true);
    }
    pthread_mutex_unlock(&mesh->lock);
    (void)!write(mesh->wake[1], "!", 1);
}

cup_status cup__mesh_error(cup__mesh *mesh, cup__error *error)
{
    pthread_mutex_lock(&mesh->lock);
    cup_status status = cup__fail(error, CUP_PEER, "communicator: %s", mesh->news);
    pthread_mutex_unlock(&mesh->lock);
    return status;
}

void cup__mesh_does(cup__mesh *mesh, const cup__doing *doing)
{
    pthread_mutex_lock(&mesh->lock);
    mesh->mine = *doing;
    cup__flight_note(mesh, doing);
    pthread_mutex_unlock(&mesh->lock);
}

cup__doing cup__mesh_heard(cup__mesh *mesh, int peer)
{
    pthread_mutex_lock(&mesh->lock);
    cup__doing doing = mesh->peers[peer].doing;
    pthread_mutex_unlock(&mesh->lock);
    return doing;
}

void cup__rope_add(cup__mesh *mesh, cup__rope *rope)
{
    pthread_mutex_lock(&mesh->lock);
    rope->next = mesh->ropes;
    mesh->ropes = rope;
    pthread_mutex_unlock(&mesh->lock);
}

void cup__rope_remove(cup__mesh *mesh, cup__rope *rope)
{
    pthread_mutex_lock(&mesh->lock);
    while (rope->held)
        pthread_cond_wait(&mesh->let_go, &mesh->lock);
    for (cup__rope **link = &mesh->ropes; *link; link = &(*link)->next)
        if (*link == rope) {
            *link = rope->next;
            break;
        }
    pthread_mutex_unlock(&mesh->lock);
}

/* The compiled kernels of this process, shared by its contexts: each is got once, whoever asks
 * first, and the others wait for it. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "cuda/kernels.h"

typedef enum state { BUSY, READY, FAILED, GIVEN_UP } state;

typedef struct item {
    struct item *next;
    state state;
    cup__code code;
    cup__key key;
    char *file, *arch, *knobs, *failure;
    int compiler;
} item;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static item *items;

/* How long compiling has kept this process, to say so when it takes long. */
static double waited, said;
static int compiled;

static void count_compilation(double seconds)
{
    pthread_mutex_lock(&lock);
    waited += seconds;
    compiled++;
    bool say = waited - said > 2;
    if (say)
        said = waited;
    int count = compiled;
    double total = waited;
    pthread_mutex_unlock(&lock);
    if (say)
        cup__log(CUP__INFO, "compiling kernels: %d in %.1f s so far; the cache keeps them", count,
                 total);
}

static void item_free(item *gone)
{
    cup__free(gone->file);
    cup__free(gone->arch);
    cup__free(gone->knobs);
    cup__free(gone->failure);
    cup__free(gone->code.bytes);
    cup__free(gone);
}

static item *item_new(const cup__code_name *name)
{
    item *made = cup__calloc(1, sizeof *made);
    if (!made)
        return NULL;
    made->key = name->key;
    made->compiler = name->compiler;
    made->file = cup__strdup(name->file);
    made->arch = cup__strdup(name->arch);
    made->knobs = cup__strdup(name->knobs);
    if (made->file && made->arch && made->knobs)
        return made;
    item_free(made);
    return NULL;
}

static item *find(const cup__key *key)
{
    for (item *i = items; i; i = i->next)
        if (i->state != GIVEN_UP && i->key.low == key->low && i->key.high == key->high)
            return i;
    return NULL;
}

/* CUP_LOG=source: the text as the compiler sees it, beside the cache or in /tmp. */
static void say_source(const cup__unit *unit, const char *arch, const cup__knob *knobs,
                       int knob_count)
{
    char *folder = NULL, *below = NULL;
    if (cup__cache_folder(NULL, &folder) == CUP_OK && folder)
        below = cup__path_join(folder, "source");
    char *path =
        cup__unit_dump(unit, arch, knobs, knob_count, below ? below : "/tmp/cupola-source");
    cup__log(CUP__SOURCE, "source: %s", path ? path : "could not be written");
    cup__free(path);
    cup__free(below);
    cup__free(folder);
}

static cup_status obtain(cup__error *error, const cup__unit *unit, const cup__code_name *name,
                         const cup__knob *knobs, int knob_count, cup__code *out)
{
    if (cup__pack_read(name, out) || cup__cache_read(name, out))
        return CUP_OK;
    if (cup__log_wants(CUP__SOURCE))
        say_source(unit, name->arch, knobs, knob_count);
    double start = cup__clock();
    CUP_TRY(cup__unit_compile(error, unit, name->arch, knobs, knob_count, out));
    count_compilation(cup__clock() - start);
    cup__log(CUP__INFO, "compiled %s for %s (%s) in %.0f ms", name->file, name->arch, name->knobs,
             (cup__clock() - start) * 1000);
    cup__cache_write(name, out);
    return CUP_OK;
}

/* Makes the item ready or failed, and wakes those who wait. A source that does not compile is not
 * tried again; what failed for other reasons is. */
static void settle(item *it, cup_status status, const cup__error *error, const cup__code *code)
{
    char *failure = status == CUP_COMPILE ? cup__strdup(error->text) : NULL;
    pthread_mutex_lock(&lock);
    it->code = *code;
    it->failure = failure;
    it->state = status == CUP_OK ? READY : failure ? FAILED : GIVEN_UP;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Finds the item, waiting where wanted while another thread works on it; or makes it, which sets
 * *mine. */
static item *claim(const cup__code_name *name, bool wait, bool *mine)
{
    *mine = false;
    pthread_mutex_lock(&lock);
    item *found = find(&name->key);
    while (wait && found && found->state == BUSY)
        pthread_cond_wait(&changed, &lock);
    if (!found || found->state == GIVEN_UP) {
        found = item_new(name);
        if (found) {
            found->next = items;
            items = found;
            *mine = true;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* `out` is NULL where nobody waits. */
static cup_status get(cup__error *error, const cup__unit *unit, const cup__code_name *name,
                      const cup__knob *knobs, int knob_count, const cup__code **out)
{
    bool mine;
    item *it = claim(name, out != NULL, &mine);
    if (!it)
        return cup__fail(error, CUP_MEMORY, "out of host memory for %s", name->file);
    if (mine) {
        cup__error own = {0};
        cup__code code = {0};
        cup_status status = obtain(&own, unit, name, knobs, knob_count, &code);
        settle(it, status, &own, &code);
        if (status != CUP_OK)
            return cup__fail(error, status, "%s", own.text);
    }
    if (!out)
        return CUP_OK;
    if (it->state == FAILED)
        return cup__fail(error, CUP_COMPILE, "%s", it->failure);
    *out = &it->code;
    return CUP_OK;
}

cup_status cup__code_get(cup__error *error, const char *arch, const cup__kernel_request *request,
                         const cup__code **out)
{
    cup__knob knobs[CUP__MOST_KNOBS];
    if (request->knob_count > CUP__MOST_KNOBS)
        return cup__fail(error, CUP_INTERNAL, "%s: more than %d knobs", request->file,
                         CUP__MOST_KNOBS);
    cup__knobs_sort(knobs, request->knobs, request->knob_count);
    cup__unit *unit = cup__malloc(sizeof *unit);
    if (!unit)
        return cup__fail(error, CUP_MEMORY, "out of host memory for %s", request->file);
    cup_status status = cup__unit_open(error, request->file, request->text, unit);
    cup__text words = {0};
    if (status == CUP_OK) {
        cup__knobs_text(&words, knobs, request->knob_count);
        cup__code_name name = {request->file, arch, cup__text_string(&words),
                               cup__compiler_version(),
                               cup__unit_key(unit, arch, knobs, request->knob_count)};
        status = get(error, unit, &name, knobs, request->knob_count, out);
        cup__unit_close(unit);
    }
    cup__text_free(&words);
    cup__free(unit);
    return status;
}

void cup__kernels_ahead(const char *arch, const cup__kernel_request *requests, int count)
{
    for (int i = 0; i < count; i++) {
        cup__error ignored = {0};
        cup__code_get(&ignored, arch, &requests[i], NULL);
    }
}

/* Many at once. */

typedef struct queue {
    const char *arch;
    const cup__kernel_request *requests;
    int count, done;
    _Atomic int next;
    cup__kernel_progress progress;
    void *user;
    pthread_mutex_t lock;
    cup__error first;
} queue;

static void *work(void *argument)
{
    queue *q = argument;
    for (int i; (i = atomic_fetch_add(&q->next, 1)) < q->count;) {
        cup__error error = {0};
        const cup__code *code;
        cup_status status = cup__code_get(&error, q->arch, &q->requests[i], &code);
        pthread_mutex_lock(&q->lock);
        q->done++;
        if (status != CUP_OK)
            cup__fail(&q->first, status, "%s", error.text);
        if (q->progress)
            q->progress(q->user, q->done, q->count, &q->requests[i],
                        status == CUP_OK ? NULL : error.text);
        pthread_mutex_unlock(&q->lock);
    }
    return NULL;
}

#define MOST_THREADS 64

cup_status cup__kernels_prepare(cup__error *error, const char *arch,
                                const cup__kernel_request *requests, int count, int threads,
                                cup__kernel_progress progress, void *user)
{
    queue q = {.arch = arch, .requests = requests, .count = count, .progress = progress,
               .user = user, .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t ids[MOST_THREADS];
    int started = 0;
    if (threads <= 0)
        threads = cup__threads();
    if (threads > count)
        threads = count;
    /* This thread works too; a system that grants no more threads is served by this one. */
    while (started < threads - 1 && started < MOST_THREADS &&
           pthread_create(&ids[started], NULL, work, &q) == 0)
        started++;
    work(&q);
    for (int i = 0; i < started; i++)
        pthread_join(ids[i], NULL);
    pthread_mutex_destroy(&q.lock);
    return q.first.status == CUP_OK ? CUP_OK
                                    : cup__fail(error, q.first.status, "%s", q.first.text);
}

cup_status cup__kernels_pack(cup__error *error, const char *path, int *count)
{
    size_t most = 0, used = 0;
    pthread_mutex_lock(&lock);
    for (item *i = items; i; i = i->next)
        most += i->state == READY;
    cup__key *keys = cup__calloc(most, sizeof *keys);
    cup__text *encoded = cup__calloc(most, sizeof *encoded);
    cup_status status = CUP_OK;
    if (!keys || !encoded)
        status = cup__fail(error, CUP_MEMORY, "%s: out of host memory", path);
    for (item *i = items; i && status == CUP_OK; i = i->next) {
        if (i->state != READY)
            continue;
        cup__code_name name = {i->file, i->arch, i->knobs, i->compiler, i->key};
        keys[used] = i->key;
        status = cup__code_encode(error, &name, &i->code, &encoded[used++]);
    }
    pthread_mutex_unlock(&lock);
    if (status == CUP_OK)
        status = cup__pack_write(error, path, keys, encoded, used);
    for (size_t i = 0; encoded && i < used; i++)
        cup__text_free(&encoded[i]);
    cup__free(encoded);
    cup__free(keys);
    *count = (int)used;
    return status;
}

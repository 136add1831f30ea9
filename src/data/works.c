#include "data/works.h"

#include "base/memory.h"

bool cup__works_begin(cup__works *works, size_t most)
{
    *works = (cup__works){.work = cup__calloc(most, sizeof(void *)), .most = most};
    if (works->work)
        pthread_mutex_init(&works->lock, NULL);
    return works->work;
}

void cup__works_end(cup__works *works)
{
    if (!works->work)
        return;
    pthread_mutex_destroy(&works->lock);
    cup__free(works->work);
    *works = (cup__works){0};
}

void *cup__works_take(cup__works *works)
{
    pthread_mutex_lock(&works->lock);
    void *work = works->count ? works->work[--works->count] : NULL;
    pthread_mutex_unlock(&works->lock);
    return work;
}

void *cup__works_give(cup__works *works, void *work)
{
    pthread_mutex_lock(&works->lock);
    if (work && works->count < works->most) {
        works->work[works->count++] = work;
        work = NULL;
    }
    pthread_mutex_unlock(&works->lock);
    return work;
}

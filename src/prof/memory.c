#include "cupola/prof.h"

#include "base/room.h"
#include "base/text.h"
#include "cuda/pool.h"
#include "tensor/context.h"

#define MOST_USERS 256

int cup_memory_users(cup_context *c, cup_memory_user *users, int most)
{
    cup__pool_user all[MOST_USERS];
    if (!c || !c->device || !c->device->is_cuda || !users || most < 1)
        return 0;
    cup__pool *pool = cup__pool_of(cup__cuda_of(c->device));
    int count = pool ? cup__pool_users(pool, all, most < MOST_USERS ? most : MOST_USERS) : 0;
    for (int i = 0; i < count; i++)
        users[i] = (cup_memory_user){all[i].tag, all[i].bytes, all[i].blocks};
    return count;
}

int64_t cup_memory_trim(cup_context *c)
{
    return c && c->device ? c->device->calls->trim(c->device) : 0;
}

cup_status cup_memory_use(cup_context *c, cup_memory *out)
{
    if (out)
        *out = (cup_memory){0};
    if (!c || !c->device || !out)
        return cup_error(c);
    cup__memory_use use = {0};
    c->device->calls->memory_use(c->device, &use);
    *out = (cup_memory){
        .allocated = use.allocated,
        .peak_allocated = use.peak_allocated,
        .reserved = use.reserved,
        .peak_reserved = use.peak_reserved,
        .largest_free = use.largest_free,
        .limit = use.limit,
        .device_free = use.free,
        .device_total = use.total,
        .allocations = use.allocations,
        .cached = use.cached,
    };
    return CUP_OK;
}

cup_status cup_memory_check(cup_context *c, double bytes, const char *what)
{
    cup__memory_use use = {0};
    char needs[32], has[32];
    if (!c || !c->device || c->error.status != CUP_OK)
        return cup_error(c);
    c->device->calls->memory_use(c->device, &use);
    int64_t most = use.total;
    if (!c->device->is_cuda) {
        cup__room room;
        cup__room_find(&room);
        most = room.free;
    }
    most = use.limit > 0 && use.limit < most ? use.limit : most;
    if (most <= 0 || !(bytes > (double)most))
        return CUP_OK;
    return cup__fail(&c->error, CUP_MEMORY, "%s need %s, and the device has %s; make it smaller",
                     what ? what : "they", cup__text_bytes(bytes, needs),
                     cup__text_bytes((double)most, has));
}

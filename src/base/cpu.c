/* The CPU as a device. Freed blocks are kept by size and used again, because fresh pages from the
 * system cost more than most ops on them. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/device.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/room.h"
#include "base/text.h"

#define ALIGNMENT 256
#define CLASSES 256
#define ASKED_BYTES_LEAST ((size_t)16 << 20) /* looking for room costs less than such a block */
#define KEPT_BYTES_MOST ((int64_t)1 << 32)

typedef struct block {
    size_t bytes; /* of the class, without this head */
    struct block *next;
    const char *tag;
} block;

typedef struct cpu {
    cup__device device;
    cup__memory_use use;
    block *spare[CLASSES];
    int64_t spare_bytes;
} cpu;

static cpu *cpu_of(cup__device *device)
{
    return (cpu *)device;
}

/* Four classes for each power of two, so that at most a fifth of a block is unused. */
static int class_of(size_t bytes, size_t *rounded)
{
    size_t size = bytes < 256 ? 256 : bytes;
    int power = 63 - __builtin_clzll(size);
    size_t step = (size_t)1 << (power - 2);
    size_t steps = (size - ((size_t)1 << power) + step - 1) / step;
    *rounded = ((size_t)1 << power) + steps * step;
    return (power - 8) * 4 + (int)steps;
}

static int64_t trim(cpu *self)
{
    int64_t before = self->use.reserved;
    for (int i = 0; i < CLASSES; i++)
        while (self->spare[i]) {
            block *gone = self->spare[i];
            self->spare[i] = gone->next;
            self->use.reserved -= (int64_t)gone->bytes;
            cup__free(gone);
        }
    self->spare_bytes = 0;
    return before - self->use.reserved;
}

/* The system hands out what a control group may not hold, and ends the process when it is used. */
static bool has_room(size_t bytes)
{
    if (bytes < ASKED_BYTES_LEAST)
        return true;
    cup__room room;
    cup__room_find(&room);
    return bytes <= (uint64_t)room.free;
}

static block *fresh(cpu *self, size_t bytes)
{
    block *made = has_room(bytes) ? cup__aligned(ALIGNMENT, bytes + ALIGNMENT) : NULL;
    if (!made) {
        trim(self);
        made = has_room(bytes) ? cup__aligned(ALIGNMENT, bytes + ALIGNMENT) : NULL;
    }
    if (made) {
        made->bytes = bytes;
        self->use.reserved += (int64_t)bytes;
        if (self->use.reserved > self->use.peak_reserved)
            self->use.peak_reserved = self->use.reserved;
    }
    return made;
}

static cup_status out_of_memory(cpu *self, size_t bytes, const char *tag, bool limited)
{
    char asked[32], held[32], limit[32];
    cup__text_bytes((double)bytes, asked);
    cup__text_bytes((double)self->use.allocated, held);
    if (limited)
        return cup__fail(self->device.error, CUP_MEMORY,
                         "out of memory: %s for %s with %s in use exceeds the limit of %s; raise "
                         "memory_limit or use smaller sizes",
                         asked, tag, held, cup__text_bytes((double)self->use.limit, limit));
    return cup__fail(self->device.error, CUP_MEMORY,
                     "out of memory: the system has no %s for %s (in use here: %s); close other "
                     "programs or use smaller sizes, for example a smaller batch",
                     asked, tag, held);
}

static cup_status allocate(cup__device *device, size_t bytes, const char *tag, void **out)
{
    cpu *self = cpu_of(device);
    size_t rounded;
    if (bytes > (size_t)1 << 62)
        return out_of_memory(self, bytes, tag, false);
    int class = class_of(bytes, &rounded);
    if (self->use.limit && self->use.allocated + (int64_t)rounded > self->use.limit)
        return out_of_memory(self, bytes, tag, true);
    block *taken = self->spare[class];
    self->use.allocations++;
    if (taken) {
        self->spare[class] = taken->next;
        self->spare_bytes -= (int64_t)rounded;
        self->use.cached++;
    } else {
        taken = fresh(self, rounded);
        if (!taken)
            return out_of_memory(self, bytes, tag, false);
    }
    taken->tag = tag;
    self->use.allocated += (int64_t)rounded;
    if (self->use.allocated > self->use.peak_allocated)
        self->use.peak_allocated = self->use.allocated;
    *out = (char *)taken + ALIGNMENT;
    return CUP_OK;
}

static void release(cup__device *device, void *memory)
{
    cpu *self = cpu_of(device);
    block *done = (block *)(void *)((char *)memory - ALIGNMENT);
    size_t rounded;
    int class = class_of(done->bytes, &rounded);
    self->use.allocated -= (int64_t)done->bytes;
    done->next = self->spare[class];
    self->spare[class] = done;
    self->spare_bytes += (int64_t)done->bytes;
    if (self->spare_bytes > KEPT_BYTES_MOST)
        trim(self);
}

static cup_status copy(cup__device *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    if (bytes)
        memcpy(to, from, bytes);
    return CUP_OK;
}

static cup_status fill(cup__device *device, void *to, int byte, size_t bytes)
{
    (void)device;
    if (bytes)
        memset(to, byte, bytes);
    return CUP_OK;
}

static cup_status synchronize(cup__device *device)
{
    (void)device;
    return CUP_OK;
}

static cup_status reach(cup__device *device, const void *memory, size_t bytes,
                        char why[CUP__REACH_TEXT])
{
    (void)device, (void)memory, (void)bytes, (void)why;
    return CUP_OK;
}

static void part(cup__device *device, void (*done)(void *user), void *user)
{
    (void)device;
    done(user);
}

static void idle(cup__device *device)
{
    (void)device;
}

static void memory_use(cup__device *device, cup__memory_use *use)
{
    *use = cpu_of(device)->use;
    int64_t page = sysconf(_SC_PAGESIZE);
    use->free = (int64_t)sysconf(_SC_AVPHYS_PAGES) * page;
    use->total = (int64_t)sysconf(_SC_PHYS_PAGES) * page;
    for (int i = CLASSES - 1; i >= 0 && !use->largest_free; i--)
        if (cpu_of(device)->spare[i])
            use->largest_free = (int64_t)cpu_of(device)->spare[i]->bytes;
}

static void limit_cpu(cup__device *device, int64_t bytes)
{
    cpu_of(device)->use.limit = bytes;
}

static int64_t trim_cpu(cup__device *device)
{
    return trim(cpu_of(device));
}

static void close_cpu(cup__device *device)
{
    trim(cpu_of(device));
    cup__free(device);
}

static const cup__device_calls calls = {
    .close = close_cpu,
    .allocate = allocate,
    .release = release,
    .write = copy,
    .read = copy,
    .copy = copy,
    .fill = fill,
    .synchronize = synchronize,
    .reach = reach,
    .part = part,
    .idle = idle,
    .memory_use = memory_use,
    .limit = limit_cpu,
    .trim = trim_cpu,
};

cup_status cup__cpu_open(cup__error *error, int64_t memory_limit, const char *why,
                         cup__device **out)
{
    cpu *self = cup__calloc(1, sizeof *self);
    if (!self)
        return cup__fail(error, CUP_MEMORY, "out of host memory while opening the CPU");
    self->device.calls = &calls;
    self->device.error = error;
    self->use.limit = memory_limit;
    int threads = cup__threads();
    snprintf(self->device.text, sizeof self->device.text, "cpu, %d thread%s%s%.200s%s", threads,
             threads == 1 ? "" : "s", why ? " (" : "", why ? why : "", why ? ")" : "");
    *out = &self->device;
    return CUP_OK;
}

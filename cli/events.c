/* A file is a list of records: the length, 8 bytes, and its checksum, 4, then the bytes and theirs.
 * Each record is an Event in protobuf's coding: wall_time 1, step 2, file_version 3, summary 5,
 * session_log 7; a summary is values 1, each with a tag 1 and a simple_value 2. All numbers are
 * little-endian. */
#include "cli/events.h"

#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define CRC32C 0x82f63b78u /* the polynomial, its bits turned round */
#define TURN 15
#define ADD 0xa282ead8u

#define MOST_TAG 64
#define MOST_EVENT ((MOST_TAG + 16) * EVENTS_MOST_VALUES + 64)

enum { VARINT, FIXED64, BYTES, FIXED32 = 5 };

typedef struct message {
    uint8_t bytes[MOST_EVENT];
    size_t length;
} message;

uint32_t events_checksum(const void *bytes, size_t count)
{
    const uint8_t *at = bytes;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < count; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? CRC32C : 0);
    }
    crc = ~crc;
    return (crc >> TURN | crc << (32 - TURN)) + ADD;
}

static void add_fixed(message *m, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        m->bytes[m->length++] = (uint8_t)(value >> 8 * i);
}

static void add_varint(message *m, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        m->bytes[m->length++] = (uint8_t)(value | 0x80);
    m->bytes[m->length++] = (uint8_t)value;
}

static void add_key(message *m, int field, int kind)
{
    add_varint(m, (uint64_t)(field << 3 | kind));
}

static void add_bytes(message *m, int field, const void *bytes, size_t count)
{
    add_key(m, field, BYTES);
    add_varint(m, count);
    memcpy(m->bytes + m->length, bytes, count);
    m->length += count;
}

static message event_at(int64_t step)
{
    message m = {.length = 0};
    struct timeval now;
    gettimeofday(&now, NULL);
    double seconds = (double)now.tv_sec + 1e-6 * (double)now.tv_usec;
    uint64_t bits;
    memcpy(&bits, &seconds, sizeof bits);
    add_key(&m, 1, FIXED64);
    add_fixed(&m, bits, 8);
    add_key(&m, 2, VARINT);
    add_varint(&m, (uint64_t)step);
    return m;
}

static bool write_record(cli_events *e, const message *m)
{
    message head = {.length = 0}, tail = {.length = 0};
    add_fixed(&head, m->length, 8);
    add_fixed(&head, events_checksum(head.bytes, head.length), 4);
    add_fixed(&tail, events_checksum(m->bytes, m->length), 4);
    fwrite(head.bytes, 1, head.length, e->to);
    fwrite(m->bytes, 1, m->length, e->to);
    fwrite(tail.bytes, 1, tail.length, e->to);
    return fflush(e->to) == 0 && !ferror(e->to);
}

/* The file says what it is first, then that a run begins here. */
static bool write_head(cli_events *e, int64_t first)
{
    static const char version[] = "brain.Event:2";
    static const uint8_t start[] = {1 << 3 | VARINT, 1}; /* SessionLog's status: START */
    message m = event_at(0);
    add_bytes(&m, 3, version, sizeof version - 1);
    if (!write_record(e, &m))
        return false;
    m = event_at(first);
    add_bytes(&m, 7, start, sizeof start);
    return write_record(e, &m);
}

bool events_open(cli_events *e, const char *folder, int64_t first)
{
    char path[PATH_MAX], host[256] = "";
    struct timeval now;
    gettimeofday(&now, NULL);
    gethostname(host, sizeof host - 1);
    int length = snprintf(path, sizeof path, "%s/events.out.tfevents.%010lld.%06lld.%s.%ld", folder,
                          (long long)now.tv_sec, (long long)now.tv_usec, *host ? host : "host",
                          (long)getpid());
    e->to = length > 0 && (size_t)length < sizeof path ? fopen(path, "wxe") : NULL;
    return e->to && write_head(e, first);
}

bool events_add(cli_events *e, int64_t step, const events_value *values, int count)
{
    message summary = {.length = 0}, m = event_at(step);
    for (int i = 0; i < count && i < EVENTS_MOST_VALUES; i++) {
        float single = (float)values[i].value;
        uint32_t bits;
        message one = {.length = 0};
        if (!isfinite(values[i].value))
            continue;
        memcpy(&bits, &single, sizeof bits);
        add_bytes(&one, 1, values[i].tag, strnlen(values[i].tag, MOST_TAG));
        add_key(&one, 2, FIXED32);
        add_fixed(&one, bits, 4);
        add_bytes(&summary, 1, one.bytes, one.length);
    }
    if (!e->to || !summary.length)
        return true;
    add_bytes(&m, 5, summary.bytes, summary.length);
    return write_record(e, &m);
}

void events_close(cli_events *e)
{
    if (e->to)
        fclose(e->to);
    e->to = NULL;
}

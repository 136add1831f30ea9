/* Writes to memory that nothing reads soon, around the caches: what is written there need not be
 * read first, which for large results is a third of the traffic. */
#ifndef CUP_BASE_STREAM_H
#define CUP_BASE_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Bytes from which a result is larger than what caches keep of it. */
#define CUP__STREAM_LEAST ((int64_t)32 << 20)

static inline void cup__stream(void *to, const void *from, size_t bytes)
{
#ifdef __SSE2__
    char *t = to;
    const char *f = from;
    size_t head = -(uintptr_t)t & 15;
    if (head > bytes)
        head = bytes;
    memcpy(t, f, head);
    t += head, f += head, bytes -= head;
    for (; bytes >= 64; t += 64, f += 64, bytes -= 64)
        for (int i = 0; i < 64; i += 16)
            _mm_stream_si128((__m128i *)(void *)(t + i),
                             _mm_loadu_si128((const __m128i *)(const void *)(f + i)));
    memcpy(t, f, bytes);
#else
    memcpy(to, from, bytes);
#endif
}

/* Before other threads may read what this one streamed. */
static inline void cup__stream_end(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}

#endif

/* Small image files for tests: a PNG of any pixels, and a JPEG and a WebP of 16 x 8 whose left half
 * is 200, 100, 50 and whose right half is 20, 60, 220. */
#ifndef TESTS_DATA_PICTURE_FILES_H
#define TESTS_DATA_PICTURE_FILES_H

#include <stdint.h>
#include <string.h>

static const uint8_t jpeg_two[] = {
    255, 216, 255, 224, 0, 16, 74, 70, 73, 70, 0, 1, 1, 0, 0, 1,
    0, 1, 0, 0, 255, 219, 0, 67, 0, 16, 11, 12, 14, 12, 10, 16,
    14, 13, 14, 18, 17, 16, 19, 24, 40, 26, 24, 22, 22, 24, 49, 35,
    37, 29, 40, 58, 51, 61, 60, 57, 51, 56, 55, 64, 72, 92, 78, 64,
    68, 87, 69, 55, 56, 80, 109, 81, 87, 95, 98, 103, 104, 103, 62, 77,
    113, 121, 112, 100, 120, 92, 101, 103, 99, 255, 219, 0, 67, 1, 17, 18,
    18, 24, 21, 24, 47, 26, 26, 47, 99, 66, 56, 66, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 255, 192,
    0, 17, 8, 0, 8, 0, 16, 3, 1, 34, 0, 2, 17, 1, 3, 17,
    1, 255, 196, 0, 22, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 2, 5, 255, 196, 0, 20, 16, 1, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255,
    196, 0, 21, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 3, 4, 255, 196, 0, 24, 17, 0, 2, 3, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 66, 129, 193,
    255, 218, 0, 12, 3, 1, 0, 2, 17, 3, 17, 0, 63, 0, 150, 16,
    43, 75, 58, 209, 89, 70, 240, 255, 217};

static const uint8_t webp_two[] = {
    82, 73, 70, 70, 40, 0, 0, 0, 87, 69, 66, 80, 86, 80, 56, 76,
    28, 0, 0, 0, 47, 15, 192, 1, 0, 15, 112, 20, 158, 83, 208, 222,
    138, 123, 254, 163, 5, 98, 193, 100, 254, 210, 157, 41, 68, 244, 63, 114};

static inline uint8_t *png_number(uint8_t *to, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        *to++ = (uint8_t)(value >> (24 - 8 * i));
    return to;
}

static inline uint8_t *png_chunk(uint8_t *to, const char *name, const uint8_t *bytes,
                                 uint32_t count)
{
    uint8_t *begin = png_number(to, count);
    uint32_t sum = 0xffffffffu;
    memcpy(begin, name, 4);
    memcpy(begin + 4, bytes, count);
    for (uint32_t i = 0; i < 4 + count; i++) {
        sum ^= begin[i];
        for (int k = 0; k < 8; k++)
            sum = sum >> 1 ^ (sum & 1 ? 0xedb88320u : 0);
    }
    return png_number(begin + 4 + count, ~sum);
}

/* Writes a PNG whose pixels are stored as they are, a few hundred bytes of them; returns its
 * bytes. */
static inline size_t png_file(const uint8_t *pixels, uint32_t height, uint32_t width, int channels,
                              uint8_t *out)
{
    uint8_t head[13] = {0}, data[2000], *to = data;
    uint32_t row = width * (uint32_t)channels, count = height * (row + 1), a = 1, b = 0;
    memcpy(to, (uint8_t[]){0x78, 1, 1, (uint8_t)count, (uint8_t)(count >> 8), (uint8_t)~count,
                           (uint8_t)(~count >> 8)}, 7);
    to += 7;
    for (uint32_t y = 0; y < height; y++) {
        *to++ = 0;
        memcpy(to, pixels + y * row, row);
        to += row;
    }
    for (uint32_t i = 0; i < count; i++) {
        a = (a + data[7 + i]) % 65521;
        b = (b + a) % 65521;
    }
    to = png_number(to, b << 16 | a);
    png_number(png_number(head, width), height);
    head[8] = 8;
    head[9] = channels == 3 ? 2 : 0;
    memcpy(out, "\x89PNG\r\n\x1a\n", 8);
    uint8_t *end = png_chunk(out + 8, "IHDR", head, 13);
    end = png_chunk(end, "IDAT", data, (uint32_t)(to - data));
    return (size_t)(png_chunk(end, "IEND", data, 0) - out);
}

#endif

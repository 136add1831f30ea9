#include "data/nfc.h"

#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "data/unicode_table.h"

#define MASK 0x1fffffu
#define BYTE 0x110000u /* what is not UTF-8: a byte above this */
#define FIRST_AFFECTED 0xcc /* all code points below U+0300 are in the form, and follow nothing */
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Hangul: a syllable is made of a leading consonant, a vowel and perhaps a trailing consonant. */
#define SYLLABLES 0xac00u
#define LEADING 0x1100u
#define VOWELS 0x1161u
#define TRAILING 0x11a7u
#define LEADING_COUNT 19u
#define VOWEL_COUNT 21u
#define TRAILING_COUNT 28u

/* Characters that are taken apart and not put together yet. */
typedef struct marks {
    uint32_t *code;
    uint8_t *kind; /* combining class */
    size_t count, room;
} marks;

static uint8_t kind_of(uint32_t code)
{
    size_t low = 0, high = COUNT(combining);
    while (low < high) {
        size_t middle = (low + high) / 2;
        uint32_t row = combining[middle], first = row >> 15, last = first + (row >> 8 & 0x7f);
        if (code >= first && code <= last)
            return (uint8_t)row;
        if (code < first)
            high = middle;
        else
            low = middle + 1;
    }
    return 0;
}

static uint64_t parts_of(uint32_t code)
{
    size_t low = 0, high = COUNT(decompositions);
    while (low < high) {
        size_t middle = (low + high) / 2;
        uint32_t found = decompositions[middle] & MASK;
        if (found == code)
            return decompositions[middle];
        if (code < found)
            high = middle;
        else
            low = middle + 1;
    }
    return 0;
}

/* The one character that two make; 0: none. */
static uint32_t joined(uint32_t first, uint32_t second)
{
    uint32_t leading = first - LEADING, vowel = second - VOWELS, trailing = second - TRAILING;
    uint32_t syllable = first - SYLLABLES;
    if (leading < LEADING_COUNT && vowel < VOWEL_COUNT)
        return SYLLABLES + (leading * VOWEL_COUNT + vowel) * TRAILING_COUNT;
    if (syllable < LEADING_COUNT * VOWEL_COUNT * TRAILING_COUNT &&
        syllable % TRAILING_COUNT == 0 && trailing - 1 < TRAILING_COUNT - 1)
        return first + trailing;
    uint64_t wanted = (uint64_t)first << 21 | second;
    size_t low = 0, high = COUNT(compositions);
    while (low < high) {
        size_t middle = (low + high) / 2;
        uint64_t row = decompositions[compositions[middle]];
        uint64_t found = (row >> 21 & MASK) << 21 | (row >> 42 & MASK);
        if (found == wanted)
            return row & MASK;
        if (wanted < found)
            high = middle;
        else
            low = middle + 1;
    }
    return 0;
}

/* Appends a character behind those before it that stand further back by their class. */
static void put(marks *m, uint32_t code)
{
    uint8_t kind = code < BYTE ? kind_of(code) : 0;
    size_t at = m->count++;
    for (; kind && at && m->kind[at - 1] > kind; at--) {
        m->code[at] = m->code[at - 1];
        m->kind[at] = m->kind[at - 1];
    }
    m->code[at] = code;
    m->kind[at] = kind;
}

/* What a character is made of, the first of which may be made of others. Four at most. */
static void take_apart(marks *m, uint32_t code)
{
    uint32_t syllable = code - SYLLABLES;
    if (syllable < LEADING_COUNT * VOWEL_COUNT * TRAILING_COUNT) {
        put(m, LEADING + syllable / (VOWEL_COUNT * TRAILING_COUNT));
        put(m, VOWELS + syllable / TRAILING_COUNT % VOWEL_COUNT);
        if (syllable % TRAILING_COUNT)
            put(m, TRAILING + syllable % TRAILING_COUNT);
        return;
    }
    uint32_t behind[8];
    int count = 0;
    for (uint64_t parts; count < 8 && (parts = parts_of(code)); code = parts >> 21 & MASK)
        if (parts >> 42)
            behind[count++] = (uint32_t)(parts >> 42);
    put(m, code);
    while (count)
        put(m, behind[--count]);
}

/* Puts together what can be, each mark with the last character of class 0 before it unless one of
 * its class or above stands between. */
static void put_together(marks *m)
{
    size_t kept = 0, base = SIZE_MAX;
    for (size_t i = 0; i < m->count; i++) {
        uint8_t kind = m->kind[i], before = kept ? m->kind[kept - 1] : 0;
        bool next = base != SIZE_MAX && (base + 1 == kept || (before && before < kind));
        uint32_t one = next ? joined(m->code[base], m->code[i]) : 0;
        if (one) {
            m->code[base] = one;
            continue;
        }
        if (!kind)
            base = kept;
        m->code[kept] = m->code[i];
        m->kind[kept++] = kind;
    }
    m->count = kept;
}

static void give(marks *m, cup__text *out)
{
    char bytes[4];
    put_together(m);
    for (size_t i = 0; i < m->count; i++) {
        bytes[0] = (char)(m->code[i] - BYTE);
        int used = m->code[i] < BYTE ? cup__utf8_encode(m->code[i], bytes) : 1;
        cup__text_append(out, bytes, (size_t)used);
    }
    m->count = 0;
}

static bool has_room(marks *m)
{
    if (m->room - m->count >= 16)
        return true;
    size_t room = 2 * m->room + 64;
    void *code = cup__realloc(m->code, room, sizeof *m->code);
    if (code)
        m->code = code;
    void *kind = code ? cup__realloc(m->kind, room, sizeof *m->kind) : NULL;
    if (!kind)
        return false;
    m->kind = kind;
    m->room = room;
    return true;
}

bool cup__nfc_may_change(const char *text, size_t length)
{
    size_t i = 0;
    while (i < length && (unsigned char)text[i] < FIRST_AFFECTED)
        i++;
    return i < length;
}

cup_status cup__nfc(cup__error *error, const char *text, size_t length, cup__text *out)
{
    marks m = {0};
    bool good = true;
    for (size_t at = 0; good && at < length;) {
        uint32_t code;
        int used = cup__utf8_decode(text + at, length - at, &code);
        if (used <= 0)
            code = BYTE + (unsigned char)text[at];
        at += used > 0 ? (size_t)used : 1;
        /* Nothing below joins what stands before it. */
        if (code < 0x300 || code > BYTE)
            give(&m, out);
        good = has_room(&m);
        if (good)
            take_apart(&m, code);
    }
    give(&m, out);
    cup__free(m.code);
    cup__free(m.kind);
    return good && !out->failed
               ? CUP_OK
               : cup__fail(error, CUP_MEMORY, "out of host memory for bringing text into NFC");
}

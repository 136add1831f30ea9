#include "data/reader.h"

#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "data/lines.h"
#include "data/walk.h"

#define PIECE ((size_t)1 << 20)
#define LONGEST_TEXT ((size_t)16 << 20) /* without a place to cut it */

static cup_status add_input(cup__error *error, const char *path, bool found, bool *taken,
                            void *user)
{
    cup__reader *r = user;
    struct stat there;
    cup__input input = {.found = found};
    *taken = !found || (stat(path, &there) == 0 && there.st_size > 0);
    if (!*taken)
        return CUP_OK;
    cup__file file;
    CUP_TRY(cup__file_open(error, path, &file));
    input.size = file.size;
    cup__file_close(&file);
    input.path = cup__strdup(path);
    if (!input.path || !cup__grow(&r->inputs, &r->capacity, r->count, sizeof *r->inputs)) {
        cup__free(input.path);
        return cup__no_memory(error, path);
    }
    r->inputs[r->count++] = input;
    r->total += input.size;
    return CUP_OK;
}

cup_status cup__reader_open(cup__error *error, const char *const *paths, int count,
                            double validation, cup__reader *out)
{
    *out = (cup__reader){.stream.file.handle = -1};
    for (int i = 0; i < count; i++)
        CUP_TRY(cup__walk(error, paths[i], add_input, out, &out->skipped));
    out->boundary = (uint64_t)((1 - validation) * (double)out->total);
    if (validation <= 0)
        out->boundary = UINT64_MAX;
    return CUP_OK;
}

void cup__reader_close(cup__reader *r)
{
    cup__stream_close(&r->stream);
    for (size_t i = 0; i < r->count; i++)
        cup__free(r->inputs[i].path);
    cup__free(r->inputs);
    cup__free(r->bytes);
    *r = (cup__reader){.stream.file.handle = -1};
}

uint64_t cup__reader_done(const cup__reader *r)
{
    return r->before + (r->open ? r->stream.read : 0);
}

static bool is_sign(char byte)
{
    return byte > ' ' && byte < 0x7f;
}

/* Words of the pattern begin at a space between two signs whatever stands before, and nothing
 * before looks further than to that space. */
static bool may_cut(const char *text, size_t length, size_t at)
{
    return at > 0 && at + 1 < length && (text[at] == ' ' || text[at] == '\n') &&
           is_sign(text[at - 1]) && is_sign(text[at + 1]);
}

size_t cup__reader_cut(const char *text, size_t length, size_t wanted)
{
    for (size_t at = wanted; at > wanted / 2; at--)
        if (may_cut(text, length, at))
            return at;
    for (size_t at = wanted + 1; at < length; at++)
        if (may_cut(text, length, at))
            return at;
    return 0;
}

/* Behind the last line that ends before `wanted`, or else the first. */
static size_t cut_lines(const char *text, size_t length, size_t wanted)
{
    const char *end = memrchr(text, '\n', wanted < length ? wanted : length);
    if (!end)
        end = memchr(text, '\n', length);
    return end ? (size_t)(end - text) + 1 : 0;
}

static cup_status fill(cup__error *error, cup__reader *r, size_t wanted)
{
    size_t got;
    if (wanted > r->room) {
        char *grown = cup__realloc(r->bytes, wanted, 1);
        if (!grown)
            return cup__no_memory(error, r->inputs[r->next].path);
        r->bytes = grown;
        r->room = wanted;
    }
    if (r->ended || r->held >= wanted)
        return CUP_OK;
    CUP_TRY(cup__stream_read(error, &r->stream, r->bytes + r->held, wanted - r->held, &got));
    r->held += got;
    r->ended = r->held < wanted;
    return CUP_OK;
}

/* Where a text without a place to cut it is cut: between characters. */
static size_t cut_anywhere(const char *text, size_t at)
{
    while (at > LONGEST_TEXT - 4 && ((unsigned char)text[at] & 0xc0) == 0x80)
        at--;
    return at;
}

/* How much of what is held makes a piece of about `wanted` bytes; reads on until that is known. */
static cup_status find_end(cup__error *error, cup__reader *r, size_t wanted, size_t *end)
{
    size_t most = r->lines ? CUP__LONGEST_LINE : LONGEST_TEXT;
    for (size_t ahead = wanted + 2;; ahead = 2 * ahead < most ? 2 * ahead : most) {
        CUP_TRY(fill(error, r, ahead));
        *end = r->held;
        if (r->ended && r->held <= wanted)
            return CUP_OK;
        *end = r->lines ? cut_lines(r->bytes, r->held, wanted)
                        : cup__reader_cut(r->bytes, r->held, wanted);
        if (*end)
            return CUP_OK;
        *end = r->held;
        if (r->ended)
            return CUP_OK;
        if (ahead >= most)
            break;
    }
    if (r->lines)
        return cup__fail(error, CUP_FORMAT, "%s: line %lld has over %zu bytes; leave it out",
                         r->inputs[r->next].path, (long long)r->line, CUP__LONGEST_LINE);
    *end = cut_anywhere(r->bytes, LONGEST_TEXT - 1);
    return CUP_OK;
}

/* Whether what is read is text, as far as a piece shows it. */
static cup_status check_text(cup__error *error, cup__reader *r, size_t length, bool *pass_over)
{
    const cup__input *input = &r->inputs[r->next];
    const char *zero = memchr(r->bytes, 0, length);
    bool sound = !zero && (r->begun || cup__utf8_check(r->bytes, length) == length);
    *pass_over = input->found && !r->begun && !sound;
    if (!zero || *pass_over)
        return CUP_OK;
    return cup__fail(error, CUP_FORMAT,
                     "%s is binary, not text: a byte of it is 0; name a text file, or convert it "
                     "to UTF-8",
                     input->path);
}

static cup_status open_next(cup__error *error, cup__reader *r)
{
    const char *path = r->inputs[r->next].path;
    CUP_TRY(cup__stream_open(error, path, &r->stream));
    r->open = true;
    r->ended = r->begun = false;
    r->lines = cup__lines_named(path);
    r->line = 1;
    return CUP_OK;
}

static void close_current(cup__reader *r)
{
    cup__stream_close(&r->stream);
    r->before += r->inputs[r->next++].size;
    r->open = false;
    r->held = 0;
}

static cup_status give(cup__error *error, cup__reader *r, size_t length, cup__piece *out)
{
    out->bytes = cup__malloc(length + 1);
    if (!out->bytes)
        return cup__no_memory(error, r->inputs[r->next].path);
    memcpy(out->bytes, r->bytes, length);
    out->bytes[length] = 0;
    out->length = length;
    r->held -= length;
    memmove(r->bytes, r->bytes + length, r->held);
    out->line = r->line;
    out->lines = r->lines;
    out->path = r->inputs[r->next].path;
    for (const char *at = out->bytes; r->lines && (at = strchr(at, '\n')); at++)
        r->line++;
    out->begins = !r->begun;
    r->begun = true;
    out->ends = r->ended && r->held == 0;
    if (out->ends)
        close_current(r);
    return CUP_OK;
}

cup_status cup__reader_next(cup__error *error, cup__reader *r, cup__piece *out)
{
    *out = (cup__piece){0};
    while (r->open || r->next < r->count) {
        size_t length, wanted = PIECE;
        bool pass_over = false;
        if (!r->open)
            CUP_TRY(open_next(error, r));
        /* What is packed is cut where it happens to be. */
        uint64_t place = cup__reader_done(r) - (r->stream.packing ? 0 : r->held);
        if (!r->stream.packing && place < r->boundary && r->boundary - place < PIECE)
            wanted = (size_t)(r->boundary - place);
        CUP_TRY(find_end(error, r, wanted, &length));
        out->validation = place >= r->boundary;
        if (length)
            CUP_TRY(check_text(error, r, length, &pass_over));
        if (length && !pass_over)
            return give(error, r, length, out);
        r->skipped += !r->begun;
        close_current(r);
    }
    return CUP_OK;
}

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/memory.h"
#include "data/shards.h"
#include "data/tokenize.h"

static char *name_of(const cup__shard_writer *w, int number)
{
    char name[64];
    if (w->bare)
        snprintf(name, sizeof name, "%s.bin", w->prefix);
    else
        snprintf(name, sizeof name, "%s_%06d.bin", w->prefix, number);
    return cup__path_join(w->folder, name);
}

static cup_status open_file(cup__error *error, cup__shard_writer *w)
{
    static const char room[CUP__SHARD_HEADER];
    char *path = name_of(w, w->files);
    if (!path)
        return cup__fail(error, CUP_MEMORY, "out of host memory for the name of a file of tokens");
    cup_status status = cup__writer_open(error, path, &w->writer);
    cup__free(path);
    CUP_TRY(status);
    w->held = 0;
    if (w->bare)
        return CUP_OK;
    return cup__writer_add(error, &w->writer, room, sizeof room);
}

/* Only files of llm.c begin with some numbers: a text would have to begin with two tokens of over
 * 50,000 kinds that happen to be one of them. */
static cup_status check_begin(cup__error *error, const cup__shard_writer *w, const uint16_t *tokens,
                              size_t count)
{
    if (!w->bare || w->tokens || count < 2 ||
        !cup__shard_known((int32_t)((uint32_t)tokens[1] << 16 | tokens[0])))
        return CUP_OK;
    return cup__fail(error, CUP_UNSUPPORTED,
                     "the text begins with two tokens that make %s/%s.bin look like a file of "
                     "llm.c; put something before it, or write llm.c's files",
                     w->folder, w->prefix);
}

/* The number of tokens is known behind the last one only. */
static cup_status write_header(cup__error *error, const cup__shard_writer *w)
{
    if (w->bare)
        return CUP_OK;
    const int32_t header[] = {w->wide ? 20240801 : 20240520, w->wide ? 7 : 1, (int32_t)w->held};
    ssize_t put;
    do
        put = pwrite(w->writer.handle, header, sizeof header, 0);
    while (put < 0 && errno == EINTR);
    if (put == (ssize_t)sizeof header)
        return CUP_OK;
    return cup__file_fail(error, w->writer.path, "written", put < 0 ? errno : ENOSPC);
}

cup_status cup__shard_writer_end(cup__error *error, cup__shard_writer *w)
{
    if (!w->writer.path)
        return CUP_OK;
    CUP_TRY(write_header(error, w));
    w->files++;
    return cup__writer_commit(error, &w->writer);
}

cup_status cup__shard_writer_add(cup__error *error, cup__shard_writer *w, const void *tokens,
                                 size_t count)
{
    size_t each = w->wide ? 4 : 2;
    const char *from = tokens;
    CUP_TRY(check_begin(error, w, tokens, count));
    while (count) {
        if (!w->writer.path)
            CUP_TRY(open_file(error, w));
        size_t room = (size_t)(w->most - w->held), some = count < room ? count : room;
        CUP_TRY(cup__writer_add(error, &w->writer, from, some * each));
        from += some * each;
        count -= some;
        w->held += (int64_t)some;
        w->tokens += (int64_t)some;
        if (w->held == w->most)
            CUP_TRY(cup__shard_writer_end(error, w));
    }
    return CUP_OK;
}

void cup__shard_writer_undo(cup__shard_writer *w)
{
    cup__writer_abandon(&w->writer);
    for (int i = 0; i < w->files; i++) {
        char *path = name_of(w, i);
        if (path)
            unlink(path);
        cup__free(path);
    }
}

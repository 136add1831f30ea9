/* What a process did last and what it knows of the others, kept all the time and written to a file
 * where a run fails. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/mesh.h"

#define SCHEMA 1

static bool is_same(const cup__doing *a, const cup__doing *b)
{
    return a->id == b->id && a->group == b->group && a->sequence == b->sequence;
}

void cup__flight_note(cup__mesh *mesh, const cup__doing *doing)
{
    cup__flight *f = &mesh->flight;
    cup__event *last = f->count ? &f->events[(f->count - 1) % CUP__EVENTS] : NULL;
    if (doing->id == CUP__COMPUTING) {
        if (last && last->ended == 0)
            last->ended = cup__clock();
        return;
    }
    if (last && last->ended == 0 && is_same(&last->doing, doing))
        return;
    f->events[f->count++ % CUP__EVENTS] = (cup__event){*doing, cup__clock(), 0};
}

static void add_doing(cup__json_writer *w, const cup__doing *doing)
{
    char group[16];
    snprintf(group, sizeof group, "%08x", (unsigned)doing->group);
    cup__json_add_string(w, "operation", cup__operation_names[doing->id < CUP__OPERATIONS
                                                                  ? doing->id
                                                                  : CUP__COMPUTING]);
    cup__json_add_string(w, "group", group);
    cup__json_add_unsigned(w, "sequence", doing->sequence);
    if (doing->step >= 0)
        cup__json_add_integer(w, "step", doing->step);
    else
        cup__json_add_null(w, "step");
}

static void add_peers(cup__json_writer *w, const cup__mesh *mesh, double now)
{
    char text[128];
    cup__json_open(w, "others", CUP__JSON_ARRAY);
    for (int i = 0; i < mesh->count; i++) {
        const cup__peer *p = &mesh->peers[i];
        if (i == mesh->rank)
            continue;
        cup__json_open(w, NULL, CUP__JSON_OBJECT);
        cup__json_add_string(w, "name", p->name);
        cup__json_add_string(w, "was", cup__doing_text(&p->doing, text));
        add_doing(w, &p->doing);
        cup__json_add_number(w, "heard_seconds_before", now - p->heard);
        cup__json_add_boolean(w, "joined", p->control >= 0 && !p->left);
        cup__json_close(w);
    }
    cup__json_close(w);
}

static void add_events(cup__json_writer *w, const cup__flight *f, double now)
{
    uint64_t first = f->count > CUP__EVENTS ? f->count - CUP__EVENTS : 0;
    cup__json_open(w, "operations", CUP__JSON_ARRAY);
    for (uint64_t i = first; i < f->count; i++) {
        const cup__event *e = &f->events[i % CUP__EVENTS];
        cup__json_open(w, NULL, CUP__JSON_OBJECT);
        add_doing(w, &e->doing);
        cup__json_add_number(w, "began_seconds_before", now - e->begun);
        if (e->ended > 0)
            cup__json_add_number(w, "took_seconds", e->ended - e->begun);
        else
            cup__json_add_null(w, "took_seconds");
        cup__json_close(w);
    }
    cup__json_close(w);
}

/* With the lock held. */
void cup__flight_text(const cup__mesh *mesh, const char *why, cup__text *out)
{
    double now = cup__clock();
    char text[128];
    cup__json_writer w = {.lines = 3};
    cup__json_open(&w, NULL, CUP__JSON_OBJECT);
    cup__json_add_integer(&w, "schema", SCHEMA);
    cup__json_add_integer(&w, "rank", mesh->rank);
    cup__json_add_integer(&w, "processes", mesh->count);
    cup__json_add_string(&w, "name", mesh->peers[mesh->rank].name);
    cup__json_add_integer(&w, "unix_time", (int64_t)time(NULL));
    cup__json_add_string(&w, "why", why);
    cup__json_add_string(&w, "was", cup__doing_text(&mesh->mine, text));
    add_peers(&w, mesh, now);
    add_events(&w, &mesh->flight, now);
    cup__json_close(&w);
    *out = w.text;
}

void cup__flight_write(const cup__mesh *mesh, cup__text *text)
{
    cup__text path = {0};
    cup__error why = {0};
    cup__text_add(&path, "%s/flight-%d.json", mesh->flight.folder, mesh->rank);
    if (!path.failed && !text->failed &&
        cup__file_write(&why, path.bytes, text->bytes, text->length) != CUP_OK)
        cup__log(CUP__INFO, "the last operations are not written: %s", why.text);
    cup__text_free(&path);
    cup__text_free(text);
}

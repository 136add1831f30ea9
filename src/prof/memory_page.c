/* The memory of a context and its history as one HTML page. Numbers in it are whole, so that the
 * program's locale does not matter. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "cuda/pool.h"
#include "cupola/prof.h"
#include "prof/page.h"
#include "tensor/context.h"

#define MOST_TAGS 512
#define MOST_DRAWN 20000 /* blocks of the map */

enum { WIDTH = 1120, HEIGHT = 300, LEFT = 76, TOP = 12, BOTTOM = 28, BAR = 26, GAP = 22 };

typedef struct tag_use {
    const char *tag;
    int64_t now, blocks, peak; /* peak: at the moment of the history when most was in use */
} tag_use;

/* One event and what was in use and held after it. */
typedef struct moment {
    cup__pool_event event;
    int64_t allocated, reserved;
} moment;

typedef struct memory_page {
    cup__text out;
    cup__pool *pool;
    cup__memory_use use;
    moment *moments; /* oldest first */
    int64_t count, peak; /* peak: the moment when most was in use */
    tag_use tags[MOST_TAGS];
    int tag_count;
    uint64_t segment; /* the map: the one being drawn */
    int64_t drawn, y;
} memory_page;

static const char style[] =
    ".held{fill:var(--c2);fill-opacity:.25}.line{fill:none;stroke:var(--soft);stroke-width:1.5}"
    ".used{fill:var(--c0);fill-opacity:.3;stroke:var(--c0);stroke-width:1.5}\n"
    ".grid{stroke:var(--grid)}.free{fill:var(--grid)}.kept{fill:var(--soft);fill-opacity:.55}\n"
    ".cross{stroke:var(--ink);stroke-width:1}rect.w{stroke:var(--card);stroke-width:.6}\n"
    ".t0{fill:var(--c0)}.t1{fill:var(--c1)}.t2{fill:var(--c2)}.t3{fill:var(--c3)}"
    ".t4{fill:var(--c4)}.t5{fill:#1b8a8f}.t6{fill:#9a6700}.t7{fill:#6e7781}\n"
    ".dim rect.b:not(.on){opacity:.18}\n"
    ".say{min-height:3em;font-size:14px;margin:6px 0 0;font-variant-numeric:tabular-nums}\n"
    "td i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}\n"
    "td i.t0{background:var(--c0)}td i.t1{background:var(--c1)}td i.t2{background:var(--c2)}"
    "td i.t3{background:var(--c3)}td i.t4{background:var(--c4)}td i.t5{background:#1b8a8f}"
    "td i.t6{background:#9a6700}td i.t7{background:#6e7781}\n"
    "tr.pick{cursor:pointer}#history svg,#map svg{min-width:820px}\n";

/* Moves a line over the history and names the event; points at blocks and at tags. */
static const char script[] =
    "<script>\n"
    "const size=n=>{const u=['B','KiB','MiB','GiB','TiB'];let i=0;\n"
    " while(n>=1024&&i<4){n/=1024;i++}return (i?n.toFixed(n<10?2:n<100?1:0):n)+' '+u[i]};\n"
    "const verb=['allocated','released','got from the driver','given back to the driver',"
    "'asked for in vain'];\n"
    "const line=document.querySelector('#history svg'),cross=document.querySelector('.cross');\n"
    "if(line)line.onpointermove=e=>{const box=line.getBoundingClientRect(),\n"
    " x=(e.clientX-box.left)/box.width*D.width,n=D.events.length,\n"
    " i=Math.min(n-1,Math.max(0,Math.round((x-D.left)/(D.right-D.left)*n-.5))),v=D.events[i],\n"
    " at=D.left+(i+.5)/n*(D.right-D.left);\n"
    " cross.setAttribute('d','M'+at+' '+D.top+'V'+D.bottom);\n"
    " document.querySelector('#history .say').textContent='event '+(D.first+i)+': '+size(v[1])+\n"
    " ' '+verb[v[0]]+(v[2]>=0?' for '+D.names[v[2]]:'')+(v[3]>=0&&v[3]!=v[2]?' in '+"
    "D.names[v[3]]:'')\n"
    " +'; in use '+size(v[4])+', held '+size(v[5])};\n"
    "const map=document.querySelector('#map svg'),told=document.querySelector('#map .say');\n"
    "const tell=r=>{const t=r.querySelector('title');if(t)told.textContent=t.textContent};\n"
    "let picked='';\n"
    "const pick=tag=>{picked=picked==tag?'':tag;if(!map)return;\n"
    " map.classList.toggle('dim',!!picked);\n"
    " map.querySelectorAll('rect.b').forEach(r=>r.classList.toggle('on',r.dataset.t===picked));\n"
    " document.querySelectorAll('tr.pick').forEach(r=>r.style.fontWeight=r.dataset.t===picked?"
    "600:'')};\n"
    "if(map){map.onpointerover=e=>{if(e.target.tagName=='rect')tell(e.target)};\n"
    " map.onclick=e=>{if(e.target.dataset.t)pick(e.target.dataset.t)}}\n"
    "document.querySelectorAll('tr.pick').forEach(r=>r.onclick=()=>pick(r.dataset.t));\n"
    "</script>\n";

static tag_use *tag_of(memory_page *p, const char *tag)
{
    for (int i = 0; i < p->tag_count; i++)
        if (!strcmp(p->tags[i].tag, tag))
            return &p->tags[i];
    if (p->tag_count == MOST_TAGS)
        return &p->tags[MOST_TAGS - 1];
    p->tags[p->tag_count] = (tag_use){.tag = tag};
    return &p->tags[p->tag_count++];
}

static const char *size_text(int64_t bytes, char words[32])
{
    return cup__text_bytes((double)bytes, words);
}

static void count_block(const cup__pool_block *block, void *user)
{
    if (block->state != CUP__POOL_USED)
        return;
    tag_use *use = tag_of(user, block->tag);
    use->now += (int64_t)block->bytes;
    use->blocks++;
}

/* What an event added to the bytes in use and to those held. */
static void change_of(const cup__pool_event *e, int64_t *allocated, int64_t *reserved)
{
    int64_t bytes = (int64_t)e->bytes;
    *allocated = e->action == CUP__POOL_ALLOCATE ? bytes
                 : e->action == CUP__POOL_RELEASE ? -bytes
                                                  : 0;
    *reserved = e->action == CUP__POOL_GROW ? bytes : e->action == CUP__POOL_SHRINK ? -bytes : 0;
}

static int by_peak(const void *a, const void *b)
{
    const tag_use *x = a, *y = b;
    int64_t p = x->peak > x->now ? x->peak : x->now, q = y->peak > y->now ? y->peak : y->now;
    return p < q ? 1 : p > q ? -1 : strcmp(x->tag, y->tag);
}

/* The history, from now backwards, and by tag what was in use when most was. */
static bool collect(memory_page *p)
{
    cup__pool_event event;
    while (cup__pool_history(p->pool, (uint64_t)p->count, &event))
        p->count++;
    p->moments = cup__calloc((size_t)p->count + 1, sizeof *p->moments);
    if (!p->moments)
        return false;
    int64_t allocated = p->use.allocated, reserved = p->use.reserved, down, back;
    for (int64_t i = p->count - 1; i >= 0; i--) {
        moment *m = &p->moments[i];
        cup__pool_history(p->pool, (uint64_t)(p->count - 1 - i), &m->event);
        m->allocated = allocated;
        m->reserved = reserved;
        if (i == p->count - 1 || allocated >= p->moments[p->peak].allocated)
            p->peak = i;
        change_of(&m->event, &down, &back);
        allocated -= down;
        reserved -= back;
    }
    cup__pool_walk(p->pool, count_block, p);
    for (int i = 0; i < p->tag_count; i++)
        p->tags[i].peak = p->tags[i].now;
    for (int64_t i = p->count - 1; i > p->peak; i--) {
        const cup__pool_event *e = &p->moments[i].event;
        change_of(e, &down, &back);
        if (down)
            tag_of(p, e->tag ? e->tag : "untagged")->peak -= down;
    }
    qsort(p->tags, (size_t)p->tag_count, sizeof *p->tags, by_peak);
    return true;
}

static void add_fact(memory_page *p, int64_t bytes, const char *words)
{
    char size[32];
    cup__text_add(&p->out, "<div><b>%s</b>%s</div>", size_text(bytes, size), words);
}

static void add_facts(memory_page *p, const char *device)
{
    const cup__memory_use *u = &p->use;
    cup__text_add(&p->out, "<p class=\"note\">");
    cup__text_add_markup(&p->out, device);
    cup__text_add(&p->out, "; %lld allocations, %lld of them served from what was held</p>"
                           "<div class=\"facts\">",
                  (long long)u->allocations, (long long)u->cached);
    add_fact(p, u->allocated, "in use");
    add_fact(p, u->peak_allocated, "in use at most");
    add_fact(p, u->reserved, "held from the driver");
    add_fact(p, u->peak_reserved, "held at most");
    add_fact(p, u->largest_free, "largest free block");
    if (u->limit)
        add_fact(p, u->limit, "limit");
    add_fact(p, u->free, "free on the card");
    add_fact(p, u->total, "of the card in all");
    cup__text_add(&p->out, "</div>\n");
}

static int64_t place(int64_t value, int64_t most, int64_t low, int64_t high)
{
    return low + (int64_t)((double)(high - low) * (double)value / (double)(most ? most : 1));
}

/* A step of the grid: a power of two that leaves three to six lines. */
static int64_t step_of(int64_t most)
{
    int64_t step = 1;
    while (most / step > 5)
        step *= 2;
    return step;
}

/* The curve of one number over the history; of the events that fall on one column the largest. */
static void add_curve(memory_page *p, bool reserved, int64_t most, const char *kind)
{
    cup__text_add(&p->out, "<path class=\"%s\" d=\"", kind);
    int64_t bottom = HEIGHT - BOTTOM, columns = WIDTH - LEFT < p->count ? WIDTH - LEFT : p->count;
    if (!reserved)
        cup__text_add(&p->out, "M%d %lld", LEFT, (long long)bottom);
    for (int64_t k = 0; k < columns; k++) {
        int64_t top = 0;
        for (int64_t i = k * p->count / columns; i < (k + 1) * p->count / columns; i++) {
            int64_t value = reserved ? p->moments[i].reserved : p->moments[i].allocated;
            top = value > top ? value : top;
        }
        long long y = place(top, most, bottom, TOP);
        cup__text_add(&p->out, "%c%lld %lldH%lld", k || !reserved ? 'L' : 'M',
                      (long long)place(k, columns, LEFT, WIDTH), y,
                      (long long)place(k + 1, columns, LEFT, WIDTH));
    }
    if (!reserved)
        cup__text_add(&p->out, "V%lld", (long long)bottom);
    cup__text_add(&p->out, "\"/>\n");
}

static int name_of(memory_page *p, const char *name)
{
    return name ? (int)(tag_of(p, name) - p->tags) : -1;
}

static void add_data(memory_page *p)
{
    cup__text_add(&p->out, "<script>const D={width:%d,left:%d,right:%d,top:%d,bottom:%d,"
                           "first:%llu,events:[",
                  WIDTH, LEFT, WIDTH, TOP, HEIGHT - BOTTOM,
                  p->count ? (unsigned long long)p->moments[0].event.number : 0);
    for (int64_t i = 0; i < p->count; i++) {
        const moment *m = &p->moments[i];
        cup__text_add(&p->out, "%s[%d,%zu,%d,%d,%lld,%lld]", i ? "," : "", (int)m->event.action,
                      m->event.bytes, name_of(p, m->event.tag), name_of(p, m->event.op),
                      (long long)m->allocated, (long long)m->reserved);
    }
    cup__text_add(&p->out, "],names:[");
    /* Tags are literals of this library and of its callers: nothing but letters is kept. */
    for (int i = 0; i < p->tag_count; i++) {
        cup__text_add(&p->out, "%s\"", i ? "," : "");
        for (const char *c = p->tags[i].tag; *c; c++)
            cup__text_add(&p->out, "%c", strchr("\"\\<>&", *c) || *c < ' ' ? '?' : *c);
        cup__text_add(&p->out, "\"");
    }
    cup__text_add(&p->out, "]};</script>\n");
}

static void add_history(memory_page *p)
{
    int64_t most = 1, step;
    char size[32];
    for (int64_t i = 0; i < p->count; i++)
        most = p->moments[i].reserved > most ? p->moments[i].reserved : most;
    for (int64_t i = 0; i < p->count; i++)
        most = p->moments[i].allocated > most ? p->moments[i].allocated : most;
    step = step_of(most);
    cup__text_add(&p->out, "<section id=\"history\"><h2>History</h2><p class=\"note\">The last "
                           "%lld events, each an allocation, a release, or a change of what is "
                           "held: bytes in use below, bytes held from the driver as the line "
                           "above. Replays of captured graphs make none.</p>"
                           "<div class=\"scroll\"><svg viewBox=\"0 0 %d %d\" role=\"img\" "
                           "aria-label=\"History\">\n",
                  (long long)p->count, WIDTH, HEIGHT);
    for (int64_t at = 0; at <= most; at += step) {
        long long y = place(at, most, HEIGHT - BOTTOM, TOP);
        cup__text_add(&p->out, "<path class=\"grid\" d=\"M%d %lldH%d\"/><text x=\"%d\" "
                               "y=\"%lld\" text-anchor=\"end\">%s</text>\n",
                      LEFT, y, WIDTH, LEFT - 6, y + 4, size_text(at, size));
    }
    if (p->count) {
        add_curve(p, false, most, "used");
        add_curve(p, true, most, "line");
        cup__text_add(&p->out, "<path class=\"cross\" d=\"\"/><text x=\"%d\" y=\"%d\">event "
                               "%llu</text><text x=\"%d\" y=\"%d\" text-anchor=\"end\">event "
                               "%llu</text>\n",
                      LEFT, HEIGHT - 8, (unsigned long long)p->moments[0].event.number, WIDTH,
                      HEIGHT - 8, (unsigned long long)p->moments[p->count - 1].event.number);
    }
    cup__text_add(&p->out, "</svg></div><p class=\"say\">Point at the curve for one event.</p>"
                           "</section>\n");
}

static void add_users(memory_page *p)
{
    char now[32], peak[32];
    cup__text_add(&p->out, "<section><h2>By tag</h2><p class=\"note\">Who uses it now, and who did "
                           "when most was in use (event %llu). A click marks its blocks.</p>"
                           "<div class=\"scroll\"><table><thead><tr><th class=\"l\">tag</th>"
                           "<th>now</th><th>blocks</th><th>at the peak</th></tr></thead><tbody>\n",
                  p->count ? (unsigned long long)p->moments[p->peak].event.number : 0);
    for (int i = 0; i < p->tag_count; i++) {
        const tag_use *t = &p->tags[i];
        if (!t->now && t->peak <= 0)
            continue;
        cup__text_add(&p->out, "<tr class=\"pick\" data-t=\"");
        cup__text_add_markup(&p->out, t->tag);
        cup__text_add(&p->out, "\"><td class=\"l\"><i class=\"t%d\"></i>", i & 7);
        cup__text_add_markup(&p->out, t->tag);
        cup__text_add(&p->out, "</td><td>%s</td><td>%lld</td><td>%s</td></tr>\n",
                      size_text(t->now, now), (long long)t->blocks,
                      size_text(t->peak > 0 ? t->peak : 0, peak));
    }
    cup__text_add(&p->out, "</tbody></table></div></section>\n");
}

/* The map, first to measure its segments, then to draw them. */
typedef struct segment_sum {
    uint64_t segment;
    int64_t bytes, used;
    bool small, of_graph;
} segment_sum;

typedef struct segments {
    segment_sum *sum;
    size_t count, capacity;
    int64_t most;
    bool failed;
} segments;

static void measure_block(const cup__pool_block *block, void *user)
{
    segments *s = user;
    segment_sum *last = s->count ? &s->sum[s->count - 1] : NULL;
    if (!last || last->segment != block->segment) {
        if (!cup__grow(&s->sum, &s->capacity, s->count, sizeof *s->sum)) {
            s->failed = true;
            return;
        }
        last = &s->sum[s->count++];
        *last = (segment_sum){.segment = block->segment, .small = block->small,
                              .of_graph = block->of_graph};
    }
    if (block->state == CUP__POOL_HOLE)
        return;
    last->bytes += (int64_t)block->bytes;
    last->used += block->state == CUP__POOL_USED ? (int64_t)block->bytes : 0;
    s->most = last->bytes > s->most ? last->bytes : s->most;
}

typedef struct drawing {
    memory_page *p;
    const segments *s;
    size_t index;
    int64_t at;
} drawing;

/* The headline of the segment that the block is the first of. */
static void begin_segment(drawing *d, const cup__pool_block *block)
{
    char bytes[32], used[32];
    while (d->index < d->s->count && d->s->sum[d->index].segment != block->segment)
        d->index++;
    const segment_sum *s = &d->s->sum[d->index];
    d->p->segment = block->segment;
    d->at = 0;
    d->p->y += BAR + GAP;
    cup__text_add(&d->p->out, "<text x=\"0\" y=\"%lld\">%s blocks%s: %s, %s in use</text>\n",
                  (long long)d->p->y - 5, s->small ? "small" : "large",
                  s->of_graph ? " of a captured graph" : "", size_text(s->bytes, bytes),
                  size_text(s->used, used));
}

static void draw_block(const cup__pool_block *block, void *user)
{
    drawing *d = user;
    memory_page *p = d->p;
    char size[32];
    if (p->segment != block->segment)
        begin_segment(d, block);
    if (block->state == CUP__POOL_HOLE || p->drawn++ > MOST_DRAWN)
        return;
    /* In hundredths, so that many small blocks side by side keep their places. */
    int64_t x = place(d->at, d->s->most, 0, WIDTH * 100);
    d->at += (int64_t)block->bytes;
    int64_t width = place(d->at, d->s->most, 0, WIDTH * 100) - x;
    bool used = block->state == CUP__POOL_USED;
    cup__text_add(&p->out, "<rect x=\"%lld.%02lld\" y=\"%lld\" width=\"%lld.%02lld\" "
                           "height=\"%d\" class=\"b%s ",
                  (long long)x / 100, (long long)x % 100, (long long)p->y, (long long)width / 100,
                  (long long)width % 100, BAR, width > 400 ? " w" : "");
    if (used) {
        cup__text_add(&p->out, "t%d\" data-t=\"", (int)(tag_of(p, block->tag) - p->tags) & 7);
        cup__text_add_markup(&p->out, block->tag);
    } else {
        cup__text_add(&p->out, "%s", block->state == CUP__POOL_HELD ? "kept" : "free");
    }
    cup__text_add(&p->out, "\"><title>");
    if (used)
        cup__text_add_markup(&p->out, block->tag);
    else
        cup__text_add(&p->out, "%s", block->state == CUP__POOL_HELD
                                         ? "released, but a captured graph uses it"
                                         : "free");
    cup__text_add(&p->out, ", %s (%zu bytes) at 0x%llx</title></rect>\n",
                  size_text((int64_t)block->bytes, size), block->bytes,
                  (unsigned long long)block->address);
}

static void add_map(memory_page *p)
{
    segments s = {0};
    cup__pool_walk(p->pool, measure_block, &s);
    if (s.failed) {
        p->out.failed = true;
        cup__free(s.sum);
        return;
    }
    int64_t height = (int64_t)s.count * (BAR + GAP) + 6;
    cup__text_add(&p->out, "<section id=\"map\"><h2>Map</h2><p class=\"note\">What is held, "
                           "segment by segment, in the order of addresses: blocks in use in the "
                           "colour of their tag, free ones pale, grey those that a captured graph "
                           "still uses. A click marks all blocks of a tag.</p>"
                           "<div class=\"scroll\"><svg viewBox=\"0 0 %d %lld\" role=\"img\" "
                           "aria-label=\"Map\">\n",
                  WIDTH, (long long)(height > 20 ? height : 20));
    drawing d = {.p = p, .s = &s};
    p->y = GAP - BAR - GAP;
    cup__pool_walk(p->pool, draw_block, &d);
    cup__text_add(&p->out, "</svg></div><p class=\"say\">Point at a block for its tag and size."
                           "</p></section>\n");
    cup__free(s.sum);
}

static void write_page(memory_page *p, const char *device)
{
    cup__page_begin(&p->out, "Device memory", style);
    add_facts(p, device);
    add_history(p);
    add_map(p);
    add_users(p);
    add_data(p);
    cup__text_add(&p->out, "%s", script);
    cup__page_end(&p->out);
}

cup_status cup_memory_page(cup_context *c, const char *path)
{
    if (!c || !c->device)
        return cup_error(c);
    /* After a failure too: that is when the page is wanted most. */
    cup__error own = {0};
    if (!path || !*path)
        return cup__fail(&c->error, CUP_ARGUMENT, "memory page: name a file");
    if (!c->device->is_cuda || !cup__pool_of(cup__cuda_of(c->device)))
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "a page of the memory is drawn of a GPU's; cup_memory_use tells the sums "
                         "of a CPU's");
    memory_page *p = cup__calloc(1, sizeof *p);
    bool good = p != NULL;
    if (good) {
        p->pool = cup__pool_of(cup__cuda_of(c->device));
        cup__pool_use(p->pool, &p->use);
        good = collect(p);
    }
    if (good)
        write_page(p, c->device->text);
    cup_status status = good && !p->out.failed
                            ? cup__file_write(&own, path, p->out.bytes, p->out.length)
                            : cup__fail(&own, CUP_MEMORY, "%s: out of host memory", path);
    if (p) {
        cup__text_free(&p->out);
        cup__free(p->moments);
    }
    cup__free(p);
    return status == CUP_OK ? CUP_OK : cup__fail(&c->error, status, "%s", own.text);
}

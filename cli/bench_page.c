#include "cli/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "prof/page.h"

static const char style[] =
    ".two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,560px),1fr));"
    "gap:0 16px}\n"
    ".grid{stroke:var(--grid)}.roof{stroke:var(--soft);stroke-width:1.5;fill:none}\n"
    ".thin{stroke-width:1;stroke-opacity:.35;fill:none}\n"
    ".one{stroke:var(--ink);stroke-dasharray:3 3}\n"
    ".p{fill-opacity:.75;stroke:var(--card);stroke-width:1}.p:hover{fill-opacity:1;r:6}\n"
    ".c0{fill:var(--c0)}.c1{fill:var(--c1)}.c2{fill:var(--c2)}.c3{fill:var(--c3)}"
    ".c4{fill:var(--c4)}.c5{fill:var(--c5)}\n"
    ".s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}"
    ".s4{stroke:var(--c4)}.s5{stroke:var(--c5)}\n"
    "td.s{white-space:normal;min-width:180px;max-width:280px}\n"
    ".ahead{fill:var(--good)}.behind{fill:var(--bad)}\n"
    "td.reach{background:linear-gradient(90deg,color-mix(in srgb,var(--c0) 28%,transparent) "
    "var(--r),transparent var(--r))}\n"
    "td .up{color:var(--good)}td .down{color:var(--bad)}\n"
    "th button{all:unset;cursor:pointer}th button:hover,th button:focus-visible"
    "{text-decoration:underline}\n"
    "input{font:inherit;padding:4px 8px;border:1px solid var(--line);border-radius:6px;"
    "background:var(--page);color:var(--ink);margin:0 0 10px;width:min(100%,320px)}\n";

/* Sorts by a column and hides rows without the typed words; without it the page is whole too. */
static const char script[] =
    "<script>\n"
    "const body=document.querySelector('tbody'),find=document.querySelector('input');\n"
    "find.hidden=false;\n"
    "find.oninput=()=>{const words=find.value.toLowerCase().split(' ');\n"
    " for(const row of body.rows){const text=row.textContent.toLowerCase();\n"
    "  row.hidden=!words.every(word=>text.includes(word))}};\n"
    "document.querySelectorAll('th button').forEach((button,i)=>{let up=1;button.onclick=()=>{\n"
    " const value=row=>{const text=row.cells[i].textContent,number=parseFloat(text);\n"
    "  return i<4?text:isNaN(number)?-1:number};\n"
    " [...body.rows].sort((a,b)=>{const x=value(a),y=value(b);return (x<y?-1:x>y?1:0)*up})\n"
    "  .forEach(row=>body.append(row));up=-up}});\n"
    "</script>\n";

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void add_fact(cup__text *out, const char *value, const char *words)
{
    cup__text_add(out, "<div><b>%s</b>%s</div>", value, words);
}

static void add_facts(cup__text *out, const cli_records *records)
{
    double *share = cup__calloc(records->count * 2 + 1, sizeof *share);
    double *ratio = share ? share + records->count : NULL;
    size_t shares = 0, ratios = 0, ahead = 0;
    char words[64];
    for (size_t i = 0; share && i < records->count; i++) {
        const cli_record *r = &records->row[i];
        if (isfinite(r->share_of_floor))
            share[shares++] = r->share_of_floor;
        if (r->ratio > 0) {
            ahead += r->ratio >= 1;
            ratio[ratios++] = r->ratio;
        }
    }
    cup__text_add(out, "<div class=\"facts\">");
    snprintf(words, sizeof words, "%zu", records->count);
    add_fact(out, words, "calls timed");
    double copy = records_copy_rate(records) * 1e-9;
    snprintf(words, sizeof words, "%.0f GB/s", copy);
    if (copy > 0)
        add_fact(out, words, "of a large copy");
    if (shares) {
        qsort(share, shares, sizeof *share, by_value);
        snprintf(words, sizeof words, "%.0f %%", 100 * share[shares / 2]);
        add_fact(out, words, "of the card reached, median");
    }
    if (ratios) {
        qsort(ratio, ratios, sizeof *ratio, by_value);
        snprintf(words, sizeof words, "%.2f", ratio[ratios / 2]);
        add_fact(out, words, "peer's time over ours, median");
        snprintf(words, sizeof words, "%zu of %zu", ahead, ratios);
        add_fact(out, words, "calls at least as fast as the best peer");
    }
    cup__text_add(out, "</div>\n");
    cup__free(share);
}

static void add_number(cup__text *out, double value, const char *format)
{
    char words[48] = "";
    if (isfinite(value))
        snprintf(words, sizeof words, format, value);
    cup__text_add(out, "<td>%s</td>", words);
}

static void add_left(cup__text *out, const char *words)
{
    cup__text_add(out, "<td class=\"l\">");
    cup__text_add_markup(out, words);
    cup__text_add(out, "</td>");
}

static void add_row(cup__text *out, const cli_record *r)
{
    char shapes[400];
    snprintf(shapes, sizeof shapes, "%.70s%s%s%s", r->shapes, strlen(r->shapes) > 70 ? ".." : "",
             r->attributes[0] ? "; " : "", r->attributes);
    cup__text_add(out, "<tr>");
    add_left(out, r->op);
    cup__text_add(out, "<td class=\"l s\">");
    cup__text_add_markup(out, shapes);
    cup__text_add(out, "</td>");
    add_left(out, r->dtype);
    add_left(out, r->impl);
    add_number(out, r->ours_us, "%.2f");
    add_number(out, 100 * r->spread, "%.1f");
    add_number(out, r->bytes / r->ours_us * 1e-3, "%.0f");
    add_number(out, r->flops / r->ours_us * 1e-6, "%.1f");
    double reached = 100 * r->share_of_floor;
    cup__text_add(out, "<td class=\"reach\" style=\"--r:%.0f%%\">%.0f</td>",
                  isfinite(reached) ? fmin(reached, 100) : 0, isfinite(reached) ? reached : 0);
    add_number(out, 100 * r->copy_us / r->ours_us, "%.0f");
    add_left(out, r->peer);
    add_number(out, r->peer_us, "%.2f");
    if (r->ratio > 0)
        cup__text_add(out, "<td><span class=\"%s\">%.2f</span></td>",
                      r->ratio >= 0.995 ? "up" : "down", r->ratio);
    else
        cup__text_add(out, "<td></td>");
    add_number(out, r->error, "%.2g");
    cup__text_add(out, "</tr>\n");
}

static void add_table(cup__text *out, const cli_records *records)
{
    static const char *const heads[] = {"op",         "shapes", "dtype",   "by",        "us",
                                        "&plusmn; %", "GB/s",   "TFLOP/s", "% reached", "% of copy",
                                        "peer",       "peer us", "ratio",  "error"};
    cup__text_add(out, "<section><h2>All calls</h2><p class=\"note\">Median time and the quartiles'"
                       " half distance; the share of what the card allows, and of a plain copy of "
                       "as many bytes; the peer's time over ours; the largest error against the "
                       "specification in units of the dtype's epsilon. A headline sorts.</p>"
                       "<input placeholder=\"op, shape, dtype ..\" aria-label=\"Filter\" hidden>"
                       "<div class=\"scroll\"><table><thead><tr>");
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        cup__text_add(out, "<th%s><button>%s</button></th>", i < 4 || i == 10 ? " class=\"l\"" : "",
                      heads[i]);
    cup__text_add(out, "</tr></thead><tbody>\n");
    for (size_t i = 0; i < records->count; i++)
        add_row(out, &records->row[i]);
    cup__text_add(out, "</tbody></table></div></section>\n");
}

void bench_page(cup__text *out, const cli_records *records, const char *device)
{
    cup__page_begin(out, "Cupola benchmark", style);
    cup__text_add(out, "<p class=\"note\">");
    cup__text_add_markup(out, device);
    if (records->count && records->row[records->count - 1].date[0])
        cup__text_add(out, ", %s", records->row[records->count - 1].date);
    cup__text_add(out, "</p>\n");
    add_facts(out, records);
    cup__text_add(out, "<div class=\"two\">\n");
    bench_plot_bandwidth(out, records);
    bench_plot_roofline(out, records);
    cup__text_add(out, "</div>\n");
    bench_plot_peers(out, records);
    add_table(out, records);
    cup__text_add(out, "%s", script);
    cup__page_end(out);
}

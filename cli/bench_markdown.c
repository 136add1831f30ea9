/* Records as a table for a document. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/bench.h"

static void add_number(cup__text *out, const char *format, double value)
{
    char words[48] = "";
    if (isfinite(value))
        snprintf(words, sizeof words, format, value);
    cup__text_add(out, " %s |", words);
}

static void add_row(cup__text *out, const cli_record *r)
{
    cup__text_add(out, "| %s | %.60s%s%s%s | %s | %s |", r->op, r->shapes,
                  strlen(r->shapes) > 60 ? ".." : "", r->attributes[0] ? "; " : "", r->attributes,
                  r->dtype, r->impl);
    add_number(out, "%.2f", r->ours_us);
    add_number(out, "%.1f %%", 100 * r->spread);
    add_number(out, "%.0f", r->bytes / r->ours_us * 1e-3);
    add_number(out, "%.1f", r->flops / r->ours_us * 1e-6);
    add_number(out, "%.0f %%", 100 * r->share_of_floor);
    add_number(out, "%.0f %%", 100 * r->copy_us / r->ours_us);
    cup__text_add(out, " %s |", r->peer);
    add_number(out, "%.2f", r->peer_us);
    add_number(out, "%.2f", r->ratio);
    add_number(out, "%.2g", r->error);
    add_number(out, "%.2g", r->peer_error);
    cup__text_add(out, "\n");
}

void bench_markdown(cup__text *out, const cli_records *records)
{
    cup__text_add(out, "| op | shapes | dtype | by | us | spread | GB/s | TFLOP/s | reached "
                       "| of copy | peer | peer us | ratio | error | peer's error |\n"
                       "|---|---|---|---|---:|---:|---:|---:|---:|---:|---|---:|---:|---:|---:|\n");
    for (size_t i = 0; i < records->count; i++)
        add_row(out, &records->row[i]);
}

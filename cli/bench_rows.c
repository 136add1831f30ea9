/* The rows of cupola bench as they come. */
#include <math.h>
#include <stdio.h>

#include "cli/bench.h"
#include "cli/common/exit.h"
#include "cli/common/terminal.h"

void bench_write_row(cli_json *writer, const cli_record *r)
{
    json_open_object(writer, NULL);
    json_add_string(writer, "op", r->op);
    json_add_string(writer, "implementation", r->impl);
    json_add_string(writer, "dtype", r->dtype);
    json_add_string(writer, "shapes", r->shapes);
    json_add_string(writer, "attributes", r->attributes);
    json_add_number(writer, "median_us", r->ours_us);
    json_add_number(writer, "spread", r->spread);
    json_add_number(writer, "bytes", r->bytes);
    json_add_number(writer, "flops", r->flops);
    json_add_number(writer, "share_of_floor", r->share_of_floor);
    json_add_number(writer, "copy_us", r->copy_us);
    json_add_number(writer, "error", r->error);
    json_add_number(writer, "timed", r->timed);
    if (r->peer[0]) {
        json_add_string(writer, "peer", r->peer);
        json_add_number(writer, "peer_us", r->peer_us);
        json_add_number(writer, "ratio", r->ratio);
    }
    json_close(writer);
}

void bench_print_head(void)
{
    printf("%s%-16s %-12s %-5s %-28s %10s %6s %8s %8s %7s %7s %8s%s\n", color(stdout, COLOR_BOLD),
           "op", "by", "dtype", "shapes", "median us", "+- %", "GB/s", "TFLOP/s", "reached",
           "of copy", "error", color(stdout, COLOR_OFF));
}

void bench_print_row(const cli_record *r)
{
    char error[24] = "", copy[24] = "";
    if (isfinite(r->copy_us))
        snprintf(copy, sizeof copy, "%.1f%%", 100 * r->copy_us / r->ours_us);
    if (isfinite(r->error))
        snprintf(error, sizeof error, "%.2g", r->error);
    printf("%-16s %-12s %-5s %-28.80s %10.2f %6.1f %8.1f %8.3f %6.1f%% %7s %8s", r->op, r->impl,
           r->dtype, r->shapes, r->ours_us, 100 * r->spread, r->bytes / r->ours_us * 1e-3,
           r->flops / r->ours_us * 1e-6, 100 * r->share_of_floor, copy, error);
    if (r->ratio > 0)
        printf("  %s %.2f us, ratio %.2f", r->peer, r->peer_us, r->ratio);
    if (r->timed > 1)
        printf("  timed %.0f times", r->timed);
    printf("%s%s\n", r->attributes[0] ? "  " : "", r->attributes);
    fflush(stdout);
}

int bench_write_line(const cli_record *row, char separator)
{
    cup__text out = {0};
    if (row)
        records_line(&out, row, separator);
    else
        records_head(&out, separator);
    cup__text_add(&out, "\n");
    int code = out.failed ? cli_fail(CLI_MEMORY, "no host memory for what is written") : CLI_OK;
    if (!code)
        cli_write(out.bytes, out.length);
    cup__text_free(&out);
    return code;
}

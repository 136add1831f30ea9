/* cupola bench --compare: two sets of records against each other. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/common/terminal.h"

/* How much slower is no noise: what was asked for, or twice what both runs spread. */
static double allowed(const cli_record *before, const cli_record *after, double noise)
{
    double a = isfinite(before->spread) ? before->spread : 0;
    double b = isfinite(after->spread) ? after->spread : 0;
    return fmax(noise, 2 * (a + b));
}

/* New over old time. Cards and days differ, so where both runs timed the same peer, ours is
 * measured in the peer's time. */
static double change_of(const cli_record *before, const cli_record *after, bool *by_peer)
{
    double a = before->ours_us, b = after->ours_us;
    *by_peer = before->ratio > 0 && after->ratio > 0 && before->peer[0] &&
               !strcmp(before->peer, after->peer);
    return *by_peer ? before->ratio / after->ratio : b / a;
}

static void write_row(cli_json *writer, const cli_record *before, const cli_record *after,
                      double change, double most, bool by_peer)
{
    json_open_object(writer, NULL);
    json_add_string(writer, "op", after->op);
    json_add_string(writer, "shapes", after->shapes);
    json_add_string(writer, "attributes", after->attributes);
    json_add_string(writer, "dtype", after->dtype);
    json_add_number(writer, "before_us", before->ours_us);
    json_add_number(writer, "after_us", after->ours_us);
    json_add_number(writer, "change", change - 1);
    json_add_number(writer, "allowed", most);
    json_add_boolean(writer, "by_peer", by_peer);
    json_add_boolean(writer, "regression", change - 1 > most);
    json_close(writer);
}

static void print_row(const cli_record *before, const cli_record *after, double change, double most,
                      bool by_peer)
{
    bool slower = change - 1 > most, faster = 1 - change > most;
    printf("%-18s %-30.30s %-6s %10.2f %10.2f %+7.1f %% %6.1f %%  %-7s %s%s%s\n", after->op,
           after->shapes, after->dtype, before->ours_us, after->ours_us, 100 * (change - 1),
           100 * most, by_peer ? "peer" : "clock",
           slower   ? color(stdout, COLOR_RED)
           : faster ? color(stdout, COLOR_GREEN)
                    : "",
           slower   ? "slower"
           : faster ? "faster"
                    : "",
           color(stdout, COLOR_OFF));
}

static int report(cli_call *call, const cli_records *before, const cli_records *after,
                  double noise)
{
    cli_json writer;
    int compared = 0, slower = 0, code = CLI_OK;
    if (call->json) {
        json_begin(&writer, "bench");
        json_open_array(&writer, "comparison");
    } else {
        printf("%s%-18s %-30s %-6s %10s %10s %9s %8s  %-7s%s\n", color(stdout, COLOR_BOLD), "op",
               "shapes", "dtype", "before us", "after us", "change", "allowed", "by",
               color(stdout, COLOR_OFF));
    }
    for (size_t i = 0; i < after->count; i++) {
        const cli_record *b = &after->row[i], *a = records_find(before, b);
        bool by_peer;
        if (!a)
            continue;
        double change = change_of(a, b, &by_peer), most = allowed(a, b, noise);
        compared++;
        slower += change - 1 > most;
        if (call->json)
            write_row(&writer, a, b, change, most, by_peer);
        else
            print_row(a, b, change, most, by_peer);
    }
    if (call->json) {
        json_close(&writer);
        code = json_end(&writer);
    }
    if (!compared)
        return cli_fail(CLI_FAILED, "the two files have no call in common");
    if (slower)
        return cli_fail(CLI_FAILED, "%d of %d calls are slower by more than the noise", slower,
                        compared);
    return code;
}

int bench_compare(cli_call *call, const char *const *files, double noise)
{
    cli_records before = {0}, after = {0};
    int code = records_read(&before, files[0]);
    if (!code)
        code = records_read(&after, files[1]);
    if (!code) {
        records_keep_latest(&before);
        records_keep_latest(&after);
        code = report(call, &before, &after, noise / 100);
    }
    records_free(&before);
    records_free(&after);
    return code;
}

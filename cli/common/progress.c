#include "cli/common/progress.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "cli/common/terminal.h"
#include "cupola/text.h"

#define DRAW_SECONDS 0.1
#define LINE_SECONDS 5.0
#define RATE_SECONDS 3.0
#define MOST_BAR 40
#define LEAST_BAR 8

double progress_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

const char *progress_number(double value, char out[32])
{
    static const char suffixes[] = " kMGT";
    int power = 0;
    for (; value >= 999.5 && power < 4; power++)
        value /= 1000;
    int decimals = !power || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(out, 32, "%.*f%.*s", decimals, value, power > 0, suffixes + power);
    return out;
}

const char *progress_time(double seconds, char out[32])
{
    if (!(seconds >= 0 && seconds < 360000000))
        return strcpy(out, "?");
    long s = lround(seconds);
    if (s < 3600)
        snprintf(out, 32, "%ld:%02ld", s / 60, s % 60);
    else
        snprintf(out, 32, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    return out;
}

void progress_begin(cli_progress *p, FILE *to, const char *unit, int64_t total, int64_t done)
{
    *p = (cli_progress){
        .to = to, .noun = "step", .unit = unit, .total = total, .first = done, .done = done};
    p->loss = NAN;
    p->line_seconds = LINE_SECONDS;
    p->began = progress_clock();
    p->shown = -LINE_SECONDS;
    p->marks[0].time = p->marks[1].time = p->began;
    p->redraws = terminal_redraws(to);
}

double progress_rate(const cli_progress *p)
{
    double seconds = progress_clock() - p->began;
    return seconds > 0 ? (double)p->units / seconds : 0;
}

void progress_pause(cli_progress *p)
{
    p->paused = true;
}

double progress_steady_rate(const cli_progress *p)
{
    return p->steady_time > 0 ? (double)p->steady_units / p->steady_time : 0;
}

static void take_steady(cli_progress *p, int64_t units, double time)
{
    if (p->last > 0 && !p->paused) {
        p->steady_time += time - p->last;
        p->steady_units += units - p->units;
    }
    p->last = time;
    p->paused = false;
}

/* The rate of the last few seconds. */
static void take_rate(cli_progress *p, double time)
{
    if (time - p->marks[1].time > RATE_SECONDS) {
        p->marks[0] = p->marks[1];
        p->marks[1] = (progress_mark){time, p->units};
    }
    double seconds = time - p->marks[0].time;
    p->rate = seconds > 0 ? (double)(p->units - p->marks[0].units) / seconds : 0;
}

static double left_at(const cli_progress *p, double time)
{
    int64_t steps = p->done - p->first;
    return steps > 0 ? (time - p->began) / (double)steps * (double)(p->total - p->done) : NAN;
}

double progress_left(const cli_progress *p)
{
    return left_at(p, progress_clock());
}

/* What stands behind the bar. */
static void describe(cli_progress *p, double time, char *out, size_t size)
{
    char number[32], left[32];
    int used = 0;
    out[0] = 0;
    if (!isnan(p->loss))
        used += snprintf(out, size, "  loss %.4f", p->loss);
    if (p->unit && p->rate > 0)
        used += snprintf(out + used, size - (size_t)used, "  %s %s/s",
                         progress_number(p->rate, number), p->unit);
    if (p->more[0])
        used += snprintf(out + used, size - (size_t)used, "  %s", p->more);
    int64_t steps = p->done - p->first;
    if (steps > 0 && p->done < p->total)
        snprintf(out + used, size - (size_t)used, "  %s left",
                 progress_time(left_at(p, time), left));
    else if (steps > 0)
        snprintf(out + used, size - (size_t)used, "  took %s",
                 progress_time(time - p->began, left));
}

static void draw_bar(cli_progress *p, int length)
{
    double share = p->total > 0 ? (double)p->done / (double)p->total : 1;
    int full = (int)(share * length);
    fprintf(p->to, " [%s", color(p->to, COLOR_GREEN));
    for (int i = 0; i < length; i++) {
        if (i == full)
            fputs(color(p->to, COLOR_OFF), p->to);
        fputc(i < full ? '=' : i == full ? '>' : ' ', p->to);
    }
    fprintf(p->to, "%s]", full == length ? color(p->to, COLOR_OFF) : "");
}

static void draw(cli_progress *p, double time)
{
    char head[80], tail[240];
    snprintf(head, sizeof head, "%s %lld/%lld", p->noun, (long long)p->done, (long long)p->total);
    describe(p, time, tail, sizeof tail);
    int room = terminal_width(p->to) - 1;
    int bar = room - (int)(strlen(head) + strlen(tail)) - 3;
    fprintf(p->to, "\r%.*s", room, head);
    if (bar >= LEAST_BAR)
        draw_bar(p, bar < MOST_BAR ? bar : MOST_BAR);
    room -= (int)strlen(head);
    fprintf(p->to, "%.*s\033[K", room > 0 ? room : 0, tail);
    fflush(p->to);
    p->is_drawn = true;
}

static void show(cli_progress *p, double time)
{
    p->shown = time;
    if (p->redraws) {
        draw(p, time);
        return;
    }
    char tail[240];
    describe(p, time, tail, sizeof tail);
    fprintf(p->to, "%s %lld/%lld%s\n", p->noun, (long long)p->done, (long long)p->total, tail);
    fflush(p->to);
}

void progress_step(cli_progress *p, int64_t done, int64_t units, double loss)
{
    double time = progress_clock();
    take_steady(p, units, time);
    p->done = done;
    p->units = units;
    if (!isnan(loss))
        p->loss = loss;
    take_rate(p, time);
    if (time - p->shown >= (p->redraws ? DRAW_SECONDS : p->line_seconds))
        show(p, time);
}

void progress_note(cli_progress *p, const char *format, ...)
{
    char words[16384], visible[16384];
    va_list args;
    progress_pause(p);
    if (p->is_drawn)
        fputs("\r\033[K", p->to);
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    /* The words of a compiler have lines. */
    fprintf(p->to, "%s\n", cup_text_visible(words, "\n\t", visible, sizeof visible));
    if (p->is_drawn)
        draw(p, progress_clock());
    fflush(p->to);
}

void progress_end(cli_progress *p)
{
    double time = progress_clock();
    take_rate(p, time);
    show(p, time);
    if (p->redraws)
        fputc('\n', p->to);
    fflush(p->to);
    p->is_drawn = false;
}

/* The sizes that calls are drawn with. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "prof/draw.h"

#define MOST_THRESHOLDS 256

uint64_t cup__draw_word(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t cup__draw_below(uint64_t *state, int64_t n)
{
    return n > 0 ? (int64_t)(cup__draw_word(state) % (uint64_t)n) : 0;
}

bool cup__draw_chance(uint64_t *state, int percent)
{
    return cup__draw_below(state, 100) < percent;
}

/* Widths of models that people train: hidden sizes, and vocabularies. */
static const int64_t widths[] = {
    384,  512,  640,  768,  896,  1024, 1280,  1536,  1600,  1792,  2048,  2560,  2880,  3072,
    3584, 4096, 5120, 6144, 7168, 8192, 10000, 10240, 11008, 12288, 13824, 14336, 16384};
static const int64_t vocabularies[] = {32000, 50257, 50304, 128256, 151936};
static const int64_t heads[] = {32, 40, 48, 64, 72, 80, 96, 112, 128, 160, 192, 256};

#define ONE_OF(state, list) list[cup__draw_below(state, (int64_t)(sizeof list / sizeof *list))]

static int64_t near(uint64_t *state, int64_t size)
{
    int64_t off = cup__draw_below(state, 3) - 1;
    return size + off < 0 ? 0 : size + off;
}

/* A size about which an implementation of the op changes its path; 0: there is none. */
static int64_t threshold(const cup__row *row, uint64_t *state)
{
    int64_t all[MOST_THRESHOLDS];
    int count = 0;
    for (const cup__impl *impl = row->op->impls; impl && impl->name; impl++)
        for (const int64_t *t = impl->thresholds; t && *t && count < MOST_THRESHOLDS; t++)
            all[count++] = *t;
    if (!count)
        return 0;
    int64_t times = cup__draw_chance(state, 30) ? 1 + cup__draw_below(state, 4) : 1;
    return near(state, all[cup__draw_below(state, count)] * times);
}

static int64_t general(const cup__row *row, uint64_t *state)
{
    int64_t kind = cup__draw_below(state, 100), size;
    if (kind < 3)
        return 0;
    if (kind < 12)
        return 1;
    if (kind < 40)
        return 2 + cup__draw_below(state, 16);
    if (kind < 60 && (size = threshold(row, state)) > 0)
        return size;
    if (kind < 70)
        return near(state, (int64_t)1 << (2 + cup__draw_below(state, 11)));
    if (kind < 78)
        return 8 * (1 + cup__draw_below(state, 64));
    if (kind < 86)
        return ONE_OF(state, widths);
    if (kind < 88)
        return ONE_OF(state, vocabularies);
    return 2 + cup__draw_below(state, (int64_t)1 << (3 + cup__draw_below(state, 9)));
}

/* What the letters of recipes mean, see recipes.def. */
static int64_t draw(const cup__row *row, uint64_t *state, char letter)
{
    if (letter == 'y' || letter == 'z')
        return cup__draw_below(state, 4);
    if (islower((unsigned char)letter))
        return 1 + cup__draw_below(state, cup__draw_chance(state, 80) ? 4 : 12);
    if (letter == 'V' && cup__draw_chance(state, 40))
        return ONE_OF(state, vocabularies);
    if (letter == 'D')
        return cup__draw_chance(state, 60) ? ONE_OF(state, heads)
                                           : 1 + cup__draw_below(state, 256);
    return general(row, state);
}

int64_t cup__symbol(cup__symbols *s, char letter)
{
    int at = letter & 127;
    if (!s->set[at]) {
        s->size[at] = draw(s->row, &s->state, letter);
        s->set[at] = true;
    }
    return s->size[at];
}

void cup__symbols_begin(cup__symbols *s, const cup__row *row, uint64_t state)
{
    *s = (cup__symbols){.row = row, .state = state};
    static const int leads[] = {0, 1, 1, 1, 1, 2, 2, 3};
    s->lead = (int)ONE_OF(&s->state, leads);
}

bool cup__symbols_shrink(cup__symbols *s)
{
    int large[128], count = 0;
    for (int i = 0; i < 128; i++)
        if (s->set[i] && s->size[i] > 4)
            large[count++] = i;
    if (!count)
        return false;
    int64_t *size = &s->size[large[cup__draw_below(&s->state, count)]];
    int64_t most = *size < 32 || cup__draw_chance(&s->state, 40) ? 4 : *size / 4;
    *size = 1 + cup__draw_below(&s->state, most);
    return true;
}

void cup__symbols_vary(cup__symbols *s, uint64_t *state)
{
    int used[128], count = 0;
    for (int i = 0; i < 128; i++)
        if (s->set[i])
            used[count++] = i;
    if (count)
        s->set[used[cup__draw_below(state, count)]] = false;
    s->state = cup__draw_word(state);
}

static int64_t factor(cup__symbols *s, const char **at)
{
    if (**at >= '0' && **at <= '9') {
        char *end;
        int64_t value = strtoll(*at, &end, 10);
        *at = end;
        return value;
    }
    return cup__symbol(s, *(*at)++);
}

static bool is_factor(char letter)
{
    return letter && letter != 'x' && isalnum((unsigned char)letter);
}

static int64_t term(cup__symbols *s, const char **at)
{
    int64_t value = 1;
    while (is_factor(**at)) {
        int64_t by = factor(s, at);
        value = by && value > ((int64_t)1 << 40) / by ? (int64_t)1 << 40 : value * by;
    }
    if (**at == '/') {
        ++*at;
        int64_t by = factor(s, at);
        value = by > 0 ? (value + by - 1) / by : 0;
    }
    return value;
}

int64_t cup__expression(cup__symbols *s, const char **at)
{
    int64_t value = term(s, at);
    while (**at == '+') {
        ++*at;
        value += term(s, at);
    }
    return value;
}

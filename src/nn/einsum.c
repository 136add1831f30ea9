/* einsum as products of two tensors at a time, from left to right. */
#include <stdio.h>
#include <string.h>

#include "nn/functions.h"

#define MOST 16 /* tensors */

/* A tensor whose dimensions have letters. */
typedef struct term {
    cup_tensor *t;
    char letters[CUP_MAX_DIMS + 1];
} term;

typedef struct equation {
    term in[MOST];
    int count;
    char result[CUP_MAX_DIMS + 1];
} equation;

/* In any locale, and never a negative number. */
static bool is_letter(int letter)
{
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
}

/* Reads letters, each once, up to what else there is; returns where that is. */
static const char *read_letters(cup_context *c, const char *at, char *to)
{
    int count = 0;
    for (; *at == ' ' || is_letter(*at); at++) {
        if (*at == ' ')
            continue;
        to[count] = 0;
        if (strchr(to, *at) || count == CUP_MAX_DIMS) {
            cup_fail(c, CUP_ARGUMENT,
                     "einsum: there are too many letters, or \"%c\" stands twice in one term; take "
                     "the diagonal before",
                     *at);
            return NULL;
        }
        to[count++] = *at;
    }
    to[count] = 0;
    return at;
}

/* Whether a letter stands in terms from number `first` on and in the result. */
static bool stands_later(const equation *e, int first, char letter)
{
    for (int i = first; i < e->count; i++)
        if (strchr(e->in[i].letters, letter))
            return true;
    return strchr(e->result, letter) != NULL;
}

/* Without "->" the result has, in the order of the alphabet, the letters that stand once. */
static void imply_result(equation *e)
{
    char *to = e->result;
    for (int letter = 'A'; letter <= 'z'; letter++) {
        int times = 0;
        for (int i = 0; i < e->count && is_letter(letter); i++)
            times += strchr(e->in[i].letters, letter) != NULL;
        if (times == 1 && to < e->result + CUP_MAX_DIMS)
            *to++ = (char)letter;
    }
    *to = 0;
}

static bool read_equation(equation *e, cup_context *c, const char *text)
{
    const char *at = text;
    for (int i = 0; i < e->count; i++) {
        at = read_letters(c, at, e->in[i].letters);
        if (!at)
            return false;
        if (i + 1 < e->count && *at++ != ',') {
            cup_fail(c, CUP_ARGUMENT, "einsum: there are %d tensors, but no \",\" after term %d",
                     e->count, i);
            return false;
        }
    }
    e->result[0] = 0;
    if (!*at) {
        imply_result(e);
        return true;
    }
    if (strncmp(at, "->", 2) || !(at = read_letters(c, at + 2, e->result)) || *at) {
        cup_fail(c, CUP_ARGUMENT,
                 "einsum: terms are letters with \",\" between them, then \"->\" and the letters "
                 "of the result, as in \"bij,bjk->bik\"");
        return false;
    }
    return true;
}

/* Each letter has one size, and those of the result stand in a term. */
static bool check_sizes(const equation *e, cup_context *c)
{
    int64_t sizes[128];
    memset(sizes, -1, sizeof sizes);
    for (int i = 0; i < e->count; i++) {
        const term *t = &e->in[i];
        if ((int)strlen(t->letters) != t->t->ndim) {
            cup_fail(c, CUP_SHAPE, "einsum: term %d has %d letters for %d dimensions", i,
                     (int)strlen(t->letters), t->t->ndim);
            return false;
        }
        for (int d = 0; d < t->t->ndim; d++) {
            int64_t *size = &sizes[(int)t->letters[d]];
            if (*size >= 0 && *size != t->t->shape[d]) {
                cup_fail(c, CUP_SHAPE, "einsum: \"%c\" is %lld and %lld", t->letters[d],
                         (long long)*size, (long long)t->t->shape[d]);
                return false;
            }
            *size = t->t->shape[d];
        }
    }
    for (const char *at = e->result; *at; at++)
        if (sizes[(int)*at] < 0) {
            cup_fail(c, CUP_ARGUMENT, "einsum: \"%c\" of the result stands in no term", *at);
            return false;
        }
    return true;
}

/* Sums over letters that stand neither in `other` nor from term `first` on. */
static void sum_alone(const equation *e, cup_context *c, term *t, const char *other, int first)
{
    int64_t axes[CUP_MAX_DIMS];
    int count = 0, kept = 0;
    char letters[CUP_MAX_DIMS + 1];
    for (int d = 0; t->letters[d]; d++) {
        if (strchr(other, t->letters[d]) || stands_later(e, first, t->letters[d]))
            letters[kept++] = t->letters[d];
        else
            axes[count++] = d;
    }
    letters[kept] = 0;
    if (count)
        t->t = cup_sum(c, t->t, axes, count, false);
    memcpy(t->letters, letters, sizeof letters);
}

/* Puts the dimensions in the order of the letters. */
static cup_tensor *ordered(cup_context *c, const term *t, const char *letters)
{
    int64_t axes[CUP_MAX_DIMS];
    int count = (int)strlen(letters);
    for (int d = 0; d < count; d++)
        axes[d] = strchr(t->letters, letters[d]) - t->letters;
    return strcmp(t->letters, letters) ? cup_permute(c, t->t, axes, count) : t->t;
}

/* The letters of one kind, and their sizes multiplied. */
typedef struct kind {
    char letters[CUP_MAX_DIMS + 1];
    int count;
    int64_t size;
} kind;

static void take(kind *k, char letter, int64_t size)
{
    k->letters[k->count++] = letter;
    k->letters[k->count] = 0;
    k->size *= size;
}

/* a becomes the product of a and b: [batch, rows, summed] by [batch, summed, columns]. */
static void multiply(const equation *e, cup_context *c, term *a, term *b, int first)
{
    kind batch = {.size = 1}, rows = {.size = 1}, summed = {.size = 1}, columns = {.size = 1};
    sum_alone(e, c, a, b->letters, first);
    sum_alone(e, c, b, a->letters, first);
    if (!a->t || !b->t)
        return;
    for (int d = 0; a->letters[d]; d++) {
        bool both = strchr(b->letters, a->letters[d]);
        bool later = stands_later(e, first, a->letters[d]);
        take(!both ? &rows : later ? &batch : &summed, a->letters[d], a->t->shape[d]);
    }
    for (int d = 0; b->letters[d]; d++)
        if (!strchr(a->letters, b->letters[d]))
            take(&columns, b->letters[d], b->t->shape[d]);
    if (batch.count + rows.count + columns.count > CUP_MAX_DIMS) {
        cup_fail(c, CUP_SHAPE, "einsum: a product has more than %d dimensions", CUP_MAX_DIMS);
        return;
    }
    char order[3 * CUP_MAX_DIMS + 3];
    int64_t shape[CUP_MAX_DIMS], of_a[] = {batch.size, rows.size, summed.size};
    int64_t of_b[] = {batch.size, summed.size, columns.size};
    snprintf(order, sizeof order, "%s%s%s", batch.letters, rows.letters, summed.letters);
    cup_tensor *left = cup_reshape(c, ordered(c, a, order), 3, of_a);
    snprintf(order, sizeof order, "%s%s%s", batch.letters, summed.letters, columns.letters);
    cup_tensor *right = cup_reshape(c, ordered(c, b, order), 3, of_b);
    snprintf(order, sizeof order, "%s%s%s", batch.letters, rows.letters, columns.letters);
    for (int d = 0; order[d]; d++) {
        const char *in_a = strchr(a->letters, order[d]);
        shape[d] = in_a ? a->t->shape[in_a - a->letters]
                        : b->t->shape[strchr(b->letters, order[d]) - b->letters];
    }
    a->t = cup_reshape(c, cup_matmul(c, left, right, false, false), (int)strlen(order), shape);
    memcpy(a->letters, order, CUP_MAX_DIMS + 1);
    a->letters[CUP_MAX_DIMS] = 0;
}

cup_tensor *cup_einsum(cup_context *c, cup_tensor *const *x, int count, const char *text)
{
    equation e = {.count = count};
    if (!cup__function_begin(c, "einsum", x && count > 0 ? x[0] : NULL))
        return NULL;
    if (!text || count > MOST) {
        cup_fail(c, CUP_ARGUMENT, "einsum: there must be a text, and at most %d tensors", MOST);
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        if (!cup__function_begin(c, "einsum", x[i]))
            return NULL;
        e.in[i].t = x[i];
    }
    if (!read_equation(&e, c, text) || !check_sizes(&e, c))
        return NULL;
    term product = e.in[0];
    for (int i = 1; i < count && cup_error(c) == CUP_OK; i++)
        multiply(&e, c, &product, &e.in[i], i + 1);
    if (cup_error(c) == CUP_OK)
        sum_alone(&e, c, &product, "", count);
    return cup_error(c) == CUP_OK ? ordered(c, &product, e.result) : NULL;
}

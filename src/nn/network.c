/* Making a network of the lines of its description: what each layer gets, and its tensors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cupola/grad.h"
#include "cupola/ops.h"
#include "nn/network.h"

#define MOST_STEPS 4096 /* each of whose names is held against all before it */

typedef cup__network_frame frame;
typedef cup__network_making making;

static const char *words_of(const cup__network_shape *s, char words[80])
{
    if (s->height)
        snprintf(words, 80, "images of %lld x %lld x %lld", (long long)s->height,
                 (long long)s->width, (long long)s->channels);
    else if (s->tokens)
        snprintf(words, 80, "%lld tokens of %lld", (long long)s->tokens, (long long)s->channels);
    else
        snprintf(words, 80, "%lld numbers", (long long)s->channels);
    return words;
}

cup_status cup__network_refuse(const making *m, const cup__network_line *l, const char *why)
{
    char words[80];
    return cup_fail(m->n->c, CUP_FORMAT, "line %d of the network: %s gets %s, %s", l->number,
                    cup__network_word(l->kind), words_of(&m->now, words), why);
}

/* The last layer begins small, so that all classes are about as likely. */
static cup_status make_linear(making *m, const cup__network_line *l, cup__network_step *s,
                              const char *name)
{
    bool last = l->count == -1;
    if (last && !m->n->sizes.classes)
        return cup__network_refuse(m, l, "and there are no classes; give it a number");
    int64_t in = m->now.channels, out = last ? m->n->sizes.classes : l->count;
    m->now.channels = out;
    s->sized = last;
    return cup_linear_layer_new(
        &s->as.linear, m->list, name, in, out,
        CUP_OPTIONS(cup_linear_layer_options, .no_bias = l->no_bias, .outer = last,
                    .initializer = last ? CUP_INITIALIZER_NORMAL : CUP_INITIALIZER_KAIMING_NORMAL,
                    .deviation = 0.01));
}

static cup_status make_norm(making *m, const cup__network_line *l, cup__network_step *s,
                            const char *name)
{
    const cup_norm_layer_options *last =
        CUP_OPTIONS(cup_norm_layer_options, .channels_last = true);
    int64_t width = m->now.channels;
    if (l->kind == CUP__STEP_BATCHNORM)
        return cup_batchnorm_layer_new(&s->as.batchnorm, m->list, name, width, last);
    if (l->kind == CUP__STEP_LAYERNORM)
        return cup_layernorm_layer_new(&s->as.layernorm, m->list, name, width, NULL);
    if (width % l->count)
        return cup__network_refuse(m, l, "whose channels its groups do not divide");
    return cup_groupnorm_layer_new(&s->as.groupnorm, m->list, name, width, l->count, last);
}

static cup_status make_transformer(making *m, const cup__network_line *l, cup__network_step *s,
                                   const char *name)
{
    if (!m->now.tokens)
        return cup__network_refuse(m, l, "and takes tokens");
    if (m->now.channels % l->heads)
        return cup__network_refuse(m, l, "which its heads do not divide");
    return cup_transformer_layer_new(
        &s->as.transformer, m->list, name, m->now.channels, l->heads,
        CUP_OPTIONS(cup_transformer_layer_options, .hidden = l->hidden, .dropout = l->dropout));
}

/* A learned factor for each channel, which begins with a number. */
static cup_status make_scale(making *m, const cup__network_line *l, cup__network_step *s,
                             const char *name)
{
    cup_context *c = m->n->c;
    s->tensor = cup_parameter_new(
        m->list, name, 1, &m->now.channels,
        CUP_OPTIONS(cup_parameter_options, .initializer = CUP_INITIALIZER_ONES));
    if (!s->tensor)
        return cup_error(c);
    bool recording = cup_grad_recording(c, false);
    cup_scope_open(c);
    cup_copy_into(c, s->tensor, cup_full(c, cup_tensor_dtype(s->tensor), 1, &m->now.channels,
                                         l->part));
    cup_scope_close(c);
    cup_grad_recording(c, recording);
    return cup_error(c);
}

static cup_status make_token(making *m, const cup__network_line *l, cup__network_step *s,
                             const char *name)
{
    bool one = l->kind == CUP__STEP_CLASSTOKEN;
    const int64_t shape[] = {one ? 1 : m->now.tokens, m->now.channels};
    if (!m->now.tokens)
        return cup__network_refuse(m, l, "and takes tokens");
    for (int i = 0; i < 2; i++)
        s->places[i] = m->places[i];
    s->before = m->now.tokens - s->places[0] * s->places[1];
    m->now.tokens += one;
    s->tensor = cup_parameter_new(
        m->list, name, 2, shape,
        CUP_OPTIONS(cup_parameter_options, .initializer = CUP_INITIALIZER_NORMAL));
    return cup_error(m->n->c);
}

/* What changes the shape alone. */
static cup_status reshape(making *m, const cup__network_line *l)
{
    cup__network_shape *s = &m->now;
    bool takes_tokens = l->kind == CUP__STEP_FIRSTTOKEN || l->kind == CUP__STEP_MEANTOKENS;
    int64_t places = s->height ? s->height * s->width : s->tokens ? s->tokens : 1;
    if (takes_tokens && !s->tokens)
        return cup__network_refuse(m, l, "and takes tokens");
    if (l->kind != CUP__STEP_FLATTEN && !takes_tokens && !s->height)
        return cup__network_refuse(m, l, "and takes images");
    if (l->kind == CUP__STEP_FLATTEN && s->channels > CUP__NETWORK_SIZE / places)
        return cup__network_refuse(m, l, "which are too many");
    m->places[0] = s->height;
    m->places[1] = s->width;
    if (l->kind == CUP__STEP_TOKENS)
        *s = (cup__network_shape){.tokens = places, .channels = s->channels};
    else if (l->kind == CUP__STEP_FLATTEN)
        *s = (cup__network_shape){.channels = s->channels * places};
    else
        *s = (cup__network_shape){.channels = s->channels};
    return CUP_OK;
}

/* The slot of a name; the number of all where it has none yet. */
static int slot_of(const making *m, const char *name)
{
    int slot = 0;
    while (slot < m->name_count && strcmp(m->names[slot], name) != 0)
        slot++;
    return slot;
}

static cup_status keep(making *m, const cup__network_line *l, cup__network_step *s)
{
    s->slot = slot_of(m, l->name);
    if (s->slot == CUP__NETWORK_NAMES)
        return cup_fail(m->n->c, CUP_FORMAT,
                        "line %d of the network: results are kept under over %d names", l->number,
                        CUP__NETWORK_NAMES);
    if (s->slot == m->name_count)
        m->names[m->name_count++] = l->name;
    m->kept[s->slot] = m->now;
    return CUP_OK;
}

/* The channels of what was kept, then those of what comes in. */
static cup_status concat(making *m, const cup__network_line *l, cup__network_step *s)
{
    char words[80], own[80];
    cup__network_shape *now = &m->now;
    s->slot = slot_of(m, l->name);
    if (s->slot == m->name_count)
        return cup_fail(m->n->c, CUP_FORMAT,
                        "line %d of the network: nothing was kept as \"%s\" before it", l->number,
                        l->name);
    const cup__network_shape *k = &m->kept[s->slot];
    if (k->height != now->height || k->width != now->width || k->tokens != now->tokens ||
        k->channels > CUP__NETWORK_SIZE - now->channels)
        return cup_fail(m->n->c, CUP_FORMAT,
                        "line %d of the network: concat would put %s behind %s of \"%s\"; they "
                        "must be alike but for the channels",
                        l->number, words_of(now, own), words_of(k, words), l->name);
    now->channels += k->channels;
    return CUP_OK;
}

static cup_status make_layer(making *m, const cup__network_line *l, cup__network_step *s)
{
    char name[40];
    snprintf(name, sizeof name, "%s%d", cup__network_word(l->kind), ++m->made[l->kind]);
    switch (l->kind) {
    case CUP__STEP_CONV:
    case CUP__STEP_CONVTRANSPOSE:
    case CUP__STEP_MAXPOOL:
    case CUP__STEP_AVGPOOL:
    case CUP__STEP_ADAPTIVEPOOL:
    case CUP__STEP_UPSAMPLE:
    case CUP__STEP_PIXELSHUFFLE:
    case CUP__STEP_LOCALRESPONSENORM:
        return cup__network_image_step(m, l, s, name);
    case CUP__STEP_LINEAR:
        return make_linear(m, l, s, name);
    case CUP__STEP_BATCHNORM:
    case CUP__STEP_LAYERNORM:
    case CUP__STEP_GROUPNORM:
        return make_norm(m, l, s, name);
    case CUP__STEP_TRANSFORMER:
        return make_transformer(m, l, s, name);
    case CUP__STEP_SCALE:
        return make_scale(m, l, s, name);
    case CUP__STEP_CLASSTOKEN:
    case CUP__STEP_POSITIONS:
        return make_token(m, l, s, name);
    case CUP__STEP_DROPOUT:
        return cup_dropout_layer_new(&s->as.dropout, m->list, l->part);
    case CUP__STEP_GLOBALPOOL:
    case CUP__STEP_FLATTEN:
    case CUP__STEP_TOKENS:
    case CUP__STEP_FIRSTTOKEN:
    case CUP__STEP_MEANTOKENS:
        return reshape(m, l);
    case CUP__STEP_KEEP:
        return keep(m, l, s);
    case CUP__STEP_CONCAT:
        return concat(m, l, s);
    default: /* an activation */
        s->numbers[0] = l->has_number ? l->part : l->kind == CUP__STEP_ELU ? 1 : 0.01;
        return CUP_OK;
    }
}

static bool alike(const cup__network_shape *a, const cup__network_shape *b)
{
    return a->height == b->height && a->width == b->width && a->tokens == b->tokens &&
           a->channels == b->channels;
}

static cup_status open_frame(making *m, const cup__network_line *l, int at)
{
    if (m->depth == CUP__NETWORK_DEPTH)
        return cup_fail(m->n->c, CUP_FORMAT,
                        "line %d of the network: over %d residuals and repeats in each other",
                        l->number, CUP__NETWORK_DEPTH);
    m->frames[m->depth++] = (frame){.line = l, .begin = at, .left = l->count, .before = m->now};
    return CUP_OK;
}

static cup_status turn(making *m, const cup__network_line *l)
{
    frame *f = m->depth ? &m->frames[m->depth - 1] : NULL;
    if (!f || f->line->kind != CUP__STEP_RESIDUAL || f->has_shortcut)
        return cup_fail(m->n->c, CUP_FORMAT,
                        "line %d of the network: shortcut stands in no residual, or is its second",
                        l->number);
    f->has_shortcut = true;
    f->after = m->now;
    m->now = f->before;
    return CUP_OK;
}

static cup_status close_residual(making *m, const cup__network_line *l, const frame *f)
{
    char own[80], other[80];
    const cup__network_shape *added = f->has_shortcut ? &f->after : &f->before;
    if (alike(added, &m->now))
        return CUP_OK;
    return cup_fail(m->n->c, CUP_FORMAT,
                    "line %d of the network: the residual of line %d would add %s to %s; a "
                    "shortcut with a conv makes them alike",
                    l->number, f->line->number, words_of(&m->now, own), words_of(added, other));
}

/* Behind a line; the next one is that of *at, or the one behind it. */
static cup_status close_frame(making *m, const cup__network_line *l, int *at)
{
    frame *f = m->depth ? &m->frames[m->depth - 1] : NULL;
    if (!f)
        return cup_fail(m->n->c, CUP_FORMAT,
                        "line %d of the network: end closes no residual and no repeat", l->number);
    if (f->line->kind == CUP__STEP_RESIDUAL) {
        m->depth--;
        return close_residual(m, l, f);
    }
    if (*at == f->begin + 1)
        return cup_fail(m->n->c, CUP_FORMAT, "line %d of the network: there is nothing to repeat",
                        f->line->number);
    if (--f->left > 0)
        *at = f->begin;
    else
        m->depth--;
    return CUP_OK;
}

static cup__network_step *add_step(making *m, cup__step_kind kind)
{
    cup_network *n = m->n;
    if (n->count == MOST_STEPS) {
        cup_fail(n->c, CUP_FORMAT, "the network has over %d layers; repeat them fewer times",
                 MOST_STEPS);
        return NULL;
    }
    if (n->count == n->room) {
        int room = n->room ? 2 * n->room : 64;
        cup__network_step *steps = realloc(n->steps, (size_t)room * sizeof *steps);
        if (!steps) {
            cup_fail(n->c, CUP_MEMORY, "no host memory for a network of %d layers", room);
            return NULL;
        }
        n->steps = steps;
        n->room = room;
    }
    cup__network_step *s = &n->steps[n->count++];
    memset(s, 0, sizeof *s);
    s->kind = kind;
    return s;
}

/* An activation right behind a linear layer is that layer's own. */
static bool joins_linear(making *m, const cup__network_line *l)
{
    static const cup_activation activations[CUP__STEP_END] = {
        [CUP__STEP_RELU] = CUP_ACTIVATION_RELU, [CUP__STEP_GELU] = CUP_ACTIVATION_GELU,
        [CUP__STEP_SILU] = CUP_ACTIVATION_SILU};
    cup__network_step *last = m->n->count ? &m->n->steps[m->n->count - 1] : NULL;
    if (l->kind >= CUP__STEP_END || !activations[l->kind] || !last ||
        last->kind != CUP__STEP_LINEAR || last->as.linear.activation != CUP_ACTIVATION_NONE)
        return false;
    last->as.linear.activation = activations[l->kind];
    return true;
}

static cup_status make_line(making *m, const cup__network_line *lines, int *at)
{
    const cup__network_line *l = &lines[*at];
    if (l->kind == CUP__STEP_REPEAT)
        return open_frame(m, l, *at);
    if (joins_linear(m, l))
        return CUP_OK;
    bool repeats = l->kind == CUP__STEP_END && m->depth &&
                   m->frames[m->depth - 1].line->kind == CUP__STEP_REPEAT;
    cup__network_step *s = repeats ? NULL : add_step(m, l->kind);
    if (!repeats && !s)
        return cup_error(m->n->c);
    switch (l->kind) {
    case CUP__STEP_RESIDUAL:
        return open_frame(m, l, *at);
    case CUP__STEP_SHORTCUT:
        return turn(m, l);
    case CUP__STEP_END:
        return close_frame(m, l, at);
    default:
        return make_layer(m, l, s);
    }
}

/* With numbers for the classes, or without these with images. */
static cup_status check_end(const making *m)
{
    char words[80];
    long long classes = (long long)m->n->sizes.classes;
    if (classes ? !m->now.height && !m->now.tokens && m->now.channels == classes : m->now.height)
        return CUP_OK;
    words_of(&m->now, words);
    if (!classes)
        return cup_fail(m->n->c, CUP_FORMAT,
                        "the network ends with %s, and without classes it must end with images; "
                        "leave out what makes numbers or tokens of them, or give it classes",
                        words);
    return cup_fail(m->n->c, CUP_FORMAT,
                    "the network ends with %s for %lld classes; let it end with `linear classes`, "
                    "behind flatten, globalpool, firsttoken or meantokens",
                    words, classes);
}

static cup_status make(making *m, const cup__network_line *lines, int count)
{
    cup_context *c = m->n->c;
    for (int at = 0; at < count; at++) {
        cup_status status = make_line(m, lines, &at);
        if (status != CUP_OK)
            return status;
    }
    if (m->depth)
        return cup_fail(c, CUP_FORMAT, "line %d of the network: %s has no end",
                        m->frames[m->depth - 1].line->number,
                        cup__network_word(m->frames[m->depth - 1].line->kind));
    return check_end(m);
}

static cup_status check_sizes(cup_context *c, const cup_network_sizes *s)
{
    const int64_t sizes[] = {s->height, s->width, s->channels, s->classes};
    for (int i = 0; i < 4; i++)
        if (sizes[i] < (i < 3) || sizes[i] > 1 << 24)
            return cup_fail(c, CUP_ARGUMENT,
                            "a network for images of %lld x %lld x %lld and %lld classes: each "
                            "must be 1 to 2^24, or the classes 0",
                            (long long)s->height, (long long)s->width, (long long)s->channels,
                            (long long)s->classes);
    return CUP_OK;
}

cup_network *cup_network_new(cup_context *c, cup_parameters *list, const char *text,
                             const cup_network_sizes *sizes)
{
    if (!c || cup_error(c) != CUP_OK)
        return NULL;
    if (!list || !text || !sizes || sizes->size < sizeof *sizes) {
        cup_fail(c, CUP_ARGUMENT, "a network: the list, the text or the sizes are missing");
        return NULL;
    }
    if (check_sizes(c, sizes) != CUP_OK)
        return NULL;
    making m = {.n = calloc(1, sizeof *m.n), .list = list};
    cup__network_line *lines = NULL;
    int count;
    if (!m.n) {
        cup_fail(c, CUP_MEMORY, "no host memory for a network");
        return NULL;
    }
    m.n->c = c;
    m.n->sizes = *sizes;
    m.now = (cup__network_shape){sizes->height, sizes->width, 0, sizes->channels};
    cup_status status = cup__network_read(c, text, &lines, &count);
    if (status == CUP_OK)
        status = make(&m, lines, count);
    free(lines);
    if (status == CUP_OK && cup_error(c) == CUP_OK)
        return m.n;
    cup_network_free(m.n);
    return NULL;
}

/* Behind a convolution stands nothing but what takes its results. */
cup_status cup_network_fold(cup_network *n)
{
    if (!n)
        return CUP_ARGUMENT;
    for (int i = 0; i + 1 < n->count && cup_error(n->c) == CUP_OK; i++) {
        cup__network_step *s = &n->steps[i];
        if (s->kind != CUP__STEP_CONV || s[1].kind != CUP__STEP_BATCHNORM || s->folded ||
            cup_batchnorm_layer_fold(&s[1].as.batchnorm, &s->as.conv) != CUP_OK)
            continue;
        s->folded = true;
        memmove(s + 1, s + 2, (size_t)(--n->count - i - 1) * sizeof *s);
    }
    return cup_error(n->c);
}

void cup_network_free(cup_network *network)
{
    if (!network)
        return;
    for (int i = 0; i < network->count; i++)
        if (network->steps[i].folded) {
            cup_tensor_free(network->steps[i].as.conv.weight);
            cup_tensor_free(network->steps[i].as.conv.bias);
        }
    free(network->steps);
    free(network);
}

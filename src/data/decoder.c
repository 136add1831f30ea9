#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "data/tokenizer.h"
#include "tensor/context.h"

#define REPLACEMENT "\xef\xbf\xbd"

struct cup_decoder {
    const cup_tokenizer *tokenizer;
    cup__error *error;
    cup__text raw;  /* not yet whole: at most three bytes between calls */
    cup__text text; /* what the last call gave */
    bool begun;     /* a token was there, before which a space may have been put */
};

cup_decoder *cup_decoder_new(cup_context *c, const cup_tokenizer *t)
{
    if (!c || cup_error(c) != CUP_OK)
        return NULL;
    if (!t) {
        cup__fail(&c->error, CUP_ARGUMENT, "decoder: the tokenizer is NULL");
        return NULL;
    }
    cup_decoder *d = cup__calloc(1, sizeof *d);
    if (!d) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a decoder");
        return NULL;
    }
    d->tokenizer = t;
    d->error = &c->error;
    return d;
}

void cup_decoder_free(cup_decoder *d)
{
    if (!d)
        return;
    cup__text_free(&d->raw);
    cup__text_free(&d->text);
    cup__free(d);
}

static const char *give(cup_decoder *d, size_t *bytes)
{
    if (d->raw.failed || d->text.failed) {
        cup__fail(d->error, CUP_MEMORY, "out of host memory for decoded text");
        return NULL;
    }
    if (bytes)
        *bytes = d->text.length;
    return cup__text_string(&d->text);
}

static void move_whole(cup_decoder *d)
{
    size_t at = 0;
    while (at < d->raw.length) {
        int length = cup__utf8_decode(d->raw.bytes + at, d->raw.length - at, NULL);
        if (length == 0)
            break;
        if (length > 0)
            cup__text_append(&d->text, d->raw.bytes + at, (size_t)length);
        else
            cup__text_append(&d->text, REPLACEMENT, 3);
        at += length > 0 ? (size_t)length : 1;
    }
    d->raw.length -= at;
    if (d->raw.length)
        memmove(d->raw.bytes, d->raw.bytes + at, d->raw.length);
}

const char *cup_decoder_add(cup_decoder *d, int32_t token, size_t *bytes)
{
    if (!d)
        return NULL;
    size_t length;
    const char *piece = cup_tokenizer_token(d->tokenizer, token, &length);
    if (!piece) {
        cup__fail(d->error, CUP_ARGUMENT, "there is no token %d; the vocabulary has %d", token,
                  (int)d->tokenizer->size);
        return NULL;
    }
    d->text.length = 0;
    if (!d->begun && d->tokenizer->spaces > CUP__SPACES_AS_THEY_ARE && *piece == ' ') {
        piece++;
        length--;
    }
    d->begun = true;
    cup__text_append(&d->raw, piece, length);
    /* An empty text has no bytes to show; appending nothing gives it its 0. */
    cup__text_append(&d->text, "", 0);
    if (!d->raw.failed)
        move_whole(d);
    return give(d, bytes);
}

const char *cup_decoder_end(cup_decoder *d, size_t *bytes)
{
    if (!d)
        return NULL;
    d->text.length = 0;
    cup__text_append(&d->text, REPLACEMENT, d->raw.length ? 3 : 0);
    d->raw.length = 0;
    d->begun = false;
    return give(d, bytes);
}

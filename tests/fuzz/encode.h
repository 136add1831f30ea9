/* A tokenizer that was accepted must do its work. */
#ifndef FUZZ_ENCODE_H
#define FUZZ_ENCODE_H

#include "fuzz.h"

#include "data/tokenizer.h"

typedef struct fuzz_text {
    const cup_tokenizer *tokenizer;
    const char *text;
    size_t length, at;
} fuzz_text;

/* Holds each token against the text that it stands for. */
static inline cup_status fuzz_compare(void *user, const int32_t *tokens, size_t count)
{
    fuzz_text *f = user;
    for (size_t i = 0; i < count; i++) {
        size_t bytes;
        const char *token = cup_tokenizer_token(f->tokenizer, tokens[i], &bytes);
        MUST(token && bytes);
        if (f->tokenizer->spaces || f->tokenizer->nfc)
            continue; /* whose text is another one */
        MUST(bytes <= f->length - f->at);
        MUST(memcmp(token, f->text + f->at, bytes) == 0);
        f->at += bytes;
    }
    return CUP_OK;
}

static inline void fuzz_encode(const cup_tokenizer *t, const char *text, size_t length)
{
    cup__error error = {0};
    fuzz_text f = {t, text, length, 0};
    cup__tokens out = {fuzz_compare, &f};
    cup_status status = cup__tokenizer_encode(&error, t, text, length, out);
    if (strcmp(cup_tokenizer_kind(t), "bpe") == 0)
        MUST(status == CUP_OK);
    MUST(status == CUP_OK ? t->spaces || t->nfc || f.at == length : error.text[0] != 0);
}

#endif

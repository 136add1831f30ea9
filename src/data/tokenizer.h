/* The inside of a tokenizer. */
#ifndef CUP_DATA_TOKENIZER_H
#define CUP_DATA_TOKENIZER_H

#include "base/error.h"
#include "base/json.h"
#include "base/map.h"
#include "base/text.h"
#include "cupola/data.h"
#include "data/splitter.h"
#include "data/words.h"

#define CUP__MOST_TOKENS (1 << 24)
#define CUP__LONGEST_TOKEN 4096

/* Where encoded tokens go, some at a time. */
typedef struct cup__tokens {
    cup_status (*put)(void *user, const int32_t *tokens, size_t count);
    void *user;
} cup__tokens;

typedef struct cup__merge {
    int32_t left, right, token;
} cup__merge;

/* Where a stretch of text without special texts stands: at the beginning of a text, behind a
 * special one, or within a text that is read in pieces. */
typedef enum cup__standing {
    CUP__STANDING_FIRST,
    CUP__STANDING_BEHIND,
    CUP__STANDING_WITHIN
} cup__standing;

/* Of a tokenizer whose words are of characters, in which spaces are some: where a space is put in
 * front of a stretch, if none is there, or in any case. */
typedef enum cup__spaces {
    CUP__SPACES_NONE, /* its words are of bytes */
    CUP__SPACES_AS_THEY_ARE,
    CUP__SPACES_FIRST,  /* at the beginning of a text */
    CUP__SPACES_ALWAYS, /* everywhere */
    CUP__SPACES_ONE_MORE
} cup__spaces;

#define CUP__MOST_AROUND 16

/* Tokens that stand round a text, by what the files of a model say. */
typedef struct cup__around {
    int32_t begin; /* that is called the one of its beginning; -1: none */
    int32_t front[CUP__MOST_AROUND], behind[CUP__MOST_AROUND]; /* that are put there */
    int32_t ends[CUP__MOST_AROUND]; /* that end what a model writes */
    int front_count, behind_count, end_count;
} cup__around;

/* Files that lie beside the tokenizer of a published model, and are kept for who reads it next. */
typedef enum cup__kept {
    CUP__KEPT_WORDS,
    CUP__KEPT_SPECIAL,
    CUP__KEPT_TEMPLATE,
    CUP__KEPT_GENERATION,
    CUP__KEPT
} cup__kept;

extern const char *const cup__kept_names[CUP__KEPT];

typedef struct cup__tokenizer_calls {
    const char *kind;
    /* What encoding keeps from text to text is *work, NULL at first. */
    cup_status (*encode)(cup__error *error, const cup_tokenizer *t, const char *text, size_t length,
                         cup__standing standing, cup__tokens out, void **work);
    void (*save)(const cup_tokenizer *t, cup__json_writer *writer);
    cup_status (*load)(cup__error *error, const cup__json *json, cup_tokenizer *t);
    void (*forget)(void *work); /* NULL: there is none */
} cup__tokenizer_calls;

struct cup_tokenizer {
    const cup__tokenizer_calls *calls;
    int32_t size;
    cup__text bytes;  /* of all tokens, in their order */
    uint32_t *begins; /* where each token's bytes begin, and the end of the last */
    int32_t *special;
    size_t special_count;
    cup__around around;
    cup__text kept[CUP__KEPT]; /* byte for byte; no bytes where there was no such file */
    /* Of a character tokenizer. */
    uint32_t *codes; /* of the tokens, rising */
    /* Of a BPE tokenizer. */
    int32_t byte_token[256];
    cup__merge *merges; /* the first has the highest rank */
    size_t merge_count, merge_capacity;
    cup__map ranks; /* from a pair of tokens to a merge */
    cup__splitter *splitter;
    bool nfc;             /* text is brought into NFC first */
    bool whole_words;     /* a word that is a token is that one, whatever merges make of it */
    cup__strings words;   /* all tokens' bytes where words are looked up, and their tokens */
    int32_t *word_tokens;
    int32_t *pieces;      /* tokens that neither bytes nor merges make, and none is special */
    size_t piece_count;
    cup__spaces spaces;   /* the next two are there with them, and no splitter */
    cup__map characters;  /* from a code point to its token; the others are bytes */
    bool parts_at_spaces; /* no merge joins a space to what stands before it */
};

extern const cup__tokenizer_calls cup__tokenizer_char, cup__tokenizer_bpe;

/* Encodes any text; special texts become their tokens. */
cup_status cup__tokenizer_encode(cup__error *error, const cup_tokenizer *t, const char *text,
                                 size_t length, cup__tokens out);

/* The same for one text of many, or a piece of one, with which it begins or not: *work, NULL at
 * first, is for one thread at a time and must be forgotten. */
cup_status cup__tokenizer_encode_next(cup__error *error, const cup_tokenizer *t, const char *text,
                                      size_t length, bool begins, cup__tokens out, void **work);
void cup__tokenizer_forget(const cup_tokenizer *t, void *work);

static inline uint64_t cup__pair(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* Sets the vocabulary of a character tokenizer. */
cup_status cup__char_train(cup__error *error, cup_tokenizer *t, const char *text, size_t length);

/* A text that is one token whatever stands round it; or, where it is a piece, one that merges may
 * join to others. */
typedef struct cup__special {
    const char *text;
    size_t length;
    int32_t token;
    bool piece;
} cup__special;

/* Sets the splitter of a pattern, or the spaces of that name. */
cup_status cup__bpe_pattern(cup__error *error, cup_tokenizer *t, const char *pattern);

/* Makes a BPE tokenizer complete, whose size, byte_token, merges, whole_words and pattern are set:
 * checks that they make every token, and derives the rest. `name` is for messages. */
cup_status cup__bpe_complete(cup__error *error, cup_tokenizer *t, const char *name,
                             const cup__special *special, size_t special_count);

cup_status cup__bpe_encode(cup__error *error, const cup_tokenizer *t, const char *text,
                           size_t length, cup__standing standing, cup__tokens out, void **work);
void cup__bpe_forget(void *work);
cup_status cup__bpe_load(cup__error *error, const cup__json *json, cup_tokenizer *t);

/* Asked now and then, with the merges so far, whether to stop; NULL: nobody is. */
typedef struct cup__watch {
    bool (*stop)(int64_t merges, void *user);
    void *user;
} cup__watch;

/* Appends up to `most` merges, of the pairs that are the most frequent in the words, which are
 * freed. CUP_INTERRUPTED where it was stopped. */
cup_status cup__bpe_learn(cup__error *error, cup_tokenizer *t, cup__words *words,
                          int64_t most, cup__watch watch);

/* An empty BPE tokenizer of GPT-2's words for up to `size` tokens; and makes it of words, which are
 * freed. */
cup_status cup__bpe_begin(cup__error *error, int64_t size, cup_tokenizer **out);
cup_status cup__bpe_make(cup__error *error, cup_tokenizer *t, int64_t size,
                         cup__words *words, cup__watch watch);

/* Reads GPT-2's two files. */
cup_status cup__gpt2_load(cup__error *error, const char *vocabulary, const char *merges,
                          cup_tokenizer *t);

/* Reads tokenizer.json of Hugging Face's tokenizers; and the name of the pattern of its words,
 * where it is one that is read, or its lines, for which there is room. */
cup_status cup__bpe_published_load(cup__error *error, const cup__json *json, cup_tokenizer *t);
cup_status cup__published_pattern(cup__error *error, const cup__json *json, cup__text *lines,
                                  const char **out);
/* Whether it asks for words to be looked up before they are merged, and for text in NFC. */
bool cup__published_whole_words(const cup__json_node *model);
bool cup__published_nfc(const cup__json *json);
/* A pattern as it is written there; NULL of those of GPT-2, which have no text. */
const char *cup__published_words(const char *pattern);

/* Reads the tokens round a text: of tokenizer.json; of the files that lie beside it in a folder,
 * where they are there; and of a file of ours. */
cup_status cup__around_published(cup__error *error, const cup__json *json, cup_tokenizer *t);
cup_status cup__around_beside(cup__error *error, const char *folder, cup_tokenizer *t);
cup_status cup__around_load(cup__error *error, const cup__json *json, cup_tokenizer *t);
void cup__around_save(const cup_tokenizer *t, cup__json_writer *writer);
/* Where no file says what ends a text it is "<|endoftext|>", if there is one. */
void cup__around_complete(cup_tokenizer *t);
/* Writes them as "post_processor". */
void cup__around_export(const cup_tokenizer *t, cup__json_writer *writer);
/* Reads the files that are kept, of a folder or a file of ours, and writes them to the latter.
 * Those that are too large, or not what their names say, are refused. */
cup_status cup__kept_beside(cup__error *error, const char *folder, cup_tokenizer *t);
cup_status cup__kept_load(cup__error *error, const cup__json *json, cup_tokenizer *t);
void cup__kept_save(const cup_tokenizer *t, cup__json_writer *writer);
void cup__kept_free(cup_tokenizer *t);
/* The token that parts documents: "<|endoftext|>" where it ends texts, else the first that does;
 * -1 where none does. */
int32_t cup__around_parting(const cup_tokenizer *t);
/* Two bytes of UTF-8 for each byte of a token at most, or three for a space. */
#define CUP__MOST_NAME (3 * CUP__LONGEST_TOKEN + 1)
/* The text of a token as tokenizer.json has it, to `out`, which has room for CUP__MOST_NAME. */
const char *cup__tokenizer_name(const cup_tokenizer *t, int32_t token, char *out);

/* Spaces by the name of their pattern, NONE where it is none; and that name. */
cup__spaces cup__spaces_named(const char *name);
const char *cup__spaces_name(cup__spaces spaces);

/* A text with spaces for the marks they are written as, which is not longer. */
size_t cup__spaces_unmark(const char *text, size_t length, char *out);

/* Whether words may be cut before spaces; and the words of a stretch, see cup__split. */
bool cup__spaces_part_words(const cup_tokenizer *t);
cup_status cup__spaces_split(cup__error *error, const cup_tokenizer *t, const char *text,
                             size_t length, cup__standing standing, cup__word word, void *user);

/* A tokenizer from and to the text of its file. */
cup_status cup__tokenizer_parse(cup__error *error, const cup__json *json, cup_tokenizer **out);
cup_status cup__tokenizer_text(cup__error *error, const cup_tokenizer *t, cup__text *out);

#endif

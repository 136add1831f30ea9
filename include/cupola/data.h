/* cupola/data.h: text, tokenizers, and the batches that training reads.
 *
 * A corpus is the text of files; a tokenizer turns text into tokens, numbers from 0 up to its
 * size; data is a corpus in tokens, from which batches are drawn. */
#ifndef CUPOLA_DATA_H
#define CUPOLA_DATA_H

#include "cupola/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cup_corpus cup_corpus;
typedef struct cup_tokenizer cup_tokenizer;
typedef struct cup_decoder cup_decoder;
typedef struct cup_data cup_data;

/* Reads files, and folders with all that is below them in the order of the paths' bytes. In a
 * folder, hidden files, symbolic links, folders of builds (build, out, dist, target,
 * node_modules, __pycache__, venv) or with a checkpoint, and files that are empty or not UTF-8 text
 * are left out; a file named in `paths` must not be empty or hold a zero byte. Files whose names
 * end in .gz or .zst are unpacked, with zlib or zstd, which must be installed then. Those that end
 * in .jsonl or .ndjson, packed or not, have a JSON object a line, one of whose fields is as a file
 * of its own. NULL options mean the defaults. */
typedef struct cup_corpus_options {
    size_t size;            /* of this struct, see CUP_OPTIONS */
    int64_t most_bytes;     /* more in all are a failure; 0: 1 GiB */
    const char *text_field; /* of JSON Lines, that has the text; NULL: "text" */
    bool *more;             /* set to whether that is why it failed; NULL: nobody asks */
} cup_corpus_options;
CUP_API cup_corpus *cup_corpus_load(cup_context *c, const char *const *paths, int count,
                                    const cup_corpus_options *options);
/* The same for one text in memory, which is copied. */
CUP_API cup_corpus *cup_corpus_new(cup_context *c, const char *text, size_t bytes);
CUP_API void cup_corpus_free(cup_corpus *corpus);

/* The number of files, of files that were left out, and of bytes. */
CUP_API int64_t cup_corpus_files(const cup_corpus *corpus);
CUP_API int64_t cup_corpus_skipped(const cup_corpus *corpus);
CUP_API int64_t cup_corpus_bytes(const cup_corpus *corpus);

/* All the text, one file behind the other; ends in a 0. */
CUP_API const char *cup_corpus_text(const cup_corpus *corpus);

/* A tokenizer with one token for each character (Unicode code point) of the corpus, in the order of
 * the code points. Text that is not UTF-8 is refused. */
CUP_API cup_tokenizer *cup_tokenizer_char_new(cup_context *c, const cup_corpus *corpus);

/* A byte-level BPE tokenizer with `size` tokens: the 256 bytes, then the most frequent pairs of
 * tokens in the corpus, then "<|endoftext|>". It has fewer when no pair is left that occurs twice.
 * Any bytes can be encoded. Sennrich, Haddow and Birch 2016, "Neural machine translation of rare
 * words with subword units", on bytes, with GPT-2's rule for where words part. */
CUP_API cup_tokenizer *cup_tokenizer_bpe_new(cup_context *c, const cup_corpus *corpus,
                                             int64_t size);

/* How a tokenizer is learned from text of any size. */
typedef struct cup_tokenizer_learn_options {
    size_t size;
    int64_t words;          /* the most different words that are counted; 0: 4 million */
    const char *text_field; /* the field of JSON Lines that has the text; NULL: "text" */
    /* Told now and then the bytes of files that were read, of all files, and behind the last of
     * them the merges so far; true stops the work, which is CUP_INTERRUPTED then. NULL: nobody is
     * told. */
    bool (*progress)(int64_t bytes, int64_t all, int64_t merges, void *user);
    void *user;
} cup_tokenizer_learn_options;

typedef struct cup_tokenizer_learned {
    int64_t bytes, texts, skipped; /* of files; texts in them; files that were left out */
    int64_t words, different;      /* in the text, and how many different ones of them were left */
    int64_t dropped;               /* of the words, as there were too many different ones */
    int64_t merges;
} cup_tokenizer_learned;

/* The same from files of any size, with paths as for cup_corpus_load: the tokenizer that
 * cup_tokenizer_bpe_new makes of one text. Words are counted on all cores while up to 4 MiB of text
 * a thread, 128 MiB at most, are in memory. Every 128 MiB of text, where there are more different
 * words than `words`, the rarest are dropped, which leaves three quarters of them or fewer: some
 * 250 bytes for each are in memory in the end. The result does not depend on the number of threads.
 * `learned` may be NULL. */
CUP_API cup_tokenizer *cup_tokenizer_learn(cup_context *c, const char *const *paths, int count,
                                           int64_t size,
                                           const cup_tokenizer_learn_options *options,
                                           cup_tokenizer_learned *learned);

/* Reads a tokenizer that cup_tokenizer_save wrote, or GPT-2's vocab.json with the merges.txt beside
 * it, or Hugging Face's tokenizer.json of byte-level BPE, or of sentencepiece's kind as of Llama 2
 * and Mistral, with bytes for characters that are no tokens; or a folder with one of them. Words of
 * byte-level BPE are GPT-2's, or those of steps that are Digits or a Split by a pattern, isolated.
 * PCRE2 searches these patterns, where it has the syntax that they were written in: no \w, ^, $,
 * sets in sets, or {n,m}+. Text is brought into NFC where a file asks for it,
 * as Qwen's does. What stands round a text is read of tokenizer.json and, where they lie beside it,
 * of tokenizer_config.json, generation_config.json and config.json; see cup_tokenizer_ends. In a
 * folder with both, tokenizer.json is read and not vocab.json. Kept, for cup_gpt_publish, and saved
 * are tokenizer_config.json, generation_config.json, special_tokens_map.json and
 * chat_template.jinja: CUP_FORMAT where one is no JSON object, or not UTF-8, CUP_IO where it has
 * over 4 MiB. CUP_UNSUPPORTED where a tokenizer.json is of another kind, or has added tokens that
 * take or want other text round them. */
CUP_API cup_tokenizer *cup_tokenizer_load(cup_context *c, const char *path);
CUP_API cup_status cup_tokenizer_save(cup_context *c, const cup_tokenizer *t, const char *path);
/* Writes a BPE tokenizer as Hugging Face's tokenizer.json. CUP_UNSUPPORTED of one of characters. */
CUP_API cup_status cup_tokenizer_export(cup_context *c, const cup_tokenizer *t, const char *path);
CUP_API void cup_tokenizer_free(cup_tokenizer *t);

/* "char" or "bpe"; and the number of tokens. */
CUP_API const char *cup_tokenizer_kind(const cup_tokenizer *t);
CUP_API int64_t cup_tokenizer_size(const cup_tokenizer *t);

/* The bytes of a token, which need not be whole characters; NULL when there is no such token. */
CUP_API const char *cup_tokenizer_token(const cup_tokenizer *t, int32_t token, size_t *bytes);

/* The token of a special text such as "<|endoftext|>", -1 when there is none. */
CUP_API int32_t cup_tokenizer_special(const cup_tokenizer *t, const char *text);

/* The tokens that end what a model writes, such as "</s>" or "<|im_end|>", by what its files say,
 * and their number, at most 16; where none says so "<|endoftext|>", if there is one. And those that
 * are put in front of a text before a model reads it, as Llama's "<s>". They live with the
 * tokenizer. */
CUP_API const int32_t *cup_tokenizer_ends(const cup_tokenizer *t, int *count);
CUP_API const int32_t *cup_tokenizer_front(const cup_tokenizer *t, int *count);

/* Encodes text into `tokens`, which must have room for one more than the text has bytes, since
 * tokenizers of sentencepiece's kind put a space in front, and returns their number; -1 when a
 * character tokenizer does not know a character. Special texts become their tokens; those of
 * cup_tokenizer_front are not put in front. Several threads may use one tokenizer, each with a
 * context of its own. */
CUP_API int64_t cup_tokenizer_encode(cup_context *c, const cup_tokenizer *t, const char *text,
                                     size_t bytes, int32_t *tokens);

/* Turns tokens into text one by one; without the space that a tokenizer of sentencepiece's kind
 * puts in front of a text. */
CUP_API cup_decoder *cup_decoder_new(cup_context *c, const cup_tokenizer *t);
CUP_API void cup_decoder_free(cup_decoder *d);

/* The text that the token completes, of *bytes bytes, possibly none: always whole characters, so
 * that it can be shown at once. Bytes that cannot become UTF-8 come out as U+FFFD. It lives until
 * the next call on the decoder. NULL when there is no such token. */
CUP_API const char *cup_decoder_add(cup_decoder *d, int32_t token, size_t *bytes);

/* What is left when no more tokens come: "" or U+FFFD. */
CUP_API const char *cup_decoder_end(cup_decoder *d, size_t *bytes);

typedef enum cup_split { CUP_SPLIT_TRAIN = 0, CUP_SPLIT_VALIDATION = 1 } cup_split;

/* Encodes a corpus. The first 90 % of the tokens are for training, the rest for validation. Each
 * file has the tokens of cup_tokenizer_front in front and one of cup_tokenizer_ends behind it,
 * where the tokenizer has some: `<|endoftext|>` if that is among them, else the first. Both parts
 * must have more than `context` tokens. */
CUP_API cup_data *cup_data_new(cup_context *c, const cup_corpus *corpus, const cup_tokenizer *t,
                               int64_t context);
CUP_API void cup_data_free(cup_data *d);

/* Opens data that is in tokens already: files whose names end in .bin, and folders of them. A file
 * is llm.c's (256 numbers of 32 bits, of which the first three are 20240520, 1 and the number of
 * tokens, then 16 bits a token; or 20240801, 7 and 32 bits a token), or nanoGPT's: 16 bits a token
 * and nothing else, all in little-endian order. What has "train" in its name is for training, what
 * else has "val" in it for validation; where one of the two is missing, the first 90 % of all
 * tokens are for training. The files follow each other in the order given, in a folder in that of
 * their names' bytes. They are read in pieces, whenever a batch is made, however large they are; a
 * token that the tokenizer does not have is a failure then, or now where it is among those that are
 * looked at: of each file up to 64 pieces of 64 KiB. */
CUP_API cup_data *cup_data_open(cup_context *c, const char *const *paths, int count,
                                const cup_tokenizer *t, int64_t context);

/* Several sets in one: each row of a batch is drawn from one of them, as often as its weight says,
 * which is above 0 and a part of the sum of all; the validation part is those of all sets, one
 * behind the other. The sets were encoded with the same tokenizer, are no mixes themselves, and
 * belong to the mix from then on, which frees them; where NULL is returned they stay the caller's.
 * What is kept of where they lie is enough for cup_gpt_data_load. */
CUP_API cup_data *cup_data_mix(cup_context *c, cup_data *const *sets, const double *weights,
                               int count);

/* The number of sets in a mix; 0 where it is none. And the set of a number from 0 on, borrowed;
 * NULL where there is none. */
CUP_API int cup_data_sets(const cup_data *d);
CUP_API const cup_data *cup_data_set(const cup_data *d, int index);

/* How many rows of the steps from 0 up to `steps`, each of so many rows, a run with this seed draws
 * from each set of a mix: as many numbers as it has sets. Some 20 ns a row. */
CUP_API cup_status cup_data_drawn(cup_context *c, const cup_data *d, uint64_t seed, uint64_t steps,
                                  int64_t rows, int64_t *counts);

/* Whether a path is for cup_data_open: its name ends in .bin, or it is a folder that holds such a
 * file which has "train" or "val" in its name or begins as llm.c's do. Other files of a folder are
 * left out. */
CUP_API bool cup_data_has_tokens(const char *path);

/* The number of files that the tokens or their text are from. */
CUP_API int64_t cup_data_files(const cup_data *d);

/* Whose files of tokens: llm.c's, or nanoGPT's, which are 16 bits a token and nothing else. */
typedef enum cup_token_format {
    CUP_TOKEN_FORMAT_LLMC = 0,
    CUP_TOKEN_FORMAT_NANOGPT = 1
} cup_token_format;

/* How text becomes files of tokens. */
typedef struct cup_tokenize_options {
    size_t size;
    int64_t shard_tokens;   /* the most of a file of llm.c's; 0: 100 million */
    const char *text_field; /* the field of JSON Lines that has the text; NULL: "text" */
    /* Told now and then the bytes of files that were read, of all files, and the tokens so far;
     * true stops the work, which is CUP_INTERRUPTED then. NULL: nobody is told. */
    bool (*progress)(int64_t bytes, int64_t all, int64_t tokens, void *user);
    void *user;
    cup_token_format format;
} cup_tokenize_options;

typedef struct cup_tokenized {
    int64_t bytes, texts, skipped; /* of files; texts in them; files that were left out */
    int64_t train, validation;     /* tokens of the parts */
    int64_t files;                 /* of tokens */
} cup_tokenized;

/* Encodes text of any size into a new folder for cup_data_open: train_000000.bin and so on,
 * val_000000.bin, and tokenizer.json. They are llm.c's, with 32 bits a token where the tokenizer
 * has over 65536 of them; or nanoGPT's, train.bin and val.bin, of tokenizers without more. Paths
 * are as for cup_corpus_load; round each text stands what cup_data_new puts round a file. The last
 * part of the files' bytes, 0 or more and less than 1, is for validation; a file may be cut for
 * that. Up to 4 MiB of text a thread are in memory at a time; a text is cut between words, which
 * changes none of its tokens, or where 16 MiB of it hold no space between signs of ASCII, between
 * characters. The folder must be empty or not be there, and has its files when all of them are
 * complete and on the disk; until then they are made in a folder beside it with ".part" behind the
 * name, which a failure removes. `made` may be NULL. */
CUP_API cup_status cup_tokenize(cup_context *c, const char *const *paths, int count,
                                const cup_tokenizer *t, const char *folder, double validation,
                                const cup_tokenize_options *options, cup_tokenized *made);

/* The number of tokens in a part. */
CUP_API int64_t cup_data_count(const cup_data *d, cup_split split);

/* A number that is another one, but for one chance in 2^64, when the tokens are others; of files of
 * tokens, when their number is another or those among them are that cup_data_open looks at. */
CUP_API uint64_t cup_data_hash(const cup_data *d);

/* Fills inputs and targets [rows, context] with random places of a part; targets are the inputs one
 * token later. What a row holds depends on the seed, the step and the row's number only, which is
 * first_row for the first one: so several processes can share a batch, and a resumed run reads what
 * the uninterrupted one would have. */
CUP_API cup_status cup_data_batch(cup_context *c, const cup_data *d, cup_split split, uint64_t seed,
                                  uint64_t step, int64_t first_row, int64_t rows, int64_t context,
                                  int32_t *inputs, int32_t *targets);

/* In which order a run reads its data: at random places, as cup_data_batch does, or all of it once
 * in each epoch, as cup_data_samples does. */
typedef enum cup_data_order {
    CUP_DATA_ORDER_RANDOM = 0,
    CUP_DATA_ORDER_PERMUTED = 1
} cup_data_order;

/* The samples first, first + 1, ... of the sequence of all epochs, in each of which every window of
 * the training part comes once, see cup_data_window, in an order that follows from the seed and the
 * number of the epoch; what is left of the part behind the last window is in none. Of a mix each
 * sample is of one set, and of any number of first ones each set has what its weight says, to
 * within the number of sets; a set's own samples are its own epochs, which end earlier the smaller
 * it is and the more it weighs. What a sample is depends on the seed and its number only, so that
 * several processes can share a batch, and a run goes on behind any of them. */
CUP_API cup_status cup_data_samples(cup_context *c, const cup_data *d, uint64_t seed,
                                    int64_t first, int64_t rows, int64_t context, int32_t *inputs,
                                    int32_t *targets);

/* How many of the first `samples` of them are of each set of a mix: as many numbers as it has
 * sets. */
CUP_API cup_status cup_data_sample_counts(cup_context *c, const cup_data *d, int64_t samples,
                                          int64_t *counts);

/* As cup_data_batch with the windows that follow each other from the beginning of the part; there
 * are cup_data_windows of them. */
CUP_API cup_status cup_data_window(cup_context *c, const cup_data *d, cup_split split,
                                   int64_t first_row, int64_t rows, int64_t context,
                                   int32_t *inputs, int32_t *targets);
CUP_API int64_t cup_data_windows(const cup_data *d, cup_split split, int64_t context);

#ifdef __cplusplus
}
#endif
#endif

/* Tokens that a GPU draws ahead of the host: a step of writing, captured once and replayed. */
#ifndef CUP_NN_DRAWING_H
#define CUP_NN_DRAWING_H

#include "cupola/nn.h"

typedef struct cup__drawing cup__drawing;

/* Why the steps of a model on a GPU are not for the device, in words; NULL: they are. */
const char *cup__drawing_refuses(const cup_gpt *m);

/* Of `texts` texts, as many as the cache has; of a model that is not refused, on a GPU. */
cup__drawing *cup__drawing_new(cup_gpt *m, cup_gpt_cache *cache, int64_t texts,
                               const cup_sampling *sampling);
void cup__drawing_free(cup__drawing *d);
/* Why its steps could not be captured; NULL: they could, or it was not tried yet. */
const char *cup__drawing_uncaptured(const cup__drawing *d);

/* Reads tokens [texts,T] behind those of the cache, and draws those that follow, the seed's numbers
 * from `number` times texts on. From there on the device goes on by itself. */
cup_status cup__drawing_begin(cup__drawing *d, cup_tensor *tokens, uint64_t number);
/* Reads the tokens that were drawn last and draws the next, and so on, up to `most` of each text,
 * as many as are worth one wait for the device. */
cup_status cup__drawing_go_on(cup__drawing *d, int64_t most);

/* What was drawn and not taken yet: whether there is any; the next one of each text, which may be
 * -1 where the model's output is not a number. */
bool cup__drawing_has(const cup__drawing *d);
void cup__drawing_take(cup__drawing *d, int32_t *to);

/* Whether the device stands behind the last token that was taken, so that it can go on. */
bool cup__drawing_stands(const cup__drawing *d);
/* What was drawn is void, since other tokens follow. */
void cup__drawing_drop(cup__drawing *d);

#endif

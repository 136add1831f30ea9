/* Small GPTs whose weights lie far enough from 0 that what attention sees matters, and texts. */
#ifndef TESTS_NN_SHARP_H
#define TESTS_NN_SHARP_H

#include "cupola/cupola.h"

#define WORDS 29 /* their vocabulary */

/* Matrices are those of a new model times the factor; `added` is added to all else. */
cup_gpt *sharp_gpt(cup_context *c, const cup_gpt_config *config, double factor, double added);

/* The token at a position of one of several texts that differ. */
int32_t sharp_token(int64_t text, int64_t at);

/* The positions [from, to) of so many texts, [texts, to - from] in i32. */
cup_tensor *sharp_tokens(cup_context *c, int64_t texts, int64_t from, int64_t to);

#endif

/* Attributes of a call as text, "causal=1 axes=0,2 dtype=bf16". */
#ifndef CUP_PROF_ATTRIBUTES_H
#define CUP_PROF_ATTRIBUTES_H

#include "base/text.h"
#include "dispatch/op.h"

/* Those that are not zero. */
void cup__attributes_text(const cup__row *row, const void *attributes, cup__text *out);

/* Sets those that the text names in the op's struct; CUP_ARGUMENT says what is wrong. */
cup_status cup__attributes_parse(cup__error *error, const cup__row *row, const char *text,
                                 void *attributes);

#endif

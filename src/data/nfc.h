/* Unicode's normalization form C: characters that are made of others become one where they can. */
#ifndef CUP_DATA_NFC_H
#define CUP_DATA_NFC_H

#include "base/error.h"
#include "base/text.h"

/* Whether the form may change a text; false is quickly known of text in which nothing can. */
bool cup__nfc_may_change(const char *text, size_t length);

/* Appends the text in the form; bytes that are not UTF-8 stay as they are. */
cup_status cup__nfc(cup__error *error, const char *text, size_t length, cup__text *out);

#endif

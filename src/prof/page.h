/* What HTML pages written by the library and the command have in common: one style, light and
 * dark, that needs nothing from elsewhere. */
#ifndef CUP_PROF_PAGE_H
#define CUP_PROF_PAGE_H

#include "base/text.h"

/* The document up to its headline; `style` is added to the common one. */
void cup__page_begin(cup__text *out, const char *title, const char *style);
void cup__page_end(cup__text *out);

#endif

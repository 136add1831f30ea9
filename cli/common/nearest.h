/* What was meant by a mistyped word. */
#ifndef CLI_NEAREST_H
#define CLI_NEAREST_H

/* Says that there is no such option, verb or op, and which word of the list, which ends with NULL,
 * is near. Returns CLI_USAGE. */
int cli_unknown(const char *kind, const char *dashes, const char *word, const char *const *list);

#endif

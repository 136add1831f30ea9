#include "cli/common/nearest.h"

#include <stddef.h>
#include <string.h>

#include "cli/common/exit.h"

/* Edits between two words: letters put in, left out, changed, or swapped with the next. */
static int distance(const char *a, const char *b)
{
    int m = (int)strlen(a), n = (int)strlen(b), d[40][40];
    if (m > 38 || n > 38)
        return 40;
    for (int i = 0; i <= m; i++)
        for (int j = 0; j <= n; j++) {
            if (!i || !j) {
                d[i][j] = i + j;
                continue;
            }
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            best = d[i - 1][j] + 1 < best ? d[i - 1][j] + 1 : best;
            best = d[i][j - 1] + 1 < best ? d[i][j - 1] + 1 : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = d[i - 2][j - 2] + 1 < best ? d[i - 2][j - 2] + 1 : best;
            d[i][j] = best;
        }
    return d[m][n];
}

static const char *nearest(const char *word, const char *const *list)
{
    const char *best = NULL;
    int least = (int)strlen(word) / 3 + 2; /* so that "xyz" suggests nothing */
    for (; *list; list++) {
        int edits = distance(word, *list);
        if (edits < least) {
            least = edits;
            best = *list;
        }
    }
    return best;
}

int cli_unknown(const char *kind, const char *dashes, const char *word, const char *const *list)
{
    const char *near = nearest(word, list);
    if (!near)
        return cli_usage("there is no %s %s%.100s", kind, dashes, word);
    return cli_usage("there is no %s %s%.100s; did you mean %s%s?", kind, dashes, word, dashes,
                     near);
}

/* Which regular expressions of published tokenizers PCRE2 reads as the program that they were
 * written for, Oniguruma with the syntax of Ruby, does. */
#include <string.h>

#include "data/splitter.h"

/* What follows a backslash and means the same; white space is translated. */
#define ESCAPES "pPsSdDrntf"
#define SIGNS "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ "

static const char *const groups[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};

static size_t group_length(const char *at)
{
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (!strncmp(at, groups[i], strlen(groups[i])))
            return strlen(groups[i]);
    return at[1] == '?' || at[1] == '*' ? 0 : 1;
}

/* How long the part at `at` is, inside of brackets or outside; 0: it may be read differently. */
static size_t part_length(const char *at, bool inside)
{
    if ((unsigned char)*at < ' ')
        return 0;
    if (*at == '\\' && (at[1] == 'p' || at[1] == 'P') && at[2] == '{') {
        size_t name = strcspn(at, "}\n");
        return at[name] == '}' ? name + 1 : 0;
    }
    if (*at == '\\')
        return at[1] && strchr(ESCAPES SIGNS, at[1]) ? 2 : 0;
    if (inside)
        return *at == '[' || !strncmp(at, "&&", 2) ? 0 : 1;
    if (*at == '(')
        return group_length(at);
    /* Lines begin and end elsewhere, {n,m}+ is not possessive, and {,n} is a number of times. */
    return *at == '^' || *at == '$' || !strncmp(at, "}+", 2) || !strncmp(at, "{,", 2) ? 0 : 1;
}

/* White space is that of Unicode. */
static void add_part(cup__text *out, const char *at, size_t length, bool inside)
{
    bool space = length == 2 && at[0] == '\\' && at[1] == 's';
    bool other = length == 2 && at[0] == '\\' && at[1] == 'S' && !inside;
    if (space || other)
        cup__text_add(out, inside ? "%s%s" : "[%s%s]", other ? "^" : "", CUP__SPLIT_SPACES);
    else
        cup__text_add(out, "%.*s", (int)length, at);
}

bool cup__regex_translate(const char *pattern, size_t length, cup__text *out)
{
    bool inside = false;
    for (const char *at = pattern; at < pattern + length;) {
        size_t part = part_length(at, inside);
        if (part == 0)
            return false;
        bool opens = !inside && *at == '[', closes = inside && *at == ']';
        if (opens && (at[1] == ']' || !strncmp(at + 1, "^]", 2)))
            return false;
        add_part(out, at, part, inside);
        if (opens && at[1] == '^') {
            cup__text_add(out, "^");
            part++;
        }
        inside = closes ? false : opens || inside;
        at += part;
    }
    return !inside;
}

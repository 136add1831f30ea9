#include "optim/groups.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT 1e6 /* of decays and rates */

/* Whether a name is the pattern, in which * is any letters and ? one. */
static bool matches(const char *pattern, int length, const char *name)
{
    const char *end = pattern + length, *star = NULL, *again = NULL;
    while (*name) {
        if (pattern < end && *pattern == '*') {
            star = ++pattern;
            again = name;
        } else if (pattern < end && (*pattern == '?' || *pattern == *name)) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star;
            name = ++again;
        } else {
            return false;
        }
    }
    while (pattern < end && *pattern == '*')
        pattern++;
    return pattern == end;
}

/* A number from 0 to LIMIT that ends with its text, or with a comma where one may. */
static bool read_number(const char **at, const char *end, bool comma, double *out)
{
    char *behind;
    *out = **at == '-' || **at == ' ' ? -1 : strtod(*at, &behind);
    if (*out < 0 || behind == *at || !(*out <= LIMIT))
        return false;
    bool more = comma && behind < end && *behind == ',';
    *at = behind + more;
    return *at == end || more;
}

static bool read_group(const char *text, int length, cup__group *out)
{
    const char *end = text + length, *at = end;
    while (at > text && *at != '=')
        at--;
    *out = (cup__group){text, length, (int)(at - text), 0, 1};
    at++;
    return out->pattern > 0 && at < end && read_number(&at, end, true, &out->decay) &&
           ((at == end && end[-1] != ',') || read_number(&at, end, false, &out->rate));
}

cup_status cup__groups_read(cup__error *error, const char *text, cup__groups *out)
{
    out->count = 0;
    out->found = 0;
    if (strnlen(text, CUP_PARAMETER_GROUPS) == CUP_PARAMETER_GROUPS)
        return cup__fail(error, CUP_ARGUMENT, "optimizer: the text of groups has no end");
    for (text += strspn(text, " "); *text; text += strspn(text, " ")) {
        int length = (int)strcspn(text, " ");
        if (out->count == CUP__GROUPS_MOST)
            return cup__fail(error, CUP_ARGUMENT, "optimizer: more than %d groups",
                             CUP__GROUPS_MOST);
        if (!read_group(text, length, &out->list[out->count++]))
            return cup__fail(error, CUP_ARGUMENT,
                             "optimizer: the group %.*s is no PATTERN=DECAY or "
                             "PATTERN=DECAY,RATE with numbers from 0 to %g; *.bias=0 is one",
                             length, text, LIMIT);
        text += length;
    }
    return CUP_OK;
}

const cup__group *cup__groups_find(cup__groups *groups, const char *name)
{
    const cup__group *last = NULL;
    for (int i = 0; i < groups->count; i++)
        if (matches(groups->list[i].text, groups->list[i].pattern, name)) {
            last = &groups->list[i];
            groups->found |= (int64_t)1 << i;
        }
    return last;
}

cup_status cup__groups_all_found(cup__error *error, const cup__groups *groups,
                                 const char *example)
{
    for (int i = 0; i < groups->count; i++)
        if (!(groups->found >> i & 1))
            return cup__fail(error, CUP_ARGUMENT,
                             "optimizer: no parameter is called %.*s, for which a group has its "
                             "decay; names are as %s, * stands for any letters and ? for one",
                             groups->list[i].pattern, groups->list[i].text, example);
    return CUP_OK;
}

void cup__groups_write(const cup__groups *groups, char text[CUP_PARAMETER_GROUPS])
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < groups->count && used < CUP_PARAMETER_GROUPS; i++)
        if (groups->found >> i & 1)
            used += (size_t)snprintf(text + used, CUP_PARAMETER_GROUPS - used, "%s%.*s",
                                     used ? " " : "", groups->list[i].length,
                                     groups->list[i].text);
}

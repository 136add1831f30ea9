#include "cli/common/options.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/common/exit.h"
#include "cli/common/nearest.h"

const cli_option common_options[] = {
    GROUP("Everywhere"),
    {"json", FLAG(cli_call, json), NULL, NULL, "write the result as one JSON document"},
    {"color", CHOICE(cli_call, color), "auto|always|never", "auto", "colour in what is for people"},
    {"help", FLAG(cli_call, help), NULL, NULL, "show this and leave"},
    {0}};

/* Where a row's value goes: the verb's struct or, for what every verb has, the call. */
typedef struct slot {
    const cli_option *row;
    void *value;
    int index; /* among the verb's rows; -1 for a common one */
} slot;

bool option_ends(const cli_option *row)
{
    return !row->name && !row->words;
}

bool option_is_list(const cli_option *row)
{
    return row->type == OPTION_FILES || row->type == OPTION_NAMES;
}

bool option_may_be_bare(const cli_option *row)
{
    return row->type == OPTION_CHOICE && row->least;
}

static bool find_in(const cli_option *rows, const char *name, size_t length, int *index)
{
    for (int i = 0; rows && !option_ends(&rows[i]); i++)
        if (rows[i].name && strlen(rows[i].name) == length && !memcmp(rows[i].name, name, length)) {
            *index = i;
            return true;
        }
    return false;
}

static bool find(cli_call *call, const char *name, size_t length, slot *out)
{
    int i;
    if (find_in(call->verb->options, name, length, &i)) {
        const cli_option *row = &call->verb->options[i];
        *out = (slot){row, (char *)call->given + row->offset, i};
        return true;
    }
    if (find_in(common_options, name, length, &i)) {
        const cli_option *row = &common_options[i];
        *out = (slot){row, (char *)call + row->offset, -1};
        return true;
    }
    return false;
}

static int unknown(const cli_call *call, const char *name, size_t length)
{
    const char *names[CALL_MOST_OPTIONS + 8];
    int count = 0;
    for (const cli_option *o = call->verb->options; o && !option_ends(o); o++)
        if (o->name && count < CALL_MOST_OPTIONS)
            names[count++] = o->name;
    for (const cli_option *o = common_options; !option_ends(o); o++)
        if (o->name)
            names[count++] = o->name;
    names[count] = NULL;
    char word[64];
    snprintf(word, sizeof word, "%.*s", (int)(length < 63 ? length : 63), name);
    return cli_unknown("option", "--", word, names);
}

static int set_integer(const cli_option *row, const char *text, int64_t *out)
{
    const char *digits = text[0] == '-' ? text + 1 : text;
    char *end = NULL;
    errno = 0;
    long long value = isdigit((unsigned char)*digits) ? strtoll(text, &end, 10) : 0;
    if (end && !*end && !errno && value >= row->least && value <= row->most) {
        *out = value;
        return CLI_OK;
    }
    if (row->most == INT64_MAX && !errno)
        return cli_usage("--%s %.100s: give a whole number, at least %" PRId64, row->name, text,
                         row->least);
    return cli_usage("--%s %.100s: give a whole number from %" PRId64 " to %" PRId64, row->name,
                     text, row->least, row->most);
}

static int set_real(const cli_option *row, const char *text, double *out)
{
    char *end = NULL;
    /* strtod alone would also take "nan", "inf" and hexadecimal. */
    bool plain = *text && !text[strspn(text, "+-.eE0123456789")];
    double value = plain ? strtod(text, &end) : 0;
    if (plain && end != text && !*end && value >= row->low && value <= row->high &&
        !(row->most && value == row->high)) {
        *out = value;
        return CLI_OK;
    }
    if (row->most)
        return cli_usage("--%s %.100s: give a number from %g up to but not including %g", row->name,
                         text, row->low, row->high);
    return cli_usage("--%s %.100s: give a number from %g to %g", row->name, text, row->low,
                     row->high);
}

static int set_choice(const cli_option *row, const char *text, const char **out)
{
    size_t length = strlen(text);
    for (const char *word = row->hint; *word;) {
        size_t n = strcspn(word, "|");
        if (n == length && !memcmp(word, text, n)) {
            *out = text;
            return CLI_OK;
        }
        word += n + (word[n] == '|');
    }
    return cli_usage("--%s %.100s: choose one of %s", row->name, text, row->hint);
}

static int add_file(const char *text, cli_files *out)
{
    const char **grown = realloc(out->name, ((size_t)out->count + 1) * sizeof *grown);
    if (!grown)
        return cli_fail(CLI_MEMORY, "no host memory for the list of files");
    grown[out->count++] = text;
    out->name = grown;
    return CLI_OK;
}

static int set(const slot *at, const char *text)
{
    const cli_option *row = at->row;
    switch (row->type) {
    case OPTION_GROUP:
        break;
    case OPTION_FLAG:
        *(bool *)at->value = true;
        break;
    case OPTION_INTEGER:
        return set_integer(row, text, at->value);
    case OPTION_REAL:
        return set_real(row, text, at->value);
    case OPTION_TEXT:
        *(const char **)at->value = text;
        break;
    case OPTION_CHOICE:
        return set_choice(row, text, at->value);
    case OPTION_FILES:
    case OPTION_NAMES:
        if (!*text)
            return cli_usage("--%s: a name must not be empty", row->name);
        return add_file(text, at->value);
    }
    return CLI_OK;
}

static int set_defaults(const cli_option *rows, void *base)
{
    for (int i = 0; rows && !option_ends(&rows[i]); i++)
        if (rows[i].standard && !option_may_be_bare(&rows[i])) {
            slot at = {&rows[i], (char *)base + rows[i].offset, i};
            int code = set(&at, rows[i].standard);
            if (code)
                return code;
        }
    return CLI_OK;
}

/* True when the word stands for an option, so that it is no value by mistake. */
static bool is_option(cli_call *call, const char *word)
{
    slot unused;
    return word[0] == '-' && word[1] == '-' &&
           (!word[2] || find(call, word + 2, strcspn(word + 2, "="), &unused));
}

/* The option in words[0]; *taken is set to the number of words it takes. */
static int parse_option(cli_call *call, int count, char **words, int *taken)
{
    const char *name = words[0] + 2, *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    slot at;
    *taken = 1;
    if (!find(call, name, length, &at))
        return unknown(call, name, length);
    if (at.index >= 0)
        call->set[at.index] = true;
    if (at.row->type == OPTION_FLAG)
        return equals ? cli_usage("--%s takes no value", at.row->name) : set(&at, NULL);
    if (equals)
        return set(&at, equals + 1);
    bool bare = count < 2 || is_option(call, words[1]);
    if (bare && option_may_be_bare(at.row))
        return set(&at, at.row->standard);
    if (bare)
        return cli_usage("--%s needs a value: --%s=%s", at.row->name, at.row->name, at.row->hint);
    int code = set(&at, words[1]);
    *taken = 2;
    if (!option_is_list(at.row))
        return code;
    while (!code && *taken < count && (words[*taken][0] != '-' || !words[*taken][1]))
        code = set(&at, words[(*taken)++]);
    return code;
}

static int parse_words(cli_call *call, int count, char **words)
{
    bool options = true;
    for (int i = 0, taken = 1; i < count; i += taken, taken = 1) {
        if (!options || words[i][0] != '-' || !words[i][1]) {
            call->operands[call->operand_count++] = words[i];
        } else if (!strcmp(words[i], "--")) {
            options = false;
        } else if (!strcmp(words[i], "-h")) {
            call->help = true;
        } else if (words[i][1] != '-') {
            return cli_usage("%.100s is no option; options begin with two dashes", words[i]);
        } else {
            int code = parse_option(call, count - i, words + i, &taken);
            if (code)
                return code;
        }
        if (call->help)
            return CLI_OK;
    }
    return CLI_OK;
}

int call_parse(cli_call *call, const cli_verb *verb, int count, char **words)
{
    *call = (cli_call){.verb = verb};
    call->given = calloc(1, verb->size ? verb->size : 1);
    call->operands = calloc((size_t)count + 1, sizeof *call->operands);
    if (!call->given || !call->operands)
        return cli_fail(CLI_MEMORY, "no host memory for the options");
    int code = set_defaults(common_options, call);
    if (!code)
        code = set_defaults(verb->options, call->given);
    if (!code)
        code = parse_words(call, count, words);
    if (code || call->help)
        return code;
    if (call->operand_count > verb->operand_most)
        return cli_usage("\"%.100s\" is one word too many", call->operands[verb->operand_most]);
    if (call->operand_count < verb->operand_least)
        return cli_usage("something is missing: cupola %s %s", verb->name, verb->synopsis);
    return CLI_OK;
}

void call_free(cli_call *call)
{
    for (const cli_option *o = call->verb->options; o && !option_ends(o); o++)
        if (option_is_list(o) && call->given)
            free(((cli_files *)((char *)call->given + o->offset))->name);
    free(call->given);
    free(call->operands);
}

int call_allow(const cli_call *call, const char *with, const char *const *allowed)
{
    for (int i = 0; call->verb->options && !option_ends(&call->verb->options[i]); i++) {
        const char *const *name = allowed;
        if (!call->set[i])
            continue;
        while (*name && strcmp(*name, call->verb->options[i].name))
            name++;
        if (!*name)
            return cli_usage("--%s does nothing with %s: leave it out", call->verb->options[i].name,
                             with);
    }
    return CLI_OK;
}

int call_deny(const cli_call *call, const char *with, const char *const *denied)
{
    for (; *denied; denied++)
        if (call_has(call, *denied))
            return cli_usage("--%s does nothing %s: leave it out", *denied, with);
    return CLI_OK;
}

bool call_has(const cli_call *call, const char *name)
{
    int i;
    return find_in(call->verb->options, name, strlen(name), &i) && call->set[i];
}

/* The description of a network, from its text to lines. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nn/network.h"

#define MOST_LINES 10000
#define MOST_SIZE (INT64_C(1) << 30)

/* What may stand behind a word. */
enum {
    WHOLE = 1,  /* a whole number, without which the line is none */
    CLASSES = 2, /* or `classes` */
    SAME = 4,    /* or `same` */
    PART = 8,    /* a number */
    KERNEL = 16,
    STRIDE = 32, /* and padding */
    GROUPS = 64,
    BIAS = 128, /* nobias */
    HEADS = 256 /* heads, hidden and dropout */
};

static const struct word {
    const char *name;
    int takes;
} words[] = {
    [CUP__STEP_CONV] = {"conv", WHOLE | SAME | KERNEL | STRIDE | GROUPS | BIAS},
    [CUP__STEP_LINEAR] = {"linear", WHOLE | CLASSES | BIAS},
    [CUP__STEP_BATCHNORM] = {"batchnorm", 0},
    [CUP__STEP_LAYERNORM] = {"layernorm", 0},
    [CUP__STEP_GROUPNORM] = {"groupnorm", WHOLE},
    [CUP__STEP_RELU] = {"relu", 0},
    [CUP__STEP_GELU] = {"gelu", 0},
    [CUP__STEP_SILU] = {"silu", 0},
    [CUP__STEP_TANH] = {"tanh", 0},
    [CUP__STEP_SIGMOID] = {"sigmoid", 0},
    [CUP__STEP_DROPOUT] = {"dropout", PART},
    [CUP__STEP_MAXPOOL] = {"maxpool", WHOLE | STRIDE},
    [CUP__STEP_AVGPOOL] = {"avgpool", WHOLE | STRIDE},
    [CUP__STEP_GLOBALPOOL] = {"globalpool", 0},
    [CUP__STEP_FLATTEN] = {"flatten", 0},
    [CUP__STEP_SCALE] = {"scale", PART},
    [CUP__STEP_TOKENS] = {"tokens", 0},
    [CUP__STEP_CLASSTOKEN] = {"classtoken", 0},
    [CUP__STEP_POSITIONS] = {"positions", 0},
    [CUP__STEP_TRANSFORMER] = {"transformer", HEADS},
    [CUP__STEP_FIRSTTOKEN] = {"firsttoken", 0},
    [CUP__STEP_MEANTOKENS] = {"meantokens", 0},
    [CUP__STEP_RESIDUAL] = {"residual", 0},
    [CUP__STEP_SHORTCUT] = {"shortcut", 0},
    [CUP__STEP_REPEAT] = {"repeat", WHOLE},
    [CUP__STEP_END] = {"end", 0}};

#define WORDS ((int)(sizeof words / sizeof *words))

const char *cup__network_word(cup__step_kind kind)
{
    return words[kind].name;
}

static bool whole(const char *text, int64_t least, int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < least || value > MOST_SIZE)
        return false;
    *out = value;
    return true;
}

/* "0.1", "1e-6": with a point, whatever the program's locale has instead. */
static bool part(const char *text, double *out)
{
    int64_t digits = 0, power = 0, exponent = 0;
    int count = 0;
    bool behind = false;
    for (; (*text >= '0' && *text <= '9') || (*text == '.' && !behind); text++) {
        if (*text == '.') {
            behind = true;
            continue;
        }
        digits = digits * 10 + (*text - '0');
        power -= behind;
        if (++count > 15)
            return false;
    }
    if (count && *text == 'e' && whole(text + 1, -30, &exponent) && exponent <= 6)
        text = "";
    *out = (double)digits * pow(10, (double)(power + exponent));
    return count && !*text;
}

/* A word behind the first one, key=value, nobias, or the number. */
static bool take(cup__network_line *line, const char *word, bool *has_number)
{
    const struct option {
        const char *name;
        int needs;
        int64_t *to, least;
    } options[] = {{"kernel=", KERNEL, &line->kernel, 1},  {"stride=", STRIDE, &line->stride, 1},
                   {"padding=", STRIDE, &line->padding, 0}, {"groups=", GROUPS, &line->groups, 1},
                   {"heads=", HEADS, &line->heads, 1},      {"hidden=", HEADS, &line->hidden, 1}};
    int takes = words[line->kind].takes;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (!strncmp(word, options[i].name, strlen(options[i].name)))
            return (takes & options[i].needs) &&
                   whole(word + strlen(options[i].name), options[i].least, options[i].to);
    if (!strncmp(word, "dropout=", 8))
        return (takes & HEADS) && part(word + 8, &line->dropout);
    if (!strcmp(word, "nobias"))
        return (line->no_bias = (takes & BIAS) != 0);
    if (*has_number)
        return false;
    *has_number = true;
    bool classes = (takes & CLASSES) && !strcmp(word, "classes");
    if (classes || ((takes & SAME) && !strcmp(word, "same"))) {
        line->count = classes ? -1 : -2;
        return true;
    }
    return takes & PART ? part(word, &line->part)
                        : (takes & WHOLE) && whole(word, 1, &line->count);
}

static cup_status read_line(cup_context *c, char *text, int number, cup__network_line *line)
{
    char *rest = NULL, *word = strtok_r(text, " \t\r", &rest);
    bool has_number = false;
    int kind = 0;
    while (kind < WORDS && strcmp(words[kind].name, word) != 0)
        kind++;
    if (kind == WORDS)
        return cup_fail(c, CUP_FORMAT, "line %d of the network: \"%.60s\" is no layer; see %s",
                        number, word, "cupola/network.h for those that there are");
    *line = (cup__network_line){.kind = (cup__step_kind)kind, .number = number, .padding = -1};
    while ((word = strtok_r(NULL, " \t\r", &rest)))
        if (!take(line, word, &has_number))
            return cup_fail(c, CUP_FORMAT, "line %d of the network: %s cannot take \"%.60s\"",
                            number, words[kind].name, word);
    if ((words[kind].takes & (WHOLE | PART)) && !has_number)
        return cup_fail(c, CUP_FORMAT, "line %d of the network: behind %s a number is missing",
                        number, words[kind].name);
    if (kind == CUP__STEP_TRANSFORMER && !line->heads)
        return cup_fail(c, CUP_FORMAT, "line %d of the network: transformer needs heads=", number);
    return CUP_OK;
}

static cup_status read_lines(cup_context *c, char *text, cup__network_line *lines, int *count)
{
    int number = 0;
    for (char *at = text, *next; at; at = next) {
        next = strchr(at, '\n');
        if (next)
            *next++ = 0;
        number++;
        at[strcspn(at, "#")] = 0;
        if (at[strspn(at, " \t\r")] == 0)
            continue;
        if (*count == MOST_LINES)
            return cup_fail(c, CUP_FORMAT, "the network has over %d lines", MOST_LINES);
        cup_status status = read_line(c, at, number, &lines[*count]);
        if (status != CUP_OK)
            return status;
        ++*count;
    }
    return *count ? CUP_OK : cup_fail(c, CUP_FORMAT, "the network's description has no layers");
}

cup_status cup__network_read(cup_context *c, const char *text, cup__network_line **lines,
                             int *count)
{
    size_t most = 1;
    for (const char *at = text; *at && most < MOST_LINES; at++)
        most += *at == '\n';
    char *copy = strdup(text);
    *lines = calloc(most, sizeof **lines);
    *count = 0;
    cup_status status = copy && *lines
                            ? read_lines(c, copy, *lines, count)
                            : cup_fail(c, CUP_MEMORY, "no host memory for a network");
    free(copy);
    return status;
}

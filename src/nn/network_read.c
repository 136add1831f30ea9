/* The description of a network, from its text to lines. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nn/network.h"

#define MOST_LINES 10000

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
    HEADS = 256, /* heads, hidden and dropout */
    NAME = 512,  /* a name */
    OPEN = 1024, /* outpadding */
    RESPONSE = 2048, /* alpha, beta and k */
    MAYBE = 4096     /* with PART: or none */
};

#define MODE 31 /* its bit among those of options that were given */

static const char *const paddings[] = {"zeros", "reflect", "replicate", "circular", NULL};
static const char *const interpolations[] = {"nearest", "bilinear", "bicubic", NULL};
static const char *const poolings[] = {"mean", "max", NULL};

static const struct word {
    const char *name;
    int takes;
    const char *const *modes; /* for mode=, by the numbers that their enums have */
} words[] = {
    [CUP__STEP_CONV] = {"conv", WHOLE | SAME | KERNEL | STRIDE | GROUPS | BIAS, paddings},
    [CUP__STEP_CONVTRANSPOSE] = {"convtranspose",
                                 WHOLE | SAME | KERNEL | STRIDE | GROUPS | BIAS | OPEN},
    [CUP__STEP_LINEAR] = {"linear", WHOLE | CLASSES | BIAS},
    [CUP__STEP_BATCHNORM] = {"batchnorm", 0},
    [CUP__STEP_LAYERNORM] = {"layernorm", 0},
    [CUP__STEP_GROUPNORM] = {"groupnorm", WHOLE},
    [CUP__STEP_RELU] = {"relu", 0},
    [CUP__STEP_GELU] = {"gelu", 0},
    [CUP__STEP_SILU] = {"silu", 0},
    [CUP__STEP_TANH] = {"tanh", 0},
    [CUP__STEP_SIGMOID] = {"sigmoid", 0},
    [CUP__STEP_LEAKYRELU] = {"leakyrelu", PART | MAYBE},
    [CUP__STEP_ELU] = {"elu", PART | MAYBE},
    [CUP__STEP_HARDSWISH] = {"hardswish", 0},
    [CUP__STEP_MISH] = {"mish", 0},
    [CUP__STEP_SOFTPLUS] = {"softplus", 0},
    [CUP__STEP_LOCALRESPONSENORM] = {"localresponsenorm", WHOLE | RESPONSE},
    [CUP__STEP_DROPOUT] = {"dropout", PART},
    [CUP__STEP_MAXPOOL] = {"maxpool", WHOLE | STRIDE},
    [CUP__STEP_AVGPOOL] = {"avgpool", WHOLE | STRIDE},
    [CUP__STEP_GLOBALPOOL] = {"globalpool", 0},
    [CUP__STEP_ADAPTIVEPOOL] = {"adaptivepool", WHOLE, poolings},
    [CUP__STEP_UPSAMPLE] = {"upsample", WHOLE, interpolations},
    [CUP__STEP_PIXELSHUFFLE] = {"pixelshuffle", WHOLE},
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
    [CUP__STEP_KEEP] = {"keep", NAME},
    [CUP__STEP_CONCAT] = {"concat", NAME},
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
    if (end == text || *end || errno || value < least || value > CUP__NETWORK_SIZE)
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

/* Of what is dropped: below 1. */
static bool probability(const char *text, double *out)
{
    return part(text, out) && *out < 1;
}

/* What stands behind the `=` of an option that begins a word, or NULL. */
static const char *value_of(const char *word, const char *option)
{
    size_t length = strlen(option);
    return !strncmp(word, option, length) && word[length] == '=' ? word + length + 1 : NULL;
}

static bool take_mode(cup__network_line *line, const char *value)
{
    const char *const *modes = words[line->kind].modes;
    for (int i = 0; modes && modes[i]; i++)
        if (!strcmp(modes[i], value)) {
            line->mode = i;
            return true;
        }
    return false;
}

/* Whether it stands there for the first time. */
static bool is_new(cup__network_line *line, unsigned option)
{
    bool again = line->given >> option & 1;
    line->given |= 1u << option;
    return !again;
}

/* An option, key=value. */
static bool take_option(cup__network_line *line, const char *word)
{
    const struct {
        const char *name;
        int needs;
        int64_t *whole, least;
        double *part;
    } options[] = {{"kernel", KERNEL, &line->kernel, 1, NULL},
                   {"stride", STRIDE, &line->stride, 1, NULL},
                   {"padding", STRIDE, &line->padding, 0, NULL},
                   {"groups", GROUPS, &line->groups, 1, NULL},
                   {"dilation", GROUPS, &line->dilation, 1, NULL},
                   {"outpadding", OPEN, &line->more, 0, NULL},
                   {"heads", HEADS, &line->heads, 1, NULL},
                   {"hidden", HEADS, &line->hidden, 1, NULL},
                   {"dropout", HEADS, NULL, 0, &line->dropout},
                   {"alpha", RESPONSE, NULL, 0, &line->alpha},
                   {"beta", RESPONSE, NULL, 0, &line->beta},
                   {"k", RESPONSE, NULL, 0, &line->bias}};
    int takes = words[line->kind].takes;
    const char *value = value_of(word, "mode");
    if (value)
        return is_new(line, MODE) && take_mode(line, value);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        value = value_of(word, options[i].name);
        if (!value || !(takes & options[i].needs))
            continue;
        if (!is_new(line, (unsigned)i))
            return false;
        if ((takes & GROUPS) && options[i].whole == &line->padding &&
            !strcmp(value, "same")) {
            line->padding = -2;
            return true;
        }
        if (options[i].whole)
            return whole(value, options[i].least, options[i].whole);
        bool drops = options[i].part == &line->dropout;
        return drops ? probability(value, &line->dropout) : part(value, options[i].part);
    }
    return false;
}

static bool take_name(cup__network_line *line, const char *word)
{
    size_t length = strlen(word);
    if (length >= sizeof line->name)
        return false;
    memcpy(line->name, word, length + 1);
    return true;
}

/* A word behind the first one: key=value, nobias, the number, or the name. */
static bool take(cup__network_line *line, const char *word)
{
    int takes = words[line->kind].takes;
    if (strchr(word, '='))
        return take_option(line, word);
    if (!strcmp(word, "nobias"))
        return (line->no_bias = (takes & BIAS) != 0);
    if (line->has_number)
        return false;
    line->has_number = true;
    bool classes = (takes & CLASSES) && !strcmp(word, "classes");
    if (classes || ((takes & SAME) && !strcmp(word, "same"))) {
        line->count = classes ? -1 : -2;
        return true;
    }
    return takes & NAME                        ? take_name(line, word)
           : line->kind == CUP__STEP_DROPOUT ? probability(word, &line->part)
           : takes & PART ? part(word, &line->part)
                          : (takes & WHOLE) && whole(word, 1, &line->count);
}

static cup_status refuse(cup_context *c, const cup__network_line *line, const char *word)
{
    bool filled = line->kind == CUP__STEP_CONVTRANSPOSE && value_of(word, "mode");
    return cup_fail(c, CUP_FORMAT, "line %d of the network: %s cannot take \"%.60s\"%s",
                    line->number, words[line->kind].name, word,
                    filled ? ": its padding cuts places off and adds none that could be filled; "
                             "take upsample and a conv with mode="
                           : "");
}

static cup_status read_line(cup_context *c, char *text, int number, cup__network_line *line)
{
    char *rest = NULL, *word = strtok_r(text, " \t\r", &rest);
    int kind = 0;
    while (kind < WORDS && strcmp(words[kind].name, word) != 0)
        kind++;
    if (kind == WORDS)
        return cup_fail(c, CUP_FORMAT, "line %d of the network: \"%.60s\" is no layer; see %s",
                        number, word, "cupola/network.h for those that there are");
    *line = (cup__network_line){.kind = (cup__step_kind)kind, .number = number, .padding = -1,
                                .alpha = -1, .beta = -1, .bias = -1};
    while ((word = strtok_r(NULL, " \t\r", &rest)))
        if (!take(line, word))
            return refuse(c, line, word);
    int takes = words[kind].takes;
    if ((takes & (WHOLE | PART | NAME)) && !(takes & MAYBE) && !line->has_number)
        return cup_fail(c, CUP_FORMAT, "line %d of the network: behind %s a %s is missing",
                        number, words[kind].name, takes & NAME ? "name" : "number");
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

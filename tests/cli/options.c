/* The tables of options: what is taken, what is refused and with which words. */
#include "cli/common/options.h"

#include <stdio.h>
#include <string.h>

#include "cli/common/exit.h"
#include "test.h"

typedef struct sample_given {
    bool flag;
    int64_t count, large;
    double rate;
    const char *text, *kind, *how;
    cli_files data;
} sample_given;

static const cli_option options[] = {
    {"flag", FLAG(sample_given, flag), NULL, NULL, "a flag"},
    {"count", INTEGER(sample_given, count, 1, 64), "N", "4", "a count"},
    {"large", INTEGER(sample_given, large, 0, INT64_MAX), "N", NULL, "a large one"},
    {"rate", REAL(sample_given, rate, 0, 10), "X", "0.5", "a rate"},
    GROUP("More"),
    {"text", TEXT(sample_given, text), "WORDS", NULL, "a text"},
    {"kind", CHOICE(sample_given, kind), "f32|bf16", "f32", "a kind"},
    {"how", CHOICE_OR_NONE(sample_given, how), "fast|slow", "slow", "how"},
    {"data", FILES(sample_given, data), "FILE", NULL, "files"},
    {0}};

static int run(cli_call *call)
{
    return call->operand_count;
}

static const cli_verb sample = {.name = "sample",
                                .synopsis = "[WORD]...",
                                .options = options,
                                .size = sizeof(sample_given),
                                .operand_most = 2,
                                .run = run};

/* Parses words separated by spaces. */
static int parse(cli_call *call, const char *line)
{
    static char text[1024];
    static char *words[64];
    int count = 0;
    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        words[count++] = word;
    return call_parse(call, &sample, count, words);
}

TEST(options_defaults)
{
    cli_call call;
    EXPECT_INT(parse(&call, ""), CLI_OK);
    const sample_given *given = call.given;
    EXPECT(!given->flag);
    EXPECT_INT(given->count, 4);
    EXPECT_NEAR(given->rate, 0.5, 0);
    EXPECT(given->text == NULL);
    EXPECT_TEXT(given->kind, "f32");
    EXPECT(given->how == NULL);
    EXPECT_INT(given->data.count, 0);
    EXPECT_TEXT(call.color, "auto");
    EXPECT(!call_has(&call, "count"));
    call_free(&call);
}

TEST(options_values)
{
    cli_call call;
    EXPECT_INT(parse(&call, "--flag --count=64 one --rate 1e-3 --text=--flag --kind bf16 "
                            "--large 9223372036854775807 --data a - b --json --data=c -- --two"),
               CLI_OK);
    const sample_given *given = call.given;
    EXPECT(given->flag && call.json);
    EXPECT_INT(given->count, 64);
    EXPECT_INT(given->large, INT64_MAX);
    EXPECT_NEAR(given->rate, 1e-3, 0);
    EXPECT_TEXT(given->text, "--flag");
    EXPECT_TEXT(given->kind, "bf16");
    EXPECT_INT(given->data.count, 4);
    EXPECT_TEXT(given->data.name[1], "-");
    EXPECT_TEXT(given->data.name[3], "c");
    EXPECT_INT(call.operand_count, 2);
    EXPECT_TEXT(call.operands[0], "one");
    EXPECT_TEXT(call.operands[1], "--two");
    EXPECT(call_has(&call, "count") && !call_has(&call, "json"));
    call_free(&call);
}

/* A word that may be left out is never an option, nor what is no word of it. */
TEST(options_with_a_word_or_none)
{
    static const char *const lines[][2] = {{"--how", "slow"},
                                           {"--how fast", "fast"},
                                           {"--how=fast", "fast"},
                                           {"--how --flag", "slow"},
                                           {"--how fast --how", "slow"}};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        cli_call call;
        EXPECT_INT(parse(&call, lines[i][0]), CLI_OK);
        EXPECT_TEXT(((const sample_given *)call.given)->how, lines[i][1]);
        EXPECT_INT(call.operand_count, 0);
        call_free(&call);
    }
}

TEST(options_refuse_what_is_wrong)
{
    static const char *const lines[] = {
        "--count 0",
        "--count 65",
        "--count",
        "--count=",
        "--count 3x",
        "--count 1e2",
        "--count 99999999999999999999",
        "--large -1",
        "--rate nan",
        "--rate inf",
        "--rate -0.1",
        "--rate 1e999",
        "--rate=",
        "--kind f16",
        "--kind f32|bf16",
        "--how other",
        "--how=",
        "--flag=1",
        "--nothing",
        "-x",
        "a b c",
        "--text --flag",
        "--data",
        "--data --flag",
        "--data=",
        "--color purple",
        "--count 0x10",
        "--rate 0x1p2",
    };
    EXPECT(freopen("/dev/null", "w", stderr));
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        cli_call call;
        int code = parse(&call, lines[i]);
        call_free(&call);
        if (code != CLI_USAGE)
            test_fail(__FILE__, __LINE__, "\"%s\" gave %d", lines[i], code);
    }
}

TEST(exit_codes)
{
    EXPECT_INT(cli_exit_of(CUP_OK), 0);
    EXPECT_INT(cli_exit_of(CUP_ARGUMENT), 2);
    EXPECT_INT(cli_exit_of(CUP_NO_DEVICE), 3);
    EXPECT_INT(cli_exit_of(CUP_MEMORY), 4);
    EXPECT_INT(cli_exit_of(CUP_FORMAT), 5);
    EXPECT_INT(cli_exit_of(CUP_INTERNAL), 1);
}

/* The command: finds the verb, reads its options, runs it. */
#include <stdio.h>
#include <string.h>

#include "cli/common/environment.h"
#include "cli/common/exit.h"
#include "cli/common/help.h"
#include "cli/common/nearest.h"
#include "cli/common/options.h"
#include "cli/common/pages.h"
#include "cli/common/terminal.h"
#include "cupola/base.h"

#define MOST_VERBS 32

static int unknown_verb(const char *name)
{
    const char *names[MOST_VERBS + 2];
    int count = 0;
    for (; verbs[count] && count < MOST_VERBS; count++)
        names[count] = verbs[count]->name;
    names[count++] = "help";
    names[count] = NULL;
    return cli_unknown("verb", "", name, names);
}

static int run_verb(const cli_verb *verb, int count, char **words)
{
    cli_call call;
    cli_name_verb(verb->name);
    int code = call_parse(&call, verb, count, words);
    if (call.color)
        color_mode(call.color);
    if (!code && call.help)
        help_verb(verb);
    else if (!code && !verb->tells_environment)
        code = environment_check();
    if (!code && !call.help)
        code = verb->run(&call);
    call_free(&call);
    return code;
}

static int run_help(int count, char **words)
{
    if (!count) {
        help_all(stdout);
        return CLI_OK;
    }
    const cli_verb *verb = verb_find(words[0]);
    if (count > 1)
        return cli_usage("\"%.100s\" is one word too many", words[1]);
    if (!verb && strcmp(words[0], "help"))
        return unknown_verb(words[0]);
    if (verb)
        help_verb(verb);
    else
        help_all(stdout);
    return CLI_OK;
}

static int run(int count, char **words)
{
    if (!count) {
        help_all(stderr);
        return CLI_USAGE;
    }
    const char *first = words[0];
    if (!strcmp(first, "help") || !strcmp(first, "--help") || !strcmp(first, "-h"))
        return run_help(count - 1, words + 1);
    if (!strcmp(first, "--version") && count == 1) {
        printf("cupola %s\n", cup_version());
        return CLI_OK;
    }
    /* Not for users: `make gen` writes the man pages and completions with it. */
    if (!strcmp(first, "write-pages"))
        return pages_write(count > 1 ? words[1] : "docs");
    if (!strcmp(first, "--version"))
        return cli_usage("\"%.100s\" is one word too many", words[1]);
    const cli_verb *verb = verb_find(first);
    return verb ? run_verb(verb, count - 1, words + 1) : unknown_verb(first);
}

int main(int argc, char **argv)
{
    cli_keep_streams();
    return cli_close_output(run(argc - 1, argv + 1));
}

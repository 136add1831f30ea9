#include "cli/exit.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/signals.h"
#include "cli/terminal.h"

static const char *verb_name;

static const struct {
    cup_status status;
    int code;
} codes[] = {
    {CUP_OK, CLI_OK},         {CUP_ARGUMENT, CLI_USAGE},
    {CUP_MEMORY, CLI_MEMORY}, {CUP_NO_DEVICE, CLI_NO_GPU},
    {CUP_IO, CLI_FILE},       {CUP_FORMAT, CLI_FILE},
};

int cli_exit_of(cup_status status)
{
    if (status == CUP_INTERRUPTED && signals_caught())
        return CLI_SIGNAL + signals_caught();
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].status == status)
            return codes[i].code;
    return CLI_FAILED;
}

void cli_name_verb(const char *verb)
{
    verb_name = verb;
}

static void say(const char *format, va_list args)
{
    fflush(stdout);
    fprintf(stderr, "%scupola%s%s:%s ", color(stderr, COLOR_RED), verb_name ? " " : "",
            verb_name ? verb_name : "", color(stderr, COLOR_OFF));
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
}

int cli_fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    return code;
}

int cli_usage(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    fprintf(stderr, "Try: cupola %s%s--help\n", verb_name ? verb_name : "", verb_name ? " " : "");
    return CLI_USAGE;
}

int cli_report(const cup_context *c)
{
    cup_status status = cup_error(c);
    if (status == CUP_OK)
        return CLI_OK;
    return cli_fail(cli_exit_of(status), "%s", c ? cup_error_text(c) : cup_status_text(status));
}

int cli_close_output(int code)
{
    errno = 0;
    bool failed = ferror(stdout);
    if ((fflush(stdout) || failed) && code == CLI_OK) {
        if (errno == EPIPE)
            return CLI_SIGNAL + SIGPIPE;
        return cli_fail(CLI_FILE, "stdout could not be written: %s",
                        errno ? strerror(errno) : "an earlier write failed");
    }
    return code;
}

#include "cli/common/exit.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/common/signals.h"
#include "cli/common/terminal.h"
#include "cupola/text.h"

#define MOST_WORDS 16384

static const char *verb_name;
static int output_errno; /* of the first write to stdout that failed */

static const struct {
    cup_status status;
    int code;
} codes[] = {
    {CUP_OK, CLI_OK},         {CUP_ARGUMENT, CLI_USAGE},
    {CUP_MEMORY, CLI_MEMORY}, {CUP_NO_DEVICE, CLI_NO_GPU},
    {CUP_IO, CLI_FILE},       {CUP_FORMAT, CLI_FILE},
    {CUP_PEER, CLI_PEER},
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

static void say(const char *words, const char *keep)
{
    char visible[MOST_WORDS];
    fflush(stdout);
    fprintf(stderr, "%scupola%s%s:%s %s\n", color(stderr, COLOR_RED), verb_name ? " " : "",
            verb_name ? verb_name : "", color(stderr, COLOR_OFF),
            cup_text_visible(words, keep, visible, sizeof visible));
}

static void say_format(const char *format, va_list args)
{
    char words[MOST_WORDS];
    vsnprintf(words, sizeof words, format, args);
    say(words, "");
}

int cli_fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say_format(format, args);
    va_end(args);
    return code;
}

int cli_usage(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say_format(format, args);
    va_end(args);
    fprintf(stderr, "Try: cupola %s%s--help\n", verb_name ? verb_name : "", verb_name ? " " : "");
    return CLI_USAGE;
}

int cli_fail_status(cup_status status, const char *of, const char *text)
{
    char words[MOST_WORDS];
    snprintf(words, sizeof words, "%s%s%s", of ? of : "", of ? ": " : "", text);
    say(words, status == CUP_COMPILE ? "\n\t" : "");
    return cli_exit_of(status);
}

int cli_report(const cup_context *c)
{
    cup_status status = cup_error(c);
    if (status == CUP_OK)
        return CLI_OK;
    return cli_fail_status(status, NULL, c ? cup_error_text(c) : cup_status_text(status));
}

const char *cli_shown(const char *name)
{
    static char ring[8][8192];
    static unsigned turn;
    return cup_text_visible(name, "", ring[turn++ % 8], sizeof ring[0]);
}

void cli_write(const void *bytes, size_t count)
{
    errno = 0;
    if ((fwrite(bytes, 1, count, stdout) < count || fflush(stdout)) && !output_errno)
        output_errno = errno;
}

void cli_keep_streams(void)
{
    /* The lowest free number is taken, and the null device opened the wrong way refuses all. */
    for (int handle = 0; handle < 3; handle++)
        if (fcntl(handle, F_GETFD) < 0 && errno == EBADF)
            open("/dev/null", handle ? O_RDONLY : O_WRONLY);
    signal(SIGXFSZ, SIG_IGN);
}

/* A write inside printf leaves no reason behind; that a pipe has no reader can still be seen. */
static int why_output_failed(int number)
{
    struct pollfd out = {.fd = STDOUT_FILENO};
    if (output_errno || number)
        return output_errno ? output_errno : number;
    return poll(&out, 1, 0) == 1 && out.revents & POLLERR ? EPIPE : 0;
}

int cli_close_output(int code)
{
    errno = 0;
    bool failed = fflush(stdout) || ferror(stdout);
    return failed && code == CLI_OK ? cli_output_failed(why_output_failed(errno)) : code;
}

int cli_output_failed(int why)
{
    if (why == EPIPE)
        return CLI_SIGNAL + SIGPIPE;
    return cli_fail(CLI_FILE, "stdout could not be written: %s",
                    why ? strerror(why) : "an earlier write failed");
}

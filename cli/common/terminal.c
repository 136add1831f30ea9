#include "cli/common/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const char *mode_text = "auto";

static const char *const sequences[] = {
    [COLOR_OFF] = "\033[0m",  [COLOR_BOLD] = "\033[1m",   [COLOR_DIM] = "\033[2m",
    [COLOR_RED] = "\033[31m", [COLOR_GREEN] = "\033[32m",
};

void color_mode(const char *mode)
{
    mode_text = mode;
}

bool terminal_is(FILE *stream)
{
    return isatty(fileno(stream));
}

bool terminal_redraws(FILE *stream)
{
    const char *term = getenv("TERM");
    return terminal_is(stream) && term && strcmp(term, "dumb");
}

static bool wants_color(FILE *stream)
{
    if (strcmp(mode_text, "auto"))
        return !strcmp(mode_text, "always");
    const char *no = getenv("NO_COLOR");
    return !(no && *no) && terminal_redraws(stream);
}

const char *color(FILE *stream, color_name name)
{
    return wants_color(stream) ? sequences[name] : "";
}

int terminal_width(FILE *stream)
{
    struct winsize size;
    if (!ioctl(fileno(stream), TIOCGWINSZ, &size) && size.ws_col >= 20)
        return size.ws_col;
    const char *columns = getenv("COLUMNS");
    long width = columns ? strtol(columns, NULL, 10) : 0;
    return width >= 20 && width <= 1000 ? (int)width : 80;
}

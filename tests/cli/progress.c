#include "cli/common/progress.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "test.h"

/* What a run of 1000 quick steps writes into a file. */
static void write_run(char *out, size_t size)
{
    FILE *file = tmpfile();
    EXPECT(file);
    cli_progress p;
    progress_begin(&p, file, "tokens", 1000, 0);
    for (int i = 1; i <= 1000; i++)
        progress_step(&p, i, i * 64, i == 1 ? 4.5 : i % 10 ? NAN : 2.25);
    progress_note(&p, "validation loss %.2f", 2.5);
    progress_end(&p);
    rewind(file);
    out[fread(out, 1, size - 1, file)] = 0;
    fclose(file);
}

TEST(progress_writes_few_plain_lines)
{
    char text[4096];
    write_run(text, sizeof text);
    int lines = 0;
    for (char *c = text; *c; c++)
        lines += *c == '\n';
    EXPECT(lines >= 3 && lines <= 5);
    EXPECT(!strchr(text, '\r') && !strchr(text, '\033'));
    EXPECT_CONTAINS(text, "step 1/1000  loss 4.5000");
    EXPECT_CONTAINS(text, "validation loss 2.50\n");
    EXPECT_CONTAINS(text, "step 1000/1000  loss 2.2500");
    EXPECT_CONTAINS(text, "tokens/s");
}

TEST(progress_knows_the_rate_of_steps_alone)
{
    FILE *file = tmpfile();
    EXPECT(file);
    cli_progress p;
    progress_begin(&p, file, "tokens", 8, 0);
    EXPECT(progress_steady_rate(&p) == 0);
    for (int i = 1; i <= 8; i++) {
        usleep(i == 1 ? 60000 : 2000);
        if (i == 5) {
            progress_note(&p, "validation loss %.2f", 2.5);
            usleep(60000);
        }
        progress_step(&p, i, i * 100, NAN);
    }
    EXPECT_INT(p.steady_units, 600);
    EXPECT(p.steady_time >= 6 * 0.002 && progress_steady_rate(&p) > 1.5 * progress_rate(&p));
    fclose(file);
}

TEST(progress_numbers)
{
    char out[32];
    EXPECT_TEXT(progress_number(0, out), "0");
    EXPECT_TEXT(progress_number(999, out), "999");
    EXPECT_TEXT(progress_number(999.6, out), "1.00k");
    EXPECT_TEXT(progress_number(12345, out), "12.3k");
    EXPECT_TEXT(progress_number(2.5e6, out), "2.50M");
    EXPECT_TEXT(progress_number(9.996e6, out), "10.0M");
    EXPECT_TEXT(progress_time(0.4, out), "0:00");
    EXPECT_TEXT(progress_time(62, out), "1:02");
    EXPECT_TEXT(progress_time(3723, out), "1:02:03");
    EXPECT_TEXT(progress_time(NAN, out), "?");
    EXPECT_TEXT(progress_time(1e300, out), "?");
}

TEST(progress_without_steps)
{
    FILE *file = fopen("/dev/null", "w");
    cli_progress p;
    progress_begin(&p, file, NULL, 0, 0);
    progress_end(&p);
    progress_begin(&p, file, NULL, 10, 10);
    progress_step(&p, 10, 0, NAN);
    progress_end(&p);
    EXPECT_NEAR(progress_rate(&p), 0, 0);
    fclose(file);
}

/* What a run draws on a terminal of that many columns. */
static void draw_run(int columns, char *out, size_t size)
{
    setenv("TERM", "xterm", 1);
    setenv("NO_COLOR", "1", 1);
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) || unlockpt(master))
        test_skip("there are no pseudo-terminals here");
    FILE *terminal = fopen(ptsname(master), "w");
    EXPECT(terminal);
    struct winsize window = {.ws_col = (unsigned short)columns, .ws_row = 24};
    EXPECT_INT(ioctl(master, TIOCSWINSZ, &window), 0);
    cli_progress p;
    progress_begin(&p, terminal, "tokens", 2000, 1000);
    for (int i = 1001; i <= 1500; i++)
        progress_step(&p, i, (i - 1000) * 64, 2.25);
    progress_note(&p, "validation loss %.2f", 2.5);
    progress_end(&p);
    size_t used = 0;
    fcntl(master, F_SETFL, O_NONBLOCK);
    for (ssize_t got; used < size - 1 && (got = read(master, out + used, size - 1 - used)) > 0;)
        used += (size_t)got;
    out[used] = 0;
    fclose(terminal);
    close(master);
}

TEST(progress_draws_a_bar)
{
    char text[4096];
    draw_run(100, text, sizeof text);
    EXPECT_CONTAINS(text,
                    "\rstep 1001/2000 [====================>                   ]  loss 2.2500");
    EXPECT_CONTAINS(text, "\r\033[Kvalidation loss 2.50\r\n\rstep 1500/2000 [");
    EXPECT_CONTAINS(text, " left\033[K\r\n");
    int draws = 0;
    for (char *c = text; (c = strstr(c, "\rstep")); c++)
        draws++;
    EXPECT(draws <= 5);
}

TEST(progress_fits_a_narrow_terminal)
{
    for (int columns = 20; columns <= 80; columns += 12) {
        char text[4096];
        draw_run(columns, text, sizeof text);
        for (char *line = strtok(text, "\r\n"); line; line = strtok(NULL, "\r\n")) {
            char *end = strstr(line, "\033[K");
            if (!strncmp(line, "step", 4) && end)
                EXPECT(end - line < columns);
        }
    }
}

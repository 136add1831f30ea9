#include "cli/common/plot.h"

#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "test.h"

/* Writes the plot, has it parsed where a parser is installed, and returns its text. */
static char *write_plot(const cli_plot *plot)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    char path[4300], out[4096], *text;
    snprintf(path, sizeof path, "%s/loss.svg", test_folder());
    EXPECT_INT(plot_write(c, plot, path), CUP_OK);
    EXPECT_INT(test_command(out, sizeof out,
                            "! command -v xmllint >/dev/null || xmllint --noout '%s'", path),
               0);
    EXPECT_INT(cup__file_read(NULL, path, 1 << 20, &text, NULL), CUP_OK);
    cup_context_free(c);
    return text;
}

TEST(plot_of_two_curves)
{
    enum { STEPS = 5000 };
    static double x[STEPS], y[STEPS];
    for (int i = 0; i < STEPS; i++) {
        x[i] = i + 1;
        y[i] = 1.5 + 3 * exp(-i / 400.0);
    }
    double vx[] = {0, 2500, 5000}, vy[] = {4.5, 1.6, NAN};
    cli_plot plot = {.title = "loss", .x_words = "step", .y_words = "loss", .curve_count = 2};
    plot.curves[0] = (cli_curve){"train", x, y, STEPS};
    plot.curves[1] = (cli_curve){"validation", vx, vy, 3};
    char *text = write_plot(&plot);
    EXPECT_CONTAINS(text, "train 1.500");
    EXPECT_CONTAINS(text, "validation 1.600");
    EXPECT_CONTAINS(text, ">5000</text>");
    EXPECT(!strstr(text, "nan") && strlen(text) < 20000);
    cup__free(text);
}

TEST(plot_of_nothing_and_of_one_point)
{
    double x = 3, y = 2;
    cli_plot plot = {.title = "<&\"\x01\xff", .x_words = "", .y_words = "", .curve_count = 2};
    plot.curves[0] = (cli_curve){"none", NULL, NULL, 0};
    plot.curves[1] = (cli_curve){"one", &x, &y, 1};
    char *text = write_plot(&plot);
    EXPECT_CONTAINS(text, "&#60;&#38;&#34;\xef\xbf\xbd\xef\xbf\xbd");
    EXPECT_CONTAINS(text, "one 2.000");
    cup__free(text);
}

TEST(plot_of_extreme_values)
{
    double x[] = {0, 1}, y[] = {-1e300, 1e300}, tiny[] = {1e-300, 2e-300};
    cli_plot plot = {.title = "", .x_words = "", .y_words = "", .curve_count = 1};
    plot.curves[0] = (cli_curve){"wide", x, y, 2};
    cup__free(write_plot(&plot));
    plot.curves[0].y = tiny;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(plot_write(c, &plot, "/dev/null/loss.svg"), CUP_IO);
    cup_context_free(c);
}

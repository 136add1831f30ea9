/* Curves as an SVG picture that reads well on a light and on a dark page. */
#ifndef CLI_PLOT_H
#define CLI_PLOT_H

#include <stddef.h>

#include "cupola/base.h"

#define PLOT_MOST_CURVES 4

/* Points with a coordinate that is not finite are left out. */
typedef struct cli_curve {
    const char *name;
    const double *x, *y;
    size_t count;
} cli_curve;

typedef struct cli_plot {
    const char *title, *x_words, *y_words;
    cli_curve curves[PLOT_MOST_CURVES];
    int curve_count;
} cli_plot;

/* Replaces the file as a whole; what fails is an error of the context. */
cup_status plot_write(cup_context *c, const cli_plot *plot, const char *path);

#endif

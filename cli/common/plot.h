/* Curves as an SVG picture that reads well on a light and on a dark page. */
#ifndef CLI_PLOT_H
#define CLI_PLOT_H

#include <stddef.h>

#include "cupola/train.h"

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

/* Replaces loss.svg of a run's folder, and loss.html, which a browser reads again by itself, by the
 * points so far, those before a resume included; `words` say how far it is. */
cup_status plot_run(cup_context *c, const cup_trainer *trainer, const char *folder,
                    const char *words);
/* The same of any run's points. */
cup_status plot_points(cup_context *c, const cup_training_point *points, int64_t count,
                       const char *folder, const char *words);

/* The validation loss of a run's first or last evaluation; NaN where there was none. */
double plot_validation(const cup_trainer *trainer, bool last);

/* What a token costs by the usual count: 6 for each weight that multiplies, which are all but those
 * of embeddings, and the head; 4 where they are frozen and have no gradients; and 12 layers x width
 * x context for attention, masked or not. */
double plot_flops_of_token(const cup_gpt_config *config, bool frozen);

#endif

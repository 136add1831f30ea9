/* What a network takes images for, counted, and as a page. */
#ifndef CLI_CLASSIFY_PAGE_H
#define CLI_CLASSIFY_PAGE_H

#include "cupola/classifier.h"

typedef struct classify_counts {
    const cup_classifier *m;
    const cup_images *images_of;
    const float *p; /* of each class for each image */
    int64_t images, classes;
    double top1, top5; /* parts of all images */
    int64_t *matrix;   /* [class, what was taken for it] */
    int64_t *said;     /* of each image the likeliest class */
} classify_counts;

/* Counts what was said; false when there is no memory. Free it either way. */
bool classify_count(classify_counts *n, const cup_classifier *m, const cup_images *images,
                    const float *p);
void classify_free(classify_counts *n);

/* The images of a class; the part of those taken for it that are of it, and of those of it that
 * are taken for it; NaN of none. */
int64_t classify_images_of(const classify_counts *n, int64_t class);
double classify_precision(const classify_counts *n, int64_t class);
double classify_recall(const classify_counts *n, int64_t class);

/* Such a part as a reader sees it, perhaps in `text`. */
#define CLASSIFY_PART 16
const char *classify_part(double part, char text[CLASSIFY_PART]);

/* Writes the page; what fails is an error of the context. */
cup_status classify_page(cup_context *c, const classify_counts *n, const char *path);

#endif

/* Small images of three classes and a run that learns to tell them apart. */
#ifndef TEST_TRAIN_CLASSIFIED_H
#define TEST_TRAIN_CLASSIFIED_H

#include "cupola/cupola.h"
#include "data/shapes.h"

enum { SIDE = SHAPES_SIDE, TRAIN = 120, KEPT = 40 };

typedef struct classified {
    cup_context *c;
    cup_images *train, *kept;
    cup_classification how;
} classified;

/* Where all is written; "": a folder of this test's own, once it begins. */
extern char classified_root[4096];

classified classified_begin(void);
void classified_end(classified *s);
/* Of a run of that name, until the next call. */
const char *classified_folder(const char *name);
/* Trains in it, in parts where it stops behind five steps and resumes; the points, at most 30. */
int64_t classified_run(classified *s, const char *name, bool stops, bool resumes,
                       cup_training_point *points);
/* Also of two that are no numbers. */
bool classified_same(double a, double b);

#endif

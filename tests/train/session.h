/* A small run with all that it needs, for tests. */
#ifndef TRAIN_SESSION_H
#define TRAIN_SESSION_H

#include "cupola/cupola.h"

#define MOST_POINTS 64

extern const cup_training tiny;

typedef struct session {
    cup_context *c;
    cup_corpus *corpus;
    cup_tokenizer *tokenizer;
    cup_data *data;
    cup_trainer *trainer;
    int64_t stop_at; /* steps, behind which its stop says so; -1: never */
} session;

const char *sample_text(void);
void begin(session *s, const cup_training *training, const char *text, const char *folder);
void end(session *s);
cup_status go(session *s);

int64_t points_of(const session *s, cup_training_point *out);
void expect_same_points(const cup_training_point *a, const cup_training_point *b, int64_t n);

#endif

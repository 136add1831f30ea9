/* The best ways to share a step among GPUs. */
#ifndef CLI_PLAN_SEARCH_H
#define CLI_PLAN_SEARCH_H

#include "cli/plan_split.h"

/* What is asked for of a split; what is not is looked for. */
typedef struct plan_wish {
    plan_split split; /* copies 0: any */
    int64_t batch;    /* 0: any */
    int64_t chunks;   /* of a stage; 0: any */
    int64_t zero;     /* negative: any */
    bool one;         /* policy of what is computed again, the training's; else any */
} plan_wish;

/* At most so many splits, the fastest that fit first; where none fits, those that need least.
 * Returns an exit code. */
int plan_search(plan_scene *s, const plan_wish *wish, plan_split *out, int most, int *count);

#endif

/* The host side of wgmma.cu, with its choices open to the benchmark and the tuner. */
#ifndef CUP_OPS_MATMUL_WGMMA_H
#define CUP_OPS_MATMUL_WGMMA_H

#include "ops/matmul/product_cuda.h"

/* How the kernel is built and laid over y. */
typedef struct cup__wgmma_plan {
    int tile_m, tile_n, consumers;
    bool pingpong;
    int stages;
    int cluster_m, cluster_n; /* one of them is 1 */
    int parts;                /* into which k is cut */
    int group;                /* rows of tiles that are walked together; 0: a good number */
    int cluster_k;            /* parts that meet in a cluster: as many as `parts`; 0: in memory */
    int64_t watchdog;         /* nanoseconds after which a wait ends in a trap; 0: never */
} cup__wgmma_plan;

const char *cup__product_wgmma_refuses(cup_context *c, const cup__product *p);
/* The same where one of its own plans must fit, which is what the function below goes by. */
const char *cup__product_wgmma_menu_refuses(cup_context *c, const cup__product *p);
cup_status cup__product_wgmma(cup__call *call, const cup__product *p);

/* The same, only where it is likely to be faster than cuBLASLt. */
const char *cup__product_wgmma_best_refuses(cup_context *c, const cup__product *p);

/* The plan by the shape alone, and the microseconds it is likely to take, 0 where none fits; what
 * cuBLASLt is likely to take; and the product by a given plan. */
double cup__wgmma_choose(const cup__product *p, int multiprocessors, cup__wgmma_plan *plan);
/* The same for convolutions, and for their sums over places, by blocks without clusters whose
 * columns are whole panels: k is cut into parts that the blocks add up, or into parts that are
 * matrices of their own. */
double cup__wgmma_choose_conv(const cup__product *p, int multiprocessors, cup__wgmma_plan *plan);
double cup__wgmma_choose_parts(const cup__product *p, int multiprocessors, cup__wgmma_plan *plan);
double cup__wgmma_choose_deep(const cup__product *p, int multiprocessors, cup__wgmma_plan *plan,
                              int *parts);
double cup__cublaslt_time(const cup__product *p, int multiprocessors);
cup_status cup__product_wgmma_by(cup_context *c, const cup__product *p,
                                 const cup__wgmma_plan *plan);
/* The same of a call's own memory, whose launch is kept in what is remembered of the call. */
cup_status cup__product_wgmma_kept(cup__call *call, const cup__product *p,
                                   const cup__wgmma_plan *plan);

/* The plan for a list of products, under which blocks that take tiles in turn are done first. */
const cup__wgmma_plan *cup__wgmma_choose_list(const cup__product *p, int count,
                                              int multiprocessors);
/* Whether the sums of each k-tile of codes leave the tensor cores. */
bool cup__wgmma_promotes(const cup__product *p);

/* The plans that are likely to be fastest, best first; returns how many. And whether a plan is one
 * of those that are ever chosen, whatever its parts. */
int cup__wgmma_candidates(const cup__product *p, int multiprocessors, cup__wgmma_plan *plans,
                          int most);
bool cup__wgmma_is_on_menu(const cup__wgmma_plan *plan);
/* The same as numbers for the tuner; false where no such plan is on the menu. */
extern const char *const cup__wgmma_plan_names[];
int cup__wgmma_plans(cup_context *c, const cup__product *p, cup__plan *out, int most);
bool cup__wgmma_plan_of(const cup__plan *numbers, cup__wgmma_plan *plan);
/* The plan, with no parts where none fits, and whether it is likely to be faster than cuBLASLt. */
bool cup__product_choice(cup_context *c, const cup__product *p, cup__wgmma_plan *plan);

/* Up to WGMMA_LIST products in one launch, for all of which the first function gives NULL with the
 * same directions in which elements of a and b are neighbours. The plan has neither parts nor
 * clusters. */
const char *cup__product_wgmma_list_refuses(cup_context *c, const cup__product *p, int a_along,
                                            int b_along);
cup_status cup__product_wgmma_list(cup_context *c, const cup__product *p, int count,
                                   const cup__wgmma_plan *plan);

/* Memory for the moments of y's columns, which that kernel makes by some plans; NULL where nobody
 * asked, or it does not (see tensor/moments.h). */
float *cup__wgmma_moments(cup_context *c, const cup__product *p, const cup__wgmma_plan *plan);
/* Whether registers have room for them beside the sums of a thread. */
bool cup__wgmma_measures(const cup__wgmma_plan *plan);

/* Why this plan cannot be used for the product; NULL when it can. */
const char *cup__wgmma_plan_refuses(const cup__product *p, const cup__wgmma_plan *plan);

#endif

/* The host side of the attention kernels for Hopper, with plans to choose from. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_WGMMA_H
#define CUP_OPS_ATTENTION_ATTENTION_WGMMA_H

#include "cuda/api.h"
#include "ops/attention/attention_launch.h"

/* The knobs of one kernel; see the heads of attention_sm90*.cu. */
typedef struct cup__hopper_plan {
    int warpgroups; /* of 64 rows; backward has 2 */
    int step;       /* positions walked over at a time */
    int stages;
    int blocks;       /* on a multiprocessor at a time; over 1 is for forward alone */
    int order;        /* forward: warpgroups start their products in turn */
    int64_t watchdog; /* nanoseconds after which a wait ends in a trap; 0: never */
} cup__hopper_plan;

typedef enum cup__hopper_kernel {
    CUP__HOPPER_FORWARD,
    CUP__HOPPER_QUERIES, /* of backward: dq, and numbers for the next */
    CUP__HOPPER_KEYS     /* dk and dv */
} cup__hopper_kernel;

/* Why a call is not for these kernels, forward, backward by two and by one pass; or NULL. */
const char *cup__hopper_refuses(const cup__attention *a);
const char *cup__hopper_grad_refuses(const cup__attention *a);
const char *cup__hopper_pass_refuses(const cup__attention *a);

/* The plan of a kernel for a call, and bytes of shared memory of a plan. */
cup__hopper_plan cup__hopper_choose(cup__hopper_kernel kernel, const cup__attention *a);
int64_t cup__hopper_bytes(cup__hopper_kernel kernel, const cup__hopper_plan *plan, int64_t size);

/* Tensor maps over heads of queries or keys: boxes of 64 features of some positions. */
cup_status cup__hopper_map_queries(const cup__attention *a, CUtensorMap *map, const cup__heads *h,
                                   int64_t box_positions);
cup_status cup__hopper_map_keys(const cup__attention *a, CUtensorMap *map, const cup__heads *h,
                                int64_t box_positions);

/* By given plans, on tensors that the kernels can take as they are; backward by two. */
cup_status cup__attention_hopper_by(cup__attention *a, const cup__hopper_plan *plan);
cup_status cup__attention_hopper_grad_by(cup__attention *a, const cup__hopper_plan *queries,
                                         const cup__hopper_plan *keys);

#endif

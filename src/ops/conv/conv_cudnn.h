/* Convolutions by NVIDIA's cuDNN, where it is installed and was measured to be the fastest. */
#ifndef CUP_OPS_CONV_CONV_CUDNN_H
#define CUP_OPS_CONV_CONV_CUDNN_H

#include "cuda/cudnn.h"
#include "ops/conv/conv.h"

#define CUP__CUDNN_RANKS 12   /* algorithms for a convolution that are offered, */
#define CUP__CUDNN_CONFIGS 16 /* of so many that it proposes */

enum { CUP__CUDNN_X, CUP__CUDNN_W, CUP__CUDNN_Y, CUP__CUDNN_ROLES };

/* All that its algorithms depend on. Filled from zeroed memory, so that it can be compared as
 * bytes. */
typedef struct cup__cudnn_key {
    int64_t size[CUP__CUDNN_ROLES][4], step[CUP__CUDNN_ROLES][4]; /* as forward has them */
    int64_t before[2], behind[2], stride[2], dilation[2];
    int32_t alignment[CUP__CUDNN_ROLES], dtype, part;
} cup__cudnn_key;

typedef struct cup__cudnn_plan {
    cudnnBackendDescriptor_t plan;
    int64_t workspace; /* bytes */
} cup__cudnn_plan;

/* A convolution as cuDNN knows it, and the algorithms that were looked at so far. */
typedef struct cup__cudnn_problem {
    struct cup__cudnn_problem *next;
    cup__cudnn_key key;
    cudnnStatus_t status; /* of its description */
    cudnnBackendDescriptor_t made[7 + CUP__CUDNN_CONFIGS], config[CUP__CUDNN_CONFIGS];
    int made_count, config_count, looked_at;
    cup__cudnn_plan plan[CUP__CUDNN_RANKS];
    int plan_count;
    char why[160]; /* nothing of it can be used; empty: it can */
} cup__cudnn_problem;

void cup__cudnn_describe(cup__cudnn_problem *p, cudnnHandle_t handle);
void cup__cudnn_forget(cup__cudnn_problem *p);

/* Its algorithm of that number, best guess first; NULL where there are fewer. */
const cup__cudnn_plan *cup__cudnn_plan_of(cup__cudnn_problem *p, cudnnHandle_t handle, int rank);

cudnnStatus_t cup__cudnn_execute(cudnnHandle_t handle, const cup__cudnn_plan *plan,
                                 void *const data[CUP__CUDNN_ROLES], void *workspace);

/* Writes why it cannot be used from now on, also to the log. */
void cup__cudnn_failed(char why[160], const char *doing, cudnnStatus_t status);

const char *cup__conv_cudnn_refuses(const cup__call *call);
cup_status cup__conv_cudnn(cup__call *call);
extern const cup__planning cup__conv_cudnn_planning;

#endif

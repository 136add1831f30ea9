/* The libraries found at run time, and their calls. A call may be made once its library has been
 * opened: cup__driver.cuInit(0). */
#ifndef CUP_CUDA_LOADER_H
#define CUP_CUDA_LOADER_H

#include "base/error.h"
#include "cuda/api.h"
#include "cuda/cublaslt.h"
#include "cuda/cudnn.h"
#include "cuda/cufft.h"
#include "cuda/cusolver.h"
#include "cuda/nccl.h"

#define NEED(result, name, exported, arguments) result(*name) arguments;
#define MAY NEED
typedef struct cup__driver_calls {
#include "cuda/driver.def"
} cup__driver_calls;
typedef struct cup__nvrtc_calls {
#include "cuda/nvrtc.def"
} cup__nvrtc_calls;
typedef struct cup__cublaslt_calls {
#include "cuda/cublaslt.def"
} cup__cublaslt_calls;
typedef struct cup__cudnn_calls {
#include "cuda/cudnn.def"
} cup__cudnn_calls;
typedef struct cup__cufft_calls {
#include "cuda/cufft.def"
} cup__cufft_calls;
typedef struct cup__cusolver_calls {
#include "cuda/cusolver.def"
} cup__cusolver_calls;
typedef struct cup__nccl_calls {
#include "cuda/nccl.def"
} cup__nccl_calls;
#undef NEED
#undef MAY

extern cup__driver_calls cup__driver;
extern cup__nvrtc_calls cup__nvrtc;
extern cup__cublaslt_calls cup__cublaslt;
extern cup__cudnn_calls cup__cudnn;
extern cup__cufft_calls cup__cufft;
extern cup__cusolver_calls cup__cusolver;
extern cup__nccl_calls cup__nccl;

typedef enum cup__library {
    CUP__LIBCUDA,
    CUP__LIBNVRTC,
    CUP__LIBCUBLASLT,
    CUP__LIBCUDNN,
    CUP__LIBCUFFT,
    CUP__LIBCUSOLVER,
    CUP__LIBNCCL,
    CUP__LIBRARIES
} cup__library;

/* Looks for the library the first time, in any thread; true when its calls can be used. */
bool cup__library_open(cup__library which);

/* The same with a failure that says where it was looked for, and the cure. */
cup_status cup__library_need(cup__error *error, cup__library which);

/* What is known of a library after it was looked for. */
typedef struct cup__library_report {
    const char *name;  /* "CUDA driver" */
    const char *needed_for;
    bool found;
    int version;       /* 13000 is 13.0; of the driver, the CUDA version it offers */
    char path[1024];   /* where it was found */
    char reason[1024]; /* or why not: the names and folders tried */
    const char *cure;
} cup__library_report;

const cup__library_report *cup__library_report_of(cup__library which);

#endif

#include "cuda/loader.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "base/log.h"
#include "base/shared.h"

cup__driver_calls cup__driver;
cup__nvrtc_calls cup__nvrtc;
cup__cublaslt_calls cup__cublaslt;
cup__cudnn_calls cup__cudnn;
cup__cufft_calls cup__cufft;
cup__cusolver_calls cup__cusolver;
cup__nccl_calls cup__nccl;

typedef struct symbol {
    const char *name;
    size_t offset;
    bool needed;
} symbol;

#define ROW(calls, call, exported, need) {exported, offsetof(calls, call), need},
#define NEED(result, name, exported, arguments) ROW(CALLS, name, exported, true)
#define MAY(result, name, exported, arguments) ROW(CALLS, name, exported, false)
static const symbol driver_symbols[] = {
#define CALLS cup__driver_calls
#include "cuda/driver.def"
#undef CALLS
    {0}};
static const symbol nvrtc_symbols[] = {
#define CALLS cup__nvrtc_calls
#include "cuda/nvrtc.def"
#undef CALLS
    {0}};
static const symbol cublaslt_symbols[] = {
#define CALLS cup__cublaslt_calls
#include "cuda/cublaslt.def"
#undef CALLS
    {0}};
static const symbol cudnn_symbols[] = {
#define CALLS cup__cudnn_calls
#include "cuda/cudnn.def"
#undef CALLS
    {0}};
static const symbol cufft_symbols[] = {
#define CALLS cup__cufft_calls
#include "cuda/cufft.def"
#undef CALLS
    {0}};
static const symbol cusolver_symbols[] = {
#define CALLS cup__cusolver_calls
#include "cuda/cusolver.def"
#undef CALLS
    {0}};
static const symbol nccl_symbols[] = {
#define CALLS cup__nccl_calls
#include "cuda/nccl.def"
#undef CALLS
    {0}};

#define MOST_NAMES 4

static const struct library {
    const char *name, *needed_for, *cure;
    cup__env variable;
    const char *names[MOST_NAMES]; /* newest first */
    int majors[MOST_NAMES];        /* the major version of CUDA a name belongs to; 0: any */
    const symbol *symbols;
    void *calls;
} libraries[CUP__LIBRARIES] = {
    [CUP__LIBCUDA] = {"CUDA driver", "any work on a GPU",
                      "install NVIDIA's driver (Debian and Ubuntu: package nvidia-driver); in a "
                      "container, start it with --gpus all; or set CUP_LIBCUDA",
                      CUP__ENV_LIBCUDA,
                      {"libcuda.so.1", "libcuda.so"},
                      {0, 0},
                      driver_symbols,
                      &cup__driver},
    [CUP__LIBNVRTC] = {"NVRTC", "compiling kernels that are not in the cache",
                       "install it from NVIDIA's repository (cuda-nvrtc) or with \"pip install "
                       "nvidia-cuda-nvrtc\", or set CUP_LIBNVRTC to its path",
                       CUP__ENV_LIBNVRTC,
                       {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"},
                       {13, 12, 11, 0},
                       nvrtc_symbols,
                       &cup__nvrtc},
    [CUP__LIBCUBLASLT] = {"cuBLASLt", "the fastest matrix products; without it our own run",
                          "install it from NVIDIA's repository (libcublas) or with \"pip install "
                          "nvidia-cublas\", or set CUP_LIBCUBLASLT to its path",
                          CUP__ENV_LIBCUBLASLT,
                          {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"},
                          {13, 12, 0},
                          cublaslt_symbols,
                          &cup__cublaslt},
    [CUP__LIBCUDNN] = {"cuDNN", "convolutions, where it was measured to be the fastest",
                       "install it from NVIDIA's repository (libcudnn9) or with \"pip install "
                       "nvidia-cudnn-cu12\", or set CUP_LIBCUDNN to its path",
                       CUP__ENV_LIBCUDNN,
                       {"libcudnn.so.9", "libcudnn.so"},
                       {0, 0},
                       cudnn_symbols,
                       &cup__cudnn},
    [CUP__LIBCUFFT] = {"cuFFT", "Fourier transforms of long lines",
                       "install it from NVIDIA's repository (libcufft) or with \"pip install "
                       "nvidia-cufft-cu12\", or set CUP_LIBCUFFT to its path",
                       CUP__ENV_LIBCUFFT,
                       {"libcufft.so.12", "libcufft.so.11", "libcufft.so"},
                       {13, 12, 0},
                       cufft_symbols,
                       &cup__cufft},
    [CUP__LIBCUSOLVER] = {"cuSOLVER", "factors of large matrices",
                          "install it from NVIDIA's repository (libcusolver) or with \"pip install "
                          "nvidia-cusolver-cu12\", or set CUP_LIBCUSOLVER to its path",
                          CUP__ENV_LIBCUSOLVER,
                          {"libcusolver.so.12", "libcusolver.so.11", "libcusolver.so"},
                          {13, 12, 0},
                          cusolver_symbols,
                          &cup__cusolver},
    [CUP__LIBNCCL] = {"NCCL", "tensors between GPUs",
                      "install it from NVIDIA's repository (libnccl2) or with \"pip install "
                      "nvidia-nccl-cu12\", or set CUP_LIBNCCL to its path; CUP_COMM=sockets does "
                      "without, slowly",
                      CUP__ENV_LIBNCCL,
                      {"libnccl.so.2", "libnccl.so"},
                      {0, 0},
                      nccl_symbols,
                      &cup__nccl},
};

/* Folders that are tried after the system's own search; * and ~ and $NAME are expanded. */
static const char *const folders[] = {
    "$CUDA_HOME/lib64",
    "$CUDA_PATH/lib64",
    "/usr/local/cuda/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/local/cuda-*/lib64",
    "$CONDA_PREFIX/lib",
    "$VIRTUAL_ENV/lib/python3*/site-packages/nvidia/*/lib",
    "$CONDA_PREFIX/lib/python3*/site-packages/nvidia/*/lib",
    "~/.local/lib/python3*/site-packages/nvidia/*/lib",
    "/usr/local/lib/python3*/site-packages/nvidia/*/lib",
    "/usr/local/lib/python3*/dist-packages/nvidia/*/lib",
    "/usr/lib/python3*/dist-packages/nvidia/*/lib",
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int states[CUP__LIBRARIES]; /* 0: not looked for, 1: found, -1: not there */
static cup__library_report reports[CUP__LIBRARIES];

/* Fills the table of calls; gives the name of a needed call that is missing, or NULL. */
static const char *bind(const struct library *l, void *handle)
{
    for (const symbol *s = l->symbols; s->name; s++) {
        void *found = dlsym(handle, s->name);
        if (!found && s->needed)
            return s->name;
        memcpy((char *)l->calls + s->offset, &found, sizeof found);
    }
    return NULL;
}

static void add_reason(cup__library_report *report, const char *words, const char *more)
{
    size_t used = strlen(report->reason);
    snprintf(report->reason + used, sizeof report->reason - used, "%s%s%s", used ? "; " : "", words,
             more);
}

/* Opens one file or soname. A file that is there but cannot be used leaves its reason. */
static bool try(cup__library which, const char *name)
{
    cup__library_report *report = &reports[which];
    if (strchr(name, '/') && access(name, F_OK))
        return false;
    void *handle = cup__shared_open(name);
    if (!handle) {
        const char *words = dlerror();
        if (words && !strstr(words, "No such file"))
            add_reason(report, words, "");
        return false;
    }
    const char *missing = bind(&libraries[which], handle);
    if (missing) {
        char words[256];
        snprintf(words, sizeof words, "%.160s is too old or not the right library: it lacks ",
                 name);
        add_reason(report, words, missing);
        return false;
    }
    struct link_map *map = NULL;
    bool known = dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name[0];
    snprintf(report->path, sizeof report->path, "%s", known ? map->l_name : name);
    return true;
}

/* Replaces a leading ~ or $NAME; false when the variable is not set. */
static bool expand(const char *folder, char *out, size_t size)
{
    char name[64];
    const char *rest = folder;
    if (*folder == '~') {
        snprintf(name, sizeof name, "HOME");
        rest = folder + 1;
    } else if (*folder == '$') {
        rest = folder + strcspn(folder, "/");
        snprintf(name, sizeof name, "%.*s", (int)(rest - folder - 1), folder + 1);
    } else {
        return (size_t)snprintf(out, size, "%s", folder) < size;
    }
    const char *value = getenv(name);
    return value && *value == '/' && (size_t)snprintf(out, size, "%s%s", value, rest) < size;
}

static bool try_folder(cup__library which, const char *folder, const char *name)
{
    char base[1024], pattern[1200];
    if (!expand(folder, base, sizeof base))
        return false;
    snprintf(pattern, sizeof pattern, "%s/%s", base, name);
    if (!strchr(pattern, '*'))
        return try(which, pattern);
    glob_t found;
    bool opened = false;
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc && !opened; i++)
            opened = try(which, found.gl_pathv[i]);
    globfree(&found);
    return opened;
}

static bool try_name(cup__library which, const char *name)
{
    if (try(which, name))
        return true;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (try_folder(which, folders[i], name))
            return true;
    return false;
}

/* A library of a newer major version than the driver's may be refused by it: those come last. */
static bool try_names(cup__library which)
{
    const struct library *l = &libraries[which];
    int version = 0;
    if (which != CUP__LIBCUDA && atomic_load(&states[CUP__LIBCUDA]) > 0)
        version = reports[CUP__LIBCUDA].version;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < MOST_NAMES && l->names[i]; i++) {
            bool fits = !version || l->majors[i] <= version / 1000;
            if (fits == (pass == 0) && try_name(which, l->names[i]))
                return true;
        }
    return false;
}

static void say_where(cup__library which)
{
    const struct library *l = &libraries[which];
    char words[900] = "";
    size_t used = 0;
    for (int i = 0; i < MOST_NAMES && l->names[i]; i++)
        used += (size_t)snprintf(words + used, sizeof words - used, "%s%s", i ? ", " : "",
                                 l->names[i]);
    used += (size_t)snprintf(words + used, sizeof words - used,
                             " not found by the system's loader or in ");
    for (size_t i = 0; i < sizeof folders / sizeof *folders && used < sizeof words; i++)
        used += (size_t)snprintf(words + used, sizeof words - used, "%s%s", i ? ", " : "",
                                 folders[i]);
    add_reason(&reports[which], words, "");
}

static int version_of(cup__library which)
{
    int major = 0, minor = 0;
    if (which == CUP__LIBCUDA)
        return cup__driver.cuDriverGetVersion(&major) == CUDA_SUCCESS ? major : 0;
    if (which == CUP__LIBNVRTC)
        return cup__nvrtc.nvrtcVersion(&major, &minor) == NVRTC_SUCCESS ? major * 1000 + minor * 10
                                                                        : 0;
    if (which == CUP__LIBNCCL) /* 22703 is 2.27.3 */
        return cup__nccl.ncclGetVersion(&major) == ncclSuccess
                   ? major / 10000 * 1000 + major % 10000 / 100 * 10
                   : 0;
    if (which == CUP__LIBCUFFT || which == CUP__LIBCUSOLVER) { /* 11405 is 11.4.5 */
        bool known = which == CUP__LIBCUFFT
                         ? cup__cufft.cufftGetVersion(&major) == CUFFT_SUCCESS
                         : cup__cusolver.cusolverGetVersion(&major) == CUSOLVER_STATUS_SUCCESS;
        return known ? major / 1000 * 1000 + major % 1000 / 100 * 10 : 0;
    }
    /* 130100 is 13.1 of the one, 91900 is 9.19 of the other. */
    size_t version = which == CUP__LIBCUDNN ? cup__cudnn.cudnnGetVersion()
                                            : cup__cublaslt.cublasLtGetVersion();
    return (int)(version / 10000 * 1000 + version % 10000 / 100 * 10);
}

static bool look(cup__library which)
{
    const struct library *l = &libraries[which];
    cup__library_report *report = &reports[which];
    const char *wish = cup__env_get(l->variable);
    report->name = l->name;
    report->needed_for = l->needed_for;
    report->cure = l->cure;
    if (!strcmp(wish, "off")) {
        add_reason(report, cup__env_name(l->variable), "=off");
        return false;
    }
    report->found = *wish ? try(which, wish) : try_names(which);
    if (!report->found && !report->reason[0] && *wish)
        add_reason(report, "there is no file ", wish);
    else if (!report->found && !report->reason[0])
        say_where(which);
    if (report->found) {
        report->reason[0] = 0;
        report->version = version_of(which);
    }
    return report->found;
}

bool cup__library_open(cup__library which)
{
    int state = atomic_load_explicit(&states[which], memory_order_acquire);
    if (state)
        return state > 0;
    if (which != CUP__LIBCUDA)
        cup__library_open(CUP__LIBCUDA);
    pthread_mutex_lock(&lock);
    state = atomic_load(&states[which]);
    if (!state) {
        state = look(which) ? 1 : -1;
        const cup__library_report *r = &reports[which];
        if (state > 0)
            cup__log(CUP__INFO, "%s %d.%d: %s", r->name, r->version / 1000, r->version % 1000 / 10,
                     r->path);
        else
            cup__log(CUP__INFO, "%s: %s", r->name, r->reason);
        atomic_store_explicit(&states[which], state, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return state > 0;
}

cup_status cup__library_need(cup__error *error, cup__library which)
{
    if (cup__library_open(which))
        return CUP_OK;
    const cup__library_report *report = &reports[which];
    return cup__fail(error, CUP_NO_DEVICE, "%s: %s; %s", report->name, report->reason,
                     report->cure);
}

const cup__library_report *cup__library_report_of(cup__library which)
{
    cup__library_open(which);
    return &reports[which];
}

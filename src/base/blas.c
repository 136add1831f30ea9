#include "base/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>

#include "base/env.h"
#include "base/log.h"
#include "base/shared.h"

static const char *const candidates[] = {"libopenblas.so.0", "libopenblas.so", "libmkl_rt.so.2",
                                         "libblis.so.4", "libblas.so.3"};

static cup__blas blas;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* dlsym gives an object pointer; C has no cast from it to a function pointer. */
static void symbol(void *library, const char *name, void *out)
{
    void *address = dlsym(library, name);
    memcpy(out, &address, sizeof address);
}

static void path_of(void *function, char *out, size_t size)
{
    Dl_info info;
    snprintf(out, size, "%s", dladdr(function, &info) && info.dli_fname ? info.dli_fname : "?");
}

/* One thread a call, by whichever of the known calls the library has. False for a library that
 * has none of them, which is the plain reference BLAS. */
static bool set_single_thread(void *library)
{
    static const char *const setters[] = {"openblas_set_num_threads", "MKL_Set_Num_Threads",
                                          "bli_thread_set_num_threads"};
    for (int i = 0; i < 3; i++) {
        void (*set)(int);
        symbol(library, setters[i], &set);
        if (set) {
            set(1);
            return true;
        }
    }
    return false;
}

/* An OpenBLAS that does not know this CPU falls back to kernels of half its width. */
static bool is_too_narrow(void *library)
{
    const char *(*core)(void);
    symbol(library, "openblas_get_corename", &core);
#if defined(__x86_64__)
    static const char *const wide[] = {"SkylakeX", "Cooperlake", "SapphireRapids", "Zen5"};
    for (size_t i = 0; core && i < sizeof wide / sizeof *wide; i++)
        if (!strcasecmp(core(), wide[i]))
            return false;
    return core && __builtin_cpu_supports("avx512f");
#else
    return false;
#endif
}

static bool take_lapack(void *library)
{
    symbol(library, "dpotrf_", &blas.dpotrf);
    symbol(library, "dgetrf_", &blas.dgetrf);
    symbol(library, "dgetrs_", &blas.dgetrs);
    symbol(library, "dgeqrf_", &blas.dgeqrf);
    symbol(library, "dorgqr_", &blas.dorgqr);
    symbol(library, "dgesdd_", &blas.dgesdd);
    return blas.dpotrf && blas.dgetrf && blas.dgetrs && blas.dgeqrf && blas.dorgqr && blas.dgesdd;
}

static const char too_narrow[] = "it does not use this CPU's AVX-512, as our own code does";

/* Why the library's products cannot be used; NULL when they can, and then `blas` is filled. */
static const char *take(void *library, bool named_by_user)
{
    const char *(*config)(void);
    symbol(library, "cblas_sgemm", &blas.sgemm);
    symbol(library, "cblas_dgemm", &blas.dgemm);
    if (!blas.sgemm || !blas.dgemm)
        return "it has no cblas interface";
    symbol(library, "openblas_get_config", &config);
    if (config && strstr(config(), "USE64BITINT"))
        return "it takes 64-bit integers";
    if (!set_single_thread(library) && !named_by_user)
        return "it is the reference BLAS, which is slower than our own code";
    if (!named_by_user && is_too_narrow(library))
        return too_narrow;
    return NULL;
}

static bool is_limited(int resource)
{
    struct rlimit limit;
    return !getrlimit(resource, &limit) && limit.rlim_cur != RLIM_INFINITY;
}

/* Whether the system hands out no more address space than it has memory for. */
static bool is_strict(void)
{
    FILE *file = fopen("/proc/sys/vm/overcommit_memory", "re");
    int mode = file ? fgetc(file) : '0';
    if (file)
        fclose(file);
    return mode == '2';
}

/* OpenBLAS tries an allocation that fails again for ever, while it is loaded and in any later
 * call: where one can fail without the whole machine being out of memory, no library is loaded.
 * NULL when there is no such limit. */
static const char *limit_in_the_way(void)
{
    if (is_limited(RLIMIT_AS))
        return "ulimit -v limits the address space, where OpenBLAS may hang";
    if (is_limited(RLIMIT_DATA))
        return "ulimit -d limits the memory, where OpenBLAS may hang";
    return is_strict() ? "vm.overcommit_memory is 2, with which OpenBLAS may hang" : NULL;
}

/* A library starts a thread for each core it sees, which are never used here; where a limit lets
 * it have none, OpenBLAS raises SIGINT. So it is loaded while this thread sees one core. */
static void *load(const char *name, const char **why)
{
    cpu_set_t all, one;
    *why = "it would start threads, and sched_setaffinity, which prevents that, fails";
    CPU_ZERO(&one);
    int core = sched_getcpu();
    if (core < 0 || core >= CPU_SETSIZE || sched_getaffinity(0, sizeof all, &all))
        return NULL;
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one))
        return NULL;
    void *library = cup__shared_open(name);
    if (!library)
        *why = dlerror();
    sched_setaffinity(0, sizeof all, &all);
    return library;
}

static void try_library(const char *name, bool named_by_user)
{
    const char *why;
    void *library = load(name, &why);
    if (library)
        why = take(library, named_by_user);
    /* Factors are made faster by narrow vectors than by our own code, unlike products. */
    if (!why || (why == too_narrow && !blas.lapack))
        blas.lapack = take_lapack(library);
    if (!why) {
        char path[240];
        path_of(*(void **)(void *)&blas.sgemm, path, sizeof path);
        snprintf(blas.text, sizeof blas.text, "%.240s%s", path,
                 blas.lapack ? ", with LAPACK" : ", without LAPACK");
        blas.found = true;
        return;
    }
    if ((library || named_by_user) && !blas.text[0])
        snprintf(blas.text, sizeof blas.text, "%s%.100s: %.120s; our own code is used%s",
                 named_by_user ? "CUP_BLAS=" : "", name, why,
                 blas.lapack ? ", but for its LAPACK" : "");
}

static void find(void)
{
    const char *wanted = cup__env_get(CUP__ENV_BLAS), *limit = limit_in_the_way();
    if (!strcmp(wanted, "off")) {
        snprintf(blas.text, sizeof blas.text, "turned off by CUP_BLAS=off; our own code is used");
    } else if (limit) {
        snprintf(blas.text, sizeof blas.text, "not loaded: %s; our own code is used", limit);
    } else if (*wanted) {
        try_library(wanted, true);
    } else {
        for (size_t i = 0; i < sizeof candidates / sizeof *candidates && !blas.found; i++)
            try_library(candidates[i], false);
    }
    if (!blas.text[0])
        snprintf(blas.text, sizeof blas.text,
                 "none found (libopenblas.so.0, ...); our own code is used; install libopenblas0");
    cup__log(CUP__INFO, "BLAS: %s", blas.text);
}

const cup__blas *cup__blas_get(void)
{
    pthread_once(&once, find);
    return &blas;
}

/* Where libraries are looked for, and what is said when they are not there. */
#include "cuda/loader.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/blas.h"
#include "base/file.h"
#include "support.h"
#include "test.h"

/* A toolkit's folder with NVRTC of these names, and no other wish. */
static void make_toolkit(const char *const *names)
{
    char path[4500], target[4500], here[4096];
    const char *folder = fake_begin();
    unsetenv("CUP_LIBNVRTC");
    setenv("CUDA_HOME", folder, 1);
    snprintf(path, sizeof path, "%s/lib64", folder);
    EXPECT_INT(mkdir(path, 0777), 0);
    EXPECT(getcwd(here, sizeof here) != NULL);
    const char *build = test_build();
    snprintf(target, sizeof target, "%s%s%s/fake/libnvrtc.so", *build == '/' ? "" : here,
             *build == '/' ? "" : "/", build);
    for (; *names; names++) {
        snprintf(path, sizeof path, "%s/lib64/%s", folder, *names);
        EXPECT_INT(symlink(target, path), 0);
    }
}

static const cup__library_report *nvrtc(void)
{
    return cup__library_report_of(CUP__LIBNVRTC);
}

/* An NVRTC newer than the driver makes code the driver may refuse. */
TEST(loader_takes_the_drivers_version)
{
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", NULL};
    setenv("FAKE_CUDA_DRIVER", "12020", 1);
    make_toolkit(names);
    EXPECT(nvrtc()->found);
    EXPECT_CONTAINS(nvrtc()->path, "libnvrtc.so.12");
    EXPECT_INT(cup__library_report_of(CUP__LIBCUDA)->version, 12020);
}

TEST(loader_takes_a_newer_version_last)
{
    static const char *const names[] = {"libnvrtc.so.13", NULL};
    setenv("FAKE_CUDA_DRIVER", "11080", 1);
    make_toolkit(names);
    EXPECT(nvrtc()->found);
    EXPECT(nvrtc()->version >= 11000);
}

TEST(loader_names_what_is_wrong)
{
    const char *folder = fake_begin();
    char path[4500];
    fake_source(folder, "libnvrtc.so.13", "this is no library, whatever its name says");
    snprintf(path, sizeof path, "%s/libnvrtc.so.13", folder);
    setenv("CUP_LIBNVRTC", path, 1);
    setenv("CUP_LIBCUBLASLT", "libm.so.6", 1);
    EXPECT(!nvrtc()->found);
    EXPECT_CONTAINS(nvrtc()->reason, path);
    EXPECT_CONTAINS(nvrtc()->cure, "CUP_LIBNVRTC");
    const cup__library_report *cublaslt = cup__library_report_of(CUP__LIBCUBLASLT);
    EXPECT(!cublaslt->found);
    EXPECT_CONTAINS(cublaslt->reason, "it lacks cublasLt");
    cup__error error = {0};
    EXPECT(cup__library_need(&error, CUP__LIBCUBLASLT) != CUP_OK);
    EXPECT_CONTAINS(error.text, "cuBLASLt: ");
}

/* Handlers that it registered as it was loaded still have their code. */
TEST(loader_keeps_what_is_of_no_use)
{
    static const char *const names[] = {"libnvrtc.so", "libcuda.so.1"};
    char here[4096], path[2][4500];
    EXPECT(getcwd(here, sizeof here) != NULL);
    const char *build = test_build();
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s%s%s/fake/%s", *build == '/' ? "" : here,
                 *build == '/' ? "" : "/", build, names[i]);
        EXPECT(!dlopen(path[i], RTLD_NOW | RTLD_NOLOAD));
    }
    setenv("CUP_LIBCUDA", "off", 1);
    setenv("CUP_LIBCUBLASLT", path[0], 1);
    setenv("CUP_BLAS", path[1], 1);
    EXPECT(!cup__library_open(CUP__LIBCUBLASLT));
    EXPECT(!cup__blas_get()->found);
    EXPECT_CONTAINS(cup__blas_get()->text, "cblas");
    for (int i = 0; i < 2; i++)
        EXPECT(dlopen(path[i], RTLD_NOW | RTLD_NOLOAD) != NULL);
}

static const cup__library_report *cudnn_of(const char *name)
{
    char path[4500];
    snprintf(path, sizeof path, "%s/fake/%s", test_build(), name);
    setenv("CUP_LIBCUDA", "off", 1);
    setenv("CUP_LIBCUDNN", path, 1);
    return cup__library_report_of(CUP__LIBCUDNN);
}

TEST(loader_takes_cudnn)
{
    const cup__library_report *report = cudnn_of("libcudnn.so");
    EXPECT_TEXT(report->reason, "");
    EXPECT(report->found);
    EXPECT_INT(report->version, 9190);
}

TEST(loader_refuses_an_old_cudnn)
{
    const cup__library_report *report = cudnn_of("libcudnn8.so");
    EXPECT(!report->found);
    EXPECT_CONTAINS(report->reason, "is too old or not the right library: it lacks cudnnGetLast");
    EXPECT_CONTAINS(report->cure, "CUP_LIBCUDNN");
}

/* The version of each of them, and what is said where a variable names another library. */
TEST(loader_takes_cufft_and_cusolver)
{
    char path[4500];
    snprintf(path, sizeof path, "%s/fake/libcufft.so", test_build());
    setenv("CUP_LIBCUDA", "off", 1);
    setenv("CUP_LIBCUFFT", path, 1);
    setenv("CUP_LIBCUSOLVER", path, 1);
    EXPECT_INT(cup__library_report_of(CUP__LIBCUFFT)->version, 11040);
    const cup__library_report *report = cup__library_report_of(CUP__LIBCUSOLVER);
    EXPECT(!report->found);
    EXPECT_CONTAINS(report->reason, "is too old or not the right library: it lacks cusolverGet");
    EXPECT_CONTAINS(report->cure, "CUP_LIBCUSOLVER");
}

TEST(loader_takes_cusolver)
{
    char path[4500];
    snprintf(path, sizeof path, "%s/fake/libcusolver.so", test_build());
    setenv("CUP_LIBCUDA", "off", 1);
    setenv("CUP_LIBCUSOLVER", path, 1);
    EXPECT_INT(cup__library_report_of(CUP__LIBCUSOLVER)->version, 11070);
}

TEST(loader_off)
{
    setenv("CUP_LIBCUDA", "off", 1);
    setenv("CUP_LIBCUBLASLT", "off", 1);
    EXPECT(!cup__library_open(CUP__LIBCUDA));
    EXPECT_TEXT(cup__library_report_of(CUP__LIBCUDA)->reason, "CUP_LIBCUDA=off");
    EXPECT_TEXT(cup__library_report_of(CUP__LIBCUBLASLT)->reason, "CUP_LIBCUBLASLT=off");
    char why[512];
    EXPECT_INT(cup__cuda_count(why), 0);
    EXPECT_CONTAINS(why, "CUP_LIBCUDA=off");
}

TEST(loader_tells_where_it_looked)
{
    unsetenv("CUP_LIBCUDA");
    const cup__library_report *driver = cup__library_report_of(CUP__LIBCUDA);
    if (driver->found)
        test_skip("this machine has a driver");
    EXPECT_CONTAINS(driver->reason, "libcuda.so.1, libcuda.so");
    EXPECT_CONTAINS(driver->reason, "/usr/lib/wsl/lib");
    EXPECT(!cup__library_open(CUP__LIBCUDA)); /* and not again */
}

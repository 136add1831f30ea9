/* Compiling, the cache on disk and packs: with the fake NVRTC, and with the real one where it is. */
#include "cuda/kernels.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "support.h"
#include "test.h"

static const char *folder;

static void begin(void)
{
    char path[4400];
    folder = fake_begin();
    snprintf(path, sizeof path, "%s/compiled", folder);
    setenv("FAKE_NVRTC_COUNT", path, 1);
}

/* Compilations of all processes so far. */
static int compiled(void)
{
    char path[4400];
    struct stat status;
    snprintf(path, sizeof path, "%s/compiled", folder);
    return stat(path, &status) ? 0 : (int)status.st_size;
}

static cup_status get(cup__error *error, const char *file, int64_t knob)
{
    cup__knob knobs[] = {{"CUP_T", knob}};
    cup__kernel_request request = {file, knobs, 1};
    const cup__code *code;
    return cup__code_get(error, "sm_90a", &request, &code);
}

/* Runs a body in a process of its own; 0 when it gives true. */
static int child(bool (*body)(void))
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(body() ? 0 : 1);
    int status;
    EXPECT(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static bool get_add(void)
{
    return get(NULL, "add.cu", 3) == CUP_OK;
}

static int files_ending(const char *end)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/cache", folder);
    cup__names names;
    int count = 0;
    if (cup__folder_list(NULL, path, &names) != CUP_OK)
        return 0;
    for (size_t i = 0; i < names.count; i++)
        count += strstr(names.name[i], end) != NULL;
    cup__names_free(&names);
    return count;
}

TEST(kernels_get_the_same)
{
    begin();
    cup__error error = {0};
    cup__cuda *gpu = fake_open(&error);
    char file[] = "add.cu", entry[] = "fake_add", name[] = "VEC";
    cup__knob knobs[] = {{"CUP_T", 3}, {"VEC", 8}}, turned[] = {{name, 8}, {"CUP_T", 3}};
    cup__knob others[] = {{"CUP_T", 3}, {"VEC", 4}};
    cup__kernel *kernel = cup__kernel_get(gpu, "add.cu", "fake_add", knobs, 2);
    EXPECT(kernel != NULL);
    for (int i = 0; i < 3; i++) {
        EXPECT(cup__kernel_get(gpu, "add.cu", "fake_add", knobs, 2) == kernel);
        EXPECT(cup__kernel_get(gpu, file, entry, turned, 2) == kernel);
    }
    EXPECT_INT(compiled(), 1);
    EXPECT(cup__kernel_get(gpu, "add.cu", "fake_add", others, 2) != kernel);
    EXPECT(cup__kernel_get(gpu, "add.cu", "fake_add", knobs, 1) != kernel);
    EXPECT_INT(compiled(), 3);
    /* Many, so that the table grows. */
    cup__kernel *many[300];
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 300; i++) {
            cup__knob knob = {"CUP_T", 100 + i};
            cup__kernel *got = cup__kernel_get(gpu, "add.cu", "fake_add", &knob, 1);
            EXPECT(got && (!round || got == many[i]));
            many[i] = got;
        }
    EXPECT(cup__kernel_get(gpu, "add.cu", "fake_add", knobs, 2) == kernel);
    gpu->device.calls->close(&gpu->device);
    fake_expect_nothing_left();
}

TEST(kernels_failures_are_told)
{
    begin();
    cup__error error = {0};
    cup__cuda *gpu = fake_open(&error);
    EXPECT(!cup__kernel_get(gpu, "nothing.cu", "x", NULL, 0));
    EXPECT_INT(error.status, CUP_COMPILE);
    EXPECT_CONTAINS(error.text, "there is no kernel source nothing.cu");
    cup__error_clear(&error);
    EXPECT(!cup__kernel_get(gpu, "add.cu", "nothing", NULL, 0));
    EXPECT_CONTAINS(error.text, "add.cu has no entry nothing");
    cup__error_clear(&error);
    fake_source(folder, "bad.cu", "#error");
    for (int i = 0; i < 3; i++) {
        EXPECT(!cup__kernel_get(gpu, "bad.cu", "x", NULL, 0));
        EXPECT_INT(error.status, CUP_COMPILE);
        EXPECT_CONTAINS(error.text, "x.cu(1): error: asked for");
        cup__error_clear(&error);
    }
    EXPECT_INT(compiled(), 2); /* what does not compile is not tried again */
    gpu->device.calls->close(&gpu->device);
    setenv("CUP_KERNELS", "/nowhere", 1);
    EXPECT(get(&error, "bad.cu", 0) != CUP_OK);
    EXPECT_CONTAINS(error.text, "CUP_KERNELS=/nowhere is not a folder");
}

static void expect_unfit(const char *report, const char *part)
{
    static int64_t knob;
    cup__error error = {0};
    setenv("FAKE_NVRTC_REPORT", report, 1);
    EXPECT_INT(get(&error, "add.cu", ++knob), CUP_COMPILE);
    EXPECT_CONTAINS(error.text, part);
}

TEST(kernels_reports_are_judged)
{
    begin();
    static const char spilled[] =
        "ptxas info    : Function properties for k\n"
        "    8 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n";
    expect_unfit(spilled, "8 bytes spill stores");
    expect_unfit("ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions "
                 "are serialized due to x in function 'k'\n",
                 "wgmma");
    expect_unfit("ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; y\n",
                 "setmaxnreg");
    setenv("FAKE_NVRTC_REPORT",
           "    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n", 1);
    EXPECT_INT(get(NULL, "add.cu", 50), CUP_OK);
    setenv("FAKE_NVRTC_REPORT", spilled, 1);
    fake_source(folder, "may.cu", "/* CUP_SPILLS_ALLOWED: registers are short. */\n" FAKE_ADD);
    EXPECT_INT(get(NULL, "may.cu", 50), CUP_OK);
}

TEST(kernels_cache_is_used)
{
    begin();
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(compiled(), 1);
    EXPECT_INT(files_ending(".cubin"), 1);
    /* A changed text, or one that it includes, is another kernel. */
    fake_source(folder, "add.cu", "#include \"more.cuh\"\n" FAKE_ADD);
    fake_source(folder, "more.cuh", "  # include \"deep.cuh\"\n");
    fake_source(folder, "deep.cuh", "// 1\n");
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(compiled(), 2);
    fake_source(folder, "deep.cuh", "// 2\n");
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(compiled(), 3);
    /* So is one of another compiler, but without a compiler any will do. */
    setenv("FAKE_NVRTC_MAJOR", "12", 1);
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(compiled(), 4);
    setenv("CUP_LIBNVRTC", "off", 1);
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(compiled(), 4);
    setenv("CUP_CACHE", "off", 1);
    cup__error error = {0};
    EXPECT_INT(get(&error, "add.cu", 3), CUP_COMPILE);
    EXPECT_CONTAINS(error.text, "NVRTC is missing: CUP_LIBNVRTC=off");
}

TEST(kernels_cache_off)
{
    begin();
    setenv("CUP_CACHE", "off", 1);
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(compiled(), 2);
    EXPECT_INT(files_ending(""), 0);
    unsetenv("CUP_CACHE");
    unsetenv("HOME");
    unsetenv("XDG_CACHE_HOME");
    EXPECT_INT(child(get_add), 0);
    char *path;
    EXPECT_INT(cup__cache_folder(NULL, &path), CUP_OK);
    EXPECT(path == NULL);
    setenv("XDG_CACHE_HOME", folder, 1);
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(compiled(), 4);
}

static char *only_file(void)
{
    cup__cached_list list;
    EXPECT_INT(cup__cache_list(NULL, &list), CUP_OK);
    EXPECT_INT(list.count, 1);
    char *path = cup__strdup(list.items[0].path);
    cup__cache_list_free(&list);
    return path;
}

TEST(kernels_cache_survives_damage)
{
    begin();
    EXPECT_INT(child(get_add), 0);
    char *path = only_file(), *bytes;
    size_t size;
    EXPECT_INT(cup__file_read(NULL, path, 1 << 20, &bytes, &size), CUP_OK);
    int before = compiled();
    for (int i = 0; i < 40; i++) {
        char *damaged = cup__malloc(size + 1);
        memcpy(damaged, bytes, size);
        size_t at = (size_t)(test_random() % size), length = size;
        if (i % 3 == 0)
            length = at;
        else if (i % 3 == 1)
            damaged[at] ^= (char)(1 << test_random() % 8);
        else
            damaged[length++] = 'x';
        EXPECT_INT(cup__file_write(NULL, path, damaged, length), CUP_OK);
        EXPECT_INT(child(get_add), 0);
        EXPECT_INT(compiled(), ++before);
        cup__free(damaged);
    }
    cup__free(bytes);
    cup__free(path);
}

/* No flipped bit and no cut goes unnoticed. */
TEST(kernels_code_is_checked)
{
    cup__text text = {0};
    char content[] = "machine code";
    cup__code code = {content, sizeof content}, got;
    cup__code_name name = {"gelu.cu", "sm_90a", "CUP_T=3", 13000, {1, 2}};
    EXPECT_INT(cup__code_encode(NULL, &name, &code, &text), CUP_OK);
    EXPECT_CONTAINS(text.bytes, "cupola kernel\n");
    EXPECT(cup__code_decode(text.bytes, text.length, &name.key, &got));
    EXPECT(got.size == sizeof content && !memcmp(got.bytes, content, sizeof content));
    cup__free(got.bytes);
    cup__key other = {1, 3};
    EXPECT(!cup__code_decode(text.bytes, text.length, &other, &got));
    for (size_t i = 0; i < text.length; i++) {
        EXPECT(!cup__code_decode(text.bytes, i, &name.key, &got));
        for (int bit = 0; bit < 8; bit++) {
            text.bytes[i] ^= (char)(1 << bit);
            EXPECT(!cup__code_decode(text.bytes, text.length, &name.key, &got));
            text.bytes[i] ^= (char)(1 << bit);
        }
    }
    cup__text_free(&text);
}

TEST(kernels_cache_race)
{
    begin();
    setenv("FAKE_NVRTC_MS", "100", 1);
    pid_t pids[6];
    for (int i = 0; i < 6; i++)
        if ((pids[i] = fork()) == 0)
            _exit(get_add() && get(NULL, "add.cu", 4) == CUP_OK ? 0 : 1);
    for (int i = 0; i < 6; i++) {
        int status;
        EXPECT(waitpid(pids[i], &status, 0) == pids[i]);
        EXPECT_INT(status, 0);
    }
    EXPECT_INT(files_ending(".cubin"), 2);
    EXPECT_INT(files_ending(".tmp."), 0);
    int before = compiled();
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(compiled(), before);
}

TEST(kernels_cache_cannot_be_written)
{
    begin();
    setenv("CUP_CACHE", "/proc/cupola", 1);
    EXPECT_INT(child(get_add), 0);
    /* A folder that may be read only. */
    char path[4400];
    snprintf(path, sizeof path, "%s/cache", folder);
    setenv("CUP_CACHE", path, 1);
    EXPECT_INT(child(get_add), 0);
    if (geteuid() == 0)
        test_skip("root may write to read-only folders");
    EXPECT_INT(chmod(path, 0555), 0);
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(compiled(), 2);
    EXPECT_INT(get(NULL, "add.cu", 4), CUP_OK);
    EXPECT_INT(files_ending(""), 1);
    chmod(path, 0755);
}

static bool get_add_limited(void)
{
    struct rlimit limit = {100, 100};
    signal(SIGXFSZ, SIG_IGN);
    unsetenv("FAKE_NVRTC_COUNT");
    return setrlimit(RLIMIT_FSIZE, &limit) == 0 && get_add();
}

TEST(kernels_cache_disk_full)
{
    begin();
    EXPECT_INT(child(get_add_limited), 0);
    EXPECT_INT(files_ending(""), 0);
}

static void set_used(const char *path, time_t seconds)
{
    struct timespec times[2] = {{.tv_sec = seconds}, {.tv_nsec = UTIME_OMIT}};
    EXPECT_INT(utimensat(AT_FDCWD, path, times, 0), 0);
}

TEST(kernels_cache_is_bounded)
{
    begin();
    for (int i = 0; i < 10; i++)
        EXPECT_INT(get(NULL, "add.cu", i), CUP_OK);
    cup__cached_list list;
    EXPECT_INT(cup__cache_list(NULL, &list), CUP_OK);
    EXPECT_INT(list.count, 10);
    int64_t size = list.items[0].bytes;
    for (size_t i = 0; i < list.count; i++) {
        EXPECT_CONTAINS(list.items[i].words, "file: add.cu\n");
        EXPECT_CONTAINS(list.items[i].words, "arch: sm_90a\n");
        EXPECT_CONTAINS(list.items[i].words, "knobs: CUP_T=");
        set_used(list.items[i].path, (time_t)(1000000 + (i * 7) % 10));
    }
    char most[32];
    snprintf(most, sizeof most, "%lld", (long long)(size * 4 + 50));
    setenv("CUP_CACHE_MAX", most, 1);
    EXPECT_INT(get(NULL, "add.cu", 10), CUP_OK);
    EXPECT(files_ending(".cubin") <= 4);
    /* Those that stay were used last. */
    for (size_t i = 0; i < list.count; i++)
        EXPECT(cup__file_exists(list.items[i].path) == ((i * 7) % 10 >= 7));
    cup__cache_list_free(&list);
}

TEST(kernels_clear)
{
    begin();
    int64_t files, bytes;
    EXPECT_INT(cup__cache_clear(NULL, &files, &bytes), CUP_OK);
    EXPECT_INT(files, 0);
    for (int i = 0; i < 3; i++)
        EXPECT_INT(get(NULL, "add.cu", i), CUP_OK);
    char path[4400];
    snprintf(path, sizeof path, "%s/cache/mine.txt", folder);
    EXPECT_INT(cup__file_write(NULL, path, "x", 1), CUP_OK);
    EXPECT_INT(cup__cache_clear(NULL, &files, &bytes), CUP_OK);
    EXPECT_INT(files, 3);
    EXPECT(bytes > 300);
    EXPECT_INT(files_ending(""), 1);
}

static char pack_path[4400];

static bool write_pack(void)
{
    int count;
    return get_add() && get(NULL, "add.cu", 4) == CUP_OK &&
           cup__kernels_pack(NULL, pack_path, &count) == CUP_OK && count == 2;
}

TEST(kernels_pack)
{
    begin();
    snprintf(pack_path, sizeof pack_path, "%s/all.pack", folder);
    EXPECT_INT(child(write_pack), 0);
    EXPECT_INT(compiled(), 2);
    setenv("CUP_CACHE", "off", 1);
    setenv("CUP_KERNEL_PACK", pack_path, 1);
    setenv("CUP_LIBNVRTC", "off", 1);
    EXPECT_INT(child(get_add), 0);
    /* Whatever is damaged, nothing wrong is loaded: it is compiled anew or told. */
    char *bytes;
    size_t size;
    EXPECT_INT(cup__file_read(NULL, pack_path, 1 << 20, &bytes, &size), CUP_OK);
    for (int i = 0; i < 60; i++) {
        size_t at = i < 8 ? (size_t)i * 8 : (size_t)(test_random() % size);
        char old = bytes[at];
        bytes[at] ^= (char)(1 << test_random() % 8);
        EXPECT_INT(cup__file_write(NULL, pack_path, bytes, i % 4 ? size : at), CUP_OK);
        EXPECT(child(get_add) <= 1);
        bytes[at] = old;
    }
    cup__free(bytes);
}

typedef struct seen {
    int calls, failures, most;
} seen;

static void note(void *user, int done, int count, const cup__kernel_request *request,
                 const char *failure)
{
    seen *s = user;
    EXPECT_INT(done, ++s->calls);
    EXPECT(request->file != NULL);
    s->most = count;
    s->failures += failure != NULL;
}

TEST(kernels_prepare)
{
    begin();
    fake_source(folder, "bad.cu", "#error");
    cup__knob knobs[40];
    cup__kernel_request requests[40];
    for (int i = 0; i < 40; i++) {
        knobs[i] = (cup__knob){"CUP_T", i / 2}; /* each twice */
        requests[i] = (cup__kernel_request){i == 17 ? "bad.cu" : "add.cu", &knobs[i], 1};
    }
    seen s = {0};
    cup__error error = {0};
    EXPECT_INT(cup__kernels_prepare(&error, "sm_80", requests, 40, 8, note, &s), CUP_COMPILE);
    EXPECT_CONTAINS(error.text, "bad.cu for sm_80 (CUP_T=8) does not compile");
    EXPECT_INT(s.calls, 40);
    EXPECT_INT(s.most, 40);
    EXPECT_INT(s.failures, 1);
    EXPECT_INT(compiled(), 21);
    cup__error_clear(&error);
    EXPECT_INT(cup__kernels_prepare(&error, "nonsense", requests, 1, 1, NULL, NULL), CUP_ARGUMENT);
    EXPECT_CONTAINS(error.text, "architecture \"nonsense\" is unknown");
}

static void *many_gets(void *user)
{
    for (int i = 0; i < 60; i++)
        if (get(NULL, "add.cu", (i + (int)(intptr_t)user) % 12) != CUP_OK)
            return user;
    return NULL;
}

TEST(kernels_threads)
{
    begin();
    pthread_t threads[8];
    void *failed;
    for (intptr_t i = 0; i < 8; i++)
        EXPECT_INT(pthread_create(&threads[i], NULL, many_gets, (void *)(i + 1)), 0);
    for (int i = 0; i < 8; i++) {
        EXPECT_INT(pthread_join(threads[i], &failed), 0);
        EXPECT(!failed);
    }
    EXPECT_INT(compiled(), 12);
}

static void *own_gpu(void *user)
{
    cup__error error = {0};
    cup__device *d;
    uint32_t number = (uint32_t)(uintptr_t)user, one = 1;
    void *memory, *failed = user;
    if (cup__cuda_open(&error, 0, 0, &d) != CUP_OK)
        return failed;
    cup__cuda *gpu = cup__cuda_of(d);
    if (d->calls->allocate(d, 4, "number", &memory) == CUP_OK &&
        d->calls->write(d, memory, &number, 4) == CUP_OK) {
        for (int i = 0; i < 50; i++) {
            cup__kernel *kernel = cup__kernel_get(gpu, "add.cu", "fake_add", NULL, 0);
            cup__grid grid = {.x = 1, .threads = 32};
            cup__launch(gpu, kernel, grid, CUP__ARG(memory), CUP__ARG(one), CUP__ARG(one));
        }
        if (d->calls->read(d, &number, memory, 4) == CUP_OK &&
            number == (uint32_t)(uintptr_t)user + 50)
            failed = NULL;
        d->calls->release(d, memory);
    }
    d->calls->close(d);
    return failed;
}

/* A context in each of several threads. */
TEST(cuda_fake_threads)
{
    begin();
    pthread_t threads[6];
    void *failed;
    for (intptr_t i = 0; i < 6; i++)
        EXPECT_INT(pthread_create(&threads[i], NULL, own_gpu, (void *)(i + 1)), 0);
    for (int i = 0; i < 6; i++) {
        EXPECT_INT(pthread_join(threads[i], &failed), 0);
        EXPECT(!failed);
    }
    EXPECT_INT(compiled(), 1);
    fake_expect_nothing_left();
}

TEST(kernels_for_a_card_the_compiler_does_not_know)
{
    setenv("FAKE_NVRTC_ARCHS", "89", 1);
    begin();
    cup__kernel_request request = {"add.cu", NULL, 0};
    const cup__code *code;
    cup__error error = {0};
    EXPECT_OK(&error, cup__code_get(&error, "sm_90a", &request, &code));
    EXPECT_INT(cup__code_get(&error, "sm_70", &request, &code), CUP_COMPILE);
    EXPECT_CONTAINS(error.text, "compiles for nothing as old as sm_70");
}

/* The real compiler. */

static void real_compiler(void)
{
    folder = test_folder();
    setenv("CUP_CACHE", folder, 1);
    setenv("CUP_KERNELS", folder, 1);
    if (!cup__library_open(CUP__LIBNVRTC))
        test_skip("no NVRTC: %.120s", cup__library_report_of(CUP__LIBNVRTC)->reason);
}

static const char *const archs[] = {"sm_75",  "sm_80",   "sm_86", "sm_89",
                                    "sm_90a", "sm_100a", "sm_120"};

static const char brick_test[] =
    "#include \"dtype.cuh\"\n#include \"reduce.cuh\"\n#include \"philox.cuh\"\n"
    "extern \"C\" __global__ void brick(T *y, const T *x, const uint64_t *state)\n"
    "{\n"
    "    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    vec<T, 2> v = load<2>(x + 2 * i);\n"
    "    real r[2];\n"
    "    to_reals(v, r);\n"
    "    r[0] = block_sum(r[0]) + (real)philox_uniform(philox_block(state, 1, i).at[0]);\n"
    "    store(y + 2 * i, from_reals<T, 2>(r));\n"
    "}\n";

TEST_LIMITED(nvrtc_bricks_for_all_cards, 300)
{
    real_compiler();
    fake_source(folder, "brick.cu", brick_test);
    static const int64_t types[] = {0, 1, 2, 3, 4, 5, 9, 10};
    cup__knob knobs[8];
    cup__kernel_request requests[8];
    for (int i = 0; i < 8; i++) {
        knobs[i] = (cup__knob){"CUP_T", types[i]};
        requests[i] = (cup__kernel_request){"brick.cu", &knobs[i], 1};
    }
    cup__error error = {0};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        cup_status status = cup__kernels_prepare(&error, archs[i], requests,
                                                 i % 3 == 1 ? 8 : 3, 2, NULL, NULL);
        if (status == CUP_COMPILE && strstr(error.text, "as old as")) {
            cup__error_clear(&error);
            continue;
        }
        EXPECT_OK(&error, status);
    }
}

TEST(nvrtc_errors_are_told)
{
    real_compiler();
    cup__error error = {0};
    fake_source(folder, "wrong.cu",
                "#include \"dtype.cuh\"\nextern \"C\" __global__ void k(float *x) { x[0] = y; }\n");
    EXPECT_INT(get(&error, "wrong.cu", 0), CUP_COMPILE);
    EXPECT_CONTAINS(error.text, "wrong.cu for sm_90a (CUP_T=0) does not compile");
    EXPECT_CONTAINS(error.text, "wrong.cu(2)");
    EXPECT_CONTAINS(error.text, "identifier \"y\" is undefined");
    cup__error_clear(&error);
    fake_source(folder, "spill.cu",
                "extern \"C\" __global__ void __launch_bounds__(1024, 2) k(float *x) {\n"
                "    float a[96];\n"
                "#pragma unroll\n"
                "    for (int i = 0; i < 96; i++) a[i] = x[i * 1024 + threadIdx.x];\n"
                "    __syncthreads();\n"
                "#pragma unroll\n"
                "    for (int i = 0; i < 96; i++) x[i * 999 + threadIdx.x] = a[95 - i];\n"
                "}\n");
    EXPECT_INT(get(&error, "spill.cu", 0), CUP_COMPILE);
    EXPECT_CONTAINS(error.text, "spill stores");
}

TEST(nvrtc_code_is_cached)
{
    real_compiler();
    fake_source(folder, "small.cu", "extern \"C\" __global__ void k(float *x) { x[0] = CUP_T; }\n");
    cup__kernel_request request = {"small.cu", &(cup__knob){"CUP_T", 7}, 1};
    const cup__code *code;
    cup__error error = {0};
    EXPECT_OK(&error, cup__code_get(&error, "sm_90a", &request, &code));
    EXPECT(code->size > 500 && !memcmp(code->bytes, "\177ELF", 4));
    char *path = only_file();
    EXPECT_CONTAINS(path, "small.sm_90a.");
    cup__free(path);
}

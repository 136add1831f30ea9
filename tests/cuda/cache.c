/* The cache of compiled kernels on disk, and packs, with the fake NVRTC. */
#include "cuda/cache.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "cuda/kernels.h"
#include "support.h"
#include "test.h"

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
    return kernel_code(NULL, "add.cu", 3) == CUP_OK;
}

static int files_ending(const char *end)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/cache", kernel_folder);
    cup__names names;
    int count = 0;
    if (cup__folder_list(NULL, path, &names) != CUP_OK)
        return 0;
    for (size_t i = 0; i < names.count; i++)
        count += strstr(names.name[i], end) != NULL;
    cup__names_free(&names);
    return count;
}

TEST(kernels_cache_is_used)
{
    kernel_begin();
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(kernels_compiled(), 1);
    EXPECT_INT(files_ending(".cubin"), 1);
    /* A changed text, or one that it includes, is another kernel. */
    fake_source(kernel_folder, "add.cu", "#include \"more.cuh\"\n" FAKE_ADD);
    fake_source(kernel_folder, "more.cuh", "  # include \"deep.cuh\"\n");
    fake_source(kernel_folder, "deep.cuh", "// 1\n");
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(kernels_compiled(), 2);
    fake_source(kernel_folder, "deep.cuh", "// 2\n");
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(kernels_compiled(), 3);
    /* So is one of another compiler, but without a compiler any will do. */
    setenv("FAKE_NVRTC_MAJOR", "12", 1);
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(kernels_compiled(), 4);
    setenv("CUP_LIBNVRTC", "off", 1);
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(kernels_compiled(), 4);
    setenv("CUP_CACHE", "off", 1);
    cup__error error = {0};
    EXPECT_INT(kernel_code(&error, "add.cu", 3), CUP_COMPILE);
    EXPECT_CONTAINS(error.text, "NVRTC is missing: CUP_LIBNVRTC=off");
}

TEST(kernels_cache_off)
{
    kernel_begin();
    setenv("CUP_CACHE", "off", 1);
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(kernels_compiled(), 2);
    EXPECT_INT(files_ending(""), 0);
    unsetenv("CUP_CACHE");
    unsetenv("HOME");
    unsetenv("XDG_CACHE_HOME");
    EXPECT_INT(child(get_add), 0);
    char *path;
    EXPECT_INT(cup__cache_folder(NULL, &path), CUP_OK);
    EXPECT(path == NULL);
    setenv("XDG_CACHE_HOME", kernel_folder, 1);
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(kernels_compiled(), 4);
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
    kernel_begin();
    EXPECT_INT(child(get_add), 0);
    char *path = only_file(), *bytes;
    size_t size;
    EXPECT_INT(cup__file_read(NULL, path, 1 << 20, &bytes, &size), CUP_OK);
    int before = kernels_compiled();
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
        EXPECT_INT(kernels_compiled(), ++before);
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
    kernel_begin();
    setenv("FAKE_NVRTC_MS", "100", 1);
    pid_t pids[6];
    for (int i = 0; i < 6; i++)
        if ((pids[i] = fork()) == 0)
            _exit(get_add() && kernel_code(NULL, "add.cu", 4) == CUP_OK ? 0 : 1);
    for (int i = 0; i < 6; i++) {
        int status;
        EXPECT(waitpid(pids[i], &status, 0) == pids[i]);
        EXPECT_INT(status, 0);
    }
    EXPECT_INT(files_ending(".cubin"), 2);
    EXPECT_INT(files_ending(".tmp."), 0);
    int before = kernels_compiled();
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(kernels_compiled(), before);
}

/* Root may write everywhere, until it gives that up. */
static bool give_up_root(void)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}};
    return geteuid() != 0 || syscall(SYS_capset, &head, none) == 0;
}

static bool get_read_only(void)
{
    return give_up_root() && get_add() && kernel_code(NULL, "add.cu", 4) == CUP_OK;
}

TEST(kernels_cache_cannot_be_written)
{
    kernel_begin();
    setenv("CUP_CACHE", "/proc/cupola", 1);
    EXPECT_INT(child(get_add), 0);
    char path[4400];
    snprintf(path, sizeof path, "%s/cache", kernel_folder);
    setenv("CUP_CACHE", path, 1);
    EXPECT_INT(child(get_add), 0);
    EXPECT_INT(chmod(path, 0555), 0);
    EXPECT_INT(child(get_read_only), 0);
    /* The one that is there was used, the other was not kept. */
    EXPECT_INT(kernels_compiled(), 3);
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
    kernel_begin();
    EXPECT_INT(child(get_add_limited), 0);
    EXPECT_INT(files_ending(""), 0);
}

static void set_used(const char *path, time_t seconds)
{
    /* Last read a second after 1970: what reads it now moves the time of access. */
    struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = seconds}};
    EXPECT_INT(utimensat(AT_FDCWD, path, times, 0), 0);
}

TEST(kernels_cache_is_bounded)
{
    kernel_begin();
    for (int i = 0; i < 10; i++)
        EXPECT_INT(kernel_code(NULL, "add.cu", i), CUP_OK);
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
    /* Making a list uses nothing. */
    cup__cached_list again;
    EXPECT_INT(cup__cache_list(NULL, &again), CUP_OK);
    cup__cache_list_free(&again);
    char most[32];
    snprintf(most, sizeof most, "%lld", (long long)(size * 4 + 50));
    setenv("CUP_CACHE_MAX", most, 1);
    EXPECT_INT(kernel_code(NULL, "add.cu", 10), CUP_OK);
    EXPECT(files_ending(".cubin") <= 4);
    /* Those that stay were used last. */
    for (size_t i = 0; i < list.count; i++)
        EXPECT(cup__file_exists(list.items[i].path) == ((i * 7) % 10 >= 7));
    cup__cache_list_free(&list);
}

TEST(kernels_clear)
{
    kernel_begin();
    int64_t files, bytes;
    EXPECT_INT(cup__cache_clear(NULL, "", &files, &bytes), CUP_OK);
    EXPECT_INT(files, 0);
    for (int i = 0; i < 3; i++)
        EXPECT_INT(kernel_code(NULL, "add.cu", i), CUP_OK);
    char path[4400];
    snprintf(path, sizeof path, "%s/cache/mine.txt", kernel_folder);
    EXPECT_INT(cup__file_write(NULL, path, "x", 1), CUP_OK);
    EXPECT_INT(cup__cache_clear(NULL, "", &files, &bytes), CUP_OK);
    EXPECT_INT(files, 3);
    EXPECT(bytes > 300);
    EXPECT_INT(files_ending(""), 1);
}

static char pack_path[4400];

static bool write_pack(void)
{
    int count;
    return get_add() && kernel_code(NULL, "add.cu", 4) == CUP_OK &&
           cup__kernels_pack(NULL, pack_path, &count) == CUP_OK && count == 2;
}

TEST(kernels_pack)
{
    kernel_begin();
    snprintf(pack_path, sizeof pack_path, "%s/all.pack", kernel_folder);
    EXPECT_INT(child(write_pack), 0);
    EXPECT_INT(kernels_compiled(), 2);
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

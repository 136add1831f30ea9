#include "test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

static const char *in_folder(const char *folder, const char *name)
{
    static char path[8][4400];
    static unsigned turn;
    char *out = path[turn++ % 8];
    snprintf(out, sizeof path[0], "%s/%s", folder, name);
    return out;
}

TEST(file_written_is_read_back)
{
    const char *path = in_folder(test_folder(), "a");
    cup__error error = {0};
    char *got;
    size_t size;
    EXPECT_INT(cup__file_write(&error, path, "one\0two", 7), CUP_OK);
    EXPECT_INT(cup__file_read(&error, path, 7, &got, &size), CUP_OK);
    EXPECT_INT(size, 7);
    EXPECT(memcmp(got, "one\0two", 8) == 0);
    cup__free(got);
    EXPECT_INT(cup__file_write(&error, path, "", 0), CUP_OK);
    EXPECT_INT(cup__file_read(&error, path, 0, &got, &size), CUP_OK);
    EXPECT_INT(size, 0);
    cup__free(got);
}

TEST(file_size_cap)
{
    const char *path = in_folder(test_folder(), "a");
    cup__error error = {0};
    char *got;
    EXPECT_INT(cup__file_write(&error, path, "12345", 5), CUP_OK);
    EXPECT_INT(cup__file_read(&error, path, 4, &got, NULL), CUP_IO);
    EXPECT(got == NULL);
    EXPECT_CONTAINS(error.text, "more than 4 bytes");
    /* Files of /proc claim to be empty. */
    cup__error_clear(&error);
    EXPECT_INT(cup__file_read(&error, "/proc/self/status", 1 << 20, &got, NULL), CUP_OK);
    EXPECT_CONTAINS(got, "Pid:");
    cup__free(got);
    EXPECT_INT(cup__file_read(&error, "/proc/self/status", 10, &got, NULL), CUP_IO);
}

static void expect_unreadable(const char *path, const char *words)
{
    cup__error error = {0};
    char *got;
    EXPECT_INT(cup__file_read(&error, path, 100, &got, NULL), CUP_IO);
    EXPECT_CONTAINS(error.text, path);
    EXPECT_CONTAINS(error.text, words);
}

TEST(file_bad_paths_have_sentences)
{
    const char *folder = test_folder();
    expect_unreadable(in_folder(folder, "missing"), "no such file");
    expect_unreadable(folder, "is a folder");
    expect_unreadable("/dev/null", "not a regular file");
    const char *pipe = in_folder(folder, "pipe");
    EXPECT_INT(mkfifo(pipe, 0666), 0);
    expect_unreadable(pipe, "not a regular file");
    cup__error error = {0};
    EXPECT_INT(cup__file_write(&error, "/dev/null", "x", 1), CUP_IO);
    EXPECT_CONTAINS(error.text, "not a regular file");
    cup__error_clear(&error);
    EXPECT_INT(cup__file_write(&error, in_folder(folder, "no/such"), "x", 1), CUP_IO);
    EXPECT_CONTAINS(error.text, "no such file or folder");
    cup__error_clear(&error);
    /* It is known before there is anything to write. */
    cup__writer writer;
    EXPECT_INT(cup__writer_open(&error, "", &writer), CUP_IO);
    EXPECT_CONTAINS(error.text, "\"\" cannot be written: there is no such file or folder");
    if (geteuid() == 0)
        return;
    const char *secret = in_folder(folder, "secret");
    cup__error_clear(&error);
    EXPECT_INT(cup__file_write(&error, secret, "x", 1), CUP_OK);
    EXPECT_INT(chmod(secret, 0), 0);
    expect_unreadable(secret, "permission denied");
}

static size_t count_files(const char *folder)
{
    cup__error error = {0};
    cup__names names;
    EXPECT_INT(cup__folder_list(&error, folder, &names), CUP_OK);
    size_t count = names.count;
    cup__names_free(&names);
    return count;
}

TEST(file_failed_write_keeps_the_old_one)
{
    const char *folder = test_folder(), *path = in_folder(folder, "a");
    cup__error error = {0};
    char *got, big[10000] = {0};
    EXPECT_INT(cup__file_write(&error, path, "old", 3), CUP_OK);
    /* A limit on file sizes behaves as a full disk does, short write included. */
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {4096, 4096};
    EXPECT_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_INT(cup__file_write(&error, path, big, sizeof big), CUP_IO);
    EXPECT_CONTAINS(error.text, "cannot be written");
    EXPECT_INT(count_files(folder), 1);
    cup__error_clear(&error);
    EXPECT_INT(cup__file_read(&error, path, 100, &got, NULL), CUP_OK);
    EXPECT_TEXT(got, "old");
    cup__free(got);
}

TEST(file_full_disk)
{
    cup__error error = {0};
    cup__writer writer;
    EXPECT_INT(cup__writer_open(&error, in_folder(test_folder(), "a"), &writer), CUP_OK);
    int full = open("/dev/full", O_WRONLY);
    if (full < 0)
        test_skip("/dev/full is not there");
    EXPECT(dup2(full, writer.handle) >= 0);
    EXPECT_INT(cup__writer_add(&error, &writer, "x", 1), CUP_IO);
    EXPECT_CONTAINS(error.text, "the disk is full");
    cup__writer_abandon(&writer);
    cup__writer_abandon(&writer);
}

static void put_file(const char *path)
{
    FILE *file = fopen(path, "w");
    EXPECT(file && fclose(file) == 0);
}

/* What a writer that was killed left is removed by the next one of the same path; what a living
 * one writes, and what others named, stays. */
TEST(file_left_behind_is_removed)
{
    const char *folder = test_folder(), *path = in_folder(folder, "a");
    cup__error error = {0};
    cup__writer living;
    put_file(in_folder(folder, "a.tmp.4242.0"));
    put_file(in_folder(folder, "a.tmp.4242.x"));
    put_file(in_folder(folder, "b.tmp.4242.0"));
    EXPECT_INT(cup__writer_open(&error, path, &living), CUP_OK);
    EXPECT(!cup__file_exists(in_folder(folder, "a.tmp.4242.0")));
    EXPECT_INT(cup__file_write(&error, path, "x", 1), CUP_OK);
    EXPECT(cup__file_exists(living.temporary));
    EXPECT_INT(cup__writer_commit(&error, &living), CUP_OK);
    EXPECT(cup__file_exists(in_folder(folder, "a.tmp.4242.x")));
    EXPECT(cup__file_exists(in_folder(folder, "b.tmp.4242.0")));
    EXPECT_INT(count_files(folder), 3);
}

TEST(file_read_at_offsets)
{
    const char *path = in_folder(test_folder(), "a");
    cup__error error = {0};
    cup__file file;
    char bytes[8] = {0};
    EXPECT_INT(cup__file_write(&error, path, "0123456789", 10), CUP_OK);
    EXPECT_INT(cup__file_open(&error, path, &file), CUP_OK);
    EXPECT_INT(file.size, 10);
    EXPECT_INT(cup__file_read_at(&error, &file, 4, bytes, 3), CUP_OK);
    EXPECT_TEXT(bytes, "456");
    EXPECT_INT(cup__file_read_at(&error, &file, 8, bytes, 3), CUP_IO);
    EXPECT_CONTAINS(error.text, "shorter than expected: it ends at byte 10");
    EXPECT_INT(cup__file_read_at(NULL, &file, UINT64_MAX, bytes, 3), CUP_ARGUMENT);
    cup__file_close(&file);
    cup__file_close(&file);
}

TEST(file_folders)
{
    const char *folder = test_folder();
    cup__error error = {0};
    cup__names names;
    EXPECT_INT(cup__folder_make(&error, in_folder(folder, "x/y//z/")), CUP_OK);
    EXPECT_INT(cup__folder_make(&error, in_folder(folder, "x/y")), CUP_OK);
    EXPECT(cup__folder_exists(in_folder(folder, "x/y/z")));
    EXPECT_INT(cup__file_write(&error, in_folder(folder, "x/b"), "", 0), CUP_OK);
    EXPECT_INT(cup__file_write(&error, in_folder(folder, "x/a"), "", 0), CUP_OK);
    EXPECT_INT(cup__folder_list(&error, in_folder(folder, "x"), &names), CUP_OK);
    EXPECT_INT(names.count, 3);
    EXPECT_TEXT(names.name[0], "a");
    EXPECT_TEXT(names.name[2], "y");
    cup__names_free(&names);
    EXPECT_INT(cup__folder_make(&error, in_folder(folder, "x/a")), CUP_IO);
    EXPECT_CONTAINS(error.text, "x/a cannot be made");
    cup__error_clear(&error);
    EXPECT_INT(cup__folder_make(&error, in_folder(folder, "x/a/b")), CUP_IO);
    cup__error_clear(&error);
    EXPECT_INT(cup__folder_check(&error, in_folder(folder, "x/new/newer")), CUP_OK);
    EXPECT_INT(cup__folder_check(&error, "new"), CUP_OK);
    EXPECT_INT(cup__folder_check(&error, ""), CUP_OK);
    EXPECT_INT(cup__folder_check(&error, in_folder(folder, "x/a/b")), CUP_IO);
    EXPECT_CONTAINS(error.text, "a part of the path is a file");
    cup__error_clear(&error);
    /* The reason is that of making it, not that it is not there. */
    char longest[400];
    memset(longest, 'n', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    EXPECT_INT(cup__folder_make(&error, in_folder(folder, longest)), CUP_IO);
    EXPECT_CONTAINS(error.text, "the path is too long");
    cup__error_clear(&error);
    EXPECT_INT(cup__folder_list(&error, in_folder(folder, "none"), &names), CUP_IO);
    cup__error_clear(&error);
    EXPECT_INT(cup__file_rename(&error, in_folder(folder, "x/a"), in_folder(folder, "x/b")),
               CUP_OK);
    EXPECT(!cup__file_exists(in_folder(folder, "x/a")));
    EXPECT_INT(cup__file_remove(&error, in_folder(folder, "x/a")), CUP_OK);
    EXPECT_INT(cup__file_remove(&error, in_folder(folder, "x/b")), CUP_OK);
    EXPECT_INT(count_files(in_folder(folder, "x")), 1);
}

static void expect_join(const char *folder, const char *name, const char *want)
{
    char *path = cup__path_join(folder, name);
    EXPECT_TEXT(path, want);
    cup__free(path);
}

TEST(file_paths)
{
    expect_join("a", "b", "a/b");
    expect_join("a/", "b", "a/b");
    expect_join("", "b", "b");
    expect_join("a", "/b", "/b");
    expect_join("/", "b", "/b");
    EXPECT_TEXT(cup__path_name("a/b"), "b");
    EXPECT_TEXT(cup__path_name("b"), "b");
    EXPECT_TEXT(cup__path_name("a/"), "");
}

static void expect_user_folder(cup__user_folder which, const char *want)
{
    char *path;
    EXPECT_INT(cup__user_folder_find(NULL, which, &path), CUP_OK);
    if (want)
        EXPECT_TEXT(path, want);
    EXPECT(want || !path);
    cup__free(path);
}

TEST(file_user_folders)
{
    setenv("HOME", "/home/ada", 1);
    unsetenv("XDG_CACHE_HOME");
    expect_user_folder(CUP__CACHE_FOLDER, "/home/ada/.cache/cupola");
    setenv("XDG_CACHE_HOME", "/c", 1);
    expect_user_folder(CUP__CACHE_FOLDER, "/c/cupola");
    setenv("XDG_CACHE_HOME", "relative", 1);
    expect_user_folder(CUP__CACHE_FOLDER, "/home/ada/.cache/cupola");
    unsetenv("XDG_CONFIG_HOME");
    unsetenv("XDG_STATE_HOME");
    expect_user_folder(CUP__CONFIG_FOLDER, "/home/ada/.config/cupola");
    expect_user_folder(CUP__STATE_FOLDER, "/home/ada/.local/state/cupola");
    unsetenv("HOME");
    expect_user_folder(CUP__STATE_FOLDER, NULL);
}

static cup_status everything(cup__error *error, const char *folder)
{
    char *got;
    cup__names names;
    cup__file file;
    char path[4400];
    snprintf(path, sizeof path, "%s/p/q", folder);
    CUP_TRY(cup__folder_make(error, path));
    snprintf(path, sizeof path, "%s/a", folder);
    CUP_TRY(cup__file_write(error, path, "text", 4));
    CUP_TRY(cup__file_read(error, path, 100, &got, NULL));
    cup__free(got);
    CUP_TRY(cup__file_open(error, path, &file));
    cup__file_close(&file);
    CUP_TRY(cup__folder_list(error, folder, &names));
    cup__names_free(&names);
    CUP_TRY(cup__user_folder_find(error, CUP__CACHE_FOLDER, &got));
    cup__free(got);
    return CUP_OK;
}

TEST(file_allocation_failures)
{
    const char *folder = test_folder();
    cup_status status = CUP_MEMORY;
    for (long n = 1; status != CUP_OK; n++) {
        cup__error error = {0};
        cup__memory_fail_at(n, false);
        status = everything(&error, folder);
        cup__memory_fail_at(0, false);
        EXPECT(status == CUP_OK || (status == CUP_MEMORY && error.text[0] && n < 100));
    }
    EXPECT_INT(count_files(folder), 2);
}

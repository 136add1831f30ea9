/* Tests. Any TEST(name) { ... } in a file under tests/ is found by itself and runs in a process of
 * its own, with a time limit. */
#ifndef TEST_H
#define TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void (*test_function)(void *user);

/* Adds a test to the list; `seconds` is its limit, 0 the usual one. The name is copied. The last
 * one that was added runs `alone`: when all others are through, and nothing else at that time. */
void test_add(const char *name, const char *file, int line, test_function run, void *user,
              double seconds);
void test_alone(void);

#define TEST_OF(name, seconds, how)                                                                \
    static void test_##name(void *user);                                                           \
    __attribute__((constructor)) static void add_##name(void)                                      \
    {                                                                                              \
        test_add(#name, __FILE__, __LINE__, test_##name, NULL, seconds);                           \
        how;                                                                                       \
    }                                                                                              \
    static void test_##name(void *user __attribute__((unused)))

#define TEST_LIMITED(name, seconds) TEST_OF(name, seconds, (void)0)
#define TEST(name) TEST_OF(name, 0, (void)0)
/* One that takes so much of the machine that others would fail beside it, or it beside them. */
#define TEST_ALONE(name) TEST_OF(name, 0, test_alone())

/* Fails the running test with a sentence. */
void test_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4), noreturn));

/* Ends the running test as skipped, and says why. */
void test_skip(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            test_fail(__FILE__, __LINE__, "expected: %s", #condition);                             \
    } while (0)
#define EXPECT_INT(got, want) test_expect_int(__FILE__, __LINE__, #got, got, want)
#define EXPECT_TEXT(got, want) test_expect_text(__FILE__, __LINE__, #got, got, want)
#define EXPECT_CONTAINS(got, part) test_expect_contains(__FILE__, __LINE__, #got, got, part)
#define EXPECT_NEAR(got, want, tolerance)                                                          \
    test_expect_near(__FILE__, __LINE__, #got, got, want, tolerance)

void test_expect_int(const char *file, int line, const char *what, int64_t got, int64_t want);
void test_expect_text(const char *file, int line, const char *what, const char *got,
                      const char *want);
void test_expect_contains(const char *file, int line, const char *what, const char *got,
                          const char *part);
void test_expect_near(const char *file, int line, const char *what, double got, double want,
                      double tolerance);

/* A random sequence that is the same in every run unless TEST_SEED says otherwise. */
uint64_t test_random(void);
double test_uniform(double low, double high);

/* The folder of the test's own, made empty, as an absolute path; removed after the run. */
const char *test_folder(void);

/* Runs a shell command with stdout and stderr together into `out`; returns its exit code, or
 * 128 + the signal that ended it. */
int test_command(char *out, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The folder the build is in, from the environment variable BUILD. */
const char *test_build(void);

#endif

/* Files of NumPy: what is read, and that all else is refused in words. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cupola/cupola.h"
#include "test.h"

static const char *path_of(void)
{
    static char path[400];
    if (!*path)
        snprintf(path, sizeof path, "%s/a.npy", test_folder());
    return path;
}

/* A file of format 1.0 with this header and these elements. */
static void put(const char *header, const void *elements, size_t bytes)
{
    char text[1000];
    int length = (int)strlen(header);
    memcpy(text, "\x93NUMPY\1", 7);
    text[7] = 0;
    text[8] = (char)(length & 255);
    text[9] = (char)(length >> 8);
    memcpy(text + 10, header, (size_t)length);
    if (bytes)
        memcpy(text + 10 + length, elements, bytes);
    EXPECT_INT(cup__file_write(NULL, path_of(), text, 10 + (size_t)length + bytes), CUP_OK);
}

static void expect_refused(cup_context *c, const char *header, cup_status status,
                           const char *words)
{
    put(header, "12345678", 8);
    EXPECT(!cup_npy_load(c, path_of()));
    EXPECT_INT(cup_error(c), status);
    EXPECT_CONTAINS(cup_error_text(c), words);
    EXPECT_CONTAINS(cup_error_text(c), "a.npy");
    cup_error_clear(c);
}

TEST(npy_reads_what_numpy_writes)
{
    static const struct {
        const char *descr;
        cup_dtype dtype;
    } types[] = {{"<f4", CUP_F32}, {"<f8", CUP_F64}, {"<f2", CUP_F16},  {"<i8", CUP_I64},
                 {"<i4", CUP_I32}, {"|u1", CUP_U8},  {"|b1", CUP_BOOL}, {"|i1", CUP_I8},
                 {"<V2", CUP_BF16}, {"|V2", CUP_BF16}};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    char header[200], back[48];
    const char zeros[48] = {1, 0, 1};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        size_t bytes = 6 * (size_t)cup_dtype_size(types[i].dtype);
        snprintf(header, sizeof header,
                 "{'descr': '%s', 'fortran_order': False, 'shape': (2, 3), }    \n",
                 types[i].descr);
        put(header, zeros, bytes);
        cup_tensor *t = cup_npy_load(c, path_of());
        EXPECT_TEXT(cup_error_text(c), "");
        EXPECT(cup_tensor_dtype(t) == types[i].dtype && cup_tensor_ndim(t) == 2);
        EXPECT(cup_tensor_size(t, 0) == 2 && cup_tensor_size(t, 1) == 3);
        EXPECT_INT(cup_tensor_read(t, back, bytes), CUP_OK);
        EXPECT(!memcmp(back, zeros, bytes));
    }
    /* One dimension, none, and other ways to write the same. */
    put("{\"shape\":(2,),\"fortran_order\":True,\"descr\":\"<f4\"}", zeros, 8);
    EXPECT_INT(cup_tensor_ndim(cup_npy_load(c, path_of())), 1);
    put("{'descr': '<f4', 'fortran_order': False, 'shape': ()}", zeros, 4);
    EXPECT_INT(cup_tensor_count(cup_npy_load(c, path_of())), 1);
    put("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 7)}", zeros, 0);
    EXPECT_INT(cup_tensor_size(cup_npy_load(c, path_of()), 1), 7);
    EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
}

TEST(npy_refuses_in_words)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
#define REST "'fortran_order': False, 'shape': (2,)}"
    expect_refused(c, "{'descr': '>f4', " REST, CUP_DTYPE, "type >f4");
    expect_refused(c, "{'descr': '|O', " REST, CUP_DTYPE, "type |O");
    expect_refused(c, "{'descr': '\x1b[1m', " REST, CUP_FORMAT, "strange");
    expect_refused(c, "{'descr': [('a', '<f4')], " REST, CUP_FORMAT, "several fields");
    expect_refused(c, "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 1)}",
                   CUP_UNSUPPORTED, "ascontiguousarray");
    expect_refused(c, "{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 1)}", CUP_FORMAT,
                   "neither True");
    expect_refused(c, "{'descr': '<f4', 'fortran_order': False}", CUP_FORMAT, "lacks");
    expect_refused(c, "{'descr': '<f4', 'descr': '<f4', " REST, CUP_FORMAT, "does not belong");
    expect_refused(c, "{'other': '<f4', " REST, CUP_FORMAT, "does not belong");
    expect_refused(c, "{'descr': '<f4', " REST "x", CUP_FORMAT, "follows");
    expect_refused(c, "", CUP_FORMAT, "no dictionary");
    expect_refused(c, "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", CUP_FORMAT,
                   "whole numbers");
    expect_refused(c, "{'descr': '<f4', 'fortran_order': False, 'shape': (2 3)}", CUP_FORMAT,
                   "whole numbers");
    expect_refused(c, "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
                   CUP_FORMAT, "too large");
    expect_refused(c, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}",
                   CUP_FORMAT, "more than 8");
    put("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}", "12345678", 8);
    EXPECT(!cup_npy_load(c, path_of()));
    EXPECT_CONTAINS(cup_error_text(c), "its shape needs 12");
    cup_error_clear(c);
    for (int length = 0; length < 12; length++) {
        EXPECT_INT(cup__file_write(NULL, path_of(), "\x93NUMPY\1\0\x30\0{'", (size_t)length),
                   CUP_OK);
        EXPECT(!cup_npy_load(c, path_of()));
        EXPECT_INT(cup_error(c), CUP_FORMAT);
        cup_error_clear(c);
    }
    EXPECT(!cup_npy_load(c, NULL));
    EXPECT_INT(cup_error(c), CUP_ARGUMENT);
    cup_context_free(c);
}

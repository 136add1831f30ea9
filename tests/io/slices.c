/* Slices of tensors in files: any part of a tensor is put together of them. */
#include "io/slices.h"

#include <stdio.h>
#include <string.h>

#include "cupola/ops.h"
#include "io/support.h"
#include "tensor/context.h"
#include "test.h"

#define ROWS 12
#define COLUMNS 6

TEST(slices_have_names)
{
    static const struct {
        const char *name;
        bool is;
    } cases[] = {{"a[0:4/12]", true},
                 {"a.b[:,4:6/6]", true},
                 {"a[1][0:1/2]", true},
                 {"a", false},
                 {"[0:4/12]", false},
                 {"a[4:4/12]", false},
                 {"a[0:13/12]", false},
                 {"a[0:4/12", false},
                 {"a[0:4/12]b", false},
                 {"a[0:4]", false},
                 {"a[-1:4/12]", false},
                 {"a[,0:4/12]", false},
                 {"a[0:4/99999999999999999999]", false},
                 {"a[:,:,:,:,:,:,:,:,0:4/12]", false}};
    char name[CUP__SLICE_NAME], longest[CUP__SLICE_NAME];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (cup__slice_is(cases[i].name) != cases[i].is)
            test_fail(__FILE__, __LINE__, "%s", cases[i].name);
    EXPECT(cup__slice_name("wte.first", 0, 64, 128, 256, name));
    EXPECT_TEXT(name, "wte.first[64:128/256]");
    EXPECT(cup__slice_name("w", 2, 0, 8, 32, name));
    EXPECT_TEXT(name, "w[:,:,0:8/32]");
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = 0;
    EXPECT(!cup__slice_name(longest, 0, 0, 1, 2, name));
}

/* A file with slices of t, which is cut along an axis before these places. */
static void write_slices(cup_context *c, const char *path, cup_tensor *t, int axis,
                         const int64_t *ends, int count)
{
    cup_named list[9] = {{0}};
    char names[8][CUP__SLICE_NAME];
    int64_t at = 0, whole[2] = {ROWS, COLUMNS};
    for (int i = 0; i < count; at = ends[i++]) {
        int64_t starts[2] = {0}, sizes[2] = {ROWS, COLUMNS};
        starts[axis] = at;
        sizes[axis] = ends[i] - at;
        EXPECT(cup__slice_name("w", axis, at, ends[i], whole[axis], names[i]));
        list[i] = (cup_named){names[i], cup_slice(c, t, starts, 2, sizes, 2)};
    }
    list[count] = (cup_named){"other", cup_full(c, CUP_F32, 0, NULL, 7)};
    EXPECT_INT(cup_safetensors_save(c, path, list, count + 1), CUP_OK);
}

static cup_status read_cut(cup_context *c, const char *path, const cup__wanted *w)
{
    cup__safetensors file;
    EXPECT_INT(cup__safetensors_open(&c->error, path, &file), CUP_OK);
    EXPECT_INT(cup__slices_count(&file), 2);
    cup_status status = cup__slices_fill(c, &file, true, true, w, 1);
    cup__safetensors_close(&file);
    return status;
}

/* The two stretches of a part along an axis, of which the second reaches over the end of the rows
 * that files have. */
static void expect_part(cup_context *c, const char *path, cup_dtype dtype, int axis)
{
    int64_t shape[2] = {ROWS, COLUMNS};
    cup__wanted w = {.name = "w", .cut = {.whole = {CUP_F32, 2, {ROWS, COLUMNS}}, .axis = axis}};
    shape[axis] = 5;
    w.tensor = cup_full(c, dtype, 2, shape, -1);
    w.cut.count = 2;
    w.cut.begin[0] = 1, w.cut.size[0] = 2;
    w.cut.begin[1] = (axis ? COLUMNS : ROWS) - 2, w.cut.size[1] = 3;
    EXPECT_INT(read_cut(c, path, &w), CUP_OK);
    float got[ROWS * COLUMNS];
    cup_tensor *plain = cup_cast(c, w.tensor, CUP_F32);
    EXPECT_INT(cup_tensor_read(plain, got, (size_t)plain->count * sizeof *got), CUP_OK);
    for (int64_t i = 0; i < shape[0]; i++)
        for (int64_t j = 0; j < shape[1]; j++) {
            int64_t at = axis ? j : i;
            int64_t place = at < 2 ? 1 + at : w.cut.begin[1] + at - 2;
            int64_t row = axis ? i : place, column = axis ? place : j;
            bool there = row < ROWS && column < COLUMNS;
            EXPECT_NEAR(got[i * shape[1] + j], there ? (double)(row * COLUMNS + column) : 0, 0);
        }
}

static cup_tensor *numbers(cup_context *c)
{
    float values[ROWS * COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++)
        values[i] = (float)i;
    return cup_tensor_from(c, CUP_F32, 2, (int64_t[]){ROWS, COLUMNS}, values);
}

TEST(slices_give_any_part)
{
    static const int64_t rows[] = {4, 5, 12}, columns[] = {2, 6}, all[] = {ROWS};
    cup_context *c = cpu();
    char path[500];
    snprintf(path, sizeof path, "%s/w.safetensors", test_folder());
    for (int i = 0; i < 3; i++) {
        write_slices(c, path, numbers(c), i == 1,
                     i == 0   ? rows
                     : i == 1 ? columns
                              : all,
                     i == 0   ? 3
                     : i == 1 ? 2
                              : 1);
        for (int axis = 0; axis < 2; axis++) {
            expect_part(c, path, CUP_F32, axis);
            expect_part(c, path, CUP_BF16, axis);
        }
        cup_tensor *t = cup_full(c, CUP_F32, 2, (int64_t[]){ROWS, COLUMNS}, 0);
        cup__wanted w = {"w", t, cup__cut_none(t)};
        float got[ROWS * COLUMNS];
        EXPECT_INT(read_cut(c, path, &w), CUP_OK);
        EXPECT_INT(cup_tensor_read(t, got, sizeof got), CUP_OK);
        for (int k = 0; k < ROWS * COLUMNS; k++)
            EXPECT_NEAR(got[k], k, 0);
    }
    cup_context_free(c);
}

/* Large enough that rows are read one by one, and columns by way of a window. */
TEST(slices_of_large_tensors)
{
    const int64_t shape[] = {300, 9000}, half[] = {300, 4500};
    cup_context *c = cpu();
    char path[500];
    snprintf(path, sizeof path, "%s/w.safetensors", test_folder());
    cup_tensor *t = cup_uniform(c, CUP_F32, 2, shape, 0, 1);
    EXPECT_INT(cup_safetensors_save(c, path, &(cup_named){"w", t}, 1), CUP_OK);
    for (int part = 0; part < 2; part++)
        for (int64_t width = 45; width <= 4500; width *= 100) {
            int64_t sizes[] = {300, width};
            cup_tensor *own = cup_full(c, CUP_F32, 2, sizes, 0);
            cup__wanted w = {"w", own, {.whole = {CUP_F32, 2, {300, 9000}}, .axis = 1, .count = 1}};
            cup__safetensors file;
            w.cut.begin[0] = part * half[1];
            w.cut.size[0] = width;
            EXPECT_INT(cup__safetensors_open(&c->error, path, &file), CUP_OK);
            EXPECT_INT(cup__slices_fill(c, &file, true, false, &w, 1), CUP_OK);
            cup__safetensors_close(&file);
            cup_tensor *same = cup_slice(c, t, (int64_t[]){0, part * half[1]}, 2, sizes, 2);
            cup_tensor *off = cup_max(c, cup_abs(c, cup_sub(c, own, same)), NULL, 0, false);
            float most;
            EXPECT_INT(cup_tensor_read(off, &most, sizeof most), CUP_OK);
            EXPECT_NEAR(most, 0, 0);
        }
    cup_context_free(c);
}

static void expect_refused(cup_context *c, const char *path, cup_named *list, int count,
                           cup_status status, const char *words)
{
    cup_tensor *t = cup_full(c, CUP_F32, 2, (int64_t[]){ROWS, COLUMNS}, 0);
    cup__wanted w = {"w", t, cup__cut_none(t)};
    cup__safetensors file;
    EXPECT_INT(cup_safetensors_save(c, path, list, count), CUP_OK);
    EXPECT_INT(cup__safetensors_open(&c->error, path, &file), CUP_OK);
    EXPECT_INT(cup__slices_fill(c, &file, true, false, &w, 1), status);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_error_clear(c);
    cup__safetensors_close(&file);
}

TEST(slices_that_do_not_fit_are_refused)
{
    cup_context *c = cpu();
    char path[500];
    snprintf(path, sizeof path, "%s/w.safetensors", test_folder());
    cup_tensor *four = cup_full(c, CUP_F32, 2, (int64_t[]){4, COLUMNS}, 1);
    cup_tensor *half = cup_full(c, CUP_BF16, 2, (int64_t[]){4, COLUMNS}, 1);
    cup_tensor *wide = cup_full(c, CUP_F32, 2, (int64_t[]){ROWS, 3}, 1);
    cup_named list[3] = {{"w[0:4/12]", four}, {"w[8:12/12]", four}, {"w[4:8/12]", four}};
    expect_refused(c, path, list, 2, CUP_FORMAT,
                   "of \"w\" the places 4 to 8 along axis 0 are missing");
    list[1] = (cup_named){"w[2:6/12]", four};
    expect_refused(c, path, list, 2, CUP_FORMAT, "the places 2 to 4 along axis 0 are there twice");
    list[1] = (cup_named){"w[4:8/12]", four};
    expect_refused(c, path, list, 2, CUP_FORMAT, "the places 8 to 12 along axis 0 are missing");
    list[1] = (cup_named){"w[4:12/12]", four};
    expect_refused(c, path, list, 2, CUP_FORMAT, "\"w[4:12/12]\" is");
    list[1] = (cup_named){"w[4:8/13]", four};
    expect_refused(c, path, list, 2, CUP_SHAPE, "but [12,6] f32 is needed");
    list[1] = (cup_named){"w[4:8/12]", half};
    expect_refused(c, path, list, 2, CUP_FORMAT, "\"w[4:8/12]\" is [4,6] bf16");
    list[1] = (cup_named){"w[:,3:6/6]", wide};
    expect_refused(c, path, list, 2, CUP_FORMAT, "\"w[:,3:6/6]\" is");
    list[1] = (cup_named){"w", four};
    expect_refused(c, path, list, 2, CUP_FORMAT, "holds \"w\" whole and in slices");
    expect_refused(c, path, &(cup_named){"v", four}, 1, CUP_FORMAT, "holds no tensor \"w\"");
    cup_context_free(c);
}

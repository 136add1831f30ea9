/* Memory of the caller's as tensors, and tensors' memory held by others. */
#include <stdint.h>
#include <string.h>

#include "base/memory.h"
#include "cuda/support.h"
#include "cupola/cupola.h"
#include "tensor/context.h"
#include "test.h"

static int released;

static void count_release(void *user)
{
    released += *(const int *)user;
}

static const int one = 1;
#define SIZED .size = sizeof(cup_wrap_options)
#define TOLD .release = count_release, .user = (void *)(uintptr_t)&one

static cup_context *cpu(void)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(cup_error(c), CUP_OK);
    released = 0;
    return c;
}

static void expect_error(cup_context *c, cup_status status, const char *words)
{
    EXPECT_INT(cup_error(c), status);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_error_clear(c);
    EXPECT_INT(released, 0);
}

TEST(wrap_computes_on_the_callers_memory)
{
    float memory[] = {1, 2, 3, 4, 5, 6}, sum[2];
    cup_context *c = cpu();
    cup_tensor *x = cup_tensor_wrap(c, CUP_F32, 2, (int64_t[]){2, 3}, memory, NULL);
    EXPECT(cup_tensor_data(x) == memory && cup_tensor_is_contiguous(x));
    memory[0] = 10;
    EXPECT_INT(cup_tensor_read(cup_sum(c, x, (int64_t[]){1}, 1, false), sum, sizeof sum), CUP_OK);
    EXPECT(sum[0] == 15 && sum[1] == 15);
    EXPECT_INT(cup_tensor_write(x, (float[]){0, 0, 0, 0, 0, 7}, 24), CUP_OK);
    EXPECT(memory[5] == 7);
    cup_context_free(c);
    EXPECT(memory[5] == 7);
}

TEST(wrap_follows_strides)
{
    const float memory[] = {1, 2, 3, 4, 5, 6, 7, 8};
    float to[6];
    cup_context *c = cpu();
    cup_tensor *x = cup_tensor_wrap(
        c, CUP_F32, 2, (int64_t[]){2, 3}, (void *)(uintptr_t)memory,
        &(cup_wrap_options){SIZED, .strides = (int64_t[]){1, 3},
                            .read_only = true});
    EXPECT_INT(cup_tensor_stride(x, 1), 3);
    EXPECT_INT(cup_tensor_read(cup_neg(c, x), to, sizeof to), CUP_OK);
    for (int i = 0; i < 6; i++)
        EXPECT(to[i] == -memory[i / 3 + i % 3 * 3]);
    /* One element, many times. */
    x = cup_tensor_wrap(c, CUP_F32, 1, (int64_t[]){6}, (void *)(uintptr_t)(memory + 4),
                        &(cup_wrap_options){SIZED, .strides = (int64_t[]){0}, .read_only = true});
    EXPECT_INT(cup_tensor_read(x, to, sizeof to), CUP_OK);
    EXPECT(to[0] == 5 && to[5] == 5);
    cup_context_free(c);
}

TEST(wrap_releases_once_at_the_last_use)
{
    float memory[4] = {1, 2, 3, 4};
    cup_context *c = cpu();
    cup_wrap_options told = {SIZED, TOLD};
    cup_scope_open(c);
    cup_tensor *x = cup_tensor_wrap(c, CUP_F32, 1, (int64_t[]){4}, memory, &told);
    cup_tensor *view = cup_keep(cup_reshape(c, x, 2, (int64_t[]){2, 2}));
    cup_scope_close(c);
    EXPECT_INT(released, 0);
    EXPECT(cup_tensor_data(view) == memory);
    const cup_hold *hold = cup_tensor_hold(view);
    cup_tensor_free(view);
    EXPECT_INT(released, 0);
    EXPECT(hold->data == memory && hold->device == -1 && hold->shape[1] == 2);
    cup_hold_free(hold);
    EXPECT_INT(released, 1);
    /* Its struct is used again for memory that is the device's own. */
    cup_scope_open(c);
    cup_full(c, CUP_F32, 1, (int64_t[]){4}, 2);
    cup_scope_close(c);
    EXPECT_INT(released, 1);
    cup_keep(cup_tensor_wrap(c, CUP_F32, 1, (int64_t[]){0}, NULL, &told));
    cup_tensor_wrap(c, CUP_F32, 0, NULL, memory, &told);
    cup_context_free(c);
    EXPECT_INT(released, 3);
    EXPECT(memory[0] == 1 && memory[3] == 4);
}

TEST(wrap_is_held_by_the_tape)
{
    float memory[] = {1, 2}, d[2];
    cup_context *c = cpu();
    cup_tensor *w = cup_keep(cup_require_grad(cup_full(c, CUP_F32, 1, (int64_t[]){2}, 3)));
    cup_scope_open(c);
    cup_scope_open(c);
    cup_tensor *x = cup_tensor_wrap(c, CUP_F32, 1, (int64_t[]){2}, memory,
                                    &(cup_wrap_options){SIZED, .read_only = true, TOLD});
    cup_tensor *loss = cup_scope_return(c, cup_sum(c, cup_mul(c, x, w), NULL, 0, false));
    EXPECT_INT(released, 0);
    EXPECT_INT(cup_backward(c, loss), CUP_OK);
    EXPECT_INT(released, 1);
    EXPECT_INT(cup_tensor_read(cup_grad(w), d, sizeof d), CUP_OK);
    EXPECT(d[0] == 1 && d[1] == 2);
    cup_scope_close(c);
    cup_context_free(c);
}

TEST(wrap_refuses_what_cannot_be)
{
    float memory[16];
    int64_t two[] = {2, 2};
    cup_context *c = cpu();
#define REFUSE(dtype, ndim, shape, at, status, words, ...)                                         \
    EXPECT(!cup_tensor_wrap(c, dtype, ndim, shape, at,                                             \
                            &(cup_wrap_options){SIZED, TOLD, __VA_ARGS__}));                       \
    expect_error(c, status, words)
    REFUSE(CUP_F32, 2, two, NULL, CUP_ARGUMENT, "its memory is NULL", .read_only = false);
    REFUSE(CUP_F32, 2, two, (char *)memory + 2, CUP_ARGUMENT, "multiple of an", .read_only = false);
    REFUSE(CUP_F32, 2, two, memory, CUP_ARGUMENT, "negative", .strides = (int64_t[]){2, -1});
    REFUSE(CUP_F32, 2, two, memory, CUP_ARGUMENT, "share an address", .strides = (int64_t[]){1, 1});
    REFUSE(CUP_F32, 2, two, memory, CUP_ARGUMENT, "share an address", .strides = (int64_t[]){2, 0});
    REFUSE(CUP_F32, 2, two, memory, CUP_ARGUMENT, "too far",
           .strides = (int64_t[]){INT64_MAX, INT64_MAX});
    REFUSE(CUP_F64, 1, two, memory, CUP_ARGUMENT, "too far",
           .strides = (int64_t[]){INT64_MAX / 8 + 1});
    REFUSE(CUP_F32, 1, two, (void *)(UINTPTR_MAX - 3), CUP_ARGUMENT, "end", .read_only = false);
    EXPECT(!cup_tensor_wrap(c, CUP_F32, 2, two, memory, &(cup_wrap_options){TOLD}));
    expect_error(c, CUP_ARGUMENT, "make them with CUP_OPTIONS");
    REFUSE(CUP_F32, 9, two, memory, CUP_SHAPE, "9 dimensions", .read_only = false);
    REFUSE(CUP_F32, -1, two, memory, CUP_SHAPE, "-1 dimensions", .read_only = false);
    REFUSE((cup_dtype)77, 2, two, memory, CUP_DTYPE, "no dtype", .read_only = false);
    REFUSE(CUP_F32, 1, NULL, memory, CUP_ARGUMENT, "its shape is NULL", .read_only = false);
    EXPECT(!cup_tensor_wrap(NULL, CUP_F32, 1, two, memory, NULL));
    for (long n = 1; n < 4; n++) {
        cup_context *fresh = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
        cup__memory_fail_at(n, false);
        cup_tensor *x = cup_tensor_wrap(fresh, CUP_F32, 2, two, memory,
                                        &(cup_wrap_options){SIZED, TOLD});
        cup__memory_fail_at(0, false);
        EXPECT(!x && cup_error(fresh) == CUP_MEMORY);
        cup_context_free(fresh);
    }
    EXPECT_INT(released, 0);
    cup_context_free(c);
}

TEST(wrap_read_only_is_written_by_nothing)
{
    float memory[] = {1, 2, 3, 4};
    cup_context *c = cpu();
    cup_tensor *y = cup_tensor_wrap(c, CUP_F32, 1, (int64_t[]){4}, memory,
                                    &(cup_wrap_options){SIZED, .read_only = true});
    cup_tensor *x = cup_full(c, CUP_F32, 1, (int64_t[]){4}, 9);
    EXPECT_INT(cup_tensor_write(y, (float[4]){0}, 16), CUP_STATE);
    expect_error(c, CUP_STATE, "writing [4] f32: its memory was wrapped as read-only");
    EXPECT_INT(cup_copy_into(c, cup_reshape(c, y, 2, (int64_t[]){2, 2}),
                             cup_reshape(c, x, 2, (int64_t[]){2, 2})),
               CUP_STATE);
    expect_error(c, CUP_STATE, "copy_into: [2,2] f32, [2,2] f32: input 1 would be changed");
    cup_expr *e = cup_expr_new(c, "x", "", "x+1");
    EXPECT(!cup_expr_call(e, (cup_tensor *[]){x}, NULL, (cup_tensor *[]){y}));
    expect_error(c, CUP_STATE, "read-only");
    cup_expr_free(e);
    EXPECT(memory[0] == 1 && memory[3] == 4);
    cup_context_free(c);
}

TEST(wrap_twice_knows_of_overlap)
{
    float memory[] = {1, 2, 3, 4};
    cup_context *c = cpu();
    cup_tensor *y = cup_tensor_wrap(c, CUP_F32, 1, (int64_t[]){3}, memory, NULL);
    cup_tensor *x = cup_tensor_wrap(c, CUP_F32, 1, (int64_t[]){3}, memory + 1, NULL);
    EXPECT_INT(cup_copy_into(c, y, x), CUP_ARGUMENT);
    expect_error(c, CUP_ARGUMENT, "shares memory");
    cup_expr *e = cup_expr_new(c, "x", "", "x+1");
    EXPECT(!cup_expr_call(e, (cup_tensor *[]){x}, NULL, (cup_tensor *[]){y}));
    expect_error(c, CUP_ARGUMENT, "written over");
    cup_expr_free(e);
    cup_context_free(c);
}

TEST(wrap_is_not_poisoned)
{
    float memory[] = {1, 2};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .debug = true));
    released = 0;
    cup_tensor *x = cup_keep(cup_tensor_wrap(c, CUP_F32, 1, (int64_t[]){2}, memory,
                                             &(cup_wrap_options){SIZED, TOLD}));
    cup_tensor_free(x);
    EXPECT(released == 1 && memory[0] == 1 && memory[1] == 2);
    cup_context_free(c);
}

TEST(hold_outlives_tensor_and_context)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .debug = true));
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){2, 2}, (float[]){1, 2, 3, 4});
    const cup_hold *hold = cup_tensor_hold(cup_permute(c, x, (int64_t[]){1, 0}, 2));
    const cup_hold *second = cup_tensor_hold(x);
    EXPECT(hold->strides[0] == 1 && hold->strides[1] == 2 && !hold->read_only);
    EXPECT_INT(hold->dtype, CUP_F32);
    cup_hold_free(second);
    cup_context_free(c);
    EXPECT(((const float *)hold->data)[3] == 4);
    cup_hold_free(hold);
    cup_hold_free(NULL);
    c = cpu();
    EXPECT(!cup_tensor_hold(NULL));
    cup__memory_fail_at(1, true);
    EXPECT(!cup_tensor_hold(cup_full(c, CUP_F32, 0, NULL, 1)));
    cup__memory_fail_at(0, false);
    cup_context_free(c);
}

TEST(hold_of_what_gradients_rely_on_is_read_only)
{
    cup_context *c = cpu();
    cup_tensor *w = cup_require_grad(cup_full(c, CUP_F32, 1, (int64_t[]){2}, 3));
    const cup_hold *hold = cup_tensor_hold(cup_mul(c, w, w)), *plain = cup_tensor_hold(w);
    EXPECT(hold->read_only && !plain->read_only);
    cup_hold_free(hold);
    cup_hold_free(plain);
    cup_context_free(c);
}

/* On a GPU. */

static cup_context *fake(void)
{
    fake_begin();
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    EXPECT_TEXT(cup_error_text(c), "");
    released = 0;
    return c;
}

static long queued_at_release;

static void note_queued(void *user)
{
    (void)user;
    released++;
    queued_at_release = fake_queued();
}

TEST(wrap_of_the_gpus_memory)
{
    float to[4];
    cup_context *c = fake(), *other = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    cup_tensor *theirs = cup_tensor_from(other, CUP_F32, 1, (int64_t[]){4}, (float[]){1, 2, 3, 4});
    const cup_hold *hold = cup_tensor_hold(theirs);
    EXPECT_INT(hold->device, 0);
    EXPECT_INT(cup_synchronize(other), CUP_OK);
    cup_tensor *x = cup_keep(cup_tensor_wrap(c, CUP_F32, 1, (int64_t[]){4}, hold->data,
                                             &(cup_wrap_options){SIZED, .release = note_queued}));
    EXPECT_INT(cup_tensor_read(x, to, sizeof to), CUP_OK);
    EXPECT(to[0] == 1 && to[3] == 4);
    EXPECT_INT(cup_tensor_write(x, (float[]){5, 6, 7, 8}, 16), CUP_OK);
    EXPECT(fake_queued() > 0);
    cup_tensor_free(x);
    EXPECT_INT(released, 1);
    EXPECT_INT(queued_at_release, 0);
    EXPECT_INT(cup_tensor_read(theirs, to, sizeof to), CUP_OK);
    EXPECT(to[0] == 5);
    cup_context_free(c);
    cup_context_free(other);
    cup_hold_free(hold); /* after its context */
    fake_expect_nothing_left();
}

TEST(wrap_of_the_hosts_memory_for_a_gpu_is_refused)
{
    float memory[4];
    void *pinned;
    cup_context *c = fake();
    EXPECT(!cup_tensor_wrap(c, CUP_F32, 1, (int64_t[]){4}, memory,
                            &(cup_wrap_options){SIZED, TOLD}));
    expect_error(c, CUP_ARGUMENT, "copy memory of the host with cup_tensor_from");
    cup__driver.cuMemHostAlloc(&pinned, 64, 0);
    EXPECT(!cup_tensor_wrap(c, CUP_F32, 1, (int64_t[]){4}, pinned,
                            &(cup_wrap_options){SIZED, TOLD}));
    expect_error(c, CUP_ARGUMENT, "memory of the host");
    cup__driver.cuMemFreeHost(pinned);
    CUdeviceptr device; /* which is too short */
    cup__driver.cuMemAlloc(&device, 4096);
    EXPECT(!cup_tensor_wrap(c, CUP_F32, 1, (int64_t[]){1025}, (void *)(uintptr_t)device,
                            &(cup_wrap_options){SIZED, TOLD}));
    expect_error(c, CUP_ARGUMENT, "ends in");
    cup__driver.cuMemFree(device);
    cup_context_free(c);
    fake_expect_nothing_left();
}

TEST(wrap_released_in_a_capture_stays_with_the_graph)
{
    CUdeviceptr device;
    float to[4];
    cup_context *c = fake();
    cup_tensor *y = cup_keep(cup_tensor_from(c, CUP_F32, 1, (int64_t[]){4}, (float[4]){0}));
    cup__driver.cuMemAlloc(&device, 16);
    void *memory = (void *)(uintptr_t)device;
    EXPECT_INT(c->device->calls->write(c->device, memory, (float[]){1, 2, 3, 4}, 16), CUP_OK);
    EXPECT_INT(cup_synchronize(c), CUP_OK);
    EXPECT_INT(cup_capture_begin(c), CUP_OK);
    cup_scope_open(c);
    cup_tensor *x = cup_tensor_wrap(c, CUP_F32, 1, (int64_t[]){4}, memory,
                                    &(cup_wrap_options){SIZED, .release = note_queued});
    EXPECT(x != NULL);
    EXPECT_INT(c->device->calls->copy(c->device, cup_tensor_data(y), cup_tensor_data(x), 16),
               CUP_OK);
    cup_scope_close(c);
    cup_graph *graph = cup_capture_end(c);
    EXPECT_INT(released, 0);
    EXPECT_INT(cup_graph_launch(graph), CUP_OK);
    EXPECT_INT(cup_tensor_read(y, to, sizeof to), CUP_OK);
    EXPECT(to[3] == 4);
    cup_graph_free(graph);
    EXPECT_INT(released, 1);
    cup__driver.cuMemFree(device);
    cup_context_free(c);
    fake_expect_nothing_left();
}

/* An optimizer whose states lie in the host's memory. */
#include <stdlib.h>
#include <string.h>

#include "cuda/support.h"
#include "cupola/cupola.h"
#include "test.h"

enum { ROWS = 70, COLUMNS = 129, COUNT = ROWS * COLUMNS, STEPS = 4, MOST = 8 };

static cup_optimizer *make(cup_context *c, cup_tensor **parameter, cup_method method,
                           cup_dtype dtype, bool offload)
{
    static float value[COUNT];
    for (int i = 0; i < COUNT; i++)
        value[i] = (float)(i % 97) / 64 - 0.7f;
    int64_t shape[] = {ROWS, COLUMNS};
    *parameter = cup_keep(cup_cast(c, cup_tensor_from(c, CUP_F32, 2, shape, value), dtype));
    cup_parameter one = {.name = "w", .tensor = *parameter, .decay = true, .hidden = true};
    cup_optimizer *o = cup_optimizer_new(
        c, &one, 1,
        CUP_OPTIONS(cup_optimizer_options, .method = method, .weight_decay = 0.1, .clip = 0.5,
                    .average = 0.9, .offload = offload));
    EXPECT_INT(cup_optimizer_set(o, 0.05, 1), CUP_OK);
    return o;
}

static cup_context *open_fake(void)
{
    fake_begin();
    unsetenv("CUP_KERNELS");
    setenv("FAKE_NVRTC_ANY", "1", 1);
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
}

static int64_t allocated(cup_context *c)
{
    cup_memory use;
    cup_memory_use(c, &use);
    return use.allocated;
}

/* The GPU has less by all states, of which each can be saved and filled again as any tensor. */
TEST(offload_leaves_the_gpu_nothing_but_steps)
{
    cup_context *c = open_fake();
    int64_t used[2], states;
    long pinned = 0;
    for (int offload = 0; offload < 2; offload++) {
        cup_tensor *w;
        int64_t before = allocated(c);
        long calls = fake_calls("cuMemHostAlloc");
        cup_optimizer *o = make(c, &w, CUP_METHOD_ADAMW, CUP_BF16, offload);
        used[offload] = allocated(c) - before;
        pinned = fake_calls("cuMemHostAlloc") - calls;
        const cup_named *state = cup_optimizer_state(o, &states);
        EXPECT_INT(states, 5);
        EXPECT_TEXT(state[1].name, "w.master");
        static float in[COUNT], out[COUNT];
        for (int i = 0; i < COUNT; i++)
            in[i] = (float)i;
        for (int i = 1; i < states; i++) {
            EXPECT_INT(cup_tensor_write(state[i].tensor, in, sizeof in), CUP_OK);
            EXPECT_INT(cup_tensor_read(state[i].tensor, out, sizeof out), CUP_OK);
            EXPECT(!memcmp(in, out, sizeof in));
        }
        cup_optimizer_free(o);
        cup_tensor_free(w);
    }
    EXPECT_INT(pinned, 4);
    int64_t each = (COUNT * 4 + 255) / 256 * 256;
    EXPECT(used[0] - used[1] >= 4 * each);
    cup_context_free(c);
    fake_expect_nothing_left();
}

TEST(offload_without_memory_is_said)
{
    cup_context *c = open_fake();
    cup_tensor *w = cup_keep(cup_zeros(c, CUP_F32, 1, (int64_t[]){1000}));
    cup_parameter one = {.name = "w", .tensor = w};
    fake_fail("cuMemHostAlloc", 1, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(!cup_optimizer_new(c, &one, 1, CUP_OPTIONS(cup_optimizer_options, .offload = true)));
    EXPECT_INT(cup_error(c), CUP_MEMORY);
    EXPECT_CONTAINS(cup_error_text(c), "pinned memory of the host for the optimizer's states");
    cup_error_clear(c);
    cup_tensor_free(w);
    cup_context_free(c);
    fake_expect_nothing_left();
}

/* What a few steps leave in the parameter and in all states, one behind the other. */
static size_t steps(const char *device, cup_method method, cup_dtype dtype, bool offload,
                    unsigned char *out)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    if (!c || cup_error(c) != CUP_OK) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    cup_tensor *w;
    cup_optimizer *o = make(c, &w, method, dtype, offload);
    for (int i = 0; i < STEPS; i++) {
        cup_scope_open(c);
        EXPECT_INT(cup_backward(c, cup_mean(c, cup_mul(c, w, w), NULL, 0, false)), CUP_OK);
        EXPECT_INT(cup_optimizer_step(o), CUP_OK);
        cup_optimizer_clear(o);
        cup_scope_close(c);
    }
    int64_t states;
    const cup_named *state = cup_optimizer_state(o, &states);
    EXPECT(states < MOST);
    size_t bytes = COUNT * (size_t)cup_dtype_size(dtype);
    EXPECT_INT(cup_tensor_read(w, out, bytes), CUP_OK);
    for (int64_t i = 1; i < states; i++, bytes += COUNT * 4)
        EXPECT_INT(cup_tensor_read(state[i].tensor, out + bytes, COUNT * 4), CUP_OK);
    cup_optimizer_free(o);
    cup_tensor_free(w);
    cup_context_free(c);
    return bytes;
}

static void check_same(const char *device)
{
    static unsigned char with[MOST * COUNT * 4], without[MOST * COUNT * 4];
    static const cup_method methods[] = {CUP_METHOD_ADAMW, CUP_METHOD_SGD, CUP_METHOD_LION,
                                         CUP_METHOD_MUON};
    for (int i = 0; i < 8; i++) {
        cup_dtype dtype = i % 2 ? CUP_BF16 : CUP_F32;
        size_t bytes = steps(device, methods[i / 2], dtype, false, without);
        EXPECT_INT(steps(device, methods[i / 2], dtype, true, with), bytes);
        EXPECT(!memcmp(with, without, bytes));
    }
}

TEST(offload_changes_nothing_on_a_cpu)
{
    check_same("cpu");
}

TEST(gpu_offload_has_the_same_bits)
{
    check_same("cuda");
}

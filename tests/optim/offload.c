/* An optimizer whose states lie in the host's memory. */
#include <stdlib.h>
#include <string.h>

#include "cuda/support.h"
#include "cupola/cupola.h"
#include "test.h"

enum { ROWS = 70, COLUMNS = 129, COUNT = ROWS * COLUMNS, STEPS = 4, MOST = 8 };

static cup_optimizer *make_of(cup_context *c, int rows, cup_tensor **parameter, cup_method method,
                              cup_dtype dtype, bool offload)
{
    int64_t shape[] = {rows, COLUMNS}, count = shape[0] * shape[1];
    float *value = malloc((size_t)count * sizeof *value);
    for (int64_t i = 0; i < count; i++)
        value[i] = (float)(i % 97) / 64 - 0.7f;
    *parameter = cup_keep(cup_cast(c, cup_tensor_from(c, CUP_F32, 2, shape, value), dtype));
    free(value);
    cup_parameter one = {.name = "w", .tensor = *parameter, .decay = true, .hidden = true};
    cup_optimizer *o = cup_optimizer_new(
        c, &one, 1,
        CUP_OPTIONS(cup_optimizer_options, .method = method, .weight_decay = 0.1, .clip = 0.5,
                    .average = 0.9, .offload = offload));
    EXPECT_INT(cup_optimizer_set(o, 0.05, 1), CUP_OK);
    return o;
}

static cup_optimizer *make(cup_context *c, cup_tensor **parameter, cup_method method,
                           cup_dtype dtype, bool offload)
{
    return make_of(c, ROWS, parameter, method, dtype, offload);
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

/* Parameters of which one is changed in the host's memory and two come in pieces, one of them in
 * several, to places that others leave meanwhile. */
enum { PARAMETERS = 3, LARGE = 3100 * 1501 };

static const int64_t sizes[PARAMETERS] = {COUNT, LARGE, 20001};

static float pattern(int64_t i)
{
    return (float)(i % 65521);
}

static void fill_states(cup_optimizer *o, float *values)
{
    int64_t states;
    const cup_named *state = cup_optimizer_state(o, &states);
    for (int64_t i = 0; i < LARGE; i++)
        values[i] = pattern(i);
    EXPECT_INT(states, 1 + 3 * PARAMETERS);
    for (int64_t i = 1; i < states; i++)
        EXPECT_INT(cup_tensor_write(state[i].tensor, values,
                                    (size_t)cup_tensor_count(state[i].tensor) * sizeof *values),
                   CUP_OK);
}

/* The stand-in's step adds 1 to each number that it is shown. */
static void expect_states(cup_optimizer *o, float *values, int steps)
{
    int64_t states;
    const cup_named *state = cup_optimizer_state(o, &states);
    for (int64_t i = 1; i < states; i++) {
        int64_t count = cup_tensor_count(state[i].tensor);
        EXPECT_INT(cup_tensor_read(state[i].tensor, values, (size_t)count * sizeof *values),
                   CUP_OK);
        for (int64_t k = 0; k < count; k++)
            if (values[k] != pattern(k) + (float)steps)
                test_fail(__FILE__, __LINE__, "%s, element %d is %g behind %d steps",
                          state[i].name, (int)k, (double)values[k], steps);
    }
}

TEST(offload_brings_each_state_and_takes_it_back)
{
    cup_context *c = open_fake();
    static float values[LARGE];
    cup_parameter list[PARAMETERS];
    for (int i = 0; i < PARAMETERS; i++)
        list[i] = (cup_parameter){.name = (const char *[]){"a", "b", "c"}[i],
                                  .tensor = cup_keep(cup_zeros(c, CUP_BF16, 1, &sizes[i]))};
    cup_optimizer *o = cup_optimizer_new(c, list, PARAMETERS,
                                         CUP_OPTIONS(cup_optimizer_options, .offload = true));
    EXPECT_INT(cup_optimizer_set(o, 0.05, 1), CUP_OK);
    fill_states(o, values);
    cup_scope_open(c);
    for (int i = 0; i < PARAMETERS; i++)
        EXPECT_INT(cup_backward(c, cup_mean(c, list[i].tensor, NULL, 0, false)), CUP_OK);
    for (int i = 0; i < 2; i++)
        EXPECT_INT(cup_optimizer_step(o), CUP_OK);
    expect_states(o, values, 2);
    EXPECT_INT(cup_capture_begin(c), CUP_OK);
    EXPECT_INT(cup_optimizer_step(o), CUP_OK);
    cup_graph *graph = cup_capture_end(c);
    for (int i = 0; i < 3; i++)
        EXPECT_INT(cup_graph_launch(graph), CUP_OK);
    expect_states(o, values, 5);
    cup_graph_free(graph);
    cup_scope_close(c);
    cup_optimizer_free(o);
    for (int i = 0; i < PARAMETERS; i++)
        cup_tensor_free(list[i].tensor);
    cup_context_free(c);
    fake_expect_nothing_left();
}

/* What a few steps leave in the parameter and in all states, one behind the other. */
static size_t steps(const char *device, int rows, cup_method method, cup_dtype dtype, bool offload,
                    unsigned char *out)
{
    size_t count = (size_t)rows * COLUMNS;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    if (!c || cup_error(c) != CUP_OK) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    cup_tensor *w;
    cup_optimizer *o = make_of(c, rows, &w, method, dtype, offload);
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
    size_t bytes = count * (size_t)cup_dtype_size(dtype);
    EXPECT_INT(cup_tensor_read(w, out, bytes), CUP_OK);
    for (int64_t i = 1; i < states; i++, bytes += count * 4)
        EXPECT_INT(cup_tensor_read(state[i].tensor, out + bytes, count * 4), CUP_OK);
    cup_optimizer_free(o);
    cup_tensor_free(w);
    cup_context_free(c);
    return bytes;
}

static void check_same(const char *device, int rows)
{
    size_t room = (size_t)rows * COLUMNS * 4 * MOST;
    unsigned char *with = malloc(room), *without = malloc(room);
    static const cup_method methods[] = {CUP_METHOD_ADAMW, CUP_METHOD_SGD, CUP_METHOD_LION,
                                         CUP_METHOD_MUON};
    for (int i = 0; i < 8; i++) {
        cup_dtype dtype = i % 2 ? CUP_BF16 : CUP_F32;
        size_t bytes = steps(device, rows, methods[i / 2], dtype, false, without);
        EXPECT_INT(steps(device, rows, methods[i / 2], dtype, true, with), bytes);
        EXPECT(!memcmp(with, without, bytes));
    }
    free(with);
    free(without);
}

TEST(offload_changes_nothing_on_a_cpu)
{
    check_same("cpu", ROWS);
}

TEST(gpu_offload_has_the_same_bits)
{
    check_same("cuda", ROWS);
    check_same("cuda", 32000); /* in pieces */
}

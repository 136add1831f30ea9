/* The switch of a context: each op gives the same bits again, on other numbers of threads too. */
#include <stdlib.h>
#include <string.h>

#include "../test.h"
#include "base/hash.h"
#include "base/memory.h"
#include "cuda/dry.h"
#include "cupola/graph.h"
#include "dispatch/op.h"
#include "prof/check.h"

#define MOST_INPUTS 64
#define MOST_CALLS 40000
/* Elements of an input; what is larger takes long and is more of the same. Threads of a CPU share
 * out less than what a GPU does. */
#define LARGEST 300000
#define LARGEST_ON_CPU 100000

static uint64_t hash_of(cup_tensor *t)
{
    size_t bytes = (size_t)(t->count * cup_dtype_size(t->dtype));
    char *values = cup__malloc(bytes);
    EXPECT(values != NULL);
    EXPECT_INT(cup_tensor_read(t, values, bytes), CUP_OK);
    uint64_t hash = cup__hash_bytes(values, bytes);
    cup__free(values);
    return hash;
}

/* The call as a caller makes it; the hash of all it wrote, 0 when it is not for this device. */
static uint64_t call_hash(cup_context *c, const cup__row *row, const cup__sample *s,
                          cup_dtype dtype)
{
    cup_tensor *in[MOST_INPUTS], *out[CUP__MAX_OUT] = {NULL};
    uint64_t hash = 1;
    cup_scope_open(c);
    cup_seed(c, 5);
    int count = cup__sample_inputs(c, row, s, dtype, dtype, CUP__ROW_MAJOR, 7, in, MOST_INPUTS);
    EXPECT(count >= 0);
    bool large = false;
    int64_t largest = c->device->is_cuda ? LARGEST : LARGEST_ON_CPU;
    for (int i = 0; i < count; i++)
        large = large || (in[i] && in[i]->count > largest);
    if (!large)
        cup__op_call(c, row, in, count, s->attributes, out);
    for (int i = 0; i < row->visible && out[i]; i++)
        hash = hash * 31 + hash_of(out[i]);
    for (int i = 0; i < count; i++)
        if (in[i] && cup__input_changes(row->op, i))
            hash = hash * 31 + hash_of(in[i]);
    if (cup_error(c) == CUP_UNSUPPORTED)
        hash = 0;
    else
        EXPECT_TEXT(cup_error_text(c), "");
    cup_error_clear(c);
    cup_scope_close(c);
    return hash;
}

/* All calls of all ops in one context, in the order of the table. */
static int hashes_in(cup_context *c, uint64_t *hashes)
{
    int count = 0;
    if (cup_error(c) != CUP_OK)
        test_fail(__FILE__, __LINE__, "%s", cup_error_text(c));
    for (const cup__row *row = cup__rows; row->name; row++)
        for (const cup__sample *s = row->op->samples; s && s->shapes; s++)
            for (int dtype = 0; dtype < 4; dtype++)
                if (cup__check_dtypes(row) >> dtype & 1 && dtype != CUP_F64) {
                    EXPECT(count < MOST_CALLS);
                    hashes[count++] = call_hash(c, row, s, (cup_dtype)dtype);
                }
    return count;
}

static int all_hashes(const cup_options *options, uint64_t *hashes)
{
    cup_context *c = cup_context_new(options);
    int count = hashes_in(c, hashes);
    cup_context_free(c);
    return count;
}

/* The largest samples of an op that are not too large, as many as MOST_SAMPLES. */
#define MOST_SAMPLES 2
static int choose_samples(cup_context *c, const cup__row *row, const cup__sample **out)
{
    int64_t size[MOST_SAMPLES] = {0};
    int found = 0;
    for (const cup__sample *s = row->op->samples; s && s->shapes; s++) {
        cup_tensor *in[MOST_INPUTS];
        int64_t elements = 1;
        cup_scope_open(c);
        int count = cup__sample_inputs(c, row, s, CUP_F32, CUP_F32, CUP__ROW_MAJOR, 0, in,
                                       MOST_INPUTS);
        for (int i = 0; i < count; i++) {
            elements += in[i] ? in[i]->count : 0;
            elements = in[i] && in[i]->count > LARGEST ? -LARGEST : elements;
        }
        cup_scope_close(c);
        int at = found < MOST_SAMPLES ? found++ : size[0] <= size[1] ? 0 : 1;
        if (elements > size[at]) {
            size[at] = elements;
            out[at] = s;
        } else if (!size[at]) {
            found--;
        }
    }
    return found;
}

/* Compiles what the calls need on all cores, rather than one after the other. */
static void prepare(const cup__gpu_facts *facts)
{
    static uint64_t ignored[MOST_CALLS];
    cup_context *c = cup__context_dry(facts->arch);
    cup__error error = {0};
    int count;
    EXPECT_TEXT(cup_error_text(c), "");
    cup__dry_like(cup__cuda_of(c->device), facts);
    c->options.deterministic = true;
    hashes_in(c, ignored);
    const cup__kernel_request *requests = cup__dry_requests(cup__cuda_of(c->device), &count);
    cup__kernels_prepare(&error, facts->arch, requests, count, 0, NULL, NULL);
    cup_context_free(c);
}

static void expect_same(const char *device, int threads, int other_threads)
{
    static uint64_t first[MOST_CALLS], second[MOST_CALLS];
    cup_options options = {
        .size = sizeof options, .device = device, .threads = threads, .deterministic = true};
    int count = all_hashes(&options, first);
    options.threads = other_threads;
    EXPECT_INT(all_hashes(&options, second), count);
    EXPECT(count > 500);
    int i = 0;
    for (const cup__row *row = cup__rows; row->name; row++)
        for (const cup__sample *s = row->op->samples; s && s->shapes; s++)
            for (int dtype = 0; dtype < 4; dtype++)
                if (cup__check_dtypes(row) >> dtype & 1 && dtype != CUP_F64 &&
                    (i++, first[i - 1] != second[i - 1]))
                    test_fail(__FILE__, __LINE__, "%s, %s, \"%s\": other bits in a second run",
                              row->name, cup_dtype_name((cup_dtype)dtype), s->shapes);
}

TEST_LIMITED(deterministic_ops_on_any_number_of_threads, 120)
{
    expect_same("cpu", 1, 3);
}

TEST_LIMITED(gpu_deterministic_ops, 300)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    bool is_there = cup_error(c) == CUP_OK;
    if (is_there)
        prepare(cup__cuda_facts(cup__cuda_of(c->device)));
    cup_context_free(c);
    if (!is_there)
        test_skip("no GPU");
    expect_same("cuda", 0, 0);
}

/* New values for the inputs, as a caller writes a new batch. */
static void write_inputs(cup_context *c, const cup__row *row, const cup__sample *s, cup_dtype dtype,
                         uint64_t seed, cup_tensor **in)
{
    cup_tensor *fresh[MOST_INPUTS];
    int count =
        cup__sample_inputs(c, row, s, dtype, dtype, CUP__ROW_MAJOR, seed, fresh, MOST_INPUTS);
    for (int i = 0; i < count; i++) {
        size_t bytes = in[i] ? (size_t)(in[i]->count * cup_dtype_size(in[i]->dtype)) : 0;
        if (bytes)
            EXPECT_INT(c->device->calls->copy(c->device, in[i]->data, fresh[i]->data, bytes),
                       CUP_OK);
    }
}

/* The hash of what a call gives on the inputs of seed 8 in the third random step: called so, or
 * replayed after it was captured on other inputs in the first step. 0: not for this device. */
static uint64_t replayed_hash(cup_context *c, const cup__row *row, const cup__sample *s,
                              cup_dtype dtype, bool captured)
{
    cup_tensor *in[MOST_INPUTS], *out[CUP__MAX_OUT] = {NULL};
    cup_graph *graph = NULL;
    uint64_t hash = 1;
    cup_scope_open(c);
    int count = cup__sample_inputs(c, row, s, dtype, dtype, CUP__ROW_MAJOR, captured ? 7 : 8, in,
                                   MOST_INPUTS);
    for (int i = 0; i < count; i++)
        hash = in[i] && in[i]->count > LARGEST ? 0 : hash;
    cup_seed(c, 5);
    cup_random_step(c, captured ? 1 : 3);
    if (captured)
        cup_capture_begin(c);
    if (hash)
        cup__op_call(c, row, in, count, s->attributes, out);
    if (captured) {
        graph = cup_capture_end(c);
        write_inputs(c, row, s, dtype, 8, in);
        cup_random_step(c, 3);
        cup_graph_launch(graph);
    }
    for (int i = 0; i < row->visible && out[i]; i++)
        hash = hash * 31 + hash_of(out[i]);
    for (int i = 0; i < count && hash; i++)
        if (in[i] && cup__input_changes(row->op, i))
            hash = hash * 31 + hash_of(in[i]);
    hash = cup_error(c) == CUP_UNSUPPORTED ? 0 : hash;
    if (hash && cup_error(c) != CUP_OK)
        test_fail(__FILE__, __LINE__, "%s, \"%s\": %s", row->name, s->shapes, cup_error_text(c));
    cup_error_clear(c);
    cup_graph_free(graph);
    cup_scope_close(c);
    return hash;
}

static int replay_op(cup_context *c, const cup__row *row, bool captured, uint64_t *hashes)
{
    const cup__sample *samples[MOST_SAMPLES];
    int count = 0, chosen = row->op->view ? 0 : choose_samples(c, row, samples);
    for (int i = 0; i < chosen; i++)
        for (int dtype = CUP_F32; dtype <= CUP_BF16; dtype += CUP_BF16 - CUP_F32)
            if (cup__check_dtypes(row) >> dtype & 1)
                hashes[count++] = replayed_hash(c, row, samples[i], (cup_dtype)dtype, captured);
    return count;
}

static void prepare_replays(const cup__gpu_facts *facts)
{
    uint64_t ignored[2 * MOST_SAMPLES];
    cup_context *c = cup__context_dry(facts->arch);
    cup__error error = {0};
    int count;
    cup__dry_like(cup__cuda_of(c->device), facts);
    for (const cup__row *row = cup__rows; row->name; row++)
        replay_op(c, row, false, ignored);
    const cup__kernel_request *requests = cup__dry_requests(cup__cuda_of(c->device), &count);
    cup__kernels_prepare(&error, facts->arch, requests, count, 0, NULL, NULL);
    cup_context_free(c);
}

/* Whatever is captured gives on new inputs, and in a new random step, the bits of the calls. */
TEST_LIMITED(gpu_capture_of_any_op, 300)
{
    uint64_t want[2 * MOST_SAMPLES], got[2 * MOST_SAMPLES];
    int compared = 0;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(c) != CUP_OK)
        test_skip("no GPU");
    prepare_replays(cup__cuda_facts(cup__cuda_of(c->device)));
    for (const cup__row *row = cup__rows; row->name; row++) {
        int count = replay_op(c, row, false, want);
        EXPECT_INT(replay_op(c, row, true, got), count);
        for (int i = 0; i < count; i++) {
            if (want[i] != got[i])
                test_fail(__FILE__, __LINE__, "%s: other bits when call %d is replayed", row->name,
                          i);
            compared += want[i] != 0;
        }
    }
    printf("%d calls replayed\n", compared);
    EXPECT(compared > 300);
    cup_context_free(c);
}

static cup_status run_nothing(cup__call *call)
{
    (void)call;
    return CUP_OK;
}

/* An op whose only fast way cannot promise its bits: taken without the switch, refused with it. */
TEST(deterministic_refuses_what_varies)
{
    static const cup__impl impls[] = {{.name = "hasty", .place = CUP__CPU, .run = run_nothing,
                                       .varies = "it adds as results come in"},
                                      {0}};
    cup__op op = *cup__row_find("neg")->op;
    op.impls = impls;
    cup__row row = *cup__row_find("neg");
    row.op = &op;
    for (int switched = 0; switched < 2; switched++) {
        cup_context *c = cup_context_new(
            CUP_OPTIONS(cup_options, .device = "cpu", .deterministic = switched == 1));
        cup_tensor *x = cup_tensor_new(c, CUP_F32, 1, (int64_t[]){4});
        cup__call call;
        EXPECT_INT(cup__call_begin(&call, c, &row, &x, 1, NULL), CUP_OK);
        const cup__impl *taken = cup__call_choose(&call);
        EXPECT(switched ? taken == NULL : taken == impls);
        cup_context_free(c);
    }
}

/* On a GPU there is no specification to fall back on: the error says why. */
TEST(deterministic_error_names_the_reason)
{
    static const cup__impl impls[] = {{.name = "hasty", .place = CUP__CUDA, .run = run_nothing,
                                       .varies = "it adds as results come in"},
                                      {0}};
    cup__op op = *cup__row_find("neg")->op;
    op.impls = impls;
    cup__row row = *cup__row_find("neg");
    row.op = &op;
    cup_context *c = cup__context_dry("sm_90a");
    cup_tensor *x = cup_tensor_new(c, CUP_F32, 1, (int64_t[]){4});
    EXPECT(cup__op_call(c, &row, &x, 1, NULL, NULL) != NULL);
    c->options.deterministic = true;
    EXPECT(cup__op_call(c, &row, &x, 1, NULL, NULL) == NULL);
    EXPECT_INT(cup_error(c), CUP_UNSUPPORTED);
    EXPECT_CONTAINS(cup_error_text(c), "hasty: it adds as results come in");
    cup_context_free(c);
}

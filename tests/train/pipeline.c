/* Stages of any model, one behind the other on several processes: the run of one process. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "comm/together.h"
#include "test.h"

#define ROWS 3
#define WIDTH 6
#define BATCHES 8
#define STEPS 6
#define PIECES 6
#define MIDDLE (PIECES - 2)

/* Pieces, of which the first and the last have a weight in common. A process has those of the
 * chunks of its stage. */
typedef struct model {
    cup_parameters *list;
    cup_linear_layer first, middle[MIDDLE], last;
    cup_tensor *common, *x;
    int stage, stages, chunks;
    const char *wrong; /* what is done wrong, or NULL */
    int zero;          /* what those who have a stage split, see cup_optimizer_options */
} model;

static bool chunk_has(const model *m, int chunk, int piece)
{
    return piece * m->stages * m->chunks / PIECES == chunk * m->stages + m->stage;
}

static bool has(const model *m, int piece)
{
    bool found = false;
    for (int i = 0; i < m->chunks; i++)
        found = found || chunk_has(m, i, piece);
    return found;
}

static bool is_wrong(const model *m, const char *what)
{
    return m->wrong && !strcmp(m->wrong, what);
}

static void make(model *m, cup_context *c)
{
    const int64_t shape[] = {WIDTH, WIDTH}, other[] = {WIDTH, 2 * WIDTH};
    const cup_linear_layer_options tanh = {.size = sizeof tanh, .activation = CUP_ACTIVATION_TANH};
    m->list = cup_parameters_new(c, CUP_F32);
    m->x = cup_tensor_new(c, CUP_F32, 3, (int64_t[]){BATCHES, ROWS, WIDTH});
    bool odd = is_wrong(m, "shape") && m->stage > 0;
    if (has(m, 0) || has(m, PIECES - 1) || is_wrong(m, "all share"))
        m->common = cup_parameter_new(m->list, "common", 2, odd ? other : shape, NULL);
    if (has(m, 0))
        cup_linear_layer_new(&m->first, m->list, "first", WIDTH, WIDTH, &tanh);
    for (int i = 0; i < MIDDLE; i++) {
        const char name[] = {(char)('a' + i), 0};
        if (has(m, i + 1))
            cup_linear_layer_new(&m->middle[i], m->list, name, WIDTH, WIDTH, &tanh);
    }
    if (has(m, PIECES - 1))
        cup_linear_layer_new(&m->last, m->list, "last", WIDTH, 1, NULL);
    if (is_wrong(m, "two sets") && !has(m, 0))
        cup_parameter_new(m->list, "other", 2, shape, NULL);
}

static cup_status write_batch(cup_context *c, int64_t step, void *user)
{
    model *m = user;
    float x[BATCHES * ROWS * WIDTH] = {0};
    (void)c;
    if (step == 3 && is_wrong(m, "changes") && m->stage > 0)
        cup_tensor_write(m->common, x, WIDTH * WIDTH * sizeof *x);
    for (int i = 0; i < BATCHES * ROWS * WIDTH; i++)
        x[i] = (float)sin((double)(i * 31 + step * 17));
    return cup_tensor_write(m->x, x, sizeof x);
}

static cup_tensor *chunk(cup_context *c, int64_t batch, int k, cup_tensor *x, void *user)
{
    const model *m = user;
    if (is_wrong(m, "forgets") && m->stage > 0)
        x = cup_detach(x);
    if (chunk_has(m, k, 0)) {
        x = cup_slice(c, m->x, (int64_t[]){batch, 0, 0}, 3, (int64_t[]){1, -1, -1}, 3);
        x = cup_linear_layer_call(&m->first, cup_reshape(c, x, 2, (int64_t[]){ROWS, WIDTH}));
        x = cup_linear(c, x, m->common, NULL);
    }
    for (int i = 0; i < MIDDLE; i++)
        if (chunk_has(m, k, i + 1))
            x = cup_linear_layer_call(&m->middle[i], x);
    if (is_wrong(m, "makes less") && m->stages > 1 && m->stage == 0)
        return cup_slice(c, x, (int64_t[]){0, 0}, 2, (int64_t[]){1, -1}, 2);
    if (!chunk_has(m, k, PIECES - 1))
        return x;
    x = cup_linear_layer_call(&m->last, cup_linear(c, x, m->common, NULL));
    x = cup_add(c, x, cup_full(c, CUP_F32, 0, NULL, 1));
    return cup_mean(c, cup_mul(c, x, x), NULL, 0, false);
}

static cup_tensor *stage(cup_context *c, int64_t batch, cup_tensor *x, void *user)
{
    return chunk(c, batch, 0, x, user);
}

static cup_loop *loop_of(model *m, cup_comm *comm, cup_comm *pipe, int64_t steps)
{
    const cup_loop_calls calls = {
        .size = sizeof calls,
        .batch = write_batch,
        .stage = m->chunks > 1 ? NULL : stage,
        .chunk = m->chunks > 1 ? chunk : NULL,
        .user = m};
    const cup_loop_options options = {
        .size = sizeof options,
        .schedule = {.high = 0.5, .steps = steps, .decline = CUP_DECLINE_CONSTANT},
        .optimizer = {.method = CUP_METHOD_SGD,
                      .clip = 0.5,
                      .split = m->zero ? comm : NULL,
                      .stage = m->zero},
        .accumulate = BATCHES,
        .comm = comm,
        .check_every = 2,
        .pipe = pipe,
        .between_dtype = CUP_F32,
        .between_ndim = 2,
        .between = {ROWS, WIDTH},
        .chunks = m->chunks};
    return cup_loop_new(m->list, &calls, &options);
}

static double distance(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    bool was = cup_grad_recording(c, false);
    cup_tensor *d = a && b ? cup_max(c, cup_abs(c, cup_sub(c, a, b)), NULL, 0, false) : NULL;
    cup_grad_recording(c, was);
    return d ? cup_tensor_item(d) : INFINITY;
}

/* Steps of plain descent move each weight by its gradient, so that what is alike behind the first
 * of them has alike gradients. */
static void compare(cup_context *c, cup_comm *comm, const model *how, int64_t steps)
{
    int rank = cup_comm_rank(comm), stages = how->stages;
    cup_comm *pipe = cup_comm_split_new(comm, rank / stages);
    model part = *how, whole = {.stages = 1, .chunks = how->chunks};
    part.stage = cup_comm_rank(pipe);
    make(&part, c);
    make(&whole, c);
    /* It begins as the first stage has it. */
    if (part.stage > 0 && part.common)
        cup_tensor_write(part.common, (float[WIDTH * WIDTH]){0}, WIDTH * WIDTH * sizeof(float));
    cup_loop *a = loop_of(&part, comm, pipe, steps), *b = loop_of(&whole, NULL, NULL, steps);
    cup_loop_run(a, NULL);
    cup_loop_run(b, NULL);
    int64_t count, points = 0, same = 0;
    const cup_named *named = cup_parameters_named(part.list, &count);
    for (int64_t i = 0; i < count; i++) {
        double far = distance(c, named[i].tensor, cup_parameters_find(whole.list, named[i].name));
        if (!(far < 2e-6))
            wrong("%d stages of %d, %d steps: %s is %g away", stages, how->chunks, (int)steps,
                  named[i].name, far);
    }
    const cup_training_point *p = cup_loop_points(a, &points), *q = cup_loop_points(b, &same);
    for (int64_t i = 0; i < points && i < same; i++)
        if (!(fabs(p[i].loss - q[i].loss) < 2e-6) || !(fabs(p[i].norm - q[i].norm) < 2e-6))
            wrong("step %d: loss %.8g and %.8g, norm %.8g and %.8g", (int)i, p[i].loss, q[i].loss,
                  p[i].norm, q[i].norm);
    if (points != steps || same != steps || count < 1)
        wrong("%d and %d points, %d tensors", (int)points, (int)same, (int)count);
    cup_loop_free(a);
    cup_loop_free(b);
    cup_parameters_free(part.list);
    cup_parameters_free(whole.list);
    cup_comm_free(pipe);
}

static void compare_all(cup_context *c, cup_comm *comm, void *user)
{
    compare(c, comm, user, 1);
    compare(c, comm, user, STEPS);
}

TEST(pipeline_of_any_model_is_the_run_of_one)
{
    together(1, compare_all, &(model){.stages = 1, .chunks = 1});
    together(2, compare_all, &(model){.stages = 2, .chunks = 1});
    together(3, compare_all, &(model){.stages = 3, .chunks = 1});
    together(4, compare_all, &(model){.stages = 2, .chunks = 1});
}

/* Parameters of a stage may be left to their owners, the common one in either stage, too. */
TEST(pipeline_of_parameters_elsewhere_is_the_run_of_one)
{
    together(4, compare_all, &(model){.stages = 2, .chunks = 1, .zero = 3});
    together(6, compare_all, &(model){.stages = 3, .chunks = 2, .zero = 3});
    together(4, compare_all, &(model){.stages = 2, .chunks = 3, .zero = 2});
}

/* The whole is called chunk by chunk, too. Of three stages eight batches are no multiple. */
TEST(pipeline_of_chunks_is_the_run_of_one)
{
    together(1, compare_all, &(model){.stages = 1, .chunks = 3});
    together(2, compare_all, &(model){.stages = 2, .chunks = 2});
    together(2, compare_all, &(model){.stages = 2, .chunks = 3});
    together(3, compare_all, &(model){.stages = 3, .chunks = 2});
    together(4, compare_all, &(model){.stages = 2, .chunks = 3});
}

/* Who sees it says so, and the others hear of it. */
static void go_wrong(cup_context *c, cup_comm *comm, void *user)
{
    model m = {.stage = cup_comm_rank(comm),
               .stages = cup_comm_count(comm),
               .chunks = 1,
               .wrong = user};
    make(&m, c);
    cup_loop *l = loop_of(&m, comm, comm, STEPS);
    cup_loop_run(l, NULL);
    if (cup_error(c) == CUP_OK)
        wrong("%s: nothing is refused", m.wrong);
    cup_loop_free(l);
    cup_parameters_free(m.list);
}

TEST(pipeline_refuses_what_cannot_be)
{
    static const struct {
        int stages;
        char wrong[16], words[64];
    } cases[] = {{2, "makes less", "stage 0 has made [1,6] f32 of batch 0"},
                 {2, "forgets", "does not depend on what the stage before"},
                 {2, "changes", "weights"},
                 {2, "shape", "common has another shape or dtype in one stage"},
                 {3, "two sets", "other is in other stages than what other stages share"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        together_end ends[3];
        int said = 0;
        together_look(cases[i].stages,
                      CUP_OPTIONS(cup_comm_options, .count = cases[i].stages,
                                  .address = together_address(), .timeout = 30),
                      go_wrong, (void *)(uintptr_t)cases[i].wrong, ends);
        for (int r = 0; r < cases[i].stages; r++) {
            said += strstr(ends[r].text, cases[i].words) != NULL;
            EXPECT(ends[r].text[0] != 0);
        }
        if (said == 0)
            EXPECT_TEXT(ends[0].text, cases[i].words);
    }
}

static cup_tensor *alone(cup_context *c, int64_t batch, void *user)
{
    return stage(c, batch, NULL, user);
}

static void misuse(cup_context *c, cup_comm *comm, void *user)
{
    static const char *const words[] = {"need the communicator", "which is NULL",
                                        "with 9 dimensions", "stages of 2 chunks; take",
                                        "stages of 33 chunks; take"};
    model m = {.stage = cup_comm_rank(comm), .stages = 2, .chunks = 1};
    (void)user;
    make(&m, c);
    for (int i = 0; i < 5; i++) {
        const cup_loop_calls calls = {.size = sizeof calls,
                                      .stage = i == 1 ? NULL : stage,
                                      .chunk = i == 4 ? chunk : NULL,
                                      .loss = i == 1 ? alone : NULL,
                                      .user = &m};
        const cup_loop_options options = {.size = sizeof options,
                                          .schedule = {.high = 1, .steps = 1},
                                          .comm = i == 0 ? NULL : comm,
                                          .pipe = comm,
                                          .between_ndim = i == 2 ? 9 : 2,
                                          .chunks = i == 3 ? 2 : i == 4 ? 33 : 0};
        cup_loop *l = cup_loop_new(m.list, &calls, &options);
        if (l || !strstr(cup_error_text(c), words[i]))
            wrong("not \"%s\" but \"%s\"", words[i], cup_error_text(c));
        cup_error_clear(c);
        cup_loop_free(l);
    }
    cup_parameters_free(m.list);
}

TEST(pipeline_options_are_checked)
{
    together(2, misuse, NULL);
}

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "data/corpus.h"
#include "nn/gpt.h"
#include "tensor/tensor.h"
#include "train/schedule.h"
#include "train/trainer.h"

typedef struct evaluation {
    cup_gpt *model;
    const cup_data *data;
    cup_split split;
    int64_t windows; /* texts that follow each other in the part */
    int64_t texts;   /* how many of them are taken */
    int32_t *tokens, *targets;
    cup_comm *pipe; /* of the stages of the model, or NULL */
    cup_comm *ring; /* of those that have a part of each text, or NULL */
    int together;   /* so many of those who share the texts go through the same ones */
} evaluation;

static bool is_last(const evaluation *e)
{
    return cup_comm_rank(e->pipe) == cup_comm_count(e->pipe) - 1;
}

/* In place: the parts that stay lie behind where they go. */
void cup__text_parts(const cup_comm *ring, int64_t context, int64_t rows, int32_t *tokens)
{
    int64_t count = cup_comm_count(ring), half = context / (2 * count);
    int64_t parts[] = {cup_comm_rank(ring), 2 * count - 1 - cup_comm_rank(ring)};
    for (int64_t i = 0; i < 2 * rows && count > 1; i++)
        memmove(tokens + i * half, tokens + i / 2 * context + parts[i % 2] * half,
                (size_t)half * sizeof *tokens);
}

/* This process's part of texts, and of what they are to give. */
typedef struct excerpt {
    cup_tensor *tokens, *targets;
} excerpt;

/* Who shares out a model sends an equal part of the tokens to experts that are elsewhere. */
static cup_status check_tokens(const evaluation *e, int64_t rows)
{
    const cup_parameters *list = e->model->parameters;
    int64_t length = e->model->config.context / cup_comm_count(e->ring);
    int count = cup_comm_count(cup_parameters_comm(list));
    bool sent = e->model->config.experts && cup_parameters_experts_comm(list);
    if (!sent || rows * length % count == 0)
        return CUP_OK;
    return cup__fail(&e->model->context->error, CUP_ARGUMENT,
                     "evaluation: %lld texts of %lld tokens are no %d equal parts for those who "
                     "share out a model to send to experts; evaluate another number of texts, or "
                     "take a context that is a multiple of %d",
                     (long long)rows, (long long)length, count, count);
}

/* The texts [first, first + rows) of those that are taken. */
static cup_status read_texts(const evaluation *e, int64_t first, int64_t rows, excerpt *out)
{
    cup_context *c = e->model->context;
    int64_t context = e->model->config.context;
    CUP_TRY(check_tokens(e, rows));
    for (int64_t i = 0; i < rows; i++) {
        int64_t window = (int64_t)((__int128)(first + i) * e->windows / e->texts);
        CUP_TRY(cup_data_window(c, e->data, e->split, window, 1, context, e->tokens + i * context,
                                e->targets + i * context));
    }
    cup__text_parts(e->ring, context, rows, e->tokens);
    cup__text_parts(e->ring, context, rows, e->targets);
    const int64_t shape[] = {rows, context / cup_comm_count(e->ring)};
    *out = (excerpt){cup_tensor_from(c, CUP_I32, 2, shape, e->tokens),
                     cup_tensor_from(c, CUP_I32, 2, shape, e->targets)};
    return c->error.status;
}

bool cup__evaluated_whole(const cup_gpt *m, int64_t rows)
{
    cup_parameters *list = m->parameters;
    int64_t length = m->config.context / cup_comm_count(cup_parameters_ring_comm(list));
    bool even = rows * length % cup_comm_count(cup_parameters_comm(list)) == 0;
    bool was = cup_parameters_sequence(list, false);
    cup_parameters_sequence(list, was && even);
    return was;
}

/* Their mean loss, by the whole model. */
static cup_status evaluate_rows(const evaluation *e, int64_t first, int64_t rows, double *loss)
{
    excerpt t;
    cup_context *c = e->model->context;
    cup_scope_open(c);
    cup_status status = read_texts(e, first, rows, &t);
    bool sequence = cup__evaluated_whole(e->model, rows);
    cup_tensor *y = status == CUP_OK ? cup_gpt_loss(e->model, t.tokens, t.targets, false) : NULL;
    cup_parameters_sequence(e->model->parameters, sequence);
    *loss = y ? cup_tensor_item(y) : NAN;
    cup_scope_return(c, NULL);
    return c->error.status;
}

/* `sum` may be NULL: in vain. */
static cup_status forward(const evaluation *e, int chunk, int64_t first, int64_t rows,
                          cup_tensor **x, double *sum)
{
    excerpt t;
    cup_gpt *m = e->model;
    CUP_TRY(read_texts(e, first, rows, &t));
    bool sequence = cup__evaluated_whole(m, rows);
    cup_tensor *y = cup_gpt_chunk_call(m, chunk, t.tokens, *x, t.targets, false);
    cup_parameters_sequence(m->parameters, sequence);
    bool last = m->bounds[2 * chunk + 1] == m->config.layers;
    if (last && y && sum)
        *sum += cup_tensor_item(y) * (double)rows;
    cup_tensor_free(*x);
    *x = last ? NULL : cup_keep(y);
    return m->context->error.status;
}

/* What comes into a chunk, and what it makes, are at `x` one after the other. */
static cup_status turn(const evaluation *e, const cup__turn *t, int64_t first, int64_t rows,
                       cup_tensor **x, double *sum)
{
    const cup_gpt *m = e->model;
    cup_context *c = m->context;
    int at = cup_comm_rank(e->pipe), count = cup_comm_count(e->pipe);
    if (t->kind == CUP__FORWARD)
        return forward(e, t->chunk, first, rows, x, sum);
    if (t->kind == CUP__TAKE) {
        const int64_t shape[] = {rows, m->config.context / cup_comm_count(e->ring),
                                 m->config.width};
        *x = cup_keep(cup_tensor_new(c, m->dtype, 3, shape));
        return *x ? cup_comm_receive(e->pipe, *x, (at + count - 1) % count) : c->error.status;
    }
    CUP_TRY(cup_comm_send(e->pipe, *x, (at + 1) % count));
    cup_tensor_free(*x);
    *x = NULL;
    return CUP_OK;
}

/* The texts [begin, end) in batches through the chunks of this process's stage; the sum is 0 in
 * all but the last. Behind them one text each, in vain, until there were `calls`. */
static cup_status evaluate_stage(const evaluation *e, int64_t batch, int64_t begin, int64_t end,
                                 int64_t calls, double *sum)
{
    cup_context *c = e->model->context;
    cup__schedule s;
    int64_t batches = (end - begin + batch - 1) / batch;
    const cup__stages of = {cup_comm_count(e->pipe), e->model->chunks,
                            calls > batches ? calls : batches, false};
    CUP_TRY(cup__schedule_make(&c->error, &of, cup_comm_rank(e->pipe), &s));
    cup_tensor **places = cup__calloc((size_t)s.slots + 1, sizeof *places);
    cup_status status = CUP_OK;
    if (!places)
        status = cup__fail(&c->error, CUP_MEMORY, "out of host memory for an evaluation");
    for (int64_t i = 0; i < s.count && status == CUP_OK; i++) {
        const cup__turn *t = &s.turns[i];
        int64_t first = begin + t->batch * batch, rows = end - first < batch ? end - first : batch;
        bool vain = t->batch >= batches;
        cup_scope_open(c);
        status = vain ? turn(e, t, 0, 1, &places[t->slot], NULL)
                      : turn(e, t, first, rows, &places[t->slot], sum);
        cup_scope_return(c, NULL);
    }
    for (int i = 0; i < s.slots && places; i++)
        cup_tensor_free(places[i]);
    cup__free(places);
    cup__free(s.turns);
    return status;
}

/* Of texts [begin, end) in batches; then of one text each, in vain, until there were `calls`. */
static cup_status evaluate(evaluation *e, int64_t batch, int64_t begin, int64_t end,
                           int64_t calls, double *sum)
{
    cup_context *c = e->model->context;
    int64_t context = e->model->config.context;
    size_t bytes = (size_t)(batch * context) * sizeof *e->tokens;
    e->tokens = cup__malloc(bytes);
    e->targets = cup__malloc(bytes);
    cup_status status = CUP_OK;
    if (!e->tokens || !e->targets)
        status = cup__fail(&c->error, CUP_MEMORY, "out of host memory for an evaluation");
    *sum = 0;
    if (status == CUP_OK && e->pipe)
        status = evaluate_stage(e, batch, begin, end, calls, sum);
    for (int64_t first = begin; first < end && status == CUP_OK && !e->pipe; first += batch) {
        int64_t rows = end - first < batch ? end - first : batch;
        double mean = NAN;
        status = evaluate_rows(e, first, rows, &mean);
        *sum += mean * (double)rows;
        calls--;
    }
    for (double ignored; calls > 0 && status == CUP_OK && !e->pipe; calls--)
        status = evaluate_rows(e, 0, 1, &ignored);
    cup__free(e->tokens);
    cup__free(e->targets);
    return status;
}

int64_t cup__evaluated_texts(const cup_data *data, cup_split split, int64_t context, int64_t texts)
{
    int64_t windows = cup_data_windows(data, split, context);
    return texts > 0 && texts < windows ? texts : windows;
}

/* Copies that have parts of texts, or of the experts, go through the same ones; of both the fewer
 * are among the more. */
int cup__evaluated_together(const cup_gpt *m)
{
    const cup_parameters *list = m->parameters;
    int ring = cup_comm_count(cup_parameters_ring_comm(list));
    int experts = cup_comm_count(cup_parameters_experts_comm(list));
    int each = cup_comm_count(cup_parameters_comm(list));
    return ring * each > experts ? ring : experts / each;
}

/* The share of each process, then the sum of all. */
static cup_status evaluate_share(evaluation *e, cup_comm *comm, int64_t batch, double *loss)
{
    cup_context *c = e->model->context;
    int64_t begin, end;
    double sum;
    int together = e->together, groups = cup_comm_count(comm) / together;
    cup__evaluated_share(comm, together, e->texts, &begin, &end);
    /* Parameters that come to all at a call come to those who have a batch less, too. */
    int64_t most = e->texts / groups + (e->texts % groups > 0);
    int64_t calls = c->bringer ? (most + batch - 1) / batch : 0;
    CUP_TRY(evaluate(e, batch, begin, end, calls, &sum));
    if (comm) {
        cup_scope_open(c);
        cup_tensor *all = cup_tensor_from(c, CUP_F64, 0, NULL, &sum);
        if (is_last(e))
            cup_comm_all_reduce(comm, &all, 1, CUP_COMBINE_SUM);
        if (e->pipe)
            cup_comm_broadcast(e->pipe, &all, 1, cup_comm_count(e->pipe) - 1);
        sum = cup_tensor_item(all);
        cup_scope_return(c, NULL);
    }
    *loss = sum / (double)(e->texts * together);
    return c->error.status;
}

cup_status cup_gpt_evaluate(cup_gpt *m, const cup_data *data, cup_split split, int64_t batch,
                            int64_t texts, double *loss)
{
    if (m)
        CUP_TRY(cup__gpt_check_whole(m, "evaluation"));
    return cup__gpt_evaluate(m, data, split, NULL, NULL, batch, texts, loss);
}

cup_status cup__gpt_evaluate(cup_gpt *m, const cup_data *data, cup_split split, cup_comm *comm,
                             cup_comm *pipe, int64_t batch, int64_t texts, double *loss)
{
    if (!m)
        return CUP_ARGUMENT;
    cup_context *c = m->context;
    if (!data || !loss)
        return cup__fail(&c->error, CUP_ARGUMENT, "evaluation: the %s is NULL",
                         data ? "place for the loss" : "data");
    evaluation e = {.model = m, .data = data, .split = split, .pipe = pipe};
    e.ring = cup_parameters_ring_comm(m->parameters);
    cup_comm *experts = cup_parameters_experts_comm(m->parameters);
    e.together = cup__evaluated_together(m);
    if (!comm) {
        /* Parts of a model have all texts, and the same loss. */
        bool parts = cup_parameters_comm(m->parameters) != NULL;
        bool ring = parts || cup_comm_count(e.ring) > cup_comm_count(experts);
        comm = ring ? e.ring : experts;
        e.together = cup_comm_count(comm);
    }
    e.windows = cup_data_windows(data, split, m->config.context);
    e.texts = cup__evaluated_texts(data, split, m->config.context, texts);
    *loss = NAN;
    if (c->error.status != CUP_OK)
        return c->error.status;
    if (batch < 1 || e.texts < 1)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "evaluation: batches of %lld texts from a part of the data that has %lld "
                         "of the model's context",
                         (long long)batch, (long long)e.windows);
    if (m->config.context % (2 * (int64_t)cup_comm_count(e.ring)) && e.ring)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "evaluation: texts of %lld tokens have no %d parts alike; take a context "
                         "that is a multiple of it",
                         (long long)m->config.context, 2 * cup_comm_count(e.ring));
    if (cup__data_vocabulary(data) > m->config.vocabulary)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "evaluation: the data is in tokens of a vocabulary of %lld, the model "
                         "knows %lld",
                         (long long)cup__data_vocabulary(data), (long long)m->config.vocabulary);
    bool was = cup_grad_recording(c, false);
    cup_status status = evaluate_share(&e, comm, batch < e.texts ? batch : e.texts, loss);
    cup_grad_recording(c, was);
    return status;
}

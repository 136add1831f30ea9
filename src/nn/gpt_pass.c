/* The passes through a GPT. */
#include "cupola/expr.h"
#include "cupola/facts.h"
#include "cupola/ops.h"
#include "nn/gpt.h"

static cup_tensor *drop(const cup_gpt *m, cup_tensor *x, bool training)
{
    double p = m->config.dropout;
    cup_comm *ring = cup_parameters_ring_comm(m->parameters);
    if (!training || !(p > 0))
        return x;
    return ring ? cup_comm_dropout(ring, x, p) : cup_dropout(m->context, x, p);
}

/* What a result was made of goes at once, where the tape does not hold it, and not with the scope
 * of the whole pass. */
static cup_tensor *instead(cup_tensor *made, cup_tensor *used)
{
    if (made != used)
        cup_tensor_free(used);
    return made;
}

/* What blocks make: a sum, where what was added last may not be in it yet, and what their experts
 * cost, or NULL. */
typedef struct stream {
    cup_tensor *x, *delta, *cost;
    cup_tensor *ends; /* of the documents in the texts, or NULL */
} stream;

static bool has_cost(const cup_gpt *m, bool training)
{
    const cup_gpt_config *g = &m->config;
    return training && g->experts > 0 && (g->balance > 0 || g->router_z > 0);
}

cup_tensor *cup__gpt_part(cup_tensor *x, int axis, int64_t from, int64_t to)
{
    if (!x)
        return NULL;
    int ndim = cup_tensor_ndim(x);
    int64_t starts[CUP_MAX_DIMS] = {0}, sizes[CUP_MAX_DIMS];
    for (int i = 0; i < ndim; i++)
        sizes[i] = -1;
    axis += axis < 0 ? ndim : 0;
    starts[axis] = from;
    sizes[axis] = to - from;
    return cup_slice(cup_tensor_context(x), x, starts, ndim, sizes, ndim);
}

cup_tensor *cup__gpt_end(const cup_gpt *m, cup_tensor *x, cup_tensor *delta, bool training)
{
    cup_context *c = m->context;
    double epsilon = m->config.epsilon;
    bool rms = m->config.norm == CUP_NORM_KIND_RMSNORM;
    cup_tensor *y = NULL, *sum = NULL;
    if (!delta)
        return rms ? cup_rmsnorm(c, x, m->norm, epsilon)
                   : cup_layernorm(c, x, m->norm, m->norm_bias, epsilon);
    cup_tensor *dropped = drop(m, delta, training);
    if (rms)
        cup_add_rmsnorm(c, dropped, x, m->norm, epsilon, &y, &sum);
    else
        cup_add_layernorm(c, dropped, x, m->norm, m->norm_bias, epsilon, &y, &sum);
    cup_tensor_free(sum);
    instead(delta, dropped);
    return y;
}

/* The same of what blocks gave, which nothing else needs. */
static cup_tensor *end_of_blocks(const cup_gpt *m, const stream *s, bool training)
{
    cup_tensor *y = cup__gpt_end(m, s->x, s->delta, training);
    cup_tensor_free(s->delta);
    return instead(y, s->x);
}

/* The whole sum, which takes the place of its parts. */
static cup_tensor *sum_of(const cup_gpt *m, const stream *s, bool training)
{
    if (!s->delta)
        return s->x;
    cup_tensor *dropped = drop(m, s->delta, training);
    cup_tensor *y = instead(cup_add(m->context, s->x, dropped), s->x);
    instead(s->delta, dropped);
    cup_tensor_free(s->delta);
    return y;
}

/* Backward may run it when the list is not in training any more, or not yet. Where experts cost
 * something that is the second result. */
static cup_status run_recomputed(cup_context *c, cup_tensor *const *inputs, int count, void *user,
                                 cup_tensor **out)
{
    const cup__gpt_pass *pass = user;
    const cup_gpt *m = pass->model;
    stream s = {NULL};
    bool was = cup_parameters_training(m->parameters, pass->training);
    cup_tensor *other = cup_parameters_documents(m->parameters, count > 1 ? inputs[1] : NULL);
    s.x = cup_transformer_layer_pass_cost(pass->block, inputs[0], &s.delta,
                                          has_cost(m, pass->training) ? &s.cost : NULL);
    out[0] = sum_of(m, &s, pass->training);
    if (s.cost)
        out[1] = s.cost;
    cup_parameters_documents(m->parameters, other);
    cup_parameters_training(m->parameters, was);
    return cup_error(c);
}

/* Of so many tokens, of which other processes may have as many more of each text. */
static cup_tensor *positions_of(const cup_gpt *m, int64_t length)
{
    cup_comm *ring = cup_parameters_ring_comm(m->parameters);
    cup_tensor *all = cup__gpt_part(m->positions, 0, 0, length * cup_comm_count(ring));
    return ring ? cup_comm_part(ring, all, 0) : all;
}

/* The vectors of the positions of tokens, in a document those behind its beginning. */
static cup_tensor *place_of(const cup_gpt *m, cup_tensor *tokens, cup_tensor *ends)
{
    if (!ends)
        return positions_of(m, cup_tensor_size(tokens, 1));
    return cup_embedding(m->context, m->positions, cup__gpt_document_places(m, tokens, ends));
}

static cup_tensor *embed(const cup_gpt *m, cup_tensor *tokens, cup_tensor *ends, bool training)
{
    cup_context *c = m->context;
    cup_comm *among = cup_parameters_comm(m->parameters);
    cup_tensor *x = among ? cup_comm_embedding(among, m->embedding, tokens)
                          : cup_embedding(c, m->embedding, tokens);
    if (m->positions)
        x = instead(cup_add(c, x, place_of(m, tokens, ends)), x);
    x = instead(drop(m, x, training), x);
    return instead(cup_parameters_rows_take(m->parameters, x), x);
}

/* A token of [B,T] in memory of the host. */
static int64_t token_at(cup_tensor *tokens, int64_t row, int64_t column)
{
    const void *data = cup_tensor_data(tokens);
    int64_t at = row * cup_tensor_stride(tokens, 0) + column * cup_tensor_stride(tokens, 1);
    return cup_tensor_dtype(tokens) == CUP_I64 ? ((const int64_t *)data)[at]
                                               : ((const int32_t *)data)[at];
}

cup_status cup__gpt_tokens_check(const cup_gpt *m, cup_tensor *tokens)
{
    cup_context *c = m->context;
    cup_dtype dtype = cup_tensor_dtype(tokens);
    if (dtype != CUP_I32 && dtype != CUP_I64)
        return cup_fail(c, CUP_DTYPE, "gpt: tokens are %s; they must be i32 or i64",
                        cup_dtype_name(dtype));
    int64_t length = cup_tensor_size(tokens, 1);
    for (int64_t i = 0; !cup_device_is_cuda(c) && i < cup_tensor_count(tokens); i++) {
        int64_t id = token_at(tokens, i / length, i % length);
        if (id < 0 || id >= m->config.vocabulary)
            return cup_fail(c, CUP_ARGUMENT,
                            "gpt: token %lld at position %lld is none of the model's %lld",
                            (long long)id, (long long)i, (long long)m->config.vocabulary);
    }
    return cup_error(c);
}

static cup_status check_tokens(const cup_gpt *m, cup_tensor *tokens)
{
    char text[100];
    cup_context *c = m->context;
    const cup_comm *ring = cup_parameters_ring_comm(m->parameters);
    if (!tokens)
        return cup_fail(c, CUP_ARGUMENT, "gpt: the tokens are NULL");
    int64_t length = cup_tensor_size(tokens, 1), each = cup_comm_count(ring);
    if (cup_tensor_ndim(tokens) != 2 || length < 1 || length > m->config.context / each)
        return cup_fail(c, CUP_SHAPE,
                        "gpt: tokens are %s; they must be [B,T] with T from 1 to the context %lld",
                        cup_tensor_text(tokens, text, sizeof text),
                        (long long)(m->config.context / each));
    if (each > 1 && length % 2)
        return cup_fail(c, CUP_SHAPE,
                        "gpt: processes that have a part of each text have an even number of its "
                        "tokens, not %lld; see cup_comm_part",
                        (long long)length);
    return cup__gpt_tokens_check(m, tokens);
}

/* Random numbers are drawn for the embedding, and in each block for attention and for what either
 * half adds, of which the last is dropped where it is added. */
#define DRAWS_OF_BLOCK 3

/* Draws from here on what the whole model draws behind so many blocks. */
static void skip_draws(const cup_gpt *m, int64_t blocks)
{
    cup_random_skip(m->context, 1 + DRAWS_OF_BLOCK * blocks);
}

cup_recompute_policy cup__gpt_policy_before(cup_recompute_policy policy)
{
    return policy == CUP_RECOMPUTE_POLICY_BLOCK       ? CUP_RECOMPUTE_POLICY_POINTWISE
           : policy == CUP_RECOMPUTE_POLICY_POINTWISE ? CUP_RECOMPUTE_POLICY_NORMS
                                                      : CUP_RECOMPUTE_POLICY_NONE;
}

static cup_recompute_policy policy_of(const cup_gpt *m, int64_t block)
{
    if (m->recompute == CUP_RECOMPUTE_POLICY_AUTO)
        return CUP_RECOMPUTE_POLICY_NONE;
    return m->recompute_blocks > 0 && block >= m->recompute_blocks
               ? cup__gpt_policy_before(m->recompute)
               : m->recompute;
}

static void run_block(const cup_gpt *m, int64_t block, bool training, stream *s)
{
    cup_context *c = m->context;
    cup_tensor *made[2] = {NULL, NULL}, *given[] = {s->x, s->ends};
    bool costs = has_cost(m, training);
    if (policy_of(m, block) == CUP_RECOMPUTE_POLICY_BLOCK)
        cup_recompute_all(c, run_recomputed, given, 1 + (s->ends != NULL),
                          &m->passes[2 * block + training], made, 1 + costs);
    else
        made[0] = cup_transformer_layer_pass_cost(&m->blocks[block], s->x, &s->delta,
                                                  costs ? &made[1] : NULL);
    s->x = made[0];
    if (made[1])
        s->cost = s->cost ? cup_add(c, s->cost, made[1]) : made[1];
}

/* The same with what its policy says of the results of ops, where the program has not said more. */
static void run_block_kept(const cup_gpt *m, int64_t block, bool training, stream *s)
{
    cup_context *c = m->context;
    cup_recompute_policy policy = policy_of(m, block);
    if (policy != CUP_RECOMPUTE_POLICY_NORMS && policy != CUP_RECOMPUTE_POLICY_POINTWISE) {
        run_block(m, block, training, s);
        return;
    }
    cup_recompute_policy was = cup_recompute_results(c, policy);
    if (was == CUP_RECOMPUTE_POLICY_POINTWISE)
        cup_recompute_results(c, was);
    run_block(m, block, training, s);
    cup_recompute_results(c, was);
}

/* The blocks of a chunk. */
static stream run_blocks(const cup_gpt *m, int chunk, cup_tensor *x, cup_tensor *ends,
                         bool training)
{
    bool was = cup_parameters_training(m->parameters, training);
    int64_t from = m->bounds[2 * chunk], end = m->bounds[2 * chunk + 1];
    stream s = {.x = x, .ends = ends};
    cup_tensor *other = cup_parameters_documents(m->parameters, ends);
    for (int64_t i = from; i < end; i++) {
        const stream used = s;
        run_block_kept(m, i, training, &s);
        if (i > from || from == 0) /* the caller's, of a later stage */
            instead(s.x, used.x);
        instead(s.delta, used.delta);
    }
    cup_parameters_documents(m->parameters, other);
    cup_parameters_training(m->parameters, was);
    return s;
}

/* All of the model but the head: [B,T] to [B,T,width]; and what is to be added to the loss. */
static cup_tensor *pass(const cup_gpt *m, cup_tensor *tokens, bool training, cup_tensor **cost)
{
    if (check_tokens(m, tokens) != CUP_OK)
        return NULL;
    cup_tensor *ends = m->config.documents ? cup__gpt_document_ends(m, tokens) : NULL;
    stream s = run_blocks(m, 0, embed(m, tokens, ends, training), ends, training);
    *cost = s.cost;
    return cup_parameters_rows_join(m->parameters, end_of_blocks(m, &s, training));
}

/* Of [B,T,rows of this process] those of all. */
static cup_tensor *gather_logits(const cup_gpt *m, cup_comm *among, cup_tensor *part)
{
    cup_context *c = m->context;
    if (!part)
        return NULL;
    int64_t batch = cup_tensor_size(part, 0), length = cup_tensor_size(part, 1);
    int64_t rows = cup_tensor_size(part, 2), count = cup_comm_count(among);
    const int64_t apart[] = {1, batch, length, rows}, order[] = {1, 2, 0, 3};
    const int64_t together[] = {batch, length, count * rows};
    cup_tensor *all = cup_comm_gather(among, cup_reshape(c, part, 4, apart));
    return cup_reshape(c, cup_permute(c, all, order, 4), 3, together);
}

cup_tensor *cup__gpt_logits(const cup_gpt *m, cup_tensor *x)
{
    cup_tensor *logits = cup_linear(m->context, x, m->head, NULL);
    return m->cap && logits ? cup_expr_call(m->cap, &logits, &m->config.logits_cap, NULL) : logits;
}

cup_tensor *cup_gpt_logits(cup_gpt *m, cup_tensor *tokens)
{
    if (!m || cup__gpt_check_whole(m, "logits") != CUP_OK)
        return NULL;
    cup_context *c = m->context;
    cup_tensor *none;
    cup_scope_open(c);
    cup_tensor *logits = cup__gpt_logits(m, pass(m, tokens, false, &none));
    cup_comm *among = cup_parameters_comm(m->parameters);
    if (among)
        logits = gather_logits(m, among, logits);
    return cup_scope_return(c, cup__gpt_part(logits, -1, 0, m->config.vocabulary));
}

/* What rows in so many chunks cost, in units of the product that gives the gradient of x from that
 * of all logits. It has few tiles, whose last wave may leave most multiprocessors idle, where the
 * other two products have many; and each chunk reads and writes the sum of the weight's gradient in
 * f32, in the time in which that product does SUM_ROWS rows. */
#define TILE_ROWS 128
#define TILE_COLUMNS 256
#define SUM_ROWS 1000
static double cost_of(int64_t rows, int64_t parts, int64_t width, int64_t multiprocessors)
{
    int64_t each = (rows + parts - 1) / parts;
    int64_t tiles = (each + TILE_ROWS - 1) / TILE_ROWS *
                    ((width + TILE_COLUMNS - 1) / TILE_COLUMNS);
    int64_t waves = multiprocessors ? (tiles + multiprocessors - 1) / multiprocessors : 1;
    double filled = multiprocessors ? (double)tiles / (double)(waves * multiprocessors) : 1;
    return 1 / filled + (double)parts * SUM_ROWS / (double)rows;
}

#define MORE_PARTS 8 /* that are tried */

/* Rows of logits that are there at once: of the chunks that are small enough the cheapest; 0 when
 * that is all of them. */
static int64_t rows_at_once(const cup_gpt *m, const cup_tensor *targets)
{
    cup_gpu gpu;
    int64_t row = cup_tensor_size(m->head, 0) * cup_dtype_size(m->dtype);
    int64_t most = (m->logits_most > 0 ? m->logits_most : CUP__GPT_LOGITS_MOST) / row;
    int64_t rows = cup_tensor_count(targets), least = most > 0 ? (rows + most - 1) / most : rows;
    if (least <= 1)
        return 0;
    int64_t multiprocessors = cup_gpu_of(m->context, &gpu) ? gpu.multiprocessors : 0, best = least;
    for (int64_t parts = least + 1; parts <= least + MORE_PARTS && parts <= rows; parts++)
        if (cost_of(rows, parts, m->config.width, multiprocessors) <
            cost_of(rows, best, m->config.width, multiprocessors))
            best = parts;
    int64_t each = (rows + best - 1) / best;
    int64_t whole = (each + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    return whole <= most ? whole : each;
}

static cup_tensor *loss_of(const cup_gpt *m, cup_tensor *x, cup_tensor *targets, bool training)
{
    cup_context *c = m->context;
    cup_comm *among = cup_parameters_comm(m->parameters);
    int64_t vocabulary = m->config.vocabulary;
    if (among)
        return cup_comm_cross_entropy(among, cup__gpt_logits(m, x), targets, -1, vocabulary);
    /* The slopes of logits in f16 are to be made with the scale of the loss, in backward. */
    bool scaled = training && m->dtype == CUP_F16;
    int64_t rows = targets && !scaled && !m->cap ? rows_at_once(m, targets) : 0;
    if (rows > 0)
        return cup_linear_cross_entropy(
            c, x, m->head, targets, -1,
            CUP_OPTIONS(cup_linear_cross_entropy_options, .columns = vocabulary, .chunk = rows));
    /* Else the logits are used up: in training their gradient takes their place. */
    return cup_cross_entropy(
        c, cup__gpt_logits(m, x), targets, -1,
        CUP_OPTIONS(cup_cross_entropy_options, .columns = vocabulary,
                    .in_place = training && !scaled));
}

/* With what experts cost, or NULL. */
static cup_tensor *whole_loss(const cup_gpt *m, cup_tensor *x, cup_tensor *cost,
                              cup_tensor *targets, bool training)
{
    cup_tensor *loss = loss_of(m, x, targets, training);
    return cost ? cup_add(m->context, loss, cost) : loss;
}

cup_tensor *cup_gpt_loss(cup_gpt *m, cup_tensor *tokens, cup_tensor *targets, bool training)
{
    if (!m || cup__gpt_check_whole(m, "loss") != CUP_OK)
        return NULL;
    cup_tensor *cost = NULL;
    cup_scope_open(m->context);
    cup_tensor *x = pass(m, tokens, training, &cost);
    return cup_scope_return(m->context, whole_loss(m, x, cost, targets, training));
}

/* What another stage has made. */
static cup_status check_between(const cup_gpt *m, cup_tensor *x)
{
    char text[100];
    if (!x)
        return cup_fail(m->context, CUP_ARGUMENT, "gpt: what the stage before has made is NULL");
    if (cup_tensor_ndim(x) == 3 && cup_tensor_size(x, 2) == m->config.width &&
        cup_tensor_dtype(x) == m->dtype)
        return CUP_OK;
    return cup_fail(m->context, CUP_SHAPE,
                    "gpt: what the stage before has made is %s; it must be %s [B,T,%lld]",
                    cup_tensor_text(x, text, sizeof text), cup_dtype_name(m->dtype),
                    (long long)m->config.width);
}

cup_tensor *cup_gpt_stage_call(cup_gpt *m, cup_tensor *tokens, cup_tensor *x, cup_tensor *targets,
                               bool training)
{
    return cup_gpt_chunk_call(m, 0, tokens, x, targets, training);
}

cup_tensor *cup_gpt_chunk_call(cup_gpt *m, int chunk, cup_tensor *tokens, cup_tensor *x,
                               cup_tensor *targets, bool training)
{
    return cup_gpt_chunk_call_cost(m, chunk, tokens, x, targets, training, NULL);
}

cup_tensor *cup_gpt_chunk_call_cost(cup_gpt *m, int chunk, cup_tensor *tokens, cup_tensor *x,
                                    cup_tensor *targets, bool training, cup_tensor **cost)
{
    if (cost)
        *cost = NULL;
    if (!m || cup_error(m->context) != CUP_OK)
        return NULL;
    cup_context *c = m->context;
    if (chunk < 0 || chunk >= m->chunks) {
        cup_fail(c, CUP_ARGUMENT, "gpt: there is no chunk %d of a stage of %d", chunk, m->chunks);
        return NULL;
    }
    bool first = m->bounds[2 * chunk] == 0, last = m->bounds[2 * chunk + 1] == m->config.layers;
    if (!cost && !last && has_cost(m, training)) {
        cup_fail(c, CUP_ARGUMENT, "gpt: what experts of a stage cost has no place; call "
                                  "cup_gpt_chunk_call_cost, and add it to the loss");
        return NULL;
    }
    if ((first ? check_tokens(m, tokens) : check_between(m, x)) != CUP_OK)
        return NULL;
    if (!first && m->config.documents && check_tokens(m, tokens) != CUP_OK)
        return NULL;
    cup_scope_open(c);
    cup_tensor *ends = m->config.documents ? cup__gpt_document_ends(m, tokens) : NULL;
    x = first ? embed(m, tokens, ends, training) : cup_parameters_rows_take(m->parameters, x);
    if (!first && training && m->config.dropout > 0)
        skip_draws(m, m->bounds[2 * chunk]);
    stream s = run_blocks(m, chunk, x, ends, training);
    if (last) {
        x = cup_parameters_rows_join(m->parameters, end_of_blocks(m, &s, training));
        return cup_scope_return(c, whole_loss(m, x, s.cost, targets, training));
    }
    x = cup_parameters_rows_join(m->parameters, sum_of(m, &s, training));
    if (cup_scope_return_all(c, (cup_tensor *[]){x, s.cost}, 2) != CUP_OK)
        return NULL;
    if (cost)
        *cost = s.cost;
    return x;
}

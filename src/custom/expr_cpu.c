/* Formulas on the CPU: vectors of CHUNK floats or doubles go through the nodes one after another,
 * over all cores. Folds are over fixed pieces, put together in order, so that the number of threads
 * does not show. */
#include <math.h>
#include <string.h>

#include "base/divide.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "custom/program.h"
#include "custom/vectors.h"

#define CHUNK 1024
#define PIECE (64 * CHUNK) /* folded elements that one thread takes on */

typedef struct job {
    cup__call *call;
    const cup__expr_plan *plan;
    const cup__program *program;
    cup__expr_loops loops;
    int64_t inner, chunks; /* of a row: elements side by side, and vectors of them */
    int64_t pieces;        /* of a folded element, PIECE each but the last */
    double *partial;       /* [element][piece][result] */
    _Atomic bool failed;   /* for want of memory */
} job;

/* What a thread works with. Values are doubles when the plan is wide, else floats. */
typedef struct bench {
    const job *job;
    char *memory;
    const void **value; /* of each node */
    bool wide;
    size_t vector; /* bytes of one */
} bench;

static void fill(const bench *b, void *to, double value)
{
    float *floats = to;
    double *doubles = to;
    for (int i = 0; i < CHUNK; i++) {
        if (b->wide)
            doubles[i] = value;
        else
            floats[i] = (float)value;
    }
}

static bool bench_open(bench *b, job *j)
{
    *b = (bench){.job = j, .wide = j->plan->wide};
    b->vector = CHUNK * (b->wide ? sizeof(double) : sizeof(float));
    b->memory = cup__aligned(64, (size_t)j->program->slots * b->vector);
    b->value = cup__calloc((size_t)j->program->count, sizeof *b->value);
    if (!b->memory || !b->value)
        j->failed = true;
    for (int node = 0; !j->failed && node < j->program->count; node++) {
        const cup__expr_node *n = &j->program->nodes[node];
        char *to = b->memory + (size_t)j->program->slot[node] * b->vector;
        b->value[node] = to;
        if (n->function == CUP__NUMBER)
            fill(b, to, n->value);
        else if (n->function == CUP__PARAMETER)
            fill(b, to, j->plan->parameters[n->in[0]]);
    }
    return !j->failed;
}

static void bench_close(bench *b)
{
    cup__free(b->memory);
    cup__free(b->value);
}

static const void *doubles(const cup_tensor *t, int64_t offset, int64_t stride, int64_t count,
                           double *buffer)
{
    if (stride == 1 && t->dtype == CUP_F64)
        return (const double *)t->data + offset;
    for (int64_t i = 0; i < count; i++)
        buffer[i] = stride || i == 0 ? cup__load(t, offset + i * stride) : buffer[0];
    return buffer;
}

/* The input's elements in a row: where they are, or brought into the buffer. */
static const void *numbers(const bench *b, const cup_tensor *t, int64_t offset, int64_t stride,
                           int64_t count, void *buffer)
{
    if (b->wide)
        return doubles(t, offset, stride, count, buffer);
    float *to = buffer;
    const char *at = (const char *)t->data + offset * cup_dtype_size(t->dtype);
    if (stride == 1 && t->dtype == CUP_F32)
        return at;
    if (stride == 1) {
        cup__load_f32(to, at, t->dtype, count);
    } else {
        for (int64_t i = 0; i < count; i++)
            to[i] = stride || i == 0 ? (float)cup__load(t, offset + i * stride) : to[0];
    }
    return to;
}

/* All nodes for `count` elements, whose inputs lie at these offsets and strides. */
static void evaluate(bench *b, const int64_t *offset, const int64_t *stride, int64_t count)
{
    const cup__program *p = b->job->program;
    for (int node = 0, k = 0; node < p->count; node++) {
        const cup__expr_node *n = &p->nodes[node];
        void *to = b->memory + (size_t)p->slot[node] * b->vector;
        if (n->function == CUP__INPUT) {
            b->value[node] =
                numbers(b, b->job->call->in[n->in[0]], offset[k], stride[k], count, to);
            k++;
        } else if (n->function > CUP__PARAMETER) {
            const void *x[3] = {to, to, to};
            for (int i = 0; i < cup__functions[n->function].arity; i++)
                x[i] = b->value[n->in[i]];
            cup__vector_apply(b->wide, (cup__function)n->function, to, x, count);
        }
    }
}

static void store(const bench *b, cup_tensor *out, int64_t at, const void *values, int64_t count)
{
    const double *from = values;
    if (!b->wide)
        cup__store_f32((char *)out->data + at * cup_dtype_size(out->dtype), values, out->dtype,
                       count);
    for (int64_t i = 0; b->wide && i < count; i++)
        cup__store(out, at + i, from[i]);
}

static int64_t offset_of(const cup__loop *loop, int k, int64_t index)
{
    int64_t inner = loop->size[loop->ndim - 1];
    return cup__loop_offset(loop, k, index / inner) +
           index % inner * loop->stride[k][loop->ndim - 1];
}

/* Without folds. */

static void run_chunks(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    bench b;
    const cup__program *p = j->program;
    const cup__loop *loop = &j->loops.kept;
    if (bench_open(&b, j)) {
        for (int64_t chunk = begin; chunk < end; chunk++) {
            int64_t row = chunk / j->chunks, start = chunk % j->chunks * CHUNK;
            int64_t count = smaller(j->inner - start, CHUNK), at = row * j->inner + start;
            int64_t offset[CUP__PROGRAM_INPUTS], stride[CUP__PROGRAM_INPUTS];
            for (int k = 0; k < p->used_count; k++) {
                stride[k] = loop->stride[k + 1][loop->ndim - 1];
                offset[k] = cup__loop_offset(loop, k + 1, row) + start * stride[k];
            }
            evaluate(&b, offset, stride, count);
            for (int r = 0; r < p->results; r++)
                store(&b, j->call->out[r], at, b.value[p->result[r].node], count);
        }
    }
    bench_close(&b);
}

static void run_plain(job *j)
{
    const cup__loop *loop = &j->loops.kept;
    j->inner = loop->size[loop->ndim - 1];
    j->chunks = (j->inner + CHUNK - 1) / CHUNK;
    int64_t grain = 32 * CHUNK / smaller(j->inner, CHUNK);
    cup__parallel_for(loop->count / j->inner * j->chunks, grain, run_chunks, j);
}

/* Folds whose elements lie side by side: each result element by itself, in pieces. */

static void fold_piece(bench *b, int64_t kept, int64_t piece, double *sums)
{
    const job *j = b->job;
    const cup__program *p = j->program;
    const cup__loop *loop = &j->loops.folded;
    int64_t inner = loop->size[loop->ndim - 1], base[CUP__PROGRAM_INPUTS];
    int64_t end = smaller((piece + 1) * PIECE, j->plan->length);
    for (int k = 0; k < p->used_count; k++)
        base[k] = offset_of(&j->loops.kept, k + 1, kept);
    for (int r = 0; r < p->results; r++)
        sums[r] = cup__fold_start(p->result[r].fold);
    for (int64_t at = piece * PIECE, count; at < end; at += count) {
        int64_t offset[CUP__PROGRAM_INPUTS], stride[CUP__PROGRAM_INPUTS];
        count = smaller(smaller(inner - at % inner, CHUNK), end - at);
        for (int k = 0; k < p->used_count; k++) {
            stride[k] = loop->stride[k + 1][loop->ndim - 1];
            offset[k] = base[k] + offset_of(loop, k + 1, at);
        }
        evaluate(b, offset, stride, count);
        for (int r = 0; r < p->results; r++) {
            int fold = p->result[r].fold;
            double one = cup__vector_fold(b->wide, fold, b->value[p->result[r].node], count);
            sums[r] = cup__fold_two(fold, sums[r], one);
        }
    }
}

static void store_folded(const job *j, int64_t kept, int r, double sum)
{
    if (j->program->result[r].fold == CUP_EXPR_FOLD_MEAN)
        sum /= (double)j->plan->length;
    cup__store(j->call->out[r], kept, sum);
}

static void run_pieces(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    bench b;
    int results = j->program->results;
    if (bench_open(&b, j)) {
        for (int64_t i = begin; i < end; i++) {
            double sums[CUP_EXPR_RESULTS];
            fold_piece(&b, i / j->pieces, i % j->pieces, sums);
            for (int r = 0; r < results; r++) {
                if (j->partial)
                    j->partial[i * results + r] = sums[r];
                else
                    store_folded(j, i, r, sums[r]);
            }
        }
    }
    bench_close(&b);
}

static void run_rows(job *j)
{
    int64_t kept = j->loops.kept.count, results = j->program->results;
    j->pieces = (j->plan->length + PIECE - 1) / PIECE;
    j->pieces += j->pieces == 0;
    if (j->pieces > 1) {
        j->partial = cup__calloc((size_t)(kept * j->pieces), (size_t)results * sizeof(double));
        j->failed = !j->partial;
    }
    int64_t size = smaller(j->plan->length + 1, PIECE);
    if (!j->failed)
        cup__parallel_for(kept * j->pieces, (PIECE + size - 1) / size, run_pieces, j);
    for (int64_t i = 0; j->partial && i < kept; i++)
        for (int64_t r = 0; r < results; r++) {
            const double *sums = j->partial + i * j->pieces * results + r;
            double sum = sums[0];
            for (int64_t piece = 1; piece < j->pieces; piece++)
                sum = cup__fold_two(j->program->result[r].fold, sum, sums[piece * results]);
            store_folded(j, i, (int)r, sum);
        }
    cup__free(j->partial);
}

/* Folds over outer dimensions: vectors of result elements take in one folded element after
 * another. */

static void fold_columns(bench *b, int64_t row, int64_t start, int64_t count, int64_t piece,
                         double *sums)
{
    const job *j = b->job;
    int64_t first = j->plan->length * piece / j->pieces;
    int64_t end = j->plan->length * (piece + 1) / j->pieces;
    const cup__program *p = j->program;
    const cup__loop *kept = &j->loops.kept, *folded = &j->loops.folded;
    int64_t base[CUP__PROGRAM_INPUTS], offset[CUP__PROGRAM_INPUTS], stride[CUP__PROGRAM_INPUTS];
    for (int k = 0; k < p->used_count; k++) {
        stride[k] = kept->stride[k + 1][kept->ndim - 1];
        base[k] = cup__loop_offset(kept, k + 1, row) + start * stride[k];
    }
    for (int r = 0; r < p->results; r++)
        for (int64_t i = 0; i < count; i++)
            sums[r * CHUNK + i] = cup__fold_start(p->result[r].fold);
    for (int64_t f = first; f < end; f++) {
        for (int k = 0; k < p->used_count; k++)
            offset[k] = base[k] + offset_of(folded, k + 1, f);
        evaluate(b, offset, stride, count);
        for (int r = 0; r < p->results; r++)
            cup__vector_fold_to(b->wide, p->result[r].fold, sums + r * CHUNK,
                                b->value[p->result[r].node], count);
    }
}

/* A piece's sums are kept as [piece][result][element], to be put together at the end. */
static void keep_columns(const job *j, int64_t at, int64_t count, int64_t piece,
                         const double *sums)
{
    int64_t kept = j->loops.kept.count, results = j->program->results;
    for (int64_t r = 0; r < results; r++) {
        if (j->partial)
            memcpy(j->partial + (piece * results + r) * kept + at, sums + r * CHUNK,
                   (size_t)count * sizeof *sums);
        for (int64_t i = 0; !j->partial && i < count; i++)
            store_folded(j, at + i, (int)r, sums[r * CHUNK + i]);
    }
}

static void run_columns(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    bench b;
    double *sums = cup__calloc(CUP_EXPR_RESULTS * CHUNK, sizeof *sums);
    if (!sums)
        j->failed = true;
    if (bench_open(&b, j))
        for (int64_t i = begin; i < end; i++) {
            int64_t chunk = i / j->pieces, piece = i % j->pieces;
            int64_t row = chunk / j->chunks, start = chunk % j->chunks * CHUNK;
            int64_t count = smaller(j->inner - start, CHUNK);
            fold_columns(&b, row, start, count, piece, sums);
            keep_columns(j, row * j->inner + start, count, piece, sums);
        }
    bench_close(&b);
    cup__free(sums);
}

#define PIECES_MOST 64 /* of all columns together */

static void run_by_columns(job *j)
{
    int64_t kept = j->loops.kept.count, results = j->program->results;
    j->inner = j->loops.kept.size[j->loops.kept.ndim - 1];
    j->chunks = (j->inner + CHUNK - 1) / CHUNK;
    int64_t chunks = kept / j->inner * j->chunks;
    j->pieces = smaller(j->plan->length / 64, PIECES_MOST / smaller(chunks, PIECES_MOST));
    j->pieces += j->pieces == 0;
    if (j->pieces > 1) {
        j->partial = cup__calloc((size_t)(kept * j->pieces), (size_t)results * sizeof(double));
        j->failed = !j->partial;
    }
    if (!j->failed)
        cup__parallel_for(chunks * j->pieces, 1, run_columns, j);
    for (int64_t r = 0; j->partial && r < results; r++)
        for (int64_t i = 0; i < kept; i++) {
            double sum = j->partial[r * kept + i];
            for (int64_t piece = 1; piece < j->pieces; piece++)
                sum = cup__fold_two(j->program->result[r].fold, sum,
                                    j->partial[(piece * results + r) * kept + i]);
            store_folded(j, i, (int)r, sum);
        }
    cup__free(j->partial);
}

static bool by_columns(const job *j)
{
    uint32_t folded = j->plan->folded;
    int last = j->plan->full.ndim - 1;
    return last >= 0 && !(folded >> last & 1) && j->loops.kept.size[j->loops.kept.ndim - 1] >= 32;
}

cup_status cup__expr_cpu(cup__call *call)
{
    cup__expr_plan plan;
    CUP_TRY(cup__expr_plan_make(call, &plan));
    job j = {.call = call, .plan = &plan, .program = plan.program};
    cup__expr_loops_make(call, &plan, &j.loops);
    if (!plan.program->folded) {
        run_plain(&j);
    } else if (by_columns(&j)) {
        run_by_columns(&j);
    } else {
        run_rows(&j);
    }
    return j.failed ? cup__call_fail(call, CUP_MEMORY, "out of host memory") : CUP_OK;
}

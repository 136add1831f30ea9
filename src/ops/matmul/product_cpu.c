/* Matrix products on a CPU. The result is cut into tiles by its shape alone, so that the number
 * of threads changes no bit; each tile is one job for one core. */
#include <limits.h>
#include <stdatomic.h>
#include <string.h>

#include "base/blas.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "ops/matmul/product.h"
#include "ops/matmul/product_cpu_kernel.h"

#define SMALLEST 128  /* side of a tile */
#define LARGEST 512
#define ENOUGH_TILES 16
#define DEPTH 512     /* of k that is copied at a time at most, where copying is needed */

typedef struct job {
    const cup__product *p;
    const cup__blas *blas;
    int64_t rows, columns;           /* of a tile */
    int64_t depth;                   /* of k that is copied at a time */
    int64_t row_tiles, column_tiles; /* of a matrix */
    atomic_int no_memory;
} job;

static int64_t tiles_of(const cup__product *p, int64_t rows, int64_t columns)
{
    return (p->m + rows - 1) / rows * ((p->n + columns - 1) / columns) * p->batch_count;
}

static void choose_tile(job *j)
{
    const cup__product *p = j->p;
    j->rows = j->columns = LARGEST;
    while (j->rows > SMALLEST && tiles_of(p, j->rows, j->columns) < ENOUGH_TILES) {
        j->columns /= 2;
        if (tiles_of(p, j->rows, j->columns) < ENOUGH_TILES)
            j->rows /= 2;
    }
    /* Few rows of y: longer tiles cost no more. */
    if (p->m <= 32)
        j->columns = j->columns < 256 ? 256 : j->columns;
    j->row_tiles = (p->m + j->rows - 1) / j->rows;
    j->column_tiles = (p->n + j->columns - 1) / j->columns;
    /* Of small matrices a tile is no larger than they are, nor the room for it. */
    j->rows = p->m < j->rows ? p->m : j->rows;
    j->columns = p->n < j->columns ? p->n : j->columns;
    j->depth = p->k < DEPTH ? p->k : DEPTH;
}

static cup__tile tile_at(const job *j, int64_t index)
{
    const cup__product *p = j->p;
    cup__tile t = {.row = index / j->column_tiles * j->rows,
                   .column = index % j->column_tiles * j->columns};
    t.rows = p->m - t.row < j->rows ? p->m - t.row : j->rows;
    t.columns = p->n - t.column < j->columns ? p->n - t.column : j->columns;
    return t;
}

/* A part of an operand as BLAS takes it. */
typedef struct part {
    const void *data;
    int distance, transposed;
} part;

/* Whether BLAS can read rows x columns of the matrix where they are. */
static bool fits_blas(const cup__product *p, const cup__matrix *m, int64_t rows, int64_t columns,
                      part *out)
{
    if (p->dtype != CUP_F32 && p->dtype != CUP_F64)
        return false;
    bool plain = (m->column == 1 || columns == 1) && (m->row >= columns || rows == 1);
    bool turned = (m->row == 1 || rows == 1) && (m->column >= rows || columns == 1);
    int64_t distance = plain ? m->row : m->column, least = plain ? columns : rows;
    distance = distance < least ? least : distance;
    out->transposed = plain ? CUP__BLAS_PLAIN : CUP__BLAS_TRANSPOSED;
    out->distance = (int)distance;
    return (plain || turned) && distance <= INT_MAX;
}

static part part_of(const cup__product *p, const cup__matrix *m, int64_t batch, cup__tile at,
                    void *space)
{
    part out;
    if (fits_blas(p, m, at.rows, at.columns, &out)) {
        int64_t offset = cup__product_offset(p, m, batch) + at.row * m->row + at.column * m->column;
        out.data = m->data + offset * cup_dtype_size(p->dtype);
        return out;
    }
    cup__product_gather(p, m, batch, &at, space);
    return (part){space, (int)at.columns, CUP__BLAS_PLAIN};
}

static void call_blas(const job *j, part a, part b, cup__tile t, int64_t k, bool add, void *to,
                      int64_t distance)
{
    if (j->p->dtype == CUP_F64)
        j->blas->dgemm(CUP__BLAS_ROW_MAJOR, a.transposed, b.transposed, (int)t.rows,
                       (int)t.columns, (int)k, 1.0, a.data, a.distance, b.data, b.distance,
                       add ? 1.0 : 0.0, to, (int)distance);
    else
        j->blas->sgemm(CUP__BLAS_ROW_MAJOR, a.transposed, b.transposed, (int)t.rows,
                       (int)t.columns, (int)k, 1.0f, a.data, a.distance, b.data, b.distance,
                       add ? 1.0f : 0.0f, to, (int)distance);
}

/* One tile of one matrix. `space` holds a part of a, a part of b and the sums, where those cannot
 * stay in place. */
static void blas_tile(const job *j, int64_t batch, cup__tile t, char *space)
{
    const cup__product *p = j->p;
    int64_t wide = p->dtype == CUP_F64 ? 8 : 4;
    char *space_b = space + j->rows * j->depth * wide;
    char *sums = space_b + j->columns * j->depth * wide;
    int64_t distance = j->columns;
    bool direct = p->dtype == CUP_F32 || (p->dtype == CUP_F64 && !p->bias && !p->activation);
    if (direct && p->y.row <= INT_MAX) {
        int64_t at = cup__product_offset(p, &p->y, batch) + t.row * p->y.row + t.column;
        sums = p->y.data + at * wide;
        distance = p->m == 1 && p->y.row < p->n ? p->n : p->y.row;
    }
    part unused;
    bool whole = fits_blas(p, &p->a, t.rows, p->k, &unused) &&
                 fits_blas(p, &p->b, p->k, t.columns, &unused) && p->k <= INT_MAX;
    int64_t depth = whole ? p->k : j->depth;
    for (int64_t k = 0; k < p->k; k += depth) {
        int64_t now = p->k - k < depth ? p->k - k : depth;
        part a = part_of(p, &p->a, batch, (cup__tile){t.row, t.rows, k, now}, space);
        part b = part_of(p, &p->b, batch, (cup__tile){k, now, t.column, t.columns}, space_b);
        call_blas(j, a, b, t, now, k > 0, sums, distance);
    }
    if (!direct || p->bias || p->activation || p->pre)
        cup__product_finish(p, batch, &t, sums, distance);
}

static void blas_jobs(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    int64_t wide = j->p->dtype == CUP_F64 ? 8 : 4, a_tile = j->row_tiles * j->column_tiles;
    int64_t elements = (j->rows + j->columns) * j->depth + j->rows * j->columns;
    char *space = cup__malloc((size_t)(elements * wide));
    if (!space) {
        atomic_store(&j->no_memory, 1);
        return;
    }
    for (int64_t i = begin; i < end; i++)
        blas_tile(j, i / a_tile, tile_at(j, i % a_tile), space);
    cup__free(space);
}

static void blocked_jobs(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    int64_t tiles = j->row_tiles * j->column_tiles;
    void *space = cup__malloc(cup__kernel_space(j->rows, j->columns, j->p->k));
    if (!space) {
        atomic_store(&j->no_memory, 1);
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        cup__tile tile = tile_at(j, i % tiles);
        cup__kernel_tile(j->p, i / tiles, &tile, space);
    }
    cup__free(space);
}

/* Sums of nothing: y is the bias. */
static cup_status no_terms(const cup__product *p)
{
    double *zero = cup__malloc((size_t)p->n * sizeof *zero);
    for (int64_t i = 0; zero && i < p->batch_count * p->m; i++) {
        cup__tile row = {i % p->m, 1, 0, p->n};
        memset(zero, 0, (size_t)p->n * sizeof *zero);
        cup__product_finish(p, i / p->m, &row, zero, p->n);
    }
    cup__free(zero);
    return zero ? CUP_OK : CUP_MEMORY;
}

static cup_status run_jobs(cup__call *call, const cup__product *p, cup__body body)
{
    job j = {.p = p, .blas = cup__blas_get()};
    choose_tile(&j);
    cup_status status = CUP_OK;
    if (p->k == 0) {
        status = no_terms(p);
    } else {
        double work = (double)j.rows * (double)j.columns * (double)p->k;
        int64_t grain = work < 65536 ? (int64_t)(65536 / (work + 1)) + 1 : 1;
        cup__parallel_for(p->batch_count * j.row_tiles * j.column_tiles, grain, body, &j);
    }
    if (status != CUP_OK || atomic_load(&j.no_memory))
        return cup__call_fail(call, CUP_MEMORY, "out of host memory for a tile");
    return CUP_OK;
}

const char *cup__product_blas_refuses(const cup__call *call)
{
    (void)call;
    const cup__blas *blas = cup__blas_get();
    return blas->found ? NULL : blas->text;
}

cup_status cup__product_blas(cup__call *call, const cup__product *p)
{
    return run_jobs(call, p, blas_jobs);
}

cup_status cup__product_blocked(cup__call *call, const cup__product *p)
{
    return run_jobs(call, p, blocked_jobs);
}

/* Dropout of what each process has a part of: what one process would drop of the whole. */
#include "comm/comm.h"
#include "cupola/ops.h"

#define UNIT 8 /* elements that take a block of random numbers, see ops/random/dropout.h */

cup__stretches cup__comm_stretches(const cup_comm *m, int rank, int64_t length)
{
    int64_t half = length / 2, all = 2 * m->count;
    return (cup__stretches){all * half, half, {rank * half, (all - 1 - rank) * half}};
}

static cup_status check(const cup_comm *m, const cup_tensor *x)
{
    char text[CUP__SHAPE_TEXT];
    int64_t row = x->ndim >= 2 && x->shape[0] > 0 ? x->count / x->shape[0] : 0;
    if (x->context == m->c && x->ndim >= 2 && x->shape[1] % 2 == 0 && row % (2 * UNIT) == 0)
        return CUP_OK;
    return cup__fail(&m->c->error, CUP_SHAPE,
                     "comm_dropout: %s is not one of the communicator's context, or not [B,T,..] "
                     "with an even T of two parts of each sequence, of a multiple of %d numbers "
                     "each",
                     cup__tensor_text(x, text), UNIT);
}

cup_tensor *cup_comm_dropout(cup_comm *m, cup_tensor *x, double p)
{
    if (!m || !x || m->c->error.status != CUP_OK)
        return NULL;
    if (m->count == 1)
        return cup_dropout(m->c, x, p);
    if (check(m, x) != CUP_OK)
        return NULL;
    cup__random *random = &m->c->random;
    const cup__stretched *was = random->drawn;
    const cup__stretched drawn = {.rows = cup__comm_stretches(m, m->rank, x->shape[1])};
    random->drawn = &drawn;
    cup_tensor *y = cup_dropout(m->c, x, p);
    random->drawn = was;
    return y;
}

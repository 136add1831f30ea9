/* Times grouped products on this card, random data, L2 cache flushed: `grouped_times`. Groups are
 * all of one size, or of sizes between nothing and twice that. Beside them stands one product of
 * all rows with one matrix, which is as much work. */
#include "matmul_rig.h"

typedef struct shape_of_groups {
    int64_t rows, k, n, groups;
    bool even;
} shape_of_groups;
static const shape_of_groups shapes[] = {
    {8192, 4096, 4096, 8, true},    {8192, 4096, 4096, 8, false}, {4096, 2048, 1024, 64, true},
    {16384, 2048, 1408, 64, false}, {512, 4096, 14336, 8, true},
};

static cup_tensor *offsets_of(cup_context *c, const shape_of_groups *s)
{
    int64_t ends[256], end = 0, each = s->rows / s->groups;
    uint64_t state = 5;
    for (int64_t g = 0; g < s->groups; g++) {
        double part = s->even ? 1 : 1 + normal(&state) * 0.5;
        end += (int64_t)((double)each * (part < 0 ? 0 : part));
        ends[g] = end < s->rows && g < s->groups - 1 ? end : s->rows;
    }
    return cup_tensor_from(c, CUP_I64, 1, (int64_t[]){s->groups}, ends);
}

static double time_of(rig *r, cup_tensor *(*work)(cup_context *, cup_tensor **), cup_tensor **in)
{
    double us[ROUNDS], milliseconds = 0;
    for (int i = 0; i < ROUNDS; i++) {
        cup_scope_open(r->c);
        r->c->device->calls->fill(r->c->device, r->flush, 0, FLUSH);
        cup__timer_start(r->timer);
        if (!work(r->c, in) || cup__timer_stop(r->timer, &milliseconds) != CUP_OK)
            fail(r, "timing");
        us[i] = milliseconds * 1000;
        cup_scope_close(r->c);
    }
    return median(us, ROUNDS);
}

static cup_tensor *forward(cup_context *c, cup_tensor **in)
{
    return cup_grouped_matmul(c, in[0], in[1], in[2], true);
}

static cup_tensor *data_grad(cup_context *c, cup_tensor **in)
{
    return cup_grouped_matmul(c, in[3], in[1], in[2], false);
}

static cup_tensor *weight_grad(cup_context *c, cup_tensor **in)
{
    return cup__grouped_weight_grad(c, in[3], in[0], in[2]);
}

static cup_tensor *one_product(cup_context *c, cup_tensor **in)
{
    return cup_linear(c, in[0], in[4], NULL);
}

int main(void)
{
    rig r;
    open_rig(&r, 4 << 20);
    for (int i = 0; i < COUNT(shapes); i++) {
        const shape_of_groups *s = &shapes[i];
        cup_scope_open(r.c);
        cup_tensor *in[5] = {
            cup_normal(r.c, CUP_BF16, 2, (int64_t[]){s->rows, s->k}, 0, 1),
            cup_normal(r.c, CUP_BF16, 3, (int64_t[]){s->groups, s->n, s->k}, 0, 1),
            offsets_of(r.c, s),
            cup_normal(r.c, CUP_BF16, 2, (int64_t[]){s->rows, s->n}, 0, 1),
            cup_normal(r.c, CUP_BF16, 2, (int64_t[]){s->n, s->k}, 0, 1),
        };
        double work = 2e-6 * (double)s->rows * (double)s->k * (double)s->n;
        double one = time_of(&r, one_product, in), y = time_of(&r, forward, in);
        double dx = time_of(&r, data_grad, in), dw = time_of(&r, weight_grad, in);
        printf("%lld rows, %lld groups%s, %lld to %lld: y %.1f us %.0f T, dx %.1f us %.0f T, dw "
               "%.1f us %.0f T; as one product %.1f us %.0f T\n",
               (long long)s->rows, (long long)s->groups, s->even ? "" : " unlike", (long long)s->k,
               (long long)s->n, y, work / y, dx, work / dx, dw, work / dw, one, work / one);
        fflush(stdout);
        cup_scope_close(r.c);
    }
    return close_rig(&r);
}

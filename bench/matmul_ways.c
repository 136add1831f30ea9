/* Times every implementation of matrix products on shapes where they meet, each by its own choice
 * of tiles, on random data with the L2 cache flushed. */
#include "matmul_rig.h"
#include "ops/matmul/wgmma.h"

typedef struct way {
    const char *name;
    cup__product_refuses refuses;
    cup_status (*run)(cup__call *call, const cup__product *p);
    const char *precision;
} way;

static const way ways[] = {
    {"plain", NULL, cup__product_plain, "highest"},
    {"rows", cup__product_rows_refuses, cup__product_rows, "highest"},
    {"cublaslt", cup__product_cublaslt_refuses, cup__product_cublaslt, "highest"},
    {"cublaslt high", cup__product_cublaslt_refuses, cup__product_cublaslt, "high"},
    {"wgmma", cup__product_wgmma_refuses, cup__product_wgmma, "highest"},
    {"split", cup__product_split_refuses, cup__product_split, "highest"},
    {"mma", cup__product_mma_refuses, cup__product_mma, "highest"},
};

/* Every implementation on one shape: time, and difference from the plain kernel. */
static void time_ways(rig *r, const shape *s)
{
    prepare(r, s);
    printf("\n%lldx%lldx%lld %s %c%c:", (long long)s->m, (long long)s->n, (long long)s->k,
           cup_dtype_name((cup_dtype)s->dtype), s->ta ? 'T' : 'N', s->tb ? 'T' : 'N');
    for (int i = 0; i < COUNT(ways); i++) {
        cup__product p = product_of(r, s, i > 0);
        cup__call call = fake_call(r);
        double us[ROUNDS];
        cup_precision(r->c, ways[i].precision);
        if ((ways[i].refuses && ways[i].refuses(r->c, &p)) || (i == 3 && s->dtype != CUP_F32))
            continue;
        for (int round = -1; round < ROUNDS; round++) {
            double milliseconds = 0;
            r->c->device->calls->fill(r->c->device, r->flush, 0, FLUSH);
            cup__timer_start(r->timer);
            if (ways[i].run(&call, &p) != CUP_OK ||
                cup__timer_stop(r->timer, &milliseconds) != CUP_OK)
                fail(r, ways[i].name);
            us[round < 0 ? 0 : round] = milliseconds * 1000;
        }
        double middle = median(us, ROUNDS);
        printf(" %s %.1f us (%.0f GB/s, %.1f TF/s) error %.2f;", ways[i].name, middle,
               1e-3 * (double)cup_dtype_size((cup_dtype)s->dtype) *
                   (double)(s->m * s->k + s->n * s->k + s->m * s->n) / middle,
               2e-6 * (double)s->m * (double)s->n * (double)s->k / middle,
               i ? compare(r, s, r->y[0], r->y[1]) : 0.0);
    }
    cup_precision(r->c, "highest");
    printf("\n");
    fflush(stdout);
}

static const shape compared[] = {
    {1, 4096, 4096, 1, NT, false, false, false, 1, CUP_BF16},
    {2, 4096, 4096, 1, NT, false, false, false, 1, CUP_BF16},
    {8, 4096, 4096, 1, NT, false, false, false, 1, CUP_BF16},
    {16, 4096, 4096, 1, NT, false, false, false, 1, CUP_BF16},
    {1, 768, 3072, 1, NT, false, false, false, 1, CUP_BF16},
    {1, 2304, 768, 1, NT, false, false, false, 1, CUP_BF16},
    {1, 50304, 768, 1, NT, false, false, false, 1, CUP_BF16},
    {16, 14336, 4096, 1, NT, false, false, false, 1, CUP_F16},
    {1, 4096, 4096, 1, NT, false, false, false, 1, CUP_F32},
    {4, 1536, 384, 1, NT, false, false, false, 1, CUP_F32},
    {1024, 1024, 1024, 1, NT, false, false, false, 1, CUP_F32},
    {4096, 4096, 4096, 1, NN, false, false, false, 1, CUP_F32},
    {16384, 1152, 384, 1, NT, false, false, false, 1, CUP_F32},
    {16384, 1152, 384, 1, NT, false, false, false, 1, CUP_BF16},
    {4096, 4096, 4096, 1, NT, false, false, false, 1, CUP_BF16},
    {1001, 1003, 1005, 1, NN, false, false, false, 1, CUP_BF16},
};

int main(void)
{
    rig r;
    open_rig(&r, (size_t)256 << 20);
    for (int i = 0; i < COUNT(compared); i++)
        time_ways(&r, &compared[i]);
    return close_rig(&r);
}

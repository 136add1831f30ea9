/* Times products of a few rows, as decoding makes them, beside what limits them: an empty product,
 * and a sum that reads as many bytes as the weights have. With the L2 cache flushed by writing, as
 * everywhere else here, and by reading, after which nothing is left to be written back. */
#include "matmul_rig.h"
#include "ops/matmul/wgmma.h"

typedef struct way {
    const char *name;
    cup__product_refuses refuses;
    cup_status (*run)(cup__call *call, const cup__product *p);
} way;

static const way ways[] = {
    {"stream", cup__product_stream_refuses, cup__product_stream},
    {"rows", cup__product_rows_refuses, cup__product_rows},
    {"cublaslt", cup__product_cublaslt_refuses, cup__product_cublaslt},
    {"wgmma", cup__product_wgmma_refuses, cup__product_wgmma},
};

static cup_tensor *zeros(rig *r, int64_t count)
{
    cup_tensor *x = cup__full(r->c, &(cup__shape){.dtype = CUP_F32, .ndim = 1, .size = {count}}, 0);
    if (!x)
        fail(r, "zeros");
    return x;
}

static cup_tensor *sum_of(rig *r, cup_tensor *x)
{
    cup_tensor *y = cup_sum(r->c, x, NULL, 0, false);
    if (!y)
        fail(r, "sum");
    return y;
}

static void flush(rig *r, cup_tensor *clean)
{
    if (clean)
        cup_tensor_free(sum_of(r, clean));
    else
        r->c->device->calls->fill(r->c->device, r->flush, 0, FLUSH);
}

/* One way, or where there is none a sum over `bytes`. */
static double time_once(rig *r, const shape *s, const way *w, cup_tensor *read, cup_tensor *clean)
{
    double milliseconds = 0;
    cup_tensor *y = NULL;
    flush(r, clean);
    cup__timer_start(r->timer);
    if (w) {
        cup__product p = product_of(r, s, 1);
        cup__call call = fake_call(r);
        if (w->run(&call, &p) != CUP_OK)
            fail(r, w->name);
    } else if (read) {
        y = sum_of(r, read);
    }
    if (cup__timer_stop(r->timer, &milliseconds) != CUP_OK)
        fail(r, "timing");
    cup_tensor_free(y);
    return milliseconds * 1000;
}

static void print_middle(rig *r, const char *name, const shape *s, const way *w, cup_tensor *read,
                         cup_tensor *clean)
{
    for (int kind = 0; kind < 2; kind++) {
        double us[ROUNDS + 8];
        for (int round = -1; round < ROUNDS + 8; round++)
            us[round < 0 ? 0 : round] = time_once(r, s, w, read, kind ? clean : NULL);
        double middle = median(us, ROUNDS + 8);
        if (kind)
            printf("%.1f;", middle);
        else
            printf(" %s %.1f / ", name, middle);
    }
}

static const int64_t sides[][2] = {{4096, 4096}, {14336, 4096}, {4096, 14336}, {1024, 1024}};
static const int64_t rows[] = {1, 2, 4, 8, 16, 32, 64};

int main(void)
{
    rig r;
    open_rig(&r, (size_t)256 << 20);
    cup_tensor *clean = zeros(&r, FLUSH / 4);
    for (int i = 0; i < COUNT(sides); i++) {
        cup_tensor *read = zeros(&r, sides[i][0] * sides[i][1] / 2);
        print_middle(&r, "nothing", NULL, NULL, NULL, clean);
        print_middle(&r, "sum", NULL, NULL, read, clean);
        printf("\n");
        for (int layout = 0; layout < 2; layout++)
            for (int j = 0; j < COUNT(rows); j++) {
                shape s = {rows[j], sides[i][0], sides[i][1], 1, false,   layout == 0,
                           false,   false,       false,       1, CUP_BF16};
                prepare(&r, &s);
                cup__product p = product_of(&r, &s, 1);
                printf("%lldx%lldx%lld N%c:", (long long)s.m, (long long)s.n, (long long)s.k,
                       s.tb ? 'T' : 'N');
                if (!ways[0].refuses(r.c, &p)) {
                    cup__product q = product_of(&r, &s, 0);
                    cup__call call = fake_call(&r);
                    if (cup__product_plain(&call, &q) != CUP_OK ||
                        cup__product_stream(&call, &p) != CUP_OK)
                        fail(&r, "plain");
                    printf(" error %.2f", compare(&r, &s, r.y[0], r.y[1]));
                }
                for (int w = 0; w < COUNT(ways); w++)
                    if (!ways[w].refuses(r.c, &p))
                        print_middle(&r, ways[w].name, &s, &ways[w], NULL, clean);
                printf("\n");
                fflush(stdout);
            }
        cup_tensor_free(read);
    }
    cup_tensor_free(clean);
    return close_rig(&r);
}

/* See cufft.h. */
#include "cufft.h"

#include <math.h>

#include "counted.h"

#define PLANS 200
#define WORKSPACE 4096

/* Declares each call as the library does, and so holds the two against each other. */
#define NEED(result, name, exported, arguments) EXPORT result name arguments;
#include "cuda/cufft.def"
#undef NEED

EXPORT fake_cufft_fail_function fake_cufft_fail;
EXPORT fake_cufft_calls_function fake_cufft_calls;
EXPORT fake_cufft_live_function fake_cufft_live;

static long live;
static struct {
    bool used, manual;
    long long n, step, distance, lines;
    cufftType type;
    CUstream stream;
    void *workspace;
} plans[PLANS];

void fake_cufft_fail(long n)
{
    fail_in = n;
}

long fake_cufft_calls(const char *name)
{
    return counted(name);
}

long fake_cufft_live(void)
{
    return live;
}

#define ENTER                                                                                      \
    do {                                                                                           \
        if (count_call(__func__))                                                                  \
            return CUFFT_INTERNAL_ERROR;                                                           \
    } while (0)

#define NEED_PLAN(p)                                                                               \
    do {                                                                                           \
        if (p < 0 || p >= PLANS || !plans[p].used)                                                 \
            return CUFFT_INVALID_PLAN;                                                             \
    } while (0)

cufftResult cufftGetVersion(int *version)
{
    *version = 11405;
    return CUFFT_SUCCESS;
}

cufftResult cufftCreate(cufftHandle *plan)
{
    ENTER;
    for (int i = 0; i < PLANS; i++)
        if (!plans[i].used) {
            memset(&plans[i], 0, sizeof plans[i]);
            plans[i].used = true;
            *plan = i;
            live++;
            return CUFFT_SUCCESS;
        }
    return CUFFT_ALLOC_FAILED;
}

cufftResult cufftDestroy(cufftHandle plan)
{
    NEED_PLAN(plan);
    plans[plan].used = false;
    live--;
    return CUFFT_SUCCESS;
}

cufftResult cufftSetAutoAllocation(cufftHandle plan, int on)
{
    ENTER;
    NEED_PLAN(plan);
    plans[plan].manual = !on;
    return CUFFT_SUCCESS;
}

cufftResult cufftMakePlanMany64(cufftHandle plan, int rank, long long *n, long long *in_sizes,
                                long long in_step, long long in_distance, long long *out_sizes,
                                long long out_step, long long out_distance, cufftType type,
                                long long count, size_t *workspace)
{
    ENTER;
    NEED_PLAN(plan);
    if (!plans[plan].manual || plans[plan].n || rank != 1 || *n < 1 || !in_sizes || !out_sizes ||
        in_step < 1 || in_step != out_step || in_distance != out_distance || count < 1 ||
        (type != CUFFT_C2C && type != CUFFT_Z2Z))
        return CUFFT_INVALID_VALUE;
    plans[plan].n = *n;
    plans[plan].step = in_step;
    plans[plan].distance = in_distance;
    plans[plan].lines = count;
    plans[plan].type = type;
    *workspace = WORKSPACE;
    return CUFFT_SUCCESS;
}

cufftResult cufftSetWorkArea(cufftHandle plan, void *workspace)
{
    ENTER;
    NEED_PLAN(plan);
    plans[plan].workspace = workspace;
    return CUFFT_SUCCESS;
}

cufftResult cufftSetStream(cufftHandle plan, CUstream stream)
{
    ENTER;
    NEED_PLAN(plan);
    plans[plan].stream = stream;
    return CUFFT_SUCCESS;
}

static double get(cufftType type, const void *x, long long i)
{
    return type == CUFFT_Z2Z ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

static void put(cufftType type, void *y, long long i, double value)
{
    if (type == CUFFT_Z2Z)
        ((double *)y)[i] = value;
    else
        ((float *)y)[i] = (float)value;
}

static cufftResult execute(cufftHandle p, cufftType type, const void *x, void *y, int direction)
{
    NEED_PLAN(p);
    if (plans[p].type != type || !plans[p].stream || !plans[p].workspace || !x || !y ||
        (direction != CUFFT_FORWARD && direction != CUFFT_INVERSE))
        return CUFFT_INVALID_VALUE;
    if (!wait_for(plans[p].stream))
        return CUFFT_SUCCESS;
    long long n = plans[p].n;
    double *line = malloc(2 * (size_t)n * sizeof *line), turn = direction * 2 * acos(-1);
    for (long long l = 0; line && l < plans[p].lines; l++) {
        long long at = l * plans[p].distance, step = plans[p].step;
        for (long long j = 0; j < 2 * n; j++)
            line[j] = get(type, x, 2 * (at + j / 2 * step) + j % 2);
        for (long long k = 0; k < n; k++) {
            double re = 0, im = 0;
            for (long long j = 0; j < n; j++) {
                double angle = turn * (double)(j * k % n) / (double)n;
                re += line[2 * j] * cos(angle) - line[2 * j + 1] * sin(angle);
                im += line[2 * j] * sin(angle) + line[2 * j + 1] * cos(angle);
            }
            put(type, y, 2 * (at + k * step), re);
            put(type, y, 2 * (at + k * step) + 1, im);
        }
    }
    free(line);
    return CUFFT_SUCCESS;
}

cufftResult cufftExecC2C(cufftHandle plan, cufftComplex *x, cufftComplex *y, int direction)
{
    ENTER;
    return execute(plan, CUFFT_C2C, x, y, direction);
}

cufftResult cufftExecZ2Z(cufftHandle plan, cufftDoubleComplex *x, cufftDoubleComplex *y,
                         int direction)
{
    ENTER;
    return execute(plan, CUFFT_Z2Z, x, y, direction);
}

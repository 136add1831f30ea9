/* The device bricks on a real GPU, against their twins on the host. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/float8.h"
#include "base/memory.h"
#include "base/philox.h"
#include "cuda/kernels.h"
#include "cupola/tensor.h"
#include "support.h"
#include "test.h"

static const char source[] =
    "#include \"philox.cuh\"\n"
    "#include \"reduce.cuh\"\n"
    "#define HERE long i = (long)blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return\n"
    "extern \"C\" __global__ void widen(float *y, const T *x, int n)\n"
    "{ HERE; y[i] = convert<float>(x[i]); }\n"
    "extern \"C\" __global__ void narrow_float(T *y, const float *x, int n)\n"
    "{ HERE; y[i] = convert<T>(x[i]); }\n"
    "extern \"C\" __global__ void narrow_double(T *y, const double *x, int n)\n"
    "{ HERE; y[i] = convert<T>(x[i]); }\n"
    "extern \"C\" __global__ void narrow_integer(T *y, const int64_t *x, int n)\n"
    "{ HERE; y[i] = convert<T>(x[i]); }\n"
    "extern \"C\" __global__ void vectors(T *y, const float *x, int n)\n"
    "{\n"
    "    HERE;\n"
    "    real r[8];\n"
    "    for (int j = 0; j < 8; j++) r[j] = (real)x[8 * i + j];\n"
    "    vec<T, 8> v = from_reals<T, 8>(r);\n"
    "    store(y + 16 * i, v);\n"
    "    store_once(y + 16 * i + 8, load_plain<8>(y + 16 * i));\n"
    "}\n"
    "extern \"C\" __global__ void words(uint32_t *y, const uint64_t *state, int n)\n"
    "{\n"
    "    HERE;\n"
    "    philox_words w = philox_block(state, 7, (uint64_t)i << 20);\n"
    "    for (int j = 0; j < 4; j++) y[4 * i + j] = w.at[j];\n"
    "}\n"
    "extern \"C\" __global__ void reductions(double *y, const double *x)\n"
    "{\n"
    "    double v = x[threadIdx.x];\n"
    "    double sum = block_sum(v), most = block_max(v), least = block_min(v);\n"
    "    float small = block_sum((float)v);\n"
    "    int64_t whole = block_sum((int64_t)v);\n"
    "    double warp = warp_sum(v);\n"
    "    if (threadIdx.x == blockDim.x - 1) {\n"
    "        y[0] = sum; y[1] = most; y[2] = least; y[3] = small; y[4] = (double)whole;\n"
    "        y[5] = warp;\n"
    "    }\n"
    "}\n";

static const char *const entries[] = {"widen",   "narrow_float", "narrow_double", "narrow_integer",
                                      "vectors", "words",        "reductions"};

static void write_source(void)
{
    const char *folder = test_folder();
    fake_source(folder, "bricks.cu", source);
    setenv("CUP_KERNELS", folder, 1);
}

/* What the tests below launch compiles for every card. */
TEST_LIMITED(nvrtc_brick_tests, 200)
{
    write_source();
    setenv("CUP_CACHE", "off", 1);
    if (!cup__library_open(CUP__LIBNVRTC))
        test_skip("no NVRTC: %.120s", cup__library_report_of(CUP__LIBNVRTC)->reason);
    static const int types[] = {CUP_BF16, CUP_F8E4M3};
    for (int i = 0; i < 4; i++) {
        cup__knob knobs[] = {{"CUP_T", types[i / 2]}, {"CUP_PLAIN_CONVERSIONS", i % 2}};
        cup__kernel_request request = {"bricks.cu", knobs, 2, NULL};
        cup__error error = {0};
        const cup__code *code;
        EXPECT_OK(&error, cup__code_get(&error, "sm_90a", &request, &code));
    }
}

typedef struct bench {
    cup__cuda *gpu;
    cup__device *d;
    cup__error error;
    int type, plain;
} bench;

static void begin(bench *b)
{
    write_source();
    b->gpu = gpu_open(&b->error);
    b->d = &b->gpu->device;
}

static void *upload(bench *b, const void *host, size_t bytes)
{
    void *memory;
    EXPECT_OK(&b->error, b->d->calls->allocate(b->d, bytes, "test", &memory));
    if (host)
        EXPECT_OK(&b->error, b->d->calls->write(b->d, memory, host, bytes));
    return memory;
}

/* y = entry(x) for n elements on the GPU, both given as host memory. */
static void run(bench *b, int entry, void *y, size_t y_bytes, const void *x, size_t x_bytes, int n)
{
    cup__knob knobs[] = {{"CUP_T", b->type}, {"CUP_PLAIN_CONVERSIONS", b->plain}};
    void *to = upload(b, NULL, y_bytes), *from = upload(b, x, x_bytes);
    cup__kernel *kernel = cup__kernel_get(b->gpu, "bricks.cu", entries[entry], knobs, 2);
    cup__grid grid = {.x = (n + 127) / 128, .threads = 128};
    EXPECT_OK(&b->error,
              cup__launch(b->gpu, kernel, grid, CUP__ARG(to), CUP__ARG(from), CUP__ARG(n)));
    EXPECT_OK(&b->error, b->d->calls->read(b->d, y, to, y_bytes));
    b->d->calls->release(b->d, to);
    b->d->calls->release(b->d, from);
}

static float widen(int type, uint32_t bits)
{
    switch (type) {
    case CUP_F16:
        return cup__from_f16((uint16_t)bits);
    case CUP_BF16:
        return cup__from_bf16((uint16_t)bits);
    case CUP_F8E4M3:
        return cup__from_f8e4m3((uint8_t)bits);
    default:
        return cup__from_f8e5m2((uint8_t)bits);
    }
}

static uint32_t narrow(int type, float x)
{
    switch (type) {
    case CUP_F16:
        return cup__to_f16(x);
    case CUP_BF16:
        return cup__to_bf16(x);
    case CUP_F8E4M3:
        return cup__to_f8e4m3(x);
    default:
        return cup__to_f8e5m2(x);
    }
}

static int size_of(int type)
{
    return type == CUP_F16 || type == CUP_BF16 ? 2 : 1;
}

static uint32_t element(int type, const void *elements, int i)
{
    return size_of(type) == 2 ? ((const uint16_t *)elements)[i] : ((const uint8_t *)elements)[i];
}

/* The float with the exact value's sign and cut bits noted in the last one, so that rounding it
 * again gives what rounding the exact value once gives. */
static float to_odd(long double x)
{
    float y = (float)x;
    if (isnan(y) || (long double)y == x)
        return y;
    if (isinf(y) || fabsl(y) > fabsl(x))
        y = nextafterf(y, 0);
    return cup__float(cup__bits(y) | 1);
}

static void expect_same(const bench *b, const void *got, int i, float exact, const char *what)
{
    uint32_t bits = element(b->type, got, i), want = narrow(b->type, exact);
    if (isnan(exact) ? !isnan(widen(b->type, bits)) : bits != want)
        test_fail(__FILE__, __LINE__, "%s: type %d%s, %a gives 0x%x, expected 0x%x", what, b->type,
                  b->plain ? " in plain code" : "", (double)exact, bits, want);
}

static void check_widening(bench *b)
{
    int n = size_of(b->type) == 2 ? 65536 : 256;
    uint16_t *bits = cup__calloc((size_t)n, 2);
    float *got = cup__calloc((size_t)n, 4);
    for (int i = 0; i < n; i++)
        if (size_of(b->type) == 2)
            bits[i] = (uint16_t)i;
        else
            ((uint8_t *)bits)[i] = (uint8_t)i;
    run(b, 0, got, (size_t)n * 4, bits, (size_t)(n * size_of(b->type)), n);
    for (int i = 0; i < n; i++) {
        float want = widen(b->type, (uint32_t)i);
        if (isnan(want) ? !isnan(got[i]) : cup__bits(got[i]) != cup__bits(want))
            test_fail(__FILE__, __LINE__, "type %d: 0x%x is %a, expected %a", b->type, i,
                      (double)got[i], (double)want);
    }
    cup__free(bits);
    cup__free(got);
}

enum { COUNT = 1 << 20 };

/* Any bits, numbers near the type's, ties between two of them, and the ends of the range. */
static float sample(int type, int i)
{
    uint32_t random = (uint32_t)test_random();
    float near = widen(type, random & (size_of(type) == 2 ? 0xffff : 0xff));
    switch (i % 4) {
    case 0:
        return cup__float(random);
    case 1:
        return near;
    case 2:
        return cup__float(cup__bits(near) + (random >> 16) % 5 - 2);
    default: {
        float next = widen(type, ((random & 0xffff) + 1) & (size_of(type) == 2 ? 0xffff : 0xff));
        return 0.5f * near + 0.5f * next;
    }
    }
}

static void check_narrowing(bench *b)
{
    float *x = cup__calloc(COUNT, 4);
    double *wide = cup__calloc(COUNT, 8);
    int64_t *whole = cup__calloc(COUNT, 8);
    void *got = cup__calloc(COUNT, 2);
    size_t bytes = (size_t)(COUNT * size_of(b->type));
    for (int i = 0; i < COUNT; i++) {
        x[i] = sample(b->type, i);
        wide[i] = (double)x[i] * (1 + ldexp((double)(i % 3) - 1, -(int)(test_random() % 52)));
        whole[i] = (int64_t)test_random() >> test_random() % 64;
    }
    run(b, 1, got, bytes, x, COUNT * 4, COUNT);
    for (int i = 0; i < COUNT; i++)
        expect_same(b, got, i, x[i], "from float");
    run(b, 2, got, bytes, wide, COUNT * 8, COUNT);
    for (int i = 0; i < COUNT; i++)
        expect_same(b, got, i, to_odd(wide[i]), "from double");
    run(b, 3, got, bytes, whole, COUNT * 8, COUNT);
    for (int i = 0; i < COUNT; i++)
        expect_same(b, got, i, to_odd(whole[i]), "from int64");
    run(b, 4, got, bytes, x, COUNT * 4, COUNT / 16);
    for (int i = 0; i < COUNT / 16; i++)
        for (int j = 0; j < 16; j++)
            expect_same(b, got, 16 * i + j, x[8 * i + j % 8], "a vector");
    cup__free(x);
    cup__free(wide);
    cup__free(whole);
    cup__free(got);
}

TEST_LIMITED(gpu_conversions, 120)
{
    static const int types[] = {CUP_F16, CUP_BF16, CUP_F8E4M3, CUP_F8E5M2};
    bench b = {0};
    begin(&b);
    for (int t = 0; t < 4; t++)
        for (int plain = 0; plain < 2; plain++) {
            b.type = types[t];
            b.plain = plain;
            check_widening(&b);
            check_narrowing(&b);
        }
    b.d->calls->close(b.d);
}

TEST(gpu_philox)
{
    bench b = {.type = CUP_F16};
    begin(&b);
    enum { BLOCKS = 1000 };
    uint64_t state[2] = {0x123456789abcdefu, 42};
    uint32_t got[4 * BLOCKS];
    run(&b, 5, got, sizeof got, state, sizeof state, BLOCKS);
    for (int i = 0; i < BLOCKS; i++) {
        cup__philox_words want = cup__philox_block(state, 7, (uint64_t)i << 20);
        for (int j = 0; j < 4; j++)
            EXPECT_INT(got[4 * i + j], want.at[j]);
    }
    b.d->calls->close(b.d);
}

static void reduce(bench *b, const double *x, int threads, double *y)
{
    cup__knob knobs[] = {{"CUP_T", CUP_F16}, {"CUP_PLAIN_CONVERSIONS", 0}};
    void *from = upload(b, x, (size_t)threads * 8), *to = upload(b, NULL, 48);
    cup__kernel *kernel = cup__kernel_get(b->gpu, "bricks.cu", entries[6], knobs, 2);
    cup__grid grid = {.x = 1, .threads = threads};
    EXPECT_OK(&b->error, cup__launch(b->gpu, kernel, grid, CUP__ARG(to), CUP__ARG(from)));
    EXPECT_OK(&b->error, b->d->calls->read(b->d, y, to, 48));
    b->d->calls->release(b->d, from);
    b->d->calls->release(b->d, to);
}

TEST(gpu_reductions)
{
    bench b = {0};
    begin(&b);
    double x[1024], y[6];
    for (int threads = 32; threads <= 1024; threads += 32) {
        double sum = 0, most = -1e9, least = 1e9, warp = 0;
        for (int i = 0; i < threads; i++) {
            x[i] = (double)(int64_t)(test_random() % 2001) - 1000;
            sum += x[i];
            most = fmax(most, x[i]);
            least = fmin(least, x[i]);
            warp += i >= threads - 32 ? x[i] : 0;
        }
        reduce(&b, x, threads, y);
        EXPECT(y[0] == sum && y[3] == sum && y[4] == sum);
        EXPECT(y[1] == most && y[2] == least && y[5] == warp);
        x[test_random() % (uint64_t)threads] = NAN;
        reduce(&b, x, threads, y);
        EXPECT(isnan(y[0]) && isnan(y[1]) && isnan(y[2]));
    }
    b.d->calls->close(b.d);
}

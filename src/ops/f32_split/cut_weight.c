/* The host side of cut_weight.cu. */
#include "base/divide.h"
#include "cupola/ops.h"
#include "dispatch/tensor_map.h"
#include "ops/f32_split/cut_weight.cuh"
#include "ops/f32_split/split_conv.h"
#include "tensor/context.h"

#define CHUNK 32            /* channels of f32 in a line */
#define STAGES_MOST 8
#define STEPS_LEAST 8       /* of a part */
#define PARTS_MOST 1024
#define SHARED_EXTRA 1024
/* What ways take on an H200, as far as it was measured. By these tiles: operations, and bytes from
 * L2, of a multiprocessor in a microsecond, bytes of memory of the card, and microseconds of a step
 * at least, and of launches. With planes of all of x and dy in memory: bytes and operations of the
 * card, and microseconds of launches, rounded and exactly. */
#define CUT_RATE 3.2e6
#define CUT_BYTES 60e3
#define CUT_MEMORY 3.4e6
#define CUT_STEP 0.35
#define CUT_STARTS 10
#define WHOLE_BYTES 3.4e6
#define WHOLE_RATE 500e6
#define WHOLE_STARTS 14
#define WHOLE_STARTS_EXACT 24
#define CACHED 60e6 /* bytes up to which L2 has some of them the second time */

/* The tiles of a call, and into how many parts its places are put. */
typedef struct tiles {
    int tile_m, width, turned;
    int64_t left, right, parts;
} tiles;

static int planes_of(const cup__call *call)
{
    return call->c->precision == CUP__HIGHEST ? 3 : 2;
}

const char *cup__cut_weight_refuses(const cup__call *call)
{
    return cup__conv_f32_refuses(call);
}

static int tile_n_of(const tiles *t)
{
    return t->tile_m == 64 ? 2 * t->width : t->width;
}

/* The tiles that are likely to take least, and their microseconds without launches. */
static double choose(const cup__product *p, int planes, int64_t multiprocessors, tiles *best)
{
    static const int sides[] = {64, 128};
    int64_t steps = divide_up(p->k, CUT_WEIGHT_STEP);
    double least = 0;
    for (int i = 0; i < 8; i++) {
        tiles t = {.tile_m = sides[i % 2], .width = sides[i / 2 % 2], .turned = i / 4};
        int64_t tile_n = tile_n_of(&t), all, most = steps / STEPS_LEAST;
        t.left = divide_up(t.turned ? p->n : p->m, t.tile_m);
        t.right = divide_up(t.turned ? p->m : p->n, tile_n);
        all = t.left * t.right;
        t.parts = multiprocessors / all < most ? multiprocessors / all : most;
        t.parts = t.parts > PARTS_MOST ? PARTS_MOST : t.parts < 1 ? 1 : t.parts;
        double products = planes == 3 ? 6 : 3, step = CUT_STEP;
        double sums = products * 2 * CUT_WEIGHT_STEP * t.tile_m * (double)tile_n / CUT_RATE;
        double bytes = (double)(t.tile_m + tile_n) * CUT_WEIGHT_STEP * 4 / CUT_BYTES;
        step = sums > step ? sums : step;
        step = bytes > step ? bytes : step;
        double time = step * (double)divide_up(steps, t.parts) *
                      (double)divide_up(all * t.parts, multiprocessors);
        if (least == 0 || time < least) {
            least = time;
            *best = t;
        }
    }
    return least;
}

/* Microseconds with planes of all of x and dy in memory. */
static double whole_time(bool exact, double operations, double bytes)
{
    double times = exact ? 4 : 2.6;
    if (bytes < CACHED)
        times /= 2;
    return (exact ? WHOLE_STARTS_EXACT : WHOLE_STARTS) + bytes * times / WHOLE_BYTES +
           operations * (exact ? 3 : 1) / WHOLE_RATE;
}

const char *cup__cut_weight_best_refuses(const cup__call *call)
{
    const char *why = cup__cut_weight_refuses(call);
    if (why)
        return why;
    const cup__conv v = cup__conv_of(call);
    cup__conv_work w;
    tiles t;
    cup__conv_begin_depth(&w, call, &v);
    double bytes = 4 * (double)(call->in[0]->count + call->in[1]->count), groups = v.call.groups;
    double operations = 2 * groups * (double)w.p.m * (double)w.p.n * (double)w.p.k;
    bool exact = planes_of(call) == 3;
    double own = groups * choose(&w.p, planes_of(call), cup__conv_multiprocessors(call), &t);
    own = own > bytes / CUT_MEMORY ? own : bytes / CUT_MEMORY;
    return CUT_STARTS * groups + own > whole_time(exact, operations, bytes)
               ? "all of its tensors are cut once faster than parts of them for each tile"
               : NULL;
}

static int shared_of(const tiles *t, int planes, int stages)
{
    int pairs = (t->tile_m + tile_n_of(t)) / 64, panel = CUT_WEIGHT_STEP * 128;
    return stages * (2 * pairs * panel + 16) + 2 * planes * pairs * panel + SHARED_EXTRA;
}

static cup_status encode(cup__conv_work *w, int64_t step)
{
    const conv_call *c = w->call;
    const cup__boxes dy = {.data = c->w, .dtype = CUP_F32, .ndim = 2,
                           .size = {c->results, w->p.k},
                           .stride = {0, step * (int64_t)sizeof(float)},
                           .box = {CHUNK, CUT_WEIGHT_STEP}};
    w->as_f32 = true;
    CUP_TRY(cup__tensor_map_make(cup__cuda_of(w->c->device), &dy, &w->a));
    return cup__conv_encode_image(w, &w->b, CUT_WEIGHT_STEP, CUP__WGMMA_LINE);
}

static cup_status launch(cup__call *call, cup__conv_work *w, const tiles *t, const cut_weight *c)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    int planes = planes_of(call), stages = STAGES_MOST;
    while (shared_of(t, planes, stages) > CUP__WGMMA_SHARED)
        stages--;
    const cup__knob knobs[] = {{"CUP_T", CUP_BF16},  {"PLANES", planes},     {"TILE_M", t->tile_m},
                               {"WIDTH", t->width}, {"TURNED", t->turned}, {"STAGES", stages}};
    cup__kernel *kernel = cup__kernel_get(gpu, "cut_weight.cu", "cut_weight_sm90", knobs, 6);
    cup__grid grid = {.x = t->left * t->right * divide_up(c->steps, c->part),
                      .threads = 128 * 3,
                      .shared = shared_of(t, planes, stages),
                      .dependent = true};
    return kernel ? cup__launch(gpu, kernel, grid, CUP__ARG(w->a), CUP__ARG(w->b), CUP__ARG(*c))
                  : call->c->error.status;
}

static cup_status run_group(cup__call *call, const cup__conv *v)
{
    tiles t;
    cup__conv_work w;
    conv_parts parts = {0};
    cup__conv_begin_depth(&w, call, v);
    choose(&w.p, planes_of(call), cup__conv_multiprocessors(call), &t);
    if (!cup__conv_make_parts(&w, (int)t.parts, &parts))
        return call->c->error.status;
    CUP_TRY(encode(&w, cup__conv_step_of(v->call.w_step, v->call.images, w.line[0].count,
                                         w.line[1].count)));
    const cut_weight c = {.walk = w.argument,
                          .sums = parts.sums,
                          .tiles_m = divisor_of(t.left),
                          .tiles_n = divisor_of(t.right),
                          .m = (int)w.p.m,
                          .n = (int)w.p.n,
                          .steps = (int)divide_up(w.p.k, CUT_WEIGHT_STEP),
                          .part = (int)parts.part * (CUP__CONV_CHUNK / CUT_WEIGHT_STEP)};
    CUP_TRY(launch(call, &w, &t, &c));
    return cup__conv_add_parts(call, v, &parts);
}

static cup_status run(cup__call *call)
{
    const cup__conv v = cup__conv_of(call);
    for (int group = 0; group < v.call.groups; group++) {
        const cup__conv one = cup__conv_group(&v, group);
        CUP_TRY(run_group(call, &one));
    }
    return CUP_OK;
}

cup_status cup__cut_weight(cup__call *call)
{
    return cup__conv_run_scoped(call, true, run);
}

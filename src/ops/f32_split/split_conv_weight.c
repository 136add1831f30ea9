/* The gradient of a weight by f32_split_wgmma.cu: places are k, of which parts are summed by
 * themselves, as matrices that are added up at the end. */
#include <math.h>

#include "base/divide.h"
#include "dispatch/tensor_map.h"
#include "ops/f32_split/split_conv.h"

#define TILE_M 128
#define PARTS_MOST 1024
#define TILES_LEAST 4          /* of k in a part */
#define BYTES_A_MICROSECOND 2e6 /* of sums that are written and read again */

/* The width of tiles and the parts of k that are likely to take least. */
static void choose(const cup__product *p, int multiprocessors, cup__split_plan *plan)
{
    static const int widths[] = {128, 64};
    int64_t k_tiles = divide_up(p->k, CUP__CONV_CHUNK);
    int64_t most = k_tiles / TILES_LEAST < PARTS_MOST ? k_tiles / TILES_LEAST : PARTS_MOST;
    double least = 0;
    for (int i = 0; i < 2; i++)
        for (int64_t parts = 1; parts == 1 || parts <= most; parts++) {
            int64_t units = divide_up(p->m, TILE_M) * divide_up(p->n, widths[i]) * parts;
            double time = (double)divide_up(units, multiprocessors) *
                          cup__split_unit_time(widths[i], divide_up(k_tiles, parts), 2);
            time += (double)(parts * p->m * p->n) * 8 / BYTES_A_MICROSECOND;
            if (least == 0 || time < least) {
                least = time;
                *plan = (cup__split_plan){.tile_n = widths[i], .parts = (int)parts};
            }
        }
}

/* dy, whose places are behind each other, in planes. */
static cup_status encode_dy(const cup__split_conv_work *s, cup__conv_work *w)
{
    const conv_call *c = w->call;
    int64_t size = 2, all = (int64_t)c->results * s->v.call.groups;
    const cup__boxes boxes = {.data = c->w,
                              .dtype = CUP_F16,
                              .ndim = 3,
                              .size = {c->results, w->p.k, s->planes},
                              .stride = {0, all * size, s->elements[0] * size},
                              .box = {CUP__CONV_CHUNK, CUP__CONV_CHUNK, 1}};
    return cup__tensor_map_make(cup__cuda_of(w->c->device), &boxes, &w->a);
}

/* The sums of a group, for which `parts` has room once the first planes are done. */
static cup_status sum_group(const cup__split_conv_work *s, int group, conv_parts *parts)
{
    cup__conv_work w;
    cup__split_plan plan;
    const cup__conv v = cup__conv_group(&s->v, group);
    cup__conv_begin_depth(&w, s->call, &v);
    w.matrices = true;
    choose(&w.p, cup__conv_multiprocessors(s->call), &plan);
    w.plan.tile_n = plan.tile_n;
    if (s->planes == 2 && !cup__conv_make_parts(&w, plan.parts, parts))
        return s->call->c->error.status;
    plan.parts = parts->parts;
    CUP_TRY(cup__conv_encode_parts(&w, parts));
    CUP_TRY(encode_dy(s, &w));
    return cup__split_conv_launch(s, &w, &plan, 1);
}

static cup_status run(cup__call *call)
{
    cup__split_conv_work s;
    conv_parts parts[CUP__CONV_GROUPS_MOST] = {{0}};
    CUP_TRY(cup__split_conv_begin(&s, call));
    for (int planes = 2; planes <= CUP__SPLIT_PLANES_MOST; planes++) {
        CUP_TRY(cup__split_conv_cut(&s, planes));
        for (int group = 0; group < s.v.call.groups; group++)
            CUP_TRY(sum_group(&s, group, &parts[group]));
    }
    const cup__conv all = cup__conv_of(call);
    for (int group = 0; group < all.call.groups; group++) {
        const cup__conv own = cup__conv_group(&all, group);
        CUP_TRY(cup__conv_add_parts(call, &own, &parts[group]));
    }
    return CUP_OK;
}

cup_status cup__split_conv_weight(cup__call *call)
{
    return cup__conv_run_scoped(call, true, run);
}

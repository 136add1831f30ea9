#include "ops/matmul/product_tuned.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/map.h"
#include "base/memory.h"
#include "cuda/gpu.h"
#include "cuda/loader.h"
#include "dispatch/memo.h"
#include "ops/matmul/product_state.h"
#include "ops/matmul/product_tune.h"
#include "tensor/context.h"

#define PLANS_MOST 16

/* What makes a product another one for its speed, as numbers with names. */
typedef struct feature {
    const char *name;
    int64_t value;
} feature;

#define FEATURES 18

/* Along which side an operand's elements are neighbours: 1 its first, 2 its second, 0 neither. */
static int64_t along(const cup__matrix *m)
{
    return m->column == 1 ? 2 : m->row == 1 ? 1 : 0;
}

static int64_t is_aligned(const cup__matrix *m, cup_dtype dtype)
{
    int64_t line = along(m) == 2 ? m->row : m->column;
    return (uintptr_t)m->data % 16 == 0 && line * cup_dtype_size(dtype) % 16 == 0;
}

static void list(const cup_context *c, const cup__product *p, feature out[FEATURES])
{
    const feature all[FEATURES] = {
        {"dtype", p->dtype},
        {"precision", p->dtype == CUP_F32 ? c->precision : 0},
        {"m", p->m},
        {"n", p->n},
        {"k", p->k},
        {"batch", p->batch_count},
        {"batch_ndim", p->batch_ndim},
        {"a", along(&p->a)},
        {"b", along(&p->b)},
        {"a_aligned", is_aligned(&p->a, p->dtype)},
        {"b_aligned", is_aligned(&p->b, p->dtype)},
        {"y_aligned", is_aligned(&p->y, p->dtype)},
        {"bias", p->bias != NULL},
        {"activation", p->activation},
        {"saving", p->saving},
        {"y_dtype", cup__product_y_dtype(p)},
        {"other", p->kind},
        {"special", p->scaling || p->groups.kind},
    };
    memcpy(out, all, sizeof all);
}

void cup__product_text(cup_context *c, const cup__product *p, cup__text *text)
{
    feature all[FEATURES];
    list(c, p, all);
    cup__text_add(text, "product");
    for (int i = 0; i < FEATURES; i++)
        cup__text_add(text, " %s=%lld", all[i].name, (long long)all[i].value);
}

static uint64_t hash_of(const cup_context *c, const cup__product *p)
{
    feature all[FEATURES];
    int64_t values[FEATURES];
    list(c, p, all);
    for (int i = 0; i < FEATURES; i++)
        values[i] = all[i].value;
    return cup__hash_bytes(values, sizeof values);
}

/* The hash of a product that a record names; false when it is not one of this version's. */
static bool hash_of_text(const char *text, uint64_t *hash)
{
    static const cup__product none;
    static const cup_context nowhere;
    feature all[FEATURES];
    int64_t values[FEATURES];
    list(&nowhere, &none, all);
    if (strncmp(text, "product", 7))
        return false;
    text += 7;
    for (int i = 0; i < FEATURES; i++) {
        size_t length = strlen(all[i].name);
        if (*text != ' ' || strncmp(text + 1, all[i].name, length) || text[length + 1] != '=')
            return false;
        char *end;
        values[i] = strtoll(text + length + 2, &end, 10);
        if (end == text + length + 2)
            return false;
        text = end;
    }
    *hash = cup__hash_bytes(values, sizeof values);
    return *text == 0;
}

/* What the implementations offer under one name. */
typedef struct doer {
    const char *name;
    cup__product_refuses refuses, best_refuses;
    cup_status (*run)(cup__call *call, const cup__product *p);
} doer;

#define DOER(upper, name, best)                                                                    \
    [CUP__BY_##upper] = {#name, cup__product_##name##_refuses, cup__product_##best##_refuses,      \
                         cup__product_##name},
static const doer doers[] = {CUP__PRODUCT_WAYS(DOER)};

/* The numbers of a plan as they stand in a record. */
#define NUMBER(name) {#name, offsetof(cup__wgmma_plan, name)}
static const struct {
    const char *name;
    size_t offset;
} numbers[] = {NUMBER(tile_m),    NUMBER(tile_n),    NUMBER(consumers), NUMBER(stages),
               NUMBER(cluster_m), NUMBER(cluster_n), NUMBER(parts)};
#define NUMBERS (sizeof numbers / sizeof *numbers)

void cup__way_text(const cup__way *way, cup__text *text)
{
    cup__text_add(text, "%s", doers[way->doer].name);
    if (way->doer == CUP__BY_CUBLASLT)
        cup__text_add(text, " rank=%d", way->rank);
    for (size_t i = 0; i < NUMBERS && way->doer == CUP__BY_WGMMA; i++)
        cup__text_add(text, " %s=%d", numbers[i].name,
                      *(const int *)(const void *)((const char *)&way->plan + numbers[i].offset));
    if (way->doer == CUP__BY_WGMMA)
        cup__text_add(text, " pingpong=%d", way->plan.pingpong);
    if (way->doer == CUP__BY_WGMMA && way->plan.cluster_k)
        cup__text_add(text, " cluster_k=%d", way->plan.cluster_k);
    cup__text_add(text, " ways=%d", way->known);
}

/* Takes " name=number" off the text; false when it does not begin with it. */
static bool take(const char **text, const char *name, int most, int *out)
{
    size_t length = strlen(name);
    if (**text != ' ' || strncmp(*text + 1, name, length) || (*text)[length + 1] != '=')
        return false;
    char *end;
    long value = strtol(*text + length + 2, &end, 10);
    if (end == *text + length + 2 || value < 0 || value > most)
        return false;
    *text = end;
    *out = (int)value;
    return true;
}

bool cup__way_parse(const char *text, cup__way *way)
{
    memset(way, 0, sizeof *way);
    size_t length = strcspn(text, " ");
    int i = 0, pingpong = 0;
    while (i < CUP__DOERS &&
           (strlen(doers[i].name) != length || strncmp(text, doers[i].name, length)))
        i++;
    if (i == CUP__DOERS)
        return false;
    way->doer = (cup__doer)i;
    text += length;
    if (way->doer == CUP__BY_CUBLASLT && !take(&text, "rank", CUP__RANKS_MOST - 1, &way->rank))
        return false;
    if (way->doer == CUP__BY_WGMMA) {
        for (size_t j = 0; j < NUMBERS; j++)
            if (!take(&text, numbers[j].name, 1 << 16,
                      (int *)(void *)((char *)&way->plan + numbers[j].offset)))
                return false;
        if (!take(&text, "pingpong", 1, &pingpong))
            return false;
        way->plan.pingpong = pingpong;
        take(&text, "cluster_k", 16, &way->plan.cluster_k);
        if (!cup__wgmma_is_on_menu(&way->plan))
            return false;
    }
    return take(&text, "ways", CUP__DOERS, &way->known) && *text == 0;
}

const char *cup__way_refuses(cup_context *c, const cup__product *p, const cup__way *way)
{
    const doer *d = &doers[way->doer];
    if (way->doer == CUP__BY_CUBLASLT)
        return cup__product_cublaslt_rank_refuses(c, p, way->rank);
    const char *why = d->refuses(c, p);
    if (!why && way->doer == CUP__BY_WGMMA)
        why = cup__wgmma_plan_refuses(p, &way->plan);
    return why;
}

cup_status cup__way_run(cup__call *call, const cup__product *p, const cup__way *way)
{
    if (way->doer == CUP__BY_WGMMA)
        return cup__product_wgmma_kept(call, p, &way->plan);
    if (way->doer == CUP__BY_CUBLASLT)
        return cup__product_cublaslt_by(call, p, way->rank);
    return doers[way->doer].run(call, p);
}

static int ways_of_wgmma(cup_context *c, const cup__product *p, cup__way *ways)
{
    cup__wgmma_plan plans[PLANS_MOST];
    int sms = cup__cuda_facts(cup__cuda_of(c->device))->multiprocessors;
    int found = cup__wgmma_candidates(p, sms, plans, PLANS_MOST);
    for (int j = 0; j < found; j++)
        ways[j] = (cup__way){.doer = CUP__BY_WGMMA, .plan = plans[j]};
    return found;
}

int cup__ways_of(cup_context *c, const cup__product *p, cup__way ways[CUP__WAYS_MOST])
{
    int count = 0;
    for (int i = 0; i < CUP__DOERS; i++) {
        if (i != CUP__BY_WGMMA && cup__product_has_plans_only(p))
            continue;
        if (i == CUP__BY_PLAIN || doers[i].refuses(c, p))
            continue;
        if (i == CUP__BY_WGMMA) {
            count += ways_of_wgmma(c, p, ways + count);
        } else if (i == CUP__BY_CUBLASLT) {
            for (int rank = 0; rank < CUP__RANKS_MOST; rank++)
                ways[count++] = (cup__way){.doer = CUP__BY_CUBLASLT, .rank = rank};
        } else {
            ways[count++] = (cup__way){.doer = (cup__doer)i};
        }
    }
    /* Never faster than others where they can. */
    if (count == 0 && !cup__product_has_plans_only(p))
        ways[count++] = (cup__way){.doer = CUP__BY_PLAIN};
    for (int i = 0; i < count; i++)
        ways[i].known = CUP__DOERS;
    return count;
}

struct cup__product_table {
    cup__map by_product; /* to places in `ways` */
    cup__way *ways;
    size_t count, capacity;
};

static bool prefer(cup__product_table *table, uint64_t hash, const cup__way *way)
{
    uint32_t at = cup__map_find(&table->by_product, hash);
    if (at != CUP__NOT_THERE) {
        table->ways[at] = *way;
        return true;
    }
    if (!cup__grow(&table->ways, &table->capacity, table->count, sizeof *table->ways) ||
        !cup__map_add(&table->by_product, hash, (uint32_t)table->count))
        return false;
    table->ways[table->count++] = *way;
    return true;
}

static bool take_record(void *to, const cup__tuning_line *line)
{
    uint64_t hash;
    cup__way way;
    return !hash_of_text(line->call, &hash) || !cup__way_parse(line->way, &way) ||
           prefer(to, hash, &way);
}

static cup__product_table *table_of(cup_context *c)
{
    cup__product_state *state = cup__product_state_of(c);
    if (!state || state->tuned)
        return state ? state->tuned : NULL;
    cup__product_table *table = cup__calloc(1, sizeof *table);
    if (!table) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for tuning records");
        return NULL;
    }
    cup__tuning_records(c, take_record, table);
    return state->tuned = table;
}

void cup__product_table_free(cup__product_table *table)
{
    if (!table)
        return;
    cup__map_free(&table->by_product);
    cup__free(table->ways);
    cup__free(table);
}

cup_status cup__product_prefer(cup_context *c, const cup__product *p, const cup__way *way)
{
    cup__product_table *table = table_of(c);
    cup__memo_forget(c);
    if (table && !prefer(table, hash_of(c, p), way))
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for tuning records");
    return c->error.status;
}

/* Whether a way that was not there when it was measured is likely to be faster. */
static bool is_outdated(cup_context *c, const cup__product *p, const cup__way *way)
{
    for (int i = way->known; i < CUP__DOERS && !cup__product_has_plans_only(p); i++)
        if (!doers[i].best_refuses(c, p))
            return true;
    return false;
}

static const cup__way *find(cup_context *c, const cup__product *p)
{
    const cup__product_table *table = table_of(c);
    if (!table || !table->count)
        return NULL;
    uint32_t at = cup__map_find(&table->by_product, hash_of(c, p));
    const cup__way *way = at == CUP__NOT_THERE ? NULL : &table->ways[at];
    return way && is_outdated(c, p, way) ? NULL : way;
}

/* Whether a product that was never measured is measured now, which does it many times: that must
 * not change what it reads. */
static bool measures(const cup_context *c, const cup__product *p)
{
    return c->tuning && !cup__cuda_of(c->device)->capturing && !p->other;
}

const char *cup__product_tuned_refuses(cup_context *c, const cup__product *p)
{
    if (cup__cuda_of(c->device)->dry)
        return "a GPU that is not there was not measured";
    const cup__way *way = find(c, p);
    if (way)
        return cup__way_refuses(c, p, way);
    return measures(c, p) ? NULL
                          : "it was not measured, or before there were faster ways; `cupola tune` "
                            "does that";
}

bool cup__product_has_plans_only(const cup__product *p)
{
    return p->kind || (p->activation && p->activation != PRODUCT_GELU) ||
           cup__product_y_dtype(p) != p->dtype;
}

static void log_way(const cup__way *way)
{
    cup__text text = {0};
    cup__way_text(way, &text);
    cup__log(CUP__DISPATCH, "  tuned: %s", cup__text_string(&text));
    cup__text_free(&text);
}

cup_status cup__product_wgmma_tuned(cup__call *call, const cup__product *p)
{
    cup_context *c = call->c;
    bool looks = !cup__cuda_of(c->device)->dry && !c->options.deterministic;
    const cup__way *way = looks ? find(c, p) : NULL;
    if (!way || way->doer != CUP__BY_WGMMA || cup__wgmma_plan_refuses(p, &way->plan))
        return cup__product_wgmma(call, p);
    if (cup__log_wants(CUP__DISPATCH))
        log_way(way);
    return cup__product_wgmma_kept(call, p, &way->plan);
}

cup_status cup__product_tuned(cup__call *call, const cup__product *p)
{
    const cup__way *way = find(call->c, p);
    cup__tuned_way found;
    if (!way) {
        CUP_TRY(cup__product_tune(call, p, &found));
        CUP_TRY(cup__tuned_way_save(call->c, p, &found));
        way = &found.way;
    }
    if (cup__log_wants(CUP__DISPATCH))
        log_way(way);
    return cup__way_run(call, p, way);
}

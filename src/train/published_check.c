/* Whether the weights of a published model are those of its config.json: what one of them has and
 * the other does not is a model that would answer, and be another one. */
#include <stdio.h>
#include <string.h>

#include "io/safetensors.h"
#include "nn/gpt.h"
#include "train/published.h"

#define LONGEST_NAME 160

typedef struct checking {
    cup__error *error;
    const cup__safetensors *file;
    const cup__published_family *family;
    const cup_gpt_config *config;
} checking;

static const cup__safetensors_entry *find(const checking *c, const char *name)
{
    char longer[LONGEST_NAME];
    const cup__safetensors_entry *e = cup__safetensors_find(c->file, name);
    if (e || !c->family->prefix)
        return e;
    snprintf(longer, sizeof longer, "%s%s", c->family->prefix, name);
    return cup__safetensors_find(c->file, longer);
}

/* Whether a model of this config has the tensor of ours that a row stands for. */
static bool is_ours(const checking *c, const cup__published_tensor *row)
{
    const cup__gpt_tensor *t = cup__gpt_tensors;
    while (t->name && strcmp(t->name, row->own) != 0)
        t++;
    return t->name && !(t->absent && t->absent(c->config));
}

/* Codes of 8 bits and fewer mean nothing without their scales. */
static cup_status check_type(const checking *c, const cup__safetensors_entry *e)
{
    int dtype = e->type->dtype;
    if (dtype == CUP_F32 || dtype == CUP_BF16 || dtype == CUP_F16 || dtype == CUP_F64)
        return CUP_OK;
    return cup__fail(c->error, CUP_UNSUPPORTED,
                     "%s: \"%s\" is %s: quantized weights are not read; take the model in bf16, "
                     "f16 or f32",
                     c->file->path, e->name, e->type->name);
}

static cup_status check_one(const checking *c, const cup__published_tensor *row, bool inside,
                            int block, int expert)
{
    char name[LONGEST_NAME];
    snprintf(name, sizeof name, row->name, block, expert);
    const cup__safetensors_entry *e = find(c, name);
    if (!e)
        return CUP_OK;
    if (inside)
        return check_type(c, e);
    return cup__fail(c->error, CUP_FORMAT,
                     "%s: the weights have \"%s\", and by config.json the model has none; one of "
                     "the two belongs to another model",
                     c->file->path, e->name);
}

/* A row of the table, with a block and an expert more than there should be. What others leave in
 * files of models whose head is their embedding is not asked for. */
static cup_status check_row(const checking *c, const cup__published_tensor *row)
{
    bool ours = is_ours(c, row), routed = cup__published_of_expert(row);
    int blocks = strstr(row->own, "%d") ? (int)c->config->layers : 0;
    int experts = routed ? (int)c->config->experts : 0;
    if (!ours && !blocks)
        return CUP_OK;
    for (int i = 0; i <= blocks; i++)
        for (int e = 0; e <= experts; e++) {
            bool inside = ours && (i < blocks || !blocks) && (e < experts || !routed);
            CUP_TRY(check_one(c, row, inside, i, e));
        }
    return CUP_OK;
}

cup_status cup__published_check(cup__error *error, const char *folder, const cup_gpt_config *config,
                                const cup__published_family *family)
{
    cup__safetensors file;
    CUP_TRY(cup__safetensors_open(error, folder, &file));
    checking c = {error, &file, family, config};
    cup_status status = CUP_OK;
    for (const cup__published_tensor *row = family->tensors; row->name && status == CUP_OK; row++)
        status = check_row(&c, row);
    cup__safetensors_close(&file);
    return status;
}

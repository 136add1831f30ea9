/* What a run that trains a network for images computes: what is known to work, checks, and the form
 * in files. */
#include <math.h>
#include <string.h>

#include "dispatch/attributes.h"
#include "optim/loss_scale.h"
#include "optim/schedule.h"
#include "tensor/context.h"
#include "train/classifier.h"

#define MOST_IMAGES ((int64_t)1 << 32) /* of a step */

/* What is known to work: found on Fashion-MNIST, but for the two last, which are as published. */
static const struct start {
    const char *name;
    int64_t batch;
    double rate, decay;
    cup_augmentation augmentation;
    double label_smoothing;
} starts[] = {
    {"mlp", 128, 1e-3, 0.01, {.flip = true}, 0},
    {"cnn", 128, 4e-3, 0.02, {.flip = true}, 0},
    {"resnet18", 256, 4e-3, 0.05, {.flip = true, .crop = 2}, 0.05},
    {"resnet50", 256, 4e-3, 0.05, {.flip = true, .crop = 2}, 0.1},
    {"vit-s", 256, 1e-3, 0.05, {.flip = true, .crop = 2}, 0.1},
    {"convnext-t", 256, 1e-3, 0.05, {.flip = true, .crop = 2}, 0.1}};

cup_status cup_classification_start(cup_context *c, const char *name, const cup_images *train,
                                    double epochs, cup_classification *out)
{
    if (!c)
        return CUP_MEMORY;
    CUP_TRY(c->error.status);
    if (!train || !out || !(epochs > 0 && epochs <= 1e6))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "cup_classification_start: it needs images, a place for its result, and "
                         "over 0 and up to a million epochs");
    memset(out, 0, sizeof *out);
    CUP_TRY(cup_network_text(c, name, cup_images_height(train), cup_images_width(train),
                             out->network, sizeof out->network));
    const struct start *s = starts;
    while (strcmp(s->name, name) != 0)
        s++;
    out->size = sizeof *out;
    out->optimizer.size = sizeof out->optimizer;
    out->augmentation = s->augmentation;
    out->augmentation.size = sizeof out->augmentation;
    out->batch = s->batch < cup_images_count(train) ? s->batch : cup_images_count(train);
    out->steps = (int64_t)ceil(epochs * (double)cup_images_count(train) / (double)out->batch);
    out->warmup = out->steps / 10;
    out->rate = s->rate;
    out->rate_end = s->rate / 1000;
    out->optimizer.weight_decay = s->decay;
    out->label_smoothing = s->label_smoothing;
    out->evaluate_every = (int64_t)ceil((double)cup_images_count(train) / (double)out->batch);
    out->save_every = out->evaluate_every;
    out->dtype = CUP_F32;
    return CUP_OK;
}

#define AT(name) offsetof(cup_classification, name)
static const cup__field fields[] = {
    {"method", CUP__FIELD_CHOICE, AT(optimizer.method), 0, 0, true, cup__method_words},
    {"batch", CUP__FIELD_WHOLE, AT(batch), 1, 1 << 24, true, NULL},
    {"steps", CUP__FIELD_WHOLE, AT(steps), 1, 1e15, false, NULL},
    {"warmup", CUP__FIELD_WHOLE, AT(warmup), 0, 1e15, false, NULL},
    {"rate", CUP__FIELD_REAL, AT(rate), 0, 1e6, false, NULL},
    {"rate_end", CUP__FIELD_REAL, AT(rate_end), 0, 1e6, false, NULL},
    {"decline", CUP__FIELD_CHOICE, AT(decline), 0, 0, false, cup__decline_words},
    {"decline_steps", CUP__LATER(WHOLE), AT(decline_steps), 0, 1e15, false, NULL},
    {"accumulate", CUP__LATER(WHOLE), AT(accumulate), 0, 1 << 20, true, NULL},
    {"recompute", CUP__LATER(CHOICE), AT(recompute), 0, 0, false, cup__recompute_words},
    CUP__OPTIMIZER_FIELDS(cup_classification, optimizer),
    {"non_finite", CUP__LATER(CHOICE), AT(non_finite), 0, 0, false, cup__non_finite_words},
    CUP__LOSS_SCALE_FIELDS(cup_classification),
    {"height", CUP__FIELD_WHOLE, AT(height), 0, 65535, true, NULL},
    {"width", CUP__FIELD_WHOLE, AT(width), 0, 65535, true, NULL},
    {"channels", CUP__FIELD_WHOLE, AT(channels), 0, 3, true, NULL},
    {"skip_broken", CUP__FIELD_FLAG, AT(skip_broken), 0, 1, false, NULL},
    {"as_needed", CUP__FIELD_FLAG, AT(as_needed), 0, 1, true, NULL},
    {"flip", CUP__FIELD_FLAG, AT(augmentation.flip), 0, 1, true, NULL},
    {"crop", CUP__FIELD_WHOLE, AT(augmentation.crop), 0, 65535, true, NULL},
    {"rotate", CUP__FIELD_REAL, AT(augmentation.rotate), 0, 180, true, NULL},
    {"scale", CUP__FIELD_REAL, AT(augmentation.scale), 0, 0.9, true, NULL},
    {"color", CUP__FIELD_REAL, AT(augmentation.color), 0, 1, true, NULL},
    {"erase", CUP__FIELD_REAL, AT(augmentation.erase), 0, 1, true, NULL},
    {"mixup", CUP__FIELD_REAL, AT(mixup), 0, 1, true, NULL},
    {"label_smoothing", CUP__FIELD_REAL, AT(label_smoothing), 0, 1, true, NULL},
    {"evaluate_every", CUP__FIELD_WHOLE, AT(evaluate_every), 0, 1e15, false, NULL},
    {"save_every", CUP__FIELD_WHOLE, AT(save_every), 0, 1e15, false, NULL},
    {0}};

cup_status cup__classification_check(cup_context *c, cup_classification *how)
{
    cup__precision precision = c->precision;
    CUP_TRY(cup__fields_check(&c->error, "training", fields, how));
    CUP_TRY(cup__loss_scale_choose(c, how->dtype, &how->loss_scale));
    if (how->recompute == CUP_RECOMPUTE_POLICY_BLOCK || how->recompute == CUP_RECOMPUTE_POLICY_AUTO)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "training: of a network for images backward computes norms or pointwise "
                         "again, not %s",
                         cup__recompute_words[how->recompute]);
    how->accumulate += how->accumulate == 0;
    if (how->accumulate > MOST_IMAGES / how->batch)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "training: %lld batches of %lld images are over 2^32 in a step; take less",
                         (long long)how->accumulate, (long long)how->batch);
    if (!memchr(how->network, 0, sizeof how->network) || !memchr(how->data, 0, sizeof how->data))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "training: the description of the network has no end");
    if (how->precision)
        CUP_TRY(cup__precision_find(&c->error, how->precision, &precision));
    how->precision = cup__precision_names[precision];
    return CUP_OK;
}

const char *cup__classification_differs(const cup_classification *a, const cup_classification *b)
{
    const char *name = cup__fields_differ(fields, a, b);
    return name                            ? name
           : strcmp(a->network, b->network) ? "the network"
           : a->dtype != b->dtype          ? "dtype"
           : a->seed != b->seed            ? "seed"
           : strcmp(a->precision, b->precision) ? "precision"
                                                : NULL;
}

void cup__classification_write(cup__json_writer *writer, const cup_classification *how)
{
    cup__json_open(writer, "training", CUP__JSON_OBJECT);
    cup__json_add_string(writer, "network", how->network);
    cup__json_add_string(writer, "data", how->data);
    cup__json_add_string(writer, "dtype", cup_dtype_name(how->dtype));
    cup__json_add_unsigned(writer, "seed", how->seed);
    cup__json_add_string(writer, "precision", how->precision);
    cup__fields_write(writer, fields, how);
    cup__json_close(writer);
}

static cup_status read_text(cup__error *error, const cup__json *json, const cup__json_node *object,
                            const char *key, char *to, size_t room)
{
    const char *text;
    CUP_TRY(cup__json_get_string(error, json, object, key, &text));
    if (strlen(text) >= room)
        return cup__fail(error, CUP_FORMAT, "%s: %s has over %zu bytes", json->name, key, room - 1);
    memcpy(to, text, strlen(text) + 1);
    return CUP_OK;
}

cup_status cup__classification_read(cup_context *c, const cup__json *json,
                                    const cup__json_node *state, cup_classification *how)
{
    cup__error *error = &c->error;
    const cup__json_node *object;
    const char *dtype;
    CUP_TRY(cup__json_get(error, json, state, "training", CUP__JSON_OBJECT, &object));
    CUP_TRY(read_text(error, json, object, "network", how->network, sizeof how->network));
    CUP_TRY(read_text(error, json, object, "data", how->data, sizeof how->data));
    CUP_TRY(cup__json_get_string(error, json, object, "dtype", &dtype));
    if (cup_dtype_find(dtype, &how->dtype) != CUP_OK)
        return cup__fail(error, CUP_FORMAT, "%s: dtype is \"%.40s\"", json->name, dtype);
    CUP_TRY(cup__json_get_unsigned(error, json, object, "seed", &how->seed));
    CUP_TRY(cup__json_get_string(error, json, object, "precision", &how->precision));
    how->size = sizeof *how;
    how->optimizer.size = sizeof how->optimizer;
    how->augmentation.size = sizeof how->augmentation;
    CUP_TRY(cup__fields_read(error, json, object, fields, how));
    if (cup__classification_check(c, how) == CUP_OK)
        return CUP_OK;
    cup__error_prefix(error, "%s: ", json->name);
    return error->status = CUP_FORMAT;
}

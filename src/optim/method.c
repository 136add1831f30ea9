#include "optim/method.h"

#include <math.h>
#include <string.h>

#include "dispatch/attributes.h"
#include "optim/update.h"

static int method_count(void)
{
    int count = 0;
    while (cup__methods[count] != CUP__OP_COUNT)
        count++;
    return count;
}

static bool is_method(cup_method method)
{
    return (int)method >= 0 && (int)method < method_count();
}

const char *cup_method_name(cup_method method)
{
    return is_method(method) ? cup__method_words[method] : "?";
}

cup_status cup_method_find(const char *name, cup_method *out)
{
    for (int i = 0; name && out && i < method_count(); i++)
        if (!strcmp(name, cup__method_words[i])) {
            *out = (cup_method)i;
            return CUP_OK;
        }
    return CUP_ARGUMENT;
}

const cup__row *cup__method_row(cup_method method)
{
    return &cup__rows[cup__methods[method]];
}

const cup__row *cup__method_others(cup_method method)
{
    const cup__row *row = cup__method_row(method);
    int others = row->op->update->others;
    return others ? &cup__rows[others] : row;
}

bool cup__method_is_coded(cup_method method)
{
    return cup__method_others(method)->op->update->coded;
}

/* The numbers among the options; all are at least 0. */
static const struct {
    const char *name;
    size_t offset;
    double below;
} numbers[] = {{"beta1", offsetof(cup_optimizer_options, beta1), 1},
               {"beta2", offsetof(cup_optimizer_options, beta2), 1},
               {"epsilon", offsetof(cup_optimizer_options, epsilon), INFINITY},
               {"momentum", offsetof(cup_optimizer_options, momentum), 1},
               {"weight_decay", offsetof(cup_optimizer_options, weight_decay), INFINITY},
               {"clip", offsetof(cup_optimizer_options, clip), INFINITY},
               {"average", offsetof(cup_optimizer_options, average), 1}},
  flags[] = {{"nesterov", offsetof(cup_optimizer_options, nesterov), 0},
             {"stochastic", offsetof(cup_optimizer_options, stochastic), 0}};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static double *number_at(cup_optimizer_options *o, const char *name)
{
    for (size_t i = 0; i < COUNT(numbers); i++)
        if (!strcmp(numbers[i].name, name))
            return (double *)(void *)((char *)o + numbers[i].offset);
    return NULL;
}

static bool flag_of(const cup_optimizer_options *o, const char *name)
{
    for (size_t i = 0; i < COUNT(flags); i++)
        if (!strcmp(flags[i].name, name))
            return *(const bool *)((const char *)o + flags[i].offset);
    return false;
}

static void fill_defaults(cup_optimizer_options *o, const cup__row *row)
{
    for (const cup__attribute *a = row->attributes; a->name; a++) {
        double *number = number_at(o, a->name);
        if (number && *number == 0)
            *number = a->usual;
    }
}

cup_status cup__method_options(cup_context *c, cup_optimizer_options *o)
{
    for (size_t i = 0; i < COUNT(numbers); i++) {
        double value = *number_at(o, numbers[i].name);
        if (!(value >= 0 && value < numbers[i].below))
            return cup__fail(&c->error, CUP_ARGUMENT,
                             "optimizer: %s must be at least 0 and below %g, not %g",
                             numbers[i].name, numbers[i].below, value);
    }
    if (!is_method(o->method))
        return cup__fail(&c->error, CUP_ARGUMENT, "optimizer: method %d is none", (int)o->method);
    fill_defaults(o, cup__method_row(o->method));
    fill_defaults(o, cup__method_others(o->method));
    return CUP_OK;
}

void cup__method_attributes_of(const cup__row *row, const cup_optimizer_options *o,
                               cup__method_attributes *out)
{
    cup_optimizer_options options = *o;
    *out = (cup__method_attributes){{0}};
    for (const cup__attribute *a = row->attributes; a->name; a++) {
        char *at = (char *)out + a->offset;
        if (a->kind == CUP__KIND_BOOL)
            *(bool *)at = flag_of(o, a->name);
        else
            memcpy(at, number_at(&options, a->name), sizeof(double));
    }
}

double cup__method_number(const cup__row *row, const cup__method_attributes *attributes,
                          const char *name)
{
    double number = 0;
    for (const cup__attribute *a = row->attributes; a->name; a++)
        if (!strcmp(a->name, name))
            memcpy(&number, (const char *)attributes + a->offset, sizeof number);
    return number;
}

int cup__method_states(const cup_optimizer_options *given)
{
    cup_optimizer_options o = *given;
    cup__method_attributes attributes;
    if (!is_method(o.method))
        return 0;
    const cup__row *row = cup__method_row(o.method);
    fill_defaults(&o, row);
    cup__method_attributes_of(row, &o, &attributes);
    return cup__update_states(row, &attributes);
}

int cup__method_state_bytes(const cup_optimizer_options *given)
{
    int states = cup__method_states(given);
    return states && cup__method_row(given->method)->op->update->coded ? states : 4 * states;
}

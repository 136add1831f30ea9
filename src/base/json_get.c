/* The part of json.h that looks values up. */
#include <string.h>

#include "base/json.h"

static const char *const kind_names[] = {"null",     "a boolean", "a number",
                                         "a string", "an array",  "an object"};

const cup__json_node *cup__json_find(const cup__json_node *object, const char *key)
{
    if (!object || object->kind != CUP__JSON_OBJECT)
        return NULL;
    CUP__JSON_EACH(child, object)
    if (strcmp(child->key, key) == 0)
        return child;
    return NULL;
}

cup_status cup__json_get(cup__error *error, const cup__json *json, const cup__json_node *object,
                         const char *key, cup__json_kind kind, const cup__json_node **out)
{
    *out = cup__json_find(object, key);
    if (!*out)
        return cup__fail(error, CUP_FORMAT, "%s has no key \"%s\"", json->name, key);
    if ((*out)->kind != kind)
        return cup__fail(error, CUP_FORMAT, "%s: \"%s\" must be %s, but is %s", json->name, key,
                         kind_names[kind], kind_names[(*out)->kind]);
    return CUP_OK;
}

double cup__json_number(const cup__json_node *node)
{
    double value = node->is_integer ? (double)node->magnitude : node->number;
    return node->is_integer && node->is_negative ? -value : value;
}

bool cup__json_integer(const cup__json_node *node, int64_t *out)
{
    if (!node || node->kind != CUP__JSON_NUMBER || !node->is_integer ||
        node->magnitude > (uint64_t)INT64_MAX + node->is_negative)
        return false;
    *out = (int64_t)(node->is_negative ? 0 - node->magnitude : node->magnitude);
    return true;
}

cup_status cup__json_get_integer(cup__error *error, const cup__json *json,
                                 const cup__json_node *object, const char *key, int64_t low,
                                 int64_t high, int64_t *out)
{
    const cup__json_node *node;
    CUP_TRY(cup__json_get(error, json, object, key, CUP__JSON_NUMBER, &node));
    if (!cup__json_integer(node, out) || *out < low || *out > high)
        return cup__fail(error, CUP_FORMAT, "%s: \"%s\" must be a whole number from %lld to %lld",
                         json->name, key, (long long)low, (long long)high);
    return CUP_OK;
}

cup_status cup__json_get_unsigned(cup__error *error, const cup__json *json,
                                  const cup__json_node *object, const char *key, uint64_t *out)
{
    const cup__json_node *node;
    CUP_TRY(cup__json_get(error, json, object, key, CUP__JSON_NUMBER, &node));
    if (!node->is_integer || node->is_negative)
        return cup__fail(error, CUP_FORMAT, "%s: \"%s\" must be a whole number, 0 or above",
                         json->name, key);
    *out = node->magnitude;
    return CUP_OK;
}

cup_status cup__json_get_number(cup__error *error, const cup__json *json,
                                const cup__json_node *object, const char *key, double *out)
{
    const cup__json_node *node;
    CUP_TRY(cup__json_get(error, json, object, key, CUP__JSON_NUMBER, &node));
    *out = cup__json_number(node);
    return CUP_OK;
}

cup_status cup__json_get_boolean(cup__error *error, const cup__json *json,
                                 const cup__json_node *object, const char *key, bool *out)
{
    const cup__json_node *node;
    CUP_TRY(cup__json_get(error, json, object, key, CUP__JSON_BOOL, &node));
    *out = node->boolean;
    return CUP_OK;
}

cup_status cup__json_get_string(cup__error *error, const cup__json *json,
                                const cup__json_node *object, const char *key, const char **out)
{
    const cup__json_node *node;
    CUP_TRY(cup__json_get(error, json, object, key, CUP__JSON_STRING, &node));
    if (strlen(node->string) != node->count)
        return cup__fail(error, CUP_FORMAT, "%s: \"%s\" holds a zero character", json->name, key);
    *out = node->string;
    return CUP_OK;
}

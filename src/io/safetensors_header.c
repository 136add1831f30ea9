/* What a header says is checked until every byte of the data belongs to just one tensor. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "io/safetensors.h"

static const cup__safetensors_type types[] = {{"F32", 32, CUP_F32},
                                              {"F64", 64, CUP_F64},
                                              {"F16", 16, CUP_F16},
                                              {"BF16", 16, CUP_BF16},
                                              {"I64", 64, CUP_I64},
                                              {"I32", 32, CUP_I32},
                                              {"U8", 8, CUP_U8},
                                              {"BOOL", 8, CUP_BOOL},
                                              {"I8", 8, CUP_I8},
                                              {"F8_E4M3", 8, CUP_F8E4M3},
                                              {"F8_E5M2", 8, CUP_F8E5M2},
                                              {"I16", 16, -1},
                                              {"U16", 16, -1},
                                              {"U32", 32, -1},
                                              {"U64", 64, -1},
                                              {"C64", 64, -1},
                                              {"F8_E8M0", 8, -1},
                                              {"F8_E4M3FNUZ", 8, -1},
                                              {"F8_E5M2FNUZ", 8, -1},
                                              {"F6_E2M3", 6, -1},
                                              {"F6_E3M2", 6, -1},
                                              {"F4", 4, -1}};

const cup__safetensors_type *cup__safetensors_type_find(const char *name)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}

const cup__safetensors_type *cup__safetensors_type_of(cup_dtype dtype)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].dtype == (int)dtype)
            return &types[i];
    return NULL;
}

static cup_status parse_shape(cup__error *error, const cup__json *header,
                              const cup__json_node *tensor, cup__safetensors_entry *entry,
                              uint64_t *bits)
{
    const cup__json_node *shape;
    CUP_TRY(cup__json_get(error, header, tensor, "shape", CUP__JSON_ARRAY, &shape));
    *bits = (uint64_t)entry->type->bits;
    entry->ndim = (int)shape->count;
    int64_t size;
    size_t dimension = 0;
    bool fits = true, empty = false;
    CUP__JSON_EACH(node, shape)
    {
        if (!cup__json_integer(node, &size) || size < 0)
            return cup__fail(error, CUP_FORMAT,
                             "%s: the shape of \"%.100s\" must be whole numbers, 0 or above",
                             header->name, entry->name);
        if (dimension < CUP_MAX_DIMS)
            entry->shape[dimension] = size;
        dimension++;
        empty |= size == 0;
        fits &= !__builtin_mul_overflow(*bits, (uint64_t)size, bits);
    }
    if (empty)
        *bits = 0;
    if (!fits && !empty)
        return cup__fail(error, CUP_FORMAT, "%s: the shape of \"%.100s\" is too large",
                         header->name, entry->name);
    return CUP_OK;
}

static cup_status parse_offsets(cup__error *error, const cup__json *header,
                                const cup__json_node *tensor, cup__safetensors_entry *entry,
                                uint64_t data_bytes)
{
    const cup__json_node *offsets;
    CUP_TRY(cup__json_get(error, header, tensor, "data_offsets", CUP__JSON_ARRAY, &offsets));
    int64_t begin = 0, end = 0;
    if (offsets->count != 2 || offsets->span != 3 || !cup__json_integer(offsets + 1, &begin) ||
        !cup__json_integer(offsets + 2, &end) || begin < 0 || end < begin)
        return cup__fail(error, CUP_FORMAT,
                         "%s: data_offsets of \"%.100s\" must be two whole numbers, 0 or above, "
                         "the second not below the first",
                         header->name, entry->name);
    if ((uint64_t)end > data_bytes)
        return cup__fail(error, CUP_FORMAT,
                         "%s is truncated: \"%.100s\" ends at byte %lld of the data, and there "
                         "are %llu; fetch it again",
                         header->name, entry->name, (long long)end, (unsigned long long)data_bytes);
    entry->begin = (uint64_t)begin;
    entry->bytes = (uint64_t)(end - begin);
    return CUP_OK;
}

static cup_status parse_tensor(cup__error *error, const cup__json *header,
                               const cup__json_node *tensor, uint64_t data_bytes,
                               cup__safetensors_entry *entry)
{
    entry->name = tensor->key;
    if (tensor->kind != CUP__JSON_OBJECT)
        return cup__fail(error, CUP_FORMAT, "%s: \"%.100s\" does not describe a tensor",
                         header->name, tensor->key);
    const char *type;
    uint64_t bits;
    CUP_TRY(cup__json_get_string(error, header, tensor, "dtype", &type));
    entry->type = cup__safetensors_type_find(type);
    if (!entry->type)
        return cup__fail(error, CUP_FORMAT, "%s: \"%.100s\" has the unknown dtype \"%.32s\"",
                         header->name, tensor->key, type);
    CUP_TRY(parse_shape(error, header, tensor, entry, &bits));
    CUP_TRY(parse_offsets(error, header, tensor, entry, data_bytes));
    if (tensor->count != 3)
        return cup__fail(error, CUP_FORMAT,
                         "%s: \"%.100s\" has keys other than dtype, shape and data_offsets",
                         header->name, tensor->key);
    if (bits % 8 || entry->bytes != bits / 8)
        return cup__fail(error, CUP_FORMAT,
                         "%s: \"%.100s\" has %llu bytes of data, but its shape and its dtype %s "
                         "need %llu bits",
                         header->name, tensor->key, (unsigned long long)entry->bytes, type,
                         (unsigned long long)bits);
    return CUP_OK;
}

static cup_status check_metadata(cup__error *error, const cup__json *header,
                                 const cup__json_node *metadata)
{
    bool strings = metadata->kind == CUP__JSON_OBJECT;
    if (strings)
        CUP__JSON_EACH(value, metadata)
    strings &= value->kind == CUP__JSON_STRING;
    if (!strings)
        return cup__fail(error, CUP_FORMAT,
                         "%s: \"__metadata__\" must be an object that holds strings only",
                         header->name);
    return CUP_OK;
}

static int by_place(const void *a, const void *b)
{
    const cup__safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The tensors must lie one behind the other, from the first byte of the data to the last. */
static cup_status check_places(cup__error *error, const char *name, cup__safetensors_entry *entries,
                               size_t count, uint64_t data_bytes)
{
    uint64_t end = 0;
    if (count)
        qsort(entries, count, sizeof *entries, by_place);
    for (size_t i = 0; i < count; i++) {
        if (entries[i].begin != end)
            return cup__fail(error, CUP_FORMAT, "%s: \"%.100s\" %s", name, entries[i].name,
                             entries[i].begin < end ? "overlaps the tensor before it"
                                                    : "leaves a hole before it");
        end += entries[i].bytes;
    }
    if (end != data_bytes)
        return cup__fail(error, CUP_FORMAT,
                         "%s has %llu bytes behind the last tensor; it was damaged, or written by "
                         "a program that does not keep to the format",
                         name, (unsigned long long)(data_bytes - end));
    return CUP_OK;
}

cup_status cup__safetensors_parse(cup__error *error, const cup__json *header, uint32_t file,
                                  uint64_t data_begin, uint64_t data_bytes, cup__safetensors *out)
{
    if (header->root->kind != CUP__JSON_OBJECT)
        return cup__fail(error, CUP_FORMAT, "%s is no safetensors file: its header is no object",
                         header->name);
    size_t first = out->count;
    CUP__JSON_EACH(node, header->root)
    {
        if (strcmp(node->key, "__metadata__") == 0) {
            CUP_TRY(check_metadata(error, header, node));
            continue;
        }
        cup__safetensors_entry entry = {.file = file};
        CUP_TRY(parse_tensor(error, header, node, data_bytes, &entry));
        if (!cup__grow(&out->entries, &out->capacity, out->count, sizeof *out->entries))
            return cup__fail(error, CUP_MEMORY, "%s: out of host memory", header->name);
        out->entries[out->count++] = entry;
    }
    CUP_TRY(check_places(error, header->name, out->entries ? out->entries + first : NULL,
                         out->count - first, data_bytes));
    for (size_t i = first; i < out->count; i++)
        out->entries[i].begin += data_begin;
    return CUP_OK;
}

#include "io/support.h"

#include <stdio.h>
#include <string.h>

#include "base/lock.h"
#include "base/memory.h"
#include "tensor/context.h"
#include "test.h"

#define COUNT 3000

cup_context *cpu(void)
{
    cup_options options = {.size = sizeof options, .device = "cpu"};
    return cup_context_new(&options);
}

cup_tensor *filled(cup_context *c, int32_t value)
{
    static int32_t data[COUNT];
    for (int i = 0; i < COUNT; i++)
        data[i] = value;
    return cup_tensor_from(c, CUP_I32, 1, (int64_t[]){COUNT}, data);
}

cup_status save_value(cup_context *c, const char *folder, int32_t value)
{
    cup_scope_open(c);
    cup_named model[] = {{"w", filled(c, value)}, {"b", filled(c, value)}};
    cup_named optimizer[] = {{"m", filled(c, value)}};
    char text[32];
    snprintf(text, sizeof text, "token file %d", value);
    cup__checkpoint_part parts[] = {
        {.name = "model.safetensors", .tensors = model, .count = 2},
        {.name = "optimizer.safetensors", .tensors = optimizer, .count = 1},
        {.name = "tokenizer.json", .bytes = text, .size = strlen(text)}};
    cup__json_writer state = {0};
    cup__json_open(&state, NULL, CUP__JSON_OBJECT);
    cup__json_add_integer(&state, "step", value);
    cup__json_close(&state);
    cup__lock lock;
    cup_status status = cup__folder_make(&c->error, folder);
    if (status == CUP_OK)
        status = cup__lock_take(&c->error, folder, 5, &lock);
    if (status == CUP_OK) {
        status = cup__checkpoint_save(c, folder, parts, 3, &state.text);
        cup__lock_drop(&lock);
    }
    cup__text_free(&state.text);
    cup_scope_close(c);
    return status;
}

static void expect_tensor(cup_context *c, const cup__checkpoint *checkpoint, const char *part,
                          const cup_named *list, int64_t count, int32_t value)
{
    int32_t got[COUNT];
    if (cup__checkpoint_fill(c, checkpoint, part, list, count) != CUP_OK)
        test_fail(__FILE__, __LINE__, "%s", cup_error_text(c));
    for (int64_t i = 0; i < count; i++) {
        EXPECT_INT(cup_tensor_read(list[i].tensor, got, sizeof got), CUP_OK);
        for (int j = 0; j < COUNT; j++)
            EXPECT_INT(got[j], value);
    }
}

int32_t read_value(cup_context *c, const char *folder)
{
    cup__error error = {0};
    cup__checkpoint checkpoint;
    int64_t step;
    char *text, want[32];
    size_t size;
    if (cup__checkpoint_open(&error, folder, &checkpoint) != CUP_OK)
        test_fail(__FILE__, __LINE__, "%s", error.text);
    EXPECT_INT(cup__json_get_integer(&error, &checkpoint.json, checkpoint.state, "step", 0,
                                     INT32_MAX, &step),
               CUP_OK);
    cup_scope_open(c);
    cup_named model[] = {{"b", filled(c, -1)}, {"w", filled(c, -1)}},
              optimizer = {"m", filled(c, -1)};
    expect_tensor(c, &checkpoint, "model.safetensors", model, 2, (int32_t)step);
    expect_tensor(c, &checkpoint, "optimizer.safetensors", &optimizer, 1, (int32_t)step);
    cup_scope_close(c);
    EXPECT_INT(cup__checkpoint_read(&error, &checkpoint, "tokenizer.json", &text, &size), CUP_OK);
    snprintf(want, sizeof want, "token file %d", (int)step);
    EXPECT_TEXT(text, want);
    cup__free(text);
    cup__checkpoint_close(&checkpoint);
    return (int32_t)step;
}

int count_files(const char *folder)
{
    cup__names names;
    EXPECT_INT(cup__folder_list(NULL, folder, &names), CUP_OK);
    int count = (int)names.count;
    cup__names_free(&names);
    return count;
}

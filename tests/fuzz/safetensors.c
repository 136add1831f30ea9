/* Any file is refused with a sentence, or all its tensors can be read. */
#include "fuzz.h"

#include "base/memory.h"
#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    cup__error error = {0};
    cup__safetensors tensors;
    cup__file file = {.handle = fuzz_file(data, size, path), .size = size};
    file.path = cup__strdup(path);
    if (cup__safetensors_take(&error, &file, &tensors) != CUP_OK) {
        MUST(error.text[0]);
        return 0;
    }
    uint8_t *out = malloc(size);
    uint64_t bytes = 0;
    for (size_t i = 0; i < tensors.count; i++) {
        const cup__safetensors_entry *entry = &tensors.entries[i];
        MUST(cup__safetensors_find(&tensors, entry->name) == entry);
        bytes += entry->bytes;
        if (cup__safetensors_usable(NULL, &tensors, entry) == CUP_OK &&
            cup__safetensors_read(NULL, &tensors, entry, 0, out, (size_t)entry->bytes) == CUP_OK)
            MUST(memcmp(out, data + entry->begin, (size_t)entry->bytes) == 0);
    }
    MUST(bytes < size);
    free(out);
    cup__safetensors_close(&tensors);
    return 0;
}

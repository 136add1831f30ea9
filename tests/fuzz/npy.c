/* Any file is refused with a sentence, or its elements can be read. */
#include "fuzz.h"

#include "base/memory.h"
#include "io/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    cup__error error = {0};
    cup__npy npy;
    cup__file file = {.handle = fuzz_file(data, size, path), .size = size};
    file.path = cup__strdup(path);
    if (cup__npy_take(&error, &file, &npy) != CUP_OK) {
        MUST(error.text[0]);
        return 0;
    }
    uint64_t count = 1;
    for (int i = 0; i < npy.ndim; i++)
        count *= (uint64_t)npy.shape[i];
    MUST(npy.bytes == count * (uint64_t)cup_dtype_size(npy.dtype));
    MUST(npy.begin + npy.bytes == size);
    uint8_t *out = malloc(size);
    MUST(cup__file_read_at(&error, &npy.file, npy.begin, out, (size_t)npy.bytes) == CUP_OK);
    MUST(memcmp(out, data + npy.begin, (size_t)npy.bytes) == 0);
    free(out);
    cup__npy_close(&npy);
    return 0;
}

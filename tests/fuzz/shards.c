/* Any file is refused with a sentence, or its tokens can be read, all below the vocabulary. */
#include "fuzz.h"

#include "base/memory.h"
#include "data/shards.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { VOCABULARY = 60000 };
    cup__error error = {0};
    uint64_t hash;
    char path[64];
    cup__file file = {.handle = fuzz_file(data, size, path), .size = size};
    file.path = path;
    cup__shard shard = {.path = path};
    cup__shards all = {.shard = &shard, .count = 1, .train = -1, .vocabulary = VOCABULARY};
    if (cup__shard_look(&error, &file, &shard) != CUP_OK) {
        MUST(error.text[0]);
        close(file.handle);
        return 0;
    }
    MUST(shard.count > 0 && shard.begin + (uint64_t)shard.count * (shard.wide ? 4 : 2) == size);
    size_t count = (size_t)shard.count;
    int32_t *inputs = malloc(count * sizeof *inputs), *targets = malloc(count * sizeof *targets);
    all.tokens = shard.count;
    cup_status status =
        cup__shards_row(&error, &all, 0, shard.count - 1, inputs, targets);
    MUST(status == CUP_OK || error.text[0]);
    for (size_t i = 0; status == CUP_OK && i + 1 < count; i++)
        MUST(inputs[i] >= 0 && inputs[i] < VOCABULARY && targets[i] < VOCABULARY);
    cup__error_clear(&error);
    MUST(cup__shards_hash(&error, &all, &hash) == status);
    free(inputs);
    free(targets);
    close(file.handle);
    return 0;
}

/* Any state.json is refused with a sentence, or its files are those it names. */
#include "fuzz.h"

#include "base/memory.h"
#include "io/checkpoint.h"

/* A folder with the files that seeds.c names, whose state.json is a link to the input. */
static const char *make_folder(void)
{
    static char folder[] = "/tmp/cupola-fuzz-XXXXXX";
    char path[64];
    MUST(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a", folder);
    MUST(cup__file_write(NULL, path, "text", 4) == CUP_OK);
    snprintf(path, sizeof path, "%s/b.new", folder);
    MUST(cup__file_write(NULL, path, "text", 4) == CUP_OK);
    return folder;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *folder;
    if (!folder)
        folder = make_folder();
    char target[64], state[64], *text;
    int handle = fuzz_file(data, size, target);
    snprintf(state, sizeof state, "%s/state.json", folder);
    unlink(state);
    MUST(symlink(target, state) == 0);
    cup__error error = {0};
    cup__checkpoint checkpoint;
    if (cup__checkpoint_open(&error, folder, &checkpoint) == CUP_OK) {
        CUP__JSON_EACH(node, cup__json_find(checkpoint.json.root, "files"))
        {
            MUST(cup__checkpoint_read(NULL, &checkpoint, node->key, &text, &size) == CUP_OK);
            MUST(size == 4 && strcmp(text, "text") == 0);
            cup__free(text);
        }
        cup__checkpoint_close(&checkpoint);
    } else {
        MUST(error.text[0]);
    }
    close(handle);
    return 0;
}

/* Whatever a file holds, and whatever packs it, it is refused with a sentence or is read in pieces
 * that end; and lines of JSON are refused or give texts. The first byte chooses. */
#include "fuzz.h"

#include "data/lines.h"
#include "data/reader.h"

static cup_status take(void *user, const char *text, size_t length)
{
    MUST(text && length > 0);
    *(size_t *)user += length;
    return CUP_OK;
}

static void read_file(const char *name, const void *data, size_t size)
{
    enum { MOST = 1 << 22 };
    cup__error error = {0};
    cup__stream stream;
    char path[64], link[64], *out = malloc(65536);
    size_t got = 1, sum = 0;
    int handle = fuzz_file(data, size, path);
    snprintf(link, sizeof link, "/tmp/fuzz-%d%s", (int)getpid(), name);
    unlink(link);
    MUST(symlink(path, link) == 0);
    cup_status status = cup__stream_open(&error, link, &stream);
    while (status == CUP_OK && got && sum < MOST) {
        status = cup__stream_read(&error, &stream, out, 65536, &got);
        sum += got;
    }
    MUST(status == CUP_OK || error.text[0]);
    MUST(*name || sum == size);
    cup__stream_close(&stream);
    unlink(link);
    close(handle);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"", ".gz", ".zst"};
    if (size < 1)
        return 0;
    if (*data % 4 < 3) {
        read_file(names[*data % 4], data + 1, size - 1);
        return 0;
    }
    cup__error error = {0};
    char *text = malloc(size);
    size_t sum = 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    cup_status status = cup__lines_each(&error, "input", 1, text, size - 1, "text", take, &sum);
    MUST(status == CUP_OK || error.text[0]);
    MUST(sum <= size);
    size_t cut = cup__reader_cut(text, size - 1, size / 2);
    MUST(cut == 0 || cut < size - 1);
    free(text);
    return 0;
}

/* Whatever an image file or an array of images holds, it is refused with a sentence or gives pixels
 * of the size it names. The first byte chooses. */
#include "fuzz.h"

#include "base/memory.h"
#include "cupola/images.h"
#include "data/picture.h"

static void decode(const uint8_t *data, size_t size, int64_t channels)
{
    cup__error error = {0};
    cup__picture from, to = {.height = 3, .width = 5, .channels = 4 - channels};
    uint8_t small[45];
    if (cup__picture_decode(&error, "input", data, size, channels, &from) != CUP_OK) {
        MUST(error.text[0] && !from.pixels);
        return;
    }
    MUST(from.height > 0 && from.width > 0 && from.channels == channels);
    to.pixels = small;
    if (from.height * from.width < 1 << 20)
        MUST(cup__picture_fit(&error, &from, &to) == CUP_OK);
    cup__free(from.pixels);
}

/* The bytes as a file of images, of which a tenth part are classes. */
static void load(const char *images, const char *labels, const uint8_t *data, size_t size)
{
    char folder[] = "/tmp/fuzz-images-XXXXXX", path[4][200];
    size_t cut = size - size / 10;
    MUST(mkdtemp(folder) != NULL);
    int a = fuzz_file(data, cut, path[0]), b = fuzz_file(data + cut, size - cut, path[1]);
    snprintf(path[2], sizeof path[2], "%s/%s", folder, images);
    snprintf(path[3], sizeof path[3], "%s/%s", folder, labels);
    MUST(symlink(path[0], path[2]) == 0 && symlink(path[1], path[3]) == 0);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_images *m = cup_images_load(c, folder, CUP_SPLIT_TRAIN,
                                    CUP_OPTIONS(cup_images_options, .most_bytes = 1 << 20));
    MUST(m || cup_error_text(c)[0]);
    for (int64_t i = 0; i < cup_images_count(m); i++)
        MUST(cup_images_class(m, cup_images_labels(m)[i]) != NULL);
    cup_images_free(m);
    cup_context_free(c);
    unlink(path[2]);
    unlink(path[3]);
    rmdir(folder);
    close(a);
    close(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    switch (*data % 5) {
    case 0: decode(data + 1, size - 1, 1); break;
    case 1: decode(data + 1, size - 1, 3); break;
    case 2: load("train-images-idx3-ubyte", "train-labels-idx1-ubyte", data + 1, size - 1); break;
    case 3: load("train_images.npy", "train_labels.npy", data + 1, size - 1); break;
    default: load("train.bin", "test.bin", data + 1, size - 1); break;
    }
    return 0;
}

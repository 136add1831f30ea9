/* cupola/images.h: images with classes, from files to batches.
 *
 *     cup_images *train = cup_images_load(c, "fashion-mnist", CUP_SPLIT_TRAIN, NULL);
 *     cup_images_batch(c, train, seed, step * 64, 64,
 *                      CUP_OPTIONS(cup_augmentation, .flip = true, .crop = 2), pixels, labels); */
#ifndef CUPOLA_IMAGES_H
#define CUPOLA_IMAGES_H

#include "cupola/data.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cup_images cup_images;

typedef struct cup_images_options {
    size_t size;            /* of this struct, see CUP_OPTIONS */
    int64_t height, width;  /* to which every image is scaled; 0: as they are, all alike then */
    int64_t channels;       /* 1: grey, 3: red, green and blue; 0: as an array has them, files 3 */
    bool skip_broken;       /* leaves out files that cannot be decoded; else one is a failure */
    int64_t most_bytes;     /* of all pixels, more are a failure; 0: 8 GiB */
    bool as_needed;         /* files are decoded whenever a batch has them, for more than memory
                               holds; what cannot be decoded is a failure then */
    /* Told a sentence about each file that is left out. NULL: nobody is told. */
    void (*broken)(const char *sentence, void *user);
    void *user;
} cup_images_options;

/* Reads one part of what lies under a path, all into memory, as bytes [images, height, width,
 * channels]:
 * - a folder with train-images-idx3-ubyte and train-labels-idx1-ubyte, and t10k-... for validation,
 *   as MNIST has them;
 * - one with CIFAR's data_batch_1.bin to 5 and test_batch.bin, or its train.bin and test.bin of 100
 *   classes; these and the former also with .gz or .zst behind the names;
 * - one with train_images.npy, u8 [N,H,W] or [N,H,W,C], and train_labels.npy, and test_... of both;
 * - one with a folder for each class, which holds its PNG, JPEG and WebP files; or train and val
 *   (or validation, or test) with such folders in them;
 * - a .csv file with a line "path,class" for each image, paths relative to it.
 * Where there is no part for validation, every tenth image of a class is, and not for training.
 * Names of classes are those of the folders, of the CSV file, or the lines of classes.txt, beside
 * arrays, else the numbers. CUP_FORMAT where a class has no images at all, or in arrays none for
 * training. PNG, JPEG and WebP take libpng, libturbojpeg and libwebp, which must be installed then;
 * files are decoded by all threads. Transparent places are white. */
CUP_API cup_images *cup_images_load(cup_context *c, const char *path, cup_split split,
                                    const cup_images_options *options);

/* Reads image files that have no class: their labels are -1. Height and width must be given. */
CUP_API cup_images *cup_images_open(cup_context *c, const char *const *paths, int count,
                                    const cup_images_options *options);
CUP_API void cup_images_free(cup_images *images);

/* What was read; 0 for NULL. */
CUP_API int64_t cup_images_count(const cup_images *images);
CUP_API int64_t cup_images_skipped(const cup_images *images); /* files left out */
CUP_API int64_t cup_images_height(const cup_images *images);
CUP_API int64_t cup_images_width(const cup_images *images);
CUP_API int64_t cup_images_channels(const cup_images *images);
CUP_API int64_t cup_images_classes(const cup_images *images);

/* The name of a class; NULL when there is none of that number. Where an image is from: the path of
 * its file, or of the file of arrays; NULL when there is no such image. */
CUP_API const char *cup_images_class(const cup_images *images, int64_t index);
CUP_API const char *cup_images_path(const cup_images *images, int64_t index);

/* Images first, first + 1, ... as they are, into `pixels`. */
CUP_API cup_status cup_images_read(cup_context *c, const cup_images *images, int64_t first,
                                   int64_t count, uint8_t *pixels);

/* All pixels, NULL where they are decoded as needed, and all labels, borrowed. */
CUP_API const uint8_t *cup_images_pixels(const cup_images *images);
CUP_API const int64_t *cup_images_labels(const cup_images *images);

/* A number that is another one, but for one chance in 2^64, when pixels, labels or the names of
 * classes are others; of images that are decoded as needed, paths and not pixels. */
CUP_API uint64_t cup_images_hash(const cup_images *images);

/* The mean and the standard deviation of each channel over all pixels, with 255 as 1; of images
 * that are decoded as needed over up to 1024 of them, evenly spread. Both have as many numbers as
 * there are channels; a deviation of 0 is given as 1. */
CUP_API cup_status cup_images_statistics(cup_context *c, const cup_images *images, double *mean,
                                         double *deviation);

/* How images of a batch are changed, each in its own way. All 0: not at all. */
typedef struct cup_augmentation {
    size_t size;
    bool flip;      /* left and right are exchanged, of every other image */
    int64_t crop;   /* moved by up to so many pixels each way; what comes in is 0 */
    double rotate;  /* turned by up to so many degrees, up to 180 */
    double scale;   /* made larger or smaller by up to this part, up to 0.9 */
    double color;   /* brightness, contrast and saturation changed by up to this part, up to 1 */
    double erase;   /* the probability that a rectangle of 2 to 20 % of the image becomes 0 */
} cup_augmentation;

/* Samples first, first + 1, ... of the sequence of all epochs, in each of which every image comes
 * once, in an order of its own: `rows` images [rows, height, width, channels] into `pixels`, and
 * their classes. What a sample is, its changes included, follows from the seed and its number
 * alone, so that several processes can share a batch and a run that goes on reads what the
 * uninterrupted one would have. All threads share the work. Augmentation NULL: none. */
CUP_API cup_status cup_images_batch(cup_context *c, const cup_images *images, uint64_t seed,
                                    int64_t first, int64_t rows,
                                    const cup_augmentation *augmentation, uint8_t *pixels,
                                    int64_t *labels);

#ifdef __cplusplus
}
#endif
#endif

/* Images from files to batches: what each kind of file gives, what is refused, and that a sample
 * follows from its number. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "cupola/cupola.h"
#include "data/picture.h"
#include "data/picture_files.h"
#include "test.h"

static cup_context *begin(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

/* The test's own, made once. */
static const char *folder(void)
{
    static const char *made;
    if (!made)
        made = test_folder();
    return made;
}

static const char *path_of(const char *name)
{
    static char path[2][4096];
    static int next;
    next = !next;
    snprintf(path[next], sizeof path[next], "%s/%s", folder(), name);
    return path[next];
}

static void put(const char *name, const void *bytes, size_t count)
{
    EXPECT(cup__file_write(NULL, path_of(name), bytes, count) == CUP_OK);
}

static void expect_refused(cup_context *c, const char *path, const cup_images_options *options,
                           const char *words)
{
    EXPECT(cup_images_load(c, path, CUP_SPLIT_TRAIN, options) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_error_clear(c);
}

/* 20 images of 2 x 3 whose pixels are their number, of 4 classes. */
static void put_idx(const char *part)
{
    enum { COUNT = 20 };
    uint8_t images[16 + COUNT * 6] = {0, 0, 8, 3, 0, 0, 0, COUNT, 0, 0, 0, 2, 0, 0, 0, 3};
    uint8_t labels[8 + COUNT] = {0, 0, 8, 1, 0, 0, 0, COUNT};
    char name[64];
    for (int i = 0; i < COUNT; i++) {
        memset(images + 16 + i * 6, i, 6);
        labels[8 + i] = (uint8_t)(i % 4);
    }
    snprintf(name, sizeof name, "%s-images-idx3-ubyte", part);
    put(name, images, sizeof images);
    snprintf(name, sizeof name, "%s-labels-idx1-ubyte", part);
    put(name, labels, sizeof labels);
}

TEST(images_idx)
{
    cup_context *c = begin();
    char out[400];
    put_idx("train");
    put_idx("t10k");
    put("classes.txt", "hat\ncoat\nshoe\nbag\n", 19);
    EXPECT_INT(test_command(out, sizeof out, "gzip -f %s", path_of("t10k-images-idx3-ubyte")), 0);
    for (int split = 0; split < 2; split++) {
        cup_images *images = cup_images_load(c, folder(), (cup_split)split, NULL);
        EXPECT_TEXT(cup_error_text(c), "");
        EXPECT_INT(cup_images_count(images), 20);
        EXPECT_INT(cup_images_height(images), 2);
        EXPECT_INT(cup_images_width(images), 3);
        EXPECT_INT(cup_images_channels(images), 1);
        EXPECT_INT(cup_images_classes(images), 4);
        EXPECT_TEXT(cup_images_class(images, 3), "bag");
        EXPECT(cup_images_class(images, 4) == NULL && cup_images_path(images, 20) == NULL);
        EXPECT_INT(cup_images_pixels(images)[19 * 6 + 5], 19);
        EXPECT_INT(cup_images_labels(images)[18], 2);
        cup_images_free(images);
    }
    cup_context_free(c);
}

/* Every bound that the headers of files tell is checked before it is believed. */
TEST(images_idx_refused)
{
    cup_context *c = begin();
    put_idx("train");
    expect_refused(c, folder(), CUP_OPTIONS(cup_images_options, .most_bytes = 119),
                   "take 120 bytes");
    expect_refused(c, folder(), CUP_OPTIONS(cup_images_options, .height = 4), "give both");
    expect_refused(c, folder(), CUP_OPTIONS(cup_images_options, .channels = 2), "2 channels");
    put("train-labels-idx1-ubyte", (uint8_t[]){0, 0, 8, 1, 0, 0, 0, 3, 1, 2, 3}, 11);
    expect_refused(c, folder(), NULL, "3 classes for 20 images");
    uint8_t head[16] = {0, 0, 8, 3, 0, 0, 0, 20, 0, 0, 0, 2, 0, 0, 0, 3};
    put("train-images-idx3-ubyte", head, 16);
    expect_refused(c, folder(), NULL, "ends before all");
    uint8_t huge[16] = {0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
    put("train-images-idx3-ubyte", huge, 16);
    expect_refused(c, folder(), NULL, "cannot be");
    head[7] = 0;
    put("train-images-idx3-ubyte", head, 16);
    expect_refused(c, folder(), NULL, "0 images");
    put("train-images-idx3-ubyte", "\x89PNG", 4);
    expect_refused(c, folder(), NULL, "no IDX file");
    expect_refused(c, "/nowhere", NULL, "no folder of images");
    cup_context_free(c);
}

TEST(images_cifar)
{
    enum { ROW = 3073 };
    cup_context *c = begin();
    static uint8_t rows[2 * ROW];
    for (int i = 0; i < 2 * ROW; i++)
        rows[i] = (uint8_t)(i % ROW == 0 ? i / ROW : (i % ROW - 1) / 1024 * 10 + i / ROW);
    for (int i = 1; i <= 5; i++) {
        char name[32];
        snprintf(name, sizeof name, "data_batch_%d.bin", i);
        put(name, rows, sizeof rows);
    }
    cup_images *images = cup_images_load(c, folder(), CUP_SPLIT_TRAIN, NULL);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_images_count(images), 10);
    EXPECT_INT(cup_images_classes(images), 2);
    EXPECT_INT(cup_images_labels(images)[3], 1);
    const uint8_t *pixel = cup_images_pixels(images) + 3 * 3072 + 3 * 500;
    EXPECT(pixel[0] == 1 && pixel[1] == 11 && pixel[2] == 21);
    cup_images_free(images);
    put("batches.meta.txt", "airplane\nautomobile\nbird\n", 25);
    expect_refused(c, folder(), NULL, "no image for training has the class 2, \"bird\"; add some");
    put("data_batch_5.bin", rows, ROW + 1);
    expect_refused(c, folder(), NULL, "does not hold whole images");
    cup_context_free(c);
}

TEST(images_npy)
{
    cup_context *c = begin();
    char image_file[128 + 12], label_file[128 + 16];
    memset(image_file, ' ', 128);
    memset(label_file, ' ', 128);
    memcpy(image_file, "\x93NUMPY\1\0\x76\0", 10);
    memcpy(label_file, image_file, 10);
    const char *a = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 1, 2, 3), }";
    const char *b = "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }";
    memcpy(image_file + 10, a, strlen(a));
    memcpy(label_file + 10, b, strlen(b));
    image_file[127] = label_file[127] = '\n';
    for (int i = 0; i < 12; i++)
        image_file[128 + i] = (char)i;
    memcpy(label_file + 128, (int64_t[]){1, 0}, 16);
    put("train_images.npy", image_file, sizeof image_file);
    put("train_labels.npy", label_file, sizeof label_file);
    cup_images *images = cup_images_load(c, folder(), CUP_SPLIT_TRAIN, NULL);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT(cup_images_count(images) == 2 && cup_images_channels(images) == 3);
    EXPECT_INT(cup_images_pixels(images)[11], 11);
    EXPECT_TEXT(cup_images_class(images, 1), "1");
    cup_images_free(images);
    memcpy(label_file + 128, (int64_t[]){0, 2}, 16);
    put("train_labels.npy", label_file, sizeof label_file);
    expect_refused(c, folder(), NULL, "no image for training has the class 1, \"1\"; add some");
    put("test_images.npy", image_file, sizeof image_file);
    put("test_labels.npy", label_file, sizeof label_file);
    images = cup_images_load(c, folder(), CUP_SPLIT_VALIDATION, NULL);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_images_classes(images), 3);
    cup_images_free(images);
    memcpy(label_file + 128, (int64_t[]){1, -3}, 16);
    put("train_labels.npy", label_file, sizeof label_file);
    expect_refused(c, folder(), NULL, "image 1 has the class -3");
    cup_context_free(c);
}

static void count_broken(const char *sentence, void *user)
{
    EXPECT_CONTAINS(sentence, "broken.png");
    ++*(int *)user;
}

/* Classes "cat" and "dog" of 11 images each, and one broken. */
static void put_folders(const char *base)
{
    uint8_t pixels[4 * 6 * 3], file[500];
    char name[64];
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 11; i++) {
            snprintf(name, sizeof name, "%s/%s", base, k ? "dog" : "cat");
            EXPECT(cup__folder_make(NULL, path_of(name)) == CUP_OK);
            memset(pixels, 100 * k + i, sizeof pixels);
            size_t count = png_file(pixels, 4, 6, 3, file);
            snprintf(name, sizeof name, "%s/%s/%02d.png", base, k ? "dog" : "cat", i);
            put(name, file, count);
        }
}

TEST(images_folders)
{
    cup_context *c = begin();
    int broken = 0;
    put_folders("all");
    cup_images *train = cup_images_load(c, path_of("all"), CUP_SPLIT_TRAIN, NULL);
    if (!train && strstr(cup_error_text(c), "cannot be loaded"))
        test_skip("libpng is not installed");
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_images_count(train), 20);
    EXPECT_TEXT(cup_images_class(train, 1), "dog");
    EXPECT_CONTAINS(cup_images_path(train, 19), "dog/10.png");
    EXPECT_INT(cup_images_pixels(train)[19 * 72 + 71], 110);
    EXPECT_INT(cup_images_labels(train)[10], 1);
    cup_images_free(train);
    cup_images *kept = cup_images_load(
        c, path_of("all"), CUP_SPLIT_VALIDATION,
        CUP_OPTIONS(cup_images_options, .height = 2, .width = 2, .channels = 1));
    EXPECT_INT(cup_images_count(kept), 2);
    EXPECT_INT(cup_images_channels(kept), 1);
    EXPECT_INT(cup_images_pixels(kept)[7], 109);
    cup_images_free(kept);
    put("all/cat/broken.png", "\x89PNG\r\n\x1a\n....", 12);
    expect_refused(c, path_of("all"), NULL, "cat/broken.png: this PNG cannot be decoded");
    train = cup_images_load(c, path_of("all"), CUP_SPLIT_TRAIN,
                            CUP_OPTIONS(cup_images_options, .skip_broken = true,
                                        .broken = count_broken, .user = &broken));
    EXPECT(cup_images_count(train) == 20 && cup_images_skipped(train) == 1 && broken == 1);
    cup_images_free(train);
    EXPECT(cup__folder_make(NULL, path_of("all/empty")) == CUP_OK);
    expect_refused(c, path_of("all"), NULL, "empty, the folder of a class, holds no images");
    cup_context_free(c);
}

/* Decoded when a batch has them, images are the same; one that breaks meanwhile is named. */
TEST(images_as_needed)
{
    enum { ROWS = 50, BYTES = 5 * 5 * 3 };
    static uint8_t pixels[2][3][ROWS][BYTES];
    int64_t labels[2][ROWS];
    double mean[2][3], deviation[2][3];
    cup_context *c = begin();
    cup_images *images[2];
    put_folders("all");
    for (int k = 0; k < 2; k++) {
        images[k] = cup_images_load(
            c, path_of("all"), CUP_SPLIT_TRAIN,
            CUP_OPTIONS(cup_images_options, .height = 5, .width = 5, .as_needed = k));
        if (!images[k] && strstr(cup_error_text(c), "cannot be loaded"))
            test_skip("libpng is not installed");
        for (int i = 0; i < 2; i++) {
            const cup_augmentation *a = CUP_OPTIONS(cup_augmentation, .crop = 1, .rotate = 9);
            cup_images_batch(c, images[k], 3, 7, ROWS, i ? a : NULL, pixels[k][i][0],
                             labels[k]);
            EXPECT_TEXT(cup_error_text(c), "");
        }
        cup_images_read(c, images[k], 2, 18, pixels[k][2][0]);
        cup_images_statistics(c, images[k], mean[k], deviation[k]);
    }
    EXPECT(cup_images_pixels(images[1]) == NULL && cup_images_pixels(images[0]) != NULL);
    EXPECT(!memcmp(pixels[0], pixels[1], sizeof pixels[0]));
    EXPECT(!memcmp(labels[0], labels[1], sizeof labels[0]));
    EXPECT(!memcmp(mean[0], mean[1], sizeof mean[0]));
    EXPECT(cup_images_read(c, images[1], 3, 18, pixels[0][0][0]) == CUP_ARGUMENT);
    cup_error_clear(c);
    put("all/dog/03.png", "\x89PNG\r\n\x1a\n....", 12);
    EXPECT(cup_images_batch(c, images[1], 3, 0, 20, NULL, pixels[0][0][0],
                            labels[0]) == CUP_FORMAT);
    EXPECT_CONTAINS(cup_error_text(c), "dog/03.png: this PNG cannot be decoded");
    cup_images_free(images[0]);
    cup_images_free(images[1]);
    cup_context_free(c);
}

/* With train and val every file is taken; a table says where images are. */
TEST(images_parts_and_table)
{
    static const char rows[] =
        "file,kind\r\n\"cat/00.png\",\"a \"\"cat\"\"\"\ndog/00.png,dog\n";
    cup_context *c = begin();
    put_folders("train");
    put_folders("val");
    cup_images *kept = cup_images_load(c, folder(), CUP_SPLIT_VALIDATION, NULL);
    if (!kept && strstr(cup_error_text(c), "cannot be loaded"))
        test_skip("libpng is not installed");
    EXPECT_INT(cup_images_count(kept), 22);
    cup_images_free(kept);
    put("train/list.csv", rows, sizeof rows - 1);
    cup_images *table = cup_images_load(c, path_of("train/list.csv"), CUP_SPLIT_TRAIN, NULL);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_images_count(table), 2);
    EXPECT_TEXT(cup_images_class(table, 0), "a \"cat\"");
    cup_images_free(table);
    put("train/list.csv", "a.png,1\nb.png\n", 14);
    expect_refused(c, path_of("train/list.csv"), NULL, "row 2");
    uint8_t pixels[3 * 3 * 3] = {0}, file[300];
    put("train/cat/wide.png", file, png_file(pixels, 3, 3, 3, file));
    expect_refused(c, folder(), NULL, "wide.png has 3 x 3 pixels, and others have 4 x 6");
    cup_context_free(c);
}

static void expect_two_colors(cup__error *error, const char *name, const uint8_t *bytes,
                              size_t count)
{
    cup__picture p;
    if (cup__picture_decode(error, name, bytes, count, 3, &p) == CUP_IO)
        test_skip("%s", error->text);
    EXPECT_TEXT(error->text, "");
    EXPECT(p.height == 8 && p.width == 16);
    EXPECT_NEAR(p.pixels[3], 200, 12);
    EXPECT_NEAR(p.pixels[15 * 3 + 2], 220, 12);
    free(p.pixels);
    EXPECT(cup__picture_decode(error, name, bytes, count / 2, 3, &p) == CUP_FORMAT);
    EXPECT(p.pixels == NULL);
    EXPECT_CONTAINS(error->text, "cannot be decoded");
    cup__error_clear(error);
}

TEST(images_jpeg)
{
    cup__error error = {0};
    expect_two_colors(&error, "a.jpg", jpeg_two, sizeof jpeg_two);
}

TEST(images_webp)
{
    cup__error error = {0};
    expect_two_colors(&error, "a.webp", webp_two, sizeof webp_two);
}

TEST(images_fit)
{
    uint8_t from[6 * 4], to[12 * 3];
    for (int i = 0; i < 24; i++)
        from[i] = (uint8_t)(i % 4 < 2 ? 40 : 80);
    const cup__picture a = {from, 6, 4, 1};
    cup__picture one = {to, 1, 1, 1}, wide = {to, 1, 12, 3};
    EXPECT(cup__picture_fit(NULL, &a, &one) == CUP_OK);
    EXPECT_INT(to[0], 60);
    EXPECT(cup__picture_fit(NULL, &a, &wide) == CUP_OK);
    EXPECT(to[0] == 40 && to[2] == 40 && to[33] == 80);
    EXPECT(to[15] > 40 && to[15] < 60 && to[18] > 60 && to[18] < 80);
}

/* Samples are the same whoever makes them and in whatever pieces, and each epoch has each image. */
TEST(images_batches)
{
    cup_context *c = begin();
    uint8_t all[60][6], piece[7][6];
    int64_t labels[60], some[7];
    put_idx("train");
    cup_images *images = cup_images_load(c, folder(), CUP_SPLIT_TRAIN, NULL);
    const cup_augmentation *a = CUP_OPTIONS(cup_augmentation, .flip = true, .crop = 1, .rotate = 10,
                                            .scale = 0.1, .color = 0.2, .erase = 0.5);
    for (int k = 0; k < 2; k++) {
        cup_images_batch(c, images, 7, 0, 60, k ? a : NULL, all[0], labels);
        for (int first = 0; first + 7 <= 60; first += 7) {
            cup__threads_set(1 + first % 3);
            cup_images_batch(c, images, 7, first, 7, k ? a : NULL, piece[0], some);
            EXPECT(!memcmp(piece, all[first], sizeof piece));
            EXPECT(!memcmp(some, labels + first, sizeof some));
        }
    }
    cup_images_batch(c, images, 7, 0, 60, NULL, all[0], labels);
    for (int epoch = 0; epoch < 3; epoch++) {
        uint32_t seen = 0;
        for (int i = 0; i < 20; i++)
            seen |= 1u << all[epoch * 20 + i][0];
        EXPECT_INT(seen, (1 << 20) - 1);
    }
    EXPECT(memcmp(all[0], all[20], 20 * 6) != 0);
    cup_images_free(images);
    cup_context_free(c);
}

/* Of 3 x 3 pixels 1 to 9: what each change does to them. */
TEST(images_augmentation)
{
    enum { ROWS = 200 };
    cup_context *c = begin();
    uint8_t images_file[16 + 9] = {0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 3};
    static uint8_t out[ROWS][9];
    int64_t labels[ROWS];
    for (int i = 0; i < 9; i++)
        images_file[16 + i] = (uint8_t)(i + 1);
    put("train-images-idx3-ubyte", images_file, sizeof images_file);
    put("train-labels-idx1-ubyte", (uint8_t[]){0, 0, 8, 1, 0, 0, 0, 1, 0}, 9);
    cup_images *m = cup_images_load(c, folder(), CUP_SPLIT_TRAIN, NULL);
    EXPECT_INT(cup_images_classes(m), 1);
    int flipped = 0, moved = 0;
    cup_images_batch(c, m, 1, 0, ROWS, CUP_OPTIONS(cup_augmentation, .flip = true), out[0], labels);
    for (int r = 0; r < ROWS; r++) {
        bool flips = out[r][0] == 3;
        flipped += flips;
        for (int i = 0; i < 9; i++)
            EXPECT_INT(out[r][i], flips ? i / 3 * 3 + 3 - i % 3 : i + 1);
    }
    EXPECT(flipped > 70 && flipped < 130);
    cup_images_batch(c, m, 1, 0, ROWS, CUP_OPTIONS(cup_augmentation, .crop = 1), out[0], labels);
    for (int r = 0; r < ROWS; r++)
        moved += out[r][0] == 5 && out[r][8] == 0;
    EXPECT(moved > 8 && moved < 45);
    cup_images_batch(c, m, 1, 0, ROWS, CUP_OPTIONS(cup_augmentation, .rotate = 1e-3), out[0],
                     labels);
    EXPECT(out[5][0] == 1 && out[6][8] == 9);
    cup_images_batch(c, m, 1, 0, ROWS, CUP_OPTIONS(cup_augmentation, .erase = 1), out[0], labels);
    for (int r = 0; r < ROWS; r++)
        EXPECT(memchr(out[r], 0, 9) != NULL);
    EXPECT(cup_images_batch(c, m, 1, 0, 1, CUP_OPTIONS(cup_augmentation, .scale = 1), out[0],
                            labels) == CUP_ARGUMENT);
    cup_images_free(m);
    cup_context_free(c);
}

TEST(images_statistics)
{
    cup_context *c = begin();
    double mean[1], deviation[1];
    put_idx("train");
    cup_images *images = cup_images_load(c, folder(), CUP_SPLIT_TRAIN, NULL);
    EXPECT(cup_images_statistics(c, images, mean, deviation) == CUP_OK);
    EXPECT_NEAR(mean[0] * 255, 9.5, 1e-9);
    EXPECT_NEAR(deviation[0] * 255, 5.766281297335398, 1e-9);
    cup_images_free(images);
    cup_context_free(c);
}

/* Whichever allocation fails, it is said, and nothing is lost; afterwards all is as ever. */
TEST(images_lack_memory)
{
    cup_context *c = begin();
    put_folders("all");
    put_idx("train");
    for (int k = 0; k < 3; k++) {
        int failures = 0;
        for (long n = 1; n < 160; n++) {
            cup__memory_fail_at(n, false);
            cup_images *images = cup_images_load(
                c, k ? path_of("all") : folder(), CUP_SPLIT_TRAIN,
                CUP_OPTIONS(cup_images_options, .height = 3, .width = 4, .as_needed = k == 2));
            cup__memory_fail_at(0, false);
            if (!images && strstr(cup_error_text(c), "cannot be loaded"))
                test_skip("libpng is not installed");
            if (!images && cup_error(c) != CUP_MEMORY)
                test_fail(__FILE__, __LINE__, "allocation %ld: %s", n, cup_error_text(c));
            failures += !images;
            cup_error_clear(c);
            cup_images_free(images);
        }
        EXPECT(failures > 6);
    }
    cup_context_free(c);
}

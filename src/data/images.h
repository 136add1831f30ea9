/* Images with classes, in memory. */
#ifndef CUP_DATA_IMAGES_H
#define CUP_DATA_IMAGES_H

#include "base/file.h"
#include "cupola/images.h"
#include "data/picture.h"

struct cup_images {
    int64_t count, height, width, channels, skipped;
    uint8_t *pixels; /* NULL: decoded as needed */
    int64_t *labels;
    cup__names classes; /* by number */
    cup__names paths;   /* of each image's file, or one: that of all */
    bool alike; /* files must have this size, to which none is scaled */
    uint64_t hash;
};

/* Where images come from: folders of arrays, or files of their own. `found`: there are any. */
cup_status cup__images_arrays(cup_context *c, const char *folder, cup_split split,
                              const cup_images_options *options, cup_images *out, bool *found);
cup_status cup__images_folder(cup_context *c, const char *folder, cup_split split,
                              const cup_images_options *options, cup_images *out);
cup_status cup__images_table(cup_context *c, const char *path, cup_split split,
                             const cup_images_options *options, cup_images *out);
/* The files of out->paths, whose labels are there. */
cup_status cup__images_decode(cup_context *c, const cup_images_options *options, cup_images *out);

/* The pixels of one image: where they lie, or decoded into `room`, which has memory for them. */
cup_status cup__images_get(cup__error *error, const cup_images *images, int64_t place,
                           uint8_t *room, const uint8_t **out);

/* A batch as cup_images_batch makes it, of an augmentation that was checked, by any thread. */
cup_status cup__images_batch(cup__error *error, const cup_images *images, uint64_t seed,
                             int64_t first, int64_t rows, const cup_augmentation *augmentation,
                             uint8_t *pixels, int64_t *labels);

/* Whether an image is for validation where files do not say it, by its number in its class. */
static inline bool cup__images_kept(int64_t number)
{
    return number % 10 == 9;
}

/* Memory for the pixels of out->count images of its size, and no more than may be. */
cup_status cup__images_room(cup__error *error, const char *path, const cup_images_options *options,
                            cup_images *out);

/* A copy of a name at the end of a list; and a number for one, which is added when it is new. */
cup_status cup__names_add(cup__error *error, cup__names *names, const char *name);
cup_status cup__class_number(cup__error *error, cup__names *classes, const char *name,
                             int64_t *out);

/* As many names of classes as labels need, by the lines of a file in the folder, if it is there, or
 * by their numbers. */
cup_status cup__classes_name(cup__error *error, const char *folder, const char *file,
                             cup_images *out);

/* Checks the sizes that arrays or their header tell, so that none overflows. */
cup_status cup__images_size_check(cup__error *error, const char *path, const int64_t size[4]);

#endif

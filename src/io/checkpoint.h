/* A checkpoint: a folder with files of tensors, other files, and state.json, which names them with
 * their sizes and checksums and so ties them together.
 *
 * New files are written beside the old ones as NAME.new; replacing state.json is what makes them
 * the checkpoint; then they are renamed to NAME, over the old ones. A reader takes NAME or
 * NAME.new, whichever state.json means. So at every instant, whatever kills the writer, one whole
 * checkpoint can be read: the old one until state.json is replaced, the new one from then on. */
#ifndef CUP_IO_CHECKPOINT_H
#define CUP_IO_CHECKPOINT_H

#include "base/file.h"
#include "base/json.h"
#include "cupola/io.h"

/* One file: tensors as safetensors, or, where `tensors` is NULL, bytes as they are. */
typedef struct cup__checkpoint_part {
    const char *name;
    const cup_named *tensors;
    int64_t count;
    const void *bytes;
    size_t size;
} cup__checkpoint_part;

/* Saves the parts and a JSON object with everything else. The folder is made if need be. After a
 * failure the old checkpoint is still the one that is read. */
cup_status cup__checkpoint_save(cup_context *c, const char *folder,
                                const cup__checkpoint_part *parts, int count,
                                const cup__text *state);

/* A checkpoint that is open; it can be read even while a newer one takes its place. */
typedef struct cup__checkpoint {
    char *folder;
    cup__json json;
    const cup__json_node *state; /* the object that was saved */
    cup__file *files;            /* as many as state.json names, in its order */
    size_t count;
} cup__checkpoint;

/* Opens a folder and checks that its files are those that were saved together. */
cup_status cup__checkpoint_open(cup__error *error, const char *folder, cup__checkpoint *out);
void cup__checkpoint_close(cup__checkpoint *checkpoint);

/* Fills the tensors from a part, which must hold them and no others. */
cup_status cup__checkpoint_fill(cup_context *c, const cup__checkpoint *checkpoint, const char *name,
                                const cup_named *tensors, int64_t count);

/* Reads a part as it is; *out is the caller's and has a 0 behind its *size bytes. */
cup_status cup__checkpoint_read(cup__error *error, const cup__checkpoint *checkpoint,
                                const char *name, char **out, size_t *size);

/* The number of the last finished save in the folder, which counts from 1; 0 when there is none. */
uint64_t cup__checkpoint_number(const char *folder);

#endif

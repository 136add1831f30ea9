/* A checkpoint: a folder with files of tensors, other files, and state.json, which names them with
 * their sizes and checksums and so ties them together.
 *
 * New files are written beside the old ones as NAME.new; replacing state.json is what makes them
 * the checkpoint; then they are renamed to NAME, over the old ones. A reader takes NAME or
 * NAME.new, whichever state.json means. So at every instant, whatever kills the writer, one whole
 * checkpoint can be read: the old one until state.json is replaced, the new one from then on. Who
 * opens the folder next finishes or undoes what was interrupted.
 *
 * Tensors under one name may lie in several files, as several processes write them at once: its
 * shards, "model-00002-of-00004.safetensors" being one of model.safetensors. Where processes have
 * parts of tensors they write these as slices (io/slices.h). Where a save has other files than the
 * one before, state.json names those that it replaces, which go last.
 *
 * The last value of state.json is the checksum of all its bytes before it; those written by 0.1.0
 * have none. */
#ifndef CUP_IO_CHECKPOINT_H
#define CUP_IO_CHECKPOINT_H

#include "base/file.h"
#include "base/json.h"
#include "cupola/io.h"
#include "io/slices.h"

/* One file: tensors as safetensors, of a context or copies of them, which are put into the file's
 * order, and of which some may be slices; or, where both are NULL, bytes as they are. */
typedef struct cup__checkpoint_part {
    const char *name;
    const cup_named *tensors;
    cup__safetensors_source *copies;
    int64_t count;
    const void *bytes;
    size_t size;
    bool slices;
} cup__checkpoint_part;

/* Saves the parts and a JSON object with everything else into a folder whose lock (base/lock.h) the
 * caller holds. After a failure the old checkpoint is still the one that is read. */
cup_status cup__checkpoint_save(cup_context *c, const char *folder,
                                const cup__checkpoint_part *parts, int count,
                                const cup__text *state);

#define CUP__CHECKPOINT_NAME 80

/* A file that was written for a save and has not got its name yet. */
typedef struct cup__checkpoint_file {
    char name[CUP__CHECKPOINT_NAME];
    uint64_t bytes;
    char hash[CUP__HASH_TEXT];
    bool slices; /* may be in it */
} cup__checkpoint_file;

/* A save in its three steps, of which several processes may share the second one, and threads that
 * have an error of their own: who holds the lock clears away what an interrupted one has left of
 * the parts with these names, shards or not; the parts are written; and who holds the lock makes
 * all of them the checkpoint. The context may be NULL where no part has tensors of one. */
cup_status cup__checkpoint_begin(cup__error *error, const char *folder, const char *const *names,
                                 size_t count);
cup_status cup__checkpoint_write(cup_context *c, cup__error *error, const char *folder,
                                 const cup__checkpoint_part *part, cup__checkpoint_file *out);
cup_status cup__checkpoint_commit(cup__error *error, const char *folder,
                                  const cup__checkpoint_file *files, int count,
                                  const cup__text *state);
/* Removes files that were written for a save that will not take place. */
void cup__checkpoint_drop(const char *folder, const cup__checkpoint_file *files, int count);

/* The name of shard `number` of `count`, from 0; of one the name itself. False: it is too long. */
bool cup__checkpoint_shard(const char *name, int number, int count,
                           char out[CUP__CHECKPOINT_NAME]);
/* Whether a name of `length` bytes is `name`, or both are shards of one. */
bool cup__checkpoint_alike(const char *found, size_t length, const char *name);

/* Finishes the save that state.json means, or clears away what one left that did not come so far.
 * The caller holds the folder's lock. */
cup_status cup__checkpoint_mend(cup__error *error, const char *folder);

/* Fails where a new checkpoint of files with these names, ending with NULL, would replace anything,
 * and says what: with CUP_ARGUMENT, or with the status with which it cannot be read. */
cup_status cup__checkpoint_vacant(cup__error *error, const char *folder, const char *const *names);

/* A checkpoint that is open; it can be read even while a newer one takes its place. */
typedef struct cup__checkpoint {
    char *folder;
    cup__json json;
    const cup__json_node *state; /* the object that was saved */
    cup__file *files;            /* as many as state.json names, in its order */
    size_t count;
} cup__checkpoint;

/* Opens a folder and checks that its files are those that were saved together. Mends it first where
 * nobody else holds its lock and it may be written. */
cup_status cup__checkpoint_open(cup__error *error, const char *folder, cup__checkpoint *out);
/* The same by one of several processes at once, behind a mending, where each reads only a share of
 * the files to check them: it is good where all say so. */
cup_status cup__checkpoint_open_share(cup__error *error, const char *folder, int rank, int count,
                                      cup__checkpoint *out);
void cup__checkpoint_close(cup__checkpoint *checkpoint);

/* Fills the tensors from a part, all of whose shards hold them and no others, in slices or not. */
cup_status cup__checkpoint_fill(cup_context *c, const cup__checkpoint *checkpoint, const char *name,
                                const cup_named *tensors, int64_t count);
/* The same of a part that holds so many tensors, these among them; -1: any number. */
cup_status cup__checkpoint_fill_some(cup_context *c, const cup__checkpoint *checkpoint,
                                     const char *name, const cup_named *tensors, int64_t count,
                                     int64_t all);
/* The same of what is wanted of each; `cast`: of any dtype. */
cup_status cup__checkpoint_fill_cut(cup_context *c, const cup__checkpoint *checkpoint,
                                    const char *name, const cup__wanted *wanted, int64_t count,
                                    int64_t all, bool cast);

/* Reads a part as it is; *out is the caller's and has a 0 behind its *size bytes. */
cup_status cup__checkpoint_read(cup__error *error, const cup__checkpoint *checkpoint,
                                const char *name, char **out, size_t *size);

/* The schema of state.json; 3 knew no slices, without which it is still written, and 2 neither
 * shards nor replaced files, which holds for it; 1 was the same without the checksum, which stands
 * between these. */
#define CUP__CHECKPOINT_SCHEMA 4
#define CUP__CHECKPOINT_SHARDS 3
#define CUP__CHECKPOINT_WHOLE 2
#define CUP__CHECKPOINT_END "\"\n}\n"

/* What is written in a save: each file under its name with this behind it. */
#define CUP__CHECKPOINT_NEW ".new"

/* Removes what an interrupted save has left of the parts, after giving the files of a save that was
 * completed their names. Files of a checkpoint that is not whole are left alone unless the folder
 * is `owned`, that is, about to get a new one anyway. The lock is held. */
cup_status cup__checkpoint_clear(cup__error *error, const char *folder, const char *const *names,
                                 size_t count, bool owned);
/* The same of the parts that state.json names, if nobody holds the lock and the folder may be
 * written. */
void cup__checkpoint_mend_free(const char *folder);
/* Gives a new file its name. */
cup_status cup__checkpoint_rename(cup__error *error, const char *folder, const char *name);
cup_status cup__checkpoint_remove(cup__error *error, const char *folder, const char *name);
/* The files of the last save, and of those it replaced, that a save of `files` replaces. */
#define CUP__CHECKPOINT_REPLACED "replaced"
cup_status cup__checkpoint_replaced(cup__error *error, const char *folder,
                                    const cup__checkpoint_file *files, int count,
                                    cup__names *out);
/* Whether the last save has not got to removing all that it replaced. */
bool cup__checkpoint_has_replaced(const char *folder);
/* folder/name + ending; NULL when there is no memory. */
char *cup__checkpoint_path(const char *folder, const char *name, const char *ending);

/* Reads state.json and checks it against its checksum. */
cup_status cup__checkpoint_state(cup__error *error, const char *folder, cup__json *out);
/* What opens, without mending first. */
cup_status cup__checkpoint_look(cup__error *error, const char *folder, cup__checkpoint *out);

/* The number of the last finished save in the folder, which counts from 1; 0 when there is none. */
uint64_t cup__checkpoint_number(const char *folder);

#endif

/* cupola/io.h: tensors in files, by name. */
#ifndef CUPOLA_IO_H
#define CUPOLA_IO_H

#include "cupola/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Named tensors read from a file. It owns its tensors; free it before the context. */
typedef struct cup_tensors cup_tensors;

/* Reads all tensors of a safetensors file, or of a model that is split over several: name the
 * model.safetensors.index.json or the folder it is in. Refuses dtypes that Cupola has not. */
CUP_API cup_tensors *cup_safetensors_load(cup_context *c, const char *path);
CUP_API void cup_tensors_free(cup_tensors *tensors);

/* Their number, and each one's name and tensor, in the order of the names' bytes; NULL when the
 * index is out of range or there is no such name. */
CUP_API int64_t cup_tensors_count(const cup_tensors *tensors);
CUP_API const char *cup_tensors_name(const cup_tensors *tensors, int64_t index);
CUP_API cup_tensor *cup_tensors_at(const cup_tensors *tensors, int64_t index);
CUP_API cup_tensor *cup_tensors_find(const cup_tensors *tensors, const char *name);

/* Reads the elements of existing tensors, without a second copy of them on the device. Each must
 * be in the file with the same shape and dtype; the file may hold others. After a failure some
 * may have been read. */
CUP_API cup_status cup_safetensors_fill(cup_context *c, const char *path, const cup_named *tensors,
                                        int64_t count);

/* Writes a safetensors file. Until it is complete and on the disk, an older file of that name
 * stays in its place; a failure leaves it there. */
CUP_API cup_status cup_safetensors_save(cup_context *c, const char *path, const cup_named *tensors,
                                        int64_t count);

/* Reads the array of a file that numpy.save wrote: row-major, little-endian, of a dtype that Cupola
 * has; two bytes of no meaning ("V2") are bf16. */
CUP_API cup_tensor *cup_npy_load(cup_context *c, const char *path);

/* Writes `bytes` bytes as the file, which they replace as a whole: until they are complete and on
 * the disk, an older file of that name stays in its place, and a failure leaves it there. The
 * folder must be there. For what a program keeps beside its tensors. */
CUP_API cup_status cup_file_write(cup_context *c, const char *path, const void *data,
                                  size_t bytes);

/* Whether it could write that file: to be told before the work for it, not behind it. Changes
 * nothing. */
CUP_API cup_status cup_file_check(cup_context *c, const char *path);

#ifdef __cplusplus
}
#endif
#endif

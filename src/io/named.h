/* Tensors of a context to and from safetensors files that are already open. */
#ifndef CUP_IO_NAMED_H
#define CUP_IO_NAMED_H

#include "cupola/io.h"
#include "io/safetensors.h"

/* Writes a whole file with the tensors into the writer. */
cup_status cup__named_write(cup_context *c, cup__writer *writer, const cup_named *tensors,
                            int64_t count);

/* Reads the elements of the tensors from the file, see cup_safetensors_fill. */
cup_status cup__named_fill(cup_context *c, const cup__safetensors *file, const cup_named *tensors,
                           int64_t count);

#endif

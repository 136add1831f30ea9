/* Checkpoints for tests: of a value that everything in them says. */
#ifndef IO_SUPPORT_H
#define IO_SUPPORT_H

#include "io/checkpoint.h"

cup_context *cpu(void);
cup_tensor *filled(cup_context *c, int32_t value);

/* Saves a checkpoint of three files in which everything says `value`; makes the folder if need be
 * and holds its lock meanwhile. */
cup_status save_value(cup_context *c, const char *folder, int32_t value);

/* The value of the checkpoint that is in the folder, all of which must say the same. */
int32_t read_value(cup_context *c, const char *folder);

int count_files(const char *folder);

#endif

/* Files that TensorBoard reads: numbers of a run, by step. */
#ifndef CLI_EVENTS_H
#define CLI_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct cli_events {
    FILE *to;
} cli_events;

typedef struct events_value {
    const char *tag; /* "loss/training" */
    double value;
} events_value;

#define EVENTS_MOST_VALUES 8

/* A new file in the folder, which tells TensorBoard to forget what earlier files of it say of the
 * step `first` and later ones. */
bool events_open(cli_events *e, const char *folder, int64_t first);

/* The values of a step, at most EVENTS_MOST_VALUES, those left out that are not finite; false where
 * the disk does not take them. Nothing is done while no file is open. */
bool events_add(cli_events *e, int64_t step, const events_value *values, int count);
void events_close(cli_events *e);

/* The checksum of a record's parts: CRC-32C, turned and added to as the format has it. */
uint32_t events_checksum(const void *bytes, size_t count);

#endif

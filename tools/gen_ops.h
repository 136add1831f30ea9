/* A row of src/dispatch/ops.def as gen_ops knows it. */
#ifndef TOOLS_GEN_OPS_H
#define TOOLS_GEN_OPS_H

#include <stdbool.h>
#include <stdio.h>

#define MOST_PARTS 24

typedef struct part {
    char type[16]; /* of an attribute */
    char name[40];
    char preset[40]; /* the default, as it stands in the row; "" for none */
    bool optional, list, hidden;
    bool is_option; /* a field of the options of the call, else an argument; inputs too */
    bool is_tensor; /* a field of the options alone, such as an input that it names: no attribute */
} part;

typedef struct row {
    char name[48], section[64], words[1600];
    char inputs_text[200], attributes_text[500], results_text[200];
    bool is_public, has_options;
    bool has_struct; /* of attributes, some of which are no tensors */
    bool is_function;  /* its public function is written by hand */
    bool is_optimizer; /* its name and words are those of a cup_method as well */
    part inputs[MOST_PARTS], attributes[MOST_PARTS], results[MOST_PARTS];
    int input_count, attribute_count, result_count, visible;
} row;

extern row rows[];
extern int row_count;

/* Says what is wrong with the line that is being read, and ends the program. */
void fail(const char *format, ...);

/* Reads all rows of the file, whose name is for messages. */
void read_rows(FILE *file, const char *name);

#endif

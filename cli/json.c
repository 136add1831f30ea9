#include "cli/json.h"

#include <stdio.h>

#include "cli/exit.h"

#define SCHEMA 1

void json_begin(cup__json_writer *writer, const char *verb)
{
    *writer = (cup__json_writer){.lines = 2};
    cup__json_open(writer, NULL, CUP__JSON_OBJECT);
    cup__json_add_integer(writer, "schema", SCHEMA);
    cup__json_add_string(writer, "verb", verb);
}

int json_end(cup__json_writer *writer)
{
    cup__json_close(writer);
    int code = CLI_OK;
    if (writer->text.failed)
        code = cli_fail(CLI_MEMORY, "no host memory for the document");
    else
        cli_write(writer->text.bytes, writer->text.length);
    cup__text_free(&writer->text);
    return code;
}

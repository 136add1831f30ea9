#include "cli/op_names.h"

#include <string.h>

#include "cli/exit.h"
#include "cli/nearest.h"

#define MOST_OPS 1000

static int unknown_op(const char *name)
{
    const char *names[MOST_OPS + 1];
    int count = 0;
    for (const cup__row *row = cup__rows; row->name && count < MOST_OPS; row++)
        names[count++] = row->name;
    names[count] = NULL;
    return cli_unknown("op", "", name, names);
}

int op_names_check(const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (!cup__row_find(names[i]))
            return unknown_op(names[i]);
    return CLI_OK;
}

bool op_is_named(const cup__row *row, const char *const *names, int count, bool internal)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(names[i], row->name))
            return true;
    return !count && (internal || row->is_public);
}

#include "cli/common/op_names.h"

#include <string.h>

#include "cli/common/exit.h"
#include "cli/common/nearest.h"
#include "cupola/facts.h"

#define MOST_OPS 1000

static int unknown_op(const char *name)
{
    const char *names[MOST_OPS + 1];
    int count = 0;
    for (cup_op_facts op; count < MOST_OPS && cup_op_at(count, &op);)
        names[count++] = op.name;
    names[count] = NULL;
    return cli_unknown("op", "", name, names);
}

int op_names_check(const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (cup_op_find(names[i]) < 0)
            return unknown_op(names[i]);
    return CLI_OK;
}

bool op_is_named(int op, const char *const *names, int count, bool internal)
{
    cup_op_facts facts;
    if (!cup_op_at(op, &facts))
        return false;
    for (int i = 0; i < count; i++)
        if (!strcmp(names[i], facts.name))
            return true;
    return !count && (internal || facts.is_public);
}

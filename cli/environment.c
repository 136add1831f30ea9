#include "cli/environment.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "base/memory.h"
#include "cli/exit.h"
#include "cli/nearest.h"
#include "cuda/cache.h"
#include "dispatch/op.h"
#include "dispatch/tuning.h"

/* A mistyped name would go unnoticed: nobody reads that variable. */
static int check_names(void)
{
    const char *names[CUP__ENV_COUNT + 1] = {NULL};
    int code = CLI_OK;
    for (int i = 0; i < CUP__ENV_COUNT; i++)
        names[i] = cup__env_name((cup__env)i);
    for (char **at = environ; at && *at; at++) {
        char name[64];
        int i = 0;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*at, "="), *at);
        while (names[i] && strcmp(names[i], name))
            i++;
        if (!strncmp(name, "CUP_", 4) && !names[i])
            code = cli_unknown("environment variable", "", name, names);
    }
    return code;
}

static bool has_impl(const cup__row *row, const char *name)
{
    for (const cup__impl *impl = row->op->impls; impl && impl->name; impl++)
        if (!strcmp(impl->name, name))
            return true;
    return false;
}

/* CUP_IMPL, op=name,op=name: both must be there. */
static int check_impls(void)
{
    int code = CLI_OK;
    for (const char *at = cup__env_get(CUP__ENV_IMPL); *at; at += *at == ',') {
        char op[128], *name;
        size_t length = strcspn(at, ",");
        snprintf(op, sizeof op, "%.*s", (int)length, at);
        at += length;
        name = op + strcspn(op, "=");
        if (*name)
            *name++ = 0;
        const cup__row *row = cup__row_find(op);
        if (!row)
            code = cli_usage("CUP_IMPL: there is no op %s; write op=name,op=name", op);
        else if (!has_impl(row, name))
            code = cli_usage("CUP_IMPL: %s has no implementation \"%s\"; see cupola ops %s", op,
                             name, op);
    }
    return code;
}

/* A line that is no record costs that record alone, which is worth a word and no failure. */
static void tell_of_tuning(void)
{
    cup__error error = {0};
    cup__tuning tuning = {0};
    char *path = NULL;
    if (cup__tuning_path(&error, &path) == CUP_OK && path)
        cup__tuning_read(&error, path, false, &tuning);
    if (error.status != CUP_OK)
        cli_fail(CLI_OK, "%s; %s", error.text,
                 tuning.count ? "the other lines count" : "no record of it counts");
    cup__tuning_free(&tuning);
    cup__free(path);
}

/* A pack that cannot be used would be passed over without a word. */
static int check_pack(void)
{
    cup__error error = {0};
    const char *path = cup__env_get(CUP__ENV_KERNEL_PACK);
    if (!*path || cup__env_check(NULL, CUP__ENV_KERNEL_PACK) != CUP_OK ||
        cup__pack_check(&error, path) == CUP_OK)
        return CLI_OK;
    return cli_fail(CLI_USAGE, "CUP_KERNEL_PACK: %s", error.text);
}

int environment_check(void)
{
    int code = check_names(), impls = check_impls(), pack = check_pack();
    code = code ? code : impls ? impls : pack;
    tell_of_tuning();
    for (int i = 0; i < CUP__ENV_COUNT; i++) {
        cup__error error = {0};
        if (cup__env_check(&error, (cup__env)i) != CUP_OK)
            code = cli_fail(CLI_USAGE, "%s", error.text);
    }
    return code;
}

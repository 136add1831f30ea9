#include "cli/common/environment.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/common/exit.h"
#include "cli/common/nearest.h"
#include "cupola/facts.h"

#define MOST_VARIABLES 100

/* A mistyped name would go unnoticed: nobody reads that variable. */
static int check_names(void)
{
    const char *names[MOST_VARIABLES + 1] = {NULL};
    cup_variable variable;
    int code = CLI_OK;
    for (int i = 0; i < MOST_VARIABLES && cup_variable_at(i, &variable); i++)
        names[i] = variable.name;
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

static void tell(const char *sentence, bool counts, void *user)
{
    (void)counts;
    (void)user;
    cli_fail(CLI_USAGE, "%s", sentence);
}

int environment_check(void)
{
    int code = check_names();
    return cup_variables_check(tell, NULL) == CUP_OK ? code : CLI_USAGE;
}

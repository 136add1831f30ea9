/* Which tuning records count on a context's GPU, and where new ones go. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "cuda/cuda.h"
#include "cuda/loader.h"
#include "dispatch/tuning.h"
#include "tensor/context.h"

/* What records are keyed by beside the call. */
typedef struct place {
    char card[128], driver[16], version[16];
} place;

static void place_of(cup_context *c, place *here)
{
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(c->device));
    snprintf(here->card, sizeof here->card, "%s", facts->name);
    snprintf(here->driver, sizeof here->driver, "%d",
             cup__library_report_of(CUP__LIBCUDA)->version);
    snprintf(here->version, sizeof here->version, "%d.%d.%d", CUP_VERSION_MAJOR,
             CUP_VERSION_MINOR, CUP_VERSION_PATCH);
}

static bool is_of(const cup__tuning_line *l, const place *here, bool same_driver)
{
    return !strcmp(l->card, here->card) && !strcmp(l->version, here->version) &&
           (strcmp(l->driver, here->driver) == 0) == same_driver;
}

static void hand_over(cup_context *c, const cup__tuning *tuning, cup__tuning_take take, void *to)
{
    place here;
    place_of(c, &here);
    for (int same_driver = 0; same_driver < 2; same_driver++)
        for (size_t i = 0; i < tuning->count; i++)
            if (is_of(&tuning->lines[i], &here, same_driver) && !take(to, &tuning->lines[i])) {
                cup__fail(&c->error, CUP_MEMORY, "out of host memory for tuning records");
                return;
            }
}

static void read_users(cup__tuning *tuning)
{
    cup__error error = {0};
    char *path = NULL;
    if (cup__tuning_path(&error, &path) == CUP_OK && path)
        cup__tuning_read(&error, path, false, tuning);
    if (error.status != CUP_OK)
        cup__log(CUP__INFO, "%zu tuning records are used: %s", tuning->count, error.text);
    cup__free(path);
}

void cup__tuning_records(cup_context *c, cup__tuning_take take, void *to)
{
    cup__tuning shipped = {0}, users = {0};
    if (cup__tuning_shipped(&c->error, &shipped) == CUP_OK)
        hand_over(c, &shipped, take, to);
    read_users(&users);
    hand_over(c, &users, take, to);
    cup__tuning_free(&shipped);
    cup__tuning_free(&users);
}

cup_status cup__tuning_remember(cup_context *c, const cup__text *call, const cup__text *way,
                                double us)
{
    char *path;
    if (call->failed || way->failed)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for tuning records");
    CUP_TRY(cup__tuning_path(&c->error, &path));
    if (!path)
        return CUP_OK;
    place here;
    cup__tuning tuning = {0};
    place_of(c, &here);
    cup__tuning_line line = {here.card, here.driver, here.version, call->bytes, way->bytes, us};
    cup_status status = cup__tuning_read(&c->error, path, false, &tuning);
    if (status == CUP_OK)
        status = cup__tuning_put(&c->error, &tuning, &line);
    if (status == CUP_OK)
        status = cup__tuning_save(&c->error, &tuning, path);
    cup__tuning_free(&tuning);
    cup__free(path);
    return status;
}

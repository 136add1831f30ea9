/* Which process writes which states of an optimizer. */
#include <string.h>

#include "base/memory.h"
#include "comm/comm.h"
#include "optim/optimizer.h"

/* All states of a parameter follow each other, named for it: NAME.first. */
static bool same_parameter(const char *a, const char *b)
{
    const char *end = strrchr(a, '.'), *other = strrchr(b, '.');
    return end && other && end - a == other - b && !strncmp(a, b, (size_t)(end - a));
}

static int owner_of(const cup_optimizer *o, int64_t i, int before, int64_t *load, int count)
{
    const cup_named *s = &o->state[i];
    if (!strchr(s->name, '.'))
        return 0;
    if (i > 0 && same_parameter(s->name, s[-1].name))
        return before;
    int least = 0;
    for (int r = 1; r < count; r++)
        if (load[r] < load[least])
            least = r;
    load[least] += s->tensor->count;
    return least;
}

cup_status cup__optimizer_written(cup_optimizer *o, cup_comm *comm, cup_named **out,
                                  int64_t *count)
{
    int ranks = cup_comm_count(comm), owner = 0;
    int64_t *load = cup__calloc((size_t)ranks, sizeof *load);
    *out = cup__calloc((size_t)o->state_count, sizeof **out);
    *count = 0;
    for (int64_t i = 0; *out && load && i < o->state_count; i++) {
        if (!o->split)
            owner = owner_of(o, i, owner, load, ranks);
        else /* all count the steps */
            owner = strchr(o->state[i].name, '.') ? cup_comm_rank(comm) : 0;
        if (owner == cup_comm_rank(comm))
            (*out)[(*count)++] = o->state[i];
    }
    bool made = *out && load;
    cup__free(load);
    return made ? CUP_OK
                : cup__fail(&o->c->error, CUP_MEMORY, "out of host memory for a checkpoint");
}

#include "base/fault.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>

static _Atomic long countdown;
static _Atomic bool kills;

void cup__fault_at(long n, bool kill)
{
    atomic_store(&kills, kill);
    atomic_store(&countdown, n);
}

bool cup__fault(void)
{
    if (atomic_load_explicit(&countdown, memory_order_relaxed) == 0 ||
        atomic_fetch_sub(&countdown, 1) != 1)
        return false;
    if (atomic_load(&kills))
        raise(SIGKILL);
    errno = EIO;
    return true;
}

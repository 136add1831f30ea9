#include "base/shared.h"

#include <dlfcn.h>

void *cup__shared_open(const char *name)
{
    return dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

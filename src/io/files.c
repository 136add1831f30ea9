/* Files of a program's own, beside its tensors. */
#include "base/file.h"
#include "cupola/io.h"
#include "tensor/context.h"

static cup_status begin(cup_context *c, const char *path)
{
    if (!c)
        return CUP_MEMORY;
    if (c->error.status == CUP_OK && !path)
        return cup__fail(&c->error, CUP_ARGUMENT, "the path of the file is NULL; name one");
    return c->error.status;
}

cup_status cup_file_write(cup_context *c, const char *path, const void *data, size_t bytes)
{
    CUP_TRY(begin(c, path));
    if (!data && bytes)
        return cup__fail(&c->error, CUP_ARGUMENT, "%s: what is to be written is NULL", path);
    return cup__file_write(&c->error, path, data, bytes);
}

cup_status cup_file_check(cup_context *c, const char *path)
{
    cup__writer writer;
    CUP_TRY(begin(c, path));
    CUP_TRY(cup__writer_open(&c->error, path, &writer));
    cup__writer_abandon(&writer);
    return CUP_OK;
}

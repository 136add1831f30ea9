/* A stand-in for NCCL: it says that all went well and moves nothing. What NCCL would refuse, as an
 * operation without a communicator, memory or group, it refuses. */
#include <stdlib.h>
#include <string.h>

#include "cuda/nccl.h"

#define EXPORT __attribute__((visibility("default")))
#define WRONG ((ncclResult_t)4)

struct ncclComm {
    int count, rank;
};

static _Thread_local int depth;

/* Declares each call as the library does, and so holds the two against each other. */
#define NEED(result, name, exported, arguments) EXPORT result name arguments;
#define MAY NEED
#include "cuda/nccl.def"
#undef NEED
#undef MAY

ncclResult_t ncclGetVersion(int *version)
{
    *version = 22703;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclSuccess ? "no error" : "invalid argument";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id->internal, 17, sizeof id->internal);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int count, ncclUniqueId id, int rank)
{
    if (id.internal[0] != 17 || id.internal[127] != 17 || rank < 0 || rank >= count)
        return WRONG;
    *comm = calloc(1, sizeof **comm);
    (*comm)->count = count;
    (*comm)->rank = rank;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    return ncclCommDestroy(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    free(comm);
    return comm ? ncclSuccess : WRONG;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
    *result = ncclSuccess;
    return comm ? ncclSuccess : WRONG;
}

ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    return depth-- > 0 ? ncclSuccess : WRONG;
}

static ncclResult_t check(const void *from, const void *to, size_t count, ncclComm_t comm,
                          CUstream stream)
{
    return from && to && count && comm && stream && depth == 1 ? ncclSuccess : WRONG;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclRedOp_t how, ncclComm_t comm, CUstream stream)
{
    (void)type;
    (void)how;
    return check(from, to, count, comm, stream);
}

ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                        ncclRedOp_t how, int root, ncclComm_t comm, CUstream stream)
{
    if (root < 0 || !comm || root >= comm->count)
        return WRONG;
    return ncclAllReduce(from, to, count, type, how, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type,
                               ncclRedOp_t how, ncclComm_t comm, CUstream stream)
{
    return ncclAllReduce(from, to, count, type, how, comm, stream);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, CUstream stream)
{
    return ncclAllReduce(from, to, count, type, ncclSum, comm, stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, CUstream stream)
{
    if (root < 0 || !comm || root >= comm->count)
        return WRONG;
    return ncclAllReduce(from, to, count, type, ncclSum, comm, stream);
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, CUstream stream)
{
    if (peer < 0 || !comm || peer >= comm->count)
        return WRONG;
    return ncclAllReduce(from, (void *)(uintptr_t)from, count, type, ncclSum, comm, stream);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      CUstream stream)
{
    return ncclSend(to, count, type, peer, comm, stream);
}

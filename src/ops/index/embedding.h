/* What embedding and its gradient share. */
#ifndef CUP_OPS_INDEX_EMBEDDING_H
#define CUP_OPS_INDEX_EMBEDDING_H

#include "dispatch/op.h"

/* An id of an i32 or i64 tensor on the CPU. */
int64_t cup__id_of(const cup_tensor *ids, int64_t index);
/* Fails with the first id that is none of the rows. */
cup_status cup__ids_check(cup__call *call, const cup_tensor *ids, int64_t rows);

/* On the GPU. */
const char *cup__embedding_cuda_refuses(const cup__call *call);
cup_status cup__embedding_cuda(cup__call *call);
const char *cup__embedding_grad_cuda_refuses(const cup__call *call);
cup_status cup__embedding_grad_cuda(cup__call *call);

#endif

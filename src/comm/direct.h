/* Sums of two GPUs of one host by copies to each other's memory, see direct.c. */
#ifndef CUP_COMM_DIRECT_H
#define CUP_COMM_DIRECT_H

#include "comm/comm.h"
#include "cuda/api.h"

typedef struct cup__cuda cup__cuda;
typedef struct cup__direct cup__direct;

/* Both processes of `m` call it; NULL in `out` without an error where they cannot. The other waits
 * for nothing queued where nothing has failed. */
cup_status cup__direct_open(cup_comm *m, cup__cuda *gpu, CUstream stream, cup__direct **out);
/* What is queued waits no longer; then nothing is known of what it gives. */
void cup__direct_give_up(cup__direct *d);
void cup__direct_close(cup__direct *d, CUstream stream, bool driver, bool failed);

/* Queues the sum of both processes' `from` in `to`, of the same shape and dtype, without gaps. */
cup_status cup__direct_sum(cup__direct *d, const cup_tensor *from, const cup_tensor *to,
                           CUstream stream);

#endif

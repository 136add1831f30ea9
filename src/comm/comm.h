/* The inside of a communicator: some processes of a mesh, and how they exchange tensors. */
#ifndef CUP_COMM_COMM_H
#define CUP_COMM_COMM_H

#include "comm/mesh.h"
#include "tensor/tensor.h"

typedef struct cup__gpus cup__gpus; /* joined by NCCL */

struct cup_comm {
    cup_context *c;
    cup__mesh *mesh;
    int rank, count;
    int *members; /* their ranks in the mesh */
    uint32_t group;
    uint64_t sequence; /* of the last operation */
    int64_t step;
    cup__gpus *nccl; /* NULL: by sockets */
    struct cup__progress *progress; /* of an exchange, [count] */
    char *stage[4];                 /* memory to use again */
    size_t stage_bytes[4];
};

extern const size_t cup__progress_size;

/* What one process sends to another and takes from it in an operation. */
typedef struct cup__transfer {
    const void *out;
    void *in;
    size_t out_bytes, in_bytes;
    bool sends, receives;
} cup__transfer;

/* Begins an operation; `detail` must be the same on all processes, as a dtype. */
cup_status cup__operation_begin(cup_comm *m, cup__operation_id id);
void cup__operation_end(cup_comm *m);

/* Exchanges with all members at once; the own transfer is passed over. */
cup_status cup__exchange(cup_comm *m, uint32_t detail, cup__transfer *transfers);

/* Fails where another process has, or NCCL has. */
cup_status cup__comm_check(cup_comm *m);

/* Memory of the communicator that stays until the next call with the same number; NULL with an
 * error. */
void *cup__stage(cup_comm *m, int which, size_t bytes);

/* Operations on host memory, elements without gaps. */
typedef struct cup__block {
    void *data;
    int64_t count;
    cup_dtype dtype;
} cup__block;
cup_status cup__host_all_reduce(cup_comm *m, cup__block b, cup_combine how);
cup_status cup__host_reduce_scatter(cup_comm *m, cup__block from, void *to, cup_combine how);
cup_status cup__host_all_gather(cup_comm *m, cup__block from, void *to);
cup_status cup__host_broadcast(cup_comm *m, void *data, size_t bytes, int root);
cup_status cup__host_all_to_all(cup_comm *m, cup__block from, void *to);

/* Numbers of each process, in the order of the ranks; and a process's name for sentences. */
cup_status cup__comm_collect(cup_comm *m, int64_t *own, int count, int64_t *all);
const char *cup__comm_name(const cup_comm *m, int rank);

/* Sums that go on beside what the context computes, until all that began are joined: by NCCL; by
 * sockets they are done at once. Their tensors are not used in between. */
cup_status cup__comm_sum_begin(cup_comm *m, cup_tensor *const *tensors, int count);
cup_status cup__comm_join(cup_comm *m);

/* The sum of all processes' `from` in `to`, another tensor of its shape and dtype, which goes on
 * until its end is asked for; NULL: it is done. */
typedef struct cup__flying cup__flying;
cup_status cup__comm_sum_to(cup_comm *m, cup_tensor *from, cup_tensor *to, cup__flying **out);

/* Has them go by copies of two GPUs to each other from here on, where these can; all call it. */
cup_status cup__comm_sum_direct(cup_comm *m);

/* cup_comm_sum that goes on beside what is computed until it is read, and whose gradient does. */
cup_tensor *cup__comm_sum_beside(cup_comm *m, cup_tensor *x);

/* Tensors each of which belongs to a process, begun likewise. Their owners get the sums over all of
 * those, or all get those of their owners; what others have of a sum is then of no use. */
cup_status cup__comm_sum_owned_begin(cup_comm *m, cup_tensor *const *tensors, const int *owners,
                                     int count);
cup_status cup__comm_bring_begin(cup_comm *m, cup_tensor *const *tensors, const int *owners,
                                 int count);
/* Where a process's `length` positions stand in whole sequences, see cup_comm_part. */
cup__stretches cup__comm_stretches(const cup_comm *m, int rank, int64_t length);

/* The elements of all processes' x, those of one behind those of the next, in this shape, which
 * backward gathers again for those who read it; it adds up gradients for each its own. NULL with an
 * error. */
cup_tensor *cup__comm_gather_again(cup_comm *m, cup_tensor *x, int ndim, const int64_t *shape);

/* Sends each of `from` to the next process, and takes `to` from the one before, begun likewise. */
cup_status cup__comm_rotate_begin(cup_comm *m, cup_tensor *const *from, cup_tensor *const *to,
                                  int count);
cup_status cup__nccl_owned_begin(cup_comm *m, cup_tensor *const *tensors, const int *owners,
                                 int count, bool sums);
/* The same on the host: what each process owns, from starts[rank] to starts[rank + 1]. */
cup_status cup__host_sum_owned(cup_comm *m, cup__block b, const int64_t *starts);
cup_status cup__host_bring(cup_comm *m, cup__block b, const int64_t *starts);

/* Puts the reduction of so many blocks, in their order, into `out`, which may be one of them. */
void cup__fold_blocks(const void *const *blocks, int block_count, cup_dtype dtype,
                      cup_combine how, int64_t count, void *out);

/* Whether a context asks for sums in one order; and these, behind what it has queued. */
bool cup__comm_is_ordered(const cup_comm *m, cup_dtype dtype, cup_combine how);
cup_status cup__ordered_all_reduce(cup_comm *m, cup_tensor *const *tensors, int count,
                                   cup_combine how);
cup_status cup__ordered_reduce_scatter(cup_comm *m, cup_tensor *from, cup_tensor *to,
                                       cup_combine how);

/* The same by NCCL, behind what the context has queued. */
cup_status cup__nccl_open(cup_comm *m);
void cup__nccl_close(cup__gpus *n, bool broken);
cup_status cup__nccl_all_reduce(cup_comm *m, cup_tensor *const *tensors, int count,
                                cup_combine how);
cup_status cup__nccl_sum_begin(cup_comm *m, cup_tensor *const *tensors, int count);
cup_status cup__nccl_join(cup_comm *m);
cup_status cup__nccl_sum_to(cup_comm *m, cup_tensor *from, cup_tensor *to, cup__flying **out);
cup_status cup__nccl_sum_end(cup__flying *flying);
cup_status cup__nccl_direct(cup_comm *m);
bool cup__nccl_is_direct(const cup_comm *m);
cup_status cup__nccl_reduce_scatter(cup_comm *m, cup_tensor *from, cup_tensor *to,
                                    cup_combine how);
cup_status cup__nccl_all_gather(cup_comm *m, cup_tensor *from, cup_tensor *to);
cup_status cup__nccl_broadcast(cup_comm *m, cup_tensor *const *tensors, int count, int root);
cup_status cup__nccl_all_to_all(cup_comm *m, cup_tensor *from, cup_tensor *to);
cup_status cup__nccl_rotate_begin(cup_comm *m, cup_tensor *const *from, cup_tensor *const *to,
                                  int count);
cup_status cup__nccl_send(cup_comm *m, cup_tensor *t, int peer, bool receives);

#endif

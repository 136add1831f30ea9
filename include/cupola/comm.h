/* cupola/comm.h: many processes that compute together, one for each GPU or for a share of a CPU.
 *
 * A launcher starts the processes: `cupola launch`, torchrun, mpirun or Slurm. Each then makes a
 * communicator, which finds the others, and calls the same collective operations in the same order:
 *
 *     cup_comm *m = cup_comm_new(c, NULL);
 *     cup_comm_all_reduce(m, &gradient, 1, CUP_COMBINE_SUM);
 *     cup_comm_free(m);
 *
 * Nothing waits for ever: who ends, stops, stays away or calls something else is named in the
 * error, CUP_PEER, of all others. A communicator that failed once fails from then on.
 *
 * Between contexts on a GPU the data go by NCCL, which is found at run time: an operation is queued
 * behind what the context has queued, may be captured in a graph, and has failed when a later call
 * says so. Between contexts on a CPU they go by sockets, and a call has done its work when it
 * returns. Sums are the same bits on all processes; by sockets they are added up in the order of
 * the ranks, in f64 for floats, so that they are the same run after run. */
#ifndef CUPOLA_COMM_H
#define CUPOLA_COMM_H

#include "cupola/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a launcher's variables say of this process. */
typedef struct cup_launched {
    const char *by;   /* "cupola", "torchrun", "Open MPI", "PMI" or "Slurm"; NULL: by nobody */
    int rank, count;  /* of all processes of the run; 0 and 1 where nobody launched them */
    int local_rank, local_count; /* of those on this host */
    int restarts;     /* how many times the run was started again */
} cup_launched;

/* Reads them: CUP_RANK and the like first, then those of torchrun, Open MPI, PMI and Slurm.
 * CUP_ARGUMENT, with a sentence in the context, where they contradict themselves; `out` is then one
 * process. The context may be NULL: then there is no sentence. */
CUP_API cup_status cup_launched_look(cup_context *c, cup_launched *out);

/* How a communicator is made. All zero means what the launcher's variables say. */
typedef struct cup_comm_options {
    size_t size;
    int count;           /* of processes; 0: what the launcher says, and `rank` with it */
    int rank;            /* this one's, from 0 */
    const char *address; /* where rank 0 waits for the others: "HOST:PORT", or "file:PATH" of a file
                            that all see and rank 0 writes. NULL: what the launcher says */
    double timeout;      /* seconds to wait for a process that lives, at the beginning and in each
                            operation; 0: what CUP_COMM_TIMEOUT says, else 300 */
    double silence;      /* seconds without a sign of life after which a process is taken for
                            stopped or cut off; 0: what CUP_COMM_SILENCE says, else 10 */
    /* Folder where each process writes flight-RANK.json when the run fails: why, its last 128
     * operations, with step, number and times, and what it knew of the others. On a GPU an
     * operation counts as over when it is queued, and those of a replayed graph are not told of.
     * NULL: what CUP_COMM_RECORD says, else none. */
    const char *record;
} cup_comm_options;

typedef struct cup_comm cup_comm;

/* Joins the others. Every process of the run makes it, at about the same time. It is the context's
 * alone, and is freed before it. NULL on failure. */
CUP_API cup_comm *cup_comm_new(cup_context *c, const cup_comm_options *options);

/* Leaves the others. Where the context has an error, they are told so and fail with its sentence.
 * Graphs that captured its operations are freed before it. NULL is allowed. */
CUP_API void cup_comm_free(cup_comm *m);

/* The processes of a communicator that name the same color, in the order of their ranks in it, as a
 * communicator of their own; a negative color joins none and gives NULL without an error. All of m
 * call it. It may outlive m. */
CUP_API cup_comm *cup_comm_split_new(cup_comm *m, int color);

/* 0 and 1 for NULL, which is one process alone. */
CUP_API int cup_comm_rank(const cup_comm *m);
CUP_API int cup_comm_count(const cup_comm *m);

/* "NCCL" or "sockets"; "nothing" for NULL. */
CUP_API const char *cup_comm_backend(const cup_comm *m);

/* What becomes of the elements that the processes bring. */
typedef enum cup_combine {
    CUP_COMBINE_SUM = 0,
    CUP_COMBINE_MEAN = 1, /* of floats only */
    CUP_COMBINE_MIN = 2,
    CUP_COMBINE_MAX = 3
} cup_combine;

/* Tensors of an operation are the context's, in row-major order; those of one process have the
 * dtypes and sizes of the others'. What is reduced is f32, f64, f16, bf16, i32 or i64. Gradients
 * know nothing of those that fill a tensor that is there. */

/* Each tensor becomes the reduction of all processes' tensors, on all of them. Sums of floats have
 * one order by sockets, and by NCCL where the context is deterministic: then each process adds up a
 * share of all versions, which takes longer, needs memory for up to 2^24 elements, and goes on
 * beside nothing else. Their bits are the same each time for as many processes. */
CUP_API cup_status cup_comm_all_reduce(cup_comm *m, cup_tensor *const *tensors, int count,
                                       cup_combine how);

/* `from` is so many equal parts as there are processes; `to` takes the reduction of the part that
 * has this process's number. */
CUP_API cup_status cup_comm_reduce_scatter(cup_comm *m, cup_tensor *from, cup_tensor *to,
                                           cup_combine how);

/* `to` takes what all have in `from`, one behind the other. `from` may be the part of `to` that
 * this process fills. */
CUP_API cup_status cup_comm_all_gather(cup_comm *m, cup_tensor *from, cup_tensor *to);

/* Each tensor becomes that of process `root`. */
CUP_API cup_status cup_comm_broadcast(cup_comm *m, cup_tensor *const *tensors, int count, int root);

/* Both are so many equal parts as there are processes: part i of `from` goes to process i, and part
 * i of `to` comes from it. The two do not share memory. */
CUP_API cup_status cup_comm_all_to_all(cup_comm *m, cup_tensor *from, cup_tensor *to);

/* From one process to another, which calls the other one of the two meanwhile. */
CUP_API cup_status cup_comm_send(cup_comm *m, cup_tensor *from, int to_rank);
CUP_API cup_status cup_comm_receive(cup_comm *m, cup_tensor *to, int from_rank);

/* The same as new tensors, with gradients: those of the sum of the losses of all processes, which
 * must go backward together. Where all compute one loss, each divides it by their number. So x
 * needs a gradient on all or on none of them, and each loss depends on the result, if only by a
 * product with 0. x has the same shape and dtype everywhere, and so has the result where nothing
 * else is said.
 *
 * The sum of all processes' tensors; the gradient is the sum of all gradients. */
CUP_API cup_tensor *cup_comm_sum(cup_comm *m, cup_tensor *x);

/* Their mean, of floats only; the gradient is the mean of all gradients. */
CUP_API cup_tensor *cup_comm_mean(cup_comm *m, cup_tensor *x);

/* The smallest and the largest of the processes' elements. The sum of all gradients of an element
 * goes to the process that has it; several share it equally. */
CUP_API cup_tensor *cup_comm_min(cup_comm *m, cup_tensor *x);
CUP_API cup_tensor *cup_comm_max(cup_comm *m, cup_tensor *x);

/* On all what process `root` has; of the others' x only shape and dtype count. The sum of all
 * gradients goes to root, and zeros to the others. */
CUP_API cup_tensor *cup_comm_spread(cup_comm *m, cup_tensor *x, int root);

/* On process `to_rank` what process `from_rank`, another one, has, and zeros on all others. Both
 * call it at least, and only they communicate. The gradient goes back the other way. */
CUP_API cup_tensor *cup_comm_pass(cup_comm *m, cup_tensor *x, int from_rank, int to_rank);

/* What all have, one behind the other along the first dimension; and the part of the sum that has
 * this process's number, parts being along the first dimension. The gradient of the one is the
 * other. */
CUP_API cup_tensor *cup_comm_gather(cup_comm *m, cup_tensor *x);
CUP_API cup_tensor *cup_comm_sum_scatter(cup_comm *m, cup_tensor *x);

/* Part i along the first dimension goes to process i, and part i of the result comes from it. */
CUP_API cup_tensor *cup_comm_exchange(cup_comm *m, cup_tensor *x);

/* A table of which each process has an equal part of the rows, in the order of the ranks: ids [..],
 * i32 or i64 and the same on all, to rows [..,width] of the whole. An id that is none of the whole
 * gives zeros. */
CUP_API cup_tensor *cup_comm_embedding(cup_comm *m, cup_tensor *part, cup_tensor *ids);

/* The mean cross-entropy of targets [..], i32 or i64 and the same on all, whose logits [..,classes]
 * are shared out likewise: each process has as many classes, and the first `columns` of all count.
 * Targets that are `ignore_index` are left out; the loss of one that is no class is NaN. f32, or
 * f64 of such logits. Each process gets the same loss. */
CUP_API cup_tensor *cup_comm_cross_entropy(cup_comm *m, cup_tensor *logits, cup_tensor *targets,
                                           int64_t ignore_index, int64_t columns);

/* Attention in which each process has a part of every sequence, as cup_comm_part takes it, and its
 * queries see the keys of all: keys and values go round from process to process while each computes
 * with those at hand (ring attention). qkv is [B,T,W] of this process's tokens, the same on all,
 * where T is even and W holds the heads of q, then kv_heads of k, then as many of v, as in
 * cup_qkv_attention, which this is of one process; the result is [B,T,heads D]. Also where it is
 * causal all have as much to do. Its gradient goes round likewise, so all go backward together; it
 * has no second derivative. */
typedef struct cup_comm_attention_options {
    size_t size;
    int kv_heads; /* 0: heads */
    bool causal;  /* a token sees none behind it in the whole sequence */
    double scale; /* of the products of queries and keys; 0: 1 / sqrt(D) */
    double dropout; /* of probabilities: those that cup_qkv_attention would drop of the whole, where
                       T is a multiple of 32 */
} cup_comm_attention_options;
CUP_API cup_tensor *cup_comm_attention(cup_comm *m, cup_tensor *qkv, int heads,
                                       const cup_comm_attention_options *options);

/* cup_dropout of x [B,T,..], a part of every sequence as cup_comm_part takes it along T: what is
 * dropped is what one process would drop of the whole, where all of m's processes stand at one
 * random step behind as many calls that draw; a loop sees to it. So many numbers as half of T holds
 * must be a multiple of 8. */
CUP_API cup_tensor *cup_comm_dropout(cup_comm *m, cup_tensor *x, double p);

/* This process's part of a whole along an axis, for that: the axis is cut into twice as many parts
 * as there are processes, and process r of n gets parts r and 2 n - 1 - r, joined. Of a whole that
 * all have, as tokens or the vectors of positions. The gradient is that of what was taken. */
CUP_API cup_tensor *cup_comm_part(cup_comm *m, cup_tensor *x, int axis);

/* Returns when all have called it. The host waits, and the work of the device goes on. */
CUP_API cup_status cup_comm_barrier(cup_comm *m);

/* Each of the numbers becomes the largest that a process brings, at most 64 of them: for what hosts
 * agree on. The device is not asked. */
CUP_API cup_status cup_comm_agree(cup_comm *m, int64_t *numbers, int count);

/* Names the step that the next operations belong to, for messages. */
CUP_API void cup_comm_step(cup_comm *m, int64_t step);

/* From here to the next call of it with false this process is busy elsewhere, as with a file, and
 * others wait for it without end as long as it lives. */
CUP_API void cup_comm_busy(cup_comm *m, bool busy);

#ifdef __cplusplus
}
#endif
#endif

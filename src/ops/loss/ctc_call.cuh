/* The arguments of the kernels of ctc_loss.cu, as the host fills them and the kernels read them. */
#ifndef CUP_OPS_LOSS_CTC_CALL_CUH
#define CUP_OPS_LOSS_CTC_CALL_CUH

#define CTC_THREADS 128

typedef struct ctc_call {
    const void *log_probs, *targets, *input_lengths, *target_lengths; /* [T,N,C], [N,S], [N], [N] */
    void *alpha, *loss; /* [N,T,2S+1], [N] */
    const void *dloss;  /* [N], and what follows from it: */
    void *dlog_probs;
    void *work; /* [N,3,2S+1] in double: two steps' alpha or beta, and shares */
    int *next;  /* [N,2S]: the next place of a target's class, or -1; whether it is the first */
    long long steps, batch, classes, most; /* T, N, C and S */
    int blank;
} ctc_call;

#endif

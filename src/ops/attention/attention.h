/* What the two rows of attention share: a call seen as heads over strided memory, whether q, k and
 * v came as three tensors or as one. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_H
#define CUP_OPS_ATTENTION_ATTENTION_H

#include "base/philox.h"
#include "dispatch/op.h"
#include "ops/attention/attention_lists.h"
#include "ops/attention/attention_mask.h"
#include "ops/attention/attention_score.h"

/* A tensor, or a part of one, as [batch, heads, positions, size]. */
typedef struct cup__heads {
    cup_tensor *tensor;
    int64_t offset;    /* of the first element, from tensor->data */
    int64_t stride[4]; /* in elements */
} cup__heads;

typedef struct cup__attention {
    cup_context *c;
    const uint64_t *random; /* device memory: seed and step */
    uint32_t sequence;
    int64_t others, first; /* heads of a text that other processes have; those before these */
    const cup__stretched *drawn; /* of positions that are parts of sequences, or NULL */
    cup_dtype dtype;
    int64_t batch, heads, kv_heads, queries, keys;
    int64_t key_size, value_size, size; /* of a head; size: the larger */
    cup__attention_mask mask;
    cup__attention_score score;
    cup__attention_lists lists;
    double scale, dropout;
    const cup_tensor *scales; /* [4] where f32 is rounded to f16: of q, k, v and d_o; NULL */
    const cup_tensor *ranges[2]; /* on a GPU, of queries and of keys: attention_ranges.cu; NULL */
    cup__heads q, k, v, o;       /* forward writes o, backward reads it */
    cup_tensor *lse;             /* [batch, heads, queries]; NULL: not wanted */
    cup__heads d_o, dq, dk, dv;  /* of backward only */
    cup_tensor *d_slopes, *d_sinks; /* [batch, heads, queries] where there are slopes, or sinks */
    cup_tensor *d_bias; /* [batch, heads, queries, keys], NULL: not wanted */
    /* Of a formula's tensors that are the same for all keys, as bits, the gradients [bits, batch,
     * heads, queries], and of others [bits, batch, heads, queries, keys]. */
    uint32_t row_grads, pair_grads;
    cup_tensor *d_rows, *d_pairs;
} cup__attention;

/* What was made so that all heads have the larger size, and in place of what. */
typedef struct cup__attention_evened {
    cup_tensor *made[8], *original[8];
    bool is_result[8];
    int count;
} cup__attention_evened;

cup_status cup__attention_even(cup__attention *a, cup__attention_evened *all);
/* Copies results to where they belong; passes the status on. */
cup_status cup__attention_uneven(const cup__attention *a, cup__attention_evened *all,
                                 cup_status status);

/* Dropout draws numbers of 16 bits: a probability is dropped when its number is below the
 * threshold, and the others are multiplied by the factor, so that the mean stays exact.
 * One block of Philox serves the 8 scores that one thread of a matrix instruction holds of a
 * tile of 16 queries and 16 keys: queries r and r + 8; keys 2 n, 2 n + 1, 2 n + 8 and 2 n + 9. */
/* Where processes share out the heads, each draws those numbers that one process would for its own.
 * `sequence` has their share above its 32 bits. Stretches of parts of sequences are tiles of 16. */
#define CUP__ATTENTION_TILE 16
void cup__attention_draws(cup__attention *a, int64_t sequence);
uint32_t cup__attention_threshold(double dropout);
double cup__attention_factor(double dropout);
uint64_t cup__attention_random_block(const cup__attention *a, int64_t head, int64_t query,
                                     int64_t key);
/* The number of a score among the eight of its block. */
static inline uint32_t cup__attention_number(const cup__philox_words *block, int64_t query,
                                             int64_t key)
{
    uint32_t word = block->at[(key & 1) * 2 + (query >> 3 & 1)];
    return key >> 3 & 1 ? word >> 16 : word & 0xffff;
}

/* What dropout multiplies the probability of a score by; heads of all batches are counted. */
double cup__attention_keep_factor(const cup__attention *a, int64_t head, int64_t query,
                                  int64_t key);

/* What backward has for the slope and the sink of one query. */
void cup__attention_store_numbers(const cup__attention *a, int64_t b, int64_t head, int64_t query,
                                  double d_slope, double lse, double delta);

/* The gradient of a bias, where it is wanted: zeros, and that of a query and a key. */
cup_status cup__attention_clear_bias(const cup__attention *a);
static inline void cup__attention_store_bias(const cup__attention *a, int64_t b, int64_t head,
                                             int64_t query, int64_t key, double ds)
{
    int64_t at = ((b * a->heads + head) * a->queries + query) * a->keys + key;
    cup__store(a->d_bias, cup__offset_of(a->d_bias, at), ds);
}

/* Whether any query meets a key. Where none does, what kernels of tiles and tensor maps cannot
 * describe is left to the plain ones, which give 0. */
static inline bool cup__attention_is_any(const cup__attention *a)
{
    return a->batch > 0 && a->heads > 0 && a->queries > 0 && a->keys > 0;
}

/* Shared by attention and attention_lse, whose attributes are the same. */
#define CUP__ATTENTION_EXTRAS 3 /* where the optional inputs begin */
cup_status cup__attention_infer(cup__call *call);
int64_t cup__attention_places(cup_tensor *const *in, int i, const void *attributes);

cup_status cup__attention_check(cup__call *call, double scale, double dropout, int64_t size);

/* The rows that share all this: op->kind of each. */
enum {
    CUP__ATTENTION,
    CUP__ATTENTION_GRAD,
    CUP__QKV_ATTENTION,
    CUP__QKV_ATTENTION_GRAD,
    CUP__ATTENTION_FORMULA,
    CUP__ATTENTION_FORMULA_GRAD
};

/* A call of any of these rows. Its results may not be there yet. */
cup__attention cup__attention_of(const cup__call *call);
cup__attention cup__attention_of_three(const cup__call *call);
cup__attention cup__attention_of_three_grad(const cup__call *call);
cup__attention cup__attention_of_one(const cup__call *call);
cup__attention cup__attention_of_one_grad(const cup__call *call);
cup__attention cup__attention_of_formula(const cup__call *call);
cup__attention cup__attention_of_formula_grad(const cup__call *call);

/* The gradient's row, called with the attributes of the same name of the row that is differentiated
 * and the sequence of its random numbers, and with the optional inputs, which begin with input
 * `first` of that row. */
cup_status cup__attention_back(cup__grad *g, const cup__row *row, cup_tensor *const *in, int count,
                               int first);
/* What a gradient's row has for slopes, sinks and a bias, beginning with result `first`. The sizes
 * are those of batches, heads, queries and keys. */
void cup__attention_infer_numbers(cup__call *call, int input, int first, const int64_t *sizes,
                                  bool bias_grad);

cup_status cup__attention_specification(cup__call *call);
cup_status cup__attention_specification_grad(cup__call *call);
extern const cup__impl cup__attention_impls[], cup__attention_grad_impls[];
void cup__attention_cost(const cup__call *call, double *bytes, double *flops);

cup_status cup__attention_plain(cup__attention *a);
cup_status cup__attention_plain_grad(cup__attention *a);
cup_status cup__attention_cpu(cup__attention *a);
cup_status cup__attention_cpu_grad(cup__attention *a);

/* On a GPU: Hopper's tensor cores, those of other cards, few queries over many keys, and plain
 * arithmetic. */
#define CUP__POSITIONS_MOST (1 << 30)
const char *cup__attention_hopper_refuses(const cup__call *call);
const char *cup__attention_hopper_grad_refuses(const cup__call *call);
const char *cup__attention_pass_refuses(const cup__call *call);
const char *cup__attention_rounded_refuses(const cup__call *call);
const char *cup__attention_rounded_grad_refuses(const cup__call *call);
const char *cup__attention_decode_refuses(const cup__call *call);
const char *cup__attention_decode_f32_refuses(const cup__call *call);
const char *cup__attention_flash_refuses(const cup__call *call);
const char *cup__attention_flash_f32_refuses(const cup__call *call);
/* Runs what is told with the bits of the lists, where there are some: on the host, where wrong
 * numbers are an error, and on a GPU. */
cup_status cup__attention_on_host(cup__attention *a, cup_status (*run)(cup__attention *a));
cup_status cup__attention_with_lists(cup__attention *a, cup_status (*kernels)(cup__attention *a));
/* Runs kernels with what documents let each position see, where there are some. */
cup_status cup__attention_with_ranges(cup__attention *a, cup_status (*kernels)(cup__attention *a));
cup_status cup__attention_hopper(cup__attention *a);
cup_status cup__attention_hopper_grad(cup__attention *a);
cup_status cup__attention_pass(cup__attention *a);
cup_status cup__attention_rounded(cup__attention *a);
cup_status cup__attention_rounded_grad(cup__attention *a);
cup_status cup__attention_flash(cup__attention *a);
cup_status cup__attention_flash_grad(cup__attention *a);
cup_status cup__attention_decode(cup__attention *a);
cup_status cup__attention_simple(cup__attention *a);
cup_status cup__attention_simple_grad(cup__attention *a);

/* `composed` of the two ops. */
cup_status cup__attention_composed(cup__grad *g);
cup_status cup__qkv_attention_composed(cup__grad *g);

#endif

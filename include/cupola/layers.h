/* cupola/layers.h: layers as small structs over a list of parameters. Written by `make gen` from
 * src/nn/layers*.c.
 *
 * Every layer is made and called in one way. cup_X_layer_new fills a struct that the caller has,
 * on the stack or in a struct of a whole model; the tensors are made in the list under the name,
 * which "" or NULL leaves out, and belong to it, so that there is nothing to free; options may be
 * NULL. cup_X_layer_call computes. All errors end in the context, so that a model can be made and
 * called without a check behind each line; a layer that could not be made gives NULL.
 *
 *     cup_parameters *list = cup_parameters_new(c, CUP_F32);
 *     cup_linear_layer up, down;
 *     cup_linear_layer_new(&up, list, "up", 2, 64,
 *                          CUP_OPTIONS(cup_linear_layer_options,
 *                                      .activation = CUP_ACTIVATION_GELU));
 *     cup_linear_layer_new(&down, list, "down", 64, 3, NULL);
 *     cup_tensor *y = cup_linear_layer_call(&down, cup_linear_layer_call(&up, x));
 *
 * Whether layers drop out and take statistics of batches is said once, for the whole list:
 * cup_parameters_training. A layer's struct may be copied; the list must outlive it. */
#ifndef CUPOLA_LAYERS_H
#define CUPOLA_LAYERS_H

#include "cupola/parameters.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What every layer's struct begins with, one of the caller's own too: by it a sequence calls
 * layers of any kind. */
typedef struct cup_layer cup_layer;
struct cup_layer {
    cup_tensor *(*call)(const cup_layer *layer, cup_tensor *x);
    cup_parameters *parameters; /* the list it was made in */
};

/* Calls a layer of any kind: cup_layer_call(&up.layer, x). */
CUP_API cup_tensor *cup_layer_call(const cup_layer *layer, cup_tensor *x);

/* x [..,in] to activation(x weight^T + bias) [..,out]. "weight" [out,in] has weight decay and is
 * Muon's; "bias" [out] begins with zeros. */
typedef struct cup_linear_layer {
    cup_layer layer;
    cup_activation activation;
    cup_tensor *weight, *bias;
    const struct cup_lora_layer *lora; /* what is learned beside it, or NULL; borrowed */
} cup_linear_layer;

typedef struct cup_linear_layer_options {
    size_t size;
    cup_activation activation;
    bool no_bias;
    bool outer;                  /* the first or last layer: not Muon's */
    cup_initializer initializer; /* of the weight; DEFAULT: KAIMING_NORMAL with gain sqrt(2) before
                                    relu, gelu, silu and swiglu, else 1 */
    double deviation, gain;      /* see cup_parameter_options */
    /* In a list that several processes share out, see cup_parameters_among: ROWS makes a part of
     * the features of all of x; COLUMNS takes such a part for x, and makes all of the sum, without
     * an activation. One behind the other they are one layer each on all processes. */
    cup_part part;
} cup_linear_layer_options;

CUP_API cup_status cup_linear_layer_new(cup_linear_layer *layer, cup_parameters *list,
                                        const char *name, int64_t in, int64_t out,
                                        const cup_linear_layer_options *options);
CUP_API cup_tensor *cup_linear_layer_call(const cup_linear_layer *layer, cup_tensor *x);

/* A layer of tensors that are in the list already: under names of the caller's choice, or another
 * layer's, as output weights that are those of the embedding. The bias may be NULL. */
CUP_API cup_status cup_linear_layer_of(cup_linear_layer *layer, cup_parameters *list,
                                       cup_tensor *weight, cup_tensor *bias,
                                       cup_activation activation);

/* Ids [..], i32 or i64, to rows [..,width] of "weight" [count,width]. In a list that several
 * processes share out each may have a part of the rows, ROWS, see cup_comm_embedding. */
typedef struct cup_embedding_layer {
    cup_layer layer;
    cup_tensor *weight;
} cup_embedding_layer;

typedef struct cup_embedding_layer_options {
    size_t size;
    cup_initializer initializer; /* DEFAULT: NORMAL */
    double deviation, gain;
    cup_part part;
} cup_embedding_layer_options;

CUP_API cup_status cup_embedding_layer_new(cup_embedding_layer *layer, cup_parameters *list,
                                           const char *name, int64_t count, int64_t width,
                                           const cup_embedding_layer_options *options);
CUP_API cup_tensor *cup_embedding_layer_call(const cup_embedding_layer *layer, cup_tensor *x);

/* Drops elements with probability p, from 0 to below 1, while its list is in training; see
 * cup_dropout. It has no tensors and no name. */
typedef struct cup_dropout_layer {
    cup_layer layer;
    double p;
} cup_dropout_layer;

CUP_API cup_status cup_dropout_layer_new(cup_dropout_layer *layer, cup_parameters *list, double p);
CUP_API cup_tensor *cup_dropout_layer_call(const cup_dropout_layer *layer, cup_tensor *x);

/* Layers one after another, each called with what the one before it gave. The array and the
 * layers are borrowed, and stay where they are while the sequence is used. It has no tensors and
 * no name of its own. */
typedef struct cup_sequence_layer {
    cup_layer layer;
    const cup_layer *const *layers;
    int count;
} cup_sequence_layer;

CUP_API cup_status cup_sequence_layer_new(cup_sequence_layer *layer, cup_parameters *list,
                                          const cup_layer *const *layers, int count);
CUP_API cup_tensor *cup_sequence_layer_call(const cup_sequence_layer *layer, cup_tensor *x);

/* How rotary positions are turned in models that read further than they first learned to: factor,
 * original, low, high, yarn, untruncated and amplitude of cup_rope. All 0: as they are.
 *
 * Or `dynamic`, with a factor and an original alone (dynamic NTK): a text of up to `original`
 * positions is turned as it is, and a longer one by a base that grows with its length, base *
 * (factor * length / original - factor + 1)^(size / (size - 2)) for heads of that size. The length
 * is that of x in a call, in training too, of all its documents together, and of the whole text
 * where processes have parts of it. What is read behind what was read before counts all of it: new
 * positions are turned by the base for all there then are, and kept keys stay as they were turned,
 * as they do in a cache of transformers. So a text that is read in pieces beyond `original` gives
 * other numbers than one that is read at once. */
typedef struct cup_rope_scaling {
    double factor, low, high;
    int64_t original;
    bool yarn, untruncated;
    double amplitude;
    bool dynamic;
} cup_rope_scaling;

/* Attention of x [B,T,width] to itself, in heads of width / heads features or of as many as is
 * said: "qkv" makes queries of all heads, then keys, then values; "out" joins what the heads
 * found. With qk_norm each head of queries and of keys goes through rmsnorm before positions turn
 * it, by "q_norm.weight" and "k_norm.weight" of the size of a head. "sinks" are a learned logit of
 * each head, of a key more whose value is 0. In a list that several
 * processes share out each has an equal part of the heads, of which the struct tells, and drops of
 * their probabilities what one process would. Where the heads of keys and values are fewer than the
 * processes, each has one of them, of which it makes an equal part and gets the rest from those
 * that have it, too. */
typedef struct cup_attention_layer {
    cup_layer layer;
    cup_linear_layer qkv, out;
    int heads, kv_heads, head_size;
    bool causal, rope;
    double rope_base, dropout;
    cup_rope_scaling rope_scaling;
    cup_tensor *q_norm, *k_norm; /* NULL without qk_norm */
    double epsilon;              /* of those */
    int64_t window;
    double soft_cap;
    cup_tensor *sinks;         /* NULL without */
    bool alibi;
    cup_tensor *slopes;        /* of its heads in f32, or f64 as the rest; NULL without alibi */
    int first_head, all_heads; /* that of all, where processes share them out; and those */
} cup_attention_layer;

typedef struct cup_attention_layer_options {
    size_t size;
    int64_t kv_heads; /* heads of keys and values, which divide the heads; 0: as many */
    bool causal;      /* a token sees none behind it */
    bool rope;        /* positions turn queries and keys, see cup_rope */
    double rope_base; /* 0: 10000 */
    double dropout;   /* of probabilities, in training */
    bool no_bias;
    cup_initializer initializer; /* of both weights, see cup_linear_layer_options */
    double deviation, gain;
    int64_t head_size; /* 0: width / heads */
    bool qk_norm;
    double epsilon; /* of qk_norm; 0: 1e-5 */
    cup_rope_scaling rope_scaling;
    int64_t window; /* causal alone: positions up to its own that one sees; 0: all */
    double soft_cap; /* makes soft_cap tanh(score / soft_cap) of a score, as in Gemma 2; 0: none */
    bool alibi;      /* scores lose by the distance, each head by its own slope: 2^(-8 i / heads)
                        for i from 1 where their number is a power of two (Press, Smith and Lewis
                        2021, "Train Short, Test Long") */
    bool sinks;
} cup_attention_layer_options;

CUP_API cup_status cup_attention_layer_new(cup_attention_layer *layer, cup_parameters *list,
                                           const char *name, int64_t width, int64_t heads,
                                           const cup_attention_layer_options *options);
CUP_API cup_tensor *cup_attention_layer_call(const cup_attention_layer *layer, cup_tensor *x);

/* Images x [N,in,H,W] to activation(cup_conv2d of them) [N,out,..]; a kernel is one size, or height
 * and width. "weight" [out,in/groups,KH,KW] has weight decay; "bias" [out] begins with zeros. All
 * activations but SWIGLU. Images that lie as [N,H,W,C] are taken as cup_conv2d takes them. */
typedef struct cup_conv2d_layer {
    cup_layer layer;
    cup_activation activation;
    cup_tensor *weight, *bias;
    int64_t stride[2], padding[4], dilation[2];
    bool same;
    int groups;
    cup_padding_mode padding_mode;
} cup_conv2d_layer;

typedef struct cup_conv2d_layer_options {
    size_t size;
    cup_activation activation;
    cup_ints stride, padding, dilation; /* see cup_conv2d; none: 1, 0 and 1 */
    bool same;
    int groups;                  /* 0: 1 */
    bool no_bias;
    cup_initializer initializer; /* of the weight, see cup_linear_layer_options */
    double deviation, gain;
    cup_padding_mode padding_mode; /* what the padding consists of */
} cup_conv2d_layer_options;

CUP_API cup_status cup_conv2d_layer_new(cup_conv2d_layer *layer, cup_parameters *list,
                                        const char *name, int64_t in, int64_t out,
                                        const int64_t *kernel, int kernel_count,
                                        const cup_conv2d_layer_options *options);
CUP_API cup_tensor *cup_conv2d_layer_call(const cup_conv2d_layer *layer, cup_tensor *x);

/* With a residual of the shape of the result, which is added before the activation; or NULL. */
CUP_API cup_tensor *cup_conv2d_layer_join(const cup_conv2d_layer *layer, cup_tensor *x,
                                          cup_tensor *residual);

/* The same of images whose channels lie last: x is [N,H,W,in], the result [N,H,W,out], and so the
 * residual. */
CUP_API cup_tensor *cup_conv2d_layer_last(const cup_conv2d_layer *layer, cup_tensor *x,
                                          cup_tensor *residual);

/* cup_conv2d_layer along one side, of x [N,in,L], and along three, of x [N,in,D,H,W]: all as there,
 * see cup_conv1d and cup_conv3d. A kernel of the latter is one size, or depth, height and width;
 * stride, dilation and padding are one number, one for each side, or padding two for each. */
typedef struct cup_conv1d_layer {
    cup_layer layer;
    cup_activation activation;
    cup_tensor *weight, *bias;
    int64_t stride[1], padding[2], dilation[1];
    bool same;
    int groups;
    cup_padding_mode padding_mode;
} cup_conv1d_layer;

CUP_API cup_status cup_conv1d_layer_new(cup_conv1d_layer *layer, cup_parameters *list,
                                        const char *name, int64_t in, int64_t out, int64_t kernel,
                                        const cup_conv2d_layer_options *options);
CUP_API cup_tensor *cup_conv1d_layer_call(const cup_conv1d_layer *layer, cup_tensor *x);

typedef struct cup_conv3d_layer {
    cup_layer layer;
    cup_activation activation;
    cup_tensor *weight, *bias;
    int64_t stride[3], padding[6], dilation[3];
    bool same;
    int groups;
    cup_padding_mode padding_mode;
} cup_conv3d_layer;

CUP_API cup_status cup_conv3d_layer_new(cup_conv3d_layer *layer, cup_parameters *list,
                                        const char *name, int64_t in, int64_t out,
                                        const int64_t *kernel, int kernel_count,
                                        const cup_conv2d_layer_options *options);
CUP_API cup_tensor *cup_conv3d_layer_call(const cup_conv3d_layer *layer, cup_tensor *x);

/* x [N,in,..] with as many sides as the kernel has sizes, one to three, to activation(the
 * transposed convolution of it) [N,out,..], see cup_conv_transpose2d. "weight" [in,out/groups,..]
 * has weight decay; "bias" [out] begins with zeros. */
typedef struct cup_conv_transpose_layer {
    cup_layer layer;
    cup_activation activation;
    cup_tensor *weight, *bias;
    int64_t stride[3], padding[6], output_padding[3], dilation[3];
    int sides, groups;
    bool same;
} cup_conv_transpose_layer;

typedef struct cup_conv_transpose_layer_options {
    size_t size;
    cup_activation activation; /* all but SWIGLU */
    cup_ints stride, padding, output_padding, dilation; /* none: 1, 0, 0 and 1 */
    int groups;                                         /* 0: 1 */
    bool no_bias;
    cup_initializer initializer; /* of the weight; DEFAULT: NORMAL, with the deviation of
                                    KAIMING_NORMAL for as many products as a sum has, without
                                    overlaps that a stride leaves out */
    double deviation, gain;
    bool same; /* each side becomes `stride` times as long, without padding and output_padding */
} cup_conv_transpose_layer_options;

CUP_API cup_status cup_conv_transpose_layer_new(cup_conv_transpose_layer *layer,
                                                cup_parameters *list, const char *name, int64_t in,
                                                int64_t out, const int64_t *kernel,
                                                int kernel_count,
                                                const cup_conv_transpose_layer_options *options);
CUP_API cup_tensor *cup_conv_transpose_layer_call(const cup_conv_transpose_layer *layer,
                                                  cup_tensor *x);

/* Ids [B,K], i32 or i64, to the sums, or means, of the K rows of "weight" [count,width] that each
 * names, [B,width]; or by offsets, see cup_embedding_bag, bags of any size. */
typedef struct cup_embedding_bag_layer {
    cup_layer layer;
    cup_tensor *weight;
    bool mean;
} cup_embedding_bag_layer;

typedef struct cup_embedding_bag_layer_options {
    size_t size;
    bool mean;
    cup_initializer initializer; /* DEFAULT: NORMAL */
    double deviation, gain;
} cup_embedding_bag_layer_options;

CUP_API cup_status cup_embedding_bag_layer_new(cup_embedding_bag_layer *layer,
                                               cup_parameters *list, const char *name,
                                               int64_t count, int64_t width,
                                               const cup_embedding_bag_layer_options *options);
CUP_API cup_tensor *cup_embedding_bag_layer_call(const cup_embedding_bag_layer *layer,
                                                 cup_tensor *ids);
CUP_API cup_tensor *cup_embedding_bag_layer_pass(const cup_embedding_bag_layer *layer,
                                                 cup_tensor *ids, cup_tensor *offsets);

/* A mixture of experts in place of an MLP (Shazeer and others 2017, "Outrageously large neural
 * networks"): experts are MLPs without biases, and each row of x [..,width] goes through `each` of
 * them, those to which the router gives the highest probabilities, a softmax in f32 (f64 of f64);
 * their sum, weighted by these, is the row of the result. "router" [experts,width], "up"
 * [experts,hidden,width], with SWIGLU gates, then values, and "down" [experts,width,hidden] have
 * weight decay and are not Muon's; they have the list's dtype, in 8-bit training, too.
 *
 * Rows are put in order by their experts and multiplied group by group, so that none is dropped
 * and none is padded (Gale and others 2022, "MegaBlocks"). Shapes do not depend on where rows go,
 * nor is the device asked, so that a step can be captured in a graph. Where processes share out the
 * experts (cup_parameters_experts), rows go to them and back in two exchanges; each process has
 * room for all rows of all processes, or with a capacity for so many of them. Where they share out
 * a model (cup_parameters_among), each has a part of `hidden` of every expert, which is a multiple
 * of the processes, and the router whole: x is the same on all, all take the choices that the first
 * of them makes of it, and one sum puts their parts of the result together. Where they share out
 * both, experts are whole, and each sends an equal part of the rows that all of them have. */
typedef struct cup_experts_layer {
    cup_layer layer;
    cup_tensor *router, *up, *down;
    int64_t each;
    cup_activation activation;
    bool unscaled;
    double capacity, balance, router_z;
} cup_experts_layer;

typedef struct cup_experts_layer_options {
    size_t size;
    cup_activation activation; /* inside the experts; NONE: GELU */
    bool unscaled;    /* weights are the probabilities as they are; else they are divided by the sum
                         of those that are taken, unless `each` is 1 */
    double capacity;  /* in training an expert takes so many times the rows it would have if all had
                         as many; further ones, the later ones of the batch, pass it by. 0: all */
    double balance;   /* of the two costs of cup_experts_layer_pass */
    double router_z;
    double deviation; /* of all matrices, which are normal; 0: 0.02 */
} cup_experts_layer_options;

CUP_API cup_status cup_experts_layer_new(cup_experts_layer *layer, cup_parameters *list,
                                         const char *name, int64_t width, int64_t hidden,
                                         int64_t experts, int64_t each,
                                         const cup_experts_layer_options *options);
CUP_API cup_tensor *cup_experts_layer_call(const cup_experts_layer *layer, cup_tensor *x);

/* The same; *cost becomes what is to be added to the loss, one number in f32 (f64 of f64), or NULL
 * where neither of these is asked for: `balance` times the number of experts times the sum over
 * them of their part of the rows times their mean probability, which is 1 where all are alike
 * (Fedus, Zoph and Shazeer 2021, "Switch transformers"), and `router_z` times the mean square of
 * logsumexp of the router's logits (Zoph and others 2022, "ST-MoE"). Rows are those of this
 * process. */
CUP_API cup_tensor *cup_experts_layer_pass(const cup_experts_layer *layer, cup_tensor *x,
                                           cup_tensor **cost);

/* A layer of tensors that are in the list already, under names of the caller's choice. Of the
 * options the deviation does not matter. */
CUP_API cup_status cup_experts_layer_of(cup_experts_layer *layer, cup_parameters *list,
                                        cup_tensor *router, cup_tensor *up, cup_tensor *down,
                                        int64_t each, const cup_experts_layer_options *options);

/* What is learned beside a linear layer whose own weights stay as they are, as two factors with few
 * numbers: x [..,in] to alpha / rank (x A^T) B^T [..,out]. "lora_A.weight" [rank,in] begins uniform
 * between -+ 1 / sqrt(in), "lora_B.weight" [out,rank] with zeros; both have weight decay and are
 * Muon's. Where the linear layer is several that are computed as one, as that of queries, keys and
 * values is, each may have factors of its own, by its number: "lora_A.0.weight". Hu and others
 * 2021, "LoRA: low-rank adaptation of large language models". A linear layer adds what its `lora`
 * gives, before its activation:
 *
 *     cup_lora_layer_new(&beside, list, "beside", 64, 3, 8, NULL);
 *     down.lora = &beside;
 */
#define CUP_LORA_PARTS 3
typedef struct cup_lora_layer {
    cup_layer layer;
    cup_tensor *a[CUP_LORA_PARTS], *b[CUP_LORA_PARTS];
    int parts;
    double scale; /* alpha / rank */
} cup_lora_layer;

typedef struct cup_lora_layer_options {
    size_t size;
    double alpha;  /* 0: the rank */
    cup_ints rows; /* outputs of each part, at most CUP_LORA_PARTS of them; none: one of all */
    /* In a list that several processes share out, that of the linear layer: beside ROWS each has
     * all of A and its rows of B; beside COLUMNS its columns of A and all of B, so that what it
     * gives is a part of the sum that the linear layer makes over processes. */
    cup_part part;
    int64_t sections[3]; /* of ROWS without parts, see cup_parameter_options */
} cup_lora_layer_options;

CUP_API cup_status cup_lora_layer_new(cup_lora_layer *layer, cup_parameters *list,
                                      const char *name, int64_t in, int64_t out, int64_t rank,
                                      const cup_lora_layer_options *options);
CUP_API cup_tensor *cup_lora_layer_call(const cup_lora_layer *layer, cup_tensor *x);

/* What it gives of x, added to y [..,out]. */
CUP_API cup_tensor *cup_lora_layer_add(const cup_lora_layer *layer, cup_tensor *x, cup_tensor *y);

/* Adds alpha / rank B A to the weight [out,in] of the layer that it stands beside, in f32 (in f64
 * for one of f64) with one rounding, so that the layer gives the same without it; of a part of the
 * weight to that part. Nothing is recorded. */
CUP_API cup_status cup_lora_layer_merge(const cup_lora_layer *layer, cup_tensor *weight);

/* Two linear layers, "up" from width to hidden with the activation, and "down" back. In a list that
 * several processes share out each has an equal part of what is hidden. */
typedef struct cup_mlp_layer {
    cup_layer layer;
    cup_linear_layer up, down;
} cup_mlp_layer;

typedef struct cup_mlp_layer_options {
    size_t size;
    cup_activation activation; /* NONE: GELU */
    bool no_bias;
    cup_initializer initializer; /* of both weights, see cup_linear_layer_options */
    double deviation, gain;
} cup_mlp_layer_options;

CUP_API cup_status cup_mlp_layer_new(cup_mlp_layer *layer, cup_parameters *list, const char *name,
                                     int64_t width, int64_t hidden,
                                     const cup_mlp_layer_options *options);
CUP_API cup_tensor *cup_mlp_layer_call(const cup_mlp_layer *layer, cup_tensor *x);

/* Options of all norms; each takes those it has. */
typedef struct cup_norm_layer_options {
    size_t size;
    double epsilon;     /* 0: 1e-5 */
    bool no_bias;       /* not of rmsnorm, which has none */
    bool channels_last; /* of batchnorm and groupnorm: x is [N,..,C] and not [N,C,..] */
    double momentum;    /* of batchnorm: how far the running statistics move; 0: 0.1 */
} cup_norm_layer_options;

/* Norms of the last dimension, of `width`: see cup_layernorm and cup_rmsnorm. "weight" begins with
 * ones, "bias" with zeros, as in those below. Those of tensors that are there already are as
 * cup_linear_layer_of, with an epsilon of 0 for 1e-5. */
typedef struct cup_layernorm_layer {
    cup_layer layer;
    cup_tensor *weight, *bias;
    double epsilon;
} cup_layernorm_layer;

CUP_API cup_status cup_layernorm_layer_new(cup_layernorm_layer *layer, cup_parameters *list,
                                           const char *name, int64_t width,
                                           const cup_norm_layer_options *options);
CUP_API cup_tensor *cup_layernorm_layer_call(const cup_layernorm_layer *layer, cup_tensor *x);

CUP_API cup_status cup_layernorm_layer_of(cup_layernorm_layer *layer, cup_parameters *list,
                                          cup_tensor *weight, cup_tensor *bias, double epsilon);

typedef struct cup_rmsnorm_layer {
    cup_layer layer;
    cup_tensor *weight;
    double epsilon;
} cup_rmsnorm_layer;

CUP_API cup_status cup_rmsnorm_layer_new(cup_rmsnorm_layer *layer, cup_parameters *list,
                                         const char *name, int64_t width,
                                         const cup_norm_layer_options *options);
CUP_API cup_tensor *cup_rmsnorm_layer_call(const cup_rmsnorm_layer *layer, cup_tensor *x);

CUP_API cup_status cup_rmsnorm_layer_of(cup_rmsnorm_layer *layer, cup_parameters *list,
                                        cup_tensor *weight, double epsilon);

/* See cup_batchnorm. "running_mean" and "running_var" are buffers in f32, or f64 in a list of f64:
 * calls in training move them, and others use them. Of a batch that several processes share see
 * cup_parameters_together. */
typedef struct cup_batchnorm_layer {
    cup_layer layer;
    cup_tensor *weight, *bias, *running_mean, *running_var;
    double epsilon, momentum;
    int axis;
} cup_batchnorm_layer;

CUP_API cup_status cup_batchnorm_layer_new(cup_batchnorm_layer *layer, cup_parameters *list,
                                           const char *name, int64_t channels,
                                           const cup_norm_layer_options *options);
CUP_API cup_tensor *cup_batchnorm_layer_call(const cup_batchnorm_layer *layer, cup_tensor *x);

/* With what stands behind it in one pass: the layer's result plus a residual of the shape of x,
 * which may be NULL, and where `relu` is set 0 for what of that is below 0. */
CUP_API cup_tensor *cup_batchnorm_layer_join(const cup_batchnorm_layer *layer, cup_tensor *x,
                                             cup_tensor *residual, bool relu);

/* The layer behind a convolution, as cup_batchnorm_layer_join of what that makes of x: in training
 * a GPU gathers the statistics while the convolution writes its result, of f16 and bf16 with whole
 * lines of 128 places, so that it is read once. x lies as this layer takes it: [N,in,H,W], or with
 * channels_last [N,H,W,in]. */
CUP_API cup_tensor *cup_batchnorm_layer_behind(const cup_batchnorm_layer *layer,
                                               const cup_conv2d_layer *conv, cup_tensor *x,
                                               cup_tensor *residual, bool relu);

/* For inference: the convolution as it is with this layer behind it out of training, whose running
 * statistics and weights become part of its weight and of a bias. Both are then tensors of the
 * caller, who frees them behind the last call; those of the list stay as they are. */
CUP_API cup_status cup_batchnorm_layer_fold(const cup_batchnorm_layer *layer,
                                            cup_conv2d_layer *conv);

/* See cup_groupnorm; the groups divide the channels. */
typedef struct cup_groupnorm_layer {
    cup_layer layer;
    cup_tensor *weight, *bias;
    double epsilon;
    int groups, axis;
} cup_groupnorm_layer;

CUP_API cup_status cup_groupnorm_layer_new(cup_groupnorm_layer *layer, cup_parameters *list,
                                           const char *name, int64_t channels, int64_t groups,
                                           const cup_norm_layer_options *options);
CUP_API cup_tensor *cup_groupnorm_layer_call(const cup_groupnorm_layer *layer, cup_tensor *x);

#define CUP_RECURRENT_MOST 8 /* layers on each other */

/* Long short-term memory, and gated recurrent units, over the steps of x [T,N,in] to all h
 * [T,N,width], see cup_lstm and cup_gru: layers on each other and, where `both`, in both
 * directions, whose h lie side by side, [T,N,2 width]. Names and shapes are those of PyTorch:
 * "weight_ih_l0" [gates width,in], "weight_hh_l0", "bias_ih_l0" and "bias_hh_l0", with "_reverse"
 * behind those of the way back; all begin uniform between -+ 1 / sqrt(width). Weights have weight
 * decay. */
typedef struct cup_recurrent_layer {
    cup_layer layer;
    int layers, directions, gates;
    int64_t width;
    bool no_bias;
    double dropout;
    cup_tensor *weights[CUP_RECURRENT_MOST][2][4]; /* of each layer and direction */
} cup_recurrent_layer;
typedef cup_recurrent_layer cup_lstm_layer, cup_gru_layer;

typedef struct cup_recurrent_layer_options {
    size_t size;
    int layers;     /* 0: 1 */
    bool both;      /* directions */
    bool no_bias;
    double dropout; /* of what goes from layer to layer, in training */
} cup_recurrent_layer_options;

CUP_API cup_status cup_lstm_layer_new(cup_lstm_layer *layer, cup_parameters *list,
                                      const char *name, int64_t in, int64_t width,
                                      const cup_recurrent_layer_options *options);
CUP_API cup_tensor *cup_lstm_layer_call(const cup_lstm_layer *layer, cup_tensor *x);
CUP_API cup_status cup_gru_layer_new(cup_gru_layer *layer, cup_parameters *list, const char *name,
                                     int64_t in, int64_t width,
                                     const cup_recurrent_layer_options *options);
CUP_API cup_tensor *cup_gru_layer_call(const cup_gru_layer *layer, cup_tensor *x);

/* The same from h and cells [layers directions,N,width] on, those of a layer's directions one
 * behind the other; NULL: zeros. `out` takes all h, the last h of each, and the last cells, of
 * shapes as these; of a gru, which has no cells, NULL. */
CUP_API cup_status cup_lstm_layer_pass(const cup_lstm_layer *layer, cup_tensor *x, cup_tensor *h,
                                       cup_tensor *cells, cup_tensor *out[3]);
CUP_API cup_status cup_gru_layer_pass(const cup_gru_layer *layer, cup_tensor *x, cup_tensor *h,
                                      cup_tensor *out[2]);

/* A block of a transformer, each half behind a norm and added to what comes in:
 * h = x + attention(norm1(x)), y = h + mlp(norm2(h)). */
typedef struct cup_transformer_layer {
    cup_layer layer;
    cup_layernorm_layer norm1, norm2;         /* or, with rmsnorm, */
    cup_rmsnorm_layer rmsnorm1, rmsnorm2;     /* these; the names are "norm1" and "norm2" */
    cup_attention_layer attention;            /* "attention" */
    cup_mlp_layer mlp;                        /* "mlp" */
    bool rms;
    double dropout;
    bool mixed;                               /* in place of the MLP there are */
    cup_experts_layer experts;                /* these, "mlp" too */
} cup_transformer_layer;

typedef struct cup_transformer_layer_options {
    size_t size;
    int64_t kv_heads;
    bool causal, rope;
    double rope_base;
    bool rmsnorm;              /* else layernorm */
    double epsilon;            /* of the norms; 0: 1e-5 */
    cup_activation activation; /* of the MLP; NONE: GELU */
    int64_t hidden;            /* width inside the MLP; 0: 4 width, with SWIGLU 8/3 width */
    double dropout;            /* of what each half adds and of probabilities, in training */
    bool no_bias;
    double deviation; /* of all matrices, which are normal; 0: 0.02 */
    int64_t layers;   /* of the model: what leads back to the residual stream begins smaller, by
                         sqrt(2 layers); 0: it does not */
    int64_t head_size; /* these as in cup_attention_layer_options */
    bool qk_norm;
    cup_rope_scaling rope_scaling;
    /* Of experts in place of the MLP, see cup_experts_layer: how many, 0 being none, and how many
     * of them a row goes through; the rest as in cup_experts_layer_options. They have no biases. */
    int64_t experts, experts_each;
    double capacity, balance, router_z;
    int64_t window; /* these as in cup_attention_layer_options */
    double soft_cap;
    bool alibi, sinks;
} cup_transformer_layer_options;

CUP_API cup_status cup_transformer_layer_new(cup_transformer_layer *layer, cup_parameters *list,
                                             const char *name, int64_t width, int64_t heads,
                                             const cup_transformer_layer_options *options);
CUP_API cup_tensor *cup_transformer_layer_call(const cup_transformer_layer *layer, cup_tensor *x);

/* The tensors of such a block, [outputs, inputs] where they are matrices; what it has not is
 * NULL. */
typedef struct cup_transformer_tensors {
    size_t size;                    /* see CUP_OPTIONS */
    cup_tensor *norm1, *norm1_bias; /* [width] */
    cup_tensor *qkv, *qkv_bias;     /* queries of all heads, then keys, then values */
    cup_tensor *out, *out_bias;     /* [width, heads head_size] */
    cup_tensor *norm2, *norm2_bias;
    cup_tensor *up, *up_bias;     /* [hidden, width]; SWIGLU: the gates, then the values */
    cup_tensor *down, *down_bias; /* [width, hidden] */
    cup_tensor *q_norm, *k_norm;  /* [head_size], with qk_norm */
    cup_tensor *router; /* of experts: up and down are then [experts,hidden,width] and
                           [experts,width,hidden], without biases */
    cup_tensor *sinks;  /* [heads] */
} cup_transformer_tensors;

/* A block of tensors that are in the list already, under names of the caller's choice. Of the
 * options those that say how tensors are made do not matter. */
CUP_API cup_status cup_transformer_layer_of(cup_transformer_layer *layer, cup_parameters *list,
                                            const cup_transformer_tensors *tensors, int64_t heads,
                                            const cup_transformer_layer_options *options);

/* The block within a stack of them, where the last sum of one and the first norm of the next are
 * one op: its input is x and *delta, the sum of which has not been made yet (NULL: x alone), and so
 * is what it returns and *delta then. Dropout of *delta is left to whoever adds it, too. */
CUP_API cup_tensor *cup_transformer_layer_pass(const cup_transformer_layer *layer, cup_tensor *x,
                                               cup_tensor **delta);

/* The same; *cost becomes what experts add to the loss, see cup_experts_layer_pass, or NULL. */
CUP_API cup_tensor *cup_transformer_layer_pass_cost(const cup_transformer_layer *layer,
                                                    cup_tensor *x, cup_tensor **delta,
                                                    cup_tensor **cost);

/* The same of x [B,T,width] that follows `used` positions which were read before, causal: their
 * keys and values, in front in `keys` and `values` [B,kv_heads,length,head size] of the same dtype,
 * are attended to, and those of x are put behind them. Nothing is recorded. CUP_STATE where there
 * is no room for T more. */
CUP_API cup_tensor *cup_transformer_layer_read(const cup_transformer_layer *layer, cup_tensor *x,
                                               cup_tensor **delta, cup_tensor *keys,
                                               cup_tensor *values, int64_t used);

/* The same where `gone` positions were read before those, whose keys and values are kept no longer:
 * the layer's window hides them from x. CUP_ARGUMENT where it does not. */
CUP_API cup_tensor *cup_transformer_layer_read_window(const cup_transformer_layer *layer,
                                                      cup_tensor *x, cup_tensor **delta,
                                                      cup_tensor *keys, cup_tensor *values,
                                                      int64_t used, int64_t gone);

/* The same of one row a text, x [B,1,width], which stands at `position` on the device: i32 or i64,
 * one number for all texts or one for each, see cup_qkv_attention_read. So the call can be captured
 * in a graph (cupola/graph.h) and replayed at one position after the other. */
CUP_API cup_tensor *cup_transformer_layer_read_at(const cup_transformer_layer *layer, cup_tensor *x,
                                                  cup_tensor **delta, cup_tensor *keys,
                                                  cup_tensor *values, cup_tensor *position);

/* The same where the first positions are kept no longer, as the layer's window hides them: the new
 * key and value are put at `place`, which has as many numbers as the position, of its dtype. */
CUP_API cup_tensor *cup_transformer_layer_read_window_at(const cup_transformer_layer *layer,
                                                         cup_tensor *x, cup_tensor **delta,
                                                         cup_tensor *keys, cup_tensor *values,
                                                         cup_tensor *position, cup_tensor *place);

/* The same as cup_transformer_layer_read with keys and values that a cup_kv_cache has as its layer
 * `index`, see cupola/kv_cache.h, of codes, in pages or neither. All its sequences have `used`
 * positions, and who calls it for all layers advances it then. CUP_UNSUPPORTED with alibi. */
struct cup_kv_cache;
CUP_API cup_tensor *cup_transformer_layer_read_kept(const cup_transformer_layer *layer,
                                                    cup_tensor *x, cup_tensor **delta,
                                                    struct cup_kv_cache *kept, int64_t index,
                                                    int64_t used);

/* The same where each sequence has as many positions as cup_kv_cache_lengths says on the device, so
 * that the call can be captured in a graph. CUP_UNSUPPORTED with dynamic rotary positions. */
CUP_API cup_tensor *cup_transformer_layer_read_kept_at(const cup_transformer_layer *layer,
                                                       cup_tensor *x, cup_tensor **delta,
                                                       struct cup_kv_cache *kept, int64_t index);

#ifdef __cplusplus
}
#endif
#endif

/* The inside of a network that is described in a text. */
#ifndef CUP_NN_NETWORK_H
#define CUP_NN_NETWORK_H

#include "cupola/network.h"

typedef enum cup__step_kind {
    CUP__STEP_CONV,
    CUP__STEP_CONVTRANSPOSE,
    CUP__STEP_LINEAR,
    CUP__STEP_BATCHNORM,
    CUP__STEP_LAYERNORM,
    CUP__STEP_GROUPNORM,
    CUP__STEP_RELU,
    CUP__STEP_GELU,
    CUP__STEP_SILU,
    CUP__STEP_TANH,
    CUP__STEP_SIGMOID,
    CUP__STEP_LEAKYRELU,
    CUP__STEP_ELU,
    CUP__STEP_HARDSWISH,
    CUP__STEP_MISH,
    CUP__STEP_SOFTPLUS,
    CUP__STEP_LOCALRESPONSENORM,
    CUP__STEP_DROPOUT,
    CUP__STEP_MAXPOOL,
    CUP__STEP_AVGPOOL,
    CUP__STEP_GLOBALPOOL,
    CUP__STEP_ADAPTIVEPOOL,
    CUP__STEP_UPSAMPLE,
    CUP__STEP_PIXELSHUFFLE,
    CUP__STEP_FLATTEN,
    CUP__STEP_SCALE,
    CUP__STEP_TOKENS,
    CUP__STEP_CLASSTOKEN,
    CUP__STEP_POSITIONS,
    CUP__STEP_TRANSFORMER,
    CUP__STEP_FIRSTTOKEN,
    CUP__STEP_MEANTOKENS,
    CUP__STEP_RESIDUAL,
    CUP__STEP_SHORTCUT,
    CUP__STEP_REPEAT,
    CUP__STEP_KEEP,
    CUP__STEP_CONCAT,
    CUP__STEP_END
} cup__step_kind;

#define CUP__NETWORK_NAME 32
#define CUP__NETWORK_NAMES 64 /* of results that are kept */
#define CUP__NETWORK_SIZE (INT64_C(1) << 30)

/* A line of the description: what is 0 was not given. */
typedef struct cup__network_line {
    cup__step_kind kind;
    int number;     /* of the line, from 1 */
    int64_t count;  /* the number behind the word; -1 `classes`, -2 `same` */
    double part;    /* the same, not whole */
    bool has_number;
    int64_t kernel, stride, padding, groups, heads, hidden; /* padding -1: not given, -2 `same` */
    int64_t dilation, more;                                 /* more: outpadding= */
    double dropout, alpha, beta, bias;                      /* below 0: not given, but dropout */
    int mode; /* of the words that the layer has for mode= */
    char name[CUP__NETWORK_NAME];
    bool no_bias;
    unsigned given; /* a bit for each option that stands there */
} cup__network_line;

/* What stands between two steps: height 0 where it is no image, tokens 0 where they are none. */
typedef struct cup__network_shape {
    int64_t height, width, tokens, channels;
} cup__network_shape;

typedef struct cup__network_step {
    cup__step_kind kind;
    int64_t window, stride, padding;
    int64_t dilation, size[2]; /* of images, see network_images.c */
    int groups, mode, slot;            /* slot: of keep and concat */
    double numbers[3];                 /* of an activation or a norm without tensors */
    bool folded;        /* a conv with the batchnorm behind it, whose tensors are the step's */
    bool sized;         /* a linear that has as many results as there are classes */
    cup_tensor *tensor; /* of scale, classtoken and positions */
    int64_t places[2], before; /* of positions: of the image that was made tokens, behind so many */
    union {
        cup_layer layer; /* what the others begin with */
        cup_conv2d_layer conv;
        cup_conv_transpose_layer transposed;
        cup_linear_layer linear;
        cup_batchnorm_layer batchnorm;
        cup_layernorm_layer layernorm;
        cup_groupnorm_layer groupnorm;
        cup_dropout_layer dropout;
        cup_transformer_layer transformer;
    } as;
} cup__network_step;

struct cup_network {
    cup_context *c;
    cup__network_step *steps;
    int count, room;
    cup_network_sizes sizes;
};

#define CUP__NETWORK_DEPTH 32 /* of residuals and repeats in each other */

/* A residual or a repeat that is open. */
typedef struct cup__network_frame {
    const cup__network_line *line;
    int begin;      /* of a repeat, and how often more */
    int64_t left;
    cup__network_shape before, after; /* of a residual; `after` behind its shortcut */
    bool has_shortcut;
} cup__network_frame;

typedef struct cup__network_making {
    cup_network *n;
    cup_parameters *list;
    cup__network_shape now;
    int64_t places[2]; /* of the image that became tokens last */
    cup__network_frame frames[CUP__NETWORK_DEPTH];
    int depth;
    int made[CUP__STEP_END + 1]; /* layers of each kind so far */
    const char *names[CUP__NETWORK_NAMES]; /* under which results were kept, and those */
    cup__network_shape kept[CUP__NETWORK_NAMES];
    int name_count;
} cup__network_making;

/* Fails with what the line gets and why it does not take that. */
cup_status cup__network_refuse(const cup__network_making *m, const cup__network_line *l,
                               const char *why);
/* Makes a step that takes images and gives others. */
cup_status cup__network_image_step(cup__network_making *m, const cup__network_line *l,
                                   cup__network_step *s, const char *name);
/* What such a step, but for a convolution and poolings, makes of x. */
cup_tensor *cup__network_image_call(cup_context *c, const cup__network_step *s, cup_tensor *x);

/* Reads the description into lines, which are the caller's to be freed. */
cup_status cup__network_read(cup_context *c, const char *text, cup__network_line **lines,
                             int *count);
/* Whether a tensor of the network has its size from the number of classes; and the table of
 * positions of another network of the same text, for images of any size, as it would be in the
 * place of one of this network. NULL: the tensor is no such table. */
bool cup__network_is_sized(const cup_network *n, const cup_tensor *t);
cup_tensor *cup__network_positions(const cup_network *n, const cup_tensor *t,
                                   const cup_network *from);
/* The word of a kind of line. */
const char *cup__network_word(cup__step_kind kind);

#endif

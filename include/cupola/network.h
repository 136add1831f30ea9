/* cupola/network.h: a network for images that is described in a text, one layer a line:
 *
 *     conv 32             # 32 channels by a window of 3 x 3; kernel=K stride=S padding=P groups=G
 *     batchnorm
 *     relu
 *     maxpool 2
 *     flatten
 *     dropout 0.1
 *     linear classes
 *
 * The layers, each of which takes what the one before it gives:
 * - of images: conv N (N or `same`; also kernel=, stride=, padding=, dilation=, groups=, nobias;
 *   mode=reflect, replicate or circular: what padding consists of; without padding= images stay as
 *   large where the stride is 1, and with padding=same they have a place for each stride),
 *   convtranspose N (kernel= and stride=, 2 each, padding=, outpadding=, dilation=, groups=,
 *   nobias; without padding=, or with padding=same, sides become as many times longer as the stride
 *   says; padding cuts places off, so that there is no mode=), maxpool K,
 *   avgpool K (stride=, padding=), adaptivepool N, the mean, or with mode=max the largest, of each
 *   of N x N windows, globalpool, the mean of each channel, upsample F (mode=bilinear or bicubic),
 *   pixelshuffle F, localresponsenorm N of N channels (alpha=, beta=, k=, see
 *   cup_local_response_norm; 0.0001, 0.75 and 1), and tokens, which makes each place a token;
 * - of tokens: classtoken, which puts one more before them, positions, transformer heads=H (also
 *   hidden=N, dropout=P), firsttoken and meantokens, which make one of them;
 * - of any: batchnorm, layernorm, groupnorm N, relu, gelu, silu, tanh, sigmoid, leakyrelu (or
 *   leakyrelu SLOPE; 0.01), elu (or elu ALPHA; 1), hardswish, mish, softplus, dropout P, linear N
 *   (or `classes`; nobias), scale X, a learned factor for each channel that begins with X, and
 *   flatten;
 * - residual ... end adds what comes in to what the lines between make of it, and
 *   residual ... shortcut ... end what the lines behind shortcut make of it;
 * - keep NAME gives a name, of up to 31 letters, to what comes in, and concat NAME puts the
 *   channels of what was kept last under that name before those of what comes in: a U-Net keeps
 *   what it makes smaller, a DenseNet all there was;
 * - repeat N ... end stands for the lines between N times; there are at most 4096 layers in all.
 * Behind # is a comment. */
#ifndef CUPOLA_NETWORK_H
#define CUPOLA_NETWORK_H

#include "cupola/layers.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cup_network cup_network;

/* What goes into a network, and how many numbers come out of it. */
typedef struct cup_network_sizes {
    size_t size; /* see CUP_OPTIONS */
    int64_t height, width, channels, classes; /* classes 0: images come out of it */
} cup_network_sizes;

/* A network of images [N,height,width,channels] in the list's dtype to [N,classes]; or without
 * classes to images [N,H,W,C] of the size and with the channels that its text ends with, one for
 * each class of places where it tells these apart, or those that go in where it makes images again.
 * Its tensors are made in the list, called after their layers, "conv1.weight". Fails with
 * CUP_FORMAT and the line where the text cannot be read, or a layer does not take what it would
 * get. Free it before the list. */
CUP_API cup_network *cup_network_new(cup_context *c, cup_parameters *list, const char *text,
                                     const cup_network_sizes *sizes);
CUP_API void cup_network_free(cup_network *network);

/* Images that lie row by row, with their channels last; so do those that come out. */
CUP_API cup_tensor *cup_network_call(const cup_network *network, cup_tensor *x);

/* For inference alone: a batchnorm right behind a convolution becomes part of its weight and of a
 * bias, as it is out of training, and what follows, the end of a residual and relu, gelu or silu,
 * goes with it in one pass. The tensors of the list stay as they are, and what is written to them
 * later is not seen. Free the network before the context. */
CUP_API cup_status cup_network_fold(cup_network *network);

/* The names of the networks that are known, "mlp", "cnn", "resnet18", "resnet50", "vit-s",
 * "convnext-t", ending with NULL; and the text of one, for images of a size, since small ones are
 * not made smaller at once. Written into `text` of `bytes` bytes, of which 4096 are enough;
 * CUP_ARGUMENT where there is no network of the name, or no room. */
CUP_API const char *const *cup_network_names(void);
CUP_API cup_status cup_network_text(cup_context *c, const char *name, int64_t height,
                                    int64_t width, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif

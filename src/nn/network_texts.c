/* The networks that are known by name, as descriptions. */
#include <stdio.h>
#include <string.h>

#include "nn/network.h"

/* Images with a side below this keep their size at first. */
#define SMALL 64

#define MLP                                                                                        \
    "flatten\nlinear 512\nrelu\ndropout 0.2\nlinear 256\nrelu\ndropout 0.2\nlinear classes\n"

/* Three windows of 3 x 3, each before a pooling, as in many first networks. */
#define CNN                                                                                        \
    "conv 16 nobias\nbatchnorm\nrelu\nmaxpool 2\nconv 32 nobias\nbatchnorm\nrelu\nmaxpool 2\n"    \
    "conv 64 nobias\nbatchnorm\nrelu\nmaxpool 2\nflatten\nlinear 128\nrelu\nlinear classes\n"

/* He, Zhang, Ren and Sun 2016, "Deep residual learning for image recognition". */
#define RESNET_STEM                                                                                \
    "conv 64 kernel=7 stride=2 nobias\nbatchnorm\nrelu\nmaxpool 3 stride=2 padding=1\n"
#define RESNET_SMALL "conv 64 nobias\nbatchnorm\nrelu\n"
#define BASIC(width, stride)                                                                       \
    "conv " width " stride=" stride " nobias\nbatchnorm\nrelu\nconv " width " nobias\nbatchnorm\n"
#define BASIC_SAME(width) "residual\n" BASIC(width, "1") "end\nrelu\n"
#define BASIC_HALF(width)                                                                          \
    "residual\n" BASIC(width, "2") "shortcut\nconv " width                                         \
    " kernel=1 stride=2 nobias\nbatchnorm\nend\nrelu\n" BASIC_SAME(width)
#define RESNET18                                                                                   \
    "repeat 2\n" BASIC_SAME("64") "end\n" BASIC_HALF("128") BASIC_HALF("256") BASIC_HALF("512")    \
    "globalpool\nlinear classes\n"

/* The stride stands in the window of 3 x 3, as others have it since. */
#define NECK(width, stride, wide)                                                                  \
    "conv " width " kernel=1 nobias\nbatchnorm\nrelu\nconv " width " stride=" stride               \
    " nobias\nbatchnorm\nrelu\nconv " wide " kernel=1 nobias\nbatchnorm\n"
#define NECKS(width, stride, wide, more)                                                           \
    "residual\n" NECK(width, stride, wide) "shortcut\nconv " wide " kernel=1 stride=" stride       \
    " nobias\nbatchnorm\nend\nrelu\nrepeat " more "\nresidual\n" NECK(width, "1", wide)            \
    "end\nrelu\nend\n"
#define RESNET50                                                                                   \
    NECKS("64", "1", "256", "2") NECKS("128", "2", "512", "3") NECKS("256", "2", "1024", "5")      \
    NECKS("512", "2", "2048", "2") "globalpool\nlinear classes\n"

/* Pieces of an image side by side. */
#define PATCHES(width, side) "conv " width " kernel=" side " stride=" side " padding=0\n"

/* Dosovitskiy and others 2021, "An image is worth 16x16 words". */
#define VIT                                                                                        \
    "tokens\nclasstoken\npositions\nrepeat 12\ntransformer heads=6\nend\nlayernorm\n"              \
    "firsttoken\nlinear classes\n"

/* Liu and others 2022, "A ConvNet for the 2020s". */
#define NEXT(width, times, hidden)                                                                 \
    "repeat " times "\nresidual\nconv same kernel=7 groups=" width "\nlayernorm\nlinear " hidden   \
    "\ngelu\nlinear " width "\nscale 1e-6\nend\nend\n"
#define NEXT_HALF(width) "layernorm\nconv " width " kernel=2 stride=2 padding=0\n"
#define CONVNEXT                                                                                   \
    "layernorm\n" NEXT("96", "3", "384")                                                           \
    NEXT_HALF("192") NEXT("192", "3", "768") NEXT_HALF("384") NEXT("384", "9", "1536")             \
    NEXT_HALF("768") NEXT("768", "3", "3072") "globalpool\nlayernorm\nlinear classes\n"

static const char *const names[] = {"mlp",   "cnn",        "resnet18", "resnet50",
                                    "vit-s", "convnext-t", NULL};

/* How it begins of small images, and of others; and how it goes on. */
static const char *const texts[][3] = {
    {"", "", MLP},
    {"", "", CNN},
    {RESNET_SMALL, RESNET_STEM, RESNET18},
    {RESNET_SMALL, RESNET_STEM, RESNET50},
    {PATCHES("384", "4"), PATCHES("384", "16"), VIT},
    {PATCHES("96", "2"), PATCHES("96", "4"), CONVNEXT}};

const char *const *cup_network_names(void)
{
    return names;
}

cup_status cup_network_text(cup_context *c, const char *name, int64_t height, int64_t width,
                            char *text, size_t bytes)
{
    bool large = height >= SMALL && width >= SMALL;
    if (!c)
        return CUP_MEMORY;
    if (cup_error(c) != CUP_OK)
        return cup_error(c);
    if (!text)
        return cup_fail(c, CUP_ARGUMENT, "the place for the text of a network is NULL");
    for (int i = 0; name && names[i]; i++) {
        if (strcmp(names[i], name) != 0)
            continue;
        int length = snprintf(text, bytes, "%s%s", texts[i][large], texts[i][2]);
        return length >= 0 && (size_t)length < bytes
                   ? CUP_OK
                   : cup_fail(c, CUP_ARGUMENT, "the network %s takes %d bytes", name, length + 1);
    }
    return cup_fail(c, CUP_ARGUMENT,
                    "\"%.40s\" is no network; there are mlp, cnn, resnet18, resnet50, vit-s and "
                    "convnext-t",
                    name ? name : "");
}

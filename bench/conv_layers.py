"""The convolutions of known networks, and the calls of them that rows.py has."""
import torch
import torch.nn.functional as F

from row import ATEN, Row, random

# Images, channels, side, results, kernel, stride, groups: ResNet-50's layers, the depthwise ones of
# ConvNeXt-T, and a wide one.
CONVOLUTIONS = (
    (32, 64, 128, 128, 3, 1, 1), (64, 3, 224, 64, 7, 2, 1),
    (64, 64, 56, 64, 1, 1, 1), (64, 64, 56, 64, 3, 1, 1), (64, 64, 56, 256, 1, 1, 1),
    (64, 256, 56, 64, 1, 1, 1), (64, 256, 56, 128, 1, 1, 1), (64, 128, 56, 128, 3, 2, 1),
    (64, 128, 28, 512, 1, 1, 1), (64, 256, 56, 512, 1, 2, 1), (64, 512, 28, 128, 1, 1, 1),
    (64, 128, 28, 128, 3, 1, 1), (64, 512, 28, 256, 1, 1, 1), (64, 256, 28, 256, 3, 2, 1),
    (64, 256, 14, 1024, 1, 1, 1), (64, 512, 28, 1024, 1, 2, 1), (64, 1024, 14, 256, 1, 1, 1),
    (64, 256, 14, 256, 3, 1, 1), (64, 1024, 14, 512, 1, 1, 1), (64, 512, 14, 512, 3, 2, 1),
    (64, 512, 7, 2048, 1, 1, 1), (64, 1024, 14, 2048, 1, 2, 1), (64, 2048, 7, 512, 1, 1, 1),
    (64, 512, 7, 512, 3, 1, 1), (64, 96, 56, 96, 7, 1, 96), (64, 192, 28, 192, 7, 1, 192),
    (64, 384, 14, 384, 7, 1, 384), (64, 768, 7, 768, 7, 1, 768))
# A U-Net of Ronneberger, Fischer and Brox 2015 on 64 images of 128x128, padded; those of stride 2
# are its transposed ones, whose forward is the gradient of the image here.
UNET = (
    (64, 3, 128, 64, 3, 1, 1), (64, 64, 128, 64, 3, 1, 1), (64, 64, 64, 128, 3, 1, 1),
    (64, 128, 64, 128, 3, 1, 1), (64, 128, 32, 256, 3, 1, 1), (64, 256, 32, 256, 3, 1, 1),
    (64, 256, 16, 512, 3, 1, 1), (64, 512, 16, 512, 3, 1, 1), (64, 512, 8, 1024, 3, 1, 1),
    (64, 1024, 8, 1024, 3, 1, 1), (64, 512, 16, 1024, 2, 2, 1), (64, 1024, 16, 512, 3, 1, 1),
    (64, 256, 32, 512, 2, 2, 1), (64, 512, 32, 256, 3, 1, 1), (64, 128, 64, 256, 2, 2, 1),
    (64, 256, 64, 128, 3, 1, 1), (64, 64, 128, 128, 2, 2, 1), (64, 128, 128, 64, 3, 1, 1),
    (64, 64, 128, 2, 1, 1, 1))
# In f32: the wide one, those of ResNet-50 with windows of nine places, and three of one place.
F32 = (
    (32, 64, 128, 128, 3, 1, 1), (64, 64, 56, 64, 3, 1, 1), (64, 128, 28, 128, 3, 1, 1),
    (64, 128, 56, 128, 3, 2, 1), (64, 256, 14, 256, 3, 1, 1), (64, 512, 7, 512, 3, 1, 1),
    (64, 256, 56, 64, 1, 1, 1), (64, 64, 56, 256, 1, 1, 1), (64, 1024, 14, 256, 1, 1, 1))


def images(shape, d, last):
    """A tensor of images or kernels, with its channels last or first."""
    x = random(shape, d)
    return x.contiguous(memory_format=torch.channels_last) if last else x


def as_cudnn_may(rounds, run):
    """A call whose f32 products cuDNN may round to tf32, or may not."""
    def call():
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, rounds
        return run()
    return call


def convolution(d, x, w, stride, groups, last=True, rounds=True):
    x, w = images(x, d, last), images(w, d, last)
    return as_cudnn_may(rounds, lambda: F.conv2d(x, w, None, stride, (w.shape[2] - 1) // 2, 1,
                                                 groups))


def convolution_grad(d, dy, x, w, stride, groups, which, last=True, rounds=True):
    x, w, dy = images(x, d, last), images(w, d, last), images(dy, d, last)
    pad = (w.shape[2] - 1) // 2
    return as_cudnn_may(rounds, lambda: ATEN.convolution_backward(
        dy, x, w, None, [stride] * 2, [pad] * 2, [1] * 2, False, [0] * 2, groups,
        which)[0 if which[0] else 1])


def conv_rows(layers=CONVOLUTIONS, dtype="bf16", precision="highest", last=True):
    how = {"last": last, "rounds": precision != "highest"}
    more = {"channels_last": last, "exact": False, "precision": precision,
            "name": {"f32": "cuDNN tf32" if how["rounds"] else "cuDNN f32"}.get(dtype, "torch")}
    for n, c, side, o, k, stride, groups in layers:
        out = (side - 1) // stride + 1
        x, w, y = (n, c, side, side), (o, c // groups, k, k), (n, o, out, out)
        text = f"stride={stride} padding={(k - 1) // 2} same=0 dilation=1 groups={groups}"
        shown = ["x".join(map(str, s)) for s in (x, w, y)]
        yield Row("conv2d", f"{shown[0]} {shown[1]} -", dtype,
                  lambda d, x, w, _, s=stride, g=groups: convolution(d, x, w, s, g, **how), text,
                  **more)
        yield Row("conv2d_input_grad", f"{shown[2]} {shown[1]}", dtype,
                  lambda d, dy, w, x=x, s=stride, g=groups: convolution_grad(
                      d, dy, x, w, s, g, [True, False, False], **how),
                  f"{text} height={side} width={side}", **more)
        yield Row("conv2d_weight_grad", f"{shown[2]} {shown[0]}", dtype,
                  lambda d, dy, x, w=w, s=stride, g=groups: convolution_grad(
                      d, dy, x, w, s, g, [False, True, False], **how),
                  f"{text} kernel={k}", **more)


def conv_f32_rows():
    """At full accuracy and rounded, with the channels of images last, and first."""
    yield from conv_rows(F32, "f32")
    yield from conv_rows(F32, "f32", "high")
    yield from conv_rows(F32[:1], "f32", "highest", False)
    yield from conv_rows(F32[:1], "f32", "high", False)

"""What bench/images_asked.c times, in PyTorch: ResNet-50 looking at images of 224 x 224 in bf16 that
lie on the device, channels last, cuDNN in benchmark mode, with its batchnorms as they are and
folded; call by call, as a graph, and compiled by torch.compile where that is asked for.

    python3 bench/images_asked_peer.py [--batch N...] [--seconds 1] [--compile]"""
import argparse
import copy
import time

import torch
from torch.nn.utils.fusion import fuse_conv_bn_eval

from images_peer import SIDE, Bottleneck, resnet50

TURNS = 5


def folded(model):
    model = copy.deepcopy(model)
    model[0], model[1] = fuse_conv_bn_eval(model[0], model[1]), torch.nn.Identity()
    for block in model:
        if not isinstance(block, Bottleneck):
            continue
        for i, name in enumerate(("one", "two", "three")):
            setattr(block, name, fuse_conv_bn_eval(getattr(block, name), block.norms[i]))
            block.norms[i] = torch.nn.Identity()
        if block.shortcut:
            block.shortcut = fuse_conv_bn_eval(block.shortcut[0], block.shortcut[1])
    return model


def captured(model, x):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x)
    return graph.replay


def time_of(call, seconds):
    count = 1
    while True:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize()
        took = time.perf_counter() - start
        if took >= seconds:
            return took / count
        count *= 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, nargs="+", default=[64])
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--compile", action="store_true")
    given = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    last = {"device": "cuda", "dtype": torch.bfloat16, "memory_format": torch.channels_last}
    with torch.inference_mode():
        plain = resnet50().eval()
        models = {"": plain.to(**last), ", folded": folded(plain.float().cpu()).to(**last)}
        plain.to(**last)
        for batch in given.batch:
            x = torch.randn(batch, 3, SIDE, SIDE).to(**last)
            ways = {}
            for name, model in models.items():
                ways["calls" + name] = lambda model=model: model(x)
                ways["graph" + name] = captured(model, x)
            if given.compile:
                made = torch.compile(models[", folded"])
                made(x)
                ways["compiled, folded"] = lambda: made(x)
                ways["compiled, folded, graph"] = captured(made, x)
            best = {name: float("inf") for name in ways}
            for _ in range(TURNS):
                for name, call in ways.items():
                    best[name] = min(best[name], time_of(call, given.seconds / TURNS))
            print(f"PyTorch resnet50 batch {batch}:",
                  *(f"{name} {t * 1e3:.3f} ms {batch / t:.0f} images/s;"
                    for name, t in best.items()), flush=True)


if __name__ == "__main__":
    main()

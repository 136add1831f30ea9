"""Times convolutions on a CPU beside PyTorch's, which are oneDNN's, in one process and in turns.

    python3 bench/conv_cpu.py [--lib build/libcupola.so] [--threads 2] [--batch 1 16] [--rounds 40]

The layers are those of ResNet-18 at 224x224, in f32, forward and both gradients, with channels last
and first. Of each call the least time counts, since whatever else the machine does only adds to
it: a row is done when neither has become less in --rounds turns. The exit code is 1 where ours takes
over --goal times as long. On a machine that is never idle --cpu-time with one thread leaves out when
others had the core.
"""
import argparse
import ctypes
import math
import os
import sys
import time

import torch

from library import ContextOptions
from oracle_binding import Library, rows_of

# channels, side of the image, results, kernel, stride
LAYERS = [(3, 224, 64, 7, 2), (64, 56, 64, 3, 1), (64, 56, 128, 3, 2), (64, 56, 128, 1, 2),
          (128, 28, 128, 3, 1), (128, 28, 256, 3, 2), (128, 28, 256, 1, 2), (256, 14, 256, 3, 1),
          (256, 14, 512, 3, 2), (256, 14, 512, 1, 2), (512, 7, 512, 3, 1)]
WAYS = ("forward", "image", "weight")
ONE = ctypes.c_void_p * 1
clock = time.perf_counter


class Ours:
    """The tensors of a layer, which lie in memory as the peer's do."""

    def __init__(self, library, way, tensors, stride, last):
        self.library, self.lib, self.last = library, library.lib, last
        self.given = {"stride": (stride,), "padding": (tensors[1].shape[2] // 2,)}
        self.hold = [library.tensor(t.permute(0, 2, 3, 1) if last else t) for t in tensors]
        self.leaf = None if way == "forward" else self.hold[way == "weight"]
        if self.leaf:
            self.lib.cup_require_grad(self.leaf)

    def views(self):
        """With channels last, what lies so is seen as [N,C,H,W], gradients on their way, too."""
        return [self.library.call("permute", [t], {"axes": (0, 3, 1, 2)})[0] if self.last else t
                for t in self.hold]

    def time(self):
        x, w, dy = self.views()
        begin = clock()
        y = self.library.call("conv2d", [x, w], self.given)[0]
        if self.leaf:
            begin = clock()
            good = self.lib.cup_backward_from(self.library.c, ONE(y), ONE(dy), 1) == 0
            self.library.check(good)
        spent = clock() - begin
        result = self.library.read(
            ctypes.c_void_p(self.lib.cup_grad(self.leaf)) if self.leaf else y)
        if self.last and self.leaf:
            result = result.permute(0, 3, 1, 2)
        if self.leaf:
            self.lib.cup_grad_clear(self.leaf)
        for t in [y] + [t for t in (x, w, dy) if self.last]:
            self.lib.cup_tensor_free(t)
        return spent, result

    def free(self):
        for t in self.hold:
            self.lib.cup_tensor_free(t)


def time_peer(way, x, w, dy, stride):
    steps, padding = [stride] * 2, [w.shape[2] // 2] * 2
    begin = clock()
    if way == "forward":
        result = torch.conv2d(x, w, None, steps, padding)
    else:
        mask = [way == "image", way == "weight", False]
        result = torch.ops.aten.convolution_backward(dy, x, w, None, steps, padding, [1, 1], False,
                                                     [0, 0], 1, mask)[0 if mask[0] else 1]
    return clock() - begin, result


def tensors_of(layer, batch, last):
    channels, side, results, kernel, stride = layer
    sizes = [(batch, channels, side, side), (results, channels, kernel, kernel),
             (batch, results, side // stride, side // stride)]
    form = torch.channels_last if last else torch.contiguous_format
    return [torch.randn(s).contiguous(memory_format=form) for s in sizes]


def time_layer(library, way, layer, batch, last, args):
    tensors = tensors_of(layer, batch, last)
    ours = Ours(library, way, tensors, layer[4], last)
    calls = [ours.time, lambda: time_peer(way, *tensors, layer[4])]
    least, since, results = [math.inf] * 2, 0, [None] * 2
    while since < args.rounds:
        since += 1
        for side in (0, 1):
            spent, results[side] = calls[side]()
            if spent < least[side] * 0.99:
                since = 0
            least[side] = min(least[side], spent)
            time.sleep(args.pause)  # until no thread of this one spins
    ours.free()
    error = float((results[0] - results[1]).abs().max() / results[1].abs().max())
    return least[0] * 1e6, least[1] * 1e6, error


def threads_of_process():
    return {int(name) for name in os.listdir("/proc/self/task")}


def pin(args, library):
    """Gives the threads of both sides the same cores: on a busy machine the system may else keep two
    of one side on one core."""
    cores, sides = sorted(os.sched_getaffinity(0)), [threads_of_process()]
    tensors = tensors_of(LAYERS[1], 4, True)
    ours = Ours(library, "forward", tensors, 1, True)
    for call in (lambda: time_peer("forward", *tensors, 1), ours.time):
        call()
        sides.append(threads_of_process())
    ours.free()
    os.sched_setaffinity(0, {cores[0]})
    for before, after in zip(sides, sides[1:]):
        for i, thread in enumerate(sorted(after - before)):
            os.sched_setaffinity(thread, {cores[(1 + i) % min(args.threads, len(cores))]})


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", default="build/libcupola.so")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--pause", type=float, default=0.003)
    parser.add_argument("--goal", type=float, default=1.3)
    parser.add_argument("--way", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--only", nargs="+", type=int, help="numbers of layers")
    return parser.parse_args()


def context(args):
    library = Library(args.lib, "cpu", rows_of("src/dispatch/ops.def"))
    library.lib.cup_context_free(library.c)
    library.c = ctypes.c_void_p(library.lib.cup_context_new(
        ctypes.byref(ContextOptions(device=b"cpu", threads=args.threads))))
    return library


def text_of(layer, batch):
    channels, side, results, kernel, stride = layer
    return f"{batch}x{channels}x{side}x{side} by {results}x{channels}x{kernel}x{kernel}, {stride}"


def main():
    global clock
    args = options()
    if args.cpu_time:
        clock = time.process_time
    torch.set_num_threads(args.threads)
    library, logs, slow = context(args), {}, False
    pin(args, library)
    for batch in args.batch:
        for layer in [LAYERS[i] for i in args.only or range(len(LAYERS))]:
            line = f"| {text_of(layer, batch)} |"
            for way in args.way:
                for last in (True, False):
                    ours, peer, error = time_layer(library, way, layer, batch, last, args)
                    ratio = ours / peer
                    slow |= ratio > args.goal
                    line += f" {ours:.0f} | {peer:.0f} | {ratio:.2f} |"
                    logs.setdefault((batch, way, last), []).append(math.log(ratio))
                    if error > 1e-4:
                        sys.exit(f"{line} results differ by {error}")
            print(line, flush=True)
    for (batch, way, last), all_of in logs.items():
        print(f"batch {batch} {way}, channels {'last' if last else 'first'}: mean "
              f"{math.exp(sum(all_of) / len(all_of)):.2f}, most {math.exp(max(all_of)):.2f}")
    sys.exit(slow)


if __name__ == "__main__":
    main()

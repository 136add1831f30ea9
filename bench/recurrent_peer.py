#!/usr/bin/env python3
"""cup_lstm and cup_gru, forward, beside PyTorch's layers, which are cuDNN's, in one process and by
turns. usage: bench/recurrent_peer.py build/libcupola.so [STEPSxROWSxSIZE ...]"""
import ctypes
import statistics
import sys
import time

import torch

from library import CODES, ContextOptions

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
GATES = {"lstm": 4, "gru": 3}


class Ours:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        for name in ("cup_context_new", "cup_zeros"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.lib.cup_error_text.restype = ctypes.c_char_p
        self.c = ctypes.c_void_p(self.lib.cup_context_new(
            ctypes.byref(ContextOptions(device=b"cuda"))))
        self.check()

    def check(self):
        if self.lib.cup_error(self.c):
            raise SystemExit(self.lib.cup_error_text(self.c).decode())

    def zeros(self, dtype, *shape):
        made = self.lib.cup_zeros(self.c, CODES[dtype], len(shape),
                                  (ctypes.c_int64 * len(shape))(*shape))
        self.check()
        return ctypes.c_void_p(made)

    def layer(self, kind, dtype, steps, rows, size):
        """A call of the layer that waits for its end."""
        gates, lib = GATES[kind] * size, self.lib
        x, h, cell = (self.zeros(dtype, *s) for s in ((steps, rows, size), (rows, size),
                                                      (rows, size)))
        weights = (ctypes.c_void_p * 2)(*(self.zeros(dtype, gates, size).value for _ in range(2)))
        state = [h, cell] if kind == "lstm" else [h]

        def run():
            out = (ctypes.c_void_p * 3)()
            lib.cup_scope_open(self.c)
            getattr(lib, "cup_" + kind)(self.c, x, *state, weights, 2, out)
            lib.cup_synchronize(self.c)
            lib.cup_scope_return(self.c, None)
            self.check()
        return run


def theirs(kind, dtype, steps, rows, size):
    layer = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind](size, size, bias=False)
    layer = layer.to("cuda", DTYPES[dtype])
    x = torch.zeros(steps, rows, size, device="cuda", dtype=DTYPES[dtype])

    def run():
        with torch.no_grad():
            layer(x)
        torch.cuda.synchronize()
    return run


def by_turns(calls, runs=30):
    times = [[] for _ in calls]
    for i in range(runs + 3):
        for call, to in zip(calls, times):
            begin = time.perf_counter()
            call()
            if i > 2:
                to.append((time.perf_counter() - begin) * 1e6)
    return [statistics.median(to) for to in times]


def main():
    ours = Ours(sys.argv[1])
    print("layer\tdtype\tsteps x rows x size\tours_us\tcudnn_us\tratio")
    for shape in sys.argv[2:] or ("64x32x256", "128x64x512", "128x64x1024"):
        sizes = [int(n) for n in shape.split("x")]
        for kind in GATES:
            for dtype in ("f32", "bf16"):
                mine, cudnn = by_turns([ours.layer(kind, dtype, *sizes),
                                        theirs(kind, dtype, *sizes)])
                print(f"{kind}\t{dtype}\t{shape}\t{mine:.1f}\t{cudnn:.1f}\t{cudnn / mine:.2f}",
                      flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""cup_lstm and cup_gru, forward, beside PyTorch's layers, which are cuDNN's where it takes the
dtype, in one process and by turns: called one by one, and replayed from a captured graph. All have
the same random numbers; the errors are the largest differences from PyTorch's layer in f64, in
parts of its largest element.
usage: bench/recurrent_peer.py build/libcupola.so [--shape STEPSxROWSxSIZE ...]"""
import argparse
import ctypes
import statistics
import time

import torch

from library import CODES, ContextOptions

DTYPES = {"f32": torch.float32, "tf32": torch.float32, "f16": torch.float16,
          "bf16": torch.bfloat16}
GATES = {"lstm": 4, "gru": 3}
LAYERS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}


class Ours:
    def __init__(self, path, device):
        self.lib, self.device = ctypes.CDLL(path), device
        for name in ("cup_context_new", "cup_tensor_from", "cup_capture_end", "cup_keep"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.lib.cup_error_text.restype = ctypes.c_char_p
        self.c = ctypes.c_void_p(self.lib.cup_context_new(
            ctypes.byref(ContextOptions(device=device.encode()))))
        self.check()

    def check(self):
        if self.lib.cup_error(self.c):
            raise SystemExit(self.lib.cup_error_text(self.c).decode())

    def tensor(self, dtype, values):
        host = values.detach().contiguous().cpu()
        made = self.lib.cup_tensor_from(self.c, CODES[dtype.replace("tf32", "f32")], host.dim(),
                                        (ctypes.c_int64 * host.dim())(*host.shape),
                                        ctypes.c_void_p(host.data_ptr()))
        self.check()
        return ctypes.c_void_p(made)

    def layer(self, kind, dtype, layer, x):
        """What calls the layer and returns its result, of all steps."""
        lib, first = self.lib, torch.zeros(x.shape[1], layer.hidden_size, dtype=x.dtype)
        lib.cup_precision(self.c, b"high" if dtype == "tf32" else b"highest")
        held = [self.tensor(dtype, t) for t in (x, first, first)]
        state = held[1:] if kind == "lstm" else held[1:2]
        weights = (ctypes.c_void_p * 4)(*(self.tensor(dtype, w).value
                                          for w in layer.parameters()))

        def call():
            out = (ctypes.c_void_p * 3)()
            getattr(lib, "cup_" + kind)(self.c, held[0], *state, weights, 4, out)
            self.check()
            return ctypes.c_void_p(out[0])
        return call

    def plain(self, call):
        def run():
            self.lib.cup_scope_open(self.c)
            call()
            self.lib.cup_synchronize(self.c)
            self.lib.cup_scope_return(self.c, None)
            self.check()
        return run

    def replayed(self, call):
        self.lib.cup_capture_begin(self.c)
        self.lib.cup_scope_open(self.c)
        call()
        self.lib.cup_scope_return(self.c, None)
        graph = ctypes.c_void_p(self.lib.cup_capture_end(self.c))
        self.check()

        def run():
            self.lib.cup_graph_launch(graph)
            self.lib.cup_synchronize(self.c)
        return run

    def result(self, call, like):
        self.lib.cup_scope_open(self.c)
        host = torch.empty(like.shape, dtype=like.dtype)
        self.lib.cup_tensor_read(call(), ctypes.c_void_p(host.data_ptr()),
                                 ctypes.c_size_t(host.numel() * host.element_size()))
        self.lib.cup_scope_return(self.c, None)
        self.check()
        return host


def by_turns(calls, runs=30):
    times = [[] for _ in calls]
    for i in range(runs + 3):
        for call, to in zip(calls, times):
            begin = time.perf_counter()
            call()
            if i > 2:
                to.append((time.perf_counter() - begin) * 1e6)
    return [statistics.median(to) for to in times]


def row(ours, kind, dtype, shape, device):
    steps, rows, size = (int(n) for n in shape.split("x"))
    torch.manual_seed(1)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    layer = LAYERS[kind](size, size).to(device, DTYPES[dtype])
    x = torch.randn(steps, rows, size).to(device, DTYPES[dtype])

    def theirs():
        with torch.no_grad():
            y = layer(x)[0]
        if device == "cuda":
            torch.cuda.synchronize()
        return y
    exact = LAYERS[kind](size, size)
    exact.load_state_dict({n: w.detach().cpu() for n, w in layer.state_dict().items()})
    with torch.no_grad():
        want = exact.to(device).double()(x.double())[0].cpu()
    call = ours.layer(kind, dtype, layer, x)
    mine, other = (((y.double().cpu() - want).abs().max() / want.abs().max()).item()
                   for y in (ours.result(call, x), theirs()))
    calls = [theirs, ours.plain(call)] + ([ours.replayed(call)] if device == "cuda" else [])
    times = by_turns(calls, 30 if device == "cuda" else 2)
    best = min(times[1:])
    peer = "cudnn" if device == "cuda" and torch.cudnn_is_acceptable(x) else "torch"
    print("\t".join([kind, dtype, shape, peer] + [f"{us:.1f}" for us in times] +
                    [f"{times[0] / best:.2f}", f"{mine:.1e}", f"{other:.1e}"]), flush=True)
    return mine <= max(4 * other, 1e-5)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("lib")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES,
                        default=["f32", "tf32", "f16", "bf16"])
    parser.add_argument("--shape", nargs="+", metavar="STEPSxROWSxSIZE",
                        default=["64x32x256", "128x64x512", "128x64x1024"])
    a = parser.parse_args()
    ours, wrong = Ours(a.lib, a.device), 0
    print("layer\tdtype\tsteps x rows x size\tpeer\tpeer_us\tours_us\tgraph_us\tratio\terror\tpeer's")
    for shape in a.shape:
        for kind in GATES:
            for dtype in a.dtype:
                wrong += not row(ours, kind, dtype, shape, a.device)
    raise SystemExit(f"{wrong} rows are wrong" if wrong else 0)


if __name__ == "__main__":
    main()

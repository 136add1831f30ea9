"""Times Cupola's ops and PyTorch's, interleaved in one process on one card, and prints the ratio.

    python3 bench/peers.py [--lib build/libcupola.so] [--only word] [--records bench/records.tsv]

Both sides get random data, a flushed L2 cache before each run, CUDA-event times and the median
over the runs. PyTorch is run eagerly and, where a row asks for it, compiled; the better counts.
"""
import argparse
import ctypes
import datetime
import math
import statistics

import torch
import torch.nn.functional as F

DTYPES = {"f32": (0, torch.float32), "f16": (2, torch.float16), "bf16": (3, torch.bfloat16)}


class Ceiling(ctypes.Structure):
    _fields_ = [("copy_bytes", ctypes.c_double), ("flops", ctypes.c_double * 16)]


class Result(ctypes.Structure):
    _fields_ = [("op", ctypes.c_char_p), ("impl", ctypes.c_char_p), ("shapes", ctypes.c_char_p),
                ("dtype", ctypes.c_int), ("runs", ctypes.c_int), ("median_us", ctypes.c_double),
                ("low_us", ctypes.c_double), ("high_us", ctypes.c_double),
                ("bytes", ctypes.c_double), ("flops", ctypes.c_double),
                ("floor_us", ctypes.c_double)]


class Options(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int), ("shapes", ctypes.c_char_p), ("impl", ctypes.c_char_p),
                ("seconds", ctypes.c_double)]


REPORT = ctypes.CFUNCTYPE(None, ctypes.POINTER(Result), ctypes.c_void_p)


class ContextOptions(ctypes.Structure):
    _fields_ = [("device", ctypes.c_char_p), ("seed", ctypes.c_uint64), ("threads", ctypes.c_int),
                ("memory_limit", ctypes.c_int64), ("deterministic", ctypes.c_bool)]


class Cupola:
    def __init__(self, path):
        self.lib = lib = ctypes.CDLL(path)
        lib.cup_context_new.restype = ctypes.c_void_p
        lib.cup_error_text.restype = ctypes.c_char_p
        for name in ("cup_error", "cup_error_text", "cup_error_clear"):
            getattr(lib, name).argtypes = [ctypes.c_void_p]
        lib.cup_ceiling_measure.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        lib.cup_bench.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p,
                                  ctypes.c_void_p, REPORT, ctypes.c_void_p]
        self.c = lib.cup_context_new(ctypes.byref(ContextOptions(device=b"cuda")))
        self.ceiling = Ceiling()
        if lib.cup_error(self.c) or lib.cup_ceiling_measure(self.c, ctypes.byref(self.ceiling)):
            raise SystemExit(lib.cup_error_text(self.c).decode())

    def time(self, op, shapes, dtype, seconds):
        rows = []

        def take(result, _):
            r = result.contents
            rows.append((r.impl.decode(), r.median_us, r.floor_us))

        options = Options(DTYPES[dtype][0], shapes.encode(), None, seconds)
        if self.lib.cup_bench(self.c, op.encode(), ctypes.byref(options),
                              ctypes.byref(self.ceiling), REPORT(take), None):
            text = self.lib.cup_error_text(self.c).decode()
            self.lib.cup_error_clear(self.c)
            print(f"{op} {shapes}: {text}")
        return rows


def random(shape, dtype, grad=False):
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype).requires_grad_(grad)


def binary(fn):
    return lambda d, *s: (lambda a, b: lambda: fn(a, b))(*[random(x, d) for x in s])


def unary(fn):
    return lambda d, s: (lambda a: lambda: fn(a))(random(s, d))


def norm(fn):
    def make(d, x, g, b=None):
        x, w = random(x, d), random(g, d)
        b = random(b, d) if b else None
        return lambda: fn(x, w, b)
    return make


def backward_of(forward):
    """The backward alone: the graph is kept and its gradients are taken again and again."""
    def make(d, *shapes):
        leaves = [random(s, d, True) for s in shapes[:-1]]
        y = forward(*leaves)
        dy = random(tuple(y.shape), d)
        return lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)
    return make


def cross_entropy(d, logits, targets):
    x = random(logits, d, True)
    t = torch.randint(0, logits[1], targets, device="cuda")

    def run():
        loss = F.cross_entropy(x.float(), t)
        return torch.autograd.grad(loss, x)
    return run


def embedding_forward(d, table, ids):
    w = random(table, d)
    i = torch.randint(0, table[0], ids, device="cuda")
    return lambda: F.embedding(i, w)


def layer_norm(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b)


def rms_norm(x, w, _=None):
    return F.rms_norm(x, (x.shape[-1],), w, 1e-5)


# op, shapes, dtype, peer, whether the peer is compiled as well
ROWS = [
    ("add", "1048576 1048576", "f32", binary(torch.add), False),
    ("add", "67108864 67108864", "f32", binary(torch.add), False),
    ("gelu", "4096x1024", "f32", unary(lambda x: F.gelu(x, approximate="tanh")), False),
    ("gelu", "8192x4096", "f32", unary(lambda x: F.gelu(x, approximate="tanh")), False),
    ("gelu", "32768x3072", "bf16", unary(lambda x: F.gelu(x, approximate="tanh")), False),
    ("layernorm", "1024x768 768 768", "f32", norm(layer_norm), True),
    ("layernorm", "32768x768 768 768", "bf16", norm(layer_norm), True),
    ("layernorm", "8192x4096 4096 4096", "bf16", norm(layer_norm), True),
    ("layernorm", "8192x8192 8192 8192", "bf16", norm(layer_norm), True),
    ("rmsnorm", "1024x768 768", "f32", norm(rms_norm), True),
    ("rmsnorm", "32768x768 768", "bf16", norm(rms_norm), True),
    ("rmsnorm", "8192x4096 4096", "bf16", norm(rms_norm), True),
    ("softmax", "8192x8192", "bf16", unary(lambda x: F.softmax(x, -1)), True),
    ("softmax", "4096x10000", "f32", unary(lambda x: F.softmax(x, -1)), True),
    ("sum", "268435456", "f32", unary(torch.sum), False),
    ("copy", "67108864", "f32", unary(torch.clone), False),
    ("matmul", "4096x4096 4096x4096", "bf16", binary(torch.matmul), False),
    ("matmul", "8192x8192 8192x8192", "bf16", binary(torch.matmul), False),
    ("linear", "4096x4096 4096x4096", "bf16", binary(F.linear), False),
    ("linear", "8192x8192 8192x8192", "bf16", binary(F.linear), False),
    ("linear", "32768x768 3072x768", "bf16", binary(F.linear), False),
    ("linear", "32768x3072 768x3072", "bf16", binary(F.linear), False),
    ("linear", "32768x768 2304x768", "bf16", binary(F.linear), False),
    ("linear", "8192x4096 14336x4096", "bf16", binary(F.linear), False),
    ("linear", "1x4096 4096x4096", "bf16", binary(F.linear), False),
    ("linear", "16x4096 4096x4096", "bf16", binary(F.linear), False),
    ("embedding", "50304x768 32768", "bf16", embedding_forward, False),
]


def shape_of(text):
    return () if text == "()" else tuple(int(x) for x in text.split("x"))


def time_peer(run, flush, seconds):
    for _ in range(3):
        run()
    times, spent = [], 0.0
    while len(times) < 5 or (spent < seconds * 1e6 and len(times) < 400):
        flush.zero_()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3)
        spent += times[-1] + 100
    return statistics.median(times)


def best_peer(make, compiled, dtype, shapes, flush, seconds):
    torch.manual_seed(1)
    run = make(DTYPES[dtype][1], *[shape_of(s) for s in shapes.split()])
    best = ("torch", time_peer(run, flush, seconds))
    if compiled:
        torch._dynamo.reset()
        us = time_peer(torch.compile(run), flush, seconds)
        best = min(best, ("torch.compile", us), key=lambda x: x[1])
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lib", default="build/libcupola.so")
    parser.add_argument("--only", default="")
    parser.add_argument("--records")
    parser.add_argument("--seconds", type=float, default=0.05)
    args = parser.parse_args()
    ours = Cupola(args.lib)
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    card = torch.cuda.get_device_name()
    date = datetime.date.today().isoformat()
    print(f"{card}, copy {ours.ceiling.copy_bytes / 1e9:.0f} GB/s")
    lines = []
    for op, shapes, dtype, make, compiled in ROWS:
        if args.only not in op:
            continue
        first = best_peer(make, compiled, dtype, shapes, flush, args.seconds)
        rows = ours.time(op, shapes, dtype, args.seconds)
        second = best_peer(make, False, dtype, shapes, flush, args.seconds)
        peer, peer_us = min(first, second, key=lambda x: x[1])
        torch.cuda.empty_cache()
        for i, (impl, us, floor) in enumerate(rows):
            print(f"{op:14s} {shapes:28s} {dtype:5s} {impl:14s} {us:9.1f} us  {peer:13s}"
                  f"{peer_us:9.1f} us  ratio {peer_us / us:5.2f}  floor {floor / us:5.0%}")
            if i == 0 and math.isfinite(us):
                lines.append("\t".join([date, card, op, shapes, dtype, impl, f"{us:.2f}", peer,
                                        f"{peer_us:.2f}", f"{peer_us / us:.3f}",
                                        f"{floor / us:.3f}"]))
    if args.records:
        with open(args.records, "a", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in lines))


if __name__ == "__main__":
    main()

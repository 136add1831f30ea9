"""Times Cupola's ops and other libraries' on one card, interleaved in one process.

    python3 bench/peers.py [--lib build/libcupola.so] [--only word ...] [--records bench/records.tsv]

All get random data, a flushed L2 cache before each run, CUDA-event times and the median over the
runs; a peer is timed before and after ours, and the better time counts. PyTorch is run eagerly and,
where a row asks for it, compiled; CuPy where it is installed. Errors are the largest difference, in
units of the dtype's epsilon relative to the element and to the size of the whole: ours against the
specification, a peer's against itself in double.
"""
import argparse
import datetime
import math
import statistics

import torch
import torch.nn.functional as F

from library import Cupola

try:
    import cupy
except ImportError:
    cupy = None

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
ATEN = torch.ops.aten


class Row:
    """One call: ours by name, shapes and attributes; a peer by a function that makes its call."""

    def __init__(self, op, shapes, dtype, make, compiled=False, attributes="", indices=0,
                 with_cupy=None, exact=True, transposed=False):
        self.op, self.shapes, self.dtype, self.make = op, shapes, dtype, make
        self.compiled, self.attributes, self.indices = compiled, attributes, indices
        self.with_cupy, self.exact, self.transposed = with_cupy, exact, transposed


class Wide:
    """Stands in for a dtype: values are rounded to it and held in double, for the peer's error."""

    def __init__(self, dtype):
        self.dtype = dtype


def random(shape, dtype, grad=False):
    x = torch.randn(shape, device="cuda", dtype=torch.float32)
    x = x.to(dtype.dtype).double() if isinstance(dtype, Wide) else x.to(dtype)
    return x.requires_grad_(grad)


def indices(rows, shape):
    return torch.randint(0, rows, shape, device="cuda")


def unary(fn):
    return lambda d, s: (lambda a: lambda: fn(a))(random(s, d))


def binary(fn):
    return lambda d, *s: (lambda x: lambda: fn(*x))([random(x, d) for x in s])


def norm(fn):
    def make(d, x, g, b=None):
        x, w = random(x, d), random(g, d)
        b = random(b, d) if b else None
        return lambda: fn(x, w, b)
    return make


def layer_norm(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b)


def rms_norm(x, w, _=None):
    return F.rms_norm(x, (x.shape[-1],), w, 1e-5)


def layer_norm_grad(d, dy, x, *_):
    dy, x, w = random(dy, d), random(x, d), random(x[-1:], d)
    _, mean, rstd = ATEN.native_layer_norm(x, list(w.shape), w, w, 1e-5)
    return lambda: ATEN.native_layer_norm_backward(dy, x, list(w.shape), mean, rstd, w, w,
                                                   [True, True, True])[0]


def softmax_grad(d, y, _):
    y, dy = torch.softmax(random(y, d), -1), random(y, d)
    return lambda: ATEN._softmax_backward_data(dy, y, -1, y.dtype)


def cross_entropy(d, logits, targets):
    x, t = random(logits, d), indices(7, targets)
    return lambda: F.cross_entropy(x, t)


def cross_entropy_both(d, logits, targets):
    """The loss and the gradient of the logits."""
    x, t = random(logits, d, True), indices(7, targets)

    def run():
        loss = F.cross_entropy(x, t)
        return torch.autograd.grad(loss, x)[0]
    return run


def cross_entropy_grad(d, logits, targets, *_):
    x, t = random(logits, d, True), indices(7, targets)
    loss = F.cross_entropy(x, t)
    return lambda: torch.autograd.grad(loss, x, retain_graph=True)[0]


def transpose(d, x):
    x = random(x[::-1], d)
    return lambda: x.t().contiguous()


def embedding(d, table, ids):
    w, i = random(table, d), indices(table[0], ids)
    return lambda: F.embedding(i, w)


def embedding_grad(d, dy, ids):
    dy, i = random(dy, d), indices(50257, ids)
    return lambda: ATEN.embedding_dense_backward(dy, i, 50257, -1, False)


def dropout(d, x):
    x = random(x, d)
    return lambda: F.dropout(x, 0.1, True)


def attention(causal):
    def make(d, q, k, v):
        q, k, v = random(q, d), random(k, d), random(v, d)
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return make


def attention_grad(causal):
    def make(d, q, k, v, *_):
        q, k, v = random(q, d, True), random(k, d, True), random(v, d, True)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        do = random(tuple(o.shape), d)
        return lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True)[0]
    return make


def adamw(d, *_):
    p = random((124354560,), d, True)
    p.grad = random((124354560,), d)
    optimizer = torch.optim.AdamW([p], lr=1e-4, fused=True, capturable=True)
    optimizer.step()
    return lambda: optimizer.step()


def global_norm(d, n):
    parts = list(random(n, d).split(n[0] // 148))
    return lambda: torch.linalg.vector_norm(torch.stack(torch._foreach_norm(parts, 2)), 2)


def gelu(x):
    return F.gelu(x, approximate="tanh")


def pool(fn):
    return unary(lambda x: fn(x, 2))


def batch_norm(d, x, *_):
    x = random(x, d)
    c = x.shape[1]
    w, b = random((c,), d), random((c,), d)
    mean, var = torch.zeros_like(w), torch.ones_like(w)
    return lambda: F.batch_norm(x, mean, var, w, b, True)


def elementwise_rows():
    one, big = "1048576", "67108864"
    yield Row("add", f"{one} {one}", "f32", binary(torch.add), with_cupy=lambda a, b: a + b)
    yield Row("add", f"{big} {big}", "f32", binary(torch.add), with_cupy=lambda a, b: a + b)
    yield Row("add", f"{big} {big}", "bf16", binary(torch.add))
    yield Row("mul", f"{big} {big}", "bf16", binary(torch.mul))
    yield Row("exp", big, "f32", unary(torch.exp), with_cupy=lambda a: cupy.exp(a))
    yield Row("silu", "32768x3072", "bf16", unary(F.silu))
    yield Row("copy", big, "f32", unary(torch.clone), with_cupy=lambda a: a.copy())
    for shape, dtype in (("8192x8192", "f32"), ("8192x8192", "bf16"), ("50257x768", "f32")):
        yield Row("copy", shape, dtype, transpose, exact=False, transposed=True)
    yield Row("gelu", "4096x1024", "f32", unary(gelu))
    yield Row("gelu", "8192x4096", "f32", unary(gelu))
    yield Row("gelu", "32768x3072", "bf16", unary(gelu))
    yield Row("gelu_grad", "32768x3072 32768x3072", "bf16",
              binary(lambda x, dy: ATEN.gelu_backward(dy, x, approximate="tanh")))
    yield Row("dropout", "32768x3072", "bf16", dropout, attributes="p=0.1", exact=False)


def row_rows():
    for shape, dtype in (("1024x768", "f32"), ("32768x768", "bf16"), ("8192x4096", "bf16"),
                         ("8192x8192", "bf16"), ("8192x4096", "f32")):
        width, rows = shape.split("x")[1], shape.split("x")[0]
        both = "dtype=" + dtype + " want_gamma=1 want_beta=1"
        yield Row("layernorm", f"{shape} {width} {width}", dtype, norm(layer_norm), True,
                  "eps=1e-5")
        yield Row("layernorm_grad", f"{shape} {shape} {rows} {rows} {width} -", dtype,
                  layer_norm_grad, attributes=both, exact=False)
        yield Row("rmsnorm", f"{shape} {width}", dtype, norm(rms_norm), True, "eps=1e-5")
    for shape, dtype in (("8192x8192", "bf16"), ("4096x10000", "f32"), ("32768x768", "bf16")):
        yield Row("softmax", shape, dtype, unary(lambda x: F.softmax(x, -1)), False, "axis=-1")
        yield Row("softmax_grad", f"{shape} {shape}", dtype, softmax_grad, False, "axis=-1",
                  exact=False)
    yield Row("cross_entropy", "8192x50304 8192", "bf16", cross_entropy, False,
              "ignore_index=-1 in_place=0", exact=False)
    yield Row("cross_entropy", "8192x50304 8192", "bf16", cross_entropy_both, True,
              "ignore_index=-1 in_place=1", exact=False)
    yield Row("cross_entropy_grad", "8192x50304 8192 8192 8192 ()", "bf16", cross_entropy_grad,
              exact=False)
    yield Row("sum", "1048576", "f32", unary(torch.sum), with_cupy=lambda a: a.sum())
    yield Row("sum", "268435456", "f32", unary(torch.sum), with_cupy=lambda a: a.sum())
    yield Row("sum", "16384x16384", "f32", unary(lambda x: x.sum(0)), False, "axes=0",
              with_cupy=lambda a: a.sum(0))
    yield Row("sum", "16384x16384", "f32", unary(lambda x: x.sum(1)), False, "axes=1",
              with_cupy=lambda a: a.sum(1))
    yield Row("embedding", "50304x768 32x1024", "bf16", embedding, False, "", 50304)
    yield Row("embedding_grad", "32x1024x768 32x1024", "bf16", embedding_grad, False,
              "rows=50257", 50257, exact=False)
    yield Row("max_pool2d", "32x64x128x128", "f32", pool(F.max_pool2d), False, "window=2")
    yield Row("avg_pool2d", "32x64x128x128", "f32", pool(F.avg_pool2d), False, "window=2")
    yield Row("cumsum", "67108864", "f32", unary(lambda x: x.cumsum(0)), False, "axis=0",
              with_cupy=lambda a: a.cumsum())
    yield Row("cumsum", "32768x768", "f32", unary(lambda x: x.cumsum(0)), False, "axis=0")
    for shape, axis in (("1048576", 0), ("67108864", 0), ("8192x1024", 1), ("1024x50304", 1)):
        yield Row("sort", shape, "f32", unary(lambda x: x.sort()[0]), False, f"axis={axis}")
    for shape, k in (("1024x50304", 50), ("32768x1024", 8), ("1048576", 100)):
        yield Row("top_k", shape, "f32", unary(lambda x, k=k: x.topk(k)[0]), False,
                  f"k={k} axis=-1")
    for shape in ("32x64x128x128", "32x64x32x32"):
        yield Row("batchnorm", f"{shape} 64 64 64 64", "f32", batch_norm, exact=False)
    yield Row("adamw", "5 1x2 124354560 124354560 - 124354560 124354560", "f32", adamw,
              exact=False)
    yield Row("global_norm", "124354560", "f32", global_norm, exact=False)


NN = "transpose_a=0 transpose_b=0"


def product_rows():
    for m, n, k in ((1024,) * 3, (2048,) * 3, (4096,) * 3, (8192,) * 3, (32768, 3072, 768),
                    (32768, 768, 3072), (32768, 2304, 768), (32768, 50304, 768),
                    (8192, 14336, 4096), (1, 4096, 4096), (16, 4096, 4096)):
        yield Row("linear", f"{m}x{k} {n}x{k}", "bf16", binary(F.linear))
    for n in (1024, 4096):
        yield Row("matmul", f"{n}x{n} {n}x{n}", "f32", binary(torch.matmul), False, NN,
                  with_cupy=lambda a, b: a @ b)
    for n in (4096, 8192):
        yield Row("matmul", f"{n}x{n} {n}x{n}", "bf16", binary(torch.matmul), False, NN)
    yield Row("linear_gelu", "1024x512 768x512 768", "f32",
              binary(lambda x, w, b: gelu(F.linear(x, w, b))), True)
    for m, n, k in ((32768, 3072, 768), (8192, 14336, 4096)):
        yield Row("linear_gelu", f"{m}x{k} {n}x{k} {n}", "bf16",
                  binary(lambda x, w, b: gelu(F.linear(x, w, b))))
    yield Row("linear_weight_grad", "32768x3072 32768x768", "bf16",
              binary(lambda dy, x: dy.T @ x))


def attention_rows():
    for shape in ("8x12x2048x64", "32x12x1024x64", "16x16x1024x128", "4x16x4096x128",
                  "1x16x16384x128", "4x32x4096x64"):
        for causal in (False, True):
            text = "causal=%d dropout=0" % causal
            b, h, t, _ = shape.split("x")
            yield Row("attention", " ".join([shape] * 3), "bf16", attention(causal), False, text,
                      exact=int(t) <= 1024)
            yield Row("attention_grad", " ".join([shape] * 4 + [f"{b}x{h}x{t}", shape]), "bf16",
                      attention_grad(causal), False, text, exact=False)
    for causal in (False, True):
        shape = "8x12x2048x64"
        yield Row("attention", " ".join([shape] * 3), "f32", attention(causal), False,
                  "causal=%d dropout=0" % causal)
    decode = "32x32x1x128 32x8x8192x128 32x8x8192x128"
    yield Row("attention", decode, "bf16",
              binary(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)),
              False, "causal=0 dropout=0")


PARTS = {"elementwise": elementwise_rows, "row": row_rows, "product": product_rows,
         "attention": attention_rows}


def all_rows(parts):
    for name, part in PARTS.items():
        if not parts or name in parts:
            yield from part()


def shape_of(text):
    if text in ("()", "-"):
        return ()
    return tuple(int(x) for x in text.split("x"))


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


def make_call(row, dtype):
    torch.manual_seed(1)
    return row.make(dtype, *[shape_of(s) for s in row.shapes.split()])


def cupy_call(row):
    torch.manual_seed(1)
    dtype = DTYPES[row.dtype]
    arrays = [cupy.from_dlpack(random(shape_of(s), dtype)) for s in row.shapes.split()]

    def run():
        with cupy.cuda.Stream.from_external(torch.cuda.current_stream()):
            row.with_cupy(*arrays)
    return run


def peers_of(row, args):
    """Names and calls; the first is PyTorch's own, run eagerly."""
    calls = [("torch", make_call(row, DTYPES[row.dtype]))]
    if row.compiled and not args.no_compile:
        torch._dynamo.reset()
        calls.append(("torch.compile", torch.compile(calls[0][1])))
    if cupy and row.with_cupy:
        calls.append(("cupy", cupy_call(row)))
    return calls


def error_of(row):
    """The peer's error: its result against its own in double."""
    dtype = DTYPES[row.dtype]
    got = make_call(row, dtype)()
    want = make_call(row, Wide(dtype))().double()
    scale = torch.finfo(dtype).eps * (want.abs() + want.square().mean().sqrt()) + 1e-300
    return ((got.double() - want).abs() / scale).max().item()


def guarded(what, fn):
    """A peer that cannot do a row is no reason to leave out the others."""
    try:
        return fn()
    except Exception as problem:  # every library has its own kinds
        print(f"{what}: {str(problem).splitlines()[0][:150] if str(problem) else problem!r}")
        torch.cuda.empty_cache()
        return None


def time_row(row, ours, flush, args):
    calls = guarded(f"{row.op} {row.shapes}", lambda: peers_of(row, args)) or []
    times = {}
    for name, run in calls:
        us = guarded(name, lambda run=run: time_peer(run, flush, args.seconds / 2))
        if us:
            times[name] = us
    rows = ours.time(row, args)
    for name, run in calls:
        if name in times:
            times[name] = min(times[name], time_peer(run, flush, args.seconds / 2))
    del calls
    error = None
    if row.exact and not args.no_error and times:
        error = guarded("its error", lambda: error_of(row))
    torch.cuda.empty_cache()
    return rows, times, error


def number(value, form):
    return format(value, form) if value is not None and math.isfinite(value) else ""


COLUMNS = ("date card op shapes dtype impl ours_us peer peer_us ratio share_of_floor spread error "
           "peer_error bytes flops attributes copy_us").split()


def line_of(row, r, date, card, peer, us, error):
    fields = {"date": date, "card": card, "op": row.op, "shapes": row.shapes, "dtype": row.dtype,
              "impl": r["impl"], "ours_us": f"{r['us']:.2f}", "peer": peer or "",
              "peer_us": number(us, ".2f"), "ratio": number(us and us / r["us"], ".3f"),
              "share_of_floor": f"{r['floor'] / r['us']:.3f}", "spread": f"{r['spread']:.4f}",
              "error": number(r["error"], ".3g"), "peer_error": number(error, ".3g"),
              "bytes": f"{r['bytes']:.6g}", "flops": f"{r['flops']:.6g}",
              "attributes": r["attributes"], "copy_us": number(r["copy"], ".2f")}
    return "\t".join(fields[name] for name in COLUMNS)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lib", default="build/libcupola.so")
    parser.add_argument("--only", nargs="*", default=[], help="rows whose op has one of the words")
    parser.add_argument("--skip", nargs="*", default=[], help="no rows whose op has one of these")
    parser.add_argument("--dtype", help="rows of this dtype")
    parser.add_argument("--records", help="file of records to append to")
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--no-compile", action="store_true", help="PyTorch only as it is")
    parser.add_argument("--no-error", action="store_true", help="times only")
    parser.add_argument("--all", action="store_true", help="show what a call would not take, too")
    parser.add_argument("--part", default="", help="rows of these parts, of " + " ".join(PARTS))
    parser.add_argument("--list", action="store_true", help="print the calls and time nothing")
    args = parser.parse_args()
    rows_wanted = [row for row in all_rows(args.part)
                   if (not args.only or any(w in row.op for w in args.only))
                   and not any(w in row.op for w in args.skip)
                   and args.dtype in (None, row.dtype)]
    if args.list:
        for row in rows_wanted:
            print(row.op, row.shapes, row.dtype, row.attributes, sep="\t")
        return
    ours = Cupola(args.lib)
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    card = torch.cuda.get_device_name()
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M")
    print(f"{card}, copy {ours.ceiling.copy_bytes / 1e9:.0f} GB/s, torch {torch.__version__}, "
          f"cupy {cupy.__version__ if cupy else 'not installed'}")
    for row in rows_wanted:
        rows, times, error = time_row(row, ours, flush, args)
        peer = min(times, key=times.get) if times else None
        us = times.get(peer)
        for i, r in enumerate(rows):
            others = ", ".join(f"{n} {t:.1f}" for n, t in times.items())
            print(f"{row.op:14s} {row.shapes[:34]:34s} {row.dtype:5s} {r['attributes'][:12]:12s} "
                  f"{r['impl']:12s} {r['us']:9.1f} us  ratio {number(us and us / r['us'], '.2f')} "
                  f"({others})  floor {r['floor'] / r['us']:5.0%}  error {r['error']:.2g}, "
                  f"theirs {number(error, '.2g')}", flush=True)
            if i == 0 and args.records:
                with open(args.records, "a", encoding="utf-8") as file:
                    file.write(line_of(row, r, date, card, peer, us, error) + "\n")


if __name__ == "__main__":
    main()

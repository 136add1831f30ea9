"""The calls that bench/peers.py times: ours by op, shapes and attributes, the peers' as functions.

A function that makes a call gets a dtype and the shapes of the row's text, and returns the call
without arguments. With a Wide dtype it makes the same call in double, of the same rounded numbers:
that is what a peer's error is measured against.
"""
import torch
import torch.nn.functional as F

from conv_layers import UNET, conv_f32_rows, conv_rows
from row import ATEN, Row, Wide, random, rounded

try:
    import cupy
except ImportError:
    cupy = None


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
    y, dy = rounded(torch.softmax(random(y, torch.float32), -1), d), random(y, d)
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


def adamw(d, *shapes):
    """The parameters are the first of each five after the two that say how many there are."""
    parameters = []
    for shape in shapes[2::5]:
        parameters.append(random(shape, d, True))
        parameters[-1].grad = random(shape, d)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True, capturable=True)
    optimizer.step()
    return lambda: optimizer.step()


def clipped(d, *shapes):
    """With the pass that scales the gradients, which ours leaves to the optimizer."""
    parameters = []
    for shape in shapes:
        parameters.append(torch.empty(shape, device="cuda").requires_grad_())
        parameters[-1].grad = random(shape, d)
    return lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)


def gelu(x):
    return F.gelu(x, approximate="tanh")


def pool(fn):
    return unary(lambda x: fn(x, 2))


def max_pool_grad(d, dy, _):
    n, c, h, w = dy
    x, dy = random((n, c, 2 * h, 2 * w), d), random(dy, d)
    _, places = F.max_pool2d(x, 2, return_indices=True)
    return lambda: ATEN.max_pool2d_with_indices_backward(dy, x, [2, 2], [2, 2], [0, 0], [1, 1],
                                                         False, places)


def avg_pool_grad(d, dy):
    n, c, h, w = dy
    x, dy = random((n, c, 2 * h, 2 * w), d), random(dy, d)
    return lambda: ATEN.avg_pool2d_backward(dy, x, [2, 2], [2, 2], [0, 0], False, True, None)


def batch_norm(d, x, *_):
    x = random(x, d)
    c = x.shape[1]
    w, b = random((c,), d), random((c,), d)
    mean, var = torch.zeros_like(w), torch.ones_like(w)
    return lambda: F.batch_norm(x, mean, var, w, b, True)


def elementwise_rows():
    one, big = "1048576", "67108864"
    for n, dtype in ((one, "f32"), (big, "f32"), (big, "bf16")):
        yield Row("add", f"{n} {n}", dtype, binary(torch.add),
                  with_cupy=None if dtype == "bf16" else lambda a, b: a + b)
    yield Row("mul", f"{big} {big}", "bf16", binary(torch.mul))
    yield Row("exp", big, "f32", unary(torch.exp), with_cupy=lambda a: cupy.exp(a))
    yield Row("silu", "32768x3072", "bf16", unary(F.silu))
    yield Row("copy", big, "f32", unary(torch.clone), with_cupy=lambda a: a.copy())
    for shape, dtype in (("8192x8192", "f32"), ("8192x8192", "bf16"), ("50257x768", "f32")):
        yield Row("copy", shape, dtype, transpose, transposed=True, exact=False)
    for shape, dtype in (("4096x1024", "f32"), ("8192x4096", "f32"), ("32768x3072", "bf16")):
        yield Row("gelu", shape, dtype, unary(gelu))
    yield Row("gelu_grad", "32768x3072 32768x3072", "bf16",
              binary(lambda x, dy: ATEN.gelu_backward(dy, x, approximate="tanh")))
    for dtype in ("bf16", "f32"):
        yield Row("dropout", "32768x3072", dtype, dropout, "p=0.1", compiled=True, exact=False)


def norm_rows():
    for shape, dtype in (("1024x768", "f32"), ("32768x768", "bf16"), ("8192x4096", "bf16"),
                         ("8192x8192", "bf16"), ("8192x4096", "f32")):
        rows, width = shape.split("x")
        both = "dtype=" + dtype + " want_gamma=1 want_beta=1"
        yield Row("layernorm", f"{shape} {width} {width}", dtype, norm(layer_norm), "eps=1e-5",
                  compiled=True)
        yield Row("layernorm_grad", f"{shape} {shape} {rows} {rows} {width} -", dtype,
                  layer_norm_grad, both)
        yield Row("rmsnorm", f"{shape} {width}", dtype, norm(rms_norm), "eps=1e-5", compiled=True)
    for shape in ("32x64x128x128", "32x64x32x32"):
        yield Row("batchnorm", f"{shape} 64 64 64 64", "f32", batch_norm)


def row_rows():
    for shape, dtype in (("8192x8192", "bf16"), ("8192x8192", "f32"), ("4096x10000", "f32"),
                         ("32768x768", "bf16")):
        yield Row("softmax", shape, dtype, unary(lambda x: F.softmax(x, -1)), "axis=-1",
                  compiled=True)
        yield Row("softmax_grad", f"{shape} {shape}", dtype, softmax_grad, "axis=-1")
    for dtype in ("bf16", "f32"):
        yield Row("cross_entropy", "8192x50304 8192", dtype, cross_entropy,
                  "ignore_index=-1 in_place=0", compiled=True, exact=False)
        yield Row("cross_entropy", "8192x50304 8192", dtype, cross_entropy_both,
                  "ignore_index=-1 in_place=1", compiled=True, exact=False)
    yield Row("cross_entropy_grad", "8192x50304 8192 8192 8192 ()", "bf16", cross_entropy_grad,
              exact=False)
    yield Row("sum", "1048576", "f32", unary(torch.sum), with_cupy=lambda a: a.sum())
    yield Row("sum", "268435456", "f32", unary(torch.sum), with_cupy=lambda a: a.sum())
    for axis in (0, 1):
        yield Row("sum", "16384x16384", "f32", unary(lambda x, axis=axis: x.sum(axis)),
                  f"axes={axis}", with_cupy=lambda a, axis=axis: a.sum(axis))
    for dtype in ("bf16", "f32"):
        yield Row("embedding", "50304x768 32x1024", dtype, embedding, indices=50304)
        yield Row("embedding_grad", "32x1024x768 32x1024", dtype, embedding_grad, "rows=50257",
                  indices=50257)
    for dtype in ("f32", "bf16"):
        grad = "window=2 height=128 width=128"
        yield Row("max_pool2d", "32x64x128x128", dtype, pool(F.max_pool2d), "window=2")
        yield Row("avg_pool2d", "32x64x128x128", dtype, pool(F.avg_pool2d), "window=2")
        yield Row("max_pool2d_grad", "32x64x64x64 32x64x64x64", dtype, max_pool_grad, grad,
                  exact=False)
        yield Row("avg_pool2d_grad", "32x64x64x64", dtype, avg_pool_grad, grad)


def order_rows():
    for dtype in "f32", "bf16":
        yield Row("max_pool2d", "64x64x112x112", dtype, unary(lambda x: F.max_pool2d(x, 3, 2, 1)),
                  "window=3 stride=2 padding=1")
    for shape, size in (("64x2048x7x7", 1), ("64x512x13x13", 7)):
        yield Row("adaptive_avg_pool2d", shape, "f32",
                  unary(lambda x, n=size: F.adaptive_avg_pool2d(x, n)), f"size={size}")
    yield Row("cumsum", "67108864", "f32", unary(lambda x: x.cumsum(0)), "axis=0",
              with_cupy=lambda a: a.cumsum())
    yield Row("cumsum", "32768x768", "f32", unary(lambda x: x.cumsum(0)), "axis=0")
    for shape, axis in (("1048576", 0), ("67108864", 0), ("8192x1024", 1), ("1024x50304", 1)):
        yield Row("sort", shape, "f32", unary(lambda x: x.sort()[0]), f"axis={axis}")
    for shape, k in (("1024x50304", 50), ("32768x1024", 8), ("1048576", 100)):
        yield Row("top_k", shape, "f32", unary(lambda x, k=k: x.topk(k)[0]), f"k={k} axis=-1")


GPT2 = ("5 148x2 2*50257x768 - 2*50257x768 2*1024x768 - 2*1024x768 12*(6*(2*768 - 2*768) "
        "2*2304 - 2*2304 2*3072 - 2*3072 2*2304x768 - 2*2304x768 2*768x768 - 2*768x768 "
        "2*3072x768 - 2*3072x768 2*768x3072 - 2*768x3072) 2*(2*768 - 2*768)")


def update_rows():
    yield Row("adamw", GPT2, "f32", adamw, exact=False)
    yield Row("global_norm", "50257x768 1024x768 12*(6*768 2304 3072 2304x768 768x768 3072x768 "
              "768x3072) 2*768", "f32", clipped, name="torch clip", exact=False)
    yield Row("linear_weight_grad", "32768x3072 32768x768", "bf16", binary(lambda dy, x: dy.T @ x))


NN = "transpose_a=0 transpose_b=0"


def library_gelu(d, x, w, b):
    """cuBLASLt's own epilogue."""
    x, w, b = random(x, d), random(w, d), random(b, d)
    return lambda: ATEN._addmm_activation(b, x, w.t(), use_gelu=True)


def tf32(fn):
    def make(d, *shapes):
        x = [random(s, d) for s in shapes]

        def run():
            torch.backends.cuda.matmul.allow_tf32 = True
            y = fn(*x)
            torch.backends.cuda.matmul.allow_tf32 = False
            return y
        return run
    return make


def by_scales(a, b, scale_a, scale_b, fast):
    """cuBLASLt's products of codes, with one scale each, or by blocks."""
    def make(d, *_):
        wide = isinstance(d, Wide)
        code = d.dtype if wide else d
        x = [torch.randn(s, device="cuda").clamp(-400, 400).to(code) for s in (a, b)]
        scales = [torch.full(s, 0.5, device="cuda") for s in (scale_a, scale_b)]
        if wide:
            return lambda: 0.25 * (x[0].double() @ x[1].double().t())
        if len(scale_a) == 2:  # as cuBLASLt wants those of blocks
            scales = [s.t().contiguous().t() for s in scales]
        return lambda: torch._scaled_mm(x[0], x[1].t(), *scales, out_dtype=torch.bfloat16,
                                        use_fast_accum=fast)
    return make


def whole_numbers(scaled):
    """Products of int8: the sums as they are, or scaled by row and column into bf16."""
    def make(_, a, b, *scales):
        x = [torch.randint(-128, 128, s, device="cuda", dtype=torch.int8) for s in (a, b)]
        by = [torch.full(s, 0.5, device="cuda") for s in scales]
        if not scaled:
            return lambda: torch._int_mm(x[0], x[1].t())
        return lambda: (torch._int_mm(x[0], x[1].t()) * (by[0] * by[1].t())).bfloat16()
    return make


def scaled_rows():
    for m, n, k in ((4096,) * 3, (8192,) * 3, (8192, 14336, 4096)):
        yield Row("scaled_matmul", f"{m}x{k} {n}x{k} 1x1 1x1", "f8e4m3",
                  by_scales((m, k), (n, k), (), (), True), "dtype=bf16 fast_accumulation=1",
                  name="cuBLASLt fast")
    n = 8192
    blocks = by_scales((n, n), (n, n), (n, n // 128), (n // 128, n // 128), False)
    yield Row("scaled_matmul", f"{n}x{n} {n}x{n} {n}x{n // 128} {n // 128}x{n // 128}", "f8e4m3",
              blocks, "dtype=bf16 fast_accumulation=0", name="cuBLASLt blocks")
    lines = by_scales((n, n), (n, n), (n, 1), (1, n), True)
    yield Row("scaled_matmul", f"{n}x{n} {n}x{n} {n}x1 {n}x1", "f8e4m3", lines,
              "dtype=bf16 fast_accumulation=1", name="cuBLASLt lines")
    for n in (4096, 8192):
        yield Row("scaled_matmul", f"{n}x{n} {n}x{n}", "i8", whole_numbers(False),
                  "dtype=i32", name="torch._int_mm", exact=False)
    yield Row("scaled_matmul", f"{n}x{n} {n}x{n} {n}x1 {n}x1", "i8", whole_numbers(True),
              "dtype=bf16", name="torch._int_mm", exact=False)


def product_rows():
    for m, n, k in ((1024,) * 3, (2048,) * 3, (4096,) * 3, (8192,) * 3, (32768, 3072, 768),
                    (32768, 768, 3072), (32768, 2304, 768), (32768, 50304, 768),
                    (8192, 14336, 4096), (1, 4096, 4096), (16, 4096, 4096)):
        yield Row("linear", f"{m}x{k} {n}x{k}", "bf16", binary(F.linear))
    for n in (1024, 4096):
        yield Row("matmul", f"{n}x{n} {n}x{n}", "f32", binary(torch.matmul), NN,
                  with_cupy=lambda a, b: a @ b)
    for n in (1024, 4096, 8192):
        yield Row("matmul", f"{n}x{n} {n}x{n}", "f32", tf32(torch.matmul), NN, precision="high",
                  name="cuBLAS tf32")
    for n in (4096, 8192):
        yield Row("matmul", f"{n}x{n} {n}x{n}", "bf16", binary(torch.matmul), NN)
    linear_gelu = binary(lambda x, w, b: gelu(F.linear(x, w, b)))
    yield Row("linear_gelu", "1024x512 768x512 768", "f32", linear_gelu,
              compiled=True)
    for m, n, k in ((32768, 3072, 768), (8192, 14336, 4096)):
        yield Row("linear_gelu", f"{m}x{k} {n}x{k} {n}", "bf16", linear_gelu,
                  peers={"cuBLASLt epilogue": library_gelu})
    yield Row("matmul_gelu_grad", "32768x768 768x3072 32768x3072", "bf16",
              binary(lambda dy, w, x: ATEN.gelu_backward(dy @ w, x, approximate="tanh")))
    yield Row("linear_add", "32768x3072 768x3072 32768x768 768", "bf16",
              binary(lambda x, w, r, b: F.linear(x, w, b) + r))
    yield from scaled_rows()


def attention_rows():
    for shape in ("8x12x2048x64", "32x12x1024x64", "16x16x1024x128", "4x16x4096x128",
                  "1x16x16384x128", "4x32x4096x64", "f32"):
        dtype, precision = "bf16", "highest"
        if shape == "f32":
            shape, dtype, precision = "8x12x2048x64", "f32", "high"
        for causal in (False, True):
            text = "causal=%d dropout=0" % causal
            b, h, t, _ = shape.split("x")
            exact = int(t) <= 1024 or dtype == "f32"
            yield Row("attention", " ".join([shape] * 3), dtype, attention(causal), text,
                      exact=exact, precision=precision)
            yield Row("attention_grad", " ".join([shape] * 4 + [f"{b}x{h}x{t}", shape]), dtype,
                      attention_grad(causal), text, exact=exact, precision=precision)
    yield Row("attention", "32x32x1x128 32x8x8192x128 32x8x8192x128", "bf16",
              binary(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)),
              "causal=0 dropout=0")


def definite(shape, d):
    """Matrices whose diagonal is heavy, as ours are by their ridge."""
    n = shape[-1]
    return random(shape, d) + 4 * n * torch.eye(n, device="cuda")


def factor_rows():
    """Lines and matrices, few and large or many and small, which PyTorch gives to cuFFT and
    cuSOLVER."""
    for shape in ("65536x256", "4096x4096", "64x65536", "16x1048576", "4096x1009"):
        yield Row("fft", shape + "x2", "f32", lambda d, x: (
            lambda y=torch.view_as_complex(random(x, d)): torch.fft.fft(y)),
            "axis=1 inverse=0", exact=False)
    for op, shape in ((op, shape) for op in ("cholesky", "solve", "qr", "svd")
                      for shape in ("4096x32x32", "256x256", "1024x1024")):
        n = int(shape.split("x")[-1])
        text = f"ridge={4 * n}" if op in ("cholesky", "solve") else ""
        if op == "solve":
            yield Row(op, f"{shape} {shape[:-len(str(n))]}16", "f32", lambda d, a, b: (
                lambda m=definite(a, d), y=random(b, d): torch.linalg.solve(m, y)), text,
                exact=False)
            continue
        more = {"full_matrices": False} if op == "svd" else {}
        yield Row(op, shape, "f32", lambda d, a, f=getattr(torch.linalg, op), more=more: (
            lambda m=definite(a, d): f(m, **more)), text, exact=False)


PARTS = {"elementwise": elementwise_rows, "norm": norm_rows, "row": row_rows, "order": order_rows,
         "update": update_rows, "product": product_rows, "attention": attention_rows,
         "conv": conv_rows, "unet": lambda: conv_rows(UNET), "conv_f32": conv_f32_rows,
         "factor": factor_rows}


def all_rows(parts):
    for name, part in PARTS.items():
        if not parts or name in parts:
            yield from part()

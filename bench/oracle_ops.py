"""What bench/oracle.py compares: for each op PyTorch's counterpart, and how its calls are drawn.

A draw gives the inputs, the attributes, and the function of the inputs. Inputs are made in double
and rounded to the dtype of the call; those of whole numbers stay as they are. Where a result bends
at the zero of a sum, the function has a `bends`, which gives that sum: beside its zero a rounding
decides about the slope."""
import math
import random as choose

import torch
import torch.nn.functional as F

import oracle_draw
from oracle_draw import (along, axes_of, binary, distinct, fold, narrowed, real, shape, unary,
                         whole)
from oracle_networks import (norm, batchnorm, groupnorm, columns, recurrence, ctc_loss, pool,
                             conv, adaptive, attention)


def top_k():
    sides = shape(1, 3, False)
    axis, largest = choose.randrange(len(sides)), choose.random() < 0.5
    k = choose.randint(1, sides[axis])
    while math.prod(sides) > 250:
        sides[sides.index(max(sides))] = 2
    k = min(k, sides[axis])
    values = (torch.randperm(math.prod(sides)).double() - 100).reshape(sides)
    return ([values], {"axis": axis, "k": k, "smallest": not largest},
            lambda x: torch.topk(x, k, axis, largest))


def sort():
    sides = shape(1, 3)
    axis, descending = choose.randrange(-len(sides), len(sides)), choose.random() < 0.5
    return ([real(sides)], {"axis": axis, "descending": descending},
            lambda x: torch.sort(x, dim=axis, descending=descending, stable=True))


def fft():
    sides = [choose.randint(1, 3), choose.randint(1, 24), choose.randint(1, 3), 2]
    axis, inverse = choose.randint(0, 2), choose.random() < 0.5
    def transformed(x):
        numbers = torch.view_as_complex(x.contiguous())
        return torch.view_as_real((torch.fft.ifft if inverse else torch.fft.fft)(numbers, dim=axis))
    return [real(sides)], {"axis": axis, "inverse": inverse}, transformed


def matrices(fn, right):
    def draw():
        lead, n = [choose.randint(1, 3)], choose.randint(1, 8)
        given = {"ridge": choose.choice([12.0, 20.5])}
        inputs = [real(lead + [n, n])] + ([real(lead + [n, choose.randint(1, 3)])] if right else [])
        return inputs, given, lambda a, *b: fn(a, given["ridge"] * torch.eye(n), *b)
    return draw


def factored(fn):
    """Small matrices whose singular values lie apart, so that all vectors are steady."""
    def draw():
        lead, m, n = [choose.randint(1, 3)], choose.randint(1, 6), choose.randint(1, 6)
        apart = torch.zeros(m, n, dtype=torch.float64)
        for i in range(min(m, n)):
            apart[i, i] = 2 + 3 * i
        return [0.3 * real(lead + [m, n]) + apart], {}, fn
    return draw


def qr(a):
    q, r = torch.linalg.qr(a)
    sign = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
    return q * sign[..., None, :], r * sign[..., None]


def svd(a):
    u, s, vt = torch.linalg.svd(a, full_matrices=False)
    largest = vt.abs().argmax(-1, keepdim=True)
    sign = torch.where(vt.gather(-1, largest) < 0, -1.0, 1.0)
    return u * sign.mT, s, vt * sign


def cross_entropy():
    rows, classes = choose.randint(1, 40), choose.choice([2, 3, 7, 64, 65, 1000, 5121])
    targets = whole([rows], classes)
    targets[torch.rand(rows) < 0.1] = -1
    targets[0] = 0
    smoothing = choose.choice([0.0, 0.1])
    return ([real([rows, classes], -4, 4), targets],
            {"ignore_index": -1, "label_smoothing": smoothing},
            lambda x, t: F.cross_entropy(x, t.long(), ignore_index=-1, label_smoothing=smoothing))


def embedding():
    rows, ids = choose.randint(1, 70), shape(0, 2)
    return ([real([rows, choose.randint(1, 70)]), whole(ids, rows)], {},
            lambda table, i: F.embedding(i.long(), table))


def index_select():
    sides = shape(1, 3, False)
    axis = choose.randrange(-len(sides), len(sides))
    return ([real(sides), whole([oracle_draw.size()], sides[axis])], {"axis": axis},
            lambda x, i: x.index_select(axis, i.long()))


def gathering(scatter):
    def draw():
        sides = shape(1, 3, False)
        axis = choose.randrange(len(sides))
        places = list(sides)
        places[axis] = oracle_draw.size()
        index = whole(places, sides[axis])
        if scatter:
            return ([real(sides), index, real(places)], {"axis": axis},
                    lambda x, i, s: x.scatter_add(axis, i.long(), s))
        return [real(sides), index], {"axis": axis}, lambda x, i: x.gather(axis, i.long())
    return draw


def matmul(factor=None):
    def draw():
        turn_a, turn_b = choose.random() < 0.5, choose.random() < 0.5
        m, k, n, batch = oracle_draw.size(), oracle_draw.size(), oracle_draw.size(), shape(0, 1)
        a, b = batch + ([k, m] if turn_a else [m, k]), narrowed(batch) + ([n, k] if turn_b
                                                                          else [k, n])
        given = {"transpose_a": turn_a, "transpose_b": turn_b}
        if factor:
            given["factor"] = factor
        return ([real(a), real(b)], given,
                lambda x, y: (factor or 1) * ((x.mT if turn_a else x) @ (y.mT if turn_b else y)))
    return draw


def linear(after=lambda y: y, twice=False, residual=False, kinked=False):
    def draw():
        lead, k, n = shape(1, 2), oracle_draw.size(), oracle_draw.size() or 1
        inputs = [real(lead + [k]), real([2 * n if twice else n, k])]
        if residual:
            inputs.append(real(lead + [n]))
        inputs.append(real([2 * n if twice else n]))

        def fn(x, w, *rest):
            y = after(F.linear(x, w, rest[-1]))
            return y + rest[0] if residual else y
        if kinked:
            fn.bends = F.linear
        return inputs, {}, fn
    return draw


def swiglu(y):
    gate, up = y.chunk(2, -1)
    return F.silu(gate) * up


def moved(kind):
    def draw():
        sides = shape(1, 4)
        if kind == "permute":
            order = choose.sample(range(len(sides)), len(sides))
            return [real(sides)], {"axes": order}, lambda x: x.permute(order)
        if kind == "reshape":
            return [real(sides)], {"shape": [math.prod(sides)]}, lambda x: x.reshape(-1)
        if kind == "broadcast":
            small = narrowed(sides)
            return [real(small)], {"shape": sides}, lambda x: x.broadcast_to(sides)
        starts = [choose.randint(0, s) for s in sides]
        sizes = [choose.randint(0, s - b) for s, b in zip(sides, starts)]
        return ([real(sides)], {"starts": starts, "sizes": sizes},
                lambda x: x[tuple(slice(b, b + n) for b, n in zip(starts, sizes))])
    return draw


def concat():
    sides, count = shape(1, 3), choose.randint(1, 5)
    axis, parts = choose.randrange(len(sides)), []
    for _ in range(count):
        part = list(sides)
        part[axis] = oracle_draw.size()
        parts.append(real(part))
    return parts, {"axis": axis}, lambda *x: torch.cat(x, axis)


def constant(fn):
    def draw():
        sides = shape()
        return [], {"dtype": "f64", "shape": sides}, lambda: fn(sides, dtype=torch.float64)
    return draw


def arange():
    start, step = choose.randint(-5, 5) / 2, choose.choice([-2, -0.75, 0.5, 1, 3])
    stop = start + step * (oracle_draw.size() + choose.choice([0, 0.5]))
    return ([], {"dtype": "f64", "start": start, "stop": stop, "step": step},
            lambda: torch.arange(start, stop, step, dtype=torch.float64))


def eye():
    rows, columns, diagonal = oracle_draw.size(), oracle_draw.size(), choose.randint(-3, 3)
    ones = lambda: (torch.arange(columns) == torch.arange(rows)[:, None] + diagonal).double()
    return [], {"dtype": "f64", "rows": rows, "columns": columns, "diagonal": diagonal}, ones


def flip():
    sides = shape(1, 4)
    axes = axes_of(sides)
    return [real(sides)], {"axes": axes}, lambda x: torch.flip(x, axes)


def pad():
    sides = shape(1, 4)
    before, after = ([choose.randint(0, 3) for _ in sides] for _ in range(2))
    flat = [n for pair in reversed(list(zip(before, after))) for n in pair]
    return ([real(sides)], {"before": before, "after": after, "value": 0.5},
            lambda x: F.pad(x, flat, value=0.5))


def pad_edges(mode):
    def draw():
        padded = choose.randint(1, 3)
        sides = [choose.randint(1, 3) for _ in range(2)]
        sides += [choose.randint(4, 7) for _ in range(padded)]
        before, after = ([0, 0] + [choose.randint(0, 3) for _ in range(padded)] for _ in range(2))
        flat = [n for pair in reversed(list(zip(before[2:], after[2:]))) for n in pair]
        return ([real(sides)], {"before": before, "after": after},
                lambda x: F.pad(x, flat, mode=mode))
    return draw


def repeat():
    sides = shape(0, 3)
    times = [choose.randint(1, 3) for _ in range(len(sides) + choose.randint(0, 1))]
    return [real(sides)], {"times": times}, lambda x: x.repeat(times)


def triangle(fn):
    def draw():
        diagonal = choose.randint(-3, 3)
        return [real(shape(2, 4))], {"diagonal": diagonal}, lambda x: fn(x, diagonal)
    return draw


def by_numbers(fn):
    """Of two that are no whole quotient of each other in any dtype, where a rest would jump."""
    def draw():
        sides = shape()
        b = torch.tensor([1.5, 2.5, -3.5, 7.0], dtype=torch.float64)[whole(sides, 4, torch.int64)]
        rest = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)[whole(sides, 3, torch.int64)]
        return [whole(sides, 9, torch.int64) * b - 4 * b + rest, b], {}, fn
    return draw


def integers(fn, low=-100, high=100, unary=False, shift=False):
    def draw():
        sides, kind = shape(), choose.choice([torch.int32, torch.int64])
        a = whole(sides, high - low, kind) + low
        if unary:
            return [a], {}, fn
        b = whole(narrowed(sides), 31 if shift else high - low, kind) + (0 if shift else low)
        return [a, b], {}, fn
    return draw


def truths(fn):
    def draw():
        sides = shape()
        a, b = torch.rand(sides) < 0.5, torch.rand(narrowed(sides)) < 0.5
        return [a, b], {}, fn
    return draw


def with_special(fn):
    def draw():
        x = real(shape())
        for value in (math.nan, math.inf, -math.inf):
            x[torch.rand(x.shape) < 0.2] = value
        return [x], {}, fn
    return draw


def prod():
    """Along one axis, now and then with a 0 or two, by which other slopes become 0."""
    sides = shape(1, 3)
    axis, keep, x = choose.randrange(len(sides)), choose.random() < 0.5, real(sides, 0.8, 1.25)
    x[torch.rand(sides) < 0.1] = 0
    return [x], {"axes": [axis], "keep": keep}, lambda x: torch.prod(x, axis, keep)


def where():
    sides = shape()
    return ([torch.rand(sides) < 0.5, real(narrowed(sides)), real(sides)], {}, torch.where)


def clamp(x):
    """By ends that no number of 16 bits is: at an end the slope is a matter of taste."""
    return x.clamp(-0.7512345, 1.2512345)


OPS = {
    "add": binary(torch.add), "sub": binary(torch.sub), "mul": binary(torch.mul),
    "div": binary(torch.div, 0.5, 3.0), "scale": unary(lambda x: 0.37 * x, factor=0.37),
    "neg": unary(torch.neg), "exp": unary(torch.exp), "log": unary(torch.log, 0.1, 5.0),
    "sqrt": unary(torch.sqrt, 0.1, 5.0), "pow": binary(torch.pow, 0.1, 3.0),
    "abs": unary(torch.abs), "sin": unary(torch.sin), "cos": unary(torch.cos),
    "erf": unary(torch.erf), "maximum": binary(torch.maximum), "minimum": binary(torch.minimum),
    "lerp": binary(lambda a, b: torch.lerp(a, b, 0.3), weight=0.3),
    "clamp": lambda: ([real(shape())], {"low": -0.7512345, "high": 1.2512345},
                      clamp),
    "equal": binary(torch.eq), "not_equal": binary(torch.ne), "less": binary(torch.lt),
    "less_equal": binary(torch.le), "greater": binary(torch.gt),
    "greater_equal": binary(torch.ge), "where": where, "tanh": unary(torch.tanh),
    "sigmoid": unary(torch.sigmoid), "relu": unary(F.relu),
    "gelu": unary(lambda x: F.gelu(x, approximate="tanh")), "gelu_erf": unary(F.gelu),
    "silu": unary(F.silu), "elu": unary(lambda x: F.elu(x, 0.7), alpha=0.7),
    "leaky_relu": unary(lambda x: F.leaky_relu(x, 0.2), slope=0.2),
    "hardswish": unary(F.hardswish), "softplus": unary(lambda x: F.softplus(x, 1, 1e9)),
    "mish": unary(F.mish), "swiglu": binary(lambda a, b: F.silu(a) * b),
    "copy": unary(torch.clone), "reshape": moved("reshape"), "broadcast": moved("broadcast"),
    "permute": moved("permute"), "slice": moved("slice"), "concat": concat,
    "sum": fold(torch.sum), "mean": fold(torch.mean, False), "max": fold(torch.amax, False),
    "min": fold(torch.amin, False),
    "norm": fold(lambda x, a, keep: torch.linalg.vector_norm(x, 2, a, keep), False),
    "var": fold(lambda x, a, keep: torch.var(x, a, correction=0, keepdim=keep), False),
    "logsumexp": fold(torch.logsumexp, False),
    "argmax": distinct(lambda: one_axis(torch.argmax)),
    "argmin": distinct(lambda: one_axis(torch.argmin)), "cumsum": along(torch.cumsum),
    "softmax": along(F.softmax, False), "log_softmax": along(F.log_softmax, False),
    "unfold": columns(False), "fold": columns(True), "fft": fft,
    "cholesky": matrices(lambda a, r: torch.linalg.cholesky((a + a.mT) / 2 + r), False),
    "solve": matrices(lambda a, r, b: torch.linalg.solve(a + r, b), True),
    "qr": factored(qr), "svd": factored(svd), "recurrence": recurrence, "ctc_loss": ctc_loss,
    "max_pool2d": pool("max"), "avg_pool2d": pool("avg"),
    "adaptive_avg_pool2d": adaptive(F.adaptive_avg_pool2d),
    "adaptive_max_pool2d": adaptive(F.adaptive_max_pool2d), "layernorm": norm("layernorm"),
    "rmsnorm": norm("rmsnorm"), "add_layernorm": norm("add_layernorm"),
    "add_rmsnorm": norm("add_rmsnorm"), "batchnorm": batchnorm, "groupnorm": groupnorm,
    "cross_entropy": cross_entropy, "embedding": embedding, "index_select": index_select,
    "gather": gathering(False), "scatter_add": gathering(True), "sort": sort, "top_k": top_k,
    "attention": attention, "matmul": matmul(), "matmul_scaled": matmul(0.37),
    "linear": linear(), "linear_gelu": linear(lambda y: F.gelu(y, approximate="tanh")),
    "linear_relu": linear(F.relu, kinked=True), "linear_silu": linear(F.silu),
    "linear_swiglu": linear(swiglu, twice=True), "linear_add": linear(residual=True),
    "zeros": constant(torch.zeros), "ones": constant(torch.ones), "arange": arange, "eye": eye,
    "flip": flip, "tril": triangle(torch.tril), "triu": triangle(torch.triu),
    "pad": pad, "pad_reflect": pad_edges("reflect"),
    "pad_replicate": pad_edges("replicate"), "pad_circular": pad_edges("circular"), "repeat": repeat,
    "prod": prod, "square": unary(torch.square), "reciprocal": unary(torch.reciprocal, 0.25, 4.0),
    "rsqrt": unary(torch.rsqrt, 0.1, 5.0), "exp2": unary(torch.exp2),
    "log2": unary(torch.log2, 0.1, 5.0), "expm1": unary(torch.expm1),
    "log1p": unary(torch.log1p, -0.75, 4.0), "tan": unary(torch.tan, -1.2, 1.2),
    "asin": unary(torch.asin, -0.9, 0.9), "acos": unary(torch.acos, -0.9, 0.9),
    "atan": unary(torch.atan), "atan2": binary(torch.atan2, 0.25, 3.0),
    "sinh": unary(torch.sinh), "cosh": unary(torch.cosh), "asinh": unary(torch.asinh),
    "acosh": unary(torch.acosh, 1.25, 5.0), "atanh": unary(torch.atanh, -0.9, 0.9),
    "sign": unary(torch.sign), "round": unary(torch.round), "floor": unary(torch.floor),
    "ceil": unary(torch.ceil), "trunc": unary(torch.trunc),
    "remainder": by_numbers(torch.remainder), "fmod": by_numbers(torch.fmod),
    "floor_div": by_numbers(lambda a, b: torch.div(a, b, rounding_mode="floor")),
    "isnan": with_special(torch.isnan),
    "isinf": with_special(torch.isinf), "isfinite": with_special(torch.isfinite),
    "logical_and": truths(torch.logical_and), "logical_or": truths(torch.logical_or),
    "logical_xor": truths(torch.logical_xor), "logical_not": unary(torch.logical_not),
    "bitwise_and": integers(torch.bitwise_and), "bitwise_or": integers(torch.bitwise_or),
    "bitwise_xor": integers(torch.bitwise_xor),
    "bitwise_not": integers(torch.bitwise_not, unary=True),
    "shift_left": integers(torch.bitwise_left_shift, -3, 3, shift=True),
    "shift_right": integers(torch.bitwise_right_shift, -100000, 100000, shift=True),
    "conv2d": conv(2, F.conv2d), "conv3d": conv(3, F.conv3d),
}


def one_axis(fn):
    sides = shape(1, 3, False)
    while math.prod(sides) > 250:
        sides[sides.index(max(sides))] = 2
    axis = choose.randrange(len(sides))
    return [real(sides)], {"axes": [axis]}, lambda x: fn(x, axis)

"""What bench/oracle.py compares: for each op PyTorch's counterpart, and how its calls are drawn.

A draw gives the inputs, the attributes, and the function of the inputs. Inputs are made in double
and rounded to the dtype of the call; those of whole numbers stay as they are. Where a result bends
at the zero of a sum, the function has a `bends`, which gives that sum: beside its zero a rounding
decides about the slope."""
import math
import random as choose

import torch
import torch.nn.functional as F


ROUNDING = {"kind": torch.float64}  # what the call's results are rounded to


def size():
    """Empty, one, around powers of two and vectors, and odd ones."""
    return choose.choice([0, 1, 1, 2, 3, 5, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65])


def shape(least=0, most=4, empty=True):
    sides = [size() for _ in range(choose.randint(least, most))]
    while math.prod(sides) > 20000:
        sides[sides.index(max(sides))] = 3
    return [s if s or empty else 2 for s in sides]


def real(sides, low=-2.0, high=2.0):
    return torch.rand(sides, dtype=torch.float64) * (high - low) + low


def whole(sides, below, kind=None):
    return torch.randint(0, max(below, 1), sides,
                         dtype=kind or choose.choice([torch.int32, torch.int64]))


def narrowed(sides):
    """A shape that broadcasts against this one."""
    cut = sides[choose.randint(0, len(sides)):] if sides else []
    return [1 if choose.random() < 0.3 else s for s in cut]


def unary(fn, low=-4.0, high=4.0, **attributes):
    return lambda: ([real(shape(), low, high)], attributes, fn)


def binary(fn, low=-2.0, high=2.0, **attributes):
    def draw():
        sides = shape()
        return [real(sides, low, high), real(narrowed(sides), low, high)], attributes, fn
    return draw


def axes_of(sides):
    count = choose.randint(1, len(sides)) if sides else 0
    return choose.sample(range(-len(sides), 0), count)


def fold(fn, empty=True):
    """fn(x, axes, keep)"""
    def draw():
        sides = shape(1, 4, empty)
        axes, keep = axes_of(sides), choose.random() < 0.5
        return ([real(sides)], {"axes": axes, "keep": keep}, lambda x: fn(x, axes, keep))
    return draw


def along(fn, empty=True, low=-2.0, high=2.0, **more):
    """fn(x, axis)"""
    def draw():
        sides = shape(1, 4, empty)
        axis = choose.randrange(-len(sides), len(sides))
        return [real(sides, low, high)], {"axis": axis, **more}, lambda x: fn(x, axis)
    return draw


def distinct(draw):
    """Elements that no rounding makes equal, for what has an order."""
    def changed():
        inputs, attributes, fn = draw()
        n = inputs[0].numel()
        values = torch.randperm(n).double() % 255 - 127 if n > 250 else \
            torch.randperm(n).double() - n // 2
        return [values.reshape(inputs[0].shape)] + inputs[1:], attributes, fn
    return changed


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


def norm(kind):
    def draw():
        sides = shape(1, 3, False)
        width = sides[-1] = max(sides[-1], 2)
        eps = choose.choice([1e-5, 1e-3, 1.0])
        add = kind.startswith("add_")
        inputs = [real(sides, -1, 3)] + ([real(sides)] if add else [])
        inputs += [real([width], 0.5, 2)] + ([real([width])] if "layer" in kind else [])

        def fn(x, *rest):
            # The norm is that of the sum as it is given back.
            total = (x + rest[0]).to(ROUNDING["kind"]).to(x.dtype) if add else x
            rest = rest[1:] if add else rest
            if "layer" in kind:
                y = F.layer_norm(total, [width], rest[0], rest[1], eps)
            else:
                y = F.rms_norm(total, [width], rest[0], eps)
            return (y, total) if add else y
        return inputs, {"eps": eps}, fn
    return draw


def batchnorm():
    sides = [choose.randint(2, 5), choose.randint(1, 9), choose.randint(1, 9)]
    inputs = [real(sides, -1, 3), real([sides[1]], 0.5, 2), real([sides[1]])]
    return (inputs, {"axis": 1, "train": True, "eps": 1e-3, "momentum": 0.1},
            lambda x, g, b: F.batch_norm(x, None, None, g, b, True, 0.1, 1e-3))


def groupnorm():
    groups, each = choose.randint(1, 4), choose.randint(1, 5)
    sides = [choose.randint(1, 4), groups * each, choose.randint(2, 9), choose.randint(1, 9)]
    inputs = [real(sides, -1, 3), real([sides[1]], 0.5, 2), real([sides[1]])]
    return (inputs, {"axis": 1, "groups": groups, "eps": 1e-3},
            lambda x, g, b: F.group_norm(x, groups, g, b, 1e-3))


def columns(back):
    def draw():
        window, stride = [choose.randint(1, 4) for _ in "hw"], [choose.randint(1, 3) for _ in "hw"]
        padding, dilation = [choose.randint(0, 2) for _ in "hw"], [choose.randint(1, 2) for _ in "hw"]
        sides = [choose.randint(8, 12) for _ in "hw"]
        given = {"window": window, "stride": stride, "padding": padding, "dilation": dilation}
        rest = (window, dilation, padding, stride)
        x = real([choose.randint(1, 3), choose.randint(1, 4), *sides])
        if not back:
            return [x], given, lambda x: F.unfold(x, *rest)
        return [F.unfold(x, *rest)], {"size": sides, **given}, lambda x: F.fold(x, sides, *rest)
    return draw


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


def recurrence():
    sides, reverse = [choose.randint(1, 3), choose.randint(1, 6)], choose.random() < 0.5
    def stepped(a, x):
        a, x = (t.flip(1) if reverse else t for t in (a, x))
        y = [x[:, 0]]
        for i in range(1, sides[1]):
            y.append(a[:, i] * y[-1] + x[:, i])
        y = torch.stack(y, 1)
        return y.flip(1) if reverse else y
    return [real(sides), real(sides)], {"axis": 1, "reverse": reverse}, stepped


def ctc_loss():
    steps, batch, classes, most = (choose.randint(*b) for b in ((4, 9), (1, 3), (2, 5), (1, 3)))
    targets = torch.randint(1, classes, (batch, most))
    lengths = [torch.tensor([choose.randint(1, n) for _ in range(batch)]) for n in (steps, most)]
    # PyTorch gives the gradient of what a log_softmax before it got: that of log_probs lacks their
    # exponentials.
    def loss(x, *rest):
        given = torch.arange(steps)[:, None] < rest[1]
        more = (x.detach().exp() * (x - x.detach())).sum(-1)
        return F.ctc_loss(x, *rest, reduction="none") - (more * given).sum(0)
    x = F.log_softmax(real([steps, batch, classes]), -1)
    return [x, targets, *lengths], {"blank": 0}, loss


def pool(kind):
    def draw():
        window, stride = [choose.randint(1, 4) for _ in "hw"], [choose.randint(1, 3) for _ in "hw"]
        padding = [choose.randint(0, w // 2) for w in window]
        ceil = choose.random() < 0.5
        sides = [choose.randint(1, 3), choose.randint(1, 4), choose.randint(4, 20),
                 choose.randint(4, 20)]
        given = {"window": window, "stride": stride, "padding": padding, "ceil_mode": ceil}
        if kind == "max":
            return ([real(sides)], given,
                    lambda x: F.max_pool2d(x, window, stride, padding, 1, ceil))
        count = choose.random() < 0.5
        return ([real(sides)], {**given, "count_include_pad": count},
                lambda x: F.avg_pool2d(x, window, stride, padding, ceil, count))
    return draw


def conv(dims, fn):
    """Images that the padded kernel fits into, in groups or not."""
    def draw():
        groups = choose.choice([1, 1, 1, 2, 3])
        each, results = choose.choice([1, 2, 3, 5]), choose.choice([1, 2, 3, 8])
        kernel, stride, dilation = ([choose.randint(1, n) for _ in range(dims)]
                                    for n in (4 if dims == 2 else 3, 3, 2))
        padding = [choose.randint(0, 3) for _ in range(choose.choice([1, dims, 2 * dims]))]
        around = padding if len(padding) == 2 * dims else [
            padding[d if len(padding) > 1 else 0] for d in range(dims) for _ in "be"]
        least = [(kernel[d] - 1) * dilation[d] + 1 - around[2 * d] - around[2 * d + 1]
                 for d in range(dims)]
        sides = [choose.randint(1, 3), groups * each] + [
            max(m, 1) + choose.randint(0, 6 if dims == 2 else 2) for m in least]
        inputs = [real(sides), real([groups * results, each] + kernel)]
        if choose.random() < 0.7:
            inputs.append(real([groups * results]))
        pads = [p for d in reversed(range(dims)) for p in around[2 * d:2 * d + 2]]
        return (inputs, {"stride": stride, "padding": padding, "dilation": dilation,
                         "groups": groups},
                lambda x, w, b=None: fn(F.pad(x, pads), w, b, stride, 0, dilation, groups))
    return draw


def adaptive(fn):
    def draw():
        out = [choose.randint(1, 9) for _ in "hw"]
        sides = [choose.randint(1, 3), choose.randint(1, 4), choose.randint(1, 20),
                 choose.randint(1, 20)]
        return [real(sides)], {"size": out}, lambda x: fn(x, out)
    return draw


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
    return ([real(sides), whole([size()], sides[axis])], {"axis": axis},
            lambda x, i: x.index_select(axis, i.long()))


def gathering(scatter):
    def draw():
        sides = shape(1, 3, False)
        axis = choose.randrange(len(sides))
        places = list(sides)
        places[axis] = size()
        index = whole(places, sides[axis])
        if scatter:
            return ([real(sides), index, real(places)], {"axis": axis},
                    lambda x, i, s: x.scatter_add(axis, i.long(), s))
        return [real(sides), index], {"axis": axis}, lambda x, i: x.gather(axis, i.long())
    return draw


NUMBERS = {"slopes", "sinks"}  # inputs that are in f32, but in f64 where the call is


def attention():
    b, g, d = choose.randint(1, 2), choose.randint(1, 2), choose.choice([8, 16, 32, 64])
    h, t, causal = g * choose.randint(1, 3), choose.randint(1, 70), choose.random() < 0.5
    s = t if causal else choose.randint(1, 70)
    inputs = [real([b, h, t, d]), real([b, g, s, d]), real([b, g, s, d])]
    if choose.random() < 0.4:
        return (inputs, {"causal": causal},
                lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal,
                                                               enable_gqa=True))
    return scored(inputs, causal, t, s)


def scored(inputs, causal, t, s):
    """Attention with scores that are changed, of which PyTorch has the parts alone."""
    heads, cap, left = inputs[0].shape[1], choose.choice([0.0, 0.0, 2.0, 30.0]), 0
    given, named = {"causal": causal}, {}
    if cap:
        given["soft_cap"] = cap
    if choose.random() < 0.4:
        left = given["window_left"] = choose.randint(1, 40)
    for name, low, high in (("slopes", 0.01, 0.5), ("sinks", -2.0, 2.0)):
        if choose.random() < 0.5:
            named[len(inputs)] = name
            inputs.append(real([heads], low, high))
    if choose.random() < 0.4:
        named[len(inputs)] = "bias"
        # Not the same for all keys: that changes no weight, and its gradient is rounding alone.
        sides = [1 if choose.random() < 0.4 else n for n in (inputs[0].shape[0], heads, t)]
        inputs.append(real([*sides, s]))
    position = torch.arange(t)[:, None] + s - t
    distance = position - torch.arange(s)
    hidden = distance >= left if left else torch.zeros(t, s, dtype=torch.bool)
    if causal:
        hidden = hidden | (distance < 0)

    def fn(q, k, v, *others):
        extra = {named[i + 3]: x.to(q.dtype) for i, x in enumerate(others)}
        extra = {k: x if k == "bias" else x[:, None, None] for k, x in extra.items()}
        k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
        score = q @ k.mT / math.sqrt(q.shape[-1])
        score = cap * torch.tanh(score / cap) if cap else score
        if "slopes" in extra:
            score = score - extra["slopes"] * distance.abs().to(q.dtype)
        score = score + extra.get("bias", 0)
        score = score.masked_fill(hidden, -1e30 if q.dtype != torch.float16 else -6e4)
        sink = extra.get("sinks", torch.full((heads, 1, 1), -6e4, dtype=q.dtype))
        sink = sink.expand(q.shape[0], -1, q.shape[2], -1)
        p = torch.softmax(torch.cat([score, sink], -1), -1)[..., :-1]
        return p.masked_fill(hidden, 0) @ v
    fn.named = named
    return inputs, given, fn


def matmul(factor=None):
    def draw():
        turn_a, turn_b = choose.random() < 0.5, choose.random() < 0.5
        m, k, n, batch = size(), size(), size(), shape(0, 1)
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
        lead, k, n = shape(1, 2), size(), size() or 1
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
        part[axis] = size()
        parts.append(real(part))
    return parts, {"axis": axis}, lambda *x: torch.cat(x, axis)


def constant(fn):
    def draw():
        sides = shape()
        return [], {"dtype": "f64", "shape": sides}, lambda: fn(sides, dtype=torch.float64)
    return draw


def arange():
    start, step = choose.randint(-5, 5) / 2, choose.choice([-2, -0.75, 0.5, 1, 3])
    stop = start + step * (size() + choose.choice([0, 0.5]))
    return ([], {"dtype": "f64", "start": start, "stop": stop, "step": step},
            lambda: torch.arange(start, stop, step, dtype=torch.float64))


def eye():
    rows, columns, diagonal = size(), size(), choose.randint(-3, 3)
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

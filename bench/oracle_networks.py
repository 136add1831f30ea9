"""Of layers of networks PyTorch's counterparts, as bench/oracle_ops.py has them of other ops."""
import math
import random as choose

import torch
import torch.nn.functional as F

from oracle_draw import ROUNDING, real, shape


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
    steps, batch, classes, most = (choose.randint(*b) for b in ((6, 9), (1, 3), (2, 5), (1, 3)))
    targets = torch.randint(1, classes, (batch, most))
    # Room for all targets, and a blank between equal ones: without, PyTorch's gradient is NaN.
    lengths = [torch.tensor([choose.randint(least, n) for _ in range(batch)])
               for least, n in ((2 * most, steps), (1, most))]
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

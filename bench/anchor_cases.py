"""Anchors of ops that bench/oracle_ops.py has no draw for: codes of few bits, changes in place,
random numbers and steps of optimizers. Each case is op, attributes, inputs, results, gradients and
the source. Numbers that pass through f32 or codes are chosen so that they are exact there."""
import math

import torch
import torch.nn.functional as F

TORCH = f"PyTorch {torch.__version__}, CPU, double"
YARN = "YaRN's formulas as transformers 5.24 has them, in double by " + TORCH
PAPER = "Salmon et al. 2011, checked against the known answers of Random123"
SEED = 7  # of the random numbers in tests/ops/anchors.c


def real(*shape):
    return (torch.rand(shape, dtype=torch.float64) * 4 - 2).mul(64).round() / 64


def whole(*shape, most=4):
    return torch.randint(-most, most + 1, shape).double()


def scales(*shape):
    return torch.tensor(2.0).pow(torch.randint(-3, 3, shape).float())


def graded(fn, leaves, weighed):
    """Results, and the gradients of the leaves that have some."""
    leaves = [t.clone().requires_grad_() if t is not None and t.dtype == torch.float64 else t
              for t in leaves]
    results = fn(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    reals = [t for t in leaves if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(weighed(results), reals, allow_unused=True))
    grads = [next(found) if t is not None and t.requires_grad else None for t in leaves]
    return [r.detach() for r in results], grads


def products():
    y, a, b, p = real(2, 3), real(2, 4), real(4, 3), real(3, 2)
    yield "matmul_into", {}, [y, a, b], [a @ b], [], TORCH
    yield ("matmul_into", {"transpose_a": True, "transpose_b": True}, [y, a.T.contiguous(),
           b.T.contiguous()], [a @ b], [], TORCH)
    yield "matmul_add", {}, [y, a, b], [torch.addmm(y, a, b)], [], TORCH
    yield ("matmul_list", {}, [a, b, y, p, y, torch.zeros(3, 3, dtype=torch.float64)],
           [a @ b, p @ y], [], TORCH)
    x = real(3)
    yield "copy_into", {}, [y, x], [y.clone().copy_(x)], [], TORCH


def attention(weighed):
    for causal in (False, True):
        heads, groups, size, tokens = 4, 2, 3, 3
        qkv = real(2, tokens, (heads + 2 * groups) * size)

        def fn(t):
            q, k, v = t.split([heads * size, groups * size, groups * size], -1)
            q, k, v = (u.unflatten(-1, (-1, size)).transpose(1, 2) for u in (q, k, v))
            o = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
            return o.transpose(1, 2).flatten(2)
        results, grads = graded(fn, [qkv], weighed)
        yield ("qkv_attention", {"heads": heads, "kv_heads": groups, "causal": causal}, [qkv],
               results, grads, TORCH)


def averages():
    average, value = real(2, 3), real(2, 3)
    ema = torch.optim.swa_utils.get_ema_multi_avg_fn(0.875)
    ema([after := average.clone()], [value], 1)
    factors = torch.tensor([0.125, 1, 1, 0.125, 1], dtype=torch.float64)
    settings = torch.zeros(1, 2, dtype=torch.float64)
    yield ("average_step", {"decay": 0.875}, [factors, settings, average, value, None, None, None],
           [after], [], TORCH)


def yarned(frequency, rule, prefix="rope_"):
    """Frequencies and what cosines and sines are multiplied by, of _compute_yarn_parameters in
    transformers 5.24, which has it all in f32; the base is the first frequency over the second, to
    the power of their number."""
    factor, original = rule[prefix + "factor"], rule[prefix + "original"]
    size = 2 * len(frequency)
    base = float(frequency[0] / frequency[1]) ** (size / 2)

    def bound(turns):
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
    low, high = bound(rule.get(prefix + "high", 32)), bound(rule.get(prefix + "low", 1))
    if not rule.get(prefix + "untruncated"):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = (torch.arange(size // 2, dtype=torch.float64) - low) / (high - low + (low == high) * 1e-3)
    stays = 1 - ramp.clamp(0, 1)
    return (frequency / factor * (1 - stays) + frequency * stays,
            rule.get(prefix + "amplitude", 0.1 * math.log(factor) + 1 if factor > 1 else 1))


def yarns(weighed):
    for rule in ({"base": 10000, "factor": 4, "original": 2048},
                 {"base": 100, "factor": 3, "original": 40, "offset": 30, "low": 0.5, "high": 2,
                  "untruncated": True, "amplitude": 0.75}):
        x = real(1, 2, 2, 8)
        frequency, amplitude = yarned(torch.tensor([rule["base"] ** (-i / 4) for i in range(4)],
                                                   dtype=torch.float64), rule, "")

        def fn(t):
            angle = (torch.arange(2)[:, None] + rule.get("offset", 0)) * frequency
            cosine, sine = amplitude * angle.cos(), amplitude * angle.sin()
            u, v = t.chunk(2, -1)
            return torch.cat([u * cosine - v * sine, v * cosine + u * sine], -1)
        results, grads = graded(fn, [x], weighed)
        yield "rope", {**rule, "yarn": True}, [x], results, grads, YARN


def scaled(frequency, rule):
    """Llama 3's: by wavelengths, against those that stand low and high times in the original."""
    if not rule:
        return frequency
    waves = rule["rope_original"] / (2 * math.pi / frequency)
    smooth = (waves - rule["rope_low"]) / (rule["rope_high"] - rule["rope_low"])
    mixed = (1 - smooth) * frequency / rule["rope_factor"] + smooth * frequency
    slow = torch.where(waves < rule["rope_low"], frequency / rule["rope_factor"], mixed)
    return torch.where(waves > rule["rope_high"], frequency, slow)


def reading(rows):
    heads, groups, size, length = 4, 2, 4, 5
    for base, at, scaling in rows:
        qkv, keys, values = real(2, 1, (heads + 2 * groups) * size), *(
            real(2, groups, length, size) for _ in range(2))
        q, k, v = qkv.split([heads * size, groups * size, groups * size], -1)
        q, k, v = (t.unflatten(-1, (-1, size)).transpose(1, 2) for t in (q, k, v))
        new_keys, new_values, o = keys.clone(), values.clone(), []
        for b in range(2):
            p, amplitude = at[b % len(at)], 1
            frequency = torch.tensor([float(base or 1) ** (-2 * i / size)
                                      for i in range(size // 2)], dtype=torch.float64)
            if scaling.get("rope_yarn"):
                frequency, amplitude = yarned(frequency, scaling)
            else:
                frequency = scaled(frequency, scaling)
            angle = p * frequency
            turn = torch.polar(torch.full_like(angle, amplitude), angle * (base > 0))
            q_b, k_b = (torch.view_as_real(torch.complex(*t[b].chunk(2, -1)) * turn)
                        .transpose(-1, -2).flatten(-2) for t in (q, k))
            new_keys[b, :, p], new_values[b, :, p] = k_b[:, 0], v[b, :, 0]
            o.append(F.scaled_dot_product_attention(
                q_b[None], new_keys[b:b + 1, :, :p + 1], new_values[b:b + 1, :, :p + 1],
                enable_gqa=True).transpose(1, 2).flatten(2))
        yield ("qkv_attention_read", {"heads": heads, "rope_base": base, **scaling},
               [qkv, keys, values, torch.tensor(at)], [torch.cat(o), new_keys, new_values], [],
               YARN if scaling.get("rope_yarn") else TORCH)


def scored_reading():
    """As reading has it, where scores are changed and few keys seen: of each text apart."""
    heads, groups, size, length = 4, 2, 4, 6
    for at, place, window, cap, sloped, sunk in (([4, 2], None, 2, 0, 0, 0), ([3], None, 0, 2, 0, 0),
                                                 ([5, 3], None, 0, 0, 1, 0), ([4], None, 0, 0, 0, 1),
                                                 ([9, 5], [5, 1], 3, 1.5, 1, 1)):
        qkv, keys, values = real(2, 1, (heads + 2 * groups) * size), *(
            real(2, groups, length, size) for _ in range(2))
        slopes, sinks = real(heads).abs() if sloped else None, real(heads) if sunk else None
        new_keys, new_values, o = keys.clone(), values.clone(), []
        for b in range(2):
            p, spot = at[b % len(at)], (place or at)[b % len(at)]
            q, k, v = qkv[b, 0].split([heads * size, groups * size, groups * size])
            angle = p * torch.tensor([1, 0.1], dtype=torch.float64)
            turn = torch.polar(torch.ones_like(angle), angle)
            q, k = (torch.view_as_real(
                torch.complex(*t.unflatten(-1, (-1, size)).chunk(2, -1)) * turn)
                .transpose(-1, -2).flatten(-2) for t in (q, k))
            new_keys[b, :, spot], new_values[b, :, spot] = k, v.unflatten(-1, (-1, size))
            seen = slice(max(0, spot + 1 - window) if window else 0, spot + 1)
            kept, valued = (t[b, :, seen].repeat_interleave(heads // groups, 0)
                            for t in (new_keys, new_values))
            score = (kept @ q[:, :, None])[:, :, 0] / size ** 0.5
            score = cap * torch.tanh(score / cap) if cap else score
            if sloped:
                score = score - slopes[:, None] * (spot - torch.arange(length)[seen])
            if sunk:
                score = torch.cat((score, sinks[:, None]), 1)
            weight = score.softmax(1)[:, :kept.shape[1]]
            o.append((weight[:, None] @ valued).flatten()[None, None])
        given = [qkv, keys, values, torch.tensor(at), slopes, sinks, place and torch.tensor(place)]
        yield ("qkv_attention_read", {"heads": heads, "rope_base": 100, "window_left": window,
                                      "soft_cap": cap}, given,
               [torch.cat(o), new_keys, new_values], [], TORCH)


def draws():
    """From all tokens in order, by numbers of Philox whose third word is its own."""
    for temperature, k, p in ((1, 0, 0), (0.5, 6, 0), (2, 0, 0.75), (-1, 0, 0), (1.5, 7, 0.9)):
        logits, counters, tokens = real(2, 9), torch.tensor([40, 3]), []
        logits[1, 4] = logits[1, 7]
        for row in range(2):
            w = philox(11, (80 + row, 0, 0x73616d70, 0))
            u = (w[0] << 32 | w[1]) >> 11
            order = logits[row].sort(descending=True, stable=True)
            weights = (order.values / abs(temperature)).softmax(0)[:k or None]
            if p:
                before = weights.cumsum(0) - weights
                weights = weights[before < p * weights.sum()]
            at = int((weights.cumsum(0) <= u / 2 ** 53 * weights.sum()).sum())
            tokens.append(int(order.indices[0 if temperature < 0 else at]))
        yield ("draw_token", {"temperature": temperature, "top_k": k, "top_p": p, "seed": 11},
               [logits, counters], [torch.tensor(tokens, dtype=torch.int32), counters + 1], [],
               "PyTorch's order and softmax, with numbers of " + PAPER)


def masked(weighed):
    """Attention with a causal mask alone, whose draws in oracle_ops.py may have more options."""
    for batch, heads, groups, tokens, size in ((1, 2, 1, 8, 8), (2, 2, 2, 2, 16), (1, 3, 1, 5, 8)):
        leaves = [real(batch, n, tokens, size) for n in (heads, groups, groups)]
        results, grads = graded(lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True), leaves, weighed)
        yield "attention", {"causal": True}, leaves, results, grads, TORCH


def codes(weighed):
    x = whole(2, 3) * 1.25
    results, grads = graded(lambda t: (t, t.mT.contiguous()), [x], weighed)
    yield "cast_transpose", {"dtype": "f64"}, [x], results, grads, TORCH
    for name, dtype in (("f8e4m3", torch.float8_e4m3fn), ("f8e5m2", torch.float8_e5m2)):
        y = real(3, 2).to(dtype)
        x = y.double() + 2.0 ** -12  # rounded back to the code
        yield "cast_transpose", {"dtype": name}, [x], [y, y.double().mT.to(dtype)], [], TORCH
    most = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}
    for name, dtype in (("f8e4m3", torch.float8_e4m3fn), ("f8e5m2", torch.float8_e5m2),
                        ("i8", torch.int8)):
        for rows in (0, 1):
            count = 3 if rows else 1
            x = (real(3, 4) * 20 + 0.125).clamp(-60, 60)
            size = most[dtype] * scales(count, 1).double()  # so that scales are powers of two
            x[0:3 if rows else 1, 0] = size[:, 0]
            x = x.clamp(-size, size)
            scale = (size / most[dtype]).float()
            y = x / scale.double()
            y = y.round().to(dtype) if dtype == torch.int8 else y.to(dtype)
            yield ("quantize", {"dtype": name, "block_rows": rows, "block_columns": 0}, [x],
                   [y, scale], [], TORCH)
            yield ("dequantize", {"dtype": "f32"}, [y, scale], [y.float() * scale], [],
                   TORCH)
    a, b = whole(2, 16).to(torch.float8_e4m3fn), whole(16, 16).to(torch.float8_e4m3fn)
    for rows in (False, True):
        sa, sb = scales(2 if rows else 1, 1), scales(16 if rows else 1, 1)
        y = (a.double() * sa.double()) @ (b.double() * sb.double()).T
        yield "scaled_matmul", {"dtype": "f32"}, [a, b, sa, sb, None], [y.float()], [], TORCH
    i, j = whole(2, 16, most=100).to(torch.int8), whole(16, 16, most=100).to(torch.int8)
    yield ("scaled_matmul", {"dtype": "i32"}, [i, j], [torch._int_mm(i.repeat(16, 1), j.T)[:2]], [],
           TORCH)
    x, w = whole(4, 16).to(torch.float8_e4m3fn), whole(2, 16, 16).to(torch.float8_e5m2)
    sx, sw = scales(1, 1), scales(2)
    parts = [x[:1].double() @ w[0].double().T * sw[0], x[1:3].double() @ w[1].double().T * sw[1],
             torch.zeros(1, 16, dtype=torch.float64)]
    yield ("scaled_grouped_matmul", {"dtype": "f32"}, [x, w, torch.tensor([1, 3]), sx, sw],
           [(torch.cat(parts) * sx).float()], [], TORCH)
    x, w, bias, scale = whole(2, 4), whole(3, 4) / 2, whole(3), scales(1)[0]
    y = F.linear(x, w, bias)
    yield ("linear_quantize", {"dtype": "f8e5m2"}, [x, w, scale, bias],
           [(y / scale).to(torch.float8_e5m2), y.abs().max().float().reshape(1, 1)], [], TORCH)


def packed(numbers):
    """Two a byte, the lower half first."""
    return (numbers[:, 0::2] | numbers[:, 1::2] << 4).to(torch.uint8)


def low_bits(weighed):
    scale = scales(3, 2)
    full = scale.double().repeat_interleave(4, 1)
    number = torch.randint(-126, 127, (3, 8))
    number[:, 0::4] = 127
    w = number * full
    # PyTorch's own quantization of each group as a channel.
    channels = torch.quantize_per_channel(w.reshape(6, 4).float(), scale.flatten(),
                                          torch.zeros(6, dtype=torch.int64), 0, torch.qint8)
    assert torch.equal(channels.int_repr().reshape(3, 8), number.to(torch.int8))
    eight = channels.int_repr().reshape(3, 8)
    back = channels.dequantize().reshape(3, 8).double()
    yield "pack_int8", {"group": 4}, [w], [eight, scale], [], TORCH
    yield "unpack_int8", {"dtype": "f32"}, [eight, scale], [back.float()], [], TORCH
    x, bias = real(2, 8), real(3)
    results, grads = graded(lambda t, u: F.linear(t, back, u), [x, bias], weighed)
    yield ("linear_int8", {}, [x, eight, scale, bias], results, [grads[0], None, None, grads[1]],
           TORCH)
    number = torch.randint(0, 16, (3, 8))
    number[:, 0::4], number[:, 1::4] = 0, 15
    zero = torch.randint(1, 15, (3, 2))
    w = (number - zero.repeat_interleave(4, 1)) * full
    channels = torch.quantize_per_channel(w.reshape(6, 4).float(), scale.flatten(),
                                          zero.flatten(), 0, torch.quint8)
    back = channels.dequantize().reshape(3, 8).double()
    assert torch.equal(back, w)
    four, zero = packed(number), zero.to(torch.uint8)
    yield ("pack_int4", {"group": 4, "symmetric": False}, [w], [four, scale, zero], [], TORCH)
    yield "unpack_int4", {"dtype": "f32"}, [four, scale, zero], [back.float()], [], TORCH
    results, grads = graded(lambda t, u: F.linear(t, back, u), [x, bias], weighed)
    yield ("linear_int4", {}, [x, four, scale, zero, bias], results,
           [grads[0], None, None, None, grads[1]], TORCH)
    number = torch.randint(1, 16, (3, 8))
    number[:, 0::4] = 15
    w = (number - 8) * full
    yield ("pack_int4", {"group": 4, "symmetric": True}, [w],
           [packed(number), scale, torch.full((3, 2), 8, dtype=torch.uint8)], [], "by hand")


def philox(key, counter):
    c, k = list(counter), [key & 0xffffffff, key >> 32]
    for _ in range(10):
        p, q = 0xd2511f53 * c[0], 0xcd9e8d57 * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q & 0xffffffff, (p >> 32) ^ c[3] ^ k[1], p & 0xffffffff]
        k = [(k[0] + 0x9e3779b9) & 0xffffffff, (k[1] + 0xbb67ae85) & 0xffffffff]
    return c


assert philox(0, [0] * 4) == [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]
assert philox(0x299f31d0a4093822, [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344]) == \
    [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]


def words(count):
    return [w for block in range((count + 3) // 4) for w in philox(SEED, [block, 0, 0, 0])][:count]


def doubles(count):
    """As C++ and Python make a double of 53 bits from two words."""
    w = words(2 * count)
    return [((a >> 5) * 67108864.0 + (b >> 6)) / 9007199254740992.0 for a, b in zip(w[0::2], w[1::2])]


def random_numbers():
    y = torch.tensor([w / 2 ** 24 * 4 - 2 for w in (w >> 8 for w in words(7))])
    yield "uniform", {"dtype": "f32", "shape": [7], "low": -2, "high": 2}, [], [y], [], PAPER
    y = torch.tensor([u * 2 - 1 for u in doubles(5)], dtype=torch.float64)
    yield "uniform", {"dtype": "f64", "shape": [5], "low": -1, "high": 1}, [], [y], [], PAPER
    u = doubles(6)
    pairs = [(math.sqrt(-2 * math.log(a + 2.0 ** -53)), 2 * math.pi * b)
             for a, b in zip(u[0::2], u[1::2])]
    z = [r * f(t) for r, t in pairs for f in (math.cos, math.sin)]
    y = torch.tensor([1.5 + 2 * v for v in z], dtype=torch.float64)
    yield ("normal", {"dtype": "f64", "shape": [6], "mean": 1.5, "deviation": 2}, [], [y], [],
           "Box and Muller 1958 of numbers of " + PAPER)


def kept(count, p):
    """Which elements stay: eight 16-bit halves a block, low ones first."""
    halves = [h for w in words((count + 7) // 8 * 4) for h in (w & 0xffff, w >> 16)]
    return torch.tensor([float(h >= round(p * 65536)) for h in halves[:count]],
                        dtype=torch.float64)


def dropouts(weighed):
    for p in (0, 0.25, 1):
        x, other, w, bias = real(3, 5), real(3, 5), real(5, 4), real(5)
        mask = kept(15, p).reshape(3, 5) / (1 - p if p < 1 else 1)
        results, grads = graded(lambda t: t * mask, [x], weighed)
        yield "dropout", {"p": p}, [x], results, grads, PAPER
        results, grads = graded(lambda r, t: r + t * mask, [other, x], weighed)
        yield "dropout_add", {"p": p}, [other, x], results, grads, PAPER
        z = real(3, 4)
        results, grads = graded(lambda t, u, v, r: F.linear(t, u, v) * mask + r, [z, w, bias, other],
                                weighed)
        yield "linear_dropout", {"p": p}, [z, w, bias, other], results, grads, PAPER


def stepped(make, count):
    """A parameter and gradient before step `count`, its states then and all after it."""
    value = torch.nn.Parameter(real(2, 3))
    optimizer = make([value])
    for _ in range(count):
        before = value.detach().clone(), {k: v.clone() for k, v in optimizer.state[value].items()
                                          if v is not None}
        value.grad = real(2, 3)
        optimizer.step()
    return before[0], value.grad, before[1], value.detach(), optimizer.state[value]


def coded(values, span, signed):
    """A row of codes of 8 bits, see src/optim/codes.h, for numbers that have one each."""
    top = max((math.frexp(v)[1] for v in values if v), default=0)
    row = [0] * 260
    for i, v in enumerate(values):
        fraction, exponent = math.frexp(abs(v))
        if v:
            row[i] = (span + exponent - top << 3) + int(16 * fraction) + (128 * (v < 0) * signed)
    row[256] = top + 126 if any(values) else 0
    return torch.tensor([row], dtype=torch.uint8)


def coded_steps(rate, decay, b1, b2, settings):
    """Steps of AdamW whose states are all sums of few powers of two."""
    x, g = real(2, 3), torch.tensor([[1, -.5, 2], [.25, -4, 0]], dtype=torch.float64)
    first, second = torch.zeros_like(g), torch.zeros_like(g)
    for t in (1, 2):
        corrected, root = rate / (1 - b1 ** t), 1 / math.sqrt(1 - b2 ** t)
        factors = torch.tensor([corrected, root, 1, rate, 1], dtype=torch.float64)
        was = [coded(first.reshape(-1).tolist(), 14, True),
               coded(second.reshape(-1).tolist(), 30, False)]
        first, second = b1 * first + (1 - b1) * g, b2 * second + (1 - b2) * g * g
        y = x - (rate * decay * x + corrected * first / (second.sqrt() * root + 1e-3))
        yield ("adamw8", {"beta1": b1, "beta2": b2, "epsilon": 1e-3},
               [factors, settings, x, g, None] + was,
               [y, coded(first.reshape(-1).tolist(), 14, True),
                coded(second.reshape(-1).tolist(), 30, False)], [], "by hand")


def optimizers():
    rate, decay, b1, b2 = 0.125, 0.0625, 0.75, 0.875
    settings = torch.tensor([[1, decay]], dtype=torch.float64)
    for t in (1, 3):
        factors = torch.tensor([rate / (1 - b1 ** t), 1 / math.sqrt(1 - b2 ** t), 1, rate, 1],
                               dtype=torch.float64)
        x, g, was, y, state = stepped(lambda p: torch.optim.AdamW(
            p, lr=rate, betas=(b1, b2), eps=1e-3, weight_decay=decay), t)
        first = was.get("exp_avg", torch.zeros(2, 3, dtype=torch.float64))
        second = was.get("exp_avg_sq", torch.zeros(2, 3, dtype=torch.float64))
        yield ("adamw", {"beta1": b1, "beta2": b2, "epsilon": 1e-3},
               [factors, settings, x, g, None, first, second],
               [y, state["exp_avg"], state["exp_avg_sq"]], [], TORCH)
    yield from coded_steps(rate, decay, b1, b2, settings)
    factors = torch.tensor([rate, 1, 1, rate, 1], dtype=torch.float64)
    for nesterov in (False, True):
        x, g, was, y, state = stepped(lambda p: torch.optim.SGD(
            p, lr=rate, momentum=0.75, nesterov=nesterov, weight_decay=decay), 3)
        yield ("sgd", {"momentum": 0.75, "nesterov": nesterov},
               [factors, settings, x, g, None, was["momentum_buffer"], None],
               [y, state["momentum_buffer"]], [], TORCH)
    factors = torch.tensor([rate / (1 - b1 ** 3), 1 / math.sqrt(1 - b2 ** 3), 1, rate, 1],
                           dtype=torch.float64)
    x, g, was, y, state = stepped(lambda p: torch.optim.Adam(
        p, lr=rate, betas=(b1, b2), eps=1e-3, weight_decay=decay), 3)
    yield ("adam", {"beta1": b1, "beta2": b2, "epsilon": 1e-3},
           [factors, settings, x, g, None, was["exp_avg"], was["exp_avg_sq"]],
           [y, state["exp_avg"], state["exp_avg_sq"]], [], TORCH)
    factors = torch.tensor([rate, 1, 1, rate, 1], dtype=torch.float64)
    for momentum in (0, 0.75):
        x, g, was, y, state = stepped(lambda p: torch.optim.RMSprop(
            p, lr=rate, alpha=b2, eps=1e-3, momentum=momentum, weight_decay=decay), 3)
        kept = (lambda s: [s["square_avg"]] + ([s["momentum_buffer"]] if momentum else []))
        yield ("rmsprop", {"beta2": b2, "epsilon": 1e-3, "momentum": momentum},
               [factors, settings, x, g, None] + (kept(was) + [None])[:2], [y] + kept(state), [],
               TORCH)
    x, g, was, y, state = stepped(lambda p: torch.optim.Adagrad(
        p, lr=rate, eps=1e-3, weight_decay=decay), 3)
    yield ("adagrad", {"epsilon": 1e-3}, [factors, settings, x, g, None, was["sum"], None],
           [y, state["sum"]], [], TORCH)
    x, g, m = real(2, 3), real(2, 3), real(2, 3)
    update = (b1 * m + (1 - b1) * g).sign()
    yield ("lion", {"beta1": b1, "beta2": b2}, [factors, settings, x, g, None, m, None],
           [x - rate * (update + decay * x), b2 * m + (1 - b2) * g], [],
           "the program in Chen et al. 2023, Symbolic Discovery of Optimization Algorithms")
    # PyTorch's momentum is an average, this one a sum: all is 1 - 0.75 as large there.
    x, g, was, y, state = stepped(lambda p: torch.optim.Muon(p, lr=rate, momentum=0.75), 2)
    buffer, after = was["momentum_buffer"] * 4, state["momentum_buffer"] * 4
    yield ("muon", {"momentum": 0.75},
           [factors, settings, x, g, None, buffer, None],
           [g.lerp(after / 4, 0.75) * 4, after], [], TORCH)
    yield ("muon_step", {}, [factors, settings, x, g, None, None, None],
           [x - rate * (g + decay * x)], [], "by hand")
    value = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    value.grad = torch.tensor([3, 4, 12, 0], dtype=torch.float64) * 0.5
    norm = torch.nn.utils.clip_grad_norm_([value], 2.0)
    hyper = torch.tensor([rate, 2, 0.5], dtype=torch.float64)
    state = torch.tensor([2, b1 ** 2, b2 ** 2, 1], dtype=torch.float64)
    yield ("step_factors", {"beta1": b1, "beta2": b2}, [hyper, state, norm * 2],
           [torch.tensor([rate / (1 - b1 ** 3), 1 / math.sqrt(1 - b2 ** 3),
                          float(value.grad[0] / 3), rate, 1]).float(),
            torch.tensor([3, b1 ** 3, b2 ** 3, 1], dtype=torch.float64)], [], TORCH)
    yield ("target_share", {"ignore_index": -1, "dtype": "f64"}, [torch.tensor([2, -1, 0, 0, -1])],
           [torch.tensor(1 / 3, dtype=torch.float64)], [], "by hand")


def cases(weighed):
    yield from products()
    yield from attention(weighed)
    yield from codes(weighed)
    yield from low_bits(weighed)
    yield from random_numbers()
    yield from dropouts(weighed)
    yield from optimizers()
    yield from reading(((0, [2], {}), (100, [4, 1], {})))
    yield from draws()
    yield from averages()
    yield from reading(((100, [3], {"rope_factor": 2, "rope_original": 40, "rope_low": 0.5,
                                    "rope_high": 1.5}),))
    yield from yarns(weighed)
    yield from reading(((100, [3, 1], {"rope_factor": 4, "rope_original": 50, "rope_low": 0.5,
                                       "rope_high": 2, "rope_yarn": True}),))
    yield from scored_reading()
    yield from masked(weighed)

#!/usr/bin/env python3
"""Compares what cupola/functions.h and cupola/losses.h have, forward and gradient, with PyTorch on
random calls: bench/oracle.py does the same for the ops of the table."""
import ctypes
import random
import sys

import torch
import torch.nn.functional as F

from oracle import compare, parser_of
from oracle_binding import Failure, Ints, Library, rows_of

choose = random.Random()
REDUCTIONS = ["mean", "sum", "none", "batchmean"]


def real(*shape):
    return torch.randn(shape, dtype=torch.float64)


def sides(least, most, count):
    return [choose.randint(least, most) for _ in range(count)]


def numbers(values):
    return (ctypes.c_int64 * len(values))(*values)


def options(**fields):
    """A struct of options whose fields stand in this order: lists, then C types with values."""
    kinds = {list: Ints, int: ctypes.c_int, bool: ctypes.c_bool}
    kind = type("options", (ctypes.Structure,), {"_fields_": [("size", ctypes.c_size_t)] + [
        (key, kinds[type(value)]) for key, value in fields.items()]})
    made = kind(size=ctypes.sizeof(kind))
    made.hold = [numbers(v) for v in fields.values() if isinstance(v, list)]
    lists = iter(made.hold)
    for key, value in fields.items():
        setattr(made, key, Ints(next(lists), len(value)) if isinstance(value, list) else value)
    return made


# Each draw gives the inputs, what PyTorch makes of them, and the call: its name, the arguments
# behind the context, in which T(i) stands for input i and TS for the list of all, and how many
# results a call has that gives a status.
class T(int):
    pass


TS, OUT = "all inputs", "a list for results"


def roll():
    x, places, axis = real(*sides(1, 5, 3)), choose.randint(-9, 9), choose.randint(-3, 2)
    return [x], lambda x: x.roll(places, axis), ("roll", T(0), places, axis)


def masked_fill():
    shape = sides(1, 5, 2)
    mask = torch.rand(shape[1]) < 0.5
    return [real(*shape), mask], lambda x, m: x.masked_fill(m, 2.5), \
        ("masked_fill", T(0), T(1), 2.5)


def stack():
    shape, axis, count = sides(1, 4, 2), choose.randint(-3, 2), choose.randint(1, 4)
    return [real(*shape) for _ in range(count)], lambda *x: torch.stack(x, axis), \
        ("stack", TS, count, axis)


def index():
    x = real(*sides(2, 5, 3))
    count, places = choose.randint(1, 3), choose.randint(1, 6)
    lists = [torch.randint(-x.shape[i], x.shape[i], (places,)) for i in range(count)]
    return [x, *lists], lambda x, *at: x[at], \
        ("index", T(0), [T(i + 1) for i in range(count)], count)


def index_put():
    x, add = real(*sides(2, 5, 2)), choose.random() < 0.5
    places = choose.randint(1, 6)
    first = torch.randint(x.shape[0], (places,)) if add else \
        torch.randperm(x.shape[0])[:places]
    return [x, real(len(first), x.shape[1]), first], \
        lambda x, v, at: x.index_put((at,), v, accumulate=add), \
        ("index_put", T(0), T(1), [T(2)], 1, add)


def bag():
    rows, width, count, bags = choose.randint(2, 6), choose.randint(1, 5), choose.randint(0, 9), 3
    ends = sorted(choose.randint(0, count) for _ in range(bags - 1)) + [count]
    mean, ids = choose.random() < 0.5, torch.randint(rows, (count,))

    def theirs(table, ids, _):
        begins = torch.tensor([0] + ends[:-1])
        return F.embedding_bag(ids, table, begins, mode="mean" if mean else "sum")
    return [real(rows, width), ids, torch.tensor(ends)], theirs, \
        ("embedding_bag", T(0), T(1), T(2), mean)


def einsum():
    text = choose.choice(["ij,jk->ik", "bij,bjk->bik", "ij,ij->", "ij->ji", "bhd,bhe->bde",
                          "i,j->ij", "ijk,k->ij", "ij,jk,kl->il", "ij", "ba,a->", "abc,cd->dab",
                          "ij,ij,j->i"])
    size = {letter: choose.randint(1, 4) for letter in "abcdehijkl"}
    inputs = [real(*(size[x] for x in term)) for term in text.split("->")[0].split(",")]
    return inputs, lambda *x: torch.einsum(text, *x), ("einsum", TS, len(inputs), text.encode())


def along(name, fn, *more):
    def draw():
        x, axis, keep = real(*sides(1, 9, 2)), choose.randint(-2, 1), choose.random() < 0.5
        given = [m() for m in more]
        return [x], lambda x: fn(x, *given, axis, keep), (name, T(0), *given, axis, keep)
    return draw


def searchsorted():
    rows, count, m, right = *sides(1, 6, 3), choose.random() < 0.5
    ordered = torch.randint(0, 9, (rows, count)).double().sort(-1).values
    values = torch.randint(-1, 10, (rows, m)).double()
    return [ordered, values], lambda s, v: torch.searchsorted(s, v, right=right), \
        ("searchsorted", T(0), T(1), right)


def bincount():
    x, bins = torch.randint(0, 7, (choose.randint(1, 30),)), choose.randint(7, 10)
    return [x, real(*x.shape)], lambda x, w: torch.bincount(x, w.detach(), bins), \
        ("bincount", T(0), T(1), bins)


def cumprod():
    x, axis, reverse = real(*sides(1, 6, 2)), choose.randint(-2, 1), choose.random() < 0.5
    turn = (lambda x: x.flip(axis)) if reverse else (lambda x: x)
    return [x], lambda x: turn(turn(x).cumprod(axis)), ("cumprod", T(0), axis, reverse)


def inverse():
    n = choose.randint(1, 8)
    return [real(choose.randint(1, 3), n, n) + 3 * n * torch.eye(n)], torch.linalg.inv, \
        ("inverse", T(0))


def eigh():
    n = choose.randint(1, 8)
    return [real(choose.randint(1, 2), n, n)], \
        lambda a: torch.linalg.eigvalsh((a + a.mT) / 2), ("eigh", T(0))


def convolution(rank):
    def draw():
        groups = choose.randint(1, 2)
        images, size, out = choose.randint(1, 2), sides(5, 8, rank), groups * choose.randint(1, 3)
        x, w = real(images, 2 * groups, *size), real(out, 2, *sides(1, 3, rank))
        stride, padding, dilation = sides(1, 3, rank), sides(0, 2, rank), sides(1, 2, rank)
        made = options(stride=stride, padding=padding, same=False, dilation=dilation,
                       groups=groups)
        fn = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
        return [x, w, real(out)], \
            lambda x, w, b: fn(x, w, b, stride, padding, dilation, groups), \
            (f"conv{rank}d", T(0), T(1), T(2), made)
    return draw


def transposed(rank):
    def draw():
        groups = choose.randint(1, 2)
        out, kernel = choose.randint(1, 3), sides(1, 3, rank)
        stride, dilation = sides(1, 3, rank), sides(1, 2, rank)
        padding = [choose.randint(0, d * (k - 1) // 2) for k, d in zip(kernel, dilation)]
        more = [choose.randint(0, s - 1) for s in stride]
        x = real(choose.randint(1, 2), 2 * groups, *sides(2, 5, rank))
        fn = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
        made = options(stride=stride, padding=padding, output_padding=more, dilation=dilation,
                       groups=groups, same=False)
        return [x, real(2 * groups, out, *kernel), real(out * groups)], \
            lambda x, w, b: fn(x, w, b, stride, padding, more, groups, dilation), \
            (f"conv_transpose{rank}d", T(0), T(1), T(2), made)
    return draw


def pool3d(kind):
    def draw():
        window, stride = sides(1, 3, 3), sides(1, 3, 3)
        padding = [choose.randint(0, w // 2) for w in window]
        ceil = choose.random() < 0.5
        fields = {"stride": stride, "padding": padding, "dilation": [1, 1, 1], "ceil_mode": ceil}
        if kind == "avg":
            del fields["dilation"]
            fields["count_include_pad"] = True
        fn = (lambda x: F.max_pool3d(x, window, stride, padding, 1, ceil)) if kind == "max" else \
            (lambda x: F.avg_pool3d(x, window, stride, padding, ceil))
        return [real(2, 2, *sides(4, 7, 3))], fn, \
            (f"{kind}_pool3d", T(0), numbers(window), 3, options(**fields))
    return draw


def unpool():
    x, k = real(2, 2, *sides(4, 7, 2)), choose.randint(2, 3)
    y, at = F.max_pool2d(x, k, return_indices=True)
    return [y, at], lambda y, at: F.max_unpool2d(y, at, k, output_size=x.shape[2:]), \
        ("max_unpool2d", T(0), T(1), *x.shape[2:], False)


def rfft():
    x = real(*sides(1, 9, 2))
    axis = choose.randint(0, 1)
    return [x], lambda x: torch.view_as_real(torch.fft.rfft(x, dim=axis)), ("rfft", T(0), axis)


def irfft():
    n, rows = choose.randint(1, 12), choose.randint(1, 3)
    x = torch.view_as_real(torch.fft.rfft(real(rows, n)))
    return [x], lambda x: torch.fft.irfft(torch.view_as_complex(x), n), ("irfft", T(0), n, 1)


def response():
    n, alpha, beta, k = choose.randint(1, 5), choose.uniform(0.1, 2), choose.uniform(0.3, 1), 1.5
    return [real(2, *sides(1, 6, 2))], lambda x: F.local_response_norm(x, n, alpha, beta, k), \
        ("local_response_norm", T(0), n, alpha, beta, k)


def interpolate():
    mode, rank = choose.choice([(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (2, 2)])
    corners = mode > 0 and choose.random() < 0.5
    name = ("nearest", ["linear", "bilinear", "trilinear"][rank - 1], "bicubic")[mode]
    size = sides(1, 9, rank)
    given = {} if mode == 0 else {"align_corners": corners}
    return [real(2, 2, *sides(1, 6, rank))], lambda x: F.interpolate(x, size, mode=name, **given), \
        ("interpolate", T(0), numbers(size), rank, mode, corners)


def shuffle(name, fn):
    def draw():
        f = choose.randint(1, 3)
        x = real(2, 2 * f * f, *sides(1, 3, 2)) if "un" not in name else \
            real(2, 2, *(f * s for s in sides(1, 3, 2)))
        return [x], lambda x: fn(x, f), (name, T(0), f)
    return draw


def recurrent(name, gates):
    def draw():
        t, n, i, h = sides(1, 4, 4)
        states = [real(n, h) for _ in range(2 if name == "lstm" else 1)]
        weights = [real(gates * h, i), real(gates * h, h), real(gates * h), real(gates * h)]
        first = 1 + len(states)

        def theirs(x, *rest):
            state = tuple(s[None] for s in rest[:first - 1])
            if name == "lstm":
                y, h, c = torch.lstm(x, state, rest[first - 1:], True, 1, 0.0, False, False,
                                     False)
                return y, h[0], c[0]
            y, h = torch.gru(x, state[0], rest[first - 1:], True, 1, 0.0, False, False, False)
            return y, h[0]
        return [real(t, n, i), *states, *weights], theirs, \
            (name, *(T(k) for k in range(first)), [T(first + k) for k in range(4)], 4, OUT, first)
    return draw


def loss(name, fn, *more):
    def draw():
        shape, reduction = sides(1, 6, 2), choose.randint(0, 2)
        return [real(*shape), real(*shape)], \
            lambda x, t: fn(x, t, *more, reduction=REDUCTIONS[reduction]), \
            (name, T(0), T(1), *more, reduction)
    return draw


def bce():
    shape, reduction = sides(1, 6, 2), choose.randint(0, 2)
    return [real(*shape), torch.rand(shape, dtype=torch.float64), torch.rand(shape[1]).double(),
            torch.rand(shape[1]).double()], lambda x, t, w, p: F.binary_cross_entropy_with_logits(
                x, t, w.detach(), reduction=REDUCTIONS[reduction], pos_weight=p.detach()), \
        ("bce_with_logits", T(0), T(1), T(2), T(3), reduction)


def kl():
    shape, reduction, log = sides(2, 6, 2), choose.randint(0, 3), choose.random() < 0.5
    target = F.softmax(real(*shape), -1)
    return [F.log_softmax(real(*shape), -1), target.log() if log else target], \
        lambda x, t: F.kl_div(x, t, reduction=REDUCTIONS[reduction], log_target=log), \
        ("kl_div", T(0), T(1), log, reduction)


def classes(name):
    def draw():
        rows, count = sides(2, 6, 2)
        targets, weight = torch.randint(count, (rows,)), torch.rand(count).double() + 0.1
        targets[0], targets[-1] = 0, -1 if rows > 1 else 0
        reduction, smoothing = choose.randint(0, 2), choose.choice([0.0, 0.1, 0.6])
        given = {"ignore_index": -1, "reduction": REDUCTIONS[reduction]}
        if name == "nll":
            return [real(rows, count), targets, weight], \
                lambda x, t, w: F.nll_loss(x, t, w.detach(), **given), \
                ("nll", T(0), T(1), T(2), -1, reduction)
        return [real(rows, count), targets, weight], lambda x, t, w: F.cross_entropy(
            x, t, w.detach(), label_smoothing=smoothing, **given), \
            ("class_cross_entropy", T(0), T(1), T(2), -1, smoothing, reduction)
    return draw


def soft():
    rows, count = sides(2, 6, 2)
    reduction, smoothing = choose.randint(0, 2), choose.choice([0.0, 0.1])
    weight = torch.rand(count).double() + 0.1
    return [real(rows, count), F.softmax(real(rows, count), -1), weight], \
        lambda x, t, w: F.cross_entropy(x, t, w.detach(), label_smoothing=smoothing,
                                        reduction=REDUCTIONS[reduction]), \
        ("soft_cross_entropy", T(0), T(1), T(2), smoothing, reduction)


def part():
    return choose.choice([0.0, 0.25, 0.5, 0.9, 1.0])


DRAWS = [
    roll, masked_fill, stack, index, index_put, bag, einsum, searchsorted, bincount, cumprod,
    along("median", lambda x, a, k: x.median(a, k).values),
    along("quantile", torch.quantile, part), inverse, eigh, *(convolution(r) for r in (1, 3)),
    *(transposed(r) for r in (1, 2, 3)), pool3d("max"), pool3d("avg"), unpool, rfft, irfft,
    response, interpolate, shuffle("pixel_shuffle", F.pixel_shuffle),
    shuffle("pixel_unshuffle", F.pixel_unshuffle), recurrent("lstm", 4), recurrent("gru", 3),
    loss("mse", F.mse_loss), loss("l1", F.l1_loss),
    loss("huber", lambda x, t, d, reduction: F.huber_loss(x, t, reduction, d), 0.7),
    loss("smooth_l1", lambda x, t, d, reduction: F.smooth_l1_loss(x, t, reduction=reduction,
                                                                  beta=d), 0.6), bce, kl, classes("nll"), classes("class_cross_entropy"), soft]
MOST = 64.0  # epsilons that a result of several ops may be off by


def call(library, leaves, name, *args):
    """The results: of a call with OUT as many as follow it, of eigh the values alone."""
    given, many = [library.c], 0
    for i, a in enumerate(args):
        if isinstance(a, T):
            given.append(leaves[a])
        elif isinstance(a, list):
            given.append((ctypes.c_void_p * len(a))(*(leaves[t] for t in a)))
        elif a is TS:
            given.append((ctypes.c_void_p * len(leaves))(*leaves))
        elif a is OUT:
            many = args[i + 1]
            break
        elif isinstance(a, ctypes.Structure):
            given.append(ctypes.byref(a))
        else:
            given.append(ctypes.c_double(a) if isinstance(a, float) else
                         ctypes.c_int64(a) if isinstance(a, int) else a)
    function = getattr(library.lib, "cup_" + name)
    if name == "eigh":
        out = [ctypes.c_void_p(), ctypes.c_void_p()]
        library.check(function(library.c, leaves[0], *map(ctypes.byref, out)) == 0)
        return out[:1]
    if many:
        out = (ctypes.c_void_p * many)()
        library.check(function(*given, out) == 0)
        return [ctypes.c_void_p(o) for o in out]
    function.restype = ctypes.c_void_p
    made = function(*given)
    library.check(made)
    return [ctypes.c_void_p(made)]


def theirs(fn, inputs, kind, weights):
    leaves = [t.to(kind).requires_grad_() if t.is_floating_point() else t for t in inputs]
    made = fn(*leaves)
    made = list(made) if isinstance(made, tuple) else [made]
    weights = weights or [torch.rand(r.shape, dtype=torch.float64) - 0.3 for r in made]
    grads = [None] * len(leaves)
    reals = [(r, w) for r, w in zip(made, weights) if r.requires_grad]
    if reals:
        wanted = [i for i, t in enumerate(leaves) if t.is_floating_point()]
        found = torch.autograd.grad(sum((r * w.to(kind)).double().sum() for r, w in reals),
                                    [leaves[i] for i in wanted], allow_unused=True)
        for i, g in zip(wanted, found):
            grads[i] = g
    return [r.detach() for r in made], grads, weights


def run(library, draw, seed):
    choose.seed(seed)
    torch.manual_seed(seed)
    inputs, fn, told = draw()
    kind = choose.choice([torch.float32, torch.float64])
    inputs = [t.to(kind) if t.is_floating_point() else t for t in inputs]
    words = f"{told[0]} {kind} " + " ".join("x".join(map(str, t.shape)) for t in inputs) + \
        f" {[a for a in told[1:] if isinstance(a, (int, float)) and not isinstance(a, T)]}"
    want, want_grads, weights = theirs(fn, inputs, torch.float64, None)
    peer, peer_grads, _ = theirs(fn, inputs, kind, weights)
    found = []
    library.scope(True)
    try:
        wanted = [g is not None for g in want_grads]
        leaves = [library.tensor(t, w) for t, w in zip(inputs, wanted)]
        results = call(library, leaves, *told)
        for i, (r, w, p) in enumerate(zip(results, want, peer)):
            compare(f"result {i}", library.read(r), w, p, found, most=MOST)
        if any(wanted):
            given = [w.to(kind) for w in weights]
            grads = library.gradients(results, given, leaves)
            for i, (g, w, p) in enumerate(zip(grads, want_grads, peer_grads)):
                compare(f"gradient {i}", library.read(g) if g else None, w, p, found,
                        most=MOST)
        return words, found
    except Failure as problem:
        return words, [f"refused: {problem}"]
    finally:
        library.scope(False)


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--only", type=int, help="the number of one call of that seed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    library = Library(args.lib, args.device, rows_of("src/dispatch/ops.def"))
    failed = 0
    for i in range(args.calls) if args.only is None else [args.only]:
        words, found = run(library, DRAWS[i % len(DRAWS)], args.seed * 1000003 + i)
        if found:
            failed += 1
            print(f"{words}: {'; '.join(found)}\n    python3 bench/oracle_functions.py --device "
                  f"{args.device} --seed {args.seed} --only {i}", flush=True)
    print(f"{args.calls if args.only is None else 1} calls, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Compares Cupola's ops, forward and gradient, with PyTorch on random calls.

    python3 bench/oracle.py [--device cpu] [--lib build/libcupola.so] [--calls 2000] [--seed S]

Every op of bench/oracle_ops.py is called in turn through the public functions, in f32, f64, f16
and bf16, with inputs that lie row-major, turned around or behind an offset. The right answer is
PyTorch's in double, of the same rounded inputs. An element may be off by 8 epsilons of its dtype,
relative to its own size and to the root mean square of all, or by 4 times what PyTorch in that
dtype is off at most, whichever is more; in f64, where the answer itself is rounded so, by 2^14.
Whole numbers must be equal. The last line counts. A call is repeated by --op and --only, which
each failure prints with its seed.
"""
import argparse
import random
import sys

import torch

from oracle_binding import DTYPES, Failure, Library, rows_of
import oracle_draw
from oracle_ops import OPS

FLOATS = ("f32", "f64", "f16", "bf16")
WIDE = FLOATS[:2]  # all there is of these, here or in PyTorch on a CPU
ONLY_WIDE = {"cholesky", "ctc_loss", "fft", "qr", "solve", "svd"}


def lie(t):
    """How an input lies in memory: what to make, and the steps from there to it."""
    how = random.choice(["plain", "plain", "turned", "offset"])
    if how == "turned" and t.dim() > 1:
        order = list(range(t.dim()))[::-1]
        return t.permute(order).contiguous(), ("permute", {"axes": order})
    if how == "offset" and t.dim() > 0:
        base = torch.zeros([s + 1 for s in t.shape], dtype=t.dtype)
        inside = tuple(slice(1, None) for _ in t.shape)
        base[inside] = t
        return base, ("slice", {"starts": [1] * t.dim(), "sizes": list(t.shape)})
    return t, None


def stepped(base, step):
    if not step:
        return base
    if step[0] == "permute":
        return base.permute(step[1]["axes"])
    return base[tuple(slice(1, None) for _ in base.shape)]


def tuple_of(y):
    return tuple(y) if isinstance(y, (tuple, list)) else (y,)


def theirs(fn, bases, steps, kind, weights):
    """PyTorch's results, and the gradients of their sum times weights, computed in `kind`."""
    leaves = [b.to(kind).requires_grad_() if b.is_floating_point() else b for b in bases]
    results = tuple_of(fn(*(stepped(b, s) for b, s in zip(leaves, steps))))
    reals = [r for r in results if r.is_floating_point()]
    parts = [(r * w.to(r.dtype)).sum() for r, w in zip(reals, weights) if r.requires_grad]
    grads = [None] * len(leaves)
    if parts:
        wanted = [i for i, leaf in enumerate(leaves) if leaf.is_floating_point()]
        found = torch.autograd.grad(sum(parts), [leaves[i] for i in wanted], allow_unused=True)
        for i, g in zip(wanted, found):
            grads[i] = g
    return [r.detach() for r in results], grads


def difference(got, want, kind=None):
    """In epsilons of what was got, or of a dtype, relative to the element and to the whole."""
    if got.shape != want.shape:
        return float("inf")
    if not got.is_floating_point():
        return 0.0 if torch.equal(got.long(), want.long()) else float("inf")
    if got.numel() == 0:
        return 0.0
    got, eps = got.double(), torch.finfo(kind or got.dtype).eps
    same = (got == want) | (got.isnan() & want.isnan())
    whole = want[want.isfinite()].square().mean().sqrt() if want.isfinite().any() else 0.0
    apart = (got - want).abs() / (eps * (want.abs() + whole) + 1e-300)
    apart = torch.where(same, 0.0, apart).nan_to_num(float("inf"), float("inf"))
    return apart.max().item()


def compare(what, got, want, peer, found, kind=None, most=8.0):
    """Says in `found` where what was got is off by more than `most` epsilons, f64 by 2^14."""
    if got is None or want is None:
        if (got is None) != (want is None) and (want is not None and want.abs().max() > 0):
            found.append(f"{what} is not there")
        return
    ours = difference(got, want.double() if want.is_floating_point() else want, kind)
    other = difference(peer, want.double(), kind) if peer is not None and peer.is_floating_point() \
        and want.is_floating_point() else 0.0
    other = other if other == other and other != float("inf") else 0.0
    if not ours <= max(16384.0 if got.dtype == torch.float64 else most, 4 * other):
        found.append(f"{what} {list(got.shape)} is off by {ours:.4g} epsilons, PyTorch by "
                     f"{other:.3g}")


def run(library, op, seed):
    """What is wrong with one call, and its words."""
    random.seed(seed)
    torch.manual_seed(seed)
    inputs, attributes, fn = OPS[op]()
    dtype = random.choice(WIDE if op in ONLY_WIDE else FLOATS)
    kind = oracle_draw.ROUNDING["kind"] = DTYPES[dtype][1]
    # Inputs that are fields of the options, and the dtype of those that go with the numbers.
    named = getattr(fn, "named", {})
    wide = torch.float64 if kind == torch.float64 else torch.float32
    lying = [lie(t.to(wide if named.get(i) in oracle_draw.NUMBERS else kind)
                 if t.is_floating_point() else t) for i, t in enumerate(inputs)]
    bases, steps = [base for base, _ in lying], [step for _, step in lying]
    words = f"{dtype} " + " ".join(
        "x".join(map(str, t.shape)) + (f"({s[0]})" if s else "") for t, s in zip(inputs, steps)) + \
        "".join(f" {k}={v}" for k, v in [*attributes.items(), *named.items()])
    shapes = tuple_of(fn(*(stepped(b, s) for b, s in zip(bases, steps))))
    weights = [(torch.rand(r.shape, dtype=torch.float64) - 0.3).to(kind) for r in shapes
               if r.is_floating_point()]
    if hasattr(fn, "bends") and weights:
        sums = fn.bends(*(stepped(b, s).double() for b, s in zip(bases, steps)))
        whole = sums.square().mean().sqrt()
        weights[0][sums.abs() < 4 * torch.finfo(kind).eps * whole] = 0
    exact = (lambda k: theirs(fn, bases, steps, k, weights))
    want, want_grads = exact(torch.float64)
    peer, peer_grads = exact(kind)
    library.scope(True)
    try:
        leaves = [library.tensor(b, b.is_floating_point()) for b in bases]
        views = [library.call(s[0], [leaf], s[1])[0] if s else leaf
                 for leaf, s in zip(leaves, steps)]
        fields = {named[i]: view for i, view in enumerate(views) if i in named}
        results = library.call(op, [v for i, v in enumerate(views) if i not in named],
                               {**attributes, **fields})
        found = []
        for i, (r, w, p) in enumerate(zip(results, want, peer)):
            compare(f"result {i}", library.read(r), w, p, found)
        reals = [r for r, w in zip(results, want) if w.is_floating_point()]
        if any(g is not None for g in want_grads):
            grads = library.gradients(reals, weights, leaves)
            for i, (g, w, p) in enumerate(zip(grads, want_grads, peer_grads)):
                # Those of numbers come from sums over tensors of the call's dtype.
                compare(f"gradient {i}", library.read(g) if g else None, w, p, found,
                        kind if named.get(i) in oracle_draw.NUMBERS else None)
        return words, found
    except Failure as problem:
        return words, [f"refused: {problem}"]
    finally:
        library.scope(False)


def parser_of(text):
    """What comparisons of drawn calls may be told; the first line of `text` says what one is."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lib", default="build/libcupola.so")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    return parser


def options():
    parser = parser_of(__doc__)
    parser.add_argument("--op", help="calls of this op alone")
    parser.add_argument("--only", type=int, help="the one call that has this seed; with --op")
    return parser.parse_args()


def main():
    args = options()
    torch.set_num_threads(1)
    rows = rows_of("src/dispatch/ops.def")
    library = Library(args.lib, args.device, rows)
    names = [args.op] if args.op else list(OPS)
    without = sorted(set(rows) - set(OPS))
    seeds = [args.only] if args.only is not None else \
        [args.seed * 1000003 + i for i in range(args.calls)]
    failed = 0
    for i, seed in enumerate(seeds):
        op = names[i % len(names)]
        try:
            words, found = run(library, op, seed)
        except (RuntimeError, ValueError, IndexError, TypeError) as problem:
            words, found = "", [f"PyTorch says: {str(problem).splitlines()[0]}"]
        if found:
            failed += 1
            print(f"{op} {words}: {'; '.join(found)}\n    python3 bench/oracle.py --device "
                  f"{args.device} --op {op} --only {seed}", flush=True)
    if not args.op:
        print("without a counterpart here: " + " ".join(without))
    print(f"{len(seeds) - failed} passed, {failed} failed, {len(without)} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

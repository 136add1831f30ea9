"""Times Cupola's ops and other libraries' on one card, interleaved in one process.

    python3 bench/peers.py [--lib build/libcupola.so] [--only word ...] [--records bench/records.tsv]

All get random data, a flushed L2 cache before each run, CUDA-event times and the median over the
runs; a peer is timed before and after ours, and the better time counts. PyTorch is run eagerly and,
where a row of bench/rows.py asks for it, compiled; CuPy where it is installed. Errors are the
largest difference, in units of the dtype's epsilon relative to the element and to the size of the
whole: ours against the specification, a peer's against itself in double. They are measured first,
together with all compiling, by several processes at once; nothing else runs while times are taken.
"""
import argparse
import concurrent.futures
import datetime
import math
import multiprocessing
import os
import statistics
import time

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # there are enough processes

import torch  # noqa: E402

from library import Cupola  # noqa: E402
from row import DTYPES, Wide, random, shapes_of  # noqa: E402
from rows import PARTS, all_rows, cupy  # noqa: E402


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


def make_call(make, row, dtype):
    torch.manual_seed(1)
    return make(dtype, *shapes_of(row.shapes))


def cupy_call(row):
    torch.manual_seed(1)
    arrays = [cupy.from_dlpack(random(s, DTYPES[row.dtype])) for s in shapes_of(row.shapes)]

    def run():
        with cupy.cuda.Stream.from_external(torch.cuda.current_stream()):
            row.with_cupy(*arrays)
    return run


def compiled_call(run):
    torch._dynamo.reset()
    return torch.compile(run)


def peers_of(row, args):
    """Names and calls; the first is the row's own, as PyTorch runs it."""
    dtype = DTYPES[row.dtype]
    calls = [(row.name, make_call(row.make, row, dtype))]
    if row.compiled and not args.no_compile:
        calls.append(("torch.compile", compiled_call(calls[0][1])))
    for name, make in row.peers.items():
        calls.append((name, make_call(make, row, dtype)))
    if cupy and row.with_cupy:
        calls.append(("cupy", cupy_call(row)))
    return calls


def error_of(row):
    """The peer's error: its result against its own in double."""
    dtype = DTYPES[row.dtype]
    got = make_call(row.make, row, dtype)()
    want = make_call(row.make, row, Wide(dtype))().double()
    scale = torch.finfo(got.dtype).eps * (want.abs() + want.square().mean().sqrt()) + 1e-300
    return ((got.double() - want).abs() / scale).max().item()


def guarded(what, fn):
    """A peer that cannot do a row is no reason to leave out the others."""
    try:
        return fn()
    except Exception as problem:  # every library has its own kinds
        print(f"{what}: {str(problem).splitlines()[0][:150] if str(problem) else problem!r}",
              flush=True)
        torch.cuda.empty_cache()
        return None


HELPER = {}  # what a process that measures errors has


def open_helper(args):
    HELPER["args"], HELPER["ours"] = args, Cupola(args.lib)


def errors_of(row_index):
    """Compiles what the row needs, and measures both errors."""
    args, ours = HELPER["args"], HELPER["ours"]
    row = wanted(args)[row_index]
    what = f"{row.op} {row.shapes[:40]} {row.dtype}"
    mine = theirs = None
    if row.compiled and not args.no_compile:
        guarded(f"{what}, compiled",
                lambda: compiled_call(make_call(row.make, row, DTYPES[row.dtype]))())
    if not args.no_error:
        mine = {r["impl"]: r["error"] for r in ours.time(row, args, 1e-6, False)}
        theirs = guarded(f"{what}, its error", lambda: error_of(row)) if row.exact else None
    torch.cuda.empty_cache()
    return mine or {}, theirs


def prepare(rows, args):
    """The errors of all rows, each a pair: ours by implementation, and the peer's."""
    out = [({}, None)] * len(rows)
    order = sorted(range(len(rows)), key=lambda i: not rows[i].compiled)
    try:
        with concurrent.futures.ProcessPoolExecutor(
                min(args.processes, len(rows)), multiprocessing.get_context("fork"), open_helper,
                (args,)) as pool:
            for i, found in zip(order, pool.map(errors_of, order)):
                out[i] = found
    except concurrent.futures.process.BrokenProcessPool as problem:
        print(f"errors are not all known: {problem}")
    return out


SPENT = {"making calls": 0.0, "peers": 0.0, "ours": 0.0}  # seconds
MOST_KEPT = 40 << 30  # bytes that PyTorch may hold from row to row: getting them takes long


def time_row(row, ours, flush, args):
    start = time.monotonic()
    calls = guarded(f"{row.op} {row.shapes[:40]}", lambda: peers_of(row, args)) or []
    SPENT["making calls"] += time.monotonic() - start
    times = {}
    start = time.monotonic()
    for name, run in calls:
        us = guarded(name, lambda run=run: time_peer(run, flush, args.seconds / 2))
        if us:
            times[name] = us
    between = time.monotonic()
    rows = ours.time(row, args, args.seconds, True)
    SPENT["ours"] += time.monotonic() - between
    start += time.monotonic() - between
    for name, run in calls:
        if name in times:
            times[name] = min(times[name], time_peer(run, flush, args.seconds / 2))
    SPENT["peers"] += time.monotonic() - start
    del calls
    if torch.cuda.memory_reserved() > MOST_KEPT:
        torch.cuda.empty_cache()
    return rows, times


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


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lib", default="build/libcupola.so")
    parser.add_argument("--only", nargs="*", default=[], help="rows whose op has one of the words")
    parser.add_argument("--skip", nargs="*", default=[], help="no rows whose op has one of these")
    parser.add_argument("--dtype", help="rows of this dtype")
    parser.add_argument("--records", help="file of records to append to")
    parser.add_argument("--seconds", type=float, default=0.03, help="for each call")
    parser.add_argument("--no-compile", action="store_true", help="PyTorch only as it is")
    parser.add_argument("--no-error", action="store_true", help="times only")
    parser.add_argument("--all", action="store_true", help="show what a call would not take, too")
    parser.add_argument("--part", nargs="*", default=[],
                        help="rows of these parts, of " + " ".join(PARTS))
    parser.add_argument("--processes", type=int, default=min(12, os.cpu_count() or 1),
                        help="that measure errors and compile")
    parser.add_argument("--goals", help="only rows of this file, as bench/goals.tsv")
    parser.add_argument("--list", action="store_true", help="print the calls and time nothing")
    return parser.parse_args()


def goals_of(path):
    """What the rows of a file of goals are told apart by."""
    with open(path, encoding="utf-8") as file:
        fields = [line.split("\t") for line in file if not line.startswith("#")]
    return {tuple(f[1:4]) for f in fields}


def wanted(args):
    goals = goals_of(args.goals) if args.goals else None
    return [row for row in all_rows(args.part)
            if (not args.only or any(w in row.op for w in args.only))
            and not any(w in row.op for w in args.skip) and args.dtype in (None, row.dtype)
            and (goals is None or (row.op, row.shapes, row.dtype) in goals)]


def print_row(row, r, times, peer, error):
    us = times.get(peer)
    others = ", ".join(f"{n} {t:.1f}" for n, t in times.items())
    print(f"{row.op:14s} {row.shapes[:34]:34s} {row.dtype:6s} {r['attributes'][:12]:12s} "
          f"{r['impl']:12s} {r['us']:9.1f} us  ratio {number(us and us / r['us'], '.2f')} "
          f"({others})  floor {r['floor'] / r['us']:5.0%}  copy {number(r['copy'], '.1f')}  "
          f"error {number(r['error'], '.2g')}, theirs {number(error, '.2g')}", flush=True)


def time_all(rows, errors, args):
    ours = Cupola(args.lib)
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    card = torch.cuda.get_device_name()
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M")
    print(f"{card}, copy {ours.ceiling.copy_bytes / 1e9:.0f} GB/s, torch {torch.__version__}, "
          f"cupy {cupy.__version__ if cupy else 'not installed'}")
    for row, (mine, error) in zip(rows, errors):
        found, times = time_row(row, ours, flush, args)
        peer = min(times, key=times.get) if times else None
        for i, r in enumerate(found):
            r["error"] = mine.get(r["impl"])
            print_row(row, r, times, peer, error)
            if i == 0 and args.records:
                with open(args.records, "a", encoding="utf-8") as file:
                    file.write(line_of(row, r, date, card, peer, times.get(peer), error) + "\n")


def main():
    args = options()
    rows, start = wanted(args), time.monotonic()
    if args.list:
        for row in rows:
            print(row.op, row.shapes, row.dtype, row.text(), sep="\t")
        return
    need = not args.no_error or (not args.no_compile and any(row.compiled for row in rows))
    errors = prepare(rows, args) if need and rows else [({}, None)] * len(rows)
    between = time.monotonic()
    time_all(rows, errors, args)
    print(f"{len(rows)} calls: errors and compiling {between - start:.1f} s, "
          f"timing {time.monotonic() - between:.1f} s (" +
          ", ".join(f"{what} {spent:.1f}" for what, spent in SPENT.items()) + ")")


if __name__ == "__main__":
    main()

"""Trains a GPT-2 in PyTorch and with cupola train from the same weights, on the same batches, with
the same settings, and compares losses of all steps and gradients of the first one.

    python3 bench/compare_training.py [--dtype f32|bf16] [--steps 500] [--data DIR...] [--out DIR]
    python3 bench/compare_training.py --char shakespeare.txt

In f32 every loss must be within 0.01 of PyTorch's. In bf16 (PyTorch: autocast, weights in f32)
means of 25 steps must on the average be no farther from PyTorch's than those of PyTorch from other
first weights are. Gradients of the first step are listed tensor by tensor, with the largest
difference relative to the largest element. Batches are read through the library itself, from tokens
that it makes of the data: its own sources where none are named. With --char the command alone runs:
how long from its start to the first evaluation with a loss of 1.47 or less. Exit code 1: not so.
"""
import argparse
import csv
import ctypes
import json
import math
import os
import subprocess
import sys
import time
from ctypes import byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p

WINDOW = 25
MARGIN = {"f32": 0.01}
BETAS, EPSILON, DECAY, CLIP = (0.9, 0.95), 1e-8, 0.1, 1.0


class Options(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("device", c_char_p), ("seed", c_uint64), ("threads", c_int),
                ("memory_limit", c_int64), ("deterministic", ctypes.c_bool),
                ("memory_share", c_double), ("debug", ctypes.c_bool)]


class Named(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("tensor", c_void_p)]


class Library:
    """What is asked of libcupola.so; a failed call ends the script with the library's sentence."""

    POINTERS = ("context_new", "corpus_load", "tokenizer_bpe_new", "tokenizer_load", "data_open",
                "gpt_import", "gpt_loss", "tensor_from", "grad", "parameters_named",
                "parameters_find", "error_text")

    def __init__(self, path, device):
        self.lib = ctypes.CDLL(path)
        for name in self.POINTERS:
            getattr(self.lib, "cup_" + name).restype = c_void_p
        self.lib.cup_tensor_count.restype = c_int64
        self.lib.cup_tensor_size.restype = c_int64
        self.c = c_void_p(self.lib.cup_context_new(
            byref(Options(size=ctypes.sizeof(Options), device=device.encode()))))
        self.check()

    def check(self):
        if self.lib.cup_error(self.c):
            sys.exit(ctypes.string_at(self.lib.cup_error_text(self.c)).decode())

    def call(self, name, *args):
        result = getattr(self.lib, "cup_" + name)(*args)
        self.check()
        return c_void_p(result) if name in self.POINTERS else result

    def tokenize(self, paths, folder, vocabulary):
        list_of = (c_char_p * len(paths))(*[p.encode() for p in paths])
        corpus = self.call("corpus_load", self.c, list_of, len(paths), None)
        tokenizer = self.call("tokenizer_bpe_new", self.c, corpus, c_int64(vocabulary))
        self.call("tokenize", self.c, list_of, len(paths), tokenizer, folder.encode(),
                  c_double(0.1), None, None)

    def open(self, folder, context):
        tokenizer = self.call("tokenizer_load", self.c, folder.encode())
        self.data = self.call("data_open", self.c, (c_char_p * 1)(folder.encode()), 1, tokenizer,
                              c_int64(context))
        self.context = context

    def batch(self, step, rows, seed):
        inputs, targets = ((ctypes.c_int32 * (rows * self.context))() for _ in range(2))
        self.call("data_batch", self.c, self.data, 0, c_uint64(seed), c_uint64(step), c_int64(0),
                  c_int64(rows), c_int64(self.context), inputs, targets)
        return inputs, targets

    def read(self, tensor, torch):
        shape = [self.lib.cup_tensor_size(tensor, i)
                 for i in range(self.lib.cup_tensor_ndim(tensor))]
        out = torch.empty(shape)
        self.call("tensor_read", tensor, c_void_p(out.data_ptr()), c_size_t(4 * out.numel()))
        return out

    def gradients(self, folder, rows, seed, torch):
        """The loss of the first batch and the gradients by name."""
        self.call("precision", self.c, b"highest")
        model = self.call("gpt_import", self.c, folder.encode(), 0)
        # The list of parameters stands behind the context, the config, which begins with its
        # size, and the dtype.
        at = model.value + 8 + c_size_t.from_address(model.value + 8).value + 4
        parameters = c_void_p.from_address((at + 7) // 8 * 8)
        shape, i32 = (c_int64 * 2)(rows, self.context), c_int()
        self.call("dtype_find", b"i32", byref(i32))
        tokens, targets = (self.call("tensor_from", self.c, i32, 2, shape, values)
                           for values in self.batch(0, rows, seed))
        loss = self.call("gpt_loss", model, tokens, targets, True)
        self.call("backward", self.c, loss)
        count = c_int64()
        named = ctypes.cast(self.call("parameters_named", parameters, byref(count)),
                            ctypes.POINTER(Named))
        found = {}
        for i in range(count.value):
            # A name may stand for a part of its tensor, which the gradient is of.
            whole = self.call("parameters_find", parameters, named[i].name)
            grad = self.call("grad", whole)
            found[named[i].name.decode()] = self.read(grad, torch)
        return self.read(loss, torch).item(), found


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, t in tensors.items():
        size = 4 * t.numel()
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for t in tensors.values():
            f.write(t.contiguous().numpy().tobytes())


def first_weights(args, seed, torch):
    """GPT-2's names, with matrices as [in, out]."""
    torch.manual_seed(seed)
    w, deep = args.width, 0.02 / math.sqrt(2 * args.layers)
    t = {"wte.weight": torch.randn(args.vocabulary, w) * 0.02,
         "wpe.weight": torch.randn(args.context, w) * 0.02}
    for i in range(args.layers):
        for norm in ("ln_1", "ln_2"):
            t[f"h.{i}.{norm}.weight"], t[f"h.{i}.{norm}.bias"] = torch.ones(w), torch.zeros(w)
        for name, rows, columns, deviation in (("attn.c_attn", w, 3 * w, 0.02),
                                               ("attn.c_proj", w, w, deep),
                                               ("mlp.c_fc", w, 4 * w, 0.02),
                                               ("mlp.c_proj", 4 * w, w, deep)):
            t[f"h.{i}.{name}.weight"] = torch.randn(rows, columns) * deviation
            t[f"h.{i}.{name}.bias"] = torch.zeros(columns)
    t["ln_f.weight"], t["ln_f.bias"] = torch.ones(w), torch.zeros(w)
    return t


def publish(args, tensors, folder):
    os.makedirs(folder, exist_ok=True)
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": args.layers,
              "n_head": args.heads, "n_embd": args.width, "n_positions": args.context,
              "vocab_size": args.vocabulary, "layer_norm_epsilon": 1e-5,
              "activation_function": "gelu_new"}
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)


def forward(args, t, tokens, targets, torch):
    F = torch.nn.functional
    rows, length = tokens.shape
    x = t["wte.weight"][tokens] + t["wpe.weight"][:length]
    for i in range(args.layers):
        def part(name):
            return t[f"h.{i}.{name}.weight"], t[f"h.{i}.{name}.bias"]

        def linear(name, v):
            weight, bias = part(name)
            return F.linear(v, weight.t(), bias)

        h = linear("attn.c_attn", F.layer_norm(x, x.shape[-1:], *part("ln_1")))
        q, k, v = (p.view(rows, length, args.heads, -1).transpose(1, 2)
                   for p in h.split(args.width, 2))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear("attn.c_proj", h.transpose(1, 2).reshape(rows, length, args.width))
        h = linear("mlp.c_fc", F.layer_norm(x, x.shape[-1:], *part("ln_2")))
        x = x + linear("mlp.c_proj", F.gelu(h, approximate="tanh"))
    x = F.layer_norm(x, x.shape[-1:], t["ln_f.weight"], t["ln_f.bias"])
    logits = F.linear(x, t["wte.weight"])
    return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.view(-1))


def rate(args, step):
    if step < args.warmup:
        return args.lr * (step + 1) / (args.warmup + 1)
    part = (step - args.warmup) / (args.steps - args.warmup)
    return args.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * part)))


def theirs(args, library, weights, dtype, torch):
    """PyTorch's losses, and its gradients of the first step."""
    t = {n: w.to(args.device).requires_grad_() for n, w in weights.items()}
    matrices = [w for w in t.values() if w.dim() == 2]
    others = [w for w in t.values() if w.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY},
                                   {"params": others, "weight_decay": 0.0}], lr=args.lr,
                                  betas=BETAS, eps=EPSILON, fused=args.device == "cuda")
    kept, losses, first = [], [], None
    for step in range(args.steps):
        tokens, targets = (torch.frombuffer(v, dtype=torch.int32).view(args.batch, -1)
                           .to(args.device, torch.int64, non_blocking=True)
                           for v in library.batch(step, args.batch, args.seed))
        with torch.autocast(args.device, torch.bfloat16, enabled=dtype == "bf16"):
            loss = forward(args, t, tokens, targets, torch)
        loss.backward()
        if step == 0:
            first = {n: w.grad.clone().cpu() for n, w in t.items()}
        torch.nn.utils.clip_grad_norm_(list(t.values()), CLIP)
        for group in optimizer.param_groups:
            group["lr"] = rate(args, step)
        optimizer.step()
        optimizer.zero_grad()
        kept.append(loss.detach())
    losses = torch.stack(kept).tolist()
    return losses, first


def ours(args, folder, out, dtype):
    words = [args.command, "train", "--data", args.tokens, "--from", folder, "--tokenizer",
             args.tokens, "--out", out, "--overwrite", "--device", args.device, "--dtype", dtype,
             "--precision", "highest", "--batch", args.batch, "--accumulate", 1, "--steps",
             args.steps, "--lr", args.lr, "--lr-end", args.lr / 10, "--warmup", args.warmup,
             "--beta1", BETAS[0], "--beta2", BETAS[1], "--weight-decay", DECAY, "--clip", CLIP,
             "--dropout", 0, "--decline", "cosine", "--seed", args.seed, "--evaluate-every", 0,
             "--evaluate-texts", 1, "--save-every", 0]
    done = subprocess.run([str(w) for w in words], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    with open(os.path.join(out, "losses.csv")) as f:
        return [float(row["loss"]) for row in csv.DictReader(f) if row["loss"]]


def compare_gradients(args, library, folder, first, torch):
    loss, found = library.gradients(folder, args.batch, args.seed, torch)
    worst = 0.0
    for name, g in found.items():
        want = first[name]
        if want.dim() == 2 and name not in ("wte.weight", "wpe.weight"):
            want = want.t()
        g = g[:want.shape[0]]
        error = ((g - want).abs().max() / want.abs().max()).item()
        worst = max(worst, error)
        print(f"gradient {name:28} {error:.1e} of the largest element {want.abs().max():.2e}")
    print(f"gradients: the worst of {len(found)} tensors is off by {worst:.1e}; loss {loss:.6f}")
    return worst < 1e-3


def windows(losses):
    return [sum(losses[i:i + WINDOW]) / len(losses[i:i + WINDOW])
            for i in range(0, len(losses), WINDOW)]


def distance(a, b):
    pairs = list(zip(windows(a), windows(b)))
    return sum(abs(x - y) for x, y in pairs) / len(pairs)


def compare(args):
    import torch
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    library = Library(args.lib, args.device)
    args.tokens, folder = (os.path.join(args.out, n) for n in ("tokens", "first"))
    if not os.path.exists(args.tokens):
        library.tokenize(args.data, args.tokens, args.tokenizer_size)
    library.open(args.tokens, args.context)
    weights = first_weights(args, args.seed, torch)
    publish(args, weights, folder)
    start = time.time()
    b, first = theirs(args, library, weights, args.dtype, torch)
    middle = time.time()
    a = ours(args, folder, os.path.join(args.out, "run"), args.dtype)
    print(f"{args.dtype}: {args.steps} steps of {args.batch} x {args.context} tokens: PyTorch "
          f"{middle - start:.1f} s, the command {time.time() - middle:.1f} s, start included")
    for step in sorted({0, 1, 10, 100, args.steps // 2, args.steps - 1}):
        if step < args.steps:
            print(f"step {step:4}  loss {a[step]:.5f}  PyTorch {b[step]:.5f}")
    differences = [abs(x - y) for x, y in zip(a, b)]
    worst = max(range(args.steps), key=lambda i: differences[i])
    print(f"largest difference of a loss {differences[worst]:.5f}, at step {worst}")
    if args.control:
        moved = {n: w * (1 + 1e-7) for n, w in weights.items()}
        other, _ = theirs(args, library, moved, args.dtype, torch)
        print(f"PyTorch from weights that differ by 1e-7: up to "
              f"{max(abs(x - y) for x, y in zip(other, b)):.5f}")
    if args.dtype == "f32":
        same = len(a) == args.steps and differences[worst] <= MARGIN["f32"]
        return compare_gradients(args, library, folder, first, torch) and same
    other, _ = theirs(args, library, first_weights(args, args.seed + 1, torch), args.dtype, torch)
    own, spread = distance(a, b), distance(other, b)
    print(f"means of {WINDOW} steps differ by {own:.5f}; those of two PyTorch seeds by {spread:.5f}")
    return own <= spread


def character_model(args):
    """Seconds from the start of the command to the first evaluation that is good enough."""
    words = [args.command, "train", "--preset", "char", "--data", args.char, "--device",
             args.device, "--out", os.path.join(args.out, "char"), "--overwrite"] + args.more
    start, reached, best = time.time(), None, math.inf
    run = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    for line in run.stderr:
        if "validation loss" in line and line.startswith("step"):
            loss = float(line.split()[-1])
            best = min(best, loss)
            print(f"{time.time() - start:6.2f} s  {line.strip()}", flush=True)
            if loss <= 1.47 and reached is None:
                reached = time.time() - start
    code, took = run.wait(), time.time() - start
    print(f"best validation loss {best:.4f}; 1.47 after "
          f"{'?' if reached is None else f'{reached:.2f} s'}; the whole run {took:.2f} s")
    return code == 0 and reached is not None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--device", default="cuda", help="of both: cuda or cpu")
    parser.add_argument("--data", nargs="+", default=["src", "cli", "docs", "tests", "include"])
    parser.add_argument("--out", default="out/compare_training")
    parser.add_argument("--command", default="build/cupola")
    parser.add_argument("--lib", default="build/libcupola.so")
    parser.add_argument("--char", help="a text: time the character model on it instead")
    parser.add_argument("--more", nargs=argparse.REMAINDER, default=[],
                        help="options of cupola train for --char, last")
    for name, usual in (("steps", 500), ("batch", 2), ("context", 512), ("layers", 12),
                        ("heads", 12), ("width", 768), ("vocabulary", 50257), ("warmup", 50),
                        ("seed", 1337), ("tokenizer-size", 8192)):
        parser.add_argument("--" + name, type=int, default=usual)
    parser.add_argument("--control", action="store_true",
                        help="also train in PyTorch from weights that differ in their last bits")
    # Small batches come apart at larger rates, in PyTorch alone as well.
    parser.add_argument("--lr", type=float, default=1e-4)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    sys.exit(0 if (character_model(args) if args.char else compare(args)) else 1)


if __name__ == "__main__":
    main()

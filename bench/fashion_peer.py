"""Networks of small images, trained by cupola train --task classify and in PyTorch.

    python3 bench/fashion_peer.py losses DATA [--network cnn] [--rate R] [--optimizer sgd]
    python3 bench/fashion_peer.py speed DATA [--network cnn]
    python3 bench/fashion_peer.py accuracy DATA [--network resnet18] [--side 32] [--epochs 5]

losses: from the same weights on the same batches in f32; the largest difference of a loss must be
at most 1e-3. Beside it: how far both are from PyTorch in f64. speed: steps a second, PyTorch run eagerly on batches that lie on the device, ours with
batches that are made on the host (bench/fashion_steps.c). accuracy: of the images kept apart, the
mean of three seeds each, PyTorch with channels last, autocast to bf16 and first weights, order and
augmentation of its own; the means must be at most 0.2 points apart. What is trained how is read
from the run's state.json. Exit code 1: not so."""
import argparse
import concurrent.futures
import csv
import ctypes
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time

import torch

from described import Described, Training, read_safetensors
from library import ContextOptions, Sized

SEEDS = (1, 2, 3)


class Augmentation(Sized):
    _fields_ = [("size", ctypes.c_size_t), ("flip", ctypes.c_bool), ("crop", ctypes.c_int64),
                ("rotate", ctypes.c_double), ("scale", ctypes.c_double),
                ("color", ctypes.c_double), ("erase", ctypes.c_double)]


class ImagesOptions(Sized):
    _fields_ = [("size", ctypes.c_size_t), ("height", ctypes.c_int64), ("width", ctypes.c_int64),
                ("channels", ctypes.c_int64), ("skip_broken", ctypes.c_bool),
                ("most_bytes", ctypes.c_int64), ("as_needed", ctypes.c_bool),
                ("broken", ctypes.c_void_p), ("user", ctypes.c_void_p)]


class Images:
    """One part of a folder of images, read by the library on a CPU."""

    def __init__(self, args, split):
        self.lib = lib = ctypes.CDLL(args.lib)
        for name in ("context_new", "images_load", "images_pixels", "images_labels"):
            getattr(lib, "cup_" + name).restype = ctypes.c_void_p
        lib.cup_error_text.restype = ctypes.c_char_p
        for name in ("count", "height", "width", "channels", "classes"):
            call = getattr(lib, "cup_images_" + name)
            call.restype, call.argtypes = ctypes.c_int64, [ctypes.c_void_p]
        self.c = ctypes.c_void_p(lib.cup_context_new(
            ctypes.byref(ContextOptions(device=b"cpu"))))
        options = ImagesOptions(height=args.side, width=args.side)
        self.images = ctypes.c_void_p(lib.cup_images_load(self.c, args.data.encode(), split,
                                                          ctypes.byref(options)))
        self.check()
        self.count, self.height, self.width, self.channels, self.classes = (
            getattr(lib, "cup_images_" + n)(self.images)
            for n in ("count", "height", "width", "channels", "classes"))

    def check(self):
        if self.lib.cup_error(self.c):
            raise SystemExit(self.lib.cup_error_text(self.c).decode())

    def all(self):
        """Bytes [images, height, width, channels] and labels."""
        shape = (self.count, self.height, self.width, self.channels)
        size = shape[0] * shape[1] * shape[2] * shape[3]
        pixels = (ctypes.c_uint8 * size).from_address(self.lib.cup_images_pixels(self.images))
        labels = (ctypes.c_int64 * self.count).from_address(
            self.lib.cup_images_labels(self.images))
        return (torch.frombuffer(pixels, dtype=torch.uint8).view(shape).clone(),
                torch.frombuffer(labels, dtype=torch.int64).clone())

    def batch(self, how, step):
        rows = how["batch"]
        pixels = torch.empty(rows, self.height, self.width, self.channels, dtype=torch.uint8)
        labels = torch.empty(rows, dtype=torch.int64)
        change = Augmentation(**{n: how[n] for n in ("flip", "crop", "rotate", "scale", "color",
                                                     "erase")})
        self.lib.cup_images_batch(self.c, self.images, ctypes.c_uint64(how["seed"]),
                                  ctypes.c_int64(step * rows), ctypes.c_int64(rows),
                                  ctypes.byref(change), ctypes.c_void_p(pixels.data_ptr()),
                                  ctypes.c_void_p(labels.data_ptr()))
        self.check()
        return pixels, labels


def command(args, out, more):
    words = [args.command, "train", "--task", "classify", "--preset", args.network, "--data",
             args.data, "--out", out, "--overwrite", "--device", args.device, "--save-every", 0]
    words += ["--image-size", args.side] if args.side else []
    return [str(w) for w in words + more]


def run(words):
    done = subprocess.run(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def training_of(folder):
    with open(os.path.join(folder, "state.json")) as file:
        return json.load(file)["state"]["training"]


def shown(pixels, tensors, device, dtype=torch.float32):
    """Bytes [N,H,W,C] as the network takes them, [N,C,H,W] with channels last."""
    factor, shift = (tensors["input." + n].to(device, dtype) for n in ("factor", "shift"))
    return (pixels.to(device, dtype) * factor + shift).permute(0, 3, 1, 2)


def model_of(args, how, images, tensors=None):
    model = Described(how["network"], images.height, images.channels, images.classes)
    if tensors:
        model.fill(tensors)
    return model.to(args.device).to(memory_format=torch.channels_last)


def their_losses(args, how, images, tensors, dtype):
    model = model_of(args, how, images, tensors).to(dtype)
    training, kept = Training(model, how, args.device == "cuda"), []
    for step in range(args.steps):
        pixels, labels = images.batch(how, step)
        scores = model(shown(pixels, tensors, args.device, dtype))
        loss = training.loss(scores, labels.to(args.device))
        training.step(loss, step)
        kept.append(loss.detach())
    return torch.stack(kept).tolist()


def farthest(a, b):
    differences = [abs(x - y) for x, y in zip(a, b)]
    worst = max(range(len(differences)), key=lambda i: differences[i])
    return differences[worst], worst


def losses(args):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    same = ["--dtype", "f32", "--precision", "highest", "--seed", 1, "--evaluate-every", 0]
    first, folder = (os.path.join(args.out, n) for n in ("first", "run"))
    run(command(args, first, same + ["--steps", 1, "--lr", 0]))  # leaves the first weights
    run(command(args, folder, same + ["--steps", args.steps] +
                (["--lr", args.rate] if args.rate else []) +
                (["--optimizer", "sgd", "--momentum", 0.9] if args.optimizer == "sgd" else [])))
    with open(os.path.join(folder, "losses.csv")) as file:
        ours = [float(row["loss"]) for row in csv.DictReader(file) if row["loss"]]
    how, tensors = training_of(folder), read_safetensors(os.path.join(first, "model.safetensors"))
    images = Images(args, 0)
    theirs, exact = (their_losses(args, how, images, tensors, d)
                     for d in (torch.float32, torch.float64))
    print("step  ours, PyTorch's in f32 and in f64")
    for step in sorted({0, 1, 10, 100, args.steps - 1}):
        if step < args.steps:
            print(f"{step:4}  {ours[step]:.6f}  {theirs[step]:.6f}  {exact[step]:.6f}")
    worst, at = farthest(ours, theirs)
    print(f"{args.network} f32, {args.steps} steps of {how['batch']}, {how['method']}, rate "
          f"{how['rate']:g}: losses at most {worst:.2e} from PyTorch's in f32 (step {at}), "
          f"{farthest(ours, exact)[0]:.2e} from those in f64, which PyTorch's in f32 are "
          f"{farthest(theirs, exact)[0]:.2e} from", flush=True)
    return len(ours) == args.steps and worst <= 1e-3


def eager_steps(args, how, images, dtype, last):
    """Steps a second of PyTorch, with batches that lie on the device, ready to be used."""
    model = Described(how["network"], images.height, images.channels, images.classes)
    form = torch.channels_last if last else torch.contiguous_format
    model = model.to(args.device).to(memory_format=form)
    training = Training(model, how, args.device == "cuda")
    x = torch.randn(how["batch"], images.channels, images.height, images.width,
                    device=args.device).contiguous(memory_format=form)
    labels = torch.randint(images.classes, (how["batch"],), device=args.device)

    def some(count):
        for step in range(count):
            with torch.autocast(args.device, torch.bfloat16, enabled=dtype == "bf16"):
                scores = model(x)
            training.step(training.loss(scores.float(), labels), step)
        if args.device == "cuda":
            torch.cuda.synchronize()
    some(min(30, args.steps))
    best = 0.0
    for _ in range(3):
        start = time.perf_counter()
        some(args.steps)
        best = max(best, args.steps / (time.perf_counter() - start))
    return best


def speed(args):
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    folder, good = os.path.join(args.out, "speed"), True
    run(command(args, folder, ["--dtype", "f32", "--steps", 10, "--evaluate-every", 0]))
    how, images = training_of(folder), Images(args, 0)
    how["steps"] = 10 * args.steps
    for dtype in ("f32", "bf16"):
        found = run([args.steps_program, args.device, args.data, args.network, dtype,
                     str(args.side or 0), str(10 * args.steps)])
        print(found.strip(), flush=True)
        ours = float(re.search(r"([0-9.]+) steps/s", found).group(1))
        theirs = {last: eager_steps(args, how, images, dtype, last) for last in (False, True)}
        best = max(theirs.values())
        print(f"{args.network} {dtype}, batch {how['batch']}: ours {ours:.0f} steps/s, eager "
              f"PyTorch {theirs[False]:.0f}, channels last {theirs[True]:.0f}: {ours / best:.2f} "
              f"times", flush=True)
        good = good and ours >= 10 * best
    return good


class Epochs:
    """Batches of images that lie on the device, in an order and with changes of PyTorch's own."""

    def __init__(self, how, pixels, labels, device, seed):
        self.how, self.labels = how, labels.to(device)
        self.made = torch.Generator(device).manual_seed(seed)
        self.count, self.side = pixels.shape[0], pixels.shape[1]
        c = how["crop"]
        self.padded = torch.zeros(self.count, self.side + 2 * c, self.side + 2 * c,
                                  pixels.shape[3], dtype=torch.uint8, device=device)
        self.padded[:, c:c + self.side, c:c + self.side] = pixels.to(device)
        self.order = torch.empty(0, dtype=torch.int64, device=device)

    def draw(self, below, rows):
        return torch.randint(below, (rows, 1), device=self.labels.device, generator=self.made)

    def next(self):
        rows, device = self.how["batch"], self.labels.device
        while len(self.order) < rows:
            more = torch.randperm(self.count, device=device, generator=self.made)
            self.order = torch.cat([self.order, more])
        which, self.order = self.order[:rows], self.order[rows:]
        line = torch.arange(self.side, device=device)[None]
        shifts = 2 * self.how["crop"] + 1
        y, x = line + self.draw(shifts, rows), line + self.draw(shifts, rows)
        if self.how["flip"]:
            x = torch.where(self.draw(2, rows) == 1, x.flip(1), x)
        return self.padded[which[:, None, None], y[:, :, None], x[:, None, :]], self.labels[which]


def run_of(args):
    """How the first seed's run was trained, and what it ended with."""
    folder = os.path.join(args.out, f"seed{SEEDS[0]}")
    return training_of(folder), read_safetensors(os.path.join(folder, "model.safetensors"))


def their_accuracy(args, seed):
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(seed)
    images, kept = Images(args, 0), Images(args, 1)
    how, tensors = run_of(args)
    model = model_of(args, how, images)
    training = Training(model, how, args.device == "cuda")
    epochs = Epochs(how, *images.all(), args.device, seed)

    def scores(pixels):
        with torch.autocast(args.device, torch.bfloat16):
            return model(shown(pixels, tensors, args.device))
    for step in range(how["steps"]):
        pixels, labels = epochs.next()
        training.step(training.loss(scores(pixels).float(), labels), step)
    model.eval()
    pixels, labels = kept.all()
    with torch.no_grad():
        right = sum((scores(p).argmax(1).cpu() == l).sum().item()
                    for p, l in zip(pixels.split(1000), labels.split(1000)))
    return 100 * right / kept.count


def their_accuracies(args):
    """All seeds side by side, in processes of their own: eager steps are bound by their launches."""
    with concurrent.futures.ProcessPoolExecutor(
            len(SEEDS), multiprocessing.get_context("spawn")) as pool:
        found = []
        for seed, value in zip(SEEDS, pool.map(their_accuracy, [args] * len(SEEDS), SEEDS)):
            found.append(value)
            print(f"PyTorch, seed {seed}: {value:.2f} %", flush=True)
        return found


def our_accuracies(args):
    """All seeds side by side."""
    runs = [subprocess.Popen(
        command(args, os.path.join(args.out, f"seed{seed}"),
                ["--dtype", "bf16" if args.device == "cuda" else "f32", "--seed", seed,
                 "--epochs", args.epochs, "--evaluate-every", 0, "--json"] +
                (["--steps", args.most] if args.most else [])),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for seed in SEEDS]
    found = []
    for seed, process in zip(SEEDS, runs):
        out, err = process.communicate()
        if process.returncode:
            sys.exit(err)
        found.append(100 * json.loads(out)["accuracy"])
        print(f"ours, seed {seed}: {found[-1]:.2f} %", flush=True)
    return found


def spread(values):
    return f"mean {sum(values) / len(values):.3f} %, {min(values):.2f} to {max(values):.2f}"


def accuracy(args):
    start = time.time()
    ours = our_accuracies(args)
    between = time.time()
    theirs = their_accuracies(args)
    apart = sum(ours) / len(ours) - sum(theirs) / len(theirs)
    how, images = run_of(args)[0], Images(args, 1)
    print(f"{args.network} at {images.height}x{images.width}, {how['steps']} steps of "
          f"{how['batch']}: ours {spread(ours)} ({between - start:.1f} s); PyTorch "
          f"{spread(theirs)} ({time.time() - between:.1f} s, both side by side); {apart:+.3f} "
          f"points", flush=True)
    return abs(apart) <= 0.2


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=("losses", "speed", "accuracy"))
    parser.add_argument("data", help="a folder of images that cupola train takes")
    parser.add_argument("--network")
    parser.add_argument("--side", type=int, help="to which images are scaled", default=0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--most", type=int, help="steps of accuracy, to try it")
    parser.add_argument("--rate", type=float, help="of learning; without it the preset's")
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    parser.add_argument("--epochs", type=float, default=5)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", default="out/fashion_peer")
    parser.add_argument("--command", default="build/cupola")
    parser.add_argument("--steps-program", default="build/bench/fashion_steps")
    parser.add_argument("--lib", default="build/libcupola.so")
    args = parser.parse_args()
    args.network = args.network or ("resnet18" if args.what == "accuracy" else "cnn")
    os.makedirs(args.out, exist_ok=True)
    sys.exit(0 if {"losses": losses, "speed": speed, "accuracy": accuracy}[args.what](args) else 1)


if __name__ == "__main__":
    main()

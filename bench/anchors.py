"""Writes tests/ops/anchors.tsv: small calls and what PyTorch in double says of them on a CPU, and
some that were worked out by hand.

    python3 bench/anchors.py > tests/ops/anchors.tsv

A line is an op, its attributes, inputs, results, the gradients of the inputs, and the source. The
results are those that a caller sees, and after them the inputs that the call changes. A tensor is
its shape, its kind (f: a float of any dtype, or one of KINDS) and its elements; the gradients are
those of the sum over all float results of element k times ((7 k) mod 5 - 1) / 4."""
import random
import zlib

import torch

import oracle_draw
from anchor_cases import cases
from oracle_ops import OPS

KINDS = {torch.float32: "s", torch.float8_e4m3fn: "e", torch.float8_e5m2: "g", torch.bool: "b",
         torch.uint8: "u", torch.int8: "c", torch.int32: "j", torch.int64: "i"}


def text_of(t):
    if t is None:
        return "-"
    kind = KINDS.get(t.dtype, "f")
    real = t.is_floating_point()
    values = ",".join(format(v, ".17g") if real else str(int(v))
                      for v in t.double().reshape(-1).tolist())
    return "x".join(map(str, t.shape)) + ":" + kind + ":" + values


def attributes_text(given):
    def value(v):
        return ",".join(map(str, v)) if isinstance(v, list) else str(int(v) if v is True or v is False
                                                                     else v)
    return " ".join(f"{k}={value(v)}" for k, v in given.items() if v != [])


# The order in which the rows of attention take what a draw names.
ORDER = ["slopes", "sinks", "query_offsets", "key_offsets", "bias", "key_blocks"]


def placed(fn, tensors):
    """Inputs as a row has them, None for those before a named one that the draw leaves out."""
    named = getattr(fn, "named", {})
    by_name = {name: tensors[i] for i, name in named.items()}
    count = max((ORDER.index(name) + 1 for name in by_name), default=0)
    return ([t for i, t in enumerate(tensors) if i not in named] +
            [by_name.get(name) for name in ORDER[:count]])


def weighed(results):
    return sum((r * (((7 * torch.arange(r.numel())) % 5 - 1) / 4).reshape(r.shape)).sum()
               for r in results if r.is_floating_point() and r.requires_grad)


def line_of(op):
    inputs, attributes, fn = OPS[op]()
    inputs = [(t * 64).round() / 64 if t.is_floating_point() else t for t in inputs]
    leaves = [t.requires_grad_() if t.is_floating_point() else t for t in inputs]
    results = fn(*leaves)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    loss, grads = weighed(results), []
    if isinstance(loss, torch.Tensor):
        reals = [t for t in leaves if t.is_floating_point()]
        found = iter(torch.autograd.grad(loss, reals, allow_unused=True))
        grads = [next(found) if t.is_floating_point() else None for t in leaves]
    return "\t".join([op, attributes_text(attributes), " ".join(map(text_of, placed(fn, leaves))),
                      " ".join(text_of(r.detach()) for r in results),
                      " ".join(map(text_of, placed(fn, grads) if grads else [])),
                      f"PyTorch {torch.__version__}, CPU, double"])


# Worked out by hand: op, attributes, inputs, results, gradients.
BY_HAND = [
    ("attention_lse", "scale=1 causal=1",
     "1x1x2x1:f:1,1 1x1x2x1:f:0,0.69314718055994531 1x1x2x1:f:1,4",
     "1x1x2x1:f:1,3 1x1x2:f:0,1.0986122886681098", ""),
    ("cholesky", "ridge=1", "2x2:f:3,1.5,2.5,4", "2x2:f:2,0,1,2",
     "2x2:f:-0.15625,0.1875,0.1875,0"),
    ("qr", "", "2x2:f:3,1,4,2",
     "2x2:f:0.59999999999999998,-0.80000000000000004,0.80000000000000004,0.59999999999999998 "
     "2x2:f:5,2.2000000000000002,0,0.40000000000000002",
     "2x2:f:-0.246,0.14999999999999999,-0.128,0.20000000000000001"),
    ("svd", "", "2x2:f:0,2,-1,0", "2x2:f:1,0,0,-1 2:f:2,1 2x2:f:0,1,1,0",
     "2x2:f:-0.5,-0.25,-0.25,0.75"),
    ("recurrence", "axis=0 reverse=0", "3:f:0.5,2,-1 3:f:1,2,3", "3:f:1,4,-1",
     "3:f:0,-0.5,3 3:f:-1.25,-0.5,0.75"),
    ("solve", "ridge=1", "2x2:f:1,1,1,2 2x1:f:3,5",
     "2x1:f:0.80000000000000004,1.3999999999999999",
     "2x2:f:0.16,0.28000000000000003,-0.12,-0.20999999999999999 "
     "2x1:f:-0.20000000000000001,0.14999999999999999"),
    ("cast", "dtype=f64", "3:f:1.5,-2,0.25", "3:f:1.5,-2,0.25", "3:f:-0.25,0.25,0.75"),
    ("conv2d", "padding=1 groups=1",
     "1x1x2x2:f:1,2,3,4 1x1x2x2:f:1,-1,2,0.5 1:f:0.25",
     "1x1x3x3:f:0.75,3.25,4.25,0.75,7.25,10.25,-2.75,-0.75,4.25",
     "1x1x2x2:f:0.875,0.875,1.5,-1 1x1x2x2:f:2.25,4.75,2.25,2.25 1:f:2"),
    # The sums of the first result are those of conv2d above without its bias.
    ("scaled_conv2d", "dtype=f32 padding=1 groups=1",
     "1x1x2x2:e:1,2,3,4 2x1x2x2:e:1,-1,2,0.5,1,1,1,1 :s:0.5 2x1:s:2,4 2:s:0.25,-1",
     "1x2x3x3:s:0.75,3.25,4.25,0.75,7.25,10.25,-2.75,-0.75,4.25,1,5,3,7,19,11,5,13,7", ""),
    ("scaled_conv2d", "dtype=f32 groups=2 fast_accumulation=1",
     "1x2x2x2:c:1,2,3,4,100,-100,50,127 2x1x1x2:c:3,-2,127,-128 1x1:s:0.25",
     "1x2x2x1:s:-0.25,0.25,6375,-2476.5", ""),
    ("ctc_loss", "blank=0",
     "3x1x3:f:-0.5,-1.25,-2,-1.5,-0.75,-1,-0.25,-2.5,-1.75 1x2:i:1,2 1:i:3 1:i:2",
     "1:f:1.6884029395257931",
     "3x1x3:f:0.067347370339046253,0.18265262966095375,0,0.015027229529327004,0.09916001550"
     "2274004,0.13581275496839898,0.11103704200370447,0,0.13896295799629552 - - -"),
    ("fft", "axis=0 inverse=0",
     "4x2:f:1,2,3,-1,0.5,0,-2,1",
     "4x2:f:2.5,2,-1.5,-3,0.5,2,2.5,7",
     "4x2:f:1.25,0.75,0,1,-0.75,-0.75,-1.5,0"),
    ("fft", "axis=1 inverse=1",
     "1x3x2:f:1,2,3,-1,0.5,0",
     "1x3x2:f:1.5,0.33333333333333331,0.038675134594813053,1.5550211698203658,-0.5386751345948"
     "1309,0.11164549684630164",
     "1x3x2:f:0.33333333333333331,0,-0.21949788301796347,0.052831216351296763,-0.3638354503153"
     "6996,0.19716878364870302"),
    ("unfold", "window=2",
     "1x1x3x3:f:1,2,3,4,5,6,7,8,9",
     "1x4x4:f:1,2,4,5,2,3,5,6,4,5,7,8,5,6,8,9",
     "1x1x3x3:f:-0.25,0.75,-0.25,0.75,1.5,0.75,-0.25,0.75,-0.25"),
    ("fold", "size=2,3 window=2 padding=1",
     "1x4x12:f:-2,3,1,-1,4,2,0,-2,3,1,-1,4,2,0,-2,3,1,-1,4,2,0,-2,3,1,-1,4,2,0,-2,3,1,-1,4,2,0"
     ",-2,3,1,-1,4,2,0,-2,3,1,-1,4,2",
     "1x1x2x3:f:10,2,1,6,-2,4",
     "1x4x12:f:0,0,0,0,0,-0.25,0.25,0.75,0,0,0.5,-0.25,0,0,0,0,-0.25,0.25,0.75,0,0,0.5,-0.25,0"
     ",0,-0.25,0.25,0.75,0,0,0.5,-0.25,0,0,0,0,-0.25,0.25,0.75,0,0,0.5,-0.25,0,0,0,0,0"),
    ("full", "dtype=f64 shape=2,3 value=1.5", "", "2x3:f:1.5,1.5,1.5,1.5,1.5,1.5", ""),
    ("global_norm", "", "2:f:2,-4 1x2:f:5,6", ":f:9", ""),
    ("grouped_matmul", "",
     "3x2:f:1,2,3,-1,0.5,4 2x2x2:f:1,0,2,1,0,1,-1,2 2:i:1,3",
     "3x2:f:5,2,1,1,-4,8.5",
     "3x2:f:-0.25,-0.25,0,-0.75,-0.25,-1 2x2x2:f:-0.25,0.25,-0.5,0.5,2.5,-0.125,1.25,-1 -"),
    # Tokens 2 and 3 of a sequence, whose pages are 1 and 0; codes, whose scales are 1/4 and 2.
    ("kv_append", "",
     "2x1x3x2:f:0,0,0,0,0,0,0,0,0,0,0,0 2x1x3x1:f:0,0,0,0,0,0 1x1x2x2:f:1,2,3,4 1x1x2x1:f:5,6 "
     "1:i:2 1x2:j:1,0",
     "2x1x3x2:f:3,4,0,0,0,0,0,0,0,0,1,2 2x1x3x1:f:6,0,0,0,0,5", ""),
    ("kv_append", "",
     "1x1x1x2:c:0,0 1x1x1x2:c:0,0 1x1x1x2:f:-31.75,0.5 1x1x1x2:f:254,127 1:i:0 - 1x1x1:f:0 "
     "1x1x1:f:0",
     "1x1x1x2:c:-127,2 1x1x1x2:c:127,64 1x1x1:f:0.25 1x1x1:f:2", ""),
    # Keys 0, log 2 and log 3 on pages 1 and 0, met by 1, 1, -1 and 0; then log 2 and a sink.
    ("kv_attention", "scale=1",
     "1x2x2x1:f:1,1,-1,0 2x1x2x1:f:1.0986122886681098,100,0,0.69314718055994531 "
     "2x1x2x1:f:6,50,1,4 1:i:1 1x2:j:1,0",
     "1x2x2x1:f:3,4.5,2,3.6666666666666665", ""),
    ("kv_attention", "scale=1 window_left=1",
     "1x1x1x1:f:1 1x1x2x1:f:7,2 1x1x2x1:f:9,3 1:i:1 - 1x1x2:f:1,0.34657359027997264 "
     "1x1x2:f:1,0.5 - 1:f:0",
     "1x1x1x1:f:1", ""),
    # Scores 0 and log 2, then 0 and -log 3; values 3 and 1.5.
    ("scaled_attention", "dtype=f32 scale=1",
     "1x2x1x1:e:1,-1 1x1x2x1:e:0,1 1x1x2x1:e:6,3 1x2:f:0.69314718055994531,1.0986122886681098 "
     "1x1:f:1 1x1:f:0.5",
     "1x2x1x1:f:2,2.625", ""),
    ("linear_cross_entropy", "ignore_index=-1",
     "1x1:f:1 2x1:f:0,0 1:i:0",
     ":f:0.69314718055994530942",
     "1x1:f:0 2x1:f:0.125,-0.125 -"),
    ("rope", "",
     "1x1x2x2:f:1,2,3,4",
     "1x1x2x2:f:1,2,-1.7449770216271668744,4.6856221778962483896",
     "1x1x2x2:f:-0.25,0.25,0.40522672940110478805,-0.63110323860592237999"),
    ("rope", "factor=2",
     "1x1x2x2:f:1,2,3,4",
     "1x1x2x2:f:1,2,0.7150455312543063,4.9486068633741",
     "1x1x2x2:f:-0.25,0.25,0.6581869214177796,-0.35956915395315225"),
]


def seed(name):
    """Each op draws by itself, so that another one leaves its lines as they are."""
    random.seed(name)
    torch.manual_seed(zlib.crc32(name.encode()))


def main():
    oracle_draw.size = lambda: random.choice([1, 2, 3])
    print("# op\tattributes\tinputs\tresults\tgradients\tsource; written by bench/anchors.py")
    for op in OPS:
        seed(op)
        lines = []
        while len(lines) < 3:
            line = line_of(op)
            if len(line) < 12000:
                lines.append(line)
        print("\n".join(lines))
    for row in BY_HAND:
        print("\t".join(row) + "\tby hand")
    seed("cases")
    for op, attributes, inputs, results, gradients, source in cases(weighed):
        print("\t".join([op, attributes_text(attributes), " ".join(map(text_of, inputs)),
                         " ".join(map(text_of, results)), " ".join(map(text_of, gradients)),
                         source]))


if __name__ == "__main__":
    main()

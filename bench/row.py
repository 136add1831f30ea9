"""A call that bench/peers.py times, and the random numbers that it is made of."""
import torch

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
          "f8e4m3": torch.float8_e4m3fn, "i8": torch.int8}
ATEN = torch.ops.aten


class Row:
    """One call. peers: others than PyTorch run eagerly, by name; compiled: whether torch.compile is
    one; exact: whether the peer's error can be measured."""

    def __init__(self, op, shapes, dtype, make, attributes="", compiled=False, peers=None,
                 with_cupy=None, indices=0, exact=True, transposed=False, precision="highest",
                 name="torch", channels_last=False):
        self.op, self.shapes, self.dtype, self.make = op, shapes, dtype, make
        self.attributes, self.compiled, self.peers = attributes, compiled, peers or {}
        self.with_cupy, self.indices, self.exact = with_cupy, indices, exact
        self.transposed, self.precision, self.name = transposed, precision, name
        self.channels_last = channels_last

    def text(self):
        """Attributes as far as the row sets them; how the library writes them stands in a result."""
        more = [self.attributes, "transposed=1" if self.transposed else "",
                "channels_last=1" if self.channels_last else "",
                "precision=" + self.precision if self.precision != "highest" else ""]
        return " ".join(word for word in more if word)


class Wide:
    """Stands in for a dtype: values are rounded to it and held in double."""

    def __init__(self, dtype):
        self.dtype = dtype


def shapes_of(text):
    """All shapes of a text such as "2x3 2*5 3*(4 -) ()"; an input left out is one of no size."""
    out, groups = [], []
    for word in text.replace("()", "0d").replace("(", "( ").replace(")", " )").split():
        if word == ")":
            begin, times = groups.pop()
            out[begin:] = out[begin:] * times
            continue
        times, _, shape = word.rpartition("*")
        if shape == "(":
            groups.append((len(out), int(times)))
        else:
            size = () if shape in ("0d", "-") else tuple(int(n) for n in shape.split("x"))
            out += [size] * int(times or 1)
    return out


def random(shape, dtype, grad=False):
    x = torch.randn(shape, device="cuda", dtype=torch.float32)
    return rounded(x, dtype).requires_grad_(grad)


def rounded(x, dtype):
    return x.to(dtype.dtype).double() if isinstance(dtype, Wide) else x.to(dtype)

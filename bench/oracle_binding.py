"""Calls Cupola's ops by name through its shared library, as bench/oracle.py needs them: what a call
takes is read from src/dispatch/ops.def."""
import ctypes
import pathlib
import re

import torch

from library import ContextOptions

DTYPES = {"f32": (0, torch.float32), "f64": (1, torch.float64), "f16": (2, torch.float16),
          "bf16": (3, torch.bfloat16), "i64": (4, torch.int64), "i32": (5, torch.int32),
          "u8": (6, torch.uint8), "bool": (7, torch.bool), "i8": (8, torch.int8)}
CODES = {kind: code for code, kind in DTYPES.values()}
KINDS = {code: kind for code, kind in DTYPES.values()}
ROW = re.compile(r'^(?:OP|FUNCTION)\((\w+), \((.*?)\), \((.*?)\), \((.*?)\),', re.M)


class Row:
    def __init__(self, name, inputs, attributes, results):
        self.name = name
        parts = [a.split("=") for a in attributes.split(",") if a.strip()]
        self.attributes = [part[0].split() for part in parts if len(part) == 1]
        self.options = [part[0].split() for part in parts if len(part) == 2]
        tensors = {key for kind, key in self.options if kind == "tensor"}
        self.inputs = [i.strip() for i in inputs.split(",")
                       if i.strip() and i.strip(" ?") not in tensors]
        self.visible = len([r for r in results.split(";")[0].split(",") if r.strip()])


def rows_of(path):
    return {m[0]: Row(*m) for m in ROW.findall(pathlib.Path(path).read_text(encoding="utf-8"))}


class Ints(ctypes.Structure):
    _fields_ = [("values", ctypes.POINTER(ctypes.c_int64)), ("count", ctypes.c_int)]


TYPES = {"int": ctypes.c_int, "int64": ctypes.c_int64, "float": ctypes.c_double,
         "bool": ctypes.c_bool, "dtype": ctypes.c_int, "ints": Ints,
         "tensor": ctypes.c_void_p, "activation": ctypes.c_int, "padding_mode": ctypes.c_int}


def options_of(row, given):
    """The row's cup_NAME_options; what is not named is 0, its default."""
    kind = type(row.name, (ctypes.Structure,), {"_fields_": [("size", ctypes.c_size_t)] + [
        (key, TYPES[kind]) for kind, key in row.options]})
    options = kind(size=ctypes.sizeof(kind))
    for kind, key in row.options:
        value = given.get(key)
        if value is not None:
            setattr(options, key, Ints((ctypes.c_int64 * len(value))(*value), len(value))
                    if kind == "ints" else DTYPES[value][0] if kind == "dtype" else value)
    return options


class Failure(Exception):
    """What the library says of a call that it refused."""


class Library:
    def __init__(self, path, device, rows):
        self.lib, self.rows = ctypes.CDLL(path), rows
        for name in ("cup_context_new", "cup_tensor_from", "cup_require_grad", "cup_grad"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.lib.cup_error_text.restype = ctypes.c_char_p
        self.lib.cup_tensor_size.restype = ctypes.c_int64
        self.c = ctypes.c_void_p(
            self.lib.cup_context_new(ctypes.byref(ContextOptions(device=device.encode()))))
        self.check(True)

    def check(self, good):
        if self.lib.cup_error(self.c) or not good:
            text = self.lib.cup_error_text(self.c).decode()
            self.lib.cup_error_clear(self.c)
            raise Failure(text)

    def tensor(self, t, needs_grad=False):
        t = t.detach().contiguous()
        shape = (ctypes.c_int64 * t.dim())(*t.shape)
        made = self.lib.cup_tensor_from(self.c, CODES[t.dtype], t.dim(), shape,
                                        ctypes.c_void_p(t.data_ptr()) if t.numel() else None)
        self.check(made)
        made = ctypes.c_void_p(made)
        if needs_grad:
            self.lib.cup_require_grad(made)
        return made

    def read(self, t):
        kind = KINDS[self.lib.cup_tensor_dtype(t)]
        shape = [self.lib.cup_tensor_size(t, i) for i in range(self.lib.cup_tensor_ndim(t))]
        out = torch.empty(shape, dtype=kind)
        self.check(self.lib.cup_tensor_read(t, ctypes.c_void_p(out.data_ptr()), ctypes.c_size_t(
            out.numel() * out.element_size())) == 0)
        return out

    def call(self, name, inputs, attributes=None):
        """The op's visible results; attributes that are not named are 0, or have the default."""
        row, given, hold = self.rows[name], attributes or {}, []
        args = [self.c]
        if row.inputs and row.inputs[0].endswith("..."):
            args += [(ctypes.c_void_p * len(inputs))(*inputs), ctypes.c_int(len(inputs))]
        else:
            args += list(inputs) + [None] * (len(row.inputs) - len(inputs))
        for kind, key in row.attributes:
            value = given.get(key, () if kind == "ints" else 0)
            if kind == "ints":
                hold.append((ctypes.c_int64 * len(value))(*value))
                pair = [hold[-1], ctypes.c_int(len(value))]
                args += reversed(pair) if key == "shape" else pair
            elif kind == "float":
                args.append(ctypes.c_double(value))
            elif kind == "int64":
                args.append(ctypes.c_int64(value))
            elif kind == "bool":
                args.append(ctypes.c_bool(value))
            else:
                args.append(ctypes.c_int(DTYPES[value][0] if kind == "dtype" else value))
        if row.options:
            hold.append(options_of(row, given))
            args.append(ctypes.byref(hold[-1]))
        function = getattr(self.lib, "cup_" + name)
        if row.visible == 1:
            function.restype = ctypes.c_void_p
            made = function(*args)
            self.check(made)
            return [ctypes.c_void_p(made)]
        out = [ctypes.c_void_p() for _ in range(row.visible)]
        function.restype = ctypes.c_int
        self.check(function(*args, *(ctypes.byref(o) for o in out)) == 0)
        return out

    def gradients(self, results, weights, leaves):
        """Those of the sum of results times weights."""
        loss = None
        for result, weight in zip(results, weights):
            kind = KINDS[self.lib.cup_tensor_dtype(result)]
            part = self.call("mul", [result, self.tensor(weight.to(kind))])[0]
            part = self.call("cast", [self.call("sum", [part])[0]], {"dtype": "f64"})[0]
            loss = part if loss is None else self.call("add", [loss, part])[0]
        self.check(self.lib.cup_backward(self.c, loss) == 0)
        return [ctypes.c_void_p(g) if (g := self.lib.cup_grad(leaf)) else None for leaf in leaves]

    def scope(self, opened):
        (self.lib.cup_scope_open if opened else self.lib.cup_scope_close)(self.c)
        if not opened:
            self.lib.cup_tape_clear(self.c)

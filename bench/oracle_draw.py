"""How bench/oracle_ops.py and bench/oracle_networks.py draw the calls of an op. Inputs are made in
double and rounded to the dtype of the call; those of whole numbers stay as they are."""
import math
import random as choose

import torch


ROUNDING = {"kind": torch.float64}  # what the call's results are rounded to
NUMBERS = {"slopes", "sinks"}  # inputs that are in f32, but in f64 where the call is


def size():
    """Empty, one, around powers of two and vectors, and odd ones."""
    return choose.choice([0, 1, 1, 2, 3, 5, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65])


def shape(least=0, most=4, empty=True):
    sides = [size() for _ in range(choose.randint(least, most))]
    while math.prod(sides) > 20000:
        sides[sides.index(max(sides))] = 3
    return [s if s or empty else 2 for s in sides]


def real(sides, low=-2.0, high=2.0):
    return torch.rand(sides, dtype=torch.float64) * (high - low) + low


def whole(sides, below, kind=None):
    return torch.randint(0, max(below, 1), sides,
                         dtype=kind or choose.choice([torch.int32, torch.int64]))


def narrowed(sides):
    """A shape that broadcasts against this one."""
    cut = sides[choose.randint(0, len(sides)):] if sides else []
    return [1 if choose.random() < 0.3 else s for s in cut]


def unary(fn, low=-4.0, high=4.0, **attributes):
    return lambda: ([real(shape(), low, high)], attributes, fn)


def binary(fn, low=-2.0, high=2.0, **attributes):
    def draw():
        sides = shape()
        return [real(sides, low, high), real(narrowed(sides), low, high)], attributes, fn
    return draw


def axes_of(sides):
    count = choose.randint(1, len(sides)) if sides else 0
    return choose.sample(range(-len(sides), 0), count)


def fold(fn, empty=True):
    """fn(x, axes, keep)"""
    def draw():
        sides = shape(1, 4, empty)
        axes, keep = axes_of(sides), choose.random() < 0.5
        return ([real(sides)], {"axes": axes, "keep": keep}, lambda x: fn(x, axes, keep))
    return draw


def along(fn, empty=True, low=-2.0, high=2.0, **more):
    """fn(x, axis)"""
    def draw():
        sides = shape(1, 4, empty)
        axis = choose.randrange(-len(sides), len(sides))
        return [real(sides, low, high)], {"axis": axis, **more}, lambda x: fn(x, axis)
    return draw


def distinct(draw):
    """Elements that no rounding makes equal, for what has an order."""
    def changed():
        inputs, attributes, fn = draw()
        n = inputs[0].numel()
        values = torch.randperm(n).double() % 255 - 127 if n > 250 else \
            torch.randperm(n).double() - n // 2
        return [values.reshape(inputs[0].shape)] + inputs[1:], attributes, fn
    return changed

"""A network of cupola/network.h in PyTorch, made of the same description, its tensors called as
there, with the same kinds of first weights."""
import json
import math

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    def __init__(self, body, other):
        super().__init__()
        self.body, self.other = body, other

    def forward(self, x):
        return self.body(x) + self.other(x)


class ChannelsLast(nn.Module):
    """Numbers of an image in the order in which ours lie."""

    def forward(self, x):
        return x.permute(0, 2, 3, 1).flatten(1) if x.dim() == 4 else x


class GlobalPool(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


class Maker:
    """Reads lines and makes layers; `named` has those with tensors by their names."""

    def __init__(self, text, side, channels, classes):
        lines = [line.split("#")[0].split() for line in text.splitlines()]
        self.lines = [words for words in lines if words]
        self.at, self.named, self.made = 0, {}, {}
        self.side, self.channels, self.classes = side, channels, classes

    def name(self, kind, layer):
        self.made[kind] = self.made.get(kind, 0) + 1
        self.named[f"{kind}{self.made[kind]}"] = layer
        return layer

    def sequence(self):
        """The layers up to an `end` or a `shortcut`, which is read, too."""
        layers = []
        while self.at < len(self.lines):
            words = self.lines[self.at]
            self.at += 1
            if words[0] in ("end", "shortcut"):
                return nn.Sequential(*layers), words[0]
            layers += self.layer(words)
        return nn.Sequential(*layers), None

    def layer(self, words):
        kind, rest = words[0], words[1:]
        given = dict(w.split("=") for w in rest if "=" in w)
        plain = [w for w in rest if "=" not in w]
        if kind in ("repeat", "residual"):
            return getattr(self, kind)(plain)
        if kind in ("conv", "linear", "batchnorm", "maxpool"):
            return [getattr(self, kind)(plain, given)]
        if kind == "flatten":
            self.channels *= self.side ** 2
            return [ChannelsLast()]
        return [{"relu": nn.ReLU, "globalpool": GlobalPool}[kind]()]

    def repeat(self, plain):
        begin, layers = self.at, []
        for _ in range(int(plain[0])):
            self.at = begin
            layers.append(self.sequence()[0])
        return layers

    def residual(self, _):
        side, channels = self.side, self.channels
        body, end = self.sequence()
        other = nn.Identity()
        if end == "shortcut":
            self.side, self.channels = side, channels
            other, _ = self.sequence()
        return [Residual(body, other)]

    def slide(self, kernel, stride, padding):
        self.side = (self.side + 2 * padding - kernel) // stride + 1

    def conv(self, plain, given):
        kernel, stride = int(given.get("kernel", 3)), int(given.get("stride", 1))
        padding = int(given.get("padding", (kernel - 1) // 2))
        out = self.channels if plain[0] == "same" else int(plain[0])
        layer = nn.Conv2d(self.channels, out, kernel, stride, padding,
                          groups=int(given.get("groups", 1)), bias="nobias" not in plain)
        nn.init.kaiming_normal_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
        self.channels = out
        self.slide(kernel, stride, padding)
        return self.name("conv", layer)

    def maxpool(self, plain, given):
        kernel = int(plain[0])
        stride, padding = int(given.get("stride", kernel)), int(given.get("padding", 0))
        self.slide(kernel, stride, padding)
        return nn.MaxPool2d(kernel, stride, padding)

    def batchnorm(self, _, __):
        return self.name("batchnorm", nn.BatchNorm2d(self.channels))

    def linear(self, plain, _):
        last = plain[0] == "classes"
        out = self.classes if last else int(plain[0])
        layer = nn.Linear(self.channels, out)
        if last:
            nn.init.normal_(layer.weight, std=0.01)
        else:
            nn.init.kaiming_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
        self.channels = out
        return self.name("linear", layer)


class Described(nn.Module):
    def __init__(self, text, side, channels, classes):
        super().__init__()
        maker = Maker(text, side, channels, classes)
        self.layers, _ = maker.sequence()
        self.named = maker.named  # which are all in self.layers

    def forward(self, x):
        return self.layers(x)

    def fill(self, tensors):
        """Takes the values of a model.safetensors of ours."""
        with torch.no_grad():
            for name, layer in self.named.items():
                for part in ("weight", "bias", "running_mean", "running_var"):
                    to = getattr(layer, part, None)
                    if to is not None:
                        to.copy_(tensors[f"{name}.{part}"])


class Training:
    """The optimizer and the loss that a state.json of ours tells of."""

    def __init__(self, model, how, fused):
        self.how = how
        if how["clip"] or how["mixup"] or how["average"]:
            raise SystemExit("described.py has no clip, no mixup and no averages")
        decayed = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": how["weight_decay"]},
                  {"params": others, "weight_decay": 0.0}]
        fast = {"fused": True} if fused else {}
        if how["method"] == "sgd":
            self.optimizer = torch.optim.SGD(groups, lr=how["rate"], momentum=how["momentum"],
                                             nesterov=how["nesterov"], **fast)
        else:
            self.optimizer = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[how["method"]](
                groups, lr=how["rate"], betas=(how["beta1"] or 0.9, how["beta2"] or 0.999),
                eps=how["epsilon"] or 1e-8, **fast)

    def rate(self, step):
        how = self.how
        if step < how["warmup"]:
            return how["rate"] * (step + 1) / (how["warmup"] + 1)
        part = (step - how["warmup"]) / (how["steps"] - how["warmup"])
        left = {"cosine": 0.5 * (1 + math.cos(math.pi * part)), "constant": 1}[how["decline"]]
        return how["rate_end"] + left * (how["rate"] - how["rate_end"])

    def loss(self, scores, labels):
        return F.cross_entropy(scores, labels,
                               label_smoothing=self.how["label_smoothing"])

    def step(self, loss, number):
        loss.backward()
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(number)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def read_safetensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = bytearray(file.read())
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            found[name] = torch.frombuffer(data[begin:end], dtype=DTYPES[entry["dtype"]]).view(
                entry["shape"]).float()
    return found

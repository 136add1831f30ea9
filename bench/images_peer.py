"""What bench/images_steps.c trains, in PyTorch: ResNet-50, ConvNeXt-T and ViT-B/16 on images of
224 x 224 that lie on the device, channels last, autocast to bf16, cuDNN in benchmark mode.

    python3 bench/images_peer.py [--network NAME...] [--eager] [--steps 60] [--batch N]

Prints images a second, ms a step and the peak of memory of each, compiled by torch.compile unless
--eager is given. The networks are written here, so that torchvision is not needed."""
import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

SIDE, CLASSES, WARM = 224, 1000, 12


class Bottleneck(nn.Module):
    def __init__(self, wide_in, width, stride):
        super().__init__()
        wide = 4 * width
        self.one = nn.Conv2d(wide_in, width, 1, bias=False)
        self.two = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.three = nn.Conv2d(width, wide, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(n) for n in (width, width, wide)])
        self.shortcut = None
        if stride > 1 or wide_in != wide:
            self.shortcut = nn.Sequential(nn.Conv2d(wide_in, wide, 1, stride, bias=False),
                                          nn.BatchNorm2d(wide))

    def forward(self, x):
        y = F.relu(self.norms[0](self.one(x)))
        y = F.relu(self.norms[1](self.two(y)))
        y = self.norms[2](self.three(y))
        return F.relu(y + (self.shortcut(x) if self.shortcut else x))


def resnet50():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
              nn.MaxPool2d(3, 2, 1)]
    wide = 64
    for width, times, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(times):
            layers.append(Bottleneck(wide, width, stride if i == 0 else 1))
            wide = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, CLASSES))


class ChannelsLastNorm(nn.LayerNorm):
    """Of [N,C,H,W] that lies as [N,H,W,C]."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class NextBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y), approximate="tanh"))
        return x + y.permute(0, 3, 1, 2)


def convnext_t():
    widths = (96, 192, 384, 768)
    layers = [nn.Conv2d(3, widths[0], 4, 4), ChannelsLastNorm(widths[0], eps=1e-6)]
    for i, (width, times) in enumerate(zip(widths, (3, 3, 9, 3))):
        if i:
            layers += [ChannelsLastNorm(widths[i - 1], eps=1e-6),
                       nn.Conv2d(widths[i - 1], width, 2, 2)]
        layers += [NextBlock(width) for _ in range(times)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(widths[3]),
                         nn.Linear(widths[3], CLASSES))


class Transformer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, width)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))


class ViT(nn.Module):
    def __init__(self, width=768, heads=12, layers=12, patch=16):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (SIDE // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*[Transformer(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05, fused=True)


NETWORKS = {"resnet50": (resnet50, 256, sgd), "convnext-t": (convnext_t, 128, adamw),
            "vit-b/16": (ViT, 128, adamw)}


def run(name, steps, batch, eager):
    make, usual, optimizer_of = NETWORKS[name]
    batch = batch or usual
    torch.manual_seed(1)
    torch.cuda.reset_peak_memory_stats()
    model = make().cuda().to(memory_format=torch.channels_last)
    optimizer = optimizer_of(model.parameters())
    x = torch.randn(batch, 3, SIDE, SIDE, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(CLASSES, (batch,), device="cuda")
    forward = model if eager else torch.compile(model)
    started = time.time()

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(forward(x), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for _ in range(WARM):
        first = step()
    torch.cuda.synchronize()
    warm = time.time() - started
    started = time.time()
    for _ in range(steps):
        last = step()
    torch.cuda.synchronize()
    seconds = (time.time() - started) / steps
    how = "eager" if eager else "compiled"
    print(f"{name:10} batch {batch}: {batch / seconds:8.1f} images/s, {seconds * 1e3:7.2f} ms a "
          f"step, peak {torch.cuda.max_memory_allocated() * 1e-9:.2f} GB, {how}; loss "
          f"{first.item():.4f} to {last.item():.4f}, {warm:.1f} s for the first {WARM}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--eager", action="store_true")
    a = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    for name in a.network:
        run(name, a.steps, a.batch, a.eager)


if __name__ == "__main__":
    main()

"""What bench/gpt_steps.c trains, in PyTorch: GPT-2 of 124M and 1558M and Llama shapes of 1.06B and
6.7B, on random tokens that lie on the device, autocast to bf16, AdamW and clipping included.

    python3 bench/gpt_peer.py [--model NAME...] [--eager] [--steps 30] [--batch N]

Under torchrun each process has such a batch on a GPU of its own, by DistributedDataParallel:

    torchrun --standalone --nproc-per-node 2 bench/gpt_peer.py --model gpt2-124m

and with --fsdp a share of the parameters, gradients and states, by FSDP2 (fully_shard of each block
and of all), whose parameters are brought in bf16 and whose gradients are added up in f32; each block
is compiled by itself then. --device cpu tries llama-tiny without a GPU.

Prints tokens a second, ms a step and the peak of memory of each, compiled by torch.compile unless
--eager is given. Vocabularies are rounded up to multiples of 128, which is faster there."""
import argparse
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

WARM = 8
RANK, COUNT = (int(os.environ.get(name, usual)) for name, usual in
               (("LOCAL_RANK", 0), ("WORLD_SIZE", 1)))


class Block(nn.Module):
    """GPT-2's, or with `kv` heads of keys Llama's."""

    def __init__(self, width, heads, kv, hidden):
        super().__init__()
        self.heads, self.kv, self.size = heads, kv or heads, width // heads
        norm = (lambda: nn.RMSNorm(width)) if kv else (lambda: nn.LayerNorm(width))
        self.norms = nn.ModuleList([norm(), norm()])
        self.qkv = nn.Linear(width, (heads + 2 * self.kv) * self.size, bias=not kv)
        self.out = nn.Linear(width, width, bias=not kv)
        self.up = nn.Linear(width, 2 * hidden if kv else hidden, bias=not kv)
        self.down = nn.Linear(hidden, width, bias=not kv)
        self.gated = bool(kv)

    def attend(self, x, turn):
        b, t, width = x.shape
        parts = [self.heads * self.size, self.kv * self.size, self.kv * self.size]
        q, k, v = (y.view(b, t, -1, self.size).transpose(1, 2)
                   for y in self.qkv(x).split(parts, -1))
        if turn is not None:
            q, k = turned(q, turn), turned(k, turn)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                           enable_gqa=self.kv != self.heads)
        return self.out(y.transpose(1, 2).reshape(b, t, width))

    def forward(self, x, turn):
        x = x + self.attend(self.norms[0](x), turn)
        y = self.up(self.norms[1](x))
        if self.gated:
            gate, y = y.chunk(2, -1)
            return x + self.down(F.silu(gate) * y)
        return x + self.down(F.gelu(y, approximate="tanh"))


def turned(x, turn):
    cosine, sine = turn
    a, b = x.chunk(2, -1)
    return torch.cat((a * cosine - b * sine, a * sine + b * cosine), -1).to(x.dtype)


class Model(nn.Module):
    def __init__(self, layers, heads, width, context, vocabulary, kv=0, hidden=0):
        super().__init__()
        rows = (vocabulary + 127) // 128 * 128
        self.tokens, self.kv, self.context = nn.Embedding(rows, width), kv, context
        self.places = None if kv else nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            [Block(width, heads, kv, hidden or 4 * width) for _ in range(layers)])
        self.norm = nn.RMSNorm(width) if kv else nn.LayerNorm(width)
        self.head = nn.Linear(width, rows, bias=False)
        if not kv:
            self.head.weight = self.tokens.weight
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.02)
        size = width // heads
        angles = torch.arange(context)[:, None] / 1e4 ** (torch.arange(0, size, 2) / size)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        if not self.kv:
            x = x + self.places.weight
        turn = (self.cosine, self.sine) if self.kv else None
        for block in self.blocks:
            x = block(x, turn)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


MODELS = {"gpt2-124m": ((12, 12, 768, 1024, 50257), 32),
          "gpt2-1558m": ((48, 25, 1600, 1024, 50257), 8),
          "llama-1b": ((22, 32, 2048, 2048, 32768, 8, 5632), 8),
          "llama-7b": ((32, 32, 4096, 2048, 32000, 32, 11008), 4),
          "llama-tiny": ((2, 4, 64, 64, 256, 2, 176), 2)}
MEASURED = list(MODELS)[:3]


def sharded(model, eager):
    """By FSDP2, with the layers' products in bf16 and what autocast would keep in f32 there, too."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        if not eager:
            block.compile()
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model


def prepared(model, a):
    """What is called in the model's place."""
    if a.fsdp:
        return sharded(model, a.eager)
    if COUNT > 1:
        model = nn.parallel.DistributedDataParallel(
            model, [RANK] if a.device == "cuda" else None, gradient_as_bucket_view=True)
    return model if a.eager else torch.compile(model)


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def run(name, a):
    shape, usual = MODELS[name]
    batch, context, steps = a.batch or usual, shape[3], a.steps
    torch.manual_seed(1)
    if a.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with torch.device(a.device):  # a processor takes minutes to draw some thousand million weights
        model = Model(*shape)
    tokens, targets = (torch.randint(shape[4], (batch, context), device=a.device)
                       for _ in range(2))
    forward = prepared(model, a)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95),
                                  weight_decay=0.1, fused=True)
    started = time.time()

    def step():
        with torch.autocast(a.device, torch.bfloat16, enabled=not a.fsdp):
            loss = forward(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for _ in range(WARM):
        first = step()
    wait(a.device)
    warm = time.time() - started
    started = time.time()
    for _ in range(steps):
        last = step()
    wait(a.device)
    seconds = (time.time() - started) / steps
    how = ("eager" if a.eager else "compiled") + (", FSDP2" if a.fsdp else "")
    tokens = batch * context * COUNT
    peak = torch.cuda.max_memory_allocated() if a.device == "cuda" else 0
    if RANK:
        return
    print(f"{name:10} batch {batch} on {COUNT}: {tokens / seconds * 1e-3:8.1f} thousand tokens/s, "
          f"{seconds * 1e3:7.2f} ms a step, peak {peak * 1e-9:.2f} GB, "
          f"{how}; loss {first.item():.4f} to {last.item():.4f}, {warm:.1f} s for the first "
          f"{WARM}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", nargs="+", choices=MODELS, default=MEASURED)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    a = parser.parse_args()
    if a.fsdp and COUNT == 1:
        parser.error("--fsdp is for several processes; start it under torchrun")
    torch.set_float32_matmul_precision("high")
    if a.device == "cuda":
        torch.cuda.set_device(RANK)
    if COUNT > 1 and a.device == "cuda":
        torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", RANK))
    elif COUNT > 1:
        torch.distributed.init_process_group("gloo")
    for name in a.model:
        run(name, a)
    if COUNT > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

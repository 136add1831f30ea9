"""Holds models read from published folders to PyTorch's, with random weights of small shapes.

    python3 bench/published.py [--lib build/libcupola.so]

Each family is written here as a folder of config.json and safetensors in two parts, computed by its
formulas in PyTorch and by Cupola in f32 on the CPU; the largest difference of the logits is
printed, that after Cupola has written the folder again and read it back, and that with adapters in
peft's form beside it, of all linear layers and of some, read, written again and merged. Formulas:
Radford and others 2019 (GPT-2); Touvron and others 2023 (Llama), Su and others 2021 (rotary
positions), Zhang and Sennrich 2019 (RMSNorm), Shazeer 2020 (SwiGLU), Ainslie and others 2023
(groups of heads), Yang and others 2025 (norms of queries and keys in Qwen 3), Grattafiori and
others 2024 (Llama 3), Hu and others 2021 (LoRA), Jiang and others 2024 (Mixtral), Peng and others
2023 (YaRN, dynamic NTK). Models with experts take no adapters. Where transformers is installed, its
own models of the folders are compared as well: that of the one that Cupola has written, and where
positions are stretched at a length before that begins and, in pieces, with a cache."""
import argparse
import ctypes
import json
import math
import os
import struct
import sys
import tempfile
import warnings

import torch
import torch.nn.functional as F

try:
    import transformers
    transformers.utils.logging.disable_progress_bar()
except ImportError:
    transformers = None

WORST = 1e-3
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
MIXED = ("mixtral", "qwen3_moe")
LINEAR = {"rope_type": "linear", "factor": 2.5}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
YARN_ALL = {**YARN, "beta_fast": 2.5, "beta_slow": 0.5, "truncate": False, "mscale": 1.5,
            "mscale_all_dim": 0.7}
DYNAMIC = {"rope_type": "dynamic", "factor": 3.0}
STRETCHED = ("yarn", "dynamic")


def write(path, tensors, names):
    header, data = {}, b""
    for name in names:
        bits = tensors[name].contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensors[name].shape),
                        "data_offsets": [len(data), len(data) + len(bits)]}
        data += bits
    text = json.dumps(header).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + data)


def save(folder, config, tensors):
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2],
             "model-00002-of-00002.safetensors": names[1::2]}
    for file, own in parts.items():
        write(os.path.join(folder, file), tensors, own)
    index = {"metadata": {}, "weight_map": {n: f for f, own in parts.items() for n in own}}
    for file, value in (("model.safetensors.index.json", index), ("config.json", config)):
        with open(os.path.join(folder, file), "w") as out:
            json.dump(value, out)


def gpt2(tied):
    layers, heads, width, context, vocabulary = 3, 4, 32, 20, 77
    t = {"wte.weight": (vocabulary, width), "wpe.weight": (context, width), "ln_f.weight": (width,),
         "ln_f.bias": (width,)}
    if not tied:
        t["lm_head.weight"] = (vocabulary, width)
    for i in range(layers):
        for name, shape in {"ln_1.weight": (width,), "ln_1.bias": (width,), "ln_2.weight": (width,),
                            "ln_2.bias": (width,), "attn.c_attn.weight": (width, 3 * width),
                            "attn.c_attn.bias": (3 * width,), "attn.c_proj.weight": (width, width),
                            "attn.c_proj.bias": (width,), "mlp.c_fc.weight": (width, 4 * width),
                            "mlp.c_fc.bias": (4 * width,), "mlp.c_proj.weight": (4 * width, width),
                            "mlp.c_proj.bias": (width,)}.items():
            t[f"h.{i}.{name}"] = shape
    t = {name: torch.randn(shape) * 0.3 for name, shape in t.items()}
    config = {"model_type": "gpt2", "n_layer": layers, "n_head": heads, "n_embd": width,
              "n_positions": context, "vocab_size": vocabulary, "n_inner": None,
              "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
              "tie_word_embeddings": tied}

    def norm(x, name):
        return F.layer_norm(x, (width,), t[name + ".weight"], t[name + ".bias"], 1e-5)

    def forward(tokens, t=t):
        x = t["wte.weight"][tokens] + t["wpe.weight"][:tokens.shape[1]]
        for i in range(layers):
            h = f"h.{i}."
            qkv = norm(x, h + "ln_1") @ t[h + "attn.c_attn.weight"] + t[h + "attn.c_attn.bias"]
            q, k, v = (u.unflatten(-1, (heads, -1)).transpose(1, 2) for u in qkv.chunk(3, -1))
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + o @ t[h + "attn.c_proj.weight"] + t[h + "attn.c_proj.bias"]
            u = norm(x, h + "ln_2") @ t[h + "mlp.c_fc.weight"] + t[h + "mlp.c_fc.bias"]
            x = x + F.gelu(u, approximate="tanh") @ t[h + "mlp.c_proj.weight"] + \
                t[h + "mlp.c_proj.bias"]
        return norm(x, "ln_f") @ t["wte.weight" if tied else "lm_head.weight"].T
    prefix = "transformer." if not tied else ""
    named = {(prefix if n != "lm_head.weight" else "") + n: v for n, v in t.items()}
    return config, named, forward, vocabulary, context


def adapters(folder, config, tensors, rank, alpha, some):
    """Random factors beside the layers of a folder, or some of them, in peft's form; returns the
    weights with them added: alpha / rank B A, transposed where the layer's weight is."""
    conv = config["model_type"] == "gpt2"
    known = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"] if conv else [
        f"{n}_proj" for n in ("q", "k", "v", "o", "gate", "up", "down")]
    targets = [n for n in known if n in some] if some else known
    factors, added = {}, dict(tensors)
    for name, weight in tensors.items():
        layer = name.removesuffix(".weight")
        if weight.dim() != 2 or not layer.endswith(tuple(targets)):
            continue
        out, inside = weight.T.shape if conv else weight.shape
        a, b = torch.randn(rank, inside) * 0.2, torch.randn(out, rank) * 0.2
        whole = ("transformer." if conv and not name.startswith("transformer.") else "") + layer
        factors[f"base_model.model.{whole}.lora_A.weight"] = a
        factors[f"base_model.model.{whole}.lora_B.weight"] = b
        delta = alpha / rank * b @ a
        added[name] = weight + (delta.T if conv else delta)
    os.makedirs(folder)
    write(os.path.join(folder, "adapter_model.safetensors"), factors, sorted(factors))
    with open(os.path.join(folder, "adapter_config.json"), "w") as out:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha,
                   "target_modules": sorted({n.split(".")[-1] for n in targets}), "bias": "none",
                   "fan_in_fan_out": conv, "use_rslora": False, "rank_pattern": {}}, out)
    return added


def yarned(base, size, rule):
    """Frequencies, and what cosines and sines are multiplied by."""
    factor, original = rule["factor"], rule["original_max_position_embeddings"]

    def bound(turns):
        return size / 2 * math.log(original / (2 * math.pi * turns)) / math.log(base)

    def growth(weight=1.0):
        return 0.1 * weight * math.log(factor) + 1
    first, last = bound(rule.get("beta_fast", 32)), bound(rule.get("beta_slow", 1))
    if rule.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first = max(first, 0)
    ramp = ((torch.arange(size // 2) - first) / max(last - first, 1e-3)).clamp(0, 1)
    frequency = base ** (-torch.arange(0, size, 2) / size)
    amplitude = growth(rule["mscale"]) / growth(rule["mscale_all_dim"]) if "mscale" in rule \
        else growth()
    return frequency * (1 - ramp) + frequency / factor * ramp, amplitude


def turns(base, size, rule, length, context):
    """Frequencies, and what cosines and sines are multiplied by."""
    if rule and rule["rope_type"] == "yarn":
        return yarned(base, size, rule)
    if rule and rule["rope_type"] == "dynamic":
        grown = rule["factor"] * max(length / context, 1) - rule["factor"] + 1
        base, rule = base * grown ** (size / (size - 2)), None
    return scaled(base ** (-torch.arange(0, size, 2) / size), rule), 1


def scaled(frequency, rule):
    if not rule:
        return frequency
    if rule["rope_type"] == "linear":
        return frequency / rule["factor"]
    low, high = rule["low_freq_factor"], rule["high_freq_factor"]
    waves = rule["original_max_position_embeddings"] * frequency / (2 * torch.pi)
    smooth = ((waves - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * frequency / rule["factor"] + smooth * frequency


def mixture(kind, h, t, y, each):
    """Each token's experts, their weights divided by their sum unless there is one."""
    mixtral = kind == "mixtral"
    h += "block_sparse_moe." if mixtral else "mlp."
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    weight, chosen = (y @ t[h + "gate.weight"].T).softmax(-1).topk(each, -1)
    weight = weight / weight.sum(-1, keepdim=True) if each > 1 else weight
    out = torch.zeros_like(y)
    for e in range(t[h + "gate.weight"].shape[0]):
        gate, up, down = (t[f"{h}experts.{e}.{n}.weight"] for n in names)
        own = (weight * (chosen == e)).sum(-1, keepdim=True)
        out += own * ((F.silu(y @ gate.T) * (y @ up.T)) @ down.T)
    return out


def experts_of(kind, h, shapes, width, hidden, count):
    """Their shapes in place of those of the MLP."""
    for name in ("gate", "up", "down"):
        del shapes[f"{h}mlp.{name}_proj.weight"]
    h += "block_sparse_moe." if kind == "mixtral" else "mlp."
    names = ("w1", "w3", "w2") if kind == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    shapes[h + "gate.weight"] = (count, width)
    for e in range(count):
        for i, name in enumerate(names):
            shapes[f"{h}experts.{e}.{name}.weight"] = (width, hidden) if i == 2 else (hidden, width)


def llama(kind, tied, base, newer, size=8, rule=None, each=2, biased=(),
          window=None):
    layers, heads, groups, width, hidden, vocabulary, context = 2, 6, 2, 48, 80, 61, 24
    inner = heads * size
    t = {"model.embed_tokens.weight": (vocabulary, width), "model.norm.weight": (width,)}
    if not tied:
        t["lm_head.weight"] = (vocabulary, width)
    for i in range(layers):
        for name, shape in {"input_layernorm": (width,), "post_attention_layernorm": (width,),
                            "self_attn.q_proj": (inner, width),
                            "self_attn.k_proj": (groups * size, width),
                            "self_attn.v_proj": (groups * size, width),
                            "self_attn.o_proj": (width, inner), "mlp.gate_proj": (hidden, width),
                            "mlp.up_proj": (hidden, width), "mlp.down_proj": (width, hidden)
                            }.items():
            t[f"model.layers.{i}.{name}.weight"] = shape
        for name in "qkv" if kind == "qwen2" else "qkvo" if "attention" in biased else "":
            t[f"model.layers.{i}.self_attn.{name}_proj.bias"] = (
                inner if name == "q" else width if name == "o" else groups * size,)
        for name in ("gate", "up", "down") if "mlp" in biased else ():
            t[f"model.layers.{i}.mlp.{name}_proj.bias"] = (width if name == "down" else hidden,)
        for name in "qk" if kind.startswith("qwen3") else "":
            t[f"model.layers.{i}.self_attn.{name}_norm.weight"] = (size,)
        if kind in MIXED:
            experts_of(kind, f"model.layers.{i}.", t, width, hidden, 5)
    t = {name: torch.randn(shape) * 0.3 for name, shape in t.items()}
    config = {"model_type": kind, "num_hidden_layers": layers, "num_attention_heads": heads,
              "num_key_value_heads": groups, "hidden_size": width, "intermediate_size": hidden,
              "vocab_size": vocabulary, "max_position_embeddings": context, "rms_norm_eps": 1e-6,
              "hidden_act": "silu", "tie_word_embeddings": tied, "sliding_window": window}
    config.update({f"{part}_bias": True for part in biased})
    if kind == "qwen2":
        config.update(use_sliding_window=window is not None, sliding_window=window or context // 2,
                      max_window_layers=1)
    if inner != width or kind.startswith("qwen3"):
        config["head_dim"] = size
    if kind == "mixtral":
        config.update(num_local_experts=5, num_experts_per_tok=each)
    if kind == "qwen3_moe":
        config.update(num_experts=5, num_experts_per_tok=each, norm_topk_prob=each > 1,
                      moe_intermediate_size=hidden, intermediate_size=3 * hidden)
    if newer:
        config["rope_parameters"] = {"rope_theta": base, **(rule or {"rope_type": "default"})}
    else:
        config.update(rope_theta=base, rope_scaling=rule)

    def norm(x, name):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * t[name + ".weight"]

    def turn(x):
        frequency, amplitude = turns(base, size, rule, x.shape[2], context)
        angle = torch.arange(x.shape[2])[:, None] * frequency
        low, high = x.chunk(2, -1)
        return torch.cat([low * angle.cos() - high * angle.sin(),
                          high * angle.cos() + low * angle.sin()], -1) * amplitude

    def forward(tokens, t=t):
        x = t["model.embed_tokens.weight"][tokens]
        for i in range(layers):
            h = f"model.layers.{i}."
            y = norm(x, h + "input_layernorm")
            q, k, v = ((y @ t[f"{h}self_attn.{n}_proj.weight"].T +
                        t.get(f"{h}self_attn.{n}_proj.bias", 0)).unflatten(-1, (-1, size))
                       .transpose(1, 2) for n in "qkv")
            if kind.startswith("qwen3"):
                q, k = norm(q, h + "self_attn.q_norm"), norm(k, h + "self_attn.k_norm")
            seen = window if window and i >= config.get("max_window_layers", 0) else 4 * context
            place = torch.arange(tokens.shape[1])
            apart = place[:, None] - place
            o = F.scaled_dot_product_attention(turn(q), turn(k), v, (apart >= 0) & (apart < seen),
                                               enable_gqa=True).transpose(1, 2).flatten(2)
            x = x + o @ t[h + "self_attn.o_proj.weight"].T + t.get(h + "self_attn.o_proj.bias", 0)
            y = norm(x, h + "post_attention_layernorm")
            if kind in MIXED:
                x = x + mixture(kind, h, t, y, each)
                continue
            gate, up = (y @ t[f"{h}mlp.{n}_proj.weight"].T + t.get(f"{h}mlp.{n}_proj.bias", 0)
                        for n in ("gate", "up"))
            x = x + (F.silu(gate) * up) @ t[h + "mlp.down_proj.weight"].T + \
                t.get(h + "mlp.down_proj.bias", 0)
        head = "model.embed_tokens.weight" if tied else "lm_head.weight"
        return norm(x, "model.norm") @ t[head].T
    return config, t, forward, vocabulary, context


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        for name in ("cup_context_new", "cup_gpt_import", "cup_tensor_from", "cup_gpt_logits",
                     "cup_gpt_cache_new", "cup_gpt_read"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.lib.cup_error_text.restype = ctypes.c_char_p
        os.environ["CUP_DEVICE"] = "cpu"
        self.c = ctypes.c_void_p(self.lib.cup_context_new(None))

    def check(self, good):
        if not good:
            sys.exit(self.lib.cup_error_text(self.c).decode())
        return ctypes.c_void_p(good)

    def model(self, folder):
        return self.check(self.lib.cup_gpt_import(self.c, folder.encode(), 0))

    def export(self, model, folder):
        self.check(not self.lib.cup_gpt_export(model, folder.encode()))

    def adapt(self, model, folder):
        self.check(not self.lib.cup_gpt_adapters_load(model, folder.encode()))

    def export_adapters(self, model, folder):
        self.check(not self.lib.cup_gpt_adapters_export(model, folder.encode(), None))

    def merge(self, model):
        self.check(not self.lib.cup_gpt_merge(model))

    def given(self, tokens):
        shape = (ctypes.c_int64 * 2)(*tokens.shape)
        ids = tokens.to(torch.int32).contiguous()
        return self.check(self.lib.cup_tensor_from(self.c, 5, 2, shape,
                                                   ctypes.c_void_p(ids.data_ptr())))

    def read(self, y, out):
        self.check(not self.lib.cup_tensor_read(y, ctypes.c_void_p(out.data_ptr()),
                                                ctypes.c_size_t(out.numel() * 4)))
        return out

    def logits(self, model, tokens, vocabulary):
        y = self.check(self.lib.cup_gpt_logits(model, self.given(tokens)))
        return self.read(y, torch.empty(*tokens.shape, vocabulary))

    def pieces(self, model, pieces, vocabulary):
        """The logits behind each of them, read one behind the other."""
        rows = pieces[0].shape[0]
        cache = self.check(self.lib.cup_gpt_cache_new(model, ctypes.c_int64(rows),
                                                      ctypes.c_int64(0)))
        out = [self.read(self.check(self.lib.cup_gpt_read(cache, self.given(p))),
                         torch.empty(rows, vocabulary)) for p in pieces]
        self.lib.cup_gpt_cache_free(cache)
        return torch.stack(out)


def adapted(library, folder, made, tokens, some):
    """The largest differences with adapters beside a saved model: as they were read, as they were
    written again, and merged."""
    config, tensors, forward, vocabulary, _ = made
    apart = os.path.join(folder, "some" if some else "all")
    added = adapters(apart, config, tensors, 3, 5, some)
    want = forward(tokens, {n.removeprefix("transformer."): t for n, t in added.items()})
    model, other, errors = library.model(folder), library.model(folder), []

    def compare(model):
        errors.append((library.logits(model, tokens, vocabulary) - want).abs().max().item())
    library.adapt(model, apart)
    compare(model)
    library.export_adapters(model, apart + "/again")
    library.adapt(other, apart + "/again")
    compare(other)
    library.merge(other)
    compare(other)
    return errors


def theirs(folder):
    """A new one each time, as what it has read before changes how it turns dynamic positions."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval().requires_grad_(False)


def beside_transformers(library, folder, tokens, vocabulary, stretched):
    """The largest differences from what transformers makes of the folder."""
    ours, errors = library.model(folder), []
    lengths = (tokens.shape[1], tokens.shape[1] // 3) if stretched else (tokens.shape[1],)
    for length in lengths:
        errors.append((library.logits(ours, tokens[:, :length], vocabulary) -
                       theirs(folder)(tokens[:, :length]).logits).abs().max().item())
    if stretched:
        third = tokens.shape[1] // 3
        pieces = [tokens[:, :third], tokens[:, third:2 * third],
                  *tokens[:, 2 * third:].split(1, 1)]
        model, past, want = theirs(folder), transformers.DynamicCache(), []
        for piece in pieces:
            want.append(model(piece, past_key_values=past, use_cache=True).logits[:, -1])
        errors.append((library.pieces(ours, pieces, vocabulary) -
                       torch.stack(want)).abs().max().item())
    return errors


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--lib", default="build/libcupola.so")
    library = Library(options.parse_args().lib)
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    worst = 0
    for words, made in (("gpt2", gpt2(True)), ("gpt2, untied, prefix", gpt2(False)),
                        ("llama 2", llama("llama", False, 10000.0, False)),
                        ("llama 3, tied", llama("llama", True, 500000.0, True)),
                        ("mistral", llama("mistral", False, 1e6, False)),
                        ("mistral, window", llama("mistral", False, 1e6, False, window=7)),
                        ("qwen 2, window", llama("qwen2", False, 1e6, False, window=7)),
                        ("smollm", llama("llama", True, 10000.0, False)),
                        ("qwen 2", llama("qwen2", False, 1e6, False)),
                        ("qwen 2, tied", llama("qwen2", True, 1e6, True)),
                        ("llama 3.1", llama("llama", False, 5e5, False, rule=LLAMA3)),
                        ("llama 3.2, newer", llama("llama", True, 5e5, True, rule=LLAMA3)),
                        ("llama, stretched", llama("llama", False, 1e4, False, rule=LINEAR)),
                        ("qwen 2, yarn", llama("qwen2", False, 1e6, False, rule=YARN)),
                        ("qwen 3, yarn, newer", llama("qwen3", True, 1e4, True, 16, rule=YARN)),
                        ("qwen 3, yarn, all said",
                         llama("qwen3", False, 1e4, False, 16, rule=YARN_ALL)),
                        ("llama, dynamic", llama("llama", False, 1e4, False, rule=DYNAMIC)),
                        ("llama, dynamic, newer",
                         llama("llama", True, 1e4, True, 12, rule=DYNAMIC)),
                        ("mistral, wide heads", llama("mistral", False, 1e6, False, 12)),
                        ("llama, biases of attention",
                         llama("llama", False, 1e4, False, biased=("attention",))),
                        ("llama, biases",
                         llama("llama", True, 1e4, False, biased=("attention", "mlp"))),
                        ("qwen 3, biases",
                         llama("qwen3", False, 1e6, False, 16, biased=("attention",))),
                        ("qwen 3", llama("qwen3", True, 1e6, False, 16)),
                        ("qwen 3, untied", llama("qwen3", False, 1e6, True, 8)),
                        ("mixtral", llama("mixtral", False, 1e6, False)),
                        ("qwen 3 moe", llama("qwen3_moe", False, 1e6, False, 16, each=3)),
                        ("qwen 3 moe, one", llama("qwen3_moe", True, 1e6, True, each=1))):
        config, tensors, forward, vocabulary, context = made
        rule = config.get("rope_scaling") or config.get("rope_parameters") or {}
        stretched = rule.get("rope_type") in STRETCHED
        tokens = torch.randint(vocabulary, (3, 3 * context if stretched else context))
        want, errors = forward(tokens), []
        with tempfile.TemporaryDirectory() as folder:
            save(folder, config, tensors)
            model = library.model(folder)
            errors.append((library.logits(model, tokens, vocabulary) - want).abs().max().item())
            library.export(model, folder + "/again")
            again = library.logits(library.model(folder + "/again"), tokens, vocabulary)
            errors.append((again - want).abs().max().item())
            direct = beside_transformers(library, folder + "/again", tokens, vocabulary,
                                         stretched) if transformers else []
            beside = [] if config["model_type"] in MIXED else \
                adapted(library, folder, made, tokens, None) + \
                adapted(library, folder, made, tokens, ("attn.c_attn", "q_proj", "v_proj"))
        worst = max(worst, *errors, *beside, *direct)
        print(f"{words:27} logits up to {want.abs().max():.2f}, off by {errors[0]:.1e}, written "
              f"and read again {errors[1]:.1e}, with adapters {max(beside, default=0):.1e}, "
              "from transformers " + (", ".join(f"{e:.1e}" for e in direct) or "not compared"))
    sys.exit(worst > WORST)


if __name__ == "__main__":
    main()

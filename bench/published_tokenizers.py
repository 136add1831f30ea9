"""Holds tokenizers read from tokenizer.json to Hugging Face's tokenizers, which must be installed.

    python3 bench/published_tokenizers.py [--lib build/libcupola.so] [--texts 2000]

Byte-level BPE is trained here with the words of GPT-2, SmolLM, Llama 3 and Qwen 2, and BPE of
sentencepiece's kind as in files of Llama 2 and Mistral, older and newer; each is written by that
library, read by Cupola, written by Cupola and read by that library; all three encode the sources'
text and random texts of all kinds of characters. Those of Llama 2 and 3 have a template that puts
tokens in front of a text, and of one behind it. Exit code 1: some tokens differ."""
import argparse
import ctypes
import glob
import json
import os
import random
import sys
import tempfile
import unicodedata

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)


def words(kind):
    level = pre_tokenizers.ByteLevel
    if kind == "gpt2":
        return level(add_prefix_space=False)
    if kind == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                        level(add_prefix_space=False)])
    pattern = Regex(QWEN2 if kind == "qwen2" else LLAMA3)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated"),
                                    level(add_prefix_space=False, use_regex=False)])


def train(kind, files):
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = words(kind), decoders.ByteLevel()
    if kind == "qwen2":
        t.normalizer = normalizers.NFC()
    special = ["<|endoftext|>"] if kind != "llama3" else []
    t.train(files, trainers.BpeTrainer(vocab_size=2000, special_tokens=special, show_progress=False,
                                       initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if kind in ("llama3", "qwen2"):
        t.add_special_tokens(["<|begin|>", "<|end|>"])
    if kind == "llama3":
        t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False),
                                                around(t, "<|begin|> $A <|end|>")])
    return t


def around(t, single):
    tokens = [(text, t.token_to_id(text)) for text in single.split() if text[0] == "<"]
    return processors.TemplateProcessing(single=single, special_tokens=tokens)


MARK = "\u2581"
SPACES = {"llama2": {"normalizer": {"type": "Sequence", "normalizers": [
              {"type": "Prepend", "prepend": MARK},
              {"type": "Replace", "pattern": {"String": " "}, "content": MARK}]}},
          **{scheme: {"pre_tokenizer": {"type": "Metaspace", "replacement": MARK,
                                        "prepend_scheme": scheme, "split": False}}
             for scheme in ("always", "first", "never")}}


def sentencepiece(kind, files):
    """Of few characters, so that others become bytes."""
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.train(files, trainers.BpeTrainer(vocab_size=2000, limit_alphabet=70, show_progress=False))
    whole = json.loads(t.to_str())
    texts = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    texts += sorted(whole["model"]["vocab"], key=whole["model"]["vocab"].get)
    whole["model"].update(vocab={text: i for i, text in enumerate(texts)}, byte_fallback=True,
                          fuse_unk=True, unk_token="<unk>")
    whole.update({"normalizer": None, "pre_tokenizer": None, **SPACES[kind]})
    whole["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"}] + [
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}] * (kind != "never")}
    t = tokenizers.Tokenizer.from_str(json.dumps(whole))
    t.add_special_tokens(["<unk>", "<s>", "</s>"])
    if kind == "llama2":
        t.post_processor = around(t, "<s> $A")
    return t


def looked_up(t):
    """With words looked up first: some that merges do not make, the merge of each being gone."""
    whole = json.loads(t.to_str())
    whole["model"]["ignore_merges"] = True
    whole["model"]["merges"] = [m for i, m in enumerate(whole["model"]["merges"])
                                if i % 7 or any("".join(m) in n for n in whole["model"]["merges"])]
    return tokenizers.Tokenizer.from_str(json.dumps(whole))


def random_text(draw):
    ranges = ((32, 126), (32, 126), (9, 13), (48, 57), (0x80, 0x24f), (0x370, 0x5ff), (0x600, 0x6ff),
              (0x900, 0x97f), (0x2000, 0x206f), (0x2150, 0x218f), (0x3000, 0x30ff), (0x4e00, 0x4eff),
              (0x1f300, 0x1f64f))
    pieces = ["'s", "'LL", " ", "  ", "\n", "\r\n", "\t", "12", "1234", "ab", " x", "<|endoftext|>",
              "<|end|>", "<s>", "</s>", " the", MARK, "'", "\u00a0", "\u3000", "\u00bd", "\u0661"]
    text = ""
    for _ in range(draw.randrange(1, 40)):
        low, high = draw.choice(ranges)
        text += draw.choice(pieces) if draw.random() < 0.5 else chr(draw.randint(low, high))
    return text if draw.random() < 0.7 else unicodedata.normalize("NFD", text)


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        for name in ("cup_context_new", "cup_tokenizer_load", "cup_decoder_new"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.lib.cup_tokenizer_front.restype = ctypes.POINTER(ctypes.c_int32)
        for name in ("cup_decoder_add", "cup_decoder_end"):
            getattr(self.lib, name).restype = ctypes.c_char_p
        self.lib.cup_tokenizer_encode.restype = ctypes.c_int64
        self.lib.cup_error_text.restype = ctypes.c_char_p
        os.environ["CUP_DEVICE"] = "cpu"
        self.c = ctypes.c_void_p(self.lib.cup_context_new(None))

    def load(self, path):
        made = self.lib.cup_tokenizer_load(self.c, path.encode())
        if not made:
            sys.exit(self.lib.cup_error_text(self.c).decode())
        return ctypes.c_void_p(made)

    def export(self, tokenizer, path):
        if self.lib.cup_tokenizer_export(self.c, tokenizer, path.encode()):
            sys.exit(self.lib.cup_error_text(self.c).decode())

    def front(self, tokenizer):
        count = ctypes.c_int()
        tokens = self.lib.cup_tokenizer_front(tokenizer, ctypes.byref(count))
        return tokens[:count.value]

    def decode(self, tokenizer, ids):
        decoder, text = self.lib.cup_decoder_new(self.c, tokenizer), b""
        decoder = ctypes.c_void_p(decoder)
        for i in ids:
            text += self.lib.cup_decoder_add(decoder, i, None)
        text += self.lib.cup_decoder_end(decoder, None)
        self.lib.cup_decoder_free(decoder)
        return text.decode()

    def encode(self, tokenizer, text):
        data = text.encode()
        out = (ctypes.c_int32 * (len(data) + 1))()
        count = self.lib.cup_tokenizer_encode(self.c, tokenizer, data, ctypes.c_size_t(len(data)),
                                              out)
        if count >= 0:
            return list(out[:count])
        # In NFC it has more tokens than bytes, which is refused.
        self.lib.cup_error_clear(self.c)
        return self.encode(tokenizer, unicodedata.normalize("NFC", text))


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--lib", default="build/libcupola.so")
    options.add_argument("--texts", type=int, default=2000)
    args = options.parse_args()
    library, wrong = Library(args.lib), 0
    files = sorted(glob.glob("docs/*.md") + glob.glob("src/train/*.c"))
    for kind in ("gpt2", "smollm", "llama3", "looked up", "qwen2", *SPACES):
        draw = random.Random(kind)
        theirs = sentencepiece(kind, files) if kind in SPACES else \
            looked_up(train("llama3", files)) if kind == "looked up" else train(kind, files)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tokenizer.json")
            theirs.save(path)
            ours = library.load(path)
            library.export(ours, path + ".again")
            again = tokenizers.Tokenizer.from_file(path + ".again")
        behind = [theirs.token_to_id("<|end|>")] if kind in ("llama3", "looked up") else []
        texts = [open(f, encoding="utf-8").read() for f in files]
        texts += [random_text(draw) for _ in range(args.texts)]
        tokens = differ = 0
        for text in texts:
            want = theirs.encode(text, add_special_tokens=False).ids
            got = library.encode(ours, text)
            tokens += len(want)
            whole = theirs.encode(text).ids
            if want != got or whole != again.encode(text).ids or \
                    whole[:len(whole) - len(behind)] != library.front(ours) + got or \
                    whole[len(whole) - len(behind):] != behind or \
                    theirs.decode(want, skip_special_tokens=False) != library.decode(ours, got):
                differ += 1
                if differ < 4:
                    print(kind, repr(text[:80]), want[:20], got[:20])
        wrong += differ
        print(f"{kind:8} {len(texts)} texts, {tokens} tokens, {differ} texts differ")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()

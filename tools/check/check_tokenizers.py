"""Compares tokenizers with `tokenizers` and `sentencepiece` on odd strings, with vocabularies made for it.

    tools/python.sh tools/check/check_tokenizers.py [--build build/release] [--strings 10000]

Needs tokenizers, sentencepiece and protobuf. CLIP's (tokenizer.json; vocab.json and merges.txt), SigLIP's (spiece.model;
tokenizer.json) and SigLIP 2's (tokenizer.json with byte fallback). Exit status 1 where one string has other tokens.
"""

import argparse
import base64
import json
import pathlib
import random
import re
import string
import subprocess
import sys
import tempfile
import unicodedata

import sentencepiece
import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers, processors, trainers

WORDS = ("a photo of the cat dog sitting on mat don't we'll they're i've it's 2024 3.14 naïve café Ångström Straße "
         "ÉCOLE İstanbul привет мир ΑΛΦΑ βητα 你好 世界 こんにちは 한국어 สวัสดี שלום مرحبا हिन्दी 😀 👩‍👩‍👧 ﬁne ½ ² Ⅷ ①").split()
PIECES = (list(string.printable) + WORDS + [" ", "  ", "\t", "\n", "\u00a0", "\u3000", "\u2009", "\u200b", "\u200d"]
          + ["e\u0301", "A\u030a\u0323", "\u0323\u030a", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0344", "\u212b"]
          + ["'s", "'S", "''s", "...", "!!!", "#@$", "<|endoftext|>", "<|startoftext|>", "<|ENDOFTEXT|>", "</s>", "▁",
             "<unk>", "<eos>", "\x00x"[1:], "\x1c", "\x7f", "\ufffd", "\U0001f1e9\U0001f1ea", "\u0130", "\u1e9e"])


def odd_strings(n):
    """Words, signs and any code point, alone and joined with and without blanks."""
    draw = random.Random(7)
    out = ["", " ", "a", "▁"]
    while len(out) < n:
        parts = []
        for _ in range(draw.randint(1, 12)):
            kind = draw.random()
            if kind < 0.55:
                parts.append(draw.choice(PIECES))
            elif kind < 0.8:
                parts.append("".join(draw.choice(string.ascii_letters) for _ in range(draw.randint(1, 9))))
            else:
                c = draw.choice([draw.randint(0x20, 0x24f), draw.randint(0x300, 0x1fff), draw.randint(0x2000, 0x33ff),
                                 draw.randint(0x4e00, 0xd7a3), draw.randint(0xe000, 0x1ffff)])
                if unicodedata.category(chr(c)) not in ("Cn", "Cs"):  # libraries are of different Unicode versions
                    parts.append(chr(c))
        text = draw.choice(["", " ", " "]).join(parts)
        # A sigma at the end of a word is lower-cased by its place in Python alone.
        out.append(text.replace("\x00", "").replace("Σ", "s"))
    return out


def corpus():
    draw = random.Random(3)
    return [" ".join(draw.choice(WORDS) for _ in range(draw.randint(2, 9))) for _ in range(4000)]


def make_clip():
    tok = tokenizers.Tokenizer(models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>", fuse_unk=False,
                                          continuing_subword_prefix=""))
    tok.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "),
                                           normalizers.Lowercase()])
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"),
                             behavior="removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<|startoftext|>", "<|endoftext|>"], end_of_word_suffix="</w>",
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    start, end = tok.token_to_id("<|startoftext|>"), tok.token_to_id("<|endoftext|>")
    tok.post_processor = processors.RobertaProcessing(("<|endoftext|>", end), ("<|startoftext|>", start),
                                                      trim_offsets=False, add_prefix_space=False)
    return tok


def make_gemma():
    tok = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(" ", "▁")])
    tok.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    special = ["<pad>", "<eos>", "<bos>", "<unk>"] + [f"<0x{b:02X}>" for b in range(256)]
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=900, special_tokens=special[:4],
                                                          show_progress=False))
    spec = json.loads(tok.to_str())  # bytes as plain words, as Gemma's file has them
    for word in special[4:]:
        spec["model"]["vocab"][word] = len(spec["model"]["vocab"])
    eos = spec["model"]["vocab"]["<eos>"]
    spec["post_processor"] = {"type": "TemplateProcessing", "pair": [], "single": [
        {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<eos>", "type_id": 0}}],
        "special_tokens": {"<eos>": {"id": "<eos>", "ids": [eos], "tokens": ["<eos>"]}}}
    return tokenizers.Tokenizer.from_str(json.dumps(spec))


def make_spiece(folder, **normalization):
    (folder / "corpus.txt").write_text("\n".join(w.lower() for w in corpus()))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "corpus.txt"), model_prefix=str(folder / "spiece"), vocab_size=300, model_type="unigram",
        pad_id=-1, bos_id=-1, eos_id=1, unk_id=2, pad_piece="<pad>", hard_vocab_limit=False, minloglevel=2,
        control_symbols=["<x>"], character_coverage=0.98, **(normalization or {"normalization_rule_name": "nmt_nfkc"}))
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))


def end_last(tokenizer):
    """The same with the end mark's number as the largest, as OpenAI's vocabulary has it."""
    parts = json.loads(tokenizer.to_str())
    words = parts["model"]["vocab"]
    end, last = words["<|endoftext|>"], max(words.values())
    other = next(word for word, number in words.items() if number == last)
    words["<|endoftext|>"], words[other] = last, end
    for added in parts["added_tokens"]:
        added["id"] = words[added["content"]]
    parts["added_tokens"].sort(key=lambda added: added["id"])
    parts["post_processor"]["sep"][1] = last
    return tokenizers.Tokenizer.from_str(json.dumps(parts))


def canonical(text):
    text = text.replace("▁", " ").lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\s+", " ", text).strip()


def unigram_json(model_file):
    """spiece.model as converters write it for `tokenizers`."""
    from sentencepiece import sentencepiece_model_pb2
    model = sentencepiece_model_pb2.ModelProto.FromString(model_file.read_bytes())
    control = sentencepiece_model_pb2.ModelProto.SentencePiece.CONTROL
    return json.dumps({
        "added_tokens": [{"id": i, "content": p.piece} for i, p in enumerate(model.pieces) if p.type == control],
        "normalizer": {"type": "Sequence", "normalizers": [{
            "type": "Precompiled",
            "precompiled_charsmap": base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()}]},
        "model": {"type": "Unigram", "unk_id": model.trainer_spec.unk_id,
                  "vocab": [[p.piece, p.score] for p in model.pieces]}})


class Check:
    def __init__(self, build, texts):
        self.tool, self.texts, self.bad = build / "tests" / "dump_tokens", texts, 0

    def compare(self, name, folder, expected, context=None):
        run = subprocess.run([self.tool, folder] + ([str(context)] if context else []), capture_output=True,
                             input="".join(t + "\0" for t in self.texts).encode())
        if run.returncode:
            sys.exit(f"{name}: {run.stderr.decode()}")
        lines = run.stdout.decode().split("\n")[:-1]
        assert len(lines) == len(self.texts), (len(lines), len(self.texts))
        wrong = [(t, e, [int(i) for i in line.split()]) for t, e, line in zip(self.texts, map(expected, self.texts),
                                                                               lines)
                 if e != [int(i) for i in line.split()]]
        print(f"{name:42} {len(lines) - len(wrong):6} of {len(lines)} strings have the same tokens")
        for text, theirs, ours in wrong[:3]:
            print(f"  {text!r}\n    theirs {theirs}\n    ours   {ours}")
        self.bad += bool(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default="build/release")
    parser.add_argument("--strings", type=int, default=10000)
    parser.add_argument("--keep", type=pathlib.Path, help="where to leave the vocabularies")
    args = parser.parse_args()
    check = Check(args.build, odd_strings(args.strings))
    with tempfile.TemporaryDirectory() as temporary:
        root = args.keep or pathlib.Path(temporary)
        folders = [root / name for name in ("clip", "clip_files", "siglip", "siglip2", "siglip_json")]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        clip = make_clip()
        clip.save(str(folders[0] / "tokenizer.json"))
        clip.model.save(str(folders[1]))
        check.compare("CLIP, tokenizer.json", folders[0], lambda t: clip.encode(t, add_special_tokens=False).ids)
        check.compare("CLIP, vocab.json and merges.txt", folders[1],
                      lambda t: clip.encode(t, add_special_tokens=False).ids)
        clip.enable_truncation(16)
        clip.enable_padding(length=16, pad_id=clip.token_to_id("<|endoftext|>"), pad_token="<|endoftext|>")
        check.compare("CLIP, framed in 16", folders[0], lambda t: clip.encode(t).ids, 16)
        sp = make_spiece(folders[2])
        check.compare("SigLIP, spiece.model", folders[2], lambda t: sp.encode(canonical(t)))
        (folders[4] / "tokenizer.json").write_text(unigram_json(folders[2] / "spiece.model"))
        check.compare("SigLIP, tokenizer.json", folders[4], lambda t: sp.encode(canonical(t)))

        def framed(text):
            ids = sp.encode(canonical(text))[:15] + [1]
            return ids + [1] * (16 - len(ids))

        check.compare("SigLIP, framed in 16", folders[2], framed, 16)
        gemma = make_gemma()
        gemma.save(str(folders[3] / "tokenizer.json"))
        check.compare("SigLIP 2, tokenizer.json", folders[3], lambda t: gemma.encode(t, add_special_tokens=False).ids)
        gemma.enable_truncation(16)
        gemma.enable_padding(length=16, pad_id=0, pad_token="<pad>")
        check.compare("SigLIP 2, framed in 16", folders[3], lambda t: gemma.encode(t).ids, 16)
    sys.exit(1 if check.bad else 0)


if __name__ == "__main__":
    main()

"""Writes tests/golden/tokenizers: small vocabularies, and the tokens that their libraries give for odd strings.

    tools/python.sh tools/golden/tokenizer_golden.py

Needs tokenizers and sentencepiece. A line of NAME.txt is a text (with \\n, \\t and \\\\), a tab, and its tokens.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "check"))
from check_tokenizers import canonical, make_clip, make_gemma, make_spiece, odd_strings

ROOT = pathlib.Path("tests/golden/tokenizers")


def escaped(text):
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")


def write(name, encode):
    texts = [t for t in odd_strings(160) if "\r" not in t]
    lines = [f"{escaped(t)}\t{' '.join(map(str, encode(t)))}\n" for t in texts]
    (ROOT / f"{name}.txt").write_text("".join(lines), newline="")


def main():
    for name in ("clip", "clip_files", "siglip", "siglip2"):
        (ROOT / name).mkdir(parents=True, exist_ok=True)
    clip, gemma = make_clip(), make_gemma()
    clip.save(str(ROOT / "clip" / "tokenizer.json"), pretty=False)
    clip.model.save(str(ROOT / "clip_files"))
    for name in ("clip", "clip_files"):
        write(name, lambda t: clip.encode(t, add_special_tokens=False).ids)
    gemma.save(str(ROOT / "siglip2" / "tokenizer.json"), pretty=False)
    write("siglip2", lambda t: gemma.encode(t, add_special_tokens=False).ids)
    rules = ROOT / "rules.tsv"  # few, where nmt_nfkc's are a quarter of a million bytes
    rules.write_text("".join(f"{a}\t{b}\n" for a, b in [("FB01", "66 69"), ("BD", "31 2044 32"), ("B2", "32"), ("200B", "20"),
                                                       ("65 301", "E9"), ("212B", "E5"), ("3000", "20"), ("200D", "")]))
    sp = make_spiece(ROOT / "siglip", normalization_rule_tsv=str(rules))
    write("siglip", lambda t: sp.encode(canonical(t)))
    for extra in (rules, ROOT / "siglip" / "corpus.txt", ROOT / "siglip" / "spiece.vocab"):
        extra.unlink()


main()

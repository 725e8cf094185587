#!/usr/bin/env python3
"""Writes vitrum/text/unicode.txt: of Unicode's tables what tokenizers ask for, as ranges in hexadecimal.

    tools/dev/make_unicode_table.py > vitrum/text/unicode.txt

L, N: letters and numbers. W: lower case, FIRST-LAST/STEP+DELTA. C: combining classes, FIRST-LAST=CLASS. D: canonical
decompositions, CHARACTER=FIRST+SECOND; with ~ in place of = composing does not make it again.
"""
import sys

try:
    import unicodedata2 as unicodedata  # newer tables than Python's own
except ImportError:
    import unicodedata

EVERY = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(keys):
    """[(first, last)] of neighbours."""
    out = []
    for c in keys:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def text(first, last):
    return f"{first:X}" if first == last else f"{first:X}-{last:X}"


def category(letter):
    return " ".join(text(a, b) for a, b in ranges(c for c in EVERY if unicodedata.category(chr(c))[0] == letter))


def lower():
    pairs = [(c, ord(chr(c).lower())) for c in EVERY if len(chr(c).lower()) == 1 and ord(chr(c).lower()) != c]
    out, i = [], 0
    while i < len(pairs):
        first, delta = pairs[i][0], pairs[i][1] - pairs[i][0]
        step = pairs[i + 1][0] - first if i + 1 < len(pairs) else 1
        if step > 2 or i + 1 == len(pairs) or pairs[i + 1][1] - pairs[i + 1][0] != delta:
            step = 1
        j = i
        while j + 1 < len(pairs) and pairs[j + 1] == (pairs[j][0] + step, pairs[j][0] + step + delta):
            j += 1
        out.append(f"{first:X}-{pairs[j][0]:X}/{step}{'-' if delta < 0 else '+'}{abs(delta):X}")
        i = j + 1
    return " ".join(out)


def classes():
    out = []
    for c in EVERY:
        k = unicodedata.combining(chr(c))
        if not k:
            continue
        if out and out[-1][1] == c - 1 and out[-1][2] == k:
            out[-1][1] = c
        else:
            out.append([c, c, k])
    return " ".join(f"{text(a, b)}={k:X}" for a, b, k in out)


def decompositions():
    out = []
    for c in EVERY:
        d = unicodedata.decomposition(chr(c))
        if not d or d.startswith("<") or 0xAC00 <= c < 0xD7A4:
            continue
        back = unicodedata.normalize("NFC", unicodedata.normalize("NFD", chr(c))) == chr(c)
        out.append(f"{c:X}{'=' if back else '~'}{'+'.join(d.split())}")
    return " ".join(out)


def main():
    for name, row in [("L", category("L")), ("N", category("N")), ("W", lower()), ("C", classes()),
                      ("D", decompositions())]:
        line = name
        for word in row.split():
            if len(line) + len(word) + 1 > 120:
                print(line)
                line = name
            line += " " + word
        print(line)
    print(f"Unicode {unicodedata.unidata_version}", file=sys.stderr)


main()

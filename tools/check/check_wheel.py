"""check_wheel.py VERSION ANSWERS: does the installed package vitrum answer with the bits of `vitrum classify --json`?

ANSWERS is what the command printed in the folder that this runs in, with every class (--top-k 100000) of check/model.
"""
import json
import struct
import sys

import vitrum


def bits(probability):
    return struct.pack("f", probability)


version, answers = sys.argv[1:]
assert vitrum.__version__ == version, vitrum.__version__
model = vitrum.load("check/model", device="cpu")
compared = 0
with open(answers) as lines:
    for line in map(json.loads, lines):
        if "error" in line:
            continue
        expected = [(p["index"], p["label"], bits(p["probability"])) for p in line["predictions"]]
        found = [(p.index, p.label, bits(p.probability)) for p in model.predict(line["image"], top_k=len(expected))]
        assert found == expected, line["image"]
        compared += 1
assert compared > 0, "no photo was compared"

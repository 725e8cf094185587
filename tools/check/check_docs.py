#!/usr/bin/env python3
"""Runs the commands that the pages show, in a scratch directory with small data.

    tools/check/check_docs.py [--vitrum build/release/vitrum] [--list]

Commands of shell blocks are run: training is cut down to a few images, and names that stand for the reader's own files
(DIR, photos/, runs/..) are made here. What needs the network or a file that nobody here has, and commands inside of
sentences, are held against what there is: the verb and every option must be in its --help, a script and its options in
the tree, a make target in the Makefile. Links and the files that pages name must be there, and docs/recipes.md must have every key. Needs Debian's dataset-fashion-mnist; exits with 1 where a command fails, and
with 77 where the data is not installed.
"""
import argparse
import os
import pathlib
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")
SHORT = "--epochs 1 --set subset=24 --set batch_size=8 --set eval_every=1"
OTHER_WORDS = ("predict",)  # shown as what `vitrum` answers with a word of its own
NOT_OURS = ("config.toml", "losses.py", "weights/families/X.cpp")  # a run's, DeiT's, an example's
NETWORK = ("vitrum download", "vitrum data download")


def pages():
    names = ["README.md", "CONTRIBUTING.md", "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md")),
             *sorted((ROOT / "vitrum").rglob("README.md"))]
    for page in (ROOT / name for name in names):
        yield page.relative_to(ROOT).as_posix(), page.read_text()


def commands():
    """(page, command) of every fenced shell block, continued lines joined, comments dropped."""
    for page, text in pages():
        for kind, block in re.findall(r"```(\w*)\n(.*?)```", text, re.S):
            if kind not in ("sh", "bash", "console"):
                continue
            for line in block.replace("\\\n", " ").splitlines():
                line = re.sub(r"\s+#.*$", "", line).strip()
                if line.startswith(("vitrum ", "make ", "curl ")):
                    yield page, line


def mentions():
    """(page, command) of what sentences, tables and indented lines mention."""
    starts = r"(?:vitrum [a-z]|make [a-zA-Z]|tools/python.sh (?:tools|bench)/|(?:tools|bench)/\S+\.(?:py|sh))"
    for page, text in pages():
        text = re.sub(r"```.*?```", "", text, flags=re.S)
        indented = re.findall(r"^    +(%s.*)$" % starts, text, re.M)
        for line in re.findall(r"`(%s[^`]*)`" % starts, text.replace("\\|", " ")) + indented:
            yield page, re.sub(r"\s+#.*$", "", " ".join(line.split()))


def help_of(vitrum, verb):
    text = subprocess.run([vitrum, verb, "--help"], capture_output=True, text=True)
    return None if text.returncode else text.stdout


def exists(vitrum, line):
    """What is not there of a command that is not run here: its verb, script, make target or an option."""
    line = re.split(r" (?:&&|\||>) ", line)[0]
    words = [w for w in shlex.split(re.sub(r"\$\(|[()]", " ", line)) if w != "..."]
    if words[0] == "tools/python.sh" and len(words) > 1:
        words = words[1:]
    if words[0] == "make":
        targets = set(re.findall(r"[a-z-]+", " ".join(re.findall(r"^[.\w %-]+:", (ROOT / "Makefile").read_text(), re.M))))
        wrong = [w for w in words[1:] if "=" not in w and w not in targets]
        return f"make has no {wrong[0]}" if wrong else None
    if words[0] == "vitrum":
        known, name = help_of(vitrum, words[1]), words[1]
        if known is None and name not in OTHER_WORDS:
            return f"no verb {name}"
    else:
        script, name = ROOT / words[0], words[0]
        if not script.exists():
            return f"there is no {name}"
        known = script.read_text()
        if script.suffix == ".sh":  # hands its options over
            return None
    for word in words[1:]:
        if word.startswith("--") and word.split("=")[0] not in (known or ""):
            return f"{name} has no {word}"
    return None


def files_named():
    """(page, file) of every link and every file name in backquotes that leads nowhere."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                            capture_output=True, text=True).stdout.split()
    ours = {"/" + name for name in listed}
    for page, text in pages():
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            if not (ROOT / page).parent.joinpath(link).exists():
                yield page, link
        if not ours:  # not a git checkout
            continue
        text = re.sub(r"```.*?```", "", text, flags=re.S)
        for name in re.findall(r"`([\w./-]+\.(?:cpp|h|cu|cuh|py|sh|toml|cmake))`", text):
            if name not in NOT_OURS and not any(known.endswith("/" + name) for known in ours):
                yield page, name


def keys_left_out():
    """Recipe keys that docs/recipes.md does not explain."""
    keys = re.findall(r'visit\("(\w+)"', (ROOT / "vitrum/train/recipe.cpp").read_text())
    page = (ROOT / "docs/recipes.md").read_text()
    return [key for key in keys if f"`{key}`" not in page]


def png(path, height, width, pixel):
    """An RGB picture whose pixel (y, x) is pixel(y, x)."""
    rows = b"".join(b"\0" + bytes(v for x in range(width) for v in pixel(y, x)) for y in range(height))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks))


class Sandbox:
    """A directory with everything the pages take for granted."""

    def __init__(self, vitrum, folder):
        self.vitrum, self.folder = vitrum, folder
        bin_dir = folder / "bin"
        bin_dir.mkdir()
        (bin_dir / "vitrum").symlink_to(vitrum)
        (folder / "home").mkdir()
        self.env = {**os.environ, "HOME": str(folder / "home"), "PATH": f"{bin_dir}:{os.environ['PATH']}", "NO_COLOR": "1"}
        (folder / "recipes").symlink_to(ROOT / "recipes")
        (folder / "mnist").symlink_to(self.data())
        self.photos()
        self.models()

    def data(self):
        for place in (FASHION, *pathlib.Path("/usr/share").glob("**/*ashion-mnist*")):
            if place.is_dir() and any(place.glob("*images-idx3*")):
                return place
        print("skipped: Debian's dataset-fashion-mnist is not installed")
        sys.exit(77)

    def photos(self):
        for kind, hue in (("ash", 0), ("birch", 1)):
            folder = self.folder / "photos" / kind
            folder.mkdir(parents=True)
            for i in range(8):
                def pixel(y, x, i=i):
                    shade = (y * (i + 3) + x * (2 * i + 5)) % 256
                    return (shade, 40 * i % 256, 90) if hue else (30, shade, 25 * i % 256)

                png(folder / f"{i}.png", 72, 96, pixel)
        picture = ROOT / "docs/images/balloon.jpg"
        for name in ("photo.jpg", "cat.jpg", "new.jpg", "a.jpg"):
            shutil.copy(picture, self.folder / name)
        shutil.copy(self.folder / "photos/ash/0.png", self.folder / "b.png")

    def run(self, line):
        return subprocess.run(["bash", "-c", line], cwd=self.folder, env=self.env, capture_output=True, text=True,
                              timeout=600)

    def must(self, line):
        done = self.run(line)
        if done.returncode:
            sys.exit(f"check_docs: {line}\n{done.stderr}")

    def models(self):
        train = f"vitrum train -q --model vit_mnist --data mnist:mnist {SHORT}"
        self.must(f"{train} --out runs/mnist-vit-1")
        for name in ("a", "b", "1", "vit-1"):
            self.must(f"cp -r runs/mnist-vit-1 runs/{name}")
        # A small ViT of colour photos stands for what one would download.
        tiny = "--model vit_tiny_patch16_224 --set image_size=64 --set holdout=0.5"
        self.must(f"vitrum train -q {tiny} --data folder:photos {SHORT} --out runs/photos")
        for name in ("DIR", "vit", "dinov2", "vit_tiny_patch16_224.augreg_in21k_ft_in1k"):
            self.must(f"cp -r runs/photos/best {name}")
        self.must("ln -s photos imagenet; ln -s photos pets; printf 'a cat\\na dog\\n' > names.txt")
        # Its text tower reads the vocabulary of the tests.
        self.must(f"cp -r {ROOT}/tests/golden/words/clip clip-vit-base-patch32")
        self.must(f"cp -r {ROOT}/tests/golden/naflex siglip2-base-patch16-naflex")


# How a command of the pages becomes one for the sandbox.
REWRITES = [
    (r"^(vitrum (?:train|finetune|distill|pretrain --method) .*)$", rf"\1 {SHORT}"),
    (r"folder:sorted", "folder:photos"),
    (r"cifar10:DIR", "mnist:mnist"),
    (r"--recipe recipes/cifar10-\S+", "--model vit_mnist"),
    (r"--teacher (?!resnet18_cifar)\S+", "--teacher runs/mnist-vit-1/best"),
    (r"--set image_size=224 --set crop_pct=1", "--set image_size=28"),  # vit_mnist's patches are 7 x 7
    (r"--weights DIR --data mnist:mnist", "--weights runs/mnist-vit-1/best --data mnist:mnist"),
    (r"--data shards:DIR --model M ", "--data shards:photos-shards --model DIR "),
    (r"--layer 11", "--layer 1"),
    (r'--class "tabby"', '--class "ash"'),
    (r"(vitrum (?:models --compare).*--data mnist:mnist)", r"\1"),
    (r"(--data folder:photos)(?!.*holdout)(?=.*--head-only)", r"\1 --set holdout=0.5"),
    (r"(--weights dinov2 --data folder:photos)", r"\1 --set holdout=0.5 --set image_size=64"),
    (r"convert runs/1/best OUT --to hf", "convert DIR OUT-hf --to hf"),
    (r"convert DIR OUT --to timm", "convert DIR OUT-timm --to timm"),
]
# Files the reader brings: nothing here has them.
BARE = ("F.pth", "ViT-B_16.npz", "x.npy")


def served(sandbox, lines):
    """Starts the server of the page and asks it what the page asks."""
    failed, ran = [], 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(["vitrum", "serve", "--model", "DIR", "--listen", f"127.0.0.1:{port}"], cwd=sandbox.folder,
                              env=sandbox.env, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5)
                break
            except OSError:
                time.sleep(0.1)
        for page, line in lines:
            done = sandbox.run(line.replace(":8080", f":{port}").replace("curl ", "curl -sf "))
            ran += 1
            if done.returncode:
                failed.append((page, line, done.stderr or done.stdout))
    finally:
        server.terminate()
        if server.wait(30) != 0:
            failed.append(("docs/serving.md", "SIGTERM", server.stderr.read()))
    return failed, ran


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vitrum", default=ROOT / "build/release/vitrum", type=pathlib.Path)
    parser.add_argument("--list", action="store_true", help="only show the commands")
    args = parser.parse_args()
    found = list(dict.fromkeys(commands()))
    if args.list:
        for page, line in found:
            print(f"{page}: {line}")
        return 0
    failed, ran, looked_at, asked = [], 0, 0, []

    def look_at(page, line):
        problem = exists(args.vitrum, line)
        if problem:
            failed.append((page, line, problem))

    with tempfile.TemporaryDirectory() as scratch:
        sandbox = Sandbox(args.vitrum.resolve(), pathlib.Path(scratch))
        for page, line in found:
            if line.startswith(("curl ", "vitrum bench --mode serve")) and "--unix-socket" not in line and "$(" not in line:
                asked.append((page, line))
                continue
            if line.startswith("curl "):
                continue  # of an administrator's socket: the server's own tests ask it
            if line.startswith(("make ", "vitrum serve", *NETWORK)) or re.search(r"\$\(|\.\.\.|~/| \| |sudo ", line) or any(
                    b in line for b in BARE):
                looked_at += 1
                look_at(page, line)
                continue
            command = line
            for pattern, to in REWRITES:
                command = re.sub(pattern, to, command)
            done = sandbox.run(command)
            ran += 1
            if done.returncode:
                failed.append((page, command, done.stderr or done.stdout))
        problems, count = served(sandbox, asked)
        failed += problems
        ran += count
    for page, line in dict.fromkeys(mentions()):
        looked_at += 1
        look_at(page, line)
    failed += [(page, name, "is not there") for page, name in files_named()]
    failed += [("docs/recipes.md", key, "is a recipe key, and not explained") for key in keys_left_out()]
    for page, line, text in failed:
        print(f"{page}: {line}\n    {text.strip()[-400:]}")
    print(f"{ran} run, {looked_at} looked up, {len(failed)} of these failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs the commands that README.md and docs/*.md show, in a scratch directory with small data.

    tools/check/check_docs.py [--vitrum build/release/vitrum] [--list]

Training is cut down to a few images, names that stand for the reader's own files (DIR, photos/, runs/..) are made here,
and what needs the network is only held against its --help: the verb and every option must exist. Needs python3 and
Debian's dataset-fashion-mnist; exits with 1 where a command fails, and says how many ran.
"""
import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")
SHORT = "--epochs 1 --set subset=24 --set batch_size=8 --set eval_every=1"
NETWORK = ("vitrum download", "vitrum data download")
ELSEWHERE = {"make quickstart": "run by hand and by users", "make test": "what continuous integration runs"}


def commands():
    """(page, command) of every fenced shell block, continued lines joined, comments dropped."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for kind, block in re.findall(r"```(\w*)\n(.*?)```", page.read_text(), re.S):
            if kind not in ("sh", "bash", "console"):
                continue
            for line in block.replace("\\\n", " ").splitlines():
                line = re.sub(r"\s+#.*$", "", line).strip()
                if line.startswith(("vitrum ", "make ", "curl ")):
                    yield page.relative_to(ROOT).as_posix(), line


def options_exist(vitrum, line):
    """The verb and every option of a command that cannot be run here."""
    words = [w for w in shlex.split(line.replace("$(", " ").replace(")", " ")) if w != "..."]
    text = subprocess.run([vitrum, words[1], "--help"], capture_output=True, text=True)
    if text.returncode:
        return f"no verb {words[1]}"
    for word in words[2:]:
        if word.startswith("--") and word.split("=")[0] not in text.stdout:
            return f"{words[1]} has no {word}"
    return None


class Sandbox:
    """A directory with everything the pages take for granted."""

    def __init__(self, vitrum, folder):
        self.vitrum, self.folder = vitrum, folder
        bin_dir = folder / "bin"
        bin_dir.mkdir()
        (bin_dir / "vitrum").symlink_to(vitrum)
        self.env = {**os.environ, "PATH": f"{bin_dir}:{os.environ['PATH']}", "NO_COLOR": "1"}
        (folder / "recipes").symlink_to(ROOT / "recipes")
        (folder / "mnist").symlink_to(self.data())
        self.photos()
        self.models()

    def data(self):
        for place in (FASHION, *pathlib.Path("/usr/share").glob("**/*ashion-mnist*")):
            if place.is_dir() and any(place.glob("*images-idx3*")):
                return place
        sys.exit("check_docs: install dataset-fashion-mnist first")

    def photos(self):
        pictures = sorted((ROOT / "docs/images").glob("*.jpg"))
        for i, picture in enumerate(pictures):
            for kind in ("ash", "birch"):
                to = self.folder / "photos" / kind / f"{i}.jpg"
                to.parent.mkdir(parents=True, exist_ok=True)
                # A comment behind the picture makes every file another one.
                to.write_bytes(picture.read_bytes() + f"{kind}{i}".encode())
        for name in ("photo.jpg", "cat.jpg", "new.jpg", "a.jpg", "b.png"):
            shutil.copy(pictures[0], self.folder / name)

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
        for name in ("DIR", "vit", "vit_tiny_patch16_224.augreg_in21k_ft_in1k"):
            self.must(f"cp -r runs/photos/best {name}")


# How a command of the pages becomes one for the sandbox.
REWRITES = [
    (r"^(vitrum (?:train|finetune|distill) .*)$", rf"\1 {SHORT}"),
    (r"cifar10:DIR", "mnist:mnist"),
    (r"--recipe recipes/cifar10-\S+", "--model vit_mnist"),
    (r"--teacher \S+", "--teacher runs/mnist-vit-1/best"),
    (r"--set image_size=224 --set crop_pct=1", "--set image_size=64"),
    (r"--weights DIR --data mnist:mnist", "--weights runs/mnist-vit-1/best --data mnist:mnist"),
    (r"--layer 11", "--layer 1"),
    (r'--class "tabby"', '--class "ash"'),
    (r"(vitrum (?:models --compare).*--data mnist:mnist)", r"\1"),
    (r"(--data folder:photos)(?!.*holdout)(?=.*--head-only)", r"\1 --set holdout=0.5"),
    (r"convert runs/1/best OUT --to hf", "convert DIR OUT-hf --to hf"),
    (r"convert DIR OUT --to timm", "convert DIR OUT-timm --to timm"),
]
# Files the reader brings: nothing here has them.
BARE = ("F.pth", "ViT-B_16.npz", "x.npy")


def served(sandbox, lines):
    """Starts the command of the page and asks it what the page asks."""
    failed, ran = [], 0
    server = subprocess.Popen(["vitrum", "serve", "--model", "DIR", "--listen", "127.0.0.1:18080"], cwd=sandbox.folder,
                              env=sandbox.env, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen("http://127.0.0.1:18080/v2/health/ready", timeout=5)
                break
            except OSError:
                time.sleep(0.1)
        for page, line in lines:
            done = sandbox.run(line.replace(":8080", ":18080").replace("curl ", "curl -sf "))
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
    with tempfile.TemporaryDirectory() as scratch:
        sandbox = Sandbox(args.vitrum.resolve(), pathlib.Path(scratch))
        for page, line in found:
            if line in ELSEWHERE or "--unix-socket" in line or line.startswith("vitrum serve"):
                continue
            if line.startswith("curl "):
                asked.append((page, line))
                continue
            if line.startswith(NETWORK) or "$(" in line or "..." in line or any(b in line for b in BARE):
                looked_at += 1
                problem = options_exist(args.vitrum, line)
                if problem:
                    failed.append((page, line, problem))
                continue
            command = line
            for pattern, to in REWRITES:
                command = re.sub(pattern, to, command)
            done = sandbox.run(command)
            ran += 1
            if done.returncode:
                failed.append((page, command, done.stderr))
        problems, count = served(sandbox, asked)
        failed += problems
        ran += count
    for page, line, text in failed:
        print(f"{page}: {line}\n    {text.strip()[-400:]}")
    print(f"{ran - len(failed)} passed, {len(failed)} failed, {looked_at} only held against --help")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

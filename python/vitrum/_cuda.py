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


def prepare(*, for_a_new_process: bool = False) -> None:
    """Names vitrum-cuda's library where that is installed, and lets it find cuBLAS beside it: opened here, where it is then
    known by its name, or for a new process by the path that its libraries are looked for in."""
    if "VITRUM_CUDA_LIBRARY" in os.environ:
        return
    for folder in sys.path:
        library = os.path.join(folder, "vitrum_cuda", "libvitrum_cuda.so")
        if not os.path.isfile(library):
            continue
        os.environ["VITRUM_CUDA_LIBRARY"] = library
        for path in _cublas(folder):
            if for_a_new_process:
                places = [os.path.dirname(path), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
                os.environ["LD_LIBRARY_PATH"] = ":".join(places)
            else:
                try:
                    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
                except OSError:
                    pass  # the library says itself what is missing where a card is asked for
        return

"""The card's library comes as a wheel of its own, vitrum-cuda, and NVIDIA's cuBLAS as NVIDIA's."""
from __future__ import annotations

import ctypes
import glob
import os
import sys


def prepare() -> None:
    """Names vitrum-cuda's library where that is installed, and opens cuBLAS, which it then finds by name."""
    if "VITRUM_CUDA_LIBRARY" in os.environ:
        return
    for folder in sys.path:
        library = os.path.join(folder, "vitrum_cuda", "libvitrum_cuda.so")
        if os.path.isfile(library):
            os.environ["VITRUM_CUDA_LIBRARY"] = library
            # cublasLt before cublas, which needs it.
            for name in ("libcublasLt.so.*", "libcublas.so.*"):
                for path in sorted(glob.glob(os.path.join(folder, "nvidia", "*", "lib", name))):
                    try:
                        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
                    except OSError:
                        pass  # the library says itself what is missing where a card is asked for
            return

"""What this package was built from."""
from __future__ import annotations

import os
import platform
from typing import Any

from ._library import binary_path, lib, library_path
from ._version import LINKED, __version__


def build_info() -> dict[str, Any]:
    """Versions of the package and of the library in it, where they are, and the libraries that came along: those that
    were linked into it with their versions, and those beside it."""
    folder = os.path.dirname(os.path.abspath(__file__))
    grafted = os.path.join(os.path.dirname(folder), "vitrum.libs")
    return {
        "package": __version__,
        "library": lib().vitrum_version().decode(),
        "library_path": library_path(),
        "binary_path": binary_path(),
        "cuda_library": os.environ.get("VITRUM_CUDA_LIBRARY"),
        "linked_libraries": list(LINKED),
        "grafted_libraries": sorted(os.listdir(grafted)) if os.path.isdir(grafted) else [],
        "python": platform.python_version(),
    }

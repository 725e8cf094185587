"""`vitrum` and `python -m vitrum`: the bundled binary, in place of this process."""
from __future__ import annotations

import os
import sys
from typing import NoReturn

from . import _cuda
from ._library import binary_path


def main() -> NoReturn:
    path = binary_path()
    try:
        os.execve(path, [path, *sys.argv[1:]], _cuda.environment())
    except OSError as error:
        sys.exit(f"vitrum: {path}: {error.strerror}; install the wheel, or set VITRUM_BINARY")


if __name__ == "__main__":
    main()

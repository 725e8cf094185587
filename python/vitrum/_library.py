"""libvitrum_c by ctypes: the structs and functions of vitrum/vitrum.h, which a test holds this file against."""
from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any

from ._errors import error_of

FROM_FILE, FROM_BYTES, FROM_PIXELS, FROM_PLANES, FROM_FLOATS = range(5)
PRECISIONS = {"f32": 0, "bf16": 1, "auto": 2, "int8": 3, "fp8": 4}


class Options(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t), ("arch", c_char_p), ("device", c_char_p), ("threads", c_int32), ("precision", c_int32),
        ("exif_orientation", c_int32), ("reserved", c_int32), ("image_height", c_int32), ("image_width", c_int32),
        ("max_batch", c_int32), ("coalesce", c_int32), ("max_pixels", c_int64),
    ]


class Input(ctypes.Structure):
    _fields_ = [
        ("source", c_int32), ("width", c_int32), ("height", c_int32), ("channels", c_int32), ("data", c_void_p),
        ("bytes", c_size_t), ("stride", c_size_t),
    ]


class TensorStruct(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t), ("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
        ("type_code", c_uint8), ("type_bits", c_uint8), ("type_lanes", c_uint16), ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)), ("byte_offset", c_uint64), ("stream", c_void_p),
    ]


# Result and arguments of each function used here.
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "vitrum_version": (c_char_p, []),
    "vitrum_last_error": (c_char_p, []),
    "vitrum_load": (c_int32, [c_char_p, POINTER(Options), POINTER(c_void_p)]),
    "vitrum_free": (None, [c_void_p]),
    "vitrum_classes": (c_int32, [c_void_p]),
    "vitrum_dimension": (c_int32, [c_void_p]),
    "vitrum_label": (c_char_p, [c_void_p, c_int32]),
    "vitrum_info": (c_char_p, [c_void_p]),
    "vitrum_predict": (c_int32, [c_void_p, POINTER(Input), c_size_t, c_size_t, c_void_p, c_void_p, c_void_p]),
    "vitrum_input_error": (c_char_p, [c_void_p, c_size_t]),
    "vitrum_predict_tensor": (c_int32, [c_void_p, POINTER(TensorStruct), POINTER(TensorStruct), POINTER(TensorStruct)]),
    "vitrum_top": (c_int32, [c_void_p, c_int32, c_int32, POINTER(c_int32), POINTER(c_float)]),
}

_HERE = os.path.dirname(os.path.abspath(__file__))


def library_path() -> str:
    """The bundled library, or the one that VITRUM_C_LIBRARY names."""
    return os.environ.get("VITRUM_C_LIBRARY") or os.path.join(_HERE, "libvitrum_c.so.0")


def binary_path() -> str:
    """The bundled `vitrum`, or the one that VITRUM_BINARY names."""
    return os.environ.get("VITRUM_BINARY") or os.path.join(_HERE, "bin", "vitrum")


def _open() -> ctypes.CDLL:
    path = library_path()
    try:
        lib = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"{error}; install the wheel, or set VITRUM_C_LIBRARY to a libvitrum_c.so that you built") from None
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(lib, name, None)
        if function is None:
            raise ImportError(f"{path} has no {name}: it belongs to another version of vitrum")
        function.restype, function.argtypes = result, arguments
    return lib


_lib: ctypes.CDLL | None = None


def lib() -> ctypes.CDLL:
    """The library, opened when it is first needed. Calls release the interpreter's lock."""
    global _lib
    if _lib is None:
        from . import _cuda

        _cuda.prepare()
        _lib = _open()
    return _lib


def last_error() -> str:
    text: bytes = lib().vitrum_last_error()
    return text.decode("utf-8", "replace")


def check(status: int) -> None:
    if status:
        raise error_of(status, last_error())

"""Arrays of other libraries as they lie in memory: numpy's interface, or DLPack."""
from __future__ import annotations

import ctypes
from ctypes import POINTER, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any, NamedTuple, Optional, Tuple

CPU, CUDA, PINNED = 1, 2, 3  # DLPack's numbers of devices
INT, UINT, FLOAT, BFLOAT = 0, 1, 2, 4  # and of types


class View(NamedTuple):
    """Where an array lies, and what it looks like. `keep` holds the memory."""

    pointer: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]  # in elements
    code: int
    bits: int
    device: Tuple[int, int]
    keep: Any

    @property
    def type_name(self) -> str:
        return {INT: "int", UINT: "uint", FLOAT: "float", BFLOAT: "bfloat"}.get(self.code, "type") + str(self.bits)

    @property
    def contiguous(self) -> bool:
        return all(n <= 1 or s == e for n, s, e in zip(self.shape, self.strides, row_by_row(self.shape)))


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8),
        ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


def row_by_row(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def view_of(array: Any) -> Optional[View]:
    """None: it is no array."""
    interface = getattr(array, "__array_interface__", None)
    if isinstance(interface, dict) and not isinstance(interface.get("data"), (bytes, type(None))):
        return _of_interface(array, interface)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _of_dlpack(array)
    return None


def _of_interface(array: Any, interface: dict[str, Any]) -> View:
    shape, kind = tuple(interface["shape"]), interface["typestr"]
    code = {"u": UINT, "i": INT, "f": FLOAT}.get(kind[1], 255)
    size = int(kind[2:])
    if kind[0] == ">":
        raise TypeError("an array whose numbers are big-endian; convert it with .astype('=' + dtype.str[1:])")
    steps = interface.get("strides")
    if steps is not None and any(s % size for s in steps):
        raise ValueError("an array whose strides are no whole elements; copy it with numpy.ascontiguousarray(x)")
    strides = row_by_row(shape) if steps is None else tuple(s // size for s in steps)
    return View(interface["data"][0], shape, strides, code, 8 * size, (CPU, 0), array)


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _of_dlpack(array: Any) -> View:
    device = array.__dlpack_device__()
    kind = int(device[0])
    try:
        # On a card: ready for whoever works behind the default stream, where the copy waits.
        capsule = array.__dlpack__(stream=1) if kind == CUDA else array.__dlpack__()
    except (BufferError, RuntimeError) as error:
        raise TypeError(f"{type(array).__name__} cannot be shared: {error}") from None
    # The capsule is only read: what it holds is released with it.
    t = ctypes.cast(_pointer_of(capsule, b"dltensor"), POINTER(_DLTensor)).contents
    shape = tuple(t.shape[i] for i in range(t.ndim))
    strides = tuple(t.strides[i] for i in range(t.ndim)) if t.strides else row_by_row(shape)
    code = t.code if t.lanes == 1 else 255
    return View((t.data or 0) + t.byte_offset, shape, strides, code, t.bits, (kind, int(device[1])), (array, capsule))

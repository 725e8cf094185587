"""Numbers that a model gave, where numpy is not installed; and how tensors go in and out."""
from __future__ import annotations

import ctypes
from ctypes import POINTER, c_int64, c_void_p
from typing import Any, Iterator, Tuple

from ._library import TensorStruct
from ._views import CPU, FLOAT, View, _DLTensor, row_by_row


class Tensor:
    """Rows of float32 in the CPU's memory. numpy.asarray(x), torch.from_dlpack(x) and memoryview(x.data) share it."""

    def __init__(self, shape: Tuple[int, int]):
        self.shape = shape
        self.data = (ctypes.c_float * (shape[0] * shape[1]))()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, i: int) -> list[float]:
        """A row."""
        if not -len(self) <= i < len(self):
            raise IndexError(f"row {i} of {len(self)}")
        width = self.shape[1]
        return self.data[i % len(self) * width:(i % len(self) + 1) * width]

    def __iter__(self) -> Iterator[list[float]]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"vitrum.Tensor of shape {self.shape}"

    def tolist(self) -> list[list[float]]:
        return list(self)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": self.shape, "typestr": "<f4", "data": (ctypes.addressof(self.data), False)}

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (CPU, 0)

    def __dlpack__(self, **_: Any) -> Any:
        return _exported(self)


class _Managed(ctypes.Structure):  # DLManagedTensor
    _fields_ = [("tensor", _DLTensor), ("context", c_void_p), ("deleter", c_void_p)]


_Callback = ctypes.CFUNCTYPE(None, c_void_p)
_exports: dict[int, Any] = {}  # what a consumer holds, by where it lies, until it calls the deleter


def _release(pointer: int) -> None:
    _exports.pop(pointer, None)


def _forget(capsule: int) -> None:
    """Called with a capsule that ends; where nobody took what is in it, it keeps the name it was given."""
    if _is_valid(c_void_p(capsule), b"dltensor"):
        _release(_pointer(c_void_p(capsule), b"dltensor"))


_deleter, _destructor = _Callback(_release), _Callback(_forget)
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [c_void_p, ctypes.c_char_p, c_void_p]
# By address: a reference to a capsule that is being freed must not be taken.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


def _exported(tensor: Tensor) -> Any:
    shape = (c_int64 * 2)(*tensor.shape)
    strides = (c_int64 * 2)(tensor.shape[1], 1)
    managed = _Managed()
    t = managed.tensor
    t.data, t.device_type, t.device_id = ctypes.addressof(tensor.data), CPU, 0
    t.ndim, t.code, t.bits, t.lanes = 2, FLOAT, 32, 1
    t.shape, t.strides, t.byte_offset = ctypes.cast(shape, POINTER(c_int64)), ctypes.cast(strides, POINTER(c_int64)), 0
    managed.deleter = ctypes.cast(_deleter, c_void_p)
    address = ctypes.addressof(managed)
    _exports[address] = (managed, shape, strides, tensor)
    return _new(address, b"dltensor", ctypes.cast(_destructor, c_void_p))


def empty(shape: Tuple[int, int]) -> Tuple[Any, int]:
    """An array to be filled and where it lies: numpy's where that is installed."""
    try:
        import numpy
    except ImportError:
        tensor = Tensor(shape)
        return tensor, ctypes.addressof(tensor.data)
    array = numpy.empty(shape, dtype=numpy.float32)
    return array, array.__array_interface__["data"][0]


def empty_like(images: Any, device: Tuple[int, int], shape: Tuple[int, int]) -> Tuple[Any, int]:
    """The same in the library that `images` is of, on the same device, where that is known here."""
    library = type(images).__module__.partition(".")[0]
    if library == "torch":
        import torch

        made = torch.empty(shape, dtype=torch.float32, device=images.device)
        return made, made.data_ptr()
    if library == "cupy":
        import cupy

        with cupy.cuda.Device(device[1]):
            made = cupy.empty(shape, dtype=cupy.float32)
        return made, made.data.ptr
    if device[0] != CPU:
        raise TypeError(f"a tensor of {library} on a card; expected one of torch or cupy, or one on the CPU")
    return empty(shape)


def struct_of(view: View) -> TensorStruct:
    """As the C interface has it; shape and strides are kept with it."""
    n = len(view.shape)
    shape, strides = (c_int64 * n)(*view.shape), (c_int64 * n)(*view.strides)
    out = TensorStruct(size=ctypes.sizeof(TensorStruct), data=view.pointer, device_type=view.device[0],
                       device_id=view.device[1], ndim=n, type_code=view.code, type_bits=view.bits, type_lanes=1)
    out.shape, out.strides = ctypes.cast(shape, POINTER(c_int64)), ctypes.cast(strides, POINTER(c_int64))
    return out


def output_view(pointer: int, shape: Tuple[int, int], device: Tuple[int, int]) -> View:
    return View(pointer, shape, row_by_row(shape), FLOAT, 32, device, None)

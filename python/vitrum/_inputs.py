"""What people call an image, as the C interface takes it."""
from __future__ import annotations

import ctypes
import os
from typing import Any, Iterable, Iterator, Protocol, Union

from ._library import FROM_BYTES, FROM_FILE, FROM_PIXELS, Input
from ._views import CPU, FLOAT, PINNED, UINT, View, view_of



class ArrayInterface(Protocol):
    """numpy's arrays, PIL's images, and others that lie in memory as they do."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


class DLPack(Protocol):
    """Tensors of torch, jax, cupy and others."""

    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


class Readable(Protocol):
    """A file that was opened with mode 'rb'."""

    def read(self) -> bytes: ...


#: What is one image for certain: a path, the bytes of an image file, or a file that is open.
Encoded = Union[str, "os.PathLike[str]", bytes, bytearray, memoryview, Readable]
#: One image, or several where it has four dimensions.
Array = Union[ArrayInterface, DLPack]
Image = Union[Encoded, Array]

_EXPECTED = ("expected a path, bytes of an image file, a PIL image, an array (H, W, C) of uint8, or a list or generator "
             "of those")


def address_of(data: bytes) -> Any:
    """Of its first byte; ends in a zero byte, as all `bytes` do."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p)


def fill(to: Input, image: Any) -> Any:
    """Describes one image in `to`; returns what must live as long as that is used."""
    if isinstance(image, (str, os.PathLike)):
        path = os.fsencode(image)
        if b"\0" in path:
            raise ValueError("a path with a zero byte in it")
        to.source, to.data = FROM_FILE, address_of(path)
        return path
    if isinstance(image, (bytes, bytearray, memoryview)):
        data = image if isinstance(image, bytes) else bytes(image)
        to.source, to.data, to.bytes = FROM_BYTES, address_of(data), len(data)
        return data
    if _is_pil(image):
        rgb = image if image.mode == "RGB" else image.convert("RGB")
        pixels = rgb.tobytes()
        to.source, to.data = FROM_PIXELS, address_of(pixels)
        (to.width, to.height), to.channels = rgb.size, 3
        return pixels
    view = view_of(image)
    if view is not None:
        return _fill_pixels(to, view)
    if hasattr(image, "read"):
        return fill(to, _bytes_of(image))
    raise TypeError(f"an image of type {type(image).__name__}; {_EXPECTED}")


def _bytes_of(file: Any) -> bytes:
    data = file.read()
    if not isinstance(data, bytes):
        raise TypeError("a file that was opened as text; open it with mode 'rb'")
    return data


def _is_pil(image: Any) -> bool:
    # No import: whoever has such an image has imported Pillow.
    return type(image).__module__.startswith("PIL.") and hasattr(image, "tobytes")


def _fill_pixels(to: Input, view: View) -> Any:
    if view.device[0] not in (CPU, PINNED):
        raise ValueError("pixels in a card's memory; copy them with .cpu(), or preprocess them there and call run()")
    if (view.code, view.bits) != (UINT, 8):
        remedy = ("if its values are 0 to 1, (255 * x).round().astype('uint8'); if it is normalised already, call run()"
                  if view.code == FLOAT else "convert it with .astype('uint8')")
        raise TypeError(f"an array of {view.type_name}; expected uint8: {remedy}")
    shape, strides = view.shape, view.strides
    if len(shape) == 2:
        shape, strides = (*shape, 1), (*strides, 1)
    if len(shape) != 3 or shape[2] not in (1, 3, 4) or 0 in shape:
        hint = "; a (C, H, W) tensor turns into that with .permute(1, 2, 0)" if shape[:1] in ((1,), (3,), (4,)) else ""
        raise ValueError(f"an array of shape {view.shape}; expected (H, W), or (H, W, C) with 1, 3 or 4 channels{hint}")
    height, width, channels = shape
    to.source, to.width, to.height, to.channels = FROM_PIXELS, width, height, channels
    if strides[2] == 1 and (width == 1 or strides[1] == channels) and strides[0] >= width * channels:
        to.data, to.stride = view.pointer, strides[0]
        return view
    packed = _packed(view.pointer, (height, width, channels), strides)
    to.data = ctypes.cast(packed, ctypes.c_void_p)
    return packed


def _packed(pointer: int, shape: tuple[int, int, int], strides: tuple[int, ...]) -> Any:
    """Pixels that lie in another order (a turned or mirrored array, channels first), copied row by row."""
    height, width, channels = shape
    out = (ctypes.c_uint8 * (height * width * channels))()
    to = memoryview(out).cast("B")
    lowest = sum(min(0, (n - 1) * s) for n, s in zip(shape, strides))
    highest = sum(max(0, (n - 1) * s) for n, s in zip(shape, strides))
    source = memoryview((ctypes.c_uint8 * (highest - lowest + 1)).from_address(pointer + lowest)).cast("B")
    step = strides[1]
    for y in range(height):
        for c in range(channels):
            first = -lowest + y * strides[0] + c * strides[2]
            line = (source[first:first + (width - 1) * step + 1:step] if step > 0 else
                    source[first + (width - 1) * step:first + 1][::step] if step < 0 else bytes([source[first]]) * width)
            to[y * width * channels + c:(y + 1) * width * channels:channels] = line
    return out


def is_one(images: Any) -> bool:
    """Whether this is one image, and not several."""
    if isinstance(images, (str, os.PathLike, bytes, bytearray, memoryview)) or _is_pil(images):
        return True
    if isinstance(images, (list, tuple)):
        return False
    shape = getattr(images, "shape", None)
    if shape is not None:
        return len(shape) != 4
    return hasattr(images, "read") or not isinstance(images, Iterable)  # a file is an iterator, of lines


def each_of(images: Any) -> Iterator[Any]:
    """The images of several, one after the other."""
    if getattr(images, "shape", None) is not None and len(images.shape) == 4:
        return (images[i] for i in range(images.shape[0]))
    return iter(images)

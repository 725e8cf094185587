"""A model that is ready to run."""
from __future__ import annotations

import ctypes
import itertools
import os
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Union, overload

from ._errors import UsageError, VitrumError, error_of
from ._inputs import Array, Encoded, Image, each_of, fill, is_one
from ._library import PRECISIONS, Input, Options, check, lib
from ._predictions import Prediction, Predictions

if TYPE_CHECKING:
    from ._explain import Picture

    PathLike = Union[str, os.PathLike[str]]

_INPUT_SIZE = ctypes.sizeof(Input)
_CHUNK = 64  # images given to the library at once: enough for every device's batch, and a bound on memory


def load(model: PathLike, *, arch: str | None = None, device: str = "auto", precision: str = "auto", threads: int = 0,
         image_size: int | tuple[int, int] | None = None, max_batch: int = 0, max_pixels: int = 0,
         exif_orientation: bool = False, coalesce: bool = True) -> Model:
    """Opens a model directory (timm's or transformers' layout), or a weight file that is of `arch`.

    device: "auto", "cpu", "cuda" or "cuda:N". precision: "auto", "f32", "bf16", "int8" or "fp8". threads: 0 for every core.
    image_size: another one than the model's, N or (height, width). max_batch: images computed at once, at most.
    max_pixels: photos with more are refused. exif_orientation: turn photos upright, which timm does not do.
    coalesce: images of calls from several threads are computed together.
    """
    return Model(model, arch=arch, device=device, precision=precision, threads=threads, image_size=image_size,
                 max_batch=max_batch, max_pixels=max_pixels, exif_orientation=exif_orientation, coalesce=coalesce)


class Model:
    """Made by `vitrum.load`. May be used from several threads at once, not from a forked process; a pickled model is
    its path and options, and loads anew. `with` or `close()` let go of its memory, as its end does."""

    def __init__(self, model: PathLike, *, arch: str | None = None, device: str = "auto", precision: str = "auto",
                 threads: int = 0, image_size: int | tuple[int, int] | None = None, max_batch: int = 0,
                 max_pixels: int = 0, exif_orientation: bool = False, coalesce: bool = True):
        self._handle: int | None = None
        path = os.fspath(model)
        self._arguments: tuple[str, dict[str, Any]] = (path, dict(
            arch=arch, device=device, precision=precision, threads=threads, image_size=image_size, max_batch=max_batch,
            max_pixels=max_pixels, exif_orientation=exif_orientation, coalesce=coalesce))
        if precision not in PRECISIONS:
            raise ValueError(f"precision {precision!r}; expected one of {', '.join(map(repr, PRECISIONS))}")
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size or (0, 0)
        options = Options(size=ctypes.sizeof(Options), arch=arch.encode() if arch else None, device=device.encode(),
                          threads=threads, precision=PRECISIONS[precision], exif_orientation=exif_orientation,
                          image_height=height, image_width=width, max_batch=max_batch, coalesce=coalesce,
                          max_pixels=max_pixels)
        handle = ctypes.c_void_p()
        check(lib().vitrum_load(os.fsencode(path), ctypes.byref(options), ctypes.byref(handle)))
        self._handle = handle.value
        import json

        self.info: dict[str, Any] = json.loads(lib().vitrum_info(handle).decode())
        """The model and how it runs: architecture, shapes, preprocessing, device, precision, labels."""
        self.classes: int = self.info["classes"]
        """Outputs; 0 where the model has no head."""
        self.dimension: int = self.info["dimension"]
        """Of the features."""
        self.labels: list[str] = self.info["labels"] or [str(i) for i in range(self.classes)]
        """Of the outputs, in order."""

    # ---- predictions ----

    @overload
    def predict(self, images: Encoded, top_k: int = 5) -> Predictions: ...
    @overload
    def predict(self, images: list[Any] | tuple[Any, ...], top_k: int = 5) -> list[Predictions]: ...
    @overload
    def predict(self, images: Iterator[Image], top_k: int = 5) -> Iterator[Predictions]: ...
    @overload
    def predict(self, images: Array, top_k: int = 5) -> Any: ...

    def predict(self, images: Any, top_k: int = 5) -> Any:
        """The `top_k` most probable classes. One image gives a list of them; a list of images, or an array (N, H, W, C),
        a list of lists; a generator a generator, which reads ahead by a batch. An image that cannot be read raises; see
        `try_predict`."""
        self._head()
        if is_one(images):
            logits = (ctypes.c_float * self.classes)()
            self._one(images, logits, None)
            return self._top(logits, 0, top_k)
        results = self._raising(self._each(images, top_k))
        return results if isinstance(images, Iterator) else list(results)

    def try_predict(self, images: Iterable[Image], top_k: int = 5) -> Iterator[Predictions | VitrumError]:
        """As `predict` of several; an image that cannot be read gives the error in its place, and the others go on."""
        self._head()
        return self._each(images, top_k)

    def logits(self, images: Any) -> Any:
        """What the head says: a numpy array of (classes) for one image, of (N, classes) for several."""
        self._head()
        return self._arrays(images, self.classes, features=False)

    def embed(self, images: Any) -> Any:
        """What the head sees: a numpy array of (dimension) for one image, of (N, dimension) for several."""
        return self._arrays(images, self.dimension, features=True)

    def run(self, images: Any, *, features: bool = False) -> Any:
        """A tensor (N, C, H, W) of the model's size to logits (N, classes), or features (N, dimension).

        float32 is normalised already, as timm's transforms leave it; uint8 is resized and cropped, and no more. Tensors of
        torch and cupy give one of theirs on the same device; everything else that has DLPack or numpy's interface gives a
        numpy array. Nothing is copied on the way but to the model's own memory.
        """
        from ._tensor import empty_like, output_view, struct_of
        from ._views import view_of

        if not features:
            self._head()
        view = view_of(images)
        if view is None:
            raise TypeError(f"{type(images).__name__} is no tensor; expected one of numpy, torch or another library with "
                            "DLPack. Photos are for predict(), logits() and embed()")
        height, width, channels = self.info["height"], self.info["width"], self.info["channels"]
        if len(view.shape) == 3 and view.shape == (channels, height, width):
            raise ValueError(f"a tensor of shape {view.shape}; expected (N, {channels}, {height}, {width}): add the first "
                             "dimension with x[None]")
        shape = (view.shape[0] if view.shape else 0, self.dimension if features else self.classes)
        out, pointer = empty_like(images, view.device, shape)
        source, to = struct_of(view), struct_of(output_view(pointer, shape, view.device))
        byref, none = ctypes.byref, None
        check(lib().vitrum_predict_tensor(self._open(), byref(source), none if features else byref(to),
                                          byref(to) if features else none))
        return out

    def explain(self, image: Image, method: str = "gradient", **options: Any) -> Picture:
        """A picture of what the model looks at, which a notebook shows: method "gradient", "rollout" or "attention";
        options are those of `vitrum explain`: layer=, head=, class_=, fusion=, discard=, size=."""
        from ._explain import explain

        self._open()
        return explain(self._arguments, image, method, options)

    # ---- its end ----

    def close(self) -> None:
        """Lets go of the model's memory. Not while another thread is in a call."""
        handle, self._handle = self._handle, None
        if handle:
            lib().vitrum_free(handle)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_again, self._arguments

    def __repr__(self) -> str:
        i = self.info
        return (f"<vitrum.Model {i['architecture']} {i['height']}x{i['width']}, {i['classes']} classes, {i['precision']} "
                f"on {i['device']}{'' if self._handle else ', closed'}>")

    # ---- inside ----

    def _open(self) -> int:
        if not self._handle:
            raise ValueError("the model was closed; load it again")
        return self._handle

    def _head(self) -> None:
        if self.classes == 0:
            raise UsageError(f"{self.info['architecture']} has no head; embed() gives its features")

    def _one(self, image: Image, logits: Any, features: Any) -> None:
        given = Input()
        kept = fill(given, image)
        status = lib().vitrum_predict(self._open(), given, _INPUT_SIZE, 1, logits, features, None)
        if status:
            check(status)
        del kept  # not before

    def _top(self, logits: Any, row: int, top_k: int) -> Predictions:
        if top_k < 0:
            raise ValueError(f"top_k is {top_k}; expected no less than 0")
        k = min(top_k, self.classes)
        index, probability = (ctypes.c_int32 * k)(), (ctypes.c_float * k)()
        at = ctypes.byref(logits, 4 * row * self.classes)
        lib().vitrum_top(at, self.classes, k, index, probability)
        labels = self.labels
        return Predictions([Prediction(labels[i], i, p) for i, p in zip(index, probability)])

    def _chunks(self, images: Any, width: int, features: bool) -> Iterator[tuple[Any, list[VitrumError | None]]]:
        """(rows, what was wrong with each), a batch at a time."""
        source, first = each_of(images), 0
        while chunk := list(itertools.islice(source, _CHUNK)):
            inputs, kept, n = (Input * len(chunk))(), [], len(chunk)
            for i, image in enumerate(chunk):
                try:
                    kept.append(fill(inputs[i], image))
                except (TypeError, ValueError) as error:
                    raise type(error)(f"image {first + i}: {error}") from None
            rows, each = (ctypes.c_float * (n * width))(), (ctypes.c_int32 * n)()
            status = lib().vitrum_predict(self._open(), inputs, _INPUT_SIZE, n, None if features else rows,
                                          rows if features else None, each)
            if status and not any(each):
                check(status)
            del kept  # not before
            yield rows, [self._problem(i, first, s) if s else None for i, s in enumerate(each)]
            first += n

    def _problem(self, i: int, first: int, status: int) -> VitrumError:
        text: str = lib().vitrum_input_error(self._open(), i).decode("utf-8", "replace")
        if text.startswith(f"input {i}"):  # of this batch; people count all of theirs
            text = f"image {first + i}" + text[len(f"input {i}"):]
        return error_of(status, text)

    def _each(self, images: Any, top_k: int) -> Iterator[Predictions | VitrumError]:
        for rows, problems in self._chunks(images, self.classes, features=False):
            for i, problem in enumerate(problems):
                yield problem or self._top(rows, i, top_k)

    @staticmethod
    def _raising(results: Iterator[Predictions | VitrumError]) -> Iterator[Predictions]:
        for result in results:
            if isinstance(result, VitrumError):
                raise result
            yield result

    def _arrays(self, images: Any, width: int, features: bool) -> Any:
        from ._tensor import empty

        if is_one(images):
            out, pointer = empty((1, width))
            self._one(images, None if features else pointer, pointer if features else None)
            return out[0]
        parts: list[Any] = []
        count = 0
        for rows, problems in self._chunks(images, width, features):
            for problem in filter(None, problems):
                raise problem
            parts.append(rows)
            count += len(problems)
        out, pointer = empty((count, width))
        for rows in parts:
            ctypes.memmove(pointer, rows, ctypes.sizeof(rows))
            pointer += ctypes.sizeof(rows)
        return out


def _load_again(path: str, options: dict[str, Any]) -> Model:
    return Model(path, **options)

"""Training by the bundled binary, in a process of its own: what happens to it does not happen to yours."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Union

from ._cuda import environment
from ._errors import error_of, remark
from ._library import binary_path

PathLike = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class EpochEvent:
    """The end of an epoch. What an evaluation did not measure is None; `raw` has everything that was said."""

    run: str
    epoch: int
    step: int
    train_loss: float | None
    train_acc: float | None
    test_loss: float | None
    test_acc: float | None
    lr: float | None
    images_per_second: float | None
    raw: dict[str, Any] = field(repr=False, compare=False)


class Training:
    """A run under way: iterating gives an event after each epoch. Leaving the loop is Ctrl-C: the step is finished,
    everything is saved, and `train(resume=run.directory)` goes on with the same bits. `with` says when, to the letter."""

    def __init__(self, command: list[str]):
        self.directory: str | None = None
        """Of the run, from the first event on: best/ and last/ are models for `load`, report.html is to look at."""
        self.stopped = False
        """Whether it was stopped before its end."""
        self._log: deque[str] = deque(maxlen=200)
        self._over = False  # everything was read, and its end looked at
        # A session of its own: Ctrl-C in a terminal is for this process, which passes it on once.
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE, text=True, start_new_session=True,
                                         env=environment())
        self._reader = threading.Thread(target=_read_log, args=(self._process.stderr, self._log), daemon=True)
        self._reader.start()

    @property
    def log(self) -> str:
        """The last lines that the run wrote for people."""
        return "\n".join(self._log)

    def __iter__(self) -> Training:
        return self

    def __next__(self) -> EpochEvent:
        if self._over:
            raise StopIteration
        assert self._process.stdout
        try:
            line = self._process.stdout.readline()
        except KeyboardInterrupt:
            self.close()
            raise
        raw = json.loads(line) if line else {"error": None}
        if "error" not in raw:
            return self._event(raw)
        self._finish()
        raise StopIteration

    def close(self) -> None:
        """Stops the run where it has not ended, as Ctrl-C does, and waits until it has saved."""
        if self._over:
            return
        if self._process.poll() is None:
            self.stopped = True
            self._process.send_signal(signal.SIGINT)
        assert self._process.stdout
        # Nobody reads what it still says, but it must not wait for that.
        for line in self._process.stdout:
            self._event(json.loads(line))
        self._finish()

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_process") and not self._over:
            self.close()

    def _event(self, raw: dict[str, Any]) -> EpochEvent:
        self.directory = raw.get("run", self.directory)
        return EpochEvent(raw.get("run", ""), raw.get("epoch", 0), raw.get("step", 0), raw.get("train_loss"),
                          raw.get("train_acc"), raw.get("test_loss"), raw.get("test_acc"), raw.get("lr"),
                          raw.get("images_per_second"), raw)

    def _finish(self) -> None:
        self._over = True
        code = self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe:
                pipe.close()
        # Behind its last epoch it has saved, and nothing there waits for a signal any more.
        if self.stopped and (code in (0, 130) or (code == -signal.SIGINT and self.directory)):
            return
        if code:
            said = [line[8:] for line in self._log if line.startswith("vitrum: ")]
            error = error_of(code, said[-1] if said else f"vitrum ended with {code}")
            remark(error, self.log)
            raise error


def _read_log(pipe: Any, log: deque[str]) -> None:
    # Knows nothing of the run: leaving a loop ends one because nothing else refers to it.
    for line in pipe:
        log.append(line.rstrip("\n").rpartition("\r")[2])


def train(recipe: PathLike | None = None, **settings: Any) -> Training:
    """Trains from a recipe, or from `model=` and `data=`; the keys of a recipe may follow by name.

        for event in vitrum.train("recipes/mnist-vit.toml", data="fashion-mnist", epochs=3, lr=3e-4):
            print(event.epoch, event.test_acc)

    `out=` is the run's directory, `resume=` goes on with one, `device=` and `threads=` are as in `load`."""
    return _start("train", recipe, settings)


def finetune(weights: PathLike, data: str, recipe: PathLike | None = None, **settings: Any) -> Training:
    """The same from pretrained weights: `finetune("vit_tiny", "folder:photos", holdout=0.2, epochs=5)`."""
    return _start("finetune", recipe, {"weights": weights, "data": data, **settings})


def distill(teacher: PathLike, recipe: PathLike | None = None, **settings: Any) -> Training:
    """The same with a teacher, as DeiT is trained."""
    return _start("distill", recipe, {"teacher": teacher, **settings})


def pretrain(recipe: PathLike | None = None, **settings: Any) -> Training:
    """Learns from images without labels: `pretrain(model="vit_small_patch16_224", data="folder:photos", epochs=400)`.

    `method="mae"` is what it does unless a recipe says otherwise; `mask_ratio=`, `norm_pix=` and `decoder_width=` are keys
    like others, `weights=` a model to go on from. Events have losses and no accuracy; `finetune` starts from last/."""
    return _start("pretrain", recipe, settings)


# Options of the command line; everything else is a key of the recipe.
_OPTIONS = ("recipe", "model", "data", "epochs", "batch_size", "lr", "out", "resume", "seed", "weights", "teacher", "device",
            "threads", "precision", "ranks", "method")


def _start(verb: str, recipe: PathLike | None, settings: dict[str, Any]) -> Training:
    command = [binary_path(), verb, "--json"]
    if recipe is not None:
        settings = {"recipe": recipe, **settings}
    for key, value in settings.items():
        if value is None:
            continue
        if key in _OPTIONS:
            command += ["--" + key.replace("_", "-"), os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
        else:
            command += ["--set", f"{key}={_toml(value)}"]
    return Training(command)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(json.dumps(v) if isinstance(v, str) else _toml(v) for v in value) + "]"
    return str(value)

"""The verbs that run the binary."""
import glob
import os
import signal
import subprocess
import sys
import time

import pytest
import vitrum
from tiny import pixels, png

FASHION = "/usr/share/datasets/fashion-mnist"
needs_data = pytest.mark.skipif(not glob.glob(f"{FASHION}/*"), reason="Debian's dataset-fashion-mnist is not installed")
SHORT = dict(model="vit_mnist", data="fashion-mnist", subset=32, batch_size=16, threads=1)


@needs_data
def test_events(tmp_path):
    run = vitrum.train(**SHORT, epochs=2, lr=3e-4, out=tmp_path / "run")
    events = list(run)
    assert [e.epoch for e in events] == [1, 2] and events[1].step == 4
    assert events[0].train_loss > 0 and 0 <= events[0].test_acc <= 1 and events[0].raw["run"] == run.directory
    assert not run.stopped and "run directory" in run.log
    model = vitrum.load(f"{run.directory}/best")
    assert model.info["channels"] == 1
    assert list(run) == []


@needs_data
def test_pretraining(tmp_path):
    """Losses and no accuracy; its encoder is where fine-tuning starts, and its run goes on like any other."""
    settings = dict(SHORT, model="vit_small28", method="mae", mask_ratio=0.5, decoder_depth=1)
    run = vitrum.pretrain(**settings, epochs=2, lr=1e-3, out=tmp_path / "mae")
    events = list(run)
    assert [e.epoch for e in events] == [1, 2]
    assert all(e.train_loss > 0 and e.test_loss > 0 and e.train_acc is None and e.test_acc is None for e in events)
    assert os.path.isfile(f"{run.directory}/last/decoder.safetensors")
    model = vitrum.load(f"{run.directory}/last")
    assert tuple(model.embed(png(pixels())).shape) == (model.dimension,)
    tuned = vitrum.finetune(f"{run.directory}/last", "fashion-mnist", subset=32, batch_size=16, threads=1, epochs=1,
                            out=tmp_path / "tuned")
    assert [e.test_acc is not None for e in tuned] == [True]
    with vitrum.pretrain(**dict(settings, epochs=500), out=tmp_path / "stopped") as stopped:
        epoch = next(stopped).epoch
    with vitrum.pretrain(resume=stopped.directory, threads=1) as resumed:
        assert next(resumed).epoch > epoch
    with pytest.raises(vitrum.UsageError, match="mixup"):
        list(vitrum.pretrain(**settings, epochs=1, mixup=0.5, out=tmp_path / "no"))


@needs_data
def test_leaving_the_loop_saves(tmp_path):
    for event in vitrum.train(**SHORT, epochs=500, out=tmp_path / "run"):
        directory = event.run
        break
    assert os.path.isdir(f"{directory}/state") and os.path.isdir(f"{directory}/last")
    with vitrum.train(resume=directory, threads=1) as run:
        assert next(run).epoch > event.epoch
    assert run.stopped


@needs_data
def test_leaving_behind_the_last_epoch(tmp_path, monkeypatch):
    """Ctrl-C may meet a process that has done everything and is about to end."""
    run = vitrum.train(**SHORT, epochs=1, out=tmp_path / "run")
    assert next(run).epoch == 1
    wait = run._process.wait
    monkeypatch.setattr(run._process, "wait", lambda: wait() and 0 or -signal.SIGINT)
    run.close()
    assert run.stopped and os.path.isdir(f"{run.directory}/last")


@needs_data
def test_an_exception_stops_it(tmp_path):
    with pytest.raises(ZeroDivisionError):
        with vitrum.train(**SHORT, epochs=500, out=tmp_path / "run") as run:
            next(run)
            1 / 0
    assert run.stopped and os.path.isdir(f"{run.directory}/state")


@needs_data
def test_interrupt(tmp_path, monkeypatch):
    """Ctrl-C while waiting for an epoch: the run saves, and KeyboardInterrupt goes on."""
    run = vitrum.train(**SHORT, epochs=500, out=tmp_path / "run")
    next(run)

    class Interrupted:
        def __init__(self, pipe):
            self.pipe = pipe

        def readline(self):
            raise KeyboardInterrupt

        def __iter__(self):
            return iter(self.pipe)

        def close(self):
            self.pipe.close()

    monkeypatch.setattr(run._process, "stdout", Interrupted(run._process.stdout))
    with pytest.raises(KeyboardInterrupt):
        next(run)
    assert run.stopped and os.path.isdir(f"{run.directory}/state")


@needs_data
@pytest.mark.parametrize("whole_group", [True, False])  # a terminal tells every process, `kill -INT` the one
def test_a_real_interrupt(tmp_path, whole_group):
    code = ("import sys, vitrum\n"
            f"for e in vitrum.train(**{SHORT!r}, epochs=5000, out=sys.argv[1]):\n    print(e.run, flush=True)\n")
    program = subprocess.Popen([sys.executable, "-c", code, tmp_path / "run"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, start_new_session=True)
    directory = program.stdout.readline().strip()
    (os.killpg if whole_group else os.kill)(program.pid, signal.SIGINT)
    _, errors = program.communicate(timeout=60)
    assert program.returncode != 0 and "KeyboardInterrupt" in errors
    with pytest.raises(ProcessLookupError):
        os.killpg(program.pid, 0)  # nothing runs on
    assert os.path.isdir(f"{directory}/state")
    with vitrum.train(resume=directory, threads=1) as run:
        assert next(run).epoch > 1


def test_mistakes_are_errors(tmp_path):
    with pytest.raises(vitrum.UsageError, match="lerning_rate"):
        list(vitrum.train(model="vit_mnist", data="fashion-mnist", lerning_rate=1, out=tmp_path / "a"))
    with pytest.raises(vitrum.VitrumError, match="nowhere"):
        list(vitrum.train("nowhere.toml"))
    with pytest.raises(vitrum.VitrumError):
        with vitrum.finetune("nowhere", "folder:nowhere") as run:
            time.sleep(0.5)
            for _ in run:
                pass


def test_explain(model, photo):
    picture = model.explain(photo, method="rollout", size=64)
    assert picture._repr_png_().startswith(b"\x89PNG") and picture.label in model.labels
    assert model.explain(photo.read_bytes(), method="rollout", size=64).png == picture.png
    with pytest.raises(ValueError, match="'gradient'"):
        model.explain(photo, method="magic")
    with pytest.raises(vitrum.InputError, match="nowhere.jpg"):
        model.explain("nowhere.jpg")


def test_explain_takes_arrays(model, photo, tmp_path):
    numpy = pytest.importorskip("numpy")
    array = numpy.frombuffer(pixels(), numpy.uint8).reshape(30, 40, 3)
    expected = model.explain(photo, method="gradient", class_=2)
    assert expected.label == model.labels[2]
    assert model.explain(array, class_=2).png == expected.png
    assert model.explain(array[:, :37], size=64).png == model.explain(
        png(array[:, :37].tobytes(), 37), size=64).png  # rows with padding in the file
    expected.save(tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes() == expected.png


def test_settings_are_written_as_toml():
    from vitrum._training import _toml

    assert [_toml(x) for x in (True, False, 3, 0.5, "cosine")] == ["true", "false", "3", "0.5", "cosine"]
    assert _toml([0.9, True]) == "[0.9, true]" and _toml(("a", 1)) == '["a", 1]'

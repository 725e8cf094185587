import io
import json
import os
import pickle
import subprocess
import sys
import threading

import pytest
import vitrum
from tiny import CLASSES, LABELS, WIDTH, pixels, png


def rows(x):
    return [list(r) for r in x]


def test_every_kind_of_image_gives_the_same(model, photo):
    expected = model.predict(photo)
    assert len(expected) == 5 and expected.label == expected[0].label and expected.probability == expected[0].probability
    assert expected == sorted(expected, key=lambda p: -p.probability)
    data = photo.read_bytes()
    for image in (str(photo), data, bytearray(data), memoryview(data), io.BytesIO(data)):
        assert model.predict(image) == expected
    assert model.predict([photo, data]) == [expected, expected]
    assert model.predict((photo,)) == [expected]
    assert model.predict([]) == []
    lazily = model.predict(p for p in [photo] * 130)
    assert next(lazily) == expected
    assert list(lazily) == [expected] * 129
    with open(photo, "rb") as file:
        assert model.predict(file, top_k=1) == expected[:1]


def test_same_bits_as_the_binary(model, model_dir, photo):
    from vitrum._library import binary_path

    done = subprocess.run([binary_path(), "classify", photo, "--model", model_dir, "--json", "-q"], capture_output=True,
                          text=True, check=True)
    for ours, theirs in zip(model.predict(photo), json.loads(done.stdout)["predictions"]):
        assert (ours.label, ours.index) == (theirs["label"], theirs["index"])
        assert abs(ours.probability - theirs["probability"]) < 1e-7  # printed as the shortest f32


def test_top_k(model, photo):
    assert len(model.predict(photo, top_k=100)) == CLASSES
    assert model.predict(photo, top_k=0) == []
    assert abs(sum(p.probability for p in model.predict(photo, top_k=100)) - 1) < 1e-5
    with pytest.raises(ValueError, match="top_k is -1"):
        model.predict(photo, top_k=-1)


def test_logits_and_features(model, photo):
    one, several = model.logits(photo), model.logits([photo] * 70)
    assert len(one) == CLASSES and len(several) == 70 and list(several[69]) == list(one)
    features = model.embed(photo)
    assert len(features) == WIDTH == model.dimension
    assert rows(model.embed(iter([photo, photo]))) == [list(features)] * 2
    assert len(model.embed([])) == 0


def test_info(model, model_dir):
    assert model.classes == CLASSES and model.labels == LABELS
    assert model.info["height"] == 32 and model.info["path"] == str(model_dir)
    assert "vit_tiny_patch16_224" in repr(model)


def test_html_is_escaped(model, photo):
    html = model.predict(photo, top_k=7)._repr_html_()
    assert "&lt;b&gt;bold&lt;/b&gt;" in html and "<b>" not in html


def test_errors_name_the_file_and_the_remedy(model, photo, tmp_path):
    (tmp_path / "junk.jpg").write_bytes(b"junk")
    with pytest.raises(vitrum.InputError, match="nowhere.jpg"):
        model.predict("nowhere.jpg")
    with pytest.raises(ValueError, match="junk.jpg"):
        model.predict([photo, tmp_path / "junk.jpg", photo])
    with pytest.raises(vitrum.InputError):
        model.embed([photo, b"junk"])
    found = list(model.try_predict([photo, b"junk", tmp_path / "junk.jpg", photo]))
    assert [isinstance(f, vitrum.InputError) for f in found] == [False, True, True, False]
    assert "image 1" in str(found[1]) and "junk.jpg" in str(found[2])
    with pytest.raises(vitrum.InputError, match="^image 99"):
        model.embed([photo] * 99 + [b"junk"])
    with pytest.raises(vitrum.InputError, match="nowhere"):
        vitrum.load("nowhere")
    with pytest.raises(TypeError, match="expected a path, bytes"):
        model.predict(7)
    with pytest.raises(TypeError, match="image 1: .*NoneType"):
        model.predict([photo, None])
    with pytest.raises(TypeError, match="mode 'rb'"):
        with open(__file__) as file:
            model.predict(file)
    with pytest.raises(ValueError, match="zero byte"):
        model.predict("a\0b")
    with pytest.raises(ValueError, match="precision 'f16'; expected one of 'f32'"):
        vitrum.load("x", precision="f16")
    with pytest.raises(vitrum.UsageError, match="unknown device 'gpu'"):
        vitrum.load(model.info["path"], device="gpu")


def test_options(model_dir, photo):
    m = vitrum.load(model_dir, precision="bf16", threads=1, image_size=64, max_batch=2)
    assert (m.info["precision"], m.info["threads"], m.info["width"], m.info["max_batch"]) == ("bf16", 1, 64, 2)
    assert vitrum.load(model_dir, image_size=(64, 32)).info["width"] == 32
    with pytest.raises(vitrum.InputError):
        vitrum.load(model_dir, max_pixels=40 * 30 - 1).predict(photo)


def test_without_a_head(headless_dir, photo):
    m = vitrum.load(headless_dir)
    assert len(m.embed(photo)) == WIDTH
    for call in (m.predict, m.logits):
        with pytest.raises(vitrum.UsageError, match="no head"):
            call(photo)


def test_closing(model_dir, photo):
    with vitrum.load(model_dir) as m:
        m.predict(photo)
    m.close()
    with pytest.raises(ValueError, match="was closed"):
        m.predict(photo)
    assert "closed" in repr(m)


def test_pickling_is_path_and_options(model, model_dir, photo):
    m = vitrum.load(model_dir, threads=1)
    data = pickle.dumps(m)
    assert len(data) < 1000
    again = pickle.loads(data)
    assert again.info["threads"] == 1 and again.predict(photo) == model.predict(photo)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_use_behind_a_fork_is_refused(model, photo):
    model.predict(photo)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            model.predict(photo)
        except vitrum.UsageError as error:
            code = 0 if "fork()" in str(error) else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_process_ends(model_dir, photo):
    """Its interpreter lets go of the model, whose threads are not there, without waiting for them."""
    code = ("import os, sys, vitrum\nm = vitrum.load(sys.argv[1]); m.predict(sys.argv[2])\n"
            "if os.fork() == 0:\n    del m\n    sys.exit(0)\nsys.exit(os.waitstatus_to_exitcode(os.wait()[1]))\n")
    assert subprocess.run([sys.executable, "-c", code, model_dir, photo], timeout=60).returncode == 0


def test_threads(model, model_dir):
    photos = [png(pixels(seed=i)) for i in range(8)]
    expected = [model.predict(p) for p in photos]
    shared = vitrum.load(model_dir)
    wrong = []

    def work(i):
        for _ in range(30):
            if shared.predict(photos[i]) != expected[i]:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_memory_does_not_grow(model, photo):
    data = png(pixels(8, 8), 8, 8)

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def some(n):
        for _ in range(n):
            model.predict(data, top_k=1)
            try:
                model.predict(b"junk")
            except vitrum.InputError:
                pass

    some(300)
    before = resident()
    some(1500)
    assert resident() - before < 2 << 20


def test_import_is_light():
    code = "import sys, vitrum; print([m for m in ('numpy', 'torch', 'PIL', 'subprocess', 'dataclasses') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "numpy" not in done.stdout and "subprocess" not in done.stdout


def test_command_and_build_info():
    done = subprocess.run([sys.executable, "-m", "vitrum", "models", "--json", "vit_tiny*"], capture_output=True, text=True)
    assert done.returncode == 0 and "vit_tiny_patch16_224" in done.stdout
    assert subprocess.run([sys.executable, "-m", "vitrum", "nonsense"], capture_output=True).returncode == 2
    info = vitrum.build_info()
    assert info["library"] == vitrum.__version__ == info["package"]
    with pytest.raises(AttributeError):
        vitrum.nonsense
    assert "train" in dir(vitrum)


def test_each_status_is_an_exception_of_its_own():
    from vitrum._errors import error_of

    for status, kinds in {1: (vitrum.FailedError, RuntimeError), 2: (vitrum.UsageError, ValueError),
                          3: (vitrum.InputError, ValueError), 4: (vitrum.ExhaustedError, MemoryError)}.items():
        error = error_of(status, "why")
        assert str(error) == "why" and isinstance(error, vitrum.VitrumError)
        assert all(isinstance(error, kind) for kind in kinds)
    assert not isinstance(error_of(2, ""), vitrum.InputError)

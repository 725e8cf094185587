"""numpy, Pillow and torch, each where it is installed."""
import ctypes
import subprocess
import sys

import pytest
import vitrum
from tiny import CLASSES, ROOT, WIDTH, pixels


@pytest.fixture(scope="module")
def np():
    return pytest.importorskip("numpy")


@pytest.fixture
def array(np):
    return np.frombuffer(pixels(), np.uint8).reshape(30, 40, 3)  # read-only


def test_arrays_of_any_layout(model, np, photo, array):
    expected = model.predict(photo)
    assert model.predict(array) == expected
    wide = np.zeros((30, 50, 3), np.uint8)
    wide[:, :40] = array
    assert model.predict(wide[:, :40]) == expected  # rows with something behind them
    assert model.predict(np.asfortranarray(array)) == expected
    assert model.predict(array[::-1].copy()[::-1]) == expected  # negative strides
    assert model.predict(array[:, ::-1].copy()[:, ::-1]) == expected
    assert model.predict(array[..., ::-1].copy()[..., ::-1]) == expected
    assert model.predict(np.ascontiguousarray(array.transpose(2, 0, 1)).transpose(1, 2, 0)) == expected
    rgba = np.dstack([array, np.zeros((30, 40), np.uint8)])
    assert model.predict(rgba) == expected
    grey = array[..., 0]
    assert model.predict(grey) == model.predict(grey[..., None]) == model.predict(np.dstack([grey] * 3))
    assert model.predict(np.broadcast_to(array[:, :1], (30, 40, 3))) == model.predict(np.repeat(array[:, :1], 40, 1))
    batch = np.stack([array, array])
    assert model.predict(batch) == model.predict([array, array]) == [expected, expected]


def test_array_errors_have_remedies(model, np, array):
    with pytest.raises(TypeError, match=r"float32; expected uint8.*run\(\)"):
        model.predict(array.astype("float32"))
    with pytest.raises(TypeError, match="int64.*astype"):
        model.predict(array.astype("int64"))
    with pytest.raises(ValueError, match=r"permute\(1, 2, 0\)"):
        model.predict(array.transpose(2, 0, 1))
    for shape in ((), (5,), (0, 5, 3), (5, 5, 2), (1, 1, 1, 1, 1)):
        with pytest.raises(ValueError, match="expected"):
            model.predict(np.zeros(shape, np.uint8))
    with pytest.raises(TypeError, match="big-endian"):
        model.predict(array.astype(">u2"))


def test_results_are_arrays(model, np, photo):
    logits, features = model.logits([photo, photo]), model.embed(photo)
    assert logits.shape == (2, CLASSES) and logits.dtype == np.float32 and features.shape == (WIDTH,)
    p = np.exp(logits[0] - logits[0].max())
    p /= p.sum()
    assert [q.index for q in model.predict(photo, 3)] == list(np.argsort(-p)[:3])
    assert np.allclose([q.probability for q in model.predict(photo, 7)], np.sort(p)[::-1], atol=1e-6)


def test_run(model, np, array):
    rng = np.random.default_rng(1)
    u8 = rng.integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)
    f32 = (u8.astype(np.float32) / 255 - 0.5) / 0.5
    from_u8, from_f32 = model.run(u8), model.run(f32)
    assert from_u8.shape == (5, CLASSES) and np.allclose(from_u8, from_f32, atol=1e-4)
    assert np.array_equal(model.run(u8[2:3])[0], from_u8[2])
    assert model.run(u8, features=True).shape == (5, WIDTH)
    last = np.ascontiguousarray(f32.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    assert np.array_equal(model.run(last), from_f32)
    assert model.run(u8[:0]).shape == (0, CLASSES)
    # a photo of the model's own size needs no resizing: run() and logits() agree
    same = np.ascontiguousarray(u8[0].transpose(1, 2, 0))
    assert np.array_equal(model.logits(same), from_u8[0])
    for bad, text in ((f32[0], r"x\[None\]"), (f32[..., :31], r"expected \(5, 3, 32, 32\)"),
                      (f32.astype(np.float64), "float64; expected float32"), (f32[:, :, ::-1], "a stride of -32"),
                      (f32 * np.inf, "NaN or infinity")):
        with pytest.raises(ValueError, match=text):
            model.run(bad)
    with pytest.raises(TypeError, match="is no tensor"):
        model.run([1, 2])


def test_pillow(model, photo):
    image = pytest.importorskip("PIL.Image").open(photo)
    expected = model.predict(photo)
    assert model.predict(image) == expected
    assert model.predict([image.convert("RGBA"), image]) == [expected, expected]
    assert model.predict(image.convert("L")) == model.predict(image.convert("L").convert("RGB"))
    assert len(model.predict(image.convert("P"))) == 5


def test_torch(model, np, photo, array):
    torch = pytest.importorskip("torch")
    expected = model.predict(photo)
    pixels_last = torch.from_numpy(array.copy())
    assert model.predict(pixels_last) == expected
    assert model.predict(pixels_last.permute(2, 0, 1).contiguous().permute(1, 2, 0)) == expected
    images = torch.randn(3, 3, 32, 32)
    out = model.run(images)
    assert isinstance(out, torch.Tensor) and out.shape == (3, CLASSES)
    assert np.array_equal(out.numpy(), model.run(images.numpy()))
    assert torch.equal(model.run(images.to(memory_format=torch.channels_last)), out)
    assert torch.equal(model.run(images[1:2])[0], out[1])
    with pytest.raises(TypeError, match="detach"):
        model.run(images.requires_grad_())
    with pytest.raises(ValueError, match="float16; expected float32"):
        model.run(images.detach().half())
    with pytest.raises(ValueError, match="bfloat16; expected float32"):
        model.run(images.detach().bfloat16())


def test_tensor_without_numpy(model, photo):
    """Where numpy is not installed, results are vitrum.Tensor, which others take by DLPack."""
    code = f"""
import sys, json
sys.modules["numpy"] = None
import vitrum
m = vitrum.load({str(model.info['path'])!r})
x = m.embed([{str(photo)!r}] * 3)
assert type(x) is vitrum.Tensor and x.shape == (3, {WIDTH}) and len(x) == 3 and x[-1] == x[0], x
try: x[3]
except IndexError: pass
else: raise AssertionError
for _ in range(100): x.__dlpack__()
from vitrum import _tensor
assert not _tensor._exports
y = vitrum.Tensor((2, 3 * 32 * 32))
z = vitrum._views.view_of(y)
assert z.shape == (2, 3072) and z.contiguous
print(json.dumps(m.logits({str(photo)!r})))
"""
    import json

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == list(model.logits(photo))


def test_dlpack_out(np):
    from vitrum import _tensor

    t = vitrum.Tensor((2, 3))
    t.data[4] = 5.0
    taken = np.from_dlpack(t)
    assert taken.tolist() == [[0, 0, 0], [0, 5, 0]] == np.asarray(t).tolist() == t.tolist()
    assert len(_tensor._exports) == 1
    del taken
    assert not _tensor._exports
    torch = pytest.importorskip("torch")
    assert torch.from_dlpack(t)[1, 1] == 5


def test_types_are_strict():
    pytest.importorskip("mypy")
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", "-p", "vitrum"],
                          cwd=ROOT / "python", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_dlpack_with_an_offset():
    """A tensor may begin some bytes behind its pointer: libraries seldom use that, but may."""
    from vitrum import _tensor, _views

    class Behind:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

        def __dlpack__(self, **_):
            capsule = self.tensor.__dlpack__()
            pointer = _views._pointer_of(capsule, b"dltensor")
            inside = ctypes.cast(pointer, ctypes.POINTER(_views._DLTensor)).contents
            inside.data, inside.byte_offset = inside.data - 8, 8
            return capsule

    tensor = _tensor.Tensor((2, 3))
    view = _views.view_of(Behind(tensor))
    assert view.pointer == ctypes.addressof(tensor.data) and view.shape == (2, 3)

"""vitrum-cuda, installed beside: which library and which cuBLAS this process and those it starts are told of."""
import os
import subprocess
import sys

import pytest
import vitrum
from vitrum import _cuda


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages as pip leaves it; the files are no libraries, so nothing is opened."""
    for name in ("vitrum_cuda/libvitrum_cuda.so", "nvidia/cu13/lib/libcublasLt.so.13", "nvidia/cu13/lib/libcublas.so.13"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("VITRUM_CUDA_LIBRARY", raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    yield tmp_path
    os.environ.pop("VITRUM_CUDA_LIBRARY", None)


def expected(site):
    return {"VITRUM_CUDA_LIBRARY": f"{site}/vitrum_cuda/libvitrum_cuda.so", "LD_LIBRARY_PATH": f"{site}/nvidia/cu13/lib"}


def chosen(env):
    return {k: v for k, v in env.items() if k in ("VITRUM_CUDA_LIBRARY", "LD_LIBRARY_PATH")}


def test_is_found_in_a_new_process(site, monkeypatch):
    assert chosen(_cuda.environment()) == expected(site)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/opt/lib:{site}/nvidia/cu13/lib")
    assert _cuda.environment()["LD_LIBRARY_PATH"] == f"{site}/nvidia/cu13/lib:/opt/lib"


def test_is_found_after_this_process_was_told(site):
    _cuda.prepare()
    assert os.environ["VITRUM_CUDA_LIBRARY"] == expected(site)["VITRUM_CUDA_LIBRARY"]
    assert chosen(_cuda.environment()) == expected(site)


def test_another_library_is_left_alone(site, monkeypatch):
    monkeypatch.setenv("VITRUM_CUDA_LIBRARY", "/mine.so")
    _cuda.prepare()
    assert chosen(_cuda.environment()) == {"VITRUM_CUDA_LIBRARY": "/mine.so"}


def test_without_it_nothing_is_set(monkeypatch):
    monkeypatch.delenv("VITRUM_CUDA_LIBRARY", raising=False)
    monkeypatch.setattr(sys, "path", ["/nowhere"])
    assert _cuda.environment() == dict(os.environ)


def test_verbs_and_command_are_told(site, monkeypatch):
    """By a binary that writes down what it is given."""
    binary, seen = site / "binary", site / "seen"
    binary.write_text(f"#!/bin/sh\nenv >>{seen}\nexit 1\n")
    binary.chmod(0o755)
    monkeypatch.setenv("VITRUM_BINARY", str(binary))
    with pytest.raises(vitrum.VitrumError):
        list(vitrum.train(model="vit_mnist", data="fashion-mnist"))
    code = f"import sys; sys.path.insert(0, {str(site)!r}); sys.argv = ['vitrum']\nfrom vitrum.__main__ import main; main()"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 1
    lines = seen.read_text().splitlines()
    for key, value in expected(site).items():
        assert lines.count(f"{key}={value}") == 2, key

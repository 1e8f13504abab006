"""Capabilities of the CPU under ATEN_CPU_CAPABILITY."""

import os
import subprocess
import sys

import pytest
import torch

from clearhead.kernels import cpu


@pytest.mark.parametrize(
    ("variable", "has_vnni"), [(None, True), ("default", False), ("avx2", False), ("avx512", True), ("unknown", True)]
)
def test_limit_excludes_avx_vnni(monkeypatch, variable, has_vnni):
    """PyTorch's capability of a processor with AVX-VNNI and without AVX-512 is AVX2, limited or not."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx_vnni": True}, raising=False)
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    if variable is not None:
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", variable)
    assert cpu.has("avx_vnni") == has_vnni
    assert cpu.has("avx2")


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "expected"), [("default", []), ("avx2", ["avx2"])])
def test_limited_process_uses_no_faster_kernels(capability, expected):
    code = "from clearhead.kernels.native import library; print([*library.supported()])"
    environment = os.environ | {"ATEN_CPU_CAPABILITY": capability}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in (str(expected), "[]")  # without AVX2, or without compiled kernels, none

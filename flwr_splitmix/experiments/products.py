"""Products of float32 matrices on AMD processors, by the faster one of torch's two libraries.

On the CPU, torch multiplies matrices by MKL. On AMD's processors MKL uses half the width of the
vector units of those with AVX-512; oneDNN, the other library, uses all of it. Both compute in
float32 and differ by rounding (docs/performance.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch

_MAX_RELATIVE_ERROR = 1e-5
"""Greatest relative error of a product in float32; bfloat16's is 2e-3."""


@contextlib.contextmanager
def fast_products(device: torch.device) -> Iterator[bool]:
    """Multiply float32 matrices by oneDNN in the block, where it is faster and as precise.

    It is where computations are on the CPU, this is one of AMD's with AVX-512, and a trial product
    has float32's precision: torch's switch also permits bfloat16, which oneDNN takes on processors
    with units for it. Attention is computed from plain products meanwhile, because the fused one
    is slow with oneDNN's small products.

    Both switches are the process's. They are restored at the end of the block.

    Yields
    ------
    Whether oneDNN is used.
    """
    matmul = getattr(torch.backends.mkldnn, "matmul", None)  # torch 2.9 and newer
    if device.type != "cpu" or matmul is None or not _half_width_with_mkl():
        yield False
        return
    precision = matmul.fp32_precision
    fused = torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
    try:
        matmul.fp32_precision = "bf16"
        precise = _error_of_a_product() < _MAX_RELATIVE_ERROR
        if precise:
            torch.backends.cuda.enable_flash_sdp(False)  # the CPU's, too
        else:
            matmul.fp32_precision = precision
        yield precise
    finally:
        matmul.fp32_precision = precision
        torch.backends.cuda.enable_flash_sdp(fused)


def _half_width_with_mkl() -> bool:
    try:
        amd = "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return False
    wide = "AVX512" in torch.backends.cpu.get_cpu_capability()
    return amd and wide and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]


def _error_of_a_product() -> float:
    """Return the relative error of a product that is large enough for any special units."""
    left = torch.linspace(-1.0, 1.0, 256 * 257).sin().view(256, 257)
    right = torch.linspace(-2.0, 3.0, 257 * 256).cos().view(257, 256)
    exact = left.double() @ right.double()
    return float(((left @ right).double() - exact).norm() / exact.norm())

"""Steps of models on the CPU, with torch's and with our choice of library for float32 products.

`experiments.products` has oneDNN multiply where that is faster. Forward and backward passes of both
settings alternate in one process with one thread, so that drift of the machine cancels. Where the
setting does not apply, the figures say so and both are torch's.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import show, spread, write
from flwr_splitmix import split_vision_model
from flwr_splitmix.experiments.products import fast_products

CPU = torch.device("cpu")
WARM_UP = 2

Step = Callable[[], None]


def vit(images: int, patch_size: int, depth: int) -> Step:
    """Make a step of ViT-Tiny on 32 x 32 images."""
    model = split_vision_model(patch_size=patch_size, depth=depth, seed=0)
    return step_of(nn.Sequential(model.lower, model.upper), torch.randn(images, 1, 32, 32))


def decoder(texts: int, tokens: int, depth: int) -> Step:
    """Make a step of a decoder of stories15m's width."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=2000,
        hidden_size=288,
        intermediate_size=768,
        num_hidden_layers=depth,
        num_attention_heads=6,
    )
    model = LlamaForCausalLM(config)
    ids = torch.randint(2000, (texts, tokens))
    return step_of(lambda batch: model(input_ids=batch).logits, ids, model)


def step_of(
    forward: Callable[[Tensor], Tensor], batch: Tensor, model: nn.Module | None = None
) -> Step:
    """Make a step: forward pass, backward pass, gradients freed."""
    module = model if model is not None else forward
    assert isinstance(module, nn.Module)

    def step() -> None:
        forward(batch).sum().backward()  # type: ignore[no-untyped-call]
        module.zero_grad(set_to_none=True)

    return step


def models(depth: int) -> Mapping[str, Step]:
    """Make the steps to time, by what they are."""
    torch.manual_seed(0)
    return {
        "ViT-Tiny, 16 patches, 25 images": vit(25, 8, depth),
        "ViT-Tiny, 16 patches, 500 images": vit(500, 8, depth),
        "ViT-Tiny, 64 patches, 25 images": vit(25, 4, depth),
        "decoder of width 288, 16 texts of 60 tokens": decoder(16, 60, depth),
    }


def seconds(step: Step, *, ours: bool) -> float:
    """Time one step."""
    with fast_products(CPU) if ours else contextlib.nullcontext():
        began = time.perf_counter()
        step()
        return time.perf_counter() - began


def measure(repeats: int, depth: int) -> dict[str, Any]:
    """Time every model with both settings; see the keys of the result."""
    torch.set_num_threads(1)
    rows = {}
    for name, step in models(depth).items():
        pairs = [
            (1000 * seconds(step, ours=False), 1000 * seconds(step, ours=True))
            for _ in range(WARM_UP + repeats)
        ][WARM_UP:]
        rows[name] = {
            "torch_ms": spread([theirs for theirs, _ in pairs]),
            "ours_ms": spread([ours for _, ours in pairs]),
            "ratio": spread([theirs / ours for theirs, ours in pairs]),
        }
    with fast_products(CPU) as used:
        pass
    return {"steps": rows, "onednn": used, "settings": {"repeats": repeats, "depth": depth}}


def print_table(figures: Mapping[str, Any]) -> None:
    """Print medians, and the ratio of each pair of steps with its quartiles."""
    rows = [
        [
            name,
            f"{row['torch_ms']['median']:.1f}",
            f"{row['ours_ms']['median']:.1f}",
            "{median:.2f} ({q1:.2f} - {q3:.2f})".format(**row["ratio"]),
        ]
        for name, row in figures["steps"].items()
    ]
    ours = "oneDNN" if figures["onednn"] else "the same"
    show("Milliseconds of a step, one thread", ("", "torch's", ours, "ratio (quartiles)"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where to write the figures")
    parser.add_argument("--repeats", type=int, default=30, help="steps of each setting")
    parser.add_argument("--quick", action="store_true", help="one step, one block: is it alive?")
    options = parser.parse_args()
    figures = measure(*((1, 1) if options.quick else (options.repeats, 6)))
    print_table(figures)
    write(options.out, figures)


if __name__ == "__main__":
    main()

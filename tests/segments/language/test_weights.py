"""Folders whose weights do not fit: told by the headers alone, in the words of the build."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from flwr_splitmix.segments.language import LanguageCut, build_language_parts, sources
from flwr_splitmix.segments.language.build import open_skeleton
from flwr_splitmix.segments.language.sources import INDEX, SINGLE
from tests.segments.language.tiny_models import CASES, LABELS, config_of, whole_model

CUT = LanguageCut(1, 1)
WEIGHT = "model.layers.2.mlp.up_proj.weight"
Damage = Callable[[Path], None]


def refusals(source: Any) -> tuple[str, str]:
    """Return what the check without memory says, and what the build says."""
    with pytest.raises(ValueError, match=" ") as checked:
        open_skeleton(source, CUT, task="generation", num_labels=2, dtype="float32")
    with pytest.raises(ValueError, match=" ") as built:
        build_language_parts(source, CUT)
    return str(checked.value), str(built.value)


def saved(folder: Path, shard: str = "1GB") -> Path:
    whole_model(config_of("llama"), dtype="float32").save_pretrained(folder, max_shard_size=shard)
    return folder


def change(folder: Path, key: str, tensor: torch.Tensor | None) -> None:
    """Replace a tensor, or remove it if there is none in its place."""
    tensors = load_file(folder / SINGLE)
    del tensors[key]
    if tensor is not None:
        tensors[key] = tensor
    save_file(tensors, folder / SINGLE, {"format": "pt"})


def configure(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def shard_of(folder: Path, key: str = WEIGHT) -> Path:
    name: str = json.loads((folder / INDEX).read_text())["weight_map"][key]
    return folder / name


@pytest.mark.parametrize(("name", "task"), CASES)
def test_a_saved_model_passes_the_check_without_memory(
    name: str, task: Any, tmp_path: Path
) -> None:
    """Also one of many files, with tied weights, or whose tensors are converted when loaded."""
    whole = whole_model(config_of(name, task), task)
    whole.save_pretrained(tmp_path, max_shard_size="2KB")
    model, parts = open_skeleton(tmp_path, CUT, task=task, num_labels=LABELS, dtype="float32")
    assert {key: w.shape for key, w in model.state_dict().items()} == {
        key: w.shape for key, w in whole.state_dict().items()
    }
    assert all(weight.is_meta for weight in model.parameters())
    assert sum(1 for _ in model.parameters()) == sum(1 for _ in whole.parameters())
    if parts.tied:
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: change(f, WEIGHT, None), f"lacks weights: {WEIGHT}"),
        (
            lambda f: change(f, WEIGHT, torch.zeros(5, 16)),
            rf"{WEIGHT} has shape \(5, 16\) in .* and \(24, 16\)",
        ),
        (lambda f: configure(f, intermediate_size=48), r"mlp.* has shape .* and \((16, )?48"),
        (lambda f: configure(f, num_key_value_heads=3), "num_key_value_heads must divide"),
        (lambda f: configure(f, hidden_size=0), "hidden_size is 0|has shape .* and "),
    ],
    ids=["missing", "shape", "intermediate_size", "heads", "no width"],
)
def test_weights_that_do_not_fit_are_told_by_the_check_as_by_the_build(
    damage: Damage, message: str, tmp_path: Path
) -> None:
    """Otherwise the run would end with an error that the check does not find."""
    damage(saved(tmp_path))
    checked, built = refusals(tmp_path)
    assert checked == built
    assert re.search(message, checked)


@pytest.mark.parametrize("cut", [False, True], ids=["missing", "truncated"])
def test_a_damaged_shard_is_told_by_the_check_as_by_the_build(cut: bool, tmp_path: Path) -> None:
    """The check does not only look for the output layer, nor pass over files that lack."""
    file = shard_of(saved(tmp_path, "2KB"))
    whole = file.read_bytes()
    file.unlink()
    if cut:
        file.write_bytes(whole[:-1])
    checked, built = refusals(tmp_path)
    assert checked == built
    assert checked.startswith(f"{file.name} of '{tmp_path}' cannot be read (")


def test_files_that_a_hub_has_yet_to_hand_out_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = whole_model(config_of("qwen3_moe"), dtype="float32")
    whole.save_pretrained(tmp_path, max_shard_size="2KB")
    monkeypatch.setattr(sources, "snapshot_download", lambda *_, **__: str(tmp_path))
    options: dict[str, Any] = {"task": "generation", "num_labels": 2, "dtype": "float32"}
    for file in sorted(tmp_path.glob("*.safetensors"))[::2]:
        file.unlink()
    open_skeleton("someone/moe", CUT, **options)
    configure(tmp_path, intermediate_size=48, moe_intermediate_size=5)
    with pytest.raises(ValueError, match="has shape"):
        open_skeleton("someone/moe", CUT, **options)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (torch.int8, "I8"),
        (torch.int64, "I64"),
        (torch.bool, "BOOL"),
        (torch.complex64, "C64"),
        (torch.float8_e4m3fn, "F8_E4M3"),
    ],
)
def test_weights_that_are_no_floating_point_numbers_are_refused(
    dtype: torch.dtype, kind: str, tmp_path: Path
) -> None:
    """Cast, int8 would lack its scale, and complex numbers a part of it."""
    change(saved(tmp_path), WEIGHT, torch.zeros(24, 16).to(dtype))
    checked, built = refusals(tmp_path)
    assert checked == built
    assert checked == (
        f"{SINGLE} of '{tmp_path}' has {WEIGHT} as numbers of type {kind}, as of quantized "
        "weights; take a checkpoint whose weights are floating-point numbers (F64, F32, F16, BF16)"
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_floating_point_numbers_are_converted(dtype: torch.dtype, tmp_path: Path) -> None:
    change(saved(tmp_path), WEIGHT, torch.full((24, 16), 0.5, dtype=dtype))
    open_skeleton(tmp_path, CUT, task="generation", num_labels=2, dtype="float32")
    trunk = build_language_parts(tmp_path, CUT, parts=("trunk",)).trunk
    assert trunk is not None
    weight = trunk.get_parameter("stack.layers.1.mlp.up_proj.weight")
    assert torch.equal(weight, torch.full((24, 16), 0.5))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused_where_they_are_loaded(
    value: float, tmp_path: Path
) -> None:
    """Otherwise the server would blame clients for them: their messages overflow in the trunk."""
    weight = torch.zeros(24, 16)
    weight[3, 4] = value
    change(saved(tmp_path), WEIGHT, weight)
    with pytest.raises(ValueError, match="NaN") as refused:
        build_language_parts(tmp_path, CUT, parts=("trunk",))
    assert str(refused.value) == (
        f"{WEIGHT} in '{tmp_path}' has NaN or infinite numbers as float32; take an undamaged "
        "checkpoint of a model that has not diverged"
    )
    build_language_parts(tmp_path, CUT, parts=("head", "tail"))  # whose weights are sound


def test_numbers_too_large_for_the_runs_type_are_told_with_the_remedy(tmp_path: Path) -> None:
    change(saved(tmp_path), WEIGHT, torch.full((24, 16), 1e5))
    build_language_parts(tmp_path, CUT, dtype="bfloat16")
    with pytest.raises(ValueError, match=r"as float16; .*, or a dtype that holds larger numbers$"):
        build_language_parts(tmp_path, CUT, dtype="float16")


@pytest.mark.parametrize("name", ["../m/x.safetensors", "/m/x.safetensors", "a\\x", "..", "", 3])
def test_an_index_names_only_files_beside_it(name: Any, tmp_path: Path) -> None:
    """Files anywhere on the machine could be read otherwise."""
    folder = saved(tmp_path / "model", "2KB")
    (tmp_path / "m").mkdir()
    os.replace(shard_of(folder), tmp_path / "m" / "x.safetensors")
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"][WEIGHT] = str(tmp_path / name[1:]) if str(name)[:1] == "/" else name
    (folder / INDEX).write_text(json.dumps(index))
    checked, built = refusals(folder)
    assert checked == built
    assert checked.startswith(f"{INDEX} of '{folder}' cannot be read (ValueError: it names ")
    assert "which is not a file beside it" in checked


def test_a_file_beside_the_index_may_be_a_link(tmp_path: Path) -> None:
    """All files are, in the hub's cache."""
    folder = saved(tmp_path / "model", "2KB")
    file = shard_of(folder)
    os.replace(file, tmp_path / "blob")
    file.symlink_to("../blob")
    open_skeleton(folder, CUT, task="generation", num_labels=2, dtype="float32")
    through_link = build_language_parts(folder, CUT)
    file.unlink()
    os.replace(tmp_path / "blob", file)
    expected = build_language_parts(folder, CUT)
    assert through_link.head is not None
    assert expected.head is not None
    for linked, own in zip(through_link.head.parameters(), expected.head.parameters(), strict=True):
        assert torch.equal(linked, own)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", ["config.json", SINGLE, INDEX])
@pytest.mark.parametrize("link", [False, True], ids=["pipe", "device"])
def test_a_file_that_is_no_regular_one_is_named(name: str, link: bool, tmp_path: Path) -> None:
    """The error is not that of a missing file."""
    saved(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    if link:
        (tmp_path / name).symlink_to("/dev/zero")
    else:
        os.mkfifo(tmp_path / name)
    message = f"{name} of '{tmp_path}' cannot be read (OSError: it is not a regular file)"
    assert refusals(tmp_path) == (message, message)

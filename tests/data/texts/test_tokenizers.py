"""Tokenizers that are trained here, and those that are opened with a model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from flwr_splitmix.data import DataError
from flwr_splitmix.data.texts.generated import generated_public
from flwr_splitmix.data.texts.tokenizers import open_tokenizer, train_tokenizer

PUBLIC = generated_public("generation")


@pytest.fixture(scope="module")
def trained() -> Any:
    return train_tokenizer(PUBLIC, 400)


def test_a_trained_tokenizer_writes_any_text(trained: Any) -> None:
    for text in ("Anna has two pears.", "Ünïcode, 한국어 und 🙂", "a\n\tb  c", "<unknown>"):
        ids = trained(text)["input_ids"]
        assert max(ids) < len(trained) <= 400
        assert trained.decode(ids, skip_special_tokens=True) == text


@pytest.mark.slow
def test_training_repeats_in_another_process(trained: Any) -> None:
    program = (
        "from flwr_splitmix.data.texts.generated import generated_public\n"
        "from flwr_splitmix.data.texts.tokenizers import train_tokenizer\n"
        "print(train_tokenizer(generated_public('generation'), 400).backend_tokenizer.to_str())"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(process.stdout) == json.loads(trained.backend_tokenizer.to_str())


def test_a_vocabulary_without_room_for_all_bytes_is_refused() -> None:
    with pytest.raises(DataError, match="size is 257; it must be at least 258"):
        train_tokenizer(PUBLIC, 257)


def test_a_tokenizer_without_padding_token_is_refused_or_told_one(
    trained: Any, tmp_path: Path
) -> None:
    bare = train_tokenizer(PUBLIC, 300)
    bare.pad_token = None
    bare.save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"no padding token; name one of its tokens .*'<end>'"):
        open_tokenizer(str(tmp_path))
    assert open_tokenizer(str(tmp_path), padding="<end>").pad_token == "<end>"
    with pytest.raises(DataError, match="padding-token is 'PAD', but the tokenizer of"):
        open_tokenizer(str(tmp_path), padding="PAD")


def ended(tokenizer: Any) -> Any:
    """Let a tokenizer put <end> behind each text, as one of a Llama may do with </s>."""
    backend = tokenizer.backend_tokenizer
    backend.post_processor = TemplateProcessing(
        single="$A <end>", special_tokens=[("<end>", backend.token_to_id("<end>"))]
    )
    return tokenizer


def test_the_token_that_ends_each_text_is_not_recommended_to_pad_with(tmp_path: Path) -> None:
    """A classifier exported with it would read another place than the trained one."""
    bare = ended(train_tokenizer(PUBLIC, 300))
    bare.pad_token = None
    bare.save_pretrained(tmp_path)
    for padding, message in (("", "padding token; name"), ("PAD", "'PAD', but the tokenizer of")):
        with pytest.raises(DataError, match=message) as caught:
            open_tokenizer(str(tmp_path), padding=padding)
        assert "<end>" not in str(caught.value)


def test_a_folder_without_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no tokenizer that can be opened") as caught:
        open_tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_tokenizer_outside_its_folder_is_refused(tmp_path: Path) -> None:
    for name in ("model", "other"):
        train_tokenizer(PUBLIC, 300).save_pretrained(tmp_path / name)
    (tmp_path / "other" / "tokenizer.json").rename(tmp_path / "other" / "tokenizer.1.0.json")
    file = tmp_path / "model" / "tokenizer_config.json"
    described = json.loads(file.read_text())
    for name, refused in (("tokenizer.1.0.json", False), ("../other/tokenizer.1.0.json", True)):
        file.write_text(json.dumps({**described, "fast_tokenizer_files": [name]}))
        if not refused:
            (tmp_path / "model" / "tokenizer.json").rename(tmp_path / "model" / name)
            assert open_tokenizer(str(file.parent)).pad_token == "<pad>"
            continue
        with pytest.raises(DataError, match=rf"^{file} names '{name}' in fast_tokenizer_files"):
            open_tokenizer(str(file.parent))


def test_code_that_comes_with_a_tokenizer_never_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_tokenizer(PUBLIC, 300).save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    described = json.loads(file.read_text())
    custom_code = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}
    file.write_text(json.dumps(described | custom_code))
    (tmp_path / "own.py").write_text("raise SystemExit('the code ran')\n")
    monkeypatch.setattr("builtins.input", lambda _: "y")  # transformers asks by default
    with pytest.raises(DataError, match=r"has no tokenizer .* contains custom code"):
        open_tokenizer(str(tmp_path))

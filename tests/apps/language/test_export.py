"""A run's model, exported, is what transformers loads and what the run had learned."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from typer.testing import CliRunner

from flwr_splitmix.cli import app
from flwr_splitmix.clients import UShapeClient
from flwr_splitmix.data.texts.tokens import PROMPT
from tests.apps.language_app import APP, Fitted, fit


def run_of(fitted: Fitted) -> Any:
    assert fitted.strategy.recorder.run is not None
    return fitted.strategy.recorder.run


def splitmix(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def export(fitted: Fitted, folder: Path, *arguments: str) -> Result:
    run = run_of(fitted)
    return splitmix("export", run.id, folder, "--run-dir", run.path.parents[1], *arguments)


@torch.no_grad()
def logits_of(fitted: Fitted, client: UShapeClient, ids: torch.Tensor) -> torch.Tensor:
    mask = torch.ones_like(ids)
    trunk = fitted.strategy.trunk.module
    for part in (client.head, trunk, client.tail):
        part.eval()
    logits: torch.Tensor = client.tail(trunk(client.head(ids, mask), mask), mask)
    return logits


@torch.no_grad()
def answer(model: Any, ids: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model.eval()(ids).logits
    return logits


@pytest.mark.parametrize("task", ["classification", "generation"])
@pytest.mark.parametrize("options", [{}, {"lora_rank": 2}, {"learns": "tail"}], ids=str)
def test_what_was_averaged_is_exported(task: str, options: dict[str, Any], tmp_path: Path) -> None:
    fitted = fit(tmp_path, strategy="USplitFL", task=task, lr=0.01, steps_per_round=3, **options)
    assert export(fitted, tmp_path / "model").exit_code == 0
    auto = AutoModelForCausalLM if task == "generation" else AutoModelForSequenceClassification
    model = auto.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    ids = torch.tensor([tokenizer("the cat sees a dog")["input_ids"]])
    client = fitted.clients[0]
    client.ends.load(averaged(fitted))
    logits = answer(model, ids)
    torch.testing.assert_close(logits, logits_of(fitted, client, ids), rtol=1e-4, atol=1e-5)


def averaged(fitted: Fitted) -> dict[str, torch.Tensor]:
    record = fitted.result.arrays
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


def test_a_clients_own_head_and_tail_are_exported(tmp_path: Path) -> None:
    fitted = fit(tmp_path, strategy="USplitSL", task="generation", lr=0.01, steps_per_round=3)
    assert export(fitted, tmp_path / "model", "--client", "1").exit_code == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ids = torch.arange(3, 9)[None]
    logits = answer(model, ids)
    torch.testing.assert_close(
        logits, logits_of(fitted, fitted.clients[1], ids), rtol=1e-4, atol=1e-5
    )
    other = logits_of(fitted, fitted.clients[0], ids)
    assert (logits - other).abs().max() > 1e-3


def test_a_text_is_classified_as_the_parts_would(tmp_path: Path) -> None:
    options: dict[str, Any] = {"lr": 0.01, "steps_per_round": 3}
    fitted = fit(tmp_path, strategy="USplitFL", task="classification", **options)
    assert export(fitted, tmp_path / "model").exit_code == 0
    predicted = splitmix("predict", tmp_path / "model", "--text", "a dog", "--format", "json")
    assert predicted.exit_code == 0, predicted.output
    (prediction,) = json.loads(predicted.stdout)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    client = fitted.clients[0]
    client.ends.load(averaged(fitted))
    logits = logits_of(fitted, client, torch.tensor([tokenizer("a dog")["input_ids"]]))
    expected = logits[0].softmax(-1).tolist()
    assert sorted(prediction["classes"].values()) == pytest.approx(sorted(expected), rel=1e-4)
    facts = json.loads((tmp_path / "model" / "splitmix.json").read_text())
    assert [prediction["classes"][name] for name in facts["classes"]] == pytest.approx(
        expected, 1e-4
    )
    halved = splitmix("predict", tmp_path / "model", "--text", "a \ud83d")
    assert r"the text has half a character, '\ud83d', at place 3" in halved.stderr
    assert AutoConfig.from_pretrained(tmp_path / "model").id2label == dict(
        enumerate(facts["classes"])
    )
    refused = splitmix("predict", tmp_path / "model", APP / "pyproject.toml")
    assert 'holds a language model; give it --text "..."' in refused.stderr


def test_weights_of_another_format_are_not_read(tmp_path: Path) -> None:
    fitted = fit(tmp_path, strategy="USplitFL", task="classification")
    assert export(fitted, tmp_path / "model").exit_code == 0
    weights = tmp_path / "model" / "model.safetensors"
    torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
    weights.unlink()
    refused = splitmix("predict", tmp_path / "model", "--text", "a dog")
    message = f"{weights} is missing; export the run again\n"
    assert (refused.exit_code, refused.stderr) == (1, message)


@pytest.mark.parametrize("changed", [{"small-width": 32}, {"lora-rank": 1}], ids=str)
def test_a_configuration_that_does_not_fit_the_checkpoint_is_said(
    changed: dict[str, Any], tmp_path: Path
) -> None:
    fitted = fit(tmp_path, strategy="USplitFL", task="classification", lora_rank=2)
    run = run_of(fitted)
    (run.path / "config.json").write_text(json.dumps({**run.config, **changed}))
    message = (
        f"run {run.id}: the checkpoint of round 1 does not fit config.json (model, small-width, "
        "head-layers, lora-rank, ...): restore it\n"
    )
    refused = export(fitted, tmp_path / "model")
    assert (refused.exit_code, refused.stderr) == (1, message)
    home = run.path.parents[1]
    refused = splitmix("attack", "run", run.id, "--attack", "tag", "--run-dir", home)
    assert (refused.exit_code, refused.stderr) == (1, message)


def test_the_table_shows_the_beginning_of_a_long_text(tmp_path: Path) -> None:
    fitted = fit(tmp_path, strategy="USplitFL", task="classification")
    assert export(fitted, tmp_path / "model").exit_code == 0
    text = "the cat sees a dog and " * 20
    arguments = ("predict", tmp_path / "model", "--text", text)
    shown = " ".join(splitmix(*arguments).stdout.split())
    assert "the cat sees a dog and the cat" in shown
    assert shown.count("the cat") < 4
    assert "..." in shown
    (whole,) = json.loads(splitmix(*arguments, "--format", "json").stdout)
    assert whole["input"] == text


def test_a_pair_is_classified_as_the_parts_would(tmp_path: Path) -> None:
    rows = [
        {"sentence1": f"dog {i}", "sentence2": f"cat {i % 2}", "label": i % 2} for i in range(8)
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    fitted = fit(
        tmp_path,
        n=1,
        strategy="USplitFL",
        task="classification",
        lr=0.01,
        steps_per_round=3,
        dataset=str(tmp_path / "rows.json"),
        test_dataset=str(tmp_path / "rows.json"),
        text_column="sentence1",
        second_text_column="sentence2",
    )
    model = tmp_path / "model"
    assert export(fitted, model).exit_code == 0
    both = ("predict", model, "--text", "a dog", "--second", "a cat", "--format", "json")
    (prediction,) = json.loads(splitmix(*both).stdout)
    tokenizer = AutoTokenizer.from_pretrained(model)
    client = fitted.clients[0]
    client.ends.load(averaged(fitted))
    ids = torch.tensor([tokenizer("a dog", "a cat")["input_ids"]])
    expected = logits_of(fitted, client, ids)[0].softmax(-1).tolist()
    assert list(prediction["classes"].values()) == pytest.approx(
        sorted(expected, reverse=True), rel=1e-4
    )
    tokens = splitmix(*both, "--max-new-tokens", "5")
    assert "--max-new-tokens is for answers, and this model classifies; leave it" in tokens.stderr
    pictures = splitmix("predict", model, "a.png", "--max-new-tokens", "5")
    assert "--max-new-tokens goes with --text" in pictures.stderr
    alone = splitmix("predict", model, "--text", "a dog")
    assert "classifies pairs of sentences" in alone.stderr
    assert "--second" in alone.stderr
    halved = splitmix("predict", model, "--text", "a dog", "--second", "\ud83d")
    assert r"has half a character, '\ud83d', at place 1" in halved.stderr
    assert "tokenizer(first, second)" in (model / "README.md").read_text()


def test_files_are_written_and_read_without_a_progress_bar(tmp_path: Path) -> None:
    fitted = fit(tmp_path, strategy="USplitFL", task="classification")
    outputs = [
        export(fitted, tmp_path / "model").stderr,
        splitmix("predict", tmp_path / "model", "--text", "a dog").stderr,
    ]
    assert outputs == ["", ""]


def test_a_second_sentence_is_refused_where_no_pairs_were_learned(tmp_path: Path) -> None:
    fitted = fit(tmp_path, strategy="USplitFL", task="classification")
    assert export(fitted, tmp_path / "model").exit_code == 0
    refused = splitmix("predict", tmp_path / "model", "--text", "a dog", "--second", "a cat")
    assert "learned no pairs; leave --second out" in refused.stderr
    refused = splitmix("predict", tmp_path / "model", "a.png", "--second", "a cat")
    assert "--second goes with --text" in refused.stderr


def test_a_question_is_answered_as_the_parts_would(tmp_path: Path) -> None:
    fitted = fit(tmp_path, strategy="MixGuard", task="generation", lr=0.01, aggregator="FedAvg")
    assert export(fitted, tmp_path / "model").exit_code == 0
    arguments = ("predict", tmp_path / "model", "--text", "Who sees?", "--max-new-tokens", "5")
    predicted = splitmix(*arguments)
    assert predicted.exit_code == 0, predicted.output
    classes = splitmix(*arguments, "--top", "3")
    assert "--top is for classes, and this model answers; leave it out" in classes.stderr
    followed = json.loads(splitmix(*arguments, "--second", "A cat?", "--format", "json").stdout)
    assert (followed["text"], followed["second"]) == ("Who sees?", "A cat?")
    halved = splitmix("predict", tmp_path / "model", "--text", "Who \ud83d?")
    assert "the question has half a character" in halved.stderr
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ids = torch.tensor([tokenizer(PROMPT.format("Who sees?"))["input_ids"]])
    for _ in range(5):
        likely = answer(model, ids)[:, -1:].argmax(-1)
        ids = torch.cat([ids, likely], dim=1)
        if int(likely) == tokenizer.eos_token_id:
            break
    prompt = len(tokenizer(PROMPT.format("Who sees?"))["input_ids"])
    expected = str(tokenizer.decode(ids[0, prompt:], skip_special_tokens=True)).strip()
    assert predicted.stdout.strip() == expected
    card = (tmp_path / "model" / "README.md").read_text()
    assert "MixGuard's calibrator is left out" in card
    assert "Question: {}" in card


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    fitted = fit(tmp_path, strategy="USplitSL", task="generation")
    refused = export(fitted, tmp_path / "model")
    assert refused.exit_code == 1
    assert "USplitSL leaves heads and tails with their clients; name one" in refused.stderr
    refused = export(fitted, tmp_path / "model", "--client", "7")
    assert "there is no state of client 7 here" in refused.stderr
    refused = export(fitted, tmp_path / "model", "--client", "0", "--onnx")
    assert "--onnx is for vision models" in refused.stderr
    assert not (tmp_path / "model").exists()


def test_a_run_whose_nodes_keep_their_states_is_told_what_can_be_done(tmp_path: Path) -> None:
    fitted = fit(tmp_path, strategy="USplitSL", task="generation")
    shutil.rmtree(run_of(fitted).clients_dir)
    for options, missing in (((), "any client"), (("--client", "0"), "client 0")):
        refused = export(fitted, tmp_path / "model", *options)
        assert refused.exit_code == 1
        assert f"there is no state of {missing} here: USplitSL leaves heads and" in refused.stderr
        assert "the nodes of a deployment keep them in their state-dir" in refused.stderr
        assert "use a strategy that averages them" in refused.stderr
        assert "--client" not in refused.stderr


def test_keys_that_an_old_run_lacks_are_those_of_the_app(tmp_path: Path) -> None:
    fitted = fit(tmp_path / "runs", strategy="USplitFL")
    file = run_of(fitted).path / "config.json"
    config = json.loads(file.read_text())
    del config["support-scale"]
    file.write_text(json.dumps(config))
    exported = export(fitted, tmp_path / "model", "--app", str(APP))
    assert "load it with transformers' from_pretrained" in exported.stdout
    AutoModelForCausalLM.from_pretrained(tmp_path / "model")


def test_a_strangers_configuration_chooses_no_code(tmp_path: Path) -> None:
    """The `transformers` library would fetch attention from the hub, and run it."""
    model, strange = tmp_path / "model", tmp_path / "strange"
    assert export(fit(tmp_path, strategy="USplitFL", task="generation"), model).exit_code == 0
    answers = splitmix("predict", model, "--text", "Who sees?").stdout
    config = json.loads((model / "config.json").read_text())
    kernel = "kernels-community/flash-attn2"
    for key in ("attn_implementation", "_attn_implementation", "experts_implementation"):
        shutil.copytree(model, strange, dirs_exist_ok=True)
        (strange / "config.json").write_text(json.dumps({**config, key: kernel}))
        predicted = splitmix("predict", strange, "--text", "Who sees?")
        assert (predicted.exit_code, predicted.stdout) == (0, answers), (key, predicted.stderr)
    quantized = {"quantization_config": {"quant_method": "torchao", "quant_type": "int4_weight"}}
    for more in (quantized, {"text_config": quantized}):
        (strange / "config.json").write_text(json.dumps({**config, **more}))
        refused = splitmix("predict", strange, "--text", "Who sees?")
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "config.json: it has a quantization_config, and no export does" in refused.stderr


def test_a_damaged_model_is_said_and_answers_nothing(tmp_path: Path) -> None:
    """The `transformers` library has errors of its own, and makes up weights that are missing."""
    model, damaged = tmp_path / "model", tmp_path / "damaged"
    assert export(fit(tmp_path, strategy="USplitFL", task="generation"), model).exit_code == 0
    weights = (model / "model.safetensors").read_bytes()
    config = (model / "config.json").read_text()
    for file, content, reason in (
        ("model.safetensors", weights[: len(weights) // 2], "Error while deserializing header"),
        ("tokenizer.json", b"[]", "Error: "),
        ("config.json", config.replace('"hidden_size": 16', '"hidden_size": 32').encode(), "Error"),
        ("config.json", config.replace('"qwen3"', '"bert"').encode(), "they lack bert."),
    ):
        shutil.copytree(model, damaged, dirs_exist_ok=True)
        (damaged / file).write_bytes(content)
        refused = splitmix("predict", damaged, "--text", "Who sees?")
        assert (refused.exit_code, refused.stdout) == (1, ""), file
        assert str(damaged) in refused.stderr
        assert reason in refused.stderr
        assert refused.stderr.endswith("; export the run again\n")

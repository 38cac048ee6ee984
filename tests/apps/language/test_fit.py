"""apps/language in one process: every strategy, both tasks, real files where they are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from flwr_splitmix.apps.language import client as app_client
from flwr_splitmix.apps.language.model import build_parts
from flwr_splitmix.apps.language.server import build_trunk, initial_arrays
from flwr_splitmix.apps.language.texts import client_rows, tokenizer_of
from flwr_splitmix.clients import Order, TextSet
from flwr_splitmix.segments.language import LanguageParts, generate
from flwr_splitmix.segments.language.cutting import PARTS
from flwr_splitmix.strategies import USHAPE_STRATEGIES
from tests.apps.language_app import SHARED, TINY, client, fit, read, run_config
from tests.apps.minilm import MINILM
from tests.apps.vision_app import context

# A rare secret of MixGuard decodes so badly that a loss is not what a model's is that only guesses.
pytestmark = pytest.mark.usefixtures("repeatable")


@pytest.mark.parametrize("task", ["generation", "classification"])
@pytest.mark.parametrize("name", USHAPE_STRATEGIES)
def test_every_strategy_takes_a_step_with_every_client(
    name: str, task: str, tmp_path: Path
) -> None:
    fitted = fit(tmp_path, strategy=name, task=task)
    assert type(fitted.strategy) is USHAPE_STRATEGIES[name]
    assert {type(each.hiding) for each in fitted.clients} == {USHAPE_STRATEGIES[name].hiding}
    (row,) = fitted.rows
    assert row["steps"] == 1
    assert math.isfinite(row["loss"])
    # A model that knows nothing guesses among the words, or between two classes.
    expected = math.log(300) if task == "generation" else math.log(2)
    assert row["eval_loss"] == pytest.approx(expected, rel=0.15)
    scores = {"eval_matthews"} if task == "classification" else {"eval_perplexity"}
    assert scores <= row.keys()

    before = build_trunk(read(**TINY, strategy=name, task=task)).state_dict()
    after = fitted.strategy.trunk.module.state_dict()
    assert any(not torch.equal(after[key], before[key]) for key in before)
    untouched = client(0, 2, **TINY, strategy=name, task=task).weights()
    learned = [each.weights() for each in fitted.clients]
    for own_weights in learned:
        assert any(not torch.equal(own_weights[key], untouched[key]) for key in untouched)
    averaged = {k: torch.tensor(a.numpy()) for k, a in fitted.result.arrays.items()}
    if name == "USplitFL":
        for key, tensor in averaged.items():
            mean = torch.stack([weights[key] for weights in learned]).mean(0)
            assert torch.allclose(tensor, mean, atol=1e-6)


@pytest.mark.parametrize(
    "values",
    [
        {"dtype": "bfloat16", "gradient_checkpointing": True, "lora_rank": 2},
        {"gradients": "all-sources", "secret_per_sample": True, "k": 2, "m": 4, "pad_to": 120},
        {"calibration_epochs": 0, "perturbation": "none", "refine_every": 0},
        {"calibrated_inference": False, "perturbation": "constant"},
        {"strategy": "NaiveMixSL", "pad_to": 120, "lam": 0.7},
        {"partition": "column"},
        {"device": "balanced"},
    ],
    ids=str,
)
def test_every_option_goes_with_a_step(values: dict[str, Any], tmp_path: Path) -> None:
    (row,) = fit(tmp_path, **values).rows
    assert row["eval_loss"] == pytest.approx(math.log(300), rel=0.15)
    assert row["loss"] == pytest.approx(math.log(300), rel=0.15)


def test_heads_and_tails_are_averaged_if_an_aggregator_is_named(tmp_path: Path) -> None:
    fitted = fit(tmp_path, aggregator="FedMedian")
    kind = type(fitted.strategy.aggregator.strategy)
    assert kind.__name__ == "FedMedian"
    assert read(aggregator="FedAvg", strategy="USplitSL").averages
    assert not read(strategy="MixGuard").averages


@pytest.mark.parametrize(
    ("options", "learning"),
    [({"lora_rank": 2}, ["head", "tail"]), ({"learns": "tail"}, ["tail"])],
    ids=str,
)
def test_every_client_starts_from_the_servers_segments(
    options: dict[str, Any], learning: list[str]
) -> None:
    values = {**TINY, "strategy": "USplitFL", **options}
    arrays = initial_arrays(read(**values))
    weights = client(1, 2, **values).weights()
    assert set(weights) == set(arrays)
    assert sorted({name.split(".")[0] for name in arrays}) == learning
    for name, tensor in weights.items():
        assert torch.equal(tensor, torch.tensor(arrays[name].numpy()))


def test_nothing_travels_at_first_if_nothing_is_averaged() -> None:
    assert not initial_arrays(read(**TINY))


def test_a_client_holds_no_layer_of_the_trunk() -> None:
    values = {**TINY, "small_layers": 6, "head_layers": 2, "tail_layers": 1}
    segments = client(0, 2, **values).segments
    head, trunk, tail = build_parts(read(**values), PARTS).all_here()
    rest = {id(p): p.numel() for p in [*head.parameters(), *tail.parameters()]}
    assert sum(p.numel() for p in segments.parameters()) == sum(rest.values())
    # Three of six equal layers are the trunk's.
    layer = sum(p.numel() for p in head.stack.layers[0].parameters())
    assert sum(p.numel() for p in trunk.parameters()) == 3 * layer


def test_adapters_are_all_that_learns_of_their_parts() -> None:
    values = {**TINY, "lora_rank": 2, "lora_parts": "head,trunk", "task": "classification"}
    head, trunk, tail = build_parts(read(**values), PARTS).all_here()
    for part in (head, trunk):
        learns = [n for n, p in part.named_parameters() if p.requires_grad]
        assert learns
        assert all("lora_" in name for name in learns)
    assert all(p.requires_grad for p in tail.parameters())


def test_a_new_classifier_learns_beside_adapters() -> None:
    values = {**TINY, "lora_rank": 2, "task": "classification"}
    tail = build_parts(read(**values), ("tail",)).tail
    assert tail is not None
    learns = {name for name, p in tail.named_parameters() if p.requires_grad}
    assert any("score" in name for name in learns)
    assert any("lora_" in name for name in learns)
    assert not any("mlp" in name for name in learns)


@pytest.mark.parametrize("name", USHAPE_STRATEGIES)
def test_answers_are_written_and_scored(name: str, tmp_path: Path) -> None:
    fitted = fit(tmp_path, strategy=name, generation_scores=True, max_new_tokens=3)
    (row,) = fitted.rows
    for score, most in (("exact_match", 1), ("rouge_l", 1), ("bleu", 100)):
        assert 0 <= row[f"eval_{score}"] <= most


def test_an_answer_over_the_link_is_the_whole_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorers: list[Any] = []
    scores_of = app_client.scores_of

    def recorded_scores(*arguments: Any) -> Any:
        make = scores_of(*arguments)
        return lambda: scorers.append(make()) or scorers[-1]  # type: ignore[func-returns-value]

    monkeypatch.setattr(app_client, "scores_of", recorded_scores)
    values: dict[str, Any] = {
        "strategy": "USplitFL",
        "generation_scores": True,
        "max_new_tokens": 5,
        "steps_per_round": 80,
        "lr": 0.01,
    }
    fitted = fit(tmp_path, **values)
    config = read(**{**TINY, **values})
    tokenizer = tokenizer_of(config)
    parts: LanguageParts = build_parts(config, ("trunk",))
    parts.trunk = fitted.strategy.trunk.module  # type: ignore[assignment]
    used = [scores for scores in scorers if scores.examples]  # each client tries its factory, too
    assert len(used) == len(fitted.clients)
    for scores, one in zip(used, fitted.clients, strict=True):
        parts.head, parts.tail = one.head, one.tail  # type: ignore[assignment]
        tests: Any = one.tests["federated"]
        assert len(scores.predicted) == len(tests)
        for answer, ids, labels in zip(scores.predicted, tests.texts, tests.labels, strict=True):
            prompt = ids[labels == -100][None]
            expected = generate(
                parts,
                prompt,
                torch.ones_like(prompt),
                max_new_tokens=5,
                eos_token_id=tokenizer.eos_token_id,
            )
            assert answer == tokenizer.decode(expected[0], skip_special_tokens=True).strip()
    assert len({answer for scores in scorers for answer in scores.predicted}) > 1, (
        "a model that learned nothing"
    )


def test_a_constant_length_is_all_that_crosses() -> None:
    for strategy in ("USplitSL", "MixGuard"):
        one = client(0, 2, **{**TINY, "strategy": strategy, "pad_to": 96})
        steps = one.attach(Order(0, 0, 1, 1), None)["calibration-steps"]
        for number in range(steps):
            public = one.run("encode_public", {"number": number})["public"]
            answer = [group["messages"] for group in public]
            one.run("decode_public", {"number": number, "public": answer})
        reply = one.run("encode", {"number": 0, "progress": 0.0, "gradient": None})
        assert {tuple(m.shape[:2]) for m in reply["messages"]} == {(4, 96)}


def test_a_benchmark_is_the_same_for_all(tmp_path: Path) -> None:
    fitted = fit(tmp_path, evaluation="benchmark", strategy="USplitFL")
    assert [each.tests["federated"] for each in fitted.clients] == [None, None]
    sizes = {len(each.tests["benchmark"]) for each in fitted.clients}  # type: ignore[arg-type]
    assert sizes == {6}
    assert fitted.rows[0]["accuracy_kind"] == "benchmark"


def test_a_nodes_own_file_is_all_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "sentence,label\n" + "".join(f"the text number {i},{i % 2}\n" for i in range(40)),
        encoding="utf-8",
    )
    values = run_config(**{**TINY, "task": "classification", "samples_per_client": 30})
    node = context(1, 2, values)
    del node.node_config["num-partitions"]
    with pytest.raises(ValueError, match="neither num-partitions nor a dataset of its own"):
        app_client.client_fn(node)
    node.node_config["dataset"] = str(path)
    one = app_client.client_fn(node)
    assert one.batches.examples == 30
    tests = one.tests["federated"]
    assert isinstance(tests, TextSet)
    assert len(tests) == 4


def test_sources_of_cola_make_clients(tmp_path: Path) -> None:
    if not (SHARED / "cola").is_dir():
        pytest.skip("CoLA is not at ../shared/data/cola")
    values: dict[str, Any] = {
        "task": "classification",
        "dataset": str(SHARED / "cola" / "in_domain_train.tsv"),
        "test_dataset": str(SHARED / "cola" / "in_domain_dev.tsv"),
        "text_column": "4",
        "label_column": "2",
        "partition": "column",
        "partition_column": "1",
        "public": str(SHARED / "public_text" / "wikitext2_valid.txt.gz"),
        "model": MINILM,
        "secret_tokens": 0,
        "lr": 1e-4,
    }
    fitted = fit(tmp_path, **values)
    assert [each.batches.examples for each in fitted.clients] == [8, 8]
    assert fitted.rows[0]["eval_loss"] == pytest.approx(math.log(2), rel=0.2)
    groups = [client_rows(read(**{**TINY, **values}), node)[0].groups
              for node in ({"partition-id": i, "num-partitions": 2} for i in range(2))]  # fmt: skip
    assert not set(groups[0]) & set(groups[1])


def test_questions_of_gsm8k_are_answered(tmp_path: Path) -> None:
    if not (SHARED / "gsm8k").is_dir():
        pytest.skip("GSM8K is not at ../shared/data/gsm8k")
    fitted = fit(
        tmp_path,
        dataset=str(SHARED / "gsm8k" / "train.jsonl.gz"),
        test_dataset=str(SHARED / "gsm8k" / "test.jsonl.gz"),
        public=str(SHARED / "public_text" / "wikitext2_valid.txt.gz"),
        small_vocabulary=600,
        max_length=512,
        long_texts="drop",
        generation_scores=True,
        max_new_tokens=3,
    )
    row = fitted.rows[0]
    assert row["eval_perplexity"] == pytest.approx(600, rel=0.3)
    assert row["eval_exact_match"] == 0.0

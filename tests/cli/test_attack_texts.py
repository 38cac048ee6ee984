"""`splitmix attack run` on runs of the language app."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from click.testing import Result
from torch import Tensor

from flwr_splitmix.apps.language.attacked import attacked_texts
from flwr_splitmix.apps.language.config import SECRET_TOKENS
from flwr_splitmix.apps.language.texts import client_rows, tokenizer_of, training_set
from flwr_splitmix.attacks.recording.disk_trace import DiskTrace
from flwr_splitmix.attacks.recording.packing import UShapeStep
from flwr_splitmix.attacks.texts.releasing import MIN_TOKENS
from flwr_splitmix.clients import TextSet
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.attack_recording import attacks_dir, trace_dir
from tests.apps import language_app
from tests.apps.sent_batches import SentBatches, damage_steps, divide

Splitmix = Callable[..., Result]

RUNS: dict[str, dict[str, Any]] = {
    "USplitFL": {"task": "generation"},
    "USplitSL": {"task": "classification"},
    "MixGuard": {"task": "generation", "secret_tokens": 2},
    "NaiveMixSL": {"task": "generation"},
    "DPForwardSL": {"task": "classification"},
    "DPSGDSL": {"task": "generation"},
    "NoPeekSL": {"task": "classification", "dtype": "bfloat16", "lora_rank": 2},
}


@pytest.fixture(scope="module")
def recorded_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("texts")
    for strategy, options in RUNS.items():
        language_app.fit(home, 2, strategy=strategy, max_length=64, **options)
    return home


@pytest.fixture
def home(recorded_home: Path, tmp_path: Path) -> Path:
    """Copy it: tests may change it."""
    return Path(shutil.copytree(recorded_home, tmp_path / "home"))


def run_of(home: Path, strategy: str) -> Run:
    return next(run for run in Run.all(home) if run.config["strategy"] == strategy)


def attack(splitmix: Splitmix, run: Run, name: str, *options: str) -> Result:
    """Attack one text of each kind, unless `options` say otherwise."""
    return splitmix(
        "attack", "run", run.id, "--attack", name, "--victims", "1", "--format", "json", *options
    )


def reads(result: Result) -> float:
    """Return the share of words that an attack has read."""
    assert result.exit_code == 0, result.stderr
    (main,) = (m for m in json.loads(result.stdout) if m["metric"] == "token accuracy")
    return float(main["value"])


@pytest.mark.parametrize("strategy", ["USplitFL", "USplitSL", "DPSGDSL", "NoPeekSL"])
def test_what_is_not_hidden_is_read_without_a_recording(
    strategy: str, splitmix: Splitmix, home: Path
) -> None:
    run = run_of(home, strategy)
    assert reads(attack(splitmix, run, "vocabulary")) > 0.9
    (result_folder,) = (attacks_dir(run) / "results").iterdir()
    samples = pq.read_table(result_folder / "samples.parquet").to_pylist()
    assert [row["trained"] for row in samples] == [True, False]
    assert stat.S_IMODE(result_folder.stat().st_mode) == 0o700
    shown = splitmix("attack", "show", run.id)
    assert "vocabulary by server" in shown.stdout
    assert splitmix("attack", "forget", run.id).exit_code == 0
    assert not result_folder.exists()


def test_what_is_hidden_is_read_less_and_a_search_needs_several_messages(
    splitmix: Splitmix, home: Path
) -> None:
    strategies = ("USplitFL", "NaiveMixSL", "DPForwardSL")
    read = {name: reads(attack(splitmix, run_of(home, name), "vocabulary")) for name in strategies}
    assert read["DPForwardSL"] < 0.3
    assert read["NaiveMixSL"] < 0.9 < read["USplitFL"]
    # Not even texts that are mixed with each other are hidden by it.
    assert reads(attack(splitmix, run_of(home, "NaiveMixSL"), "solve-batch")) > 0.9
    assert reads(attack(splitmix, run_of(home, "MixGuard"), "key-search")) > 0
    lacking = attack(splitmix, run_of(home, "USplitFL"), "key-search")
    assert lacking.exit_code == 1
    assert "one message of a text only" in lacking.stderr


def test_scores_repeat_and_another_seed_has_other_victims(splitmix: Splitmix, home: Path) -> None:
    run = run_of(home, "DPForwardSL")
    first = attack(splitmix, run, "vocabulary").stdout
    assert attack(splitmix, run, "vocabulary").stdout == first
    assert attack(splitmix, run, "vocabulary", "--seed", "1").stdout != first


def test_the_results_of_several_clients_are_kept_and_told_apart(
    splitmix: Splitmix, home: Path
) -> None:
    run = run_of(home, "USplitFL")
    for client in ("0", "1"):
        options = ("--victims", "1", "--client", client)
        result = splitmix("attack", "run", run.id, "--attack", "vocabulary", *options)
        assert f"({run.id}, client {client}, scale smoke" in " ".join(result.stdout.split())
    shown = splitmix("attack", "show", run.id).stdout
    assert ("client 0" in shown, "client 1" in shown) == (True, True)
    (default_client,) = {
        m["client"] for m in json.loads(attack(splitmix, run, "vocabulary").stdout)
    }
    assert default_client == 0


def test_each_client_is_attacked_with_its_own_head_and_state(home: Path) -> None:
    run = run_of(home, "MixGuard")
    heads = []
    for client in (None, 0, 1):
        system = attacked_texts(run, client)
        assert system.state is not None
        heads.append(next(system.parts.all_here()[0].parameters()))
        # The base model is the one that all began with.
        assert not torch.equal(next(system.base.all_here()[0].parameters()), heads[-1])
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[1], heads[2])


def test_the_base_model_has_the_weights_that_training_began_with(home: Path) -> None:
    """Random weights are drawn in float32; the same seed draws others in bfloat16."""
    system = attacked_texts(run_of(home, "NoPeekSL"))
    trained = dict(system.parts.all_here()[0].named_parameters())
    base = dict(system.base.all_here()[0].named_parameters())
    frozen = trained.keys() & base.keys()  # all but the adapted layers, which have other names
    assert "embedding.embed_tokens.weight" in frozen
    assert all(torch.equal(trained[name], base[name]) for name in frozen)


def test_an_attacker_knows_how_many_secret_tokens_a_task_has_by_default(home: Path) -> None:
    system = attacked_texts(run_of(home, "MixGuard"))
    assert system.case(1).view.knowledge.options["secret_tokens"] == 2
    default = system.config.model_copy(update={"secret_tokens": -1, "max_length": 128})
    view = replace(system, config=default).case(1).view
    assert view.knowledge.options["secret_tokens"] == SECRET_TOKENS["generation"]
    assert {release.texts for release in view.releases} == {2}


def test_averaged_weights_are_enough_where_nodes_keep_their_state(
    splitmix: Splitmix, home: Path
) -> None:
    run = run_of(home, "USplitFL")
    shutil.rmtree(run.clients_dir)
    assert attacked_texts(run).state is None
    assert reads(attack(splitmix, run, "vocabulary")) > 0.9
    alone = run_of(home, "USplitSL")
    shutil.rmtree(alone.clients_dir)
    refused = attack(splitmix, alone, "vocabulary")
    assert (refused.exit_code, "there is no state of client 0 here" in refused.stderr) == (1, True)


def test_the_attackers_texts_are_not_the_clients(
    splitmix: Splitmix, home: Path, tmp_path: Path
) -> None:
    run = run_of(home, "USplitFL")
    (tmp_path / "a.txt").write_text("The cat sees a dog. A dog runs to the house.\n" * 3)
    assert attack(splitmix, run, "sip", "--public", str(tmp_path / "a.txt")).exit_code == 0
    none = attack(splitmix, run, "sip", "--public", str(tmp_path / "none.txt"))
    assert (none.exit_code, "there is no such path here" in none.stderr) == (1, True)


def test_a_clients_own_texts_are_no_public_ones(
    splitmix: Splitmix, home: Path, tmp_path: Path
) -> None:
    run = run_of(home, "USplitSL")
    system = attacked_texts(run)
    decode = tokenizer_of(system.config).decode
    texts = [decode(ids, skip_special_tokens=True) for ids in system.train.texts]
    (tmp_path / "own.txt").write_text("\n".join(texts))
    result = attack(splitmix, run, "sip", "--public", str(tmp_path / "own.txt"))
    assert (result.exit_code, "are the client's own" in result.stderr) == (1, True), result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--view", "eavesdropper"), "--view 'eavesdropper' is for images"),
        (("--assume", "lower"), "--assume is for images"),
        (("--repeats", "2"), "--repeats is for images"),
        (("--client", "9"), "client 9 finished no round; --client names the client whose data"),
    ],
)
def test_options_that_do_not_apply_are_refused(
    options: tuple[str, str], message: str, splitmix: Splitmix, home: Path
) -> None:
    result = attack(splitmix, run_of(home, "USplitSL"), "vocabulary", *options)
    assert (result.exit_code, message in result.stderr) == (1, True), result.stderr


def test_an_attack_on_images_is_not_one_on_texts(splitmix: Splitmix, home: Path) -> None:
    result = attack(splitmix, run_of(home, "MixGuard"), "linear")
    assert result.exit_code == 1
    assert "unknown attack on texts 'linear'; available: adaptive, " in result.stderr


def test_fewer_victims_than_asked_for_are_told(splitmix: Splitmix, home: Path) -> None:
    result = splitmix(
        "attack", "run", run_of(home, "USplitSL").id, "--attack", "vocabulary", "--victims", "50"
    )
    assert result.exit_code == 0
    assert "asks for 50 texts of each kind; available: 8 training and 6 held-out" in (result.stderr)


RECORDED: dict[str, dict[str, Any]] = {
    "USplitFL": {"task": "generation"},
    "USplitSL": {"task": "generation", "learns": "tail"},
    "NaiveMixSL": {"task": "classification"},
    "DPForwardSL": {"task": "generation"},
    "MixGuard": {"task": "classification", "secret_tokens": 0},
}


@pytest.mark.parametrize("strategy", RECORDED)
def test_what_a_recorded_run_sent_is_attacked(
    strategy: str, splitmix: Splitmix, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a new release of its texts by heads as they are in the end."""
    sent_batches = SentBatches(monkeypatch)
    values = {**RECORDED[strategy], "max_length": 128}
    run = recorded(home, strategy, steps_per_round=3, samples_per_client=10, **values)
    for client in range(2):
        case = attacked_texts(run, client).case(6)
        assert case.trained[:7] == [True] * 6 + [False]
        for release, origin in zip(case.view.releases[:6], case.origins, strict=False):
            rows = [sent_row(sent_batches, client, step, origin.ids) for step in (2, 1, 0)]
            messages, gradients = next(row for row in rows if row is not None)
            end = release.messages.shape[1]
            assert torch.equal(release.messages, messages[:, :end])
            assert release.outputs is not None
            assert release.outputs.shape == release.messages.shape
            if gradients is None:
                assert (release.gradients, values["learns"]) == (None, "tail")
            else:
                assert release.gradients is not None
                assert torch.equal(release.gradients, gradients[:, :end])
            assert origin.states.shape == (len(origin.ids), messages.shape[-1])
    assert 0 <= reads(attack(splitmix, run, "vocabulary")) <= 1


def recorded(home: Path, strategy: str, **values: Any) -> Run:
    """Record a run of two clients."""
    fitted = language_app.fit(home, 2, strategy=strategy, record_attacks=True, **values)
    assert fitted.strategy.recorder.run is not None
    return fitted.strategy.recorder.run


def sent_row(
    sent_batches: SentBatches, client: int, step: int, ids: Tensor
) -> tuple[Tensor, Tensor | None] | None:
    """Return what a client sent of a text in a step, and returned; None if it was another text."""
    texts, messages, returned = sent_batches.of(client, step)
    for row, text in enumerate(texts):
        if torch.equal(text[: len(ids)], ids) and not text[len(ids) :].any():
            return messages[:, row], torch.stack(returned)[:, row] if returned else None
    return None


def test_where_secret_tokens_stand_is_not_recorded(splitmix: Splitmix, home: Path) -> None:
    run = recorded(home, "MixGuard", max_length=64, **RUNS["MixGuard"])
    result = attack(splitmix, run, "vocabulary")
    assert reads(result) >= 0
    assert "note: the recording is not used: clients put secret tokens" in result.stderr


def test_a_recording_without_texts_of_the_client_is_not_used(
    splitmix: Splitmix, home: Path
) -> None:
    """A recording follows the 16 clients with the lowest indices; the attack works without it."""
    run = run_of(home, "USplitFL")
    message, mask = torch.zeros(4, 8, 16), torch.ones(4, 8, dtype=torch.uint8)
    step = UShapeStep(
        1, 0, messages={1: [message]}, masks={1: mask}, drawn={1: 0},
        outputs={}, returned={}, gradients={},
    )  # fmt: skip
    DiskTrace(trace_dir(run)).add(step)
    released = attack(splitmix, run, "vocabulary", "--client", "0")
    assert reads(released) > 0.9
    assert (
        "note: the recording is not used: of its 1 step, none that can be read has what client 0 "
        "sent; texts are released once more"
    ) in released.stderr
    other = attack(splitmix, run, "vocabulary", "--client", "1")
    assert other.exit_code == 1
    assert "client 1 sent other messages in step 0 of round 1 than its texts" in other.stderr


def test_a_recording_without_what_attacks_need_is_not_used(splitmix: Splitmix, home: Path) -> None:
    run = recorded(home, "USplitSL", task="generation", max_length=64, steps_per_round=3)
    assert "the recording is not used" not in attack(splitmix, run, "vocabulary").stderr
    damage_steps(run)
    released = attack(splitmix, run, "vocabulary")
    assert reads(released) > 0.9
    assert "note: the recording is not used: of its 3 steps, none" in released.stderr


def test_recorded_texts_that_are_all_too_short_are_refused(home: Path) -> None:
    run = recorded(home, "USplitSL", task="generation", max_length=64)
    system = attacked_texts(run, 1)
    texts = [text[: MIN_TOKENS - 1] for text in system.train.texts]
    short = TextSet(texts, [0] * len(texts))
    with pytest.raises(RunError, match=r"has a text of client 1 .* `splitmix attack forget`"):
        replace(system, train=short).case(2)


def test_a_number_of_clients_that_no_node_said_is_guessed_and_told(
    splitmix: Splitmix, home: Path
) -> None:
    run = run_of(home, "USplitFL")
    note = "note: the texts are taken as divided among 2 clients"
    assert note in attack(splitmix, run, "vocabulary").stderr
    rows = client_rows(attacked_texts(run, 1).config, {"partition-id": 1, "num-partitions": 5})[0]
    divide(run, {1: 5})
    assert "divided among" not in attack(splitmix, run, "vocabulary", "--client", "1").stderr
    system = attacked_texts(run, 1)
    for text, client_text in zip(
        system.train.texts, training_set(system.config, rows).texts, strict=True
    ):
        assert torch.equal(text, client_text)

"""Tasks of the matrix of texts: search for noise, training of a victim, attack with its scores.

This module is loaded once for all processes of a matrix, so it imports all that they need.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import torch

from flwr_splitmix.attacks.catalogue import text_attacks
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.results import write_rows
from flwr_splitmix.attacks.running.request import AttackRequest
from flwr_splitmix.attacks.running.texts import run_on_texts
from flwr_splitmix.attacks.texts.releasing import Released, freeze_parts, release_texts
from flwr_splitmix.attacks.texts.text_case import TextCase
from flwr_splitmix.attacks.texts.view import TextKnowledge, TextView
from flwr_splitmix.device import pick_device
from flwr_splitmix.experiments.privacy.cells import MatrixCell, Place
from flwr_splitmix.experiments.privacy.kinds import AnyRow
from flwr_splitmix.experiments.privacy.noise import chosen_noise, climb
from flwr_splitmix.experiments.privacy.tasks import Outcome, Task
from flwr_splitmix.experiments.privacy.texts.data import task_of
from flwr_splitmix.experiments.privacy.texts.rows import LADDERS, EqualRow, TextRow
from flwr_splitmix.experiments.privacy.texts.sizes import TextSize
from flwr_splitmix.experiments.privacy.texts.victims import (
    TextVictim,
    base_parts,
    hiding_of,
    load_text_victim,
    train_text_victim,
)
from flwr_splitmix.files.writing import write_json
from flwr_splitmix.runs.damage import damage_of, read_object
from flwr_splitmix.seeding import derive_seed, seeded_secrets
from flwr_splitmix.segments.language import LanguageParts

_ATTACKS = text_attacks()
_DONE = "done.json"
_REMEDY = "remove it, and the victim is trained again"


def do(task: Task, place: Place) -> tuple[Outcome, str]:
    """Run a task and store its result; return its outcome and a line that describes it."""
    if task.kind == "noise":
        return "done", _search(task.row, place)
    if task.kind == "victim":
        return "done", _train(_text_row(task.row), task.seed, place)
    assert task.cell is not None
    return attack_text_cell(task.cell, place)


def _text_row(row: AnyRow) -> TextRow:
    assert isinstance(row, TextRow)
    return row


def _resolved(row: TextRow, place: Place) -> TextRow:
    """Return a row as it is run: with the noise found for it, if it has equal utility."""
    if not isinstance(row, EqualRow):
        return row
    return row.with_noise(chosen_noise(row, place, row.knob))


def _search(row: AnyRow, place: Place) -> str:
    """Find the noise at which a row's utility matches its reference row's (`AnyRow.brought_to`).

    Each value tried is stored as a victim of its own, so that a search can be resumed.
    """
    assert isinstance(row, EqualRow)

    def utility(value: float) -> float:
        tried = row.with_noise(value)
        if not Task("victim", tried, 0).done(place):
            _train(tried, 0, place)
        return _utility(place.victim(tried, 0))

    target = _utility(place.victim(row.brought_to, 0))
    chosen = climb(row, place, row.knob, LADDERS[place.size.name][row.knob], target, utility)
    return f"{row.knob} {chosen:g}"


def _utility(folder: Path) -> float:
    """Return a victim's Matthews correlation, or, without classes, its accuracy."""
    facts = _victim_facts(folder)
    return float(facts.get("matthews", facts["accuracy"]))


def _victim_facts(folder: Path) -> dict[str, Any]:
    """Return a victim's utility and costs, as its training wrote them."""
    file = folder / _DONE
    facts = read_object(file, _REMEDY)
    with damage_of(file, _REMEDY):
        for name in ("accuracy", "training_seconds"):
            float(facts[name])
        float(facts.get("matthews", 0))
    return facts


def _size(place: Place) -> TextSize:
    assert isinstance(place.size, TextSize)
    return place.size


def _train(row: TextRow, seed: int, place: Place) -> str:
    folder = place.victim(row, seed)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    device = str(pick_device(place.device))
    run = _resolved(row, place)
    if run != row and Task("victim", run, seed).done(place):  # trained in the search
        trained = place.victim(run, seed)
        others = shutil.ignore_patterns(_DONE)
        shutil.copytree(trained, folder, ignore=others, dirs_exist_ok=True)
        # Last: its presence shows that the others are whole.
        write_json(folder / _DONE, _victim_facts(trained))
    else:
        train_text_victim(run, seed, folder, place.source, _size(place), device)
    facts = _victim_facts(folder)
    matthews = f", Matthews {float(facts['matthews']):.3f}" if "matthews" in facts else ""
    accuracy = f"accuracy {100 * facts['accuracy']:.1f} %"
    return f"{accuracy}{matthews}, {facts['training_seconds']:.1f} s of processor"


def attack_text_cell(cell: MatrixCell, place: Place) -> tuple[Outcome, str]:
    """Run a cell's attack and write its scores, or why it does not apply."""
    row, size, began = _text_row(cell.row), _size(place), time.process_time()
    run, folder = _resolved(row, place), place.victim(row, cell.seed)
    utility = _victim_facts(folder)
    facts = {
        **utility,
        "row": row.name,
        "attack": cell.column.attack,
        "adversary": cell.column.adversary,
        "seed": cell.seed,
        "epochs": size.fitting_of(task_of(place.source)).epochs,
    }
    if isinstance(row, EqualRow):
        facts["noise_option"] = dict(run.options)[row.knob]
    victim = load_text_victim(run, cell.seed, folder, place.source, size)
    try:
        scores = _attack(cell, place, victim)
    except NotApplicable as reason:
        write_json(cell.file(place), {**facts, "state": "not applicable", "reason": str(reason)})
        return "not applicable", str(reason)
    seconds = round(time.process_time() - began, 1)  # this process's alone
    write_json(cell.file(place), {**facts, "state": "done", "seconds": seconds, **scores})
    return "done", f"{seconds:.1f} s of processor"


def _attack(cell: MatrixCell, place: Place, victim: TextVictim) -> dict[str, Any]:
    """Fit the attack on public texts, run it, and score it against the truth."""
    row, size, texts = _resolved(_text_row(cell.row), place), _size(place), victim.texts
    released = _release_victims(row, size, victim, cell.seed)
    base = known_parts(row, size, victim)
    begin = texts.tokenizer.bos_token_id
    view = TextView(
        "server",
        released.releases,
        TextKnowledge(
            row.name,
            dict(row.options),
            base,
            begin=begin,
            task=texts.task,
            client=lambda supports: hiding_of(row, size, texts, base.vocab_size, supports),
            batch_size=row.texts_in_a_step(size.batch),
        ),
        victim.public_releases,
    )
    owned = range(len(released.releases))
    case = TextCase(view, released.origins, [text < len(texts.trained) for text in owned])
    request = AttackRequest(
        attack=cell.column.attack,
        adversary=cell.column.adversary,
        victims=size.held_out,
        seed=cell.seed,
    )
    result = run_on_texts(
        _ATTACKS[request.attack],
        case,
        texts.public,
        Budget(size.name, seconds=size.seconds),
        request,
        texts.tokenizer.decode,
    )
    cell.folder(place).mkdir(parents=True, exist_ok=True, mode=0o700)
    write_rows(cell.folder(place) / "samples.parquet", result.rows)
    return {
        "texts": len(result.rows),
        "stopped_after": result.stopped_after,
        "metrics": [measure.to_json() for measure in result.measures],
    }


def known_parts(row: TextRow, size: TextSize, victim: TextVictim) -> LanguageParts:
    """Return a server's knowledge of a victim's model: base head and tail, and its own trunk."""
    parts = base_parts(size, victim.texts, "generation", deeper=row.deeper)
    _, trunk, _ = parts.all_here()
    trunk.load_state_dict(victim.parts.all_here()[1].state_dict())
    return freeze_parts(parts)


def _release_victims(row: TextRow, size: TextSize, victim: TextVictim, seed: int) -> Released:
    """Release the victims as the trained client would in a training step, with gradients."""
    batch, number = row.texts_in_a_step(size.batch), len(victim.texts.victims[0])
    texts, labels = victim.texts.steps(batch)
    hiding = hiding_of(row, size, victim.texts, victim.parts.vocab_size, victim.texts.supports)
    with seeded_secrets():
        torch.manual_seed(derive_seed(seed, f"releases of {row.name}"))
        batch_releases = release_texts(
            victim.parts,
            hiding,
            texts,
            labels=labels,
            batch_size=batch,
            gradients=True,
            learns=row.learns,
            state=victim.state,
            seed=seed,
        )
    return Released(batch_releases.releases[:number], batch_releases.origins[:number])

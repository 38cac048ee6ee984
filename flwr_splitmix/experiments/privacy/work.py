"""Execution of tasks: training of a victim, search for its noise, an attack with its scores.

This module is imported once for all processes of a matrix, with everything that they need.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from typing import Any

from flwr_splitmix.attacks.attacked import Attacked
from flwr_splitmix.attacks.bench import load_victim, train_victim
from flwr_splitmix.attacks.catalogue import image_attacks
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.recorder import Recorder
from flwr_splitmix.attacks.results import keep
from flwr_splitmix.attacks.running.images import image_case, run_on_images
from flwr_splitmix.attacks.running.request import AttackRequest
from flwr_splitmix.attacks.victim import Victim
from flwr_splitmix.device import pick_device
from flwr_splitmix.experiments.privacy.cells import MatrixCell, Place
from flwr_splitmix.experiments.privacy.columns import COLUMNS, Column
from flwr_splitmix.experiments.privacy.kinds import AnyRow
from flwr_splitmix.experiments.privacy.noise import find_noise, resolved
from flwr_splitmix.experiments.privacy.rows import EQUAL, ROWS, Row
from flwr_splitmix.experiments.privacy.sizes import Size
from flwr_splitmix.experiments.privacy.special import averaged_case, some_classes
from flwr_splitmix.experiments.privacy.tasks import Outcome, Task
from flwr_splitmix.experiments.strategies import options_of
from flwr_splitmix.files.writing import write_json
from flwr_splitmix.methods import BY_NAME

_UNMIXED = ("NoMixing", "FrozenEdge", "Noisy(NoMixing)")
"""Mixers whose mixtures are the clients' complete uploads."""

_ATTACKS = image_attacks()
_VIT = "vit_tiny_patch16_224"


def do(task: Task, place: Place) -> tuple[Outcome, str]:
    """Run a task and store its result; return the outcome and its description."""
    if task.kind == "noise":
        return "done", _search(_image_row(task.row), place)
    if task.kind == "victim":
        return "done", _train(_image_row(task.row), task.seed, place)
    assert task.cell is not None
    return attack_cell(task.cell, place)


def _image_row(row: AnyRow) -> Row:
    assert isinstance(row, Row)
    return row


def _size(place: Place) -> Size:
    assert isinstance(place.size, Size)
    return place.size


def attack_cell(cell: MatrixCell, place: Place) -> tuple[Outcome, str]:
    """Run a cell's attack and store its scores, or the reason why it is not applicable.

    Returns
    -------
    The outcome and its description.
    """
    began = time.process_time()
    attacked = load_victim(place.victim(cell.row, cell.seed))
    facts = {
        "row": cell.row.name,
        "attack": cell.column.attack,
        "variant": cell.column.variant,
        "adversary": cell.column.adversary,
        "seed": cell.seed,
        "accuracy": attacked.summary["accuracy"],
        "uplink_bytes": attacked.summary["uplink_bytes"] / attacked.summary["rounds"],
        "epochs": attacked.summary["rounds"],
    }
    try:
        scores = _server_scores(cell, place) or _attack(cell, place, attacked)
    except NotApplicable as reason:
        write_json(cell.file(place), {**facts, "state": "not applicable", "reason": str(reason)})
        return "not applicable", str(reason)
    seconds = round(time.process_time() - began, 1)  # hardly depends on other processes
    write_json(cell.file(place), {**facts, "state": "done", "seconds": seconds, **scores})
    return "done", f"{seconds:.1f} s of processor"


def _attack(cell: MatrixCell, place: Place, attacked: Attacked) -> dict[str, Any]:
    """Fit the attack on public images, run it, and score it against the ground truth."""
    column, size = cell.column, _size(place)
    assert isinstance(column, Column)
    request = AttackRequest(
        attack=column.attack,
        adversary="server" if column.averaged_gradients else column.adversary,
        victims=size.held_out,
        assumed=column.assume,
        repeats=size.repeats if column.collects else 1,
        seed=cell.seed,
    )
    kind = _ATTACKS[column.attack]
    case = image_case(attacked, kind, request, trained=column.trained, held_out=column.held_out)
    if column.averaged_gradients:
        case = averaged_case(case)
    result = run_on_images(
        kind,
        case,
        attacked.public_up_to(round(column.public * size.public), cell.seed),
        Budget(size.name, seconds=size.seconds, device=pick_device(place.device)),
        request,
        setting=dict(column.setting),
        trial_steps=size.trial_steps,
    )
    keep(cell.folder(place), result)
    return {
        "stopped_after": result.stopped_after,
        "metrics": [measure.to_json() for measure in result.measures],
    }


def _server_scores(cell: MatrixCell, place: Place) -> dict[str, Any] | None:
    """Return the scores of the server's cell if the upper segment receives the same, else None."""
    column = cell.column
    assert isinstance(column, Column)
    if (
        column.adversary != "upper only"
        or BY_NAME[_image_row(cell.row).method].mixer not in _UNMIXED
    ):
        return None
    twin = next(
        (
            other
            for other in COLUMNS
            if replace(other, adversary="upper only") == column and other.adversary == "server"
        ),
        None,
    )
    result = None if twin is None else replace(cell, column=twin).result(place)
    if result is None or result["state"] != "done":
        return None
    return {"stopped_after": result.get("stopped_after"), "metrics": result["metrics"]}


def _search(row: Row, place: Place) -> str:
    equal = load_victim(place.victim(ROWS[EQUAL], 0))

    def accuracy(noisy: Row) -> float:
        victim = _victim(noisy, 0, place)
        attacked = train_victim(victim, recorder=Recorder(max_steps=1), device=_device(place))
        return float(attacked.summary["accuracy"])

    sigma = find_noise(row, place, float(equal.summary["accuracy"]), accuracy)
    return f"sigma {sigma:g}"


def _train(row: Row, seed: int, place: Place) -> str:
    began, folder, size = time.process_time(), place.victim(row, seed), _size(place)
    victim = _victim(resolved(row, place), seed, place)
    if not (folder / "victim.safetensors").exists():
        shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted run
    steps = size.recorded * (size.samples // size.batch)
    attacked = train_victim(
        victim,
        directory=folder,
        recorder=Recorder(directory=folder / "trace", max_steps=steps),
        device=_device(place),
    )
    seconds = round(time.process_time() - began, 1)
    write_json(folder / "done.json", {**attacked.summary, "processor_s": seconds})
    return f"top-1 {100 * attacked.summary['accuracy']:.1f} %, {seconds:.1f} s of processor"


def _victim(row: Row, seed: int, place: Place) -> Victim:
    """Return the system of a row whose noise is known."""
    size = _size(place)
    source, clients, model = place.source, size.clients, _VIT
    architecture: dict[str, Any] = {
        "patch_size": size.patch,
        "depth": size.depth + row.frozen_edge,
    }
    if row.classes:
        source = some_classes(source, row.classes, place.folder / "data", size.image_size)
    if row.model == "LeNet-5":  # two clients, as in the paper's figure
        model, architecture, clients = "lenet5", {}, 2
    return Victim(
        method=row.method,
        options=options_of(row.options),
        model=model,
        model_options=architecture,
        dataset=source,
        image_size=size.image_size,
        clients=clients,
        samples=size.samples,
        rounds=max(1, round(row.stage * size.epochs)),
        batch_size=size.batch,
        defence=row.defence,
        test_images=size.test,
        seed=seed,
    )


def _device(place: Place) -> str:
    return str(pick_device(place.device))

"""The attacks' bench: a victim, trained and recorded in a real run of its strategy."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.attacks.attacked import Attacked
from flwr_splitmix.attacks.defences import own_lower, undefended
from flwr_splitmix.attacks.fresh_segments import Architecture
from flwr_splitmix.attacks.knowledge import Knowledge, Lowers
from flwr_splitmix.attacks.recorder import Recorder
from flwr_splitmix.attacks.recording.disk_trace import DiskTrace
from flwr_splitmix.attacks.recording.trace import Trace
from flwr_splitmix.attacks.recording.vault import Vault
from flwr_splitmix.attacks.simulation import ShuffleWatch
from flwr_splitmix.attacks.victim import Victim
from flwr_splitmix.clients import SplitClient
from flwr_splitmix.data import ImageDataset, load_images
from flwr_splitmix.data.images.sets import ImageSets
from flwr_splitmix.links.arrays import to_tensors
from flwr_splitmix.optimizers import adamw
from flwr_splitmix.schedule import WarmupCosine
from flwr_splitmix.segments.vision.split_model import SplitModel
from flwr_splitmix.server.evaluation.over_link import Evaluation
from flwr_splitmix.storage import load_tensors, save_tensors, under
from flwr_splitmix.strategies import STRATEGIES, SplitStrategy, central_evaluation
from flwr_splitmix.strategies.option_trial import needs_labels
from flwr_splitmix.words import counted

KEPT_ORDERS = 50
"""How many of the newest shuffles of each client's frozen edge the vault keeps."""


@dataclass(frozen=True)
class _Setting:
    """The values that determine a victim before it is trained."""

    victim: Victim
    sets: ImageSets
    parts: list[ImageDataset]
    spare: ImageDataset
    architecture: Architecture
    segments: SplitModel

    @classmethod
    def of(cls, victim: Victim) -> _Setting:
        sets = load_images(victim.dataset, image_size=victim.image_size)
        order = np.random.default_rng(victim.seed).permutation(len(sets.train))
        needed = victim.clients * victim.samples
        if needed > len(order):
            raise ValueError(
                f"{counted(victim.clients, 'client')} with {counted(victim.samples, 'image')} each "
                f"need {needed} in all; {sets.name!r} has {counted(len(order), 'training image')}"
            )
        parts = [
            sets.train.subset(order[i * victim.samples : (i + 1) * victim.samples])
            for i in range(victim.clients)
        ]
        spare = sets.train.subset(order[needed:])
        architecture = Architecture(
            method=victim.method,
            options=dict(victim.options),
            model=victim.model,
            model_options=dict(victim.model_options),
            num_classes=len(sets.classes),
            channels=sets.train.shape[0],
            image_size=victim.image_size,
            defence=victim.defence,
        )
        segments = architecture.segments(victim.seed)
        return cls(victim, sets, parts, spare, architecture, segments)

    @property
    def test(self) -> ImageDataset:
        """The images that the system is evaluated on."""
        rows = np.random.default_rng(0).permutation(len(self.sets.test))
        return self.sets.test.subset(np.sort(rows[: self.victim.test_images]))

    def strategy(self, **more: Any) -> SplitStrategy:
        victim, options = self.victim, dict(self.victim.options)
        if needs_labels(victim.method):
            options["labels"] = [torch.tensor(part.labels) for part in self.parts]
        return STRATEGIES[victim.method](
            self.segments.upper,
            num_classes=len(self.sets.classes),
            multi_label=self.sets.multi_label,
            optimizer=adamw(victim.lr, victim.weight_decay),
            schedule=WarmupCosine(),
            steps_per_round=victim.steps,
            evaluate_every=victim.rounds,
            seed=victim.seed,
            **options,
            **more,
        )


def train_victim(
    victim: Victim,
    *,
    directory: Path | None = None,
    recorder: Recorder | None = None,
    device: str = "cpu",
) -> Attacked:
    """Train a victim with `fit`, record it, and return it with its views and its truth.

    Parameters
    ----------
    directory
        Where the recording, the trained segments and the truth are kept, readable by the owner
        only; a victim already there is loaded instead of trained. None keeps it in memory.
    recorder
        None uses one with the default bounds, in `directory` or in memory.
    device
        The device of both sides.

    Raises
    ------
    ValueError
        If the method, its options, the model or the data do not allow it, or if the directory
        holds another victim.
    """
    if directory is not None and (directory / "victim.safetensors").exists():
        return load_victim(directory, victim)
    setting = _Setting.of(victim)
    recorder = recorder or Recorder(directory=None if directory is None else directory / "trace")
    # Clients that all have the averaged lower segment are evaluated once, centrally.
    evaluation: Evaluation = "none" if STRATEGIES[victim.method].averages else "benchmark"
    strategy = setting.strategy(device=device, observers=[recorder], evaluation=evaluation)
    clients = _clients(setting, strategy, device)
    evaluate_fn = None
    if strategy.averages:
        lower = copy.deepcopy(setting.segments.lower)
        evaluate_fn = central_evaluation(strategy.upper, lower, setting.test)
    with ExitStack() as stack:
        watches = [
            stack.enter_context(ShuffleWatch(client.segment, KEPT_ORDERS)) for client in clients
        ]
        result = strategy.fit(clients, victim.rounds, evaluate_fn=evaluate_fn)
    lowers: Lowers = {
        index: undefended(client.segment).cpu() for index, client in enumerate(clients)
    }
    if strategy.averages:
        lowers = setting.segments.lower
        lowers.load_state_dict(to_tensors(result.arrays))
    orders = {
        (client, number): order.to(torch.int32)
        for client, watch in enumerate(watches)
        for number, order in enumerate(watch.orders, watch.passes - len(watch.orders))
    }
    summary = _summary(strategy.rows)
    attacked = _attacked(setting, strategy, recorder.trace, lowers, orders, summary)
    if directory is not None:
        _save(directory, attacked, victim)
    return attacked


def load_victim(directory: Path, victim: Victim | None = None) -> Attacked:
    """Load what `train_victim` saved in a directory.

    Parameters
    ----------
    victim
        The expected victim; None accepts any.

    Raises
    ------
    StorageError
        If there is none, or it cannot be read.
    ValueError
        If the stored victim is another one.
    """
    tensors, meta = load_tensors(directory / "victim.safetensors")
    stored = Victim.from_plain(meta["victim"])
    if victim is not None and json.dumps(victim.plain()) != json.dumps(stored.plain()):
        raise ValueError(f"{directory} holds another victim: {stored}")
    setting = _Setting.of(stored)
    strategy = setting.strategy(device="cpu")
    lower = setting.segments.lower
    lowers: Lowers = lower
    if strategy.averages:
        lower.load_state_dict(under("lower", tensors))
    else:
        client_lowers = {client: copy.deepcopy(lower) for client in range(stored.clients)}
        for client, segment in client_lowers.items():
            segment.load_state_dict(under(f"lower.{client}", tensors))
        lowers = client_lowers
    setting.segments.upper.load_state_dict(under("upper", tensors))
    orders = {
        (int(client), int(number)): tensor
        for name, tensor in under("order", tensors).items()
        for client, number in [name.split(".")]
    }
    trace = DiskTrace(directory / "trace", shares=strategy.mixer.shares)
    return _attacked(setting, strategy, trace, lowers, orders, meta["summary"])


def _clients(setting: _Setting, strategy: SplitStrategy, device: str) -> list[SplitClient]:
    victim, lower = setting.victim, setting.segments.lower
    return [
        SplitClient(
            own_lower(lower, victim.defence),
            part,
            batch_size=victim.batch_size,
            benchmark_data=setting.test,
            optimizer=adamw(victim.lr, victim.weight_decay),
            device=device,
            shares=strategy.mixer.shares,
            repeatable_secrets=True,  # makes the bench reproducible, shuffles known to the vault
        )
        for part in setting.parts
    ]


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    measured = [row for row in rows if row["accuracy"] is not None]
    totals = ("steps", "seconds", "uplink_bytes", "downlink_bytes", "uplink_bytes_psl")
    return {
        "accuracy": measured[-1]["accuracy"] if measured else None,
        "loss": rows[-1]["loss"],
        "rounds": rows[-1]["round"],
        "epsilon": rows[-1].get("epsilon"),
        **{key: sum(row[key] for row in rows) for key in totals},
    }


def _attacked(
    setting: _Setting,
    strategy: SplitStrategy,
    trace: Trace,
    lowers: Lowers,
    orders: Mapping[tuple[int, int], Tensor],
    summary: Mapping[str, Any],
) -> Attacked:
    victim = setting.victim
    knowledge = Knowledge.of(
        strategy,
        setting.sets.train,
        setting.segments.lower.geometry,
        clients=victim.clients,
        batch_size=victim.batch_size,
        fresh_lower=setting.architecture.lower,
        lowers=lowers,
        first=setting.architecture.lower(victim.seed),
        method=victim.method,
        options=victim.options,
    )
    parts = dict(enumerate(setting.parts))
    long = {key: order.to(torch.int64) for key, order in orders.items()}
    vault = Vault(parts, setting.sets.test, victim.batch_size, victim.seed, long)
    return Attacked(knowledge, trace, vault, summary, setting.spare)


def _save(directory: Path, attacked: Attacked, victim: Victim) -> None:
    knowledge = attacked.knowledge
    assert knowledge.upper is not None
    tensors = {f"upper.{name}": t for name, t in knowledge.upper.state_dict().items()}
    if isinstance(knowledge.lowers, Mapping):
        for client, segment in knowledge.lowers.items():
            tensors |= {f"lower.{client}.{n}": t for n, t in segment.state_dict().items()}
    elif knowledge.lowers is not None:
        tensors |= {f"lower.{name}": t for name, t in knowledge.lowers.state_dict().items()}
    for (client, number), order in attacked.vault.orders.items():
        tensors[f"order.{client}.{number}"] = order.to(torch.int32)
    meta = {"victim": victim.plain(), "summary": dict(attacked.summary)}
    save_tensors(directory / "victim.safetensors", tensors, meta, private=True)

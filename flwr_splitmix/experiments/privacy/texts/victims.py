"""Victims of the matrix of texts: one client and a server, trained in a real run and stored."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from flwr_splitmix.apps.language.client import make_client
from flwr_splitmix.attacks.texts.public_releases import PublicReleases, load_public, save_public
from flwr_splitmix.attacks.texts.releasing import freeze_parts
from flwr_splitmix.attacks.texts.view import PublicRelease
from flwr_splitmix.clients import TextSet, UShapeClient
from flwr_splitmix.experiments.privacy.texts.data import MatrixTexts, load_matrix_texts
from flwr_splitmix.experiments.privacy.texts.rows import TextRow
from flwr_splitmix.experiments.privacy.texts.sizes import TextSize
from flwr_splitmix.experiments.scales import TINY
from flwr_splitmix.experiments.texts.models import tiny_decoder
from flwr_splitmix.files.writing import write_json
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.hiding.making import make_hiding, sources_of
from flwr_splitmix.optimizers import adamw
from flwr_splitmix.schedule import WarmupCosine
from flwr_splitmix.scoring.texts import ClassScores, TextScores
from flwr_splitmix.segments.language import LanguageCut, LanguageParts, build_language_parts
from flwr_splitmix.segments.language.layouts.layout import Task
from flwr_splitmix.storage import load_tensors, save_tensors, under
from flwr_splitmix.strategies import USHAPE_STRATEGIES, UShapeStrategy

_WEIGHT_DECAY = 0.01

PUBLIC_FILE = "public.safetensors"
"""File in a victim's folder: releases of the public texts its client calibrated on."""

HIDING_FACTS = ("decode_error", "calibrated_error", "leak")
"""Metrics of MixGuard's public texts in the last round, shown in tables."""


@dataclass(frozen=True)
class TextVictim:
    """A row's trained system.

    Parameters
    ----------
    parts
        Fine-tuned parts, in evaluation mode and without gradients.
    state
        State of the client's hiding (its calibrator or denoiser); None if it has no weights.
    texts
        All texts of the run.
    public_releases
        Releases of public texts, as its server saw them.
    """

    parts: LanguageParts
    state: tuple[dict[str, Tensor], dict[str, Any]] | None
    texts: MatrixTexts
    public_releases: Sequence[PublicRelease] = ()


def base_parts(size: TextSize, texts: MatrixTexts, task: Task, *, deeper: int = 0) -> LanguageParts:
    """Build all parts with their weights before fine-tuning; the tiny model's are random.

    Parameters
    ----------
    deeper
        Number of layers that the head has in addition to the size's, taken from the trunk; the
        tiny model is made with as many more.

    Raises
    ------
    ValueError
        If the model is missing, or cannot be cut there.
    """
    source: Any = size.model
    if size.model == TINY:
        source = tiny_decoder(len(texts.tokenizer), layers=3 + deeper)
    return build_language_parts(
        source,
        LanguageCut(size.head + deeper, size.tail),
        task=task,
        num_labels=max(2, texts.classes),
        seed=0,
    )


def _sources(
    row: TextRow, size: TextSize, texts: MatrixTexts, vocab_size: int, supports: Sequence[Tensor]
) -> dict[str, Any]:
    """Return the arguments that a method's constructor may ask for, by name."""
    options: dict[str, Any] = dict(row.options)
    if row.whole_run:
        options["releases"] = size.fitting_of(texts.task).epochs  # each epoch sends each text once
    return {
        "public": lambda: TextSet(list(supports), [0] * len(supports)),
        "vocab_size": lambda: vocab_size,
        "special_ids": lambda: texts.tokenizer.all_special_ids,
        "causal": lambda: texts.task == "generation",
        **sources_of(options),
    }


def hiding_of(
    row: TextRow, size: TextSize, texts: MatrixTexts, vocab_size: int, supports: Sequence[Tensor]
) -> Hiding:
    """Make a row's client half, which releases texts."""
    kind = USHAPE_STRATEGIES[row.method].hiding.sends_as()
    return make_hiding(kind, _sources(row, size, texts, vocab_size, supports))


@dataclass(frozen=True)
class _Trained:
    """The products of training a victim: both sides, the public releases, and its CPU time."""

    strategy: UShapeStrategy
    client: UShapeClient
    public_releases: PublicReleases
    seconds: float


def train_text_victim(
    row: TextRow, seed: int, folder: Path, source: str, size: TextSize, device: str = "cpu"
) -> None:
    """Train a row's system on a device, and store it in a folder with its utility.

    Raises
    ------
    DataError, ValueError
        If data, model or options are unsuitable.
    """
    texts = load_matrix_texts(source, size, seed)
    trained = _train(row, seed, size, texts, device)
    _store(trained, folder)
    facts = _facts(trained, size.fitting_of(texts.task).epochs)
    write_json(folder / "done.json", facts)


def _train(row: TextRow, seed: int, size: TextSize, texts: MatrixTexts, device: str) -> _Trained:
    parts = base_parts(size, texts, texts.task, deeper=row.deeper)
    head, trunk, tail = parts.all_here()
    fitting = size.fitting_of(texts.task)
    optimizer = adamw(fitting.lr, _WEIGHT_DECAY)
    schedule = WarmupCosine(0.1 * fitting.epochs)
    public_releases = PublicReleases()
    strategy = USHAPE_STRATEGIES[row.method](
        trunk,
        optimizer=optimizer,
        schedule=schedule,
        device=device,
        evaluation="benchmark",
        evaluate_every=fitting.epochs,
        seed=seed,
        observers=[public_releases],
    )
    client = make_client(
        row.method,
        head,
        tail,
        texts.train,
        sources=_sources(row, size, texts, parts.vocab_size, texts.supports),
        learns=row.learns,
        optimizer=optimizer,
        schedule=schedule,
        batch_size=size.batch,
        benchmark_data=texts.test,
        device=device,
        scores=ClassScores if texts.task == "classification" else TextScores,
        repeatable_secrets=True,  # so that a matrix can be reproduced
    )
    began = time.process_time()
    strategy.fit([client], fitting.epochs)
    return _Trained(strategy, client, public_releases, round(time.process_time() - began, 1))


def _store(trained: _Trained, folder: Path) -> None:
    """Write weights, the state of the client's hiding, and the releases of public texts."""
    client = trained.client
    modules = {"head": client.head, "trunk": trained.strategy.trunk.module, "tail": client.tail}
    tensors = {
        f"{name}.{key}": value
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }
    hiding_tensors, meta = client.hiding.state()
    tensors |= {f"hiding.{name}": value for name, value in hiding_tensors.items()}
    plain = {"hiding": meta if hiding_tensors else None}
    save_tensors(folder / "victim.safetensors", tensors, plain, private=True)
    if trained.public_releases.releases:
        save_public(folder / PUBLIC_FILE, list(trained.public_releases.releases))


def _facts(trained: _Trained, epochs: int) -> dict[str, float]:
    """Return utility, epsilon and costs, by the names of the matrix's metrics."""
    summary = trained.strategy.recorder.summary({})
    facts = {
        "accuracy": summary["top1"],
        "matthews": summary.get("eval_matthews"),
        "epsilon": trained.client.epsilon,
    }
    return {
        **{name: value for name, value in facts.items() if value is not None},
        "uplink_bytes": summary["uplink_bytes"] / epochs,
        "training_seconds": trained.seconds,
        **_hiding_metrics(trained.strategy.rows[-1]),
    }


def _hiding_metrics(last: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of public texts that MixGuard's client reported in the last round."""
    metrics = {name: last.get(f"train_{name}") for name in HIDING_FACTS}
    return {name: float(value) for name, value in metrics.items() if value is not None}


def load_text_victim(
    row: TextRow, seed: int, folder: Path, source: str, size: TextSize
) -> TextVictim:
    """Read a row's trained system.

    Raises
    ------
    StorageError
        If the victim does not exist.
    """
    texts = load_matrix_texts(source, size, seed)
    parts = base_parts(size, texts, texts.task, deeper=row.deeper)
    tensors, meta = load_tensors(folder / "victim.safetensors")
    for name, part in zip(("head", "trunk", "tail"), parts.all_here(), strict=True):
        part.load_state_dict(under(name, tensors))
    state = None if meta["hiding"] is None else (under("hiding", tensors), meta["hiding"])
    return TextVictim(freeze_parts(parts), state, texts, load_public(folder / PUBLIC_FILE))

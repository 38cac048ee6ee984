"""The intake of a round's replies: checks them before they are averaged."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from flwr_splitmix.clients.weights import HasShape, differences
from flwr_splitmix.links import Clients
from flwr_splitmix.links.arrays import to_numpy
from flwr_splitmix.observers.metrics import median_norm
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.segments.batch_norm import is_variance, largest
from flwr_splitmix.server.intake.absurd_updates import (
    TIMES_MEDIAN,
    absurd_updates,
    largest_number,
    weights_of,
)
from flwr_splitmix.server.intake.checks import UploadError, cap_at_median
from flwr_splitmix.server.intake.client_metrics import ClientMetrics
from flwr_splitmix.server.intake.reply_metrics import (
    METRICS,
    check_examples,
    common_metrics,
    metrics_of,
    read_metrics,
)
from flwr_splitmix.server.naming import name_clients
from flwr_splitmix.values import MAX_COUNT
from flwr_splitmix.words import one_line

log = logging.getLogger("flwr.splitmix")

UNUSUAL = 10.0
"""Updates with a norm above this many times the round's median are named in the log."""

Arrays = Mapping[str, np.ndarray]


class ReplyIntake:
    """Checks clients' replies at the end of a round, so that no single one spoils the average.

    A reply that passes is rebuilt for the aggregator: names in the server's order, the dtypes that
    the run started with (wider ones if most clients send such), the metrics that most clients have,
    and a capped weight.

    Parameters
    ----------
    initial
        The lower segment that the run started with; its integer arrays are counters.

    Attributes
    ----------
    unusual
        The last round with unusual updates that were not left out, and their clients in words.
    """

    def __init__(self, initial: ArrayRecord) -> None:
        self._dtypes = {name: array.dtype for name, array in to_numpy(initial).items()}
        self._counters = {name for name, dtype in self._dtypes.items() if dtype.kind in "biu"}
        self._once = SeenKeys()
        self._metrics = ClientMetrics()
        self.unusual = (0, "")

    def check(
        self, clients: Clients, like: ArrayRecord, *, robust: bool
    ) -> tuple[dict[int, float], dict[str, float]]:
        """Leave out the replies that cannot be averaged, and fail their clients.

        Parameters
        ----------
        like
            The lower segment that the round started with: names and shapes must match it, kinds
            of numbers the run's first one, and every number must be finite and at most `largest`.
            The number of examples must be the one in the client's description.
        robust
            Whether the aggregator deals with outliers itself; otherwise an absurd update is left
            out, see `absurd_updates`.

        Returns
        -------
        By client index, the Euclidean norm of its update, without counters; and the means of the
        metrics of the remaining clients, each of which is in that client's rebuilt reply.
        """
        began = to_numpy(like)
        replies = clients.replies
        common = common_metrics(list(replies.values()))
        dtypes = self._averaging_dtypes(list(replies.values()))
        norms: dict[int, float] = {}
        metrics: dict[int, dict[str, Any]] = {}
        checked: dict[int, Arrays] = {}
        for client, reply in replies.items():
            try:
                arrays = self._read_arrays(reply, began, dtypes)
                examples = clients.descriptions[client].num_examples
                metrics[client] = read_metrics(reply, common, examples)
            except UploadError as error:
                clients.fail(client, str(error))
                continue
            norms[client] = self._norm(arrays, began)
            checked[client] = arrays
        if not robust:
            for client in self._leave_out_absurd(clients, began, checked):
                del metrics[client]
        means = self._metrics.means([replies[client] for client in metrics])
        self._cap_examples(metrics)
        for client, client_metrics in metrics.items():
            _rebuild(
                replies[client], {name: checked[client][name] for name in began}, client_metrics
            )
        clients.replies = {client: replies[client] for client in metrics}
        self._name_outliers(
            clients.server_round, norms, [client for client in norms if client in metrics]
        )
        return norms, means

    def _leave_out_absurd(
        self, clients: Clients, began: Arrays, checked: Mapping[int, Arrays]
    ) -> list[int]:
        """Fail the clients with absurd updates, and return them."""
        weights = {client: weights_of(arrays) for client, arrays in checked.items()}
        norms = {
            client: self._norm(client_weights, weights_of(began))
            for client, client_weights in weights.items()
        }
        largest = {
            client: largest_number(client_weights) for client, client_weights in weights.items()
        }
        absurd = absurd_updates(norms, largest)
        for client in absurd:
            clients.fail(
                client,
                f"returned an update of norm {norms[client]:.3g}, more than {TIMES_MEDIAN:g} times "
                f"the median of the round's, with numbers up to {largest[client]:.3g}",
            )
        return absurd

    def _name_outliers(
        self, server_round: int, norms: Mapping[int, float], averaged: Sequence[int]
    ) -> None:
        """Log in one line averaged updates with a norm far above the median, unless that is 0."""
        median = median_norm(norms)
        if median is None:
            return
        unusual = [client for client in averaged if norms[client] > UNUSUAL * median]
        if unusual:
            named = name_clients(unusual)
            self.unusual = (server_round, named)
            log.warning(
                "round %d: %s returned an unusual update, of norm up to %.3g where the median is "
                "%.3g: a fault, or an attempt to spoil the average",
                server_round,
                named,
                max(norms[client] for client in unusual),
                median,
            )

    def check_example_counts(self, clients: Clients) -> dict[str, float]:
        """Fail the clients that return another number of examples than they described.

        This is for replies that are not averaged. Only their mixer knows the descriptions of nodes
        behind mixing groups: their numbers must be from 1 to `MAX_COUNT`.

        Returns
        -------
        The means of the others' metrics.
        """
        valid_replies: dict[int, Message] = {}
        for client, reply in clients.replies.items():
            description = clients.descriptions.get(client)
            described = None if description is None else description.num_examples
            try:
                check_examples(metrics_of(reply).get("num-examples"), described)
            except UploadError as error:
                clients.fail(client, str(error))
            else:
                valid_replies[client] = reply
        clients.replies = valid_replies
        return self._metrics.means(list(valid_replies.values()))

    def _averaging_dtypes(self, replies: Sequence[Message]) -> dict[str, np.dtype[Any]]:
        """Return the run's first dtypes; of weights that most clients send wider, theirs.

        Otherwise an average would be rounded in every round to what a run's first arrays, of
        float16 perhaps, had.
        """
        dtypes = dict(self._dtypes)
        for name, dtype in self._dtypes.items():
            if dtype.kind == "f":
                count = Counter(_float_width(reply, name) for reply in replies)
                wide = [n for n in count if n > dtype.itemsize and 2 * count[n] > len(replies)]
                dtypes[name] = np.dtype(f"f{wide[0]}") if wide else dtype
        return dtypes

    def _read_arrays(
        self, reply: Message, began: Arrays, dtypes: Mapping[str, np.dtype[Any]]
    ) -> Arrays:
        records = list(reply.content.array_records.values())
        if len(records) != 1:
            raise UploadError("returned other weights than it was given")
        if set(records[0]) != set(began):
            raise _others(began, records[0])
        try:
            arrays = to_numpy(records[0])
        except Exception as error:  # numpy has many for bytes that are not an array
            raise UploadError("returned weights that cannot be read") from error
        for name, array in arrays.items():
            kind = array.dtype.kind if isinstance(array, np.ndarray) else ""
            if kind not in "biuf" or kind != self._dtypes[name].kind:
                raise UploadError("returned weights with numbers of another kind")
            if array.shape != began[name].shape:
                raise _others({name: began[name]}, {name: array})
            if not array.size or np.array_equal(array, began[name], equal_nan=kind == "f"):
                continue  # a constant of -inf or NaN, which never changes, is not a mistake
            if not np.isfinite(array).all():
                raise UploadError("returned weights with NaN or infinite numbers")
            limit = MAX_COUNT if name in self._counters else largest(name)
            if max(-float(array.min()), float(array.max())) > limit:
                raise UploadError(
                    f"returned weights with numbers beyond {limit:g} in {name!r}; scale "
                    "the inputs, or take a smaller learning rate"
                )
            if is_variance(name) and array.min() < 0:
                raise UploadError(f"returned a negative variance in {name!r}")
        # One client's longdouble made an average that no node could read.
        return {name: array.astype(dtypes[name], copy=False) for name, array in arrays.items()}

    def _norm(self, arrays: Arrays, began: Arrays) -> float:
        names = [name for name in began if name not in self._counters]
        return math.sqrt(sum(_squared_distance(arrays[name], began[name]) for name in names))

    def _cap_examples(self, metrics: Mapping[int, dict[str, Any]]) -> None:
        """Cap a client's weight at 100 times the median; log so once per client and run."""
        examples = {
            client: client_metrics["num-examples"] for client, client_metrics in metrics.items()
        }
        for client, most in zip(examples, cap_at_median(list(examples.values())), strict=True):
            metrics[client]["num-examples"] = most
            if most < examples[client] and self._once.add(("exaggerates", client)):
                log.warning(
                    "client %d says that it has %d examples; in averages it counts as %d, far "
                    "above the median of the others",
                    client,
                    examples[client],
                    most,
                )


def _float_width(reply: Message, name: str) -> int:
    """Return the bytes of a number in a reply's array, by its dtype; 0 unless float32 or 64."""
    arrays = next(iter(reply.content.array_records.values()), ArrayRecord())
    return {"float32": 4, "float64": 8}.get(arrays[name].dtype, 0) if name in arrays else 0


def _others(began: Arrays, arrays: Mapping[str, HasShape]) -> UploadError:
    """Return the error of a client's weights with other names or shapes, which it quotes."""
    wrong = one_line(differences(began, arrays))
    return UploadError(f"returned other weights than it was given: {wrong}")


def _rebuild(reply: Message, arrays: Arrays, metrics: Mapping[str, Any]) -> None:
    """Replace a reply's arrays and metrics by the checked ones, under standard names."""
    others = {
        key: value
        for key, value in reply.content.items()
        if not isinstance(value, (ArrayRecord, MetricRecord))
    }
    reply.content = RecordDict(
        {
            **others,
            "arrays": ArrayRecord({name: Array(array) for name, array in arrays.items()}),
            METRICS: MetricRecord(dict(metrics)),
        }
    )


def _squared_distance(array: np.ndarray, other: np.ndarray) -> float:
    with np.errstate(invalid="ignore"):
        difference = np.subtract(
            array, other, dtype=np.result_type(array, other, np.float32)
        ).ravel()
    total = float(np.dot(difference, difference))
    if not math.isfinite(total):  # a constant of -inf or NaN has not changed
        total = float(np.sum(np.square(difference[np.isfinite(difference)])))
    return total

"""A Flower strategy as the aggregator of lower segments, combined with our own sampling."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import cast

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.serverapp.exception import InconsistentMessageReplies
from torch import Tensor

from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.server.aggregation.answers import (
    aggregated,
    asked_no_node,
    check_finite,
    in_dtypes_of,
    missing_weight,
    training_messages_of,
)
from flwr_splitmix.server.aggregation.choice import (
    ROBUST,
    check_aggregator,
    check_enough_nodes,
    with_wrapped,
)
from flwr_splitmix.server.aggregation.given import GivenNumbers
from flwr_splitmix.server.aggregation.measured import (
    has_statistics,
    means_of_measured,
    unchanged,
    warn_of_inexact,
    whole_numbers,
    with_whole_numbers,
    without_negative_variances,
)
from flwr_splitmix.server.aggregation.nodes import (
    AggregatorError,
    NodesWanted,
    NoNodes,
    SampledNodes,
)
from flwr_splitmix.server.aggregation.sharing import warn_of_use
from flwr_splitmix.server.aggregation.state import RefusedStateError, restore_state, state_of
from flwr_splitmix.server.last_use import note_use
from flwr_splitmix.server.messages import messages_to, round_config
from flwr_splitmix.storage import under
from flwr_splitmix.words import counted

PREFIX = "aggregator"

_log = logging.getLogger("flwr.splitmix")

_SERVER_OPTIMIZERS = (flower.FedAvgM, flower.FedAdagrad, flower.FedAdam, flower.FedYogi)
"""Strategies whose result may lie far outside the range of what the clients sent."""


_BOUNDING = (
    *ROBUST,
    flower.DifferentialPrivacyServerSideFixedClipping,
    flower.DifferentialPrivacyServerSideAdaptiveClipping,
)
"""Strategies that bound what one client's update does to the result."""


class LowerAggregator:
    """Calls a Flower strategy's `configure_train` and `aggregate_train`; never its `start`.

    Parameters
    ----------
    strategy
        Any Flower strategy whose clients send one ArrayRecord and "num-examples"; None leaves
        lower segments with their clients.

    Attributes
    ----------
    once
        The warnings that have been logged about the strategy.

    Raises
    ------
    AggregatorError
        If the strategy needs client code or content that split learning does not have.
    """

    def __init__(self, strategy: flower.Strategy | None) -> None:
        check_aggregator(strategy)
        self.strategy = strategy
        self._numbers = GivenNumbers(strategy)
        self.once = SeenKeys()
        self._use = object()
        self._num_asked, self._current = 0, ArrayRecord()
        self._has_aggregated = False

    def begin(self) -> None:
        """Begin a run: whether the aggregator can work with its clients is not known yet."""
        self._has_aggregated = False
        self._numbers.begin()
        for strategy in with_wrapped(self.strategy):
            if isinstance(
                strategy, flower.FedAvgM
            ):  # otherwise its first step would start from another run
                strategy.current_arrays = None

    def warn_if_shared(self) -> None:
        """Log, once, if the strategy continues from its state in another strategy of ours."""
        if self.strategy is None or "shared" in self.once:
            return
        if warn_of_use(self.strategy, self._use):
            self.once.add("shared")

    @property
    def averages(self) -> bool:
        """Whether lower segments are aggregated at all."""
        return self.strategy is not None

    @property
    def robust(self) -> bool:
        """Whether the strategy bounds what one client can do, and may need the replies of all."""
        return any(isinstance(strategy, _BOUNDING) for strategy in with_wrapped(self.strategy))

    def configure(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid | None,
        nodes: Sequence[int],
    ) -> list[Message]:
        """Return one train message per node, each with its own content.

        Raises
        ------
        AggregatorError
            If the strategy waits for more nodes than take part, asks no node to train, or sends
            several ArrayRecords, none of which is under its `arrayrecord_key`.
        """
        self._num_asked, self._current = len(nodes), arrays
        config = round_config(server_round, config)
        if self.strategy is None or grid is None:
            self._record_round_arrays(server_round, arrays, config)
            content = RecordDict({"arrays": arrays, "config": config})
            return messages_to(nodes, content, MessageType.TRAIN, in_run=grid is not None)
        check_enough_nodes(self.strategy, len(nodes))
        view = cast(Grid, SampledNodes(grid, nodes, type(self.strategy).__name__))
        with self._numbers.changing():
            returned = self.strategy.configure_train(server_round, arrays, config, view)
            messages = training_messages_of(returned, self.strategy, server_round)
        self._num_asked = len(messages)
        for message in messages:
            message.content = self._segment_first(message.content)
        return messages

    def _segment_first(self, content: RecordDict) -> RecordDict:
        """Return a copy of a message's content in which the lower segment comes first.

        A client takes the first ArrayRecord; others are for mods.
        """
        names = list(content.array_records)
        if len(names) < 2:
            return RecordDict(dict(content.items()))
        keys = (
            getattr(strategy, "arrayrecord_key", None) for strategy in with_wrapped(self.strategy)
        )
        key = next((key for key in keys if key is not None), "arrays")
        if key not in names:
            raise AggregatorError(
                f"{type(self.strategy).__name__} sends the ArrayRecords {', '.join(names)}, and "
                f"none is {key!r}, its arrayrecord_key, so that clients cannot know which is the "
                "lower segment"
            )
        return RecordDict({key: content[key], **dict(content.items())})

    def _record_round_arrays(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord
    ) -> None:
        """Have a server optimizer record the round's arrays, without a Flower run.

        Its `configure_train` does so first; it is stopped before it draws nodes and makes
        messages, which is done elsewhere.
        """
        method = getattr(type(self.strategy), "configure_train", None)
        if self.strategy is None or method is flower.FedAvg.configure_train:
            return
        try:
            with self._numbers.changing():
                self.strategy.configure_train(server_round, arrays, config, cast(Grid, NoNodes()))
        except NodesWanted:
            return
        raise asked_no_node(self.strategy, server_round)

    def aggregate(
        self, server_round: int, replies: Sequence[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate sorted replies; return (None, None) without aggregator or replies.

        Some aggregators, such as Bulyan, make nothing of too few clients. If clients were lost in
        this round, or an earlier round of the run had enough, the round's first arrays are kept.

        A server optimizer takes its step on the weights, but not on those that all clients sent as
        they got them, such as frozen ones; what BatchNorm has measured and whole numbers are
        averaged, weighted as it weights clients. A step on a running variance can make
        it negative, and then every output is NaN. Whole numbers stay whole, and those that all
        clients sent alike stay as they are; of a strategy that wraps another, if the round began
        with them, too. Other numbers come back in the dtypes that the clients sent.

        Raises
        ------
        AggregatorError
            If the strategy returns something else than arrays like the clients', or nothing though
            no client was lost, in this round or since an earlier one, or NaN or infinite numbers,
            or if its `weighted_by_key` is no metric that clients report.
        """
        if self.strategy is None or not replies:
            return None, None
        self._put_in_order(replies[0])
        # Before the strategy sees them: some of Flower's take the arrays out of the replies.
        # Noise of an outer strategy is not undone where clients may have changed what they sent.
        wraps = len(list(with_wrapped(self.strategy))) > 1
        whole = whole_numbers(replies, self._current if wraps else None)
        like = dict(next(iter(replies[0].content.array_records.values())))
        means: dict[str, Array] = {}
        if isinstance(self.strategy, _SERVER_OPTIMIZERS):
            means = means_of_measured(replies, whole, self.strategy.weighted_by_key)
            means |= unchanged(replies, self._current)
        self._warn_of_wrapped_optimizer(replies[0])
        note_use(self.strategy, self._use)
        try:
            with self._numbers.changing():
                returned = self.strategy.aggregate_train(server_round, replies)
        except InconsistentMessageReplies as error:
            if (missing := missing_weight(self.strategy, replies)) is not None:
                raise missing from error
            raise
        arrays, metrics = aggregated(returned, self.strategy, like, self.once)
        if not arrays:
            return self._arrays_before(server_round, len(replies)), metrics
        self._has_aggregated = True
        if "inexact" not in self.once and warn_of_inexact(whole):
            self.once.add("inexact")
        tensors = {
            name: without_negative_variances(name, means.get(name, array))
            for name, array in arrays.items()
        }
        check_finite(tensors, self.strategy, like, self._current or {})
        return with_whole_numbers(in_dtypes_of(like, tensors), whole), metrics

    def _arrays_before(self, server_round: int, replies: int) -> ArrayRecord:
        """Return a round's first arrays, as the strategy made nothing of its replies."""
        name, clients = type(self.strategy).__name__, counted(replies, "client")
        may_recover = self._has_aggregated or replies < self._num_asked
        if not (may_recover and self._current):
            raise AggregatorError(
                f"{name} made nothing of the weights of {clients}, so that none of them would "
                "learn; it may need more clients, or fewer that it takes for malicious"
            )
        _log.warning(
            "round %d: %s made nothing of the weights of %s; the next one begins with "
            "the same weights as this",
            server_round,
            name,
            clients,
        )
        return self._current

    def _warn_of_wrapped_optimizer(self, reply: Message) -> None:
        """Warn once if a server optimizer within another strategy steps on statistics, too.

        What the outer strategy makes of them, such as noise, must not be undone by averaging.
        """
        outer, *inner = with_wrapped(self.strategy)
        optimizer = next(
            (strategy for strategy in inner if isinstance(strategy, _SERVER_OPTIMIZERS)), None
        )
        if optimizer is None or not has_statistics(reply) or not self.once.add("statistics"):
            return
        _log.warning(
            "%s within %s takes its step on BatchNorm's statistics, too, so they are no longer the "
            "means and variances of the data; take FedAvg there, or a model without BatchNorm",
            type(optimizer).__name__,
            type(outer).__name__,
        )

    def _put_in_order(self, reply: Message) -> None:
        """Order FedAvgM's current arrays like the replies: a checkpoint does not keep the order."""
        for strategy in with_wrapped(self.strategy):
            current = getattr(strategy, "current_arrays", None)
            if not isinstance(current, ArrayRecord):
                continue
            for arrays in reply.content.array_records.values():
                if current.keys() == arrays.keys():
                    ordered = ArrayRecord({name: current[name] for name in arrays})
                    vars(strategy)["current_arrays"] = ordered

    def state(self) -> dict[str, Tensor]:
        """Return what the strategy and those it wraps keep; see `state_of` and `GivenNumbers`.

        What cannot be kept is logged once.
        """
        if self.strategy is None:
            return {}
        tensors, lost = state_of(self.strategy)
        for name in lost:
            if self.once.add(("lost", name)):
                _log.warning(
                    "checkpoints do not keep the state of %s: it is neither tensors nor JSON "
                    "values, so a resumed run starts with a new one",
                    name,
                )
        state = self._numbers.with_beginnings(tensors)
        return {f"{PREFIX}.{name}": tensor for name, tensor in state.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned, but for numbers that are now given other values.

        Raises
        ------
        AggregatorError
            If a part of the strategy, such as its accountant, refuses its state, or the checkpoint
            lacks the value that a number was given.
        """
        if self.strategy is None:
            return
        try:
            state = self._numbers.to_restore(under(PREFIX, tensors))
            with self._numbers.changing():
                restore_state(self.strategy, state)
        except RefusedStateError as error:
            raise AggregatorError(
                f"{error}; resume with the aggregator that the run began with, or start a new run"
            ) from error

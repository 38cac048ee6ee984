"""The mixing groups at a mixer, which a strategy calls as its clients."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from flwr_splitmix.description import DescriptionError, read_description
from flwr_splitmix.links.link import Clients, LinkError, Observe, Outcome
from flwr_splitmix.links.mixer.channel import MixerChannel, dictionary
from flwr_splitmix.privacy import RunAccount

log = logging.getLogger("flwr.splitmix")

REPORTED_SIZES = ("batch-size", "patches", "width", "prefix", "num-examples")
"""Sizes of the mixtures that the mixer reports."""

_MIN_SUM = 0.99
"""Rounding leaves more of the soft labels of an example, which sum to 1."""


class MixedGroups(Clients):
    """Mixing groups as clients; the mixer takes each step with the nodes behind them.

    Groups have negative indices, up to -1 for the last, unlike any client; only the mixer knows
    their members. A group that is not formed in a step, because its members did not answer,
    sends nothing in that step and stays in the round.

    Parameters
    ----------
    began
        The mixer's reply to "begin".
    nodes
        Client index -> node id, of all nodes that were sent to the mixer.
    failures
        By client index, why a node did not attach.
    channel
        The stream to the mixer.
    on_account
        Called with the mixer's account of the run, which its reply to "finish" contains; None
        without noise.
    one_class
        Whether every example has one class and labels have no noise, so that the soft labels of
        each mixed example sum to 1.

    Raises
    ------
    LinkError
        If the mixer's reply lacks a required value, or has one beyond its range.
    """

    def __init__(
        self,
        server_round: int,
        began: Mapping[str, Any],
        nodes: Mapping[int, int],
        failures: Mapping[int, str],
        observe: Observe | None,
        channel: MixerChannel,
        on_account: Callable[[RunAccount], None] | None = None,
        *,
        one_class: bool = False,
    ) -> None:
        groups = began.get("groups")
        sizes = {name: began.get(name) for name in REPORTED_SIZES}
        if type(groups) is not int or not 0 < groups <= len(nodes):
            raise LinkError("the mixer does not say how many groups it forms")
        try:
            described = read_description({**sizes, "state-round": server_round})
        except DescriptionError as error:
            raise LinkError(f"the mixer {error}") from None
        super().__init__(
            server_round, {index - groups: described for index in range(groups)}, failures, observe
        )
        self._groups = groups
        self._addressed = sorted(nodes)
        self._channel = channel
        self._on_account = on_account
        self._checks_labels = one_class
        self._note(began)

    @property
    def nodes(self) -> tuple[int, ...]:
        """Client indices of the nodes still at the mixer."""
        return tuple(client for client in self._addressed if client not in self.failures)

    @property
    def node_seconds(self) -> Mapping[int, float]:
        """Empty: only the mixer knows how long a single node takes."""
        return {}

    def _exchange(
        self, method: str, payloads: Mapping[int, Mapping[str, Any]]
    ) -> dict[int, Outcome]:
        """Take a step at the mixer; groups that were not formed have no outcome."""
        if method != "step":
            raise LinkError(f"link-via: a mixer takes training steps only, not {method!r}")
        if not payloads:
            return {}
        began = time.monotonic()
        first = next(iter(payloads.values()))
        arguments = {
            "number": first["number"],
            "progress": float(first["progress"]),
            "gradients": {
                str(group + self._groups): payload["gradient"][0]
                for group, payload in payloads.items()
                if payload["gradient"] is not None
            },
        }
        if first["plan"] is None:
            self._finished(self._channel.ask("finish", arguments))
            return {group: Outcome({}) for group in payloads}
        reply = self._channel.ask("step", arguments)
        self._note(reply)
        mixtures = dictionary(reply, "mixtures")
        seconds = time.monotonic() - began
        uploads = {
            group: _as_upload(mixtures[str(group + self._groups)])
            for group in payloads
            if str(group + self._groups) in mixtures
        }
        self._warn_of_other_labels(uploads)
        return {group: Outcome(upload, None, seconds) for group, upload in uploads.items()}

    def _warn_of_other_labels(self, uploads: Mapping[int, Mapping[str, Any]]) -> None:
        """Warn, once in a round, if nodes have labels that are not classes: a mixer omits them."""
        if not self._checks_labels:
            return
        sums = [upload["labels"][0].float().sum(-1) for upload in uploads.values()]
        if any(bool((each < _MIN_SUM).any()) for each in sums):
            self._checks_labels = False
            log.warning(
                "round %d: the labels of mixtures sum to less than 1, as nodes have labels that "
                "are not classes: pass a larger num_classes; the mixer's log says what they are",
                self.server_round,
            )

    def _finished(self, reply: Mapping[str, Any]) -> None:
        self._note(reply)
        if self._on_account is None:
            return
        try:
            account = RunAccount.from_plain(dictionary(reply, "account"))
        except ValueError as error:
            raise LinkError(f"the mixer's account of privacy cannot be read: {error}") from None
        self._on_account(account)

    def _note(self, reply: Mapping[str, Any]) -> None:
        """Record new failures, and how many privacy budgets are spent.

        The reply to "finish" does not repeat the latter.
        """
        self.spent_nodes = reply.get("spent", self.spent_nodes)
        if type(self.spent_nodes) is not int:
            raise LinkError("the mixer does not say how many nodes' budgets are spent")
        failures = dictionary(reply, "failures")
        for client in self._addressed:
            if str(client) in failures:
                self.fail(client, str(failures[str(client)]))


class NoGroups(Clients):
    """The clients of a round that the mixer refused to begin: each has failed."""

    def _exchange(
        self, method: str, payloads: Mapping[int, Mapping[str, Any]]
    ) -> dict[int, Outcome]:
        return {}


def _as_upload(mixture: Any) -> dict[str, Any]:
    """Return a mixture in the form of a client's upload, without anything else in it."""
    if not isinstance(mixture, dict):
        raise LinkError("the mixer sent a mixture that is not a dictionary")
    smashed, labels = mixture.get("smashed"), mixture.get("labels")
    if not isinstance(smashed, Tensor) or not isinstance(labels, Tensor):
        raise LinkError("the mixer sent a mixture without numbers or labels")
    return {"smashed": [smashed], "labels": [labels]}

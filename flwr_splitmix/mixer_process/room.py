"""One round at the mixer: nodes attach, uploads are mixed, and gradients are split."""

from __future__ import annotations

import logging
import math
import queue
import secrets
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flwr_splitmix.description import Description, SplitDescription
from flwr_splitmix.links import LinkError
from flwr_splitmix.links.frames.codec import MAX_BODY
from flwr_splitmix.links.frames.feedback import Feedback
from flwr_splitmix.links.mixer.service import SMALL_CALL, RefusedError
from flwr_splitmix.links.stream.clients import Changes, StreamClients
from flwr_splitmix.links.stream.line import Line
from flwr_splitmix.links.stream.server import StreamService
from flwr_splitmix.links.stream.token import Admission, TokenMint
from flwr_splitmix.mixer_process.alike import unlike
from flwr_splitmix.mixer_process.ledgers import RoundLedger, RunLedgers
from flwr_splitmix.mixer_process.opening import Opening
from flwr_splitmix.mixer_process.rules import MixerRules, draw_seed
from flwr_splitmix.mixer_process.steps import MixedSteps
from flwr_splitmix.seeding import derive_seed
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.words import are, counted, one_line

log = logging.getLogger("flwr.splitmix")

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]


class MixingRoom:
    """Answers the calls of one ServerApp's stream; see `flwr_splitmix.links.mixer.protocol`.

    Parameters
    ----------
    rules
        The operator's rules.
    ledgers
        The ledgers of the mixer's runs.
    service, mint
        Admit the nodes of the round.
    """

    def __init__(
        self, rules: MixerRules, ledgers: RunLedgers, service: StreamService, mint: TokenMint
    ) -> None:
        self._rules = rules
        self._ledgers = ledgers
        self._service = service
        self._mint = mint
        self._answers: dict[str, Answer] = {"open": self._open}
        self._admissions: dict[int, Admission] = {}
        self._lines: dict[int, Line] = {}
        self._changes: Changes = queue.SimpleQueue()
        self._failures: dict[int, str] = {}
        self._once = SeenKeys()
        # The stream may end, in another thread, during a call.
        self._lock = threading.Lock()
        self._has_ended = False
        self.longest_call = SMALL_CALL

    def answer(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the reply to a call.

        Raises
        ------
        RefusedError
            If the call is unknown or not allowed now, or its arguments are invalid.
        """
        if name not in self._answers:
            allowed = ", ".join(self._answers) or "nothing"
            raise RefusedError(
                f"a mixer does not answer {one_line(name)[:40]!r} now, but {allowed}"
            )
        try:
            return self._answers[name](arguments)
        except LinkError as error:
            raise RefusedError(str(error)) from None

    def leave(self) -> None:
        """Release the nodes, if the round has not been closed, without waiting for them."""
        with self._lock:
            self._has_ended = True
            for line in self._lines.values():
                line.end("leave", "the ServerApp has ended the round")
                line.abandon("the ServerApp has ended the round")
            self._service.close(self._admissions.values())

    def _open(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Let the nodes of a round attach; return the token of each."""
        opening = Opening.read(arguments)
        mixer, geometry = opening.mixer(), opening.smashed_geometry()
        least, size = self._rules.least_members, mixer.k
        if size < least or len(opening.nodes) < least:
            raise RefusedError(
                f"this mixer makes no mixture of fewer than {counted(least, 'member')}: it is "
                f"asked for groups of {size} out of {counted(len(opening.nodes), 'node')} (k, "
                "min-nodes)"
            )
        most = self._rules.most_ratio
        if size * most < 1 - 1e-9:
            raise RefusedError(
                f"this mixer makes no mixture of which one member has more than {most:g}, and it "
                f"is asked for groups of {size}: set k to at least {math.ceil(1 / most - 1e-9)}"
            )
        divides = mixer.cover == "partition"
        if divides and mixer.min_patches < self._rules.least_patches:
            raise RefusedError(
                f"this mixer leaves each member {counted(self._rules.least_patches, 'patch')}: "
                "set min-patches to as many"
            )
        ledger = self._ledger(opening)
        log.info(
            "round %d: %s of %s",
            opening.round,
            _described(opening.mixing),
            counted(len(opening.nodes), "node"),
        )
        # New for every stream: a token of another round, or of an earlier attempt, is not valid.
        kind = f"train {secrets.token_hex(8)}"
        with self._lock:
            if self._has_ended:
                raise RefusedError("the ServerApp has ended the round")
            for client, node in opening.clients.items():
                self._admissions[client] = self._mint.admission(node, client, opening.round, kind)
                self._lines[client] = Line(
                    partial(self._changes.put, client),
                    opening.wire_dtype,
                    seed=derive_seed(opening.seed, "wire down", client, opening.round),
                    feedback=Feedback(opening.wire_dtype) if opening.wire_feedback else None,
                )
            self._service.open({self._admissions[c]: line for c, line in self._lines.items()})
        seed = draw_seed() if self._rules.seed is None else self._rules.seed
        steps = partial(MixedSteps, seed, self._rules, opening, mixer, geometry)
        begin: Answer = partial(self._begin, opening, ledger, steps)
        self._answers = {"attach": self._attach, "begin": begin}
        admissions = self._admissions.items()
        return {
            "tokens": {str(client): self._mint.token(admission) for client, admission in admissions}
        }

    def _ledger(self, opening: Opening) -> RoundLedger | None:
        """Return the round's ledger, if its clients add noise."""
        if (request := opening.ledger) is None:
            return None
        run = self._ledgers.of(request.run, request.relation)
        return RoundLedger(run, opening.round, request.delta, request.lengths)

    def _attach(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Report the nodes still awaited; the ServerApp names those that will not come."""
        gone = arguments.get("gone")
        for client, line in self._lines.items():
            if client in self._failures or self._is_here(client):
                continue
            if line.failure is not None:
                self._failures[client] = line.failure
            elif isinstance(gone, dict) and str(client) in gone:
                self._failures[client] = one_line(str(gone[str(client)]))
            else:
                continue
            line.end("leave", one_line(self._failures[client]))
        waiting = [c for c in self._lines if c not in self._failures and not self._is_here(c)]
        return {"waiting": waiting, "failures": self._new(self._failures)}

    def _is_here(self, client: int) -> bool:
        return self._lines[client].description is not None

    def _begin(
        self,
        opening: Opening,
        ledger: RoundLedger | None,
        make_steps: Callable[[StreamClients, RoundLedger | None], MixedSteps],
        arguments: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Begin to mix with the nodes that have attached; others are left out of the round."""
        clients = self._clients(opening, ledger)
        if ledger is not None:
            ledger.begin(clients.described(SplitDescription))
        steps = make_steps(clients, ledger)
        if SMALL_CALL + steps.mixture_bytes > MAX_BODY:
            raise RefusedError("a step's mixtures would be larger than a frame may be")
        self.longest_call = SMALL_CALL + steps.gradient_bytes
        for line in self._lines.values():
            line.exact = steps.sums
        self._answers = {
            "step": partial(self._step, clients, steps),
            "finish": partial(self._finish, clients, steps, ledger),
        }
        new = self._new(clients.failures)
        return {**steps.sizes, "failures": new, "spent": steps.spent_nodes}

    def _clients(self, opening: Opening, ledger: RoundLedger | None) -> StreamClients:
        """Return the nodes that have attached and may be mixed; make the others leave."""
        failures = dict(self._failures)
        descriptions: dict[int, Description] = {}
        for client, line in self._lines.items():
            if client in failures:
                continue
            if line.description is not None:
                descriptions[client] = line.description
            else:
                failures[client] = "had not attached when the round began"
                line.end("leave", failures[client])
        failures |= self._left_apart(descriptions)
        return StreamClients(
            opening.round,
            descriptions,
            failures,
            None if ledger is None else ledger.observe,
            lines=self._lines,
            changes=self._changes,
            wire_dtype=opening.wire_dtype,
            step_timeout=opening.step_timeout,
            reattach_timeout=opening.reattach_timeout,
        )

    def _step(
        self, clients: StreamClients, steps: MixedSteps, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Take a step; return its mixtures."""
        mixtures = steps.take(arguments)
        new = self._new(clients.failures)
        return {"mixtures": mixtures, "failures": new, "spent": steps.spent_nodes}

    def _finish(
        self,
        clients: StreamClients,
        steps: MixedSteps,
        ledger: RoundLedger | None,
        arguments: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Deliver the last gradients; return the ledger's account, if there is one."""
        steps.finish(arguments)
        self._answers = {"close": partial(self._close, clients)}
        reply: dict[str, Any] = {"failures": self._new(clients.failures)}
        if ledger is not None:
            reply["account"] = ledger.finish(clients.failures).to_plain()
        return reply

    def _left_apart(self, descriptions: dict[int, Description]) -> dict[int, str]:
        """Remove the nodes that must not be mixed with the others; return the reasons by client."""
        apart = unlike(descriptions)
        for client, why in apart.items():
            log.warning("client %d is not mixed: it %s", client, why)
            del descriptions[client]
            self._lines[client].end("leave", why)
        if apart and len(descriptions) < self._rules.least_members:
            client, why = next(iter(apart.items()))
            raise RefusedError(
                f"{counted(len(descriptions), 'node')} {are(len(descriptions))} left to be mixed: "
                f"client {client} {why}"
            )
        return apart

    def _close(self, clients: StreamClients, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Notify the nodes that the round is finished."""
        self._answers = {}
        for client in clients.alive:
            self._lines[client].end("finish")
        return {}

    def _new(self, failures: Mapping[int, str]) -> dict[str, str]:
        """Return the failures not yet reported to the ServerApp."""
        return {str(client): failures[client] for client in self._once.add_all(failures)}


def _described(options: Mapping[str, Any]) -> str:
    """Describe a mixer's options, some with options of their own, for a line of the log."""
    named = (f"{key} {_value(value)}" for key, value in options.items() if key != "mixer")
    return one_line(f"{options.get('mixer')} ({', '.join(named)})")


def _value(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    return "(" + ", ".join(f"{key} {_value(each)}" for key, each in value.items()) + ")"

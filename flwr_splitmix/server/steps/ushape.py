"""The steps of a round in the U shape: messages through the trunk, gradients back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from flwr_splitmix.description import UShapeDescription
from flwr_splitmix.events import Messages, StepDone
from flwr_splitmix.finite import all_finite
from flwr_splitmix.links import Clients
from flwr_splitmix.seeding import derive_seed
from flwr_splitmix.segments.shape_errors import out_of_memory
from flwr_splitmix.server.evaluation.time_limit import TimeLimit
from flwr_splitmix.server.intake.checks import far_larger, read_each
from flwr_splitmix.server.intake.ushape import (
    MORE_MESSAGES,
    public_groups,
    read_gradients,
    read_messages,
)
from flwr_splitmix.server.segments.trunk import (
    MixingTrunkError,
    TrainedTrunk,
    TrunkForward,
    by_length,
)
from flwr_splitmix.server.steps.calibrations import Calibrations
from flwr_splitmix.server.steps.position import StepPosition
from flwr_splitmix.words import counted, one_line

log = logging.getLogger("flwr.splitmix")

Replies = Mapping[int, Mapping[str, Any]]
"""Replies of clients, by client index."""


@dataclass(frozen=True, kw_only=True)
class TrunkTraining:
    """The parts and settings common to all steps of a run.

    Parameters
    ----------
    max_length
        Most tokens that the trunk accepts; None for no limit.
    seed, num_rounds
        The run's seed and number of rounds.
    require
        Raises LinkError if too few clients are left.
    calibrations
        Counts and limits the steps for which clients may calibrate.
    """

    trunk: TrainedTrunk
    max_length: int | None
    seed: int
    num_rounds: int
    require: Callable[[Clients], None]
    calibrations: Calibrations

    @property
    def min_length(self) -> int:
        """Fewest tokens that the trunk accepts: those of an image, if it is made for images."""
        tokens = self.trunk.tokens
        return tokens if tokens is not None and tokens == self.max_length else 1


class TrunkSteps:
    """Takes the steps of one round; all methods raise LinkError if too few clients are left.

    Parameters
    ----------
    clients
        The clients of the round.
    """

    def __init__(self, training: TrunkTraining, clients: Clients) -> None:
        self.training = training
        self.clients = clients
        self._descriptions = clients.described(UShapeDescription)
        self._owed: Mapping[int, list[Tensor]] = {}

    def calibrate(self) -> None:
        """Let clients calibrate on public texts in parallel, if they must (MixGuard, Stage I)."""
        clients, calibrations = self.clients, self.training.calibrations
        needed_steps = {
            client: self._descriptions[client].calibration_steps for client in clients.alive
        }
        steps = calibrations.due(clients, needed_steps)
        if steps:
            most = counted(max(steps.values()), "step")
            log.info("clients calibrate for up to %s on public texts", most)
        limit: TimeLimit | None = None
        for number in range(max(steps.values(), default=0)):
            payloads = {c: {"number": number} for c in clients.alive if number < steps.get(c, 0)}
            if number >= calibrations.usual:  # from here on most clients wait for a few
                limit = limit or TimeLimit()
                if limit.over:
                    limit.leave_out(clients, payloads, "calibration")
                    self.training.require(clients)
                    break
            for client in payloads:
                calibrations.count(client)
            replies = clients.call("encode_public", payloads, phase="calibrate")
            looked = self._look_at_public(replies)
            clients.call(
                "decode_public",
                {c: {"number": number, "public": outputs} for c, outputs in looked.items()},
                phase="calibrate",
            )
            self.training.require(clients)

    def take(self, position: StepPosition) -> StepDone:
        """Pass the clients' messages through the trunk, learn, and keep the gradients they get.

        Clients whose messages, outputs or gradients cannot be used leave the round.
        """
        training, clients = self.training, self.clients
        replies = self._encode(position)
        messages = self._read(replies)
        outputs = self._forward(messages, position)
        public = self._look_at_public({c: replies[c] for c in outputs if "public" in replies[c]})
        answers = clients.call(
            "decode",
            {
                c: {"number": position.number, "outputs": outputs[c], "public": public.get(c)}
                for c in outputs
            },
        )
        read = read_each(clients, answers, partial(_gradients_for, messages))
        training.require(clients)
        # A client that trains only its tail returns no gradients and needs none.
        returned = {client: gradients for client, gradients in read.items() if gradients}
        owed = self._learn(returned, messages, position)
        if owed is None:
            owed = returned = {}
        self._owed = owed
        for client in returned.keys() - self._owed.keys():
            clients.fail(client, "its messages or gradients overflow in the trunk")
        training.require(clients)
        return StepDone(
            position.server_round,
            position.number,
            messages,
            self._owed,
            outputs=outputs,
            returned=returned,
        )

    def _learn(
        self,
        returned: Mapping[int, Sequence[Tensor]],
        messages: Mapping[int, Messages],
        position: StepPosition,
    ) -> dict[int, list[Tensor]] | None:
        """Let the trunk learn, and return the gradients at the messages.

        None if there was no memory for it: then nothing is learned from this step, and the client
        with by far the most numbers is left out.
        """
        training = self.training
        try:
            return training.trunk.learn(returned, position.progress, training.num_rounds)
        except (RuntimeError, MemoryError) as error:
            training.trunk.forget_pass()
            self._leave_out_largest(messages, error)
            return None

    def finish(self, position: StepPosition) -> None:
        """Deliver the last gradients; `position` is behind the last step."""
        self._encode(position, last=True)

    def look(self, replies: Replies) -> dict[int, list[Tensor]]:
        """Pass messages through the trunk, which does not train on them."""
        return self._pass(self.training.trunk.look, self._read(replies))

    def _encode(self, position: StepPosition, *, last: bool = False) -> dict[int, dict[str, Any]]:
        payloads = {
            client: {
                "number": position.number,
                "progress": position.progress,
                "gradient": self._owed.get(client),
                "last": last,
            }
            for client in self.clients.alive
        }
        return self.clients.call("encode", payloads)

    def _read(self, replies: Replies) -> dict[int, Messages]:
        """Read every client's messages; clients whose messages are invalid leave the round."""
        training, clients = self.training, self.clients

        def read(client: int, reply: Mapping[str, Any]) -> Messages:
            description = self._descriptions[client]
            return read_messages(
                reply,
                description.width,
                training.trunk.input_dtype,
                # The rest of a test set is joined with the batch before it.
                batch=description.batch_size + description.least_batch - 1,
                min_length=training.min_length,
                max_length=training.max_length,
            )

        messages = read_each(clients, replies, read)
        counts = {
            client: len(client_messages.hidden) for client, client_messages in messages.items()
        }
        for client, usual in far_larger(counts, MORE_MESSAGES).items():
            clients.fail(
                client,
                f"sent {counts[client]} messages for a batch, more than {MORE_MESSAGES} times the "
                f"median client's {usual}",
            )
            del messages[client]
        training.require(clients)
        return messages

    def _pass(
        self, forward: TrunkForward[Messages], messages: Mapping[int, Messages]
    ) -> dict[int, list[Tensor]]:
        """Pass messages through the trunk, without those that it cannot take.

        If memory runs out, the client with by far the most numbers is left out; otherwise, clients
        with a number of tokens on which the trunk fails. If there are none, or it fails on every
        number, the error comes from the trunk or from what all clients send.
        """
        while True:
            try:
                return forward(messages)
            except MixingTrunkError:
                raise
            except Exception as error:  # an own trunk may raise any
                if out_of_memory(error):
                    left_out = {self._leave_out_largest(messages, error)}
                else:
                    left_out = self._leave_out_lengths(forward, messages, error)
            messages = {c: m for c, m in messages.items() if c not in left_out}

    def _leave_out_lengths(
        self, forward: TrunkForward[Messages], messages: Mapping[int, Messages], error: Exception
    ) -> set[int]:
        """Leave out clients whose number of tokens the trunk rejects; raise if it rejects all."""
        groups = by_length(messages)
        wrong = [] if len(groups) == 1 else [g for g in groups if _fails(forward, messages, g)]
        if not 0 < len(wrong) < len(groups):
            raise error
        left_out = {client for group in wrong for client in group}
        for client in sorted(left_out):
            tokens = counted(messages[client].mask.shape[1], "token")
            self.clients.fail(
                client,
                f"the trunk does not take its messages of {tokens}, but those of other clients; "
                "cut head and tail from the trunk's model, or send texts of a length that it takes",
            )
        log.warning("the trunk failed on messages: %s", one_line(str(error)))
        self.training.require(self.clients)
        return left_out

    def _leave_out_largest(self, messages: Mapping[int, Messages], error: Exception) -> int:
        """Leave out the client for which there was no memory; raise any other error."""
        sizes = {c: sum(h.numel() for h in m.hidden) for c, m in messages.items()}
        if not out_of_memory(error) or not far_larger(sizes, 2):
            raise error
        largest = max(sizes, key=sizes.__getitem__)
        number, (examples, tokens) = len(messages[largest].hidden), messages[largest].mask.shape
        self.clients.fail(
            largest,
            f"the trunk has no memory for its {counted(number, 'message')} of "
            f"{counted(examples, 'example')} of {counted(tokens, 'token')}; a smaller batch-size "
            "needs less",
        )
        self.training.require(self.clients)
        return largest

    def _forward(
        self, messages: Mapping[int, Messages], position: StepPosition
    ) -> dict[int, list[Tensor]]:
        """Pass messages through the trunk, leaving out clients whose outputs overflow.

        Raises
        ------
        ValueError
            If weights of the trunk itself are NaN or infinite: no client is to blame.
        """
        training, clients = self.training, self.clients
        seed = derive_seed(training.seed, "trunk", position.server_round, position.number)
        outputs = self._pass(partial(training.trunk.forward, seed=seed), messages)
        if all_finite([part for parts in outputs.values() for part in parts]):
            return outputs
        training.trunk.check_weights()
        for client, parts in outputs.items():
            if not all_finite(parts):
                clients.fail(client, "its messages overflow in the trunk")
        training.require(clients)
        return training.trunk.forward(
            {c: m for c, m in messages.items() if c not in clients.failures}, seed
        )

    def _look_at_public(self, replies: Replies) -> dict[int, list[list[Tensor]]]:
        """Return the trunk's outputs for each group of public texts."""
        groups = read_each(self.clients, replies, lambda _, reply: public_groups(reply))
        outputs_of: dict[int, list[list[Tensor]]] = {client: [] for client in groups}
        for position in range(max(map(len, groups.values()), default=0)):
            part = {c: group[position] for c, group in groups.items() if position < len(group)}
            for client, outputs in self.look(part).items():
                outputs_of[client].append(outputs)
        return {c: out for c, out in outputs_of.items() if c not in self.clients.failures}


def _fails(
    forward: TrunkForward[Messages], messages: Mapping[int, Messages], clients: Sequence[int]
) -> bool:
    """Return whether the trunk fails on the messages of some clients alone, memory aside."""
    try:
        forward({client: messages[client] for client in clients})
    except MixingTrunkError:
        raise
    except Exception as error:  # an own trunk may raise any
        return not out_of_memory(error)
    return False


def _gradients_for(
    messages: Mapping[int, Messages], client: int, reply: Mapping[str, Any]
) -> list[Tensor]:
    return read_gradients(reply, messages[client])

"""The U shape: heads, tails, data and labels with the clients, the trunk at the server."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Unpack

from flwr.serverapp import strategy as flower
from torch import Tensor, nn

from flwr_splitmix.clients import Client, UShapeClient
from flwr_splitmix.device import Precision
from flwr_splitmix.events import EvaluationResult
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.links import Clients, MixerLink
from flwr_splitmix.optimizers import OptimizerFactory
from flwr_splitmix.schedule import Schedule
from flwr_splitmix.segments.modules import check_takes_mask
from flwr_splitmix.server.evaluation.ushape import evaluate_in_u_shape
from flwr_splitmix.server.intake.descriptions import agree_on_batches, check_hiding
from flwr_splitmix.server.naming import evaluated_without
from flwr_splitmix.server.options import RoundOptions, UShapeOptions, check_counts, check_names
from flwr_splitmix.server.record.same_protection import PROTECTION, facts_of_hidings
from flwr_splitmix.server.rounds import RunState, TrainingLoop
from flwr_splitmix.server.segments.trunk import TrainedTrunk
from flwr_splitmix.server.steps.round_length import Agreement
from flwr_splitmix.server.steps.ushape import TrunkSteps, TrunkTraining
from flwr_splitmix.server.steps.ushape_round import UShapeRound, UShapeState
from flwr_splitmix.server.warnings.clients import ClientWarnings
from flwr_splitmix.server.warnings.untrained import warn_if_frozen

log = logging.getLogger("flwr.splitmix")


class UShapeStrategy(TrainingLoop):
    """Split learning with the loss at the client: two exchanges per step.

    `encode` brings the clients' messages to the trunk. `decode` brings the trunk's outputs to the
    clients, which answer with gradients. The gradients that the trunk's backward pass returns to
    the heads travel with the next `encode`. The clients decide what the messages contain.

    Parameters
    ----------
    trunk
        (hidden states (b, T, d), mask (b, T)) to hidden states (b, T, d).
    optimizer, schedule
        For the trunk; by default AdamW (lr 1e-3, weight decay 0.05) with a cosine schedule. The
        trunk's gradient is the mean over the clients of a step.
    device, precision
        For the trunk; "auto" chooses, "placed" leaves a trunk where it is.
    width
        d of the hidden states; None uses the trunk's `width`, or else that of most clients.
    max_length
        Most tokens that the trunk accepts; None uses the trunk's `max_length`, or else no limit.
    **options
        Those of every shape; see `TrainingLoop` and `LoopSetup`.

    Attributes
    ----------
    averages
        Whether the class averages heads and tails; see `TrainingLoop`.
    hiding
        How the strategy's clients hide their data; the server only reads facts about the method.
    rows
        The metrics of each finished round (loss, accuracy, bytes, ...), by the names of the columns
        of `metrics.parquet`.

    Raises
    ------
    TypeError
        If an option is unknown, or an object of another kind.
    ValueError
        If an option is outside its range, the aggregator cannot be used, or the link is a
        `MixerLink`.

    Source: MixGuard, section 2.2; split learning's U shape (Vepakomma et al., 2018).
    """

    passed_on: ClassVar[Collection[str]] = UShapeOptions.__annotations__
    hiding: ClassVar[type[Hiding]] = Hiding

    def __init__(
        self,
        trunk: nn.Module,
        *,
        aggregator: flower.Strategy | None = None,
        optimizer: OptimizerFactory | None = None,
        schedule: Schedule | None = None,
        device: str = "auto",
        precision: Precision = "auto",
        width: int | None = None,
        max_length: int | None = None,
        steps_per_round: int | None = None,
        epochs_per_round: int = 1,
        min_nodes: int = 1,
        **options: Unpack[RoundOptions],
    ) -> None:
        hiding = f"UShapeClient(hiding={self.hiding.__name__}(...))"
        elsewhere: dict[str, type] = {"UShapeClient(...)": UShapeClient, hiding: self.hiding}
        check_names(type(self), options, elsewhere)
        check_counts(width=width, max_length=max_length)
        if isinstance(options.get("link"), MixerLink):
            raise ValueError(
                f"{type(self).__name__} has the U shape, in which the server mixes nothing that a "
                "third party could mix for it: link-via is for CutMixSL and MixupSL; give it a "
                "StreamLink"
            )
        super().__init__(
            aggregator=aggregator,
            steps_per_round=steps_per_round,
            epochs_per_round=epochs_per_round,
            min_nodes=min_nodes,
            **options,
        )
        self.trunk = TrainedTrunk(
            trunk, optimizer=optimizer, schedule=schedule, device=device, precision=precision
        )
        self.width = width or _whole_number(trunk, "width")
        self.max_length = max_length or _whole_number(trunk, "max_length")

    @property
    def run_state(self) -> RunState[UShapeState]:
        """The current or last run; LinkError if there was none."""
        return super().run_state

    def prepare(self, clients: Sequence[Client] | None) -> None:
        """Check the trunk, and clients in this process.

        Raises
        ------
        TypeError
            If the trunk takes no mask.
        ValueError
            If clients in this process share weights with the trunk, or a hiding with each other,
            or an epsilon rests on the trunk (`Hiding.apart`) and it mixes a batch's examples.
        """
        check_takes_mask("trunk", self.trunk.module)
        self.trunk.check_shares_no_weights(clients or ())
        warn_if_frozen("trunk", self.trunk.module, clients or (), "heads and tails")
        _check_own_hidings(clients or ())
        client_parts = [c.hiding.apart for c in clients or () if isinstance(c, UShapeClient)]
        self.trunk.require_apart(
            any("trunk" in apart for apart in (self.hiding.apart, *client_parts))
        )

    def new_shape_state(self, before: UShapeState | None) -> UShapeState:
        """Return a new state: clients report their needs anew, even those of the last `fit`."""
        return UShapeState(
            ClientWarnings("head, tail and optimizer", averages=self.aggregator.averages)
        )

    def warn_if_trained(self) -> None:
        """Log, once, if the trunk has been trained, although a new run begins."""
        self.trunk.warn_if_trained(type(self).__name__)

    @property
    def keeps_ledger(self) -> bool:
        """Whether the clients account for an epsilon."""
        return self.hiding.accounts

    def agree(self, clients: Clients) -> int:
        """Exclude clients that do not fit the trunk or the hiding; return the round's steps."""
        batches = self._agree(clients)
        if self.aggregator.averages:
            self.run_state.shape.frozen.compare(clients)
        agreement = Agreement(batches, self._length(batches))
        self.run_state.agreement = agreement
        return agreement.length.steps

    def train_round(self, clients: Clients, server_round: int) -> int:
        """Train for one round and return the number of steps.

        Clients that must calibrate (MixGuard, Stage I) do so first, in parallel.
        """
        agreement = self._agreement(Agreement)
        client_warnings = self.run_state.shape.client_warnings
        client_warnings.on_round(clients, agreement, self.last_trained_round)
        steps = UShapeRound(self._steps(clients), server_round, agreement.length.steps)
        num_steps = steps.take(self.audience.on_step)
        steps.finish()
        return num_steps

    def _steps(self, clients: Clients) -> TrunkSteps:
        """Return the object that takes a round's steps."""
        run = self.run_state
        training = TrunkTraining(
            trunk=self.trunk,
            max_length=self.max_length,
            seed=run.draw_seed,
            num_rounds=run.num_rounds,
            require=self.require,
            calibrations=run.shape.calibrations,
        )
        return TrunkSteps(training, clients)

    def _agree(self, clients: Clients) -> int:
        """Return the mean number of full batches; clients that do not fit are left out."""
        check_hiding(clients, self.hiding, type(self).__name__)
        return agree_on_batches(clients, self.width)

    def evaluate_round(self, clients: Clients) -> EvaluationResult | None:
        """Have each client score its own model's outputs, over the link."""
        if self.evaluation == "none":
            return None
        self._agree(clients)
        result = evaluate_in_u_shape(
            clients, self.evaluation, self._steps(clients).look, self.run_state.shape.scores
        )
        if clients.failures:
            log.warning("%s", evaluated_without(clients, any_left=result is not None))
        return result

    @property
    def facts_to_keep(self) -> dict[str, Any]:
        """Facts in a checkpoint about the run and the hidings of clients of this process."""
        facts, clients = super().facts_to_keep, self.run_state.clients
        if clients is not None:  # nodes make their hidings from the run's configuration
            facts[PROTECTION] = facts_of_hidings(clients)
        return facts

    def server_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the trunk and its optimizer, and the steps of clients' calibrations."""
        tensors, meta = self.trunk.state()
        return tensors, meta | {"calibrations": self.run_state.shape.calibrations.state()}

    def restore_server(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from `server_state`."""
        self.trunk.restore(tensors, meta)
        self.run_state.shape.calibrations.restore(meta["calibrations"])

    def summary(self) -> None:
        """Log the strategy's components."""
        log.info(
            "%s: heads and tails %s, trunk on %s",
            type(self).__name__,
            self._segments_after_round,
            self.trunk.device_and_dtype,
        )
        if self.hiding.warning:
            log.warning(self.hiding.warning)


def _check_own_hidings(clients: Sequence[Client]) -> None:
    """Refuse clients that share a hiding, which keeps one client's secrets and ledger."""
    owners: dict[int, int] = {}
    for index, client in enumerate(clients):
        if not isinstance(client, UShapeClient):
            continue
        first = owners.setdefault(id(client.hiding), index)
        if first != index:
            kind = type(client.hiding).__name__
            raise ValueError(
                f"clients {first} and {index} share one hiding, a {kind}, which keeps the state of "
                f"one client: make one for each, hiding={kind}(...)"
            )


def _whole_number(trunk: nn.Module, name: str) -> int | None:
    value = getattr(trunk, name, None)
    return value if isinstance(value, int) else None

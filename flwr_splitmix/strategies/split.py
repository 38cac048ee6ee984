"""The L shape: lower segments with the clients, a mixer and the upper segment at the server."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Unpack

from flwr.serverapp import strategy as flower
from torch import Tensor, nn

from flwr_splitmix.clients import Client, PrivacyBudget, SplitClient
from flwr_splitmix.device import Precision
from flwr_splitmix.events import EvaluationResult
from flwr_splitmix.labels import TargetLoss
from flwr_splitmix.links import Clients, MixerLink
from flwr_splitmix.mixers import Mixer
from flwr_splitmix.observers import LedgerElsewhere, PrivacyLedger
from flwr_splitmix.optimizers import OptimizerFactory
from flwr_splitmix.privacy import GaussianNoise, Relation
from flwr_splitmix.schedule import Schedule
from flwr_splitmix.server.evaluation.split import evaluate_clients
from flwr_splitmix.server.intake.descriptions import agree_on_shape
from flwr_splitmix.server.intake.split import LabelRules, UploadIntake
from flwr_splitmix.server.mixer_request import MixerRequest, mix_elsewhere
from flwr_splitmix.server.options import (
    RoundOptions,
    SplitOptions,
    check_labels,
    check_names,
    check_observers,
    check_positions,
)
from flwr_splitmix.server.own_mixing import MixingSetup, introduce
from flwr_splitmix.server.record.recording import Recording
from flwr_splitmix.server.record.same_protection import PROTECTION, digest, facts_of_mixer
from flwr_splitmix.server.rounds import RunState, TrainingLoop
from flwr_splitmix.server.segments.upper import ServerUpdate, TrainedUpper
from flwr_splitmix.server.steps.pace import Pace
from flwr_splitmix.server.steps.part_count import PartCount, PartsAsked, check_loss
from flwr_splitmix.server.steps.planner import Planner
from flwr_splitmix.server.steps.round_length import ShapeAgreement
from flwr_splitmix.server.steps.split_round import LShapeState, SplitRound
from flwr_splitmix.server.steps.training import SplitTraining
from flwr_splitmix.server.warnings.clients import ClientWarnings
from flwr_splitmix.server.warnings.mixer import MixerWarnings
from flwr_splitmix.server.warnings.untrained import warn_if_frozen
from flwr_splitmix.values import check_kind

log = logging.getLogger("flwr.splitmix")

_ELSEWHERE: dict[str, type] = {
    "SplitClient(...)": SplitClient,
    "SplitClient(privacy=PrivacyBudget(...))": PrivacyBudget,
    "noise=GaussianNoise(...)": GaussianNoise,
    "pace=Pace(...)": Pace,
}
"""Other places of options that a strategy of the L shape does not take itself."""


class SplitStrategy(TrainingLoop):
    """Split learning as a Flower strategy: messages carry the round, a link carries the steps.

    Parameters
    ----------
    upper
        The upper segment: smashed data (b, prefix + N, d) to logits (b, L).
    mixer
        How smashed data are mixed between clients and upper segment; None mixes nothing.
    num_classes
        L; by default the upper segment's `num_classes`.
    multi_label
        Whether an example may have any number of the labels: they are int64 (b, L) of 0 and 1, the
        loss is the binary cross-entropy, without noise on labels; see `TrainedUpper`.
    loss
        Loss to train with, for example with class weights; None for the cross-entropy. It sees all
        groups as one batch with `server_update` "sum" or "mean", one group at a time with
        "sequential". See `TrainedUpper`.
    optimizer, schedule
        For the upper segment; by default AdamW (lr 1e-3, weight decay 0.05) with a cosine schedule.
    server_update
        "sequential" (one optimizer step per group), "sum" or "mean" (one joint step).
    device, precision
        For the upper segment; "auto" chooses, "placed" leaves an upper segment where it is.
    min_nodes
        Fewest clients: with fewer in a round, the run ends with an error. By default what the mixer
        needs.
    link
        None joins a simulation's Ray session or, with SuperNodes on this machine, opens a stream.
        A `MixerLink` leaves plan, merge and split to a third party. `fit` uses none.
    labels
        Each client's labels, by client index: int64 (examples,), or (examples, L) if they are
        multi-label. For strategies whose clients send ids instead of labels.
    noise
        Clipping and Gaussian noise, applied by every client to what it sends; None for no noise.
        With noise, a ledger records what each client has spent.
    delta, trusted_mixer, relation
        For the ledger; see `PrivacyLedger`. With a `MixerLink` the mixer keeps it, and the server
        sees only sums whatever the value of `trusted_mixer`.
    pace
        How to treat clients of unequal speed; None waits for all.
    micro_batches
        Number of parts that each batch is cut into, so that one part is uploaded while another is
        processed and returned; or "auto". For joint server updates; see `PartCount`. If not 1, an
        upper segment and a `loss` whose results for an example depend on others in its batch are
        refused: by a true attribute `across_batch`, or by a trial before the first part, which a
        false one prevents.
    **options
        Those of every shape; see `TrainingLoop` and `LoopSetup`.

    Attributes
    ----------
    averages
        Whether the class averages lower segments; see `TrainingLoop`.
    needs_noise
        Whether the strategy requires `noise`.
    needs_labels
        Whether the strategy requires `labels`.
    rows
        The metrics of each finished round (loss, accuracy, bytes, ...), by the names of the columns
        of `metrics.parquet`.

    Raises
    ------
    TypeError
        If an option is unknown, or an object of another kind.
    ValueError
        If an option is outside its range, the aggregator cannot be used, or the upper segment does
        not fit the mixer.
    """

    passed_on: ClassVar[Collection[str]] = SplitOptions.__annotations__
    needs_noise: ClassVar[bool] = False
    needs_labels: ClassVar[bool] = False

    def __init__(
        self,
        upper: nn.Module,
        *,
        mixer: Mixer | None = None,
        aggregator: flower.Strategy | None = None,
        num_classes: int | None = None,
        multi_label: bool = False,
        loss: TargetLoss | None = None,
        optimizer: OptimizerFactory | None = None,
        schedule: Schedule | None = None,
        server_update: ServerUpdate = "sequential",
        device: str = "auto",
        precision: Precision = "auto",
        steps_per_round: int | None = None,
        epochs_per_round: int = 1,
        min_nodes: int | None = None,
        labels: Sequence[Tensor] | None = None,
        noise: GaussianNoise | None = None,
        delta: float = 1e-5,
        trusted_mixer: bool = False,
        relation: Relation = "replace",
        pace: Pace | None = None,
        micro_batches: PartsAsked = 1,
        **options: Unpack[RoundOptions],
    ) -> None:
        check_names(type(self), options, _ELSEWHERE)
        check_labels(labels)
        if pace is not None:
            check_kind("pace", pace, Pace, 'a Pace, such as Pace(straggler="skip")')
        check_observers(options.get("observers", ()))
        mixing = MixingSetup.of(
            mixer,
            noise,
            options.get("link"),
            delta=delta,
            relation=relation,
            trusted_mixer=trusted_mixer,
        )
        mixing.check_noise(type(self), needed=self.needs_noise, multi_label=multi_label)
        check_positions(type(self), upper, mixing.mixer)
        check_loss(loss, micro_batches)
        self.ledger, self.ledger_elsewhere = mixing.ledger, mixing.ledger_elsewhere
        self._min_nodes_given = min_nodes is not None
        self.upper = TrainedUpper(
            upper,
            num_classes=num_classes,
            multi_label=multi_label,
            loss=loss,
            optimizer=optimizer,
            schedule=schedule,
            server_update=server_update,
            device=device,
            precision=precision,
        )
        recording = Recording(
            labels=self.upper.num_classes if multi_label else 1,
            mixtures=mixing.counts_mixtures,
            protection=digest(mixing.mixer) if self.keeps_ledger else None,
        )
        super().__init__(
            recording,
            aggregator=aggregator,
            steps_per_round=steps_per_round,
            epochs_per_round=epochs_per_round,
            min_nodes=mixing.mixer.min_members if min_nodes is None else min_nodes,
            **mixing.observed(options),
        )
        self.labels = labels
        self.pace = pace or Pace()
        self.micro_batches = micro_batches
        parts = PartCount(micro_batches)
        self.mixer, self._mixer_request = self._mixer_and_request(mixing.mixer)
        self.pace.check(self.mixer, server_update)
        parts.check(self.mixer, server_update, upper, self.pace)
        rules = LabelRules(self.upper.num_classes, multi_label)
        self._intake = UploadIntake(rules, self.upper.input_dtype, labels)

    @property
    def run_state(self) -> RunState[LShapeState]:
        """The current or last run; LinkError if there was none."""
        return super().run_state

    def _mixer_and_request(self, mixer: Mixer) -> tuple[Mixer, MixerRequest | None]:
        """Return the mixer at the server and, if a third party mixes, the request to that."""
        if not isinstance(self.link, MixerLink):
            return mixer, None
        return mix_elsewhere(
            self.link,
            mixer,
            self.upper,
            lengths=(self.steps_per_round, self.epochs_per_round),
            averages=self.aggregator.averages,
            evaluation=self.evaluation,
            ledger=self.ledger_elsewhere,
            pace=self.pace,
            parts=self.micro_batches,
        )

    def prepare(self, clients: Sequence[Client] | None) -> None:
        """Check clients; make those of this process known to each other if raw inputs are mixed.

        Raises
        ------
        ValueError
            If the mixer mixes raw inputs but the clients are behind a link, or if the clients are
            in this process but the mixer is a third party, or they share weights with the upper
            segment.
        """
        introduce(type(self).__name__, self.mixer, clients)
        if self._mixer_request is not None:
            self._mixer_request.make()
        self.upper.check_shares_no_weights(clients or ())
        warn_if_frozen("upper segment", self.upper.module, clients or (), "lower segments")

    def new_shape_state(self, before: LShapeState | None) -> LShapeState:
        """Return a state with new warnings, and the earlier seconds of clients that continue."""
        mixer_warnings = MixerWarnings(self.mixer, self.min_nodes, noisy=self.keeps_ledger)
        of_clients = ClientWarnings(
            "lower segment and optimizer", averages=self.aggregator.averages
        )
        if before is None:
            return LShapeState(mixer_warnings, of_clients, PartCount(self.micro_batches))
        return replace(before, mixer_warnings=mixer_warnings, client_warnings=of_clients)

    def warn_if_trained(self) -> None:
        """Log, once, if the upper segment has been trained, although a new run begins."""
        self.upper.warn_if_trained(type(self).__name__)

    @property
    def keeps_ledger(self) -> bool:
        """Whether noise is used, so that a ledger is kept, here or at a mixer."""
        return self._any_ledger is not None

    @property
    def _any_ledger(self) -> PrivacyLedger | LedgerElsewhere | None:
        return self.ledger or self.ledger_elsewhere

    def epsilons(self) -> Mapping[int, float]:
        """Return each client's epsilon; empty without a ledger here: a mixer reports no clients."""
        return {} if self.ledger is None else self.ledger.epsilons

    def epsilon(self) -> float | None:
        """Return the largest epsilon of any client, which a mixer reports too."""
        return super().epsilon() if (account := self.ledger_elsewhere) is None else account.epsilon

    def _minimum_phrase(self, option: str) -> str:
        """Return, for a message, why a round needs `min_nodes` clients: an option, or the mixer."""
        if self._min_nodes_given or self.min_nodes == 1:
            return super()._minimum_phrase(option)
        return f"{self.mixer} needs at least {self.min_nodes} (its min_members)"

    def agree(self, clients: Clients) -> int:
        """Exclude clients whose smashed data have another shape; return the round's steps."""
        upper = self.upper
        shape, batches = agree_on_shape(clients, upper.geometry, upper.num_classes, upper.takes)
        agreement = ShapeAgreement(batches, self._length(batches), shape)
        self.run_state.agreement = agreement
        return agreement.length.steps

    def train_round(self, clients: Clients, server_round: int) -> int:
        """Train for one round and return the number of steps.

        A step is one exchange, or one per part of its batch; see `server.steps.split` and
        `server.steps.micro_batches`.
        Clients whose privacy budget is spent take part in no further step; if fewer than
        `min_nodes` others are left, the round ends early, and the run ends after it.
        """
        agreement, run = self._agreement(ShapeAgreement), self.run_state
        run.shape.client_warnings.on_round(clients, agreement, self.last_trained_round)
        steps = SplitRound.begin(
            self._training(),
            clients,
            Planner(self.mixer, agreement.shape, agreement.length, run.draw_seed, server_round),
            run.shape,
        )
        num_steps = steps.take(self.audience.on_step)
        run.stop_reason = steps.stop_reason or run.stop_reason
        steps.finish(num_steps)
        return num_steps

    def _training(self) -> SplitTraining:
        """Return the parts and settings common to all steps of the run."""
        return SplitTraining(
            mixer=self.mixer,
            upper=self.upper,
            intake=self._intake,
            pace=self.pace,
            min_nodes=self.min_nodes,
            seed=self.run_state.draw_seed,
            num_rounds=self.run_state.num_rounds,
            require=self.require,
        )

    def evaluate_round(self, clients: Clients) -> EvaluationResult | None:
        """Score each client's lower segment with the upper segment, over the link."""
        if self.evaluation == "none":
            return None
        return evaluate_clients(clients, self.upper, self.evaluation)

    @property
    def facts_to_keep(self) -> dict[str, Any]:
        """Facts in a checkpoint about the run and the mixer's protection."""
        return {**super().facts_to_keep, PROTECTION: facts_of_mixer(self.mixer)}

    def server_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the upper segment and its optimizer."""
        return self.upper.state()

    def restore_server(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from `server_state`."""
        self.upper.restore(tensors, meta)

    def check_clients(self, n: int) -> None:
        """Raise an error if a mixing group is larger than a round."""
        self.mixer.check_clients(n)

    def summary(self) -> None:
        """Log the strategy's components."""
        log.info(
            "%s: mixer %s, lower segments %s, upper segment on %s, %s update",
            type(self).__name__,
            self.mixer,
            self._segments_after_round,
            self.upper.device_and_dtype,
            self.upper.server_update,
        )
        if (ledger := self._any_ledger) is not None:
            where = "" if self.ledger_elsewhere is None else " by the mixer"
            log.info("noise: the ledger is kept%s at delta %g", where, ledger.delta)

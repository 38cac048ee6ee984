"""The upper segment at the server: forward, loss, backward, optimizer."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from flwr_splitmix.device import Precision, autocast
from flwr_splitmix.labels import Tally, TargetLoss, loss_dtype, loss_on, tally, target_loss
from flwr_splitmix.mixers import Mixed, SmashedShape
from flwr_splitmix.optimizers import OptimizerFactory
from flwr_splitmix.schedule import Schedule
from flwr_splitmix.seeding import seeded_draws
from flwr_splitmix.segments.batch_norm import enough_values
from flwr_splitmix.segments.buffers import watched_in_parts
from flwr_splitmix.segments.geometry import geometry_of
from flwr_splitmix.server.segments.base import TrainedSegment
from flwr_splitmix.server.segments.cut_gradients import CutGradients, Learned
from flwr_splitmix.server.segments.fitting import fitting
from flwr_splitmix.server.segments.part_trial import check_in_parts
from flwr_splitmix.values import check_choice, check_truth, whole_number
from flwr_splitmix.words import with_article

log = logging.getLogger("flwr.splitmix")

_REMEDY = "cut both segments from one model, and give all clients inputs of its size"

ServerUpdate = Literal["sequential", "sum", "mean"]


class TrainedUpper(TrainedSegment):
    """An upper segment with its optimizer and schedule.

    Parameters
    ----------
    module
        Smashed data (b, prefix + N, d) to logits (b, L).
    num_classes
        L; None uses the module's `num_classes`.
    multi_label
        Whether an example may have any number of the L labels: the loss is then the binary
        cross-entropy of each label, and the mean over labels.
    loss
        Loss to train with instead, such as `nn.CrossEntropyLoss(weight, reduction="none")`: logits
        (b, L) and targets (b, L), which add up to 1 unless they are multi-label, to losses (b,). A
        module is moved to the device; it is not trained, and a state of its own is not in
        checkpoints. Scores are not affected. What it computes may depend on the whole batch, if
        that does not arrive in parts: of all groups with `server_update` "sum" or "mean", of one
        with "sequential".
    server_update
        "sequential": one optimizer step per group, in random order. "sum" and "mean": one joint
        step on the sum or the mean of the groups' losses, all groups as one batch. In every mode
        the cut-layer gradient is that of a group's own batch-mean loss.
    optimizer, schedule, device, precision
        See `TrainedSegment`.

    Attributes
    ----------
    geometry
        Shape of the smashed data that the module expects, if it has one.
    waits
        Whether a step may wait for the device to check its gradients for overflow; True on a CPU.
        Elsewhere a step that overflows is taken with gradients of 0.
    """

    name: ClassVar[str] = "upper"

    def __init__(
        self,
        module: nn.Module,
        *,
        num_classes: int | None = None,
        multi_label: bool = False,
        loss: TargetLoss | None = None,
        optimizer: OptimizerFactory | None = None,
        schedule: Schedule | None = None,
        server_update: ServerUpdate = "sequential",
        device: str = "auto",
        precision: Precision = "auto",
    ) -> None:
        check_choice("server_update", server_update, get_args(ServerUpdate))
        check_truth("multi_label", multi_label)
        classes = getattr(module, "num_classes", None) if num_classes is None else num_classes
        if classes is None:
            raise ValueError("the upper segment has no num_classes; pass num_classes=")
        if (classes := whole_number("num_classes", classes)) < 2:
            raise ValueError(
                f"num_classes is {classes}; the upper segment needs at least 2: for two classes it "
                "returns two logits, and a regression needs the U shape, with a loss of your own"
            )
        super().__init__(
            module, optimizer=optimizer, schedule=schedule, device=device, precision=precision
        )
        self.num_classes = classes
        self.multi_label = multi_label
        self.loss = loss_on(loss, self.device)
        self._loss_began = _tensors_of(self.loss) if isinstance(self.loss, nn.Module) else None
        self.geometry = geometry_of("upper", module)
        self.server_update = server_update
        self.waits = self.device.type == "cpu"
        self._gradients = CutGradients(self.device)
        self._tried_in_parts = False

    def learn(
        self, mixed: Mixed, progress: float, num_rounds: int, seed: int, rng: np.random.Generator
    ) -> Learned:
        """Update the segment on one step's mixture.

        Parameters
        ----------
        mixed
            The mixtures of all groups, one below the other, with their targets.
        progress, num_rounds
            Global progress in rounds, for the schedule.
        seed
            For dropout and the like.
        rng
            Draws the order of sequential updates.

        Returns
        -------
        The losses, and the gradient at the mixtures, of their shape.
        """
        groups = len(mixed.sources)
        batch = len(mixed.smashed) // groups
        self.module.train()
        with seeded_draws(self.device, seed):
            if self.server_update != "sequential" or groups == 1:
                self.optimizer.zero_grad()
                loss, gradient = self._backward(mixed.smashed, mixed.targets, groups)
                self._take_joint_step(groups, progress, num_rounds)
                return self._result(loss, gradient, groups)
            gradient = torch.empty_like(mixed.smashed)
            total = torch.zeros((), dtype=loss_dtype(gradient.dtype), device=self.device)
            for group in rng.permutation(groups):
                rows = slice(group * batch, (group + 1) * batch)
                self.optimizer.zero_grad()
                loss, gradient[rows] = self._backward(mixed.smashed[rows], mixed.targets[rows], 1)
                self._keep_finite()
                self.take_step(progress, num_rounds)
                total += loss
            return self._result(total, gradient, groups)

    def learn_part(self, mixed: Mixed, batch: int, seed: int, *, first: bool) -> Learned:
        """Accumulate the gradients of one part of the batch, for one joint step.

        Gradients and losses summed over all parts equal those of `learn` with a joint update, if
        logits and losses of an example do not depend on the others in its batch. Before the very
        first part a trial checks that they do not: `check_in_parts`.

        Parameters
        ----------
        mixed
            Mixture of the part: its samples of every group.
        batch
            Samples b per group in the whole batch.
        seed
            For dropout and the like; each part has its own.
        first
            Whether to zero the gradients first.

        Raises
        ------
        ValueError
            If the upper segment or the loss needs a whole batch.
        """
        groups = len(mixed.sources)
        share = len(mixed.smashed) / groups / batch
        watch: AbstractContextManager[None] = nullcontext()
        if share < 1 and not self._tried_in_parts:
            check_in_parts(
                self.module,
                self.loss,
                mixed.smashed,
                mixed.targets,
                device=self.device,
                dtype=self.dtype,
            )
            self._tried_in_parts = True
            watch = watched_in_parts(self.module, "the upper segment")
        self.module.train()
        if first:
            self.optimizer.zero_grad()
        with watch, seeded_draws(self.device, seed):
            loss, gradient = self._backward(mixed.smashed, mixed.targets, groups * share)
        return self._result(loss, gradient, groups)

    def finish_parts(self, groups: float, progress: float, num_rounds: int) -> None:
        """Take the joint step on the gradients of all parts.

        Parameters
        ----------
        groups
            The number of groups, averaged over the samples of the batch.
        progress, num_rounds
            Global progress in rounds, for the schedule.
        """
        self._take_joint_step(groups, progress, num_rounds)

    def _take_joint_step(self, groups: float, progress: float, num_rounds: int) -> None:
        if self.server_update == "mean" and groups > 1:
            self.average_gradients(groups)
        self._keep_finite()
        self.take_step(progress, num_rounds)

    def _backward(self, smashed: Tensor, targets: Tensor, groups: float) -> tuple[Tensor, Tensor]:
        """Return (sum of the groups' batch-mean losses, its gradient at the smashed data)."""
        inputs = smashed.detach().requires_grad_()
        with enough_values("upper segment"):
            # A copy, because the module may overwrite its input, as an activation in place does.
            logits = self._logits(inputs.clone())
        # CutMixSL eq. 3, summed over groups of equal size.
        loss = target_loss(logits, targets, multi_label=self.multi_label, loss=self.loss) * groups
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        elif logits.requires_grad:
            raise ValueError(
                "the loss has no gradient; it must compute it from the logits, and not detach them"
            )
        if inputs.grad is None:
            raise ValueError(
                "the upper segment's logits have no gradient with respect to its smashed data; it "
                "must not detach them, or clients learn nothing"
            )
        return loss.detach(), inputs.grad

    def _result(self, loss: Tensor, gradient: Tensor, groups: int) -> Learned:
        """Return the result of a step, given the groups' summed loss and their gradient."""
        without = self._gradients.clean(gradient, groups, waits=self.waits)
        return Learned(loss / groups, gradient, without)

    def warn_of_skipped_steps(self, server_round: int) -> None:
        """Log, in addition, how many groups' gradients were too large to be sent."""
        super().warn_of_skipped_steps(server_round)
        self._gradients.warn(server_round)

    @torch.no_grad()
    def takes(self, shape: SmashedShape) -> bool:
        """Return whether the module makes logits of smashed data of a shape, trying two examples.

        Two, as some modules cannot take a single one. Raises if there is no memory for it.
        """
        self.module.eval()
        size = (2, *shape.size[1:])
        with seeded_draws(self.device, 0):
            try:
                self._logits(torch.zeros(size, dtype=self.input_dtype, device=self.device))
            except (MemoryError, torch.OutOfMemoryError):
                raise
            except Exception:  # a user's own module may raise anything
                log.debug("the upper segment does not take %s", size, exc_info=True)
                return False
        return True

    def _logits(self, smashed: Tensor) -> Tensor:
        with (
            autocast(self.device, self.dtype),
            fitting("upper segment", "smashed data", smashed, _REMEDY),
        ):
            logits = self.module(smashed)
        self._check_logits(logits, len(smashed))
        return cast(Tensor, logits)

    def _check_logits(self, logits: object, samples: int) -> None:
        needed = (samples, self.num_classes)
        if not isinstance(logits, Tensor):
            raise ValueError(
                f"the upper segment returns {with_article(type(logits).__name__)}; expected "
                f"logits {needed}, one tensor"
            )
        if tuple(logits.shape) != needed:
            raise ValueError(
                f"the upper segment returns {tuple(logits.shape)}; expected logits "
                f"{needed}, one for each of num_classes = {self.num_classes}"
            )

    def _keep_finite(self) -> None:
        """Discard the weights' gradients if they, or their squares, which Adam keeps, overflow."""
        fine = self.gradients_finite()
        if fine is None:
            return
        if not self.waits:
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    parameter.grad = torch.where(fine, parameter.grad, 0.0)
        elif not bool(fine):
            self.leave_step()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state of module and optimizer; warn that a loss's state is not kept."""
        if isinstance(self.loss, nn.Module) and self._loss_began is not None:
            loss_tensors = _tensors_of(self.loss)
            if loss_tensors.keys() != self._loss_began.keys() or not all(
                torch.equal(loss_tensors[name], tensor) for name, tensor in self._loss_began.items()
            ):
                log.warning(
                    "the loss %s has a state that changes in training, which checkpoints do not "
                    "keep: a resumed run begins with a new one",
                    type(self.loss).__name__,
                )
                self._loss_began = None  # warned once
        return super().state()

    @torch.no_grad()  # what a module caches may need a graph in training
    def score(self, smashed: Tensor, labels: Tensor) -> Tally:
        """Score unmixed smashed data with labels (b,) or, multi-label, (b, L)."""
        self.module.eval()
        logits = self._logits(smashed.to(self.device))
        return tally(logits, labels.to(self.device))


def _tensors_of(loss: nn.Module) -> dict[str, Tensor]:
    """Return copies of the tensors in a loss's state."""
    state = loss.state_dict()
    return {name: t.clone() for name, t in state.items() if isinstance(t, Tensor)}

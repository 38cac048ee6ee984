"""Law 1, split equals whole: comparison with one unsplit graph of the same computation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from flwr_splitmix.clients.split.input_mixing import mix_inputs
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.data.examples import Example
from flwr_splitmix.mixers import InputShare, Mixed, Mixer, Plan, SmashedShape, Upload
from flwr_splitmix.schedule import constant
from flwr_splitmix.seeding import derive_seed, generator, seeded_secrets
from flwr_splitmix.server.segments.upper import ServerUpdate
from flwr_splitmix.strategies import SplitStrategy
from flwr_splitmix.testing.agreement import check_same_tensors
from flwr_splitmix.testing.toy import Toy, sgd

MakeStrategy = Callable[..., SplitStrategy]
"""Function that makes a strategy from an upper segment and options of `SplitStrategy`."""


def check_split_equals_whole(
    make_strategy: MakeStrategy,
    toy: Toy | None = None,
    *,
    server_update: ServerUpdate = "sum",
    steps: int = 2,
    seed: int = 3,
    tolerance: float = 1e-10,
) -> None:
    """Train `steps` steps with the strategy, and again with one unsplit graph per step.

    Both sides use SGD with learning rate 1, so that a step equals the gradient; weights and
    BatchNorm statistics of all lower segments and of the upper segment are compared. The check is
    for mixers that return exact gradients (not for broadcast).

    Parameters
    ----------
    make_strategy
        Called with the toy's upper segment and options of `SplitStrategy`.
    tolerance
        Largest absolute difference of a weight.

    Raises
    ------
    AssertionError
        With the weight that differs most.
    """
    toy = toy or Toy()
    strategy = make_strategy(
        toy.upper(),
        optimizer=sgd(),
        schedule=constant,
        server_update=server_update,
        steps_per_round=steps,
        device="cpu",
        seed=seed,
    )
    clients = toy.make_clients(sgd(), shares=strategy.mixer.shares)
    strategy.fit(clients, 1)

    whole = Whole(
        [toy.lower() for _ in range(toy.clients)],
        toy.upper(),
        [Batches(toy.data(i), toy.batch) for i in range(toy.clients)],
        strategy.mixer,
        server_update,
        seed,
        nn.BCEWithLogitsLoss() if toy.multi_label else nn.CrossEntropyLoss(),
    )
    shape = SmashedShape(
        toy.batch, toy.patches, toy.width, toy.prefix, toy.grid, classes=toy.classes
    )
    for number in range(steps):
        whole.step(shape, 1, number)

    law = "law 1, split equals whole"
    for index, (lower, client) in enumerate(zip(whole.lowers, clients, strict=True)):
        check_same_tensors(
            f"{law}: lower segment of client {index}",
            lower.state_dict(),
            client.segment.state_dict(),
            tolerance,
        )
    check_same_tensors(
        f"{law}: upper segment",
        whole.upper.state_dict(),
        strategy.upper.module.state_dict(),
        tolerance,
    )


@dataclass
class Whole:
    """All segments in one process and one graph; SGD with learning rate 1 by hand."""

    lowers: Sequence[nn.Module]
    upper: nn.Module
    batches: Sequence[Batches]
    mixer: Mixer
    server_update: ServerUpdate
    seed: int
    loss: nn.Module = field(default_factory=nn.CrossEntropyLoss)

    def step(self, shape: SmashedShape, server_round: int, number: int) -> None:
        """Take the strategy's step `number` of a round."""
        plan = self.mixer.plan(
            range(len(self.lowers)),
            shape,
            generator(self.seed, "plan", server_round, number),
            generator(self.seed, "groups", server_round, 0)
            if self.mixer.regroup == "epoch"
            else None,
        )
        clients = range(len(self.lowers))
        drawn = [self.batches[client].next_batch(self.seed, client) for client in clients]
        uploads = {
            client: self._upload(client, plan, drawn, server_round, number) for client in clients
        }
        mixed = self.mixer.merge(uploads, plan, num_classes=_classes(self.upper))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.seed, "upper", server_round, number))
            self.upper.train()
            if self.server_update == "sequential":
                order = generator(self.seed, "order", server_round, number).permutation(
                    len(mixed.sources)
                )
                self._sequential_steps(mixed, [int(group) for group in order])
            else:
                self._joint_step(mixed)

    def _upload(
        self, client: int, plan: Plan, drawn: Sequence[Example], server_round: int, number: int
    ) -> Upload:
        shares = plan.shares(client)
        inputs, labels = drawn[client]
        mixing = next((share for share in shares if isinstance(share, InputShare)), None)
        if mixing is not None:
            inputs, labels = mix_inputs(mixing, drawn.__getitem__)
        with torch.random.fork_rng(devices=[]), seeded_secrets():
            torch.manual_seed(derive_seed(self.seed, "step", client, server_round, number))
            self.lowers[client].train()
            smashed = self.lowers[client](inputs)
            parts: list[Tensor | None] = []
            soft: list[Tensor | None] = []
            for share in shares:
                part = None if share is None else share.upload(smashed)[0]
                # With `k_times`, only one pass has a gradient for this client.
                parts.append(part if part is None or (share and share.learns) else part.detach())
            for share in shares:
                soft.append(None if share is None else share.upload_labels(labels, smashed.dtype))
        is_soft = any(share is not None and share.label_kind == "soft" for share in shares)
        return Upload(parts, soft if is_soft else drawn[client][1])

    def _joint_step(self, mixed: Mixed) -> None:
        groups = len(mixed.sources)
        logits = self.upper(mixed.smashed).chunk(groups)
        targets = mixed.targets.chunk(groups)
        losses = [self.loss(z, y) for z, y in zip(logits, targets, strict=True)]
        total = torch.stack(losses).sum()
        uppers, lowers = self._parameters()
        gradients = torch.autograd.grad(total, uppers + lowers, allow_unused=True)
        part = 1.0 if self.server_update == "sum" else 1.0 / groups
        _descend(uppers, [g if g is None else part * g for g in gradients[: len(uppers)]])
        _descend(lowers, gradients[len(uppers) :])

    def _sequential_steps(self, mixed: Mixed, order: Sequence[int]) -> None:
        batch = len(mixed.smashed) // len(mixed.sources)
        uppers, lowers = self._parameters()
        collected: list[Tensor | None] = [None] * len(lowers)
        for group in order:
            rows = slice(group * batch, (group + 1) * batch)
            loss = self.loss(self.upper(mixed.smashed[rows]), mixed.targets[rows])
            gradients = torch.autograd.grad(
                loss, uppers + lowers, allow_unused=True, retain_graph=True
            )
            collected = [
                new if old is None else old if new is None else old + new
                for old, new in zip(collected, gradients[len(uppers) :], strict=True)
            ]
            _descend(uppers, gradients[: len(uppers)])
        _descend(lowers, collected)

    def _parameters(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        lowers = [p for m in self.lowers for p in m.parameters() if p.requires_grad]
        return list(self.upper.parameters()), lowers


def _descend(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter.sub_(gradient)


def _classes(upper: nn.Module) -> int:
    return int(upper.num_classes)  # type: ignore[arg-type]

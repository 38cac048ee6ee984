"""A trained system under attack: it knows everything and hands out views."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.case import Case, Victims
from flwr_splitmix.attacks.knowledge import Knowledge, Lowers
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.recording.reader import StepReader
from flwr_splitmix.attacks.recording.steps import Step
from flwr_splitmix.attacks.recording.trace import Recorded, Trace
from flwr_splitmix.attacks.recording.vault import Vault, joined_images
from flwr_splitmix.attacks.release import Adversary
from flwr_splitmix.data import ImageDataset
from flwr_splitmix.mixers import Share
from flwr_splitmix.seeding import generator
from flwr_splitmix.words import are, counted

Assumption = Literal["lower", "upper"]


@dataclass(frozen=True)
class Attacked:
    """A trained system, its recording, and the truth.

    Parameters
    ----------
    knowledge
        Of all adversaries together: all trained lower segments and the upper one.
    trace
        The recording of training.
    vault
        The images.
    summary
        Results of the run: "accuracy", "uplink_bytes", ...
    spare
        Further images, which no client trained on, for attackers.
    remarks
        A reservation that a reader of scores must know of the truth.
    """

    knowledge: Knowledge
    trace: Trace
    vault: Vault
    summary: Mapping[str, Any]
    spare: ImageDataset | None = None
    remarks: Sequence[str] = ()

    def known_to(
        self, adversary: Adversary, assume: Collection[Assumption] = (), member: int = 0
    ) -> Knowledge:
        """Return an adversary's knowledge, with its own copies of modules.

        Whoever has the upper segment has sent the clients their first weights, so has these for
        lower segments unless it has trained ones.

        Parameters
        ----------
        assume
            Segments given to it in addition to those it would have.
        member
            Which client the "member of the group" is.
        """
        knowledge = self.knowledge
        lowers: Lowers | None = None
        averaged = knowledge.averaged and adversary not in ("upper only", "sum only")
        if averaged or "lower" in assume:
            lowers = knowledge.lowers
        elif adversary == "member of the group":
            lower = knowledge.lower_of(member)
            lowers = None if lower is None else {member: lower}
        serves = adversary in ("server", "upper only", "sum only")
        has_upper = serves or "upper" in assume
        untrained = serves and lowers is None and knowledge.first is not None
        return replace(
            knowledge,
            lowers=_copied(knowledge.first if untrained else lowers),
            first=copy.deepcopy(knowledge.first) if serves else None,
            untrained=untrained,
            averaged=averaged,
            upper=copy.deepcopy(knowledge.upper) if has_upper else None,
        )

    @property
    def kinds(self) -> set[type[Share]]:
        """The kinds of shares in the newest recorded step, and those that the mixer names."""
        newest = [step for step in self.trace.steps(1) if isinstance(step, Step)]
        return set(self.knowledge.mixer.shares).union(*(step.plan.kinds for step in newest))

    def case(
        self,
        adversary: Adversary = "server",
        *,
        trained: int = 256,
        held_out: int = 256,
        again: bool = False,
        repeats: int = 1,
        assume: Collection[Assumption] = (),
        member: int = 0,
        gradients: bool = False,
        seed: int = 0,
    ) -> Case:
        """Return a view with the truth behind it: recorded victims, and held-out ones.

        Held-out images are released by the trained lower segments and the mixer as in a training
        step, but nothing is updated.

        Parameters
        ----------
        trained, held_out
            The least number of victims of each kind; 0 for none. Recorded steps are the newest
            ones and are used whole.
        again
            Whether training images are released once more by the trained system, like the
            held-out ones, instead of being taken from the recording.
        repeats
            How often images are released after training, each time with new masks, partners and
            noise: for attackers that collect releases.
        assume, member
            As in `known_to`.
        gradients
            Whether releases after training have gradients and losses.
        seed
            For the choice of held-out victims, and for all draws after training.

        Raises
        ------
        VaultError
            If the recording does not belong to these images.
        """
        reader = StepReader(self.knowledge.mixer, self.knowledge.num_classes, adversary, member)
        victims = Victims(reader)
        taking_part = member if adversary == "member of the group" else None
        release = partial(
            victims.release,
            self.knowledge,
            repeats=repeats,
            include=taking_part,
            gradients=gradients or taking_part is not None,
            seed=seed,
        )
        if trained and again:
            release(*self._trained_on(trained, seed), trained=True)
        elif trained:
            victims.add_recorded(self._newest(trained), self.vault)
        if held_out:
            pictures = self._held_out(held_out, seed)
            # An image that is released more than once has one owner; else steps draw the clients.
            owners = self._owners(pictures, seed) if repeats > 1 else None
            release(pictures, owners, trained=False)
        return victims.case(self.known_to(adversary, assume, member))

    def classify(self, images: Tensor) -> Tensor:
        """Return the trained system's own logits (b, L) of images (b, C, H, W), 0 to 1.

        If lower segments are not averaged, the first client's is used.
        """
        knowledge = self.knowledge
        lower = self._classifying_lower()
        assert knowledge.upper is not None
        device = next((p.device for p in knowledge.upper.parameters()), torch.device("cpu"))
        inputs = knowledge.normalise(images.to(device))
        with torch.no_grad():
            logits: Tensor = knowledge.upper.eval()(lower.eval()(inputs))
        return logits.cpu()

    def _classifying_lower(self) -> nn.Module:
        lower = self.knowledge.lowers
        if isinstance(lower, Mapping):
            lower = lower[min(lower)]
        assert lower is not None
        return lower

    def public(self, number: int, seed: int = 0) -> Pictures:
        """Return images that are not victims: spare ones, then the second half of those held out.

        Raises
        ------
        ValueError
            If there are too few.
        """
        order = self._order(seed)
        rest = order[len(order) // 2 :]
        spare = 0 if self.spare is None else len(self.spare)
        if number > spare + len(rest):
            raise ValueError(
                f"{counted(number, 'public image')} {are(number)} asked for, "
                f"{spare + len(rest)} {are(spare + len(rest))} available"
            )
        parts = []
        if self.spare is not None:
            drawn = generator(seed, "public").permutation(spare)[:number]
            parts.append(Pictures.of(self.spare, drawn))
        parts.append(Pictures.of(self.vault.held_out, rest[: max(0, number - spare)]))
        return joined_images(parts)

    def public_up_to(self, most: int, seed: int = 0) -> Pictures:
        """Return at most so many images that are not victims; see `public`."""
        spare = 0 if self.spare is None else len(self.spare)
        return self.public(min(most, spare + len(self.vault.held_out) // 2), seed)

    def _newest(self, rows: int) -> list[Step]:
        """Return the newest recorded steps, with at least so many rows if there are as many."""
        steps: list[Step] = []
        row_count = 0
        for recorded in self.trace.backwards():
            if row_count >= rows:
                break
            read = self._steps_of(recorded)
            steps[:0] = read
            row_count += sum(len(step.uploads) * step.plan.shape.batch for step in read)
        return steps

    def _steps_of(self, recorded: Recorded) -> list[Step]:
        """Return a recorded step in the form that attacks on images take."""
        return [recorded] if isinstance(recorded, Step) else []

    def _held_out(self, number: int, seed: int) -> Pictures:
        half = self._order(seed)[: len(self.vault.held_out) // 2]
        return Pictures.of(self.vault.held_out, half[:number])

    def _trained_on(self, number: int, seed: int) -> tuple[Pictures, Tensor]:
        """Draw images from all clients equally; return them with their clients."""
        each = math.ceil(number / len(self.vault.data))
        rng = generator(seed, "victims")
        parts: list[Pictures] = []
        clients: list[int] = []
        for client, data in self.vault.data.items():
            parts.append(_draw_pictures(data, each, rng))
            clients += [client] * len(parts[-1])
        return joined_images(parts).take(slice(0, number)), torch.tensor(clients[:number])

    def _owners(self, pictures: Pictures, seed: int) -> Tensor:
        """Divide held-out images among all clients equally: the client of each, int64 (n,)."""
        order = generator(seed, "owners").permutation(len(pictures))
        clients = torch.tensor(sorted(self.vault.data))
        return clients[torch.from_numpy(order) % len(clients)]

    def _order(self, seed: int) -> np.ndarray:
        return generator(seed, "held-out").permutation(len(self.vault.held_out))


def _draw_pictures(data: ImageDataset, number: int, rng: np.random.Generator) -> Pictures:
    return Pictures.of(data, rng.permutation(len(data))[:number])


def _copied(lowers: Lowers | None) -> Lowers | None:
    if isinstance(lowers, Mapping):
        return {client: copy.deepcopy(segment) for client, segment in lowers.items()}
    return copy.deepcopy(lowers) if isinstance(lowers, nn.Module) else None

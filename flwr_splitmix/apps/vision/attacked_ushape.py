"""A vision run in the U shape in the form that attacks on images need.

The server receives what heads send, and the gradients that clients return to the trunk, and no
labels. Images that are not recorded are released by the trained parts, as in a training step.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.apps.kept.attacking import division_of, recorded_trace, results_of
from flwr_splitmix.apps.kept.weights import fitting, segment_weights
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import client_images, images_of
from flwr_splitmix.apps.vision.model import MODEL_KEYS
from flwr_splitmix.apps.vision.ushape import load_part, parts_of, whole_call
from flwr_splitmix.apps.vision.ushape_keys import IMAGE_USHAPE
from flwr_splitmix.attacks.attacked import Assumption, Attacked
from flwr_splitmix.attacks.case import Case
from flwr_splitmix.attacks.knowledge import Knowledge
from flwr_splitmix.attacks.recording.disk_trace import DiskTrace
from flwr_splitmix.attacks.recording.packing import UShapeStep
from flwr_splitmix.attacks.recording.returning import returned_gradients
from flwr_splitmix.attacks.recording.steps import Step
from flwr_splitmix.attacks.recording.trace import MemoryTrace, Recorded
from flwr_splitmix.attacks.recording.vault import NO_TRUTH, Truth, Vault, VaultError
from flwr_splitmix.attacks.release import Adversary, Origin, Release
from flwr_splitmix.attacks.tails import Tails
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import ClientSide, SentBatch
from flwr_splitmix.hiding.making import make_hiding, sources_of
from flwr_splitmix.mixers import FullShare, NoMixing, SmashedShape, Upload, each_alone
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.checkpoints import Checkpoint, ClientStore
from flwr_splitmix.segments import SPLITS, VisionParts
from flwr_splitmix.segments.vision.split_model import VisionHead
from flwr_splitmix.storage import under
from flwr_splitmix.words import counted

CPU = torch.device("cpu")


class HidingEnds(nn.Module):
    """Head and tail of a client with its hiding: images (b, C, H, W) to messages (b, T, d)."""

    def __init__(self, config: VisionConfig, head: nn.Module, tail: nn.Module, width: int) -> None:
        super().__init__()
        self.head, self.tail = head, tail
        kind = IMAGE_USHAPE[config.strategy].hiding.sends_as()
        self.hiding = make_hiding(kind, sources_of(config.own_options()))
        self.hiding.attach(
            ClientSide(head, tail, CPU, width, config.batch_size, config.seed, client=0)
        )

    def forward(self, images: Tensor) -> Tensor:  # noqa: D102
        (message,) = self.hiding.obfuscate(_batch(images, torch.zeros(len(images)))).messages
        return message

    def returned(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient (b, T, d) that a client returns for the trunk's outputs."""
        batch = _batch(outputs, labels)
        (gradient,) = returned_gradients(
            self.hiding, [outputs], SentBatch([outputs], batch.mask, batch)
        )
        return gradient


def _batch(inputs: Tensor, labels: Tensor) -> MaskedBatch:
    mask = torch.ones(len(inputs), 1, dtype=torch.int64, device=inputs.device)
    return MaskedBatch(inputs, mask, labels)


@dataclass(frozen=True)
class AttackedImages(Attacked):
    """A trained system of the U shape; see `Attacked`.

    Parameters
    ----------
    trunk
        The server's part.
    recorded
        Whether the trace has steps of the clients.
    frozen
        A head as everyone builds it, if clients train only their tails and so return no gradient;
        statistics of a client's own BatchNorm are not in it. None if heads learn.
    tails
        What was recorded of the clients' tails; None if nothing was, or they return no gradient.
    """

    trunk: nn.Module = field(kw_only=True, repr=False)
    recorded: bool = field(kw_only=True)
    frozen: HidingEnds | None = field(kw_only=True, default=None, repr=False)
    tails: Tails | None = field(kw_only=True, default=None, repr=False)

    def known_to(
        self, adversary: Adversary, assume: Collection[Assumption] = (), member: int = 0
    ) -> Knowledge:
        """Return what an adversary knows: the server has no tail unless it averages them.

        It has the head's first weights, as `first` only: they are not those of trained heads.
        """
        knowledge = super().known_to(adversary, assume, member)
        if knowledge.untrained:
            knowledge = replace(knowledge, lowers=None, untrained=False)
        if self.frozen is not None and knowledge.lowers is None:
            knowledge = replace(knowledge, lowers=copy.deepcopy(self.frozen))
        return knowledge if knowledge.averaged else replace(knowledge, upper=None)

    def case(self, adversary: Adversary = "server", **options: Any) -> Case:
        """Return a view with the truth behind it, as `Attacked.case` does.

        Unless they are `recorded`, training images are released once more, too.

        Raises
        ------
        ValueError
            If there is no such adversary in the U shape, or it cannot be given what is assumed.
        """
        if adversary not in ("server", "eavesdropper"):
            raise ValueError(
                f"the adversary is {adversary!r}, but in the U shape no images of several clients "
                "are mixed; it must be 'server' or 'eavesdropper'"
            )
        if "upper" in options.get("assume", ()):
            raise ValueError(
                "'upper' is assumed, but in the U shape what follows the head is divided; 'lower', "
                "the head, can be assumed"
            )
        again = bool(options.get("again")) or not self.recorded
        case = super().case(adversary, **options | {"again": again, "gradients": False})
        releases = [
            self._received(release, origin, case.truth)
            for release, origin in zip(case.view.releases, case.truth.origins, strict=True)
        ]
        return Case(replace(case.view, releases=releases, tails=self.tails), case.truth)

    def _classifying_lower(self) -> nn.Module:
        """Return the head alone: the method's hiding may mix each image with the next one."""
        ends = super()._classifying_lower()
        assert isinstance(ends, HidingEnds)
        return ends.head

    def _steps_of(self, recorded: Recorded) -> list[Step]:
        """Return a recorded step as one without mixing for each client that finished it.

        Clients whose images are not here are left out.
        """
        assert isinstance(recorded, UShapeStep)
        return [
            self._step_of(recorded, client)
            for client in sorted(_finished(recorded, self.frozen is None))
            if client in self.vault.data
        ]

    def _step_of(self, recorded: UShapeStep, client: int) -> Step:
        knowledge, batch = self.knowledge, self.vault.batch_size
        geometry, messages = knowledge.geometry, recorded.messages[client]
        shape = SmashedShape(batch, geometry.patches, geometry.width, geometry.prefix)
        if [tuple(message.shape) for message in messages] != [shape.size]:
            raise VaultError(
                f"client {client} sent other messages in step {recorded.number} of round "
                f"{recorded.server_round} than its head makes of {counted(batch, 'image')}: "
                f"{NO_TRUTH}"
            )
        unknown = torch.zeros(batch, knowledge.num_classes)  # labels stay with the client
        return Step(
            recorded.server_round,
            recorded.number,
            each_alone(shape, [(client, FullShare())]),
            {client: Upload(messages, [unknown])},
            next(iter(recorded.returned.get(client, ())), None),
            drawn={client: recorded.drawn[client]},
        )

    def _received(self, release: Release, origin: Origin, truth: Truth) -> Release:
        """Take the label out, which stays with the client, and add the returned gradient."""
        release = replace(release, labels=None, loss=None)
        if self.frozen is not None or release.gradient is not None:  # none returned, or recorded
            return release
        ends = self.knowledge.lower_of(release.client)
        assert isinstance(ends, HidingEnds)
        labels = truth.pictures.labels[origin.sources[:, 0]]
        with torch.no_grad():
            outputs = self.trunk(release.smashed)
        return replace(release, gradient=ends.returned(outputs, labels))


def attacked_ushape(run: Run, config: VisionConfig) -> AttackedImages:
    """Return a run in the U shape at its newest checkpoint.

    The clients' images follow from the run's configuration and from the number of parts that their
    nodes reported; `remarks` says if that had to be guessed, or if a recording is not used.

    Raises
    ------
    RunError
        If no client finished a round, or clients send several messages for a batch.
    DataError, ConfigError, StorageError
        If images, model, checkpoint or the clients' states are not on this machine.
    """
    if (number := config.messages_per_batch) > 1:
        raise RunError(
            f"clients of {config.strategy} send {number} messages for a batch of images, and the "
            "attacks on images read one; name a run of another strategy"
        )
    images, checkpoint = images_of(config), run.checkpoints.load()
    division = division_of(run, checkpoint)
    finished = division.finished
    parts = copy.deepcopy(parts_of(config))
    geometry = parts.head.geometry
    with fitting(run, checkpoint, MODEL_KEYS):
        load_part(parts.trunk, under("trunk", checkpoint.tensors))
    ends_of = partial(_ends_of, run, config, checkpoint, parts)
    client_ends = (
        {} if config.averages else {c: ends_of(c) for c in _with_state(run, checkpoint, finished)}
    )
    first = client_ends[min(client_ends)] if client_ends else ends_of(None)
    as_built = HidingEnds(config, parts.head, parts.tail, geometry.width).eval()
    call = whole_call(config, len(images.classes), images.train.shape[0])
    knowledge = Knowledge(
        method=config.strategy,
        options=config.own_options(),
        mixer=NoMixing(),
        image_shape=images.train.shape,
        num_classes=len(images.classes),
        geometry=geometry,
        k=1,
        batch_size=config.batch_size,
        mean=images.train.mean,
        std=images.train.std,
        fresh_lower=partial(_fresh, config=config, call=call, width=geometry.width),
        lowers=client_ends or first,
        first=as_built,
        averaged=config.averages,
        upper=nn.Sequential(parts.trunk, first.tail),
        mixes_batch=first.hiding.mixes_batch,
    )
    data = {c: client_images(config, c, division.parts_of(c))[0] for c in client_ends or finished}
    vault = Vault(data, images.test, config.batch_size, config.seed)
    as_built = HidingEnds(config, parts.head, parts.tail, geometry.width)
    finished_by = partial(_finished, returns=config.learns != "tail")
    trace, unused = recorded_trace(run, data, "images", finished_by)
    return AttackedImages(
        knowledge,
        trace or MemoryTrace(),
        vault,
        results_of(run, checkpoint),
        remarks=[*filter(None, (division.remark(data, "images"), unused))],
        trunk=parts.trunk.eval(),
        recorded=trace is not None,
        frozen=as_built if config.learns == "tail" else None,
        tails=None if trace is None or config.learns == "tail" else _tails(config, trace),
    )


def _tails(config: VisionConfig, trace: DiskTrace) -> Tails:
    """Return what a trace has of the clients' tails, which begin as everyone builds them."""
    return Tails.of(
        trace,
        copy.deepcopy(parts_of(config).tail),
        config.num_server_rounds,
        optimizer=config.optimizer(),
        schedule=config.schedule(),
        lam=config.hiding().own_label,
    )


def _finished(step: UShapeStep, returns: bool) -> Collection[int]:
    """Return the clients that finished a step, by returning gradients if their heads learn."""
    return step.returned if returns else step.messages


def _with_state(run: Run, checkpoint: Checkpoint, finished: Collection[int]) -> list[int]:
    """Return the clients whose head and tail are here; if none, one to name in the error."""
    stored_clients = set(ClientStore(run.clients_dir).clients(at_most=checkpoint.round))
    return [client for client in finished if client in stored_clients] or [min(finished)]


def _ends_of(
    run: Run, config: VisionConfig, checkpoint: Checkpoint, parts: VisionParts, client: int | None
) -> HidingEnds:
    weights = segment_weights(
        run,
        checkpoint,
        client,
        shared=config.averages,
        strategy=config.strategy,
        parts="heads and tails",
    )
    head, tail = copy.deepcopy(parts.head), copy.deepcopy(parts.tail)
    with fitting(run, checkpoint, MODEL_KEYS):
        load_part(head, under("head", weights))
        load_part(tail, under("tail", weights))
    return HidingEnds(config, head, tail, parts.head.geometry.width).eval()


def _fresh(
    seed: int, *, config: VisionConfig, call: tuple[str, dict[str, Any]], width: int
) -> HidingEnds:
    """Make a head with fresh weights, as a lower segment; its tail is not needed."""
    made_by, arguments = call
    lower = SPLITS[made_by](**arguments, seed=seed).lower
    head = VisionHead([*lower.named_children()], lower.input_shape, lower.geometry)
    return HidingEnds(config, head, nn.Identity(), width)

"""A trained language run in the form that attacks on texts need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.apps.kept.attacking import division_of, recorded_trace
from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.language.export import trained_parts
from flwr_splitmix.apps.language.hiding import hiding_sources
from flwr_splitmix.apps.language.known_parts import base_parts, known_parts
from flwr_splitmix.apps.language.texts import (
    client_rows,
    public_set,
    run_token_set,
    text_sets,
    tokenizer_of,
    training_set,
)
from flwr_splitmix.attacks.batch_ring import ring_of
from flwr_splitmix.attacks.recording.trace import Trace
from flwr_splitmix.attacks.texts.public_releases import released_again
from flwr_splitmix.attacks.texts.recorded import recorded_texts
from flwr_splitmix.attacks.texts.releasing import (
    MIN_TOKENS,
    Released,
    draw_victims,
    fill_step,
    freeze_parts,
    release_texts,
)
from flwr_splitmix.attacks.texts.text_case import TextCase
from flwr_splitmix.attacks.texts.view import PublicRelease, TextKnowledge, TextView
from flwr_splitmix.clients import TextSet
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.hiding.making import make_hiding
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.checkpoints import ClientStore
from flwr_splitmix.seeding import derive_seed, generator, seeded_secrets
from flwr_splitmix.segments.language import LanguageParts

SECRETS = (
    "the recording is not used: clients put secret tokens between their words, and nothing says "
    "where, so there is no truth of what they sent; texts are released once more"
)

UNCALIBRATED = (
    "public texts that the client sent mixed and plain to calibrate are not given here, because "
    "its node keeps what it calibrated: attacks that learn from them read less than a server does, "
    "or cannot run"
)

_State = tuple[Mapping[str, Tensor], Mapping[str, Any]]


@dataclass(frozen=True)
class AttackedTexts:
    """The trained system of one client and its server, and the client's texts.

    Parameters
    ----------
    parts
        Head and tail of the client, trunk of the server, as they were last.
    base
        All parts as they were before training.
    known
        All parts as the server has them: its trained trunk, and averaged head and tail, or those
        of `base` where the clients' own stay with them.
    state
        State of the client's hiding, with its calibrator or denoiser; None if a node keeps it.
    train, test
        Texts that the client trained on, and texts that it was evaluated on.
    client
        The client's index.
    trace
        The recording of its run; None if it has nothing of this client with a known truth.
    remarks
        What a reader of scores must know of the truth.
    """

    config: LanguageConfig
    parts: LanguageParts = field(repr=False)
    base: LanguageParts = field(repr=False)
    known: LanguageParts = field(repr=False)
    state: _State | None = field(repr=False)
    train: TextSet = field(repr=False)
    test: TextSet = field(repr=False)
    client: int
    trace: Trace | None
    remarks: Sequence[str]

    @property
    def begin(self) -> int | None:
        """The token that begins every text; None if there is none."""
        first = {int(text[0]) for text in public_set(self.config).texts if len(text)}
        special = set(tokenizer_of(self.config).all_special_ids)
        return first.pop() if len(first) == 1 and first <= special else None

    def case(self, victims: int, *, seed: int = 0) -> TextCase:
        """Return a view with the truth behind it: texts that were trained on, and others.

        The first are as they were recorded. Others, and without a recording all of them, are
        released by the trained parts as in a training step, with the run's batch size, but nothing
        is updated.

        Parameters
        ----------
        victims
            The number of texts of each kind; fewer if there are not as many.
        seed
            For their choice, and for all draws of the client.

        Raises
        ------
        RunError
            If no text is long enough, or none of the client's that were recorded.
        VaultError
            If the recording is of other texts.
        """
        trained_rng, other_rng = (generator(seed, f"{k} victims") for k in ("trained", "held-out"))
        chosen = [(self.test, i) for i in draw_victims(self.test, victims, other_rng)]
        if self.trace is not None:
            all_released = self._recorded(self.trace, victims, trained_rng)
            trained = len(all_released.releases)
        else:
            train_indices = draw_victims(self.train, victims, trained_rng)
            all_released, trained = Released([], []), len(train_indices)
            chosen = [(self.train, i) for i in train_indices] + chosen
        if not chosen and not trained:
            raise RunError(f"no text has {MIN_TOKENS} tokens or more: there is nothing to attack")
        if chosen:
            released = self._released(chosen, seed)
            all_released = Released(
                all_released.releases + released.releases, all_released.origins + released.origins
            )
        knowledge = TextKnowledge(
            self.config.strategy,
            self.config.own_options(),
            self.known,
            begin=self.begin,
            task=self.config.task,
            client=self._hiding,
            batch_size=self.config.batch_size,
        )
        kinds = [True] * trained + [False] * (len(all_released.releases) - trained)
        view = TextView("server", all_released.releases, knowledge, self._public_releases(seed))
        return TextCase(view, all_released.origins, kinds)

    def _recorded(self, trace: Trace, victims: int, rng: np.random.Generator) -> Released:
        recorded = recorded_texts(
            trace,
            self.train,
            self.parts.all_here()[0],
            victims,
            rng,
            client=self.client,
            batch_size=self.config.batch_size,
            seed=self.config.seed,
        )
        if not recorded.releases:
            raise RunError(
                f"no recorded step that can be read has a text of client {self.client} with "
                f"{MIN_TOKENS} tokens or more, so there is nothing to attack: name another "
                "client with --client, or remove the recording with `splitmix attack forget`, so "
                "that texts are released once more"
            )
        return recorded

    def _released(self, chosen: Sequence[tuple[TextSet, int]], seed: int) -> Released:
        """Release texts by the trained parts; if a batch is mixed, in whole batches."""
        hiding, number = self._hiding(None), len(chosen)
        if ring_of(hiding) is not None:
            chosen = fill_step(chosen, self.train, self.config.batch_size)
        classes = self.config.task == "classification"
        labels: Any = [int(d.labels[i]) if classes else d.labels[i] for d, i in chosen]
        with seeded_secrets():
            torch.manual_seed(derive_seed(seed, "releases"))
            released = release_texts(
                self.parts,
                hiding,
                [data.texts[i] for data, i in chosen],
                labels=labels,
                batch_size=self.config.batch_size,
                gradients=True,
                learns=self.config.learns,
                state=self.state,
                seed=self.config.seed,
            )
        return Released(released.releases[:number], released.origins[:number])

    def _public_releases(self, seed: int) -> list[PublicRelease]:
        """Release once more the public texts that the client has calibrated on, if any."""
        if self.state is None:
            return []
        with seeded_secrets():
            torch.manual_seed(derive_seed(seed, "public releases"))
            return released_again(
                self.base,
                self.parts,
                lambda: self._hiding(None),
                self.state,
                client=self.client,
                batch_size=self.config.batch_size,
                seed=self.config.seed,
            )

    def _hiding(self, supports: Sequence[Tensor] | None) -> Hiding:
        """Make a client half, with public texts of its own, or with the run's."""
        sources = hiding_sources(self.config)
        if supports is not None:
            sources["public"] = lambda: TextSet(list(supports), [0] * len(supports))
        return make_hiding(self.config.hides_by.sends_as(), sources)


def attacked_texts(run: Run, client: int | None = None) -> AttackedTexts:
    """Return a language run's system at its newest checkpoint.

    The client's texts follow from the run's configuration and from the number of parts that its
    node reported; `remarks` says if that had to be guessed.

    Parameters
    ----------
    client
        Whose texts are attacked; None for the first that finished a round.

    Raises
    ------
    RunError
        If no client finished a round, or that one did not.
    ConfigError, DataError, StorageError
        If texts, model, checkpoint or the client's state are not on this machine.
    """
    config = LanguageConfig.read(run.config)
    checkpoint = run.checkpoints.load()
    division = division_of(run, checkpoint)
    chosen_client = division.chosen(run, client)
    saved = ClientStore(run.clients_dir).load(chosen_client, at_most=checkpoint.round)
    # A deployed node keeps its state, and then the averaged weights are all that is here.
    as_averaged = config.averages and (client is None or saved is None)
    parts = freeze_parts(
        trained_parts(run, config, checkpoint, None if as_averaged else chosen_client)
    )
    base = freeze_parts(base_parts(config))
    averaged = parts if as_averaged else None
    if config.averages and averaged is None:
        averaged = freeze_parts(trained_parts(run, config, checkpoint, None))
    node = {"partition-id": chosen_client, "num-partitions": division.parts_of(chosen_client)}
    train, test = client_rows(config, node)
    tests = test if len(test) else text_sets(config).test
    trace, unused = recorded_trace(run, [chosen_client], "texts", lambda step: step.messages)
    if trace is not None and config.secrets:
        trace, unused = None, SECRETS
    calibrates = config.hides_by.calibrates(config.own_options())
    calibration = UNCALIBRATED if saved is None and calibrates else ""
    return AttackedTexts(
        config,
        parts,
        base,
        known_parts(base, parts, averaged),
        None if saved is None else saved[1:],
        training_set(config, train),
        run_token_set(config, tests),
        chosen_client,
        trace,
        [*filter(None, (division.remark([chosen_client], "texts"), unused, calibration))],
    )

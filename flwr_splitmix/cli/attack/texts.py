"""An attack on the texts of a run, by `splitmix attack run`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from flwr_splitmix.cli.attack.request import AttackRequest
from flwr_splitmix.cli.attack.victims import tell_of_fewer
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.words import counted

if TYPE_CHECKING:
    from torch import Tensor

    from flwr_splitmix.apps.language.attacked import AttackedTexts
    from flwr_splitmix.attacks.fitted import Budget
    from flwr_splitmix.attacks.results import Kept

VICTIMS = 4
"""Texts of each kind that are attacked if no number is given: reading one can take minutes."""

PUBLIC = {"smoke": 100, "cpu": 800, "paper": 8000}
"""Most public texts that an attacker gets, by scale."""


def attack_texts(
    opened: Run, request: AttackRequest, budget: Callable[[], Budget]
) -> tuple[Kept, list[dict[str, Any]]]:
    """Attack texts of a client of a run, and return the result and what was measured of each.

    Raises
    ------
    RunError, ValueError
        If there is no such attack or nothing to attack, or the server lacks what it needs.
    VaultError, DataError, ConfigError
        If the recording is of other texts, or texts or model are not on this machine.
    """
    import torch

    from flwr_splitmix.apps.language.attacked import attacked_texts
    from flwr_splitmix.apps.language.texts import tokenizer_of
    from flwr_splitmix.attacks.catalogue import text_attack_named
    from flwr_splitmix.attacks.results import Kept
    from flwr_splitmix.attacks.scoring.text_scores import TextFloors, score_texts

    kind = text_attack_named(request.attack)
    attacked = attacked_texts(opened, request.client)
    for remark in attacked.remarks:
        typer.echo(f"note: {remark}", err=True)
    seed = request.seed
    number = VICTIMS if request.victims is None else request.victims
    case = attacked.case(number, seed=seed)
    trained = sum(case.trained)
    tell_of_fewer(number, trained, len(case.trained) - trained, "text")
    spent = replace(budget(), device=torch.device("cpu"))
    texts = _public(attacked, request.public, PUBLIC[spent.scale], seed)
    attack = kind()
    attack.fit(case.view, texts, spent, seed=seed)
    guesses = attack.run(case.view)
    floors = TextFloors(attacked.known, texts, attacked.begin, seed=seed)
    decode = tokenizer_of(attacked.config).decode
    scored = score_texts(guesses, case.origins, floors, decode, seed=seed)
    samples = [{**row, "trained": case.trained[row["text"]]} for row in scored.rows]
    method = attacked.config.strategy
    stopped = spent.stopped_after
    kept = Kept(
        method,
        request.attack,
        request.adversary,
        scale=spent.scale,
        measures=scored.measures,
        pictures=None,
        seed=seed,
        stopped_after=stopped,
        client=attacked.client,
        victims=number,
        public=request.public,
    )
    if len(scored.rows) < len(case.origins):
        typer.echo(
            f"note: within its time the attack guessed at {len(scored.rows)} of "
            f"{counted(len(case.origins), 'text')}",
            err=True,
        )
    return kept, samples


def _public(attacked: AttackedTexts, source: str | None, most: int, seed: int) -> list[Tensor]:
    """Return the attacker's own texts as tokens: the run's public ones, or others.

    Raises
    ------
    RunError
        If there are none but the client's own.
    """
    from flwr_splitmix.apps.language.texts import public_set, tokenizer_of
    from flwr_splitmix.data.texts.public import load_public_texts
    from flwr_splitmix.data.texts.token_sets import public_token_set
    from flwr_splitmix.seeding import generator

    config = attacked.config
    if source is None:
        texts = public_set(config).texts
    else:
        pieces = load_public_texts(source, unit=config.unit, max_words=config.public_words)
        tokens = public_token_set(pieces, tokenizer_of(config), max_length=config.text_length)
        texts = tokens.texts
    own = {_key(text) for data in (attacked.train, attacked.test) for text in data.texts}
    others = [text for text in texts if _key(text) not in own]
    if not others:
        where = "--public" if source is not None else "the run's key public"
        raise RunError(
            f"all texts of {where} are the client's own, so the attacker has none; choose other "
            "texts with --public"
        )
    order = generator(seed, "public").permutation(len(others))[:most]
    return [others[place] for place in order]


def _key(text: Any) -> tuple[int, ...]:
    return tuple(text.tolist())

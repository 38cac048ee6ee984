"""An attack on the texts of a run, by `splitmix attack run`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from flwr_splitmix.cli.attack.victims import note_fewer_victims
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.words import counted

if TYPE_CHECKING:
    from torch import Tensor

    from flwr_splitmix.apps.language.attacked import AttackedTexts
    from flwr_splitmix.attacks.fitted import Budget
    from flwr_splitmix.attacks.results import AttackResult
    from flwr_splitmix.attacks.running.request import AttackRequest


def attack_texts(opened: Run, request: AttackRequest, budget: Callable[[], Budget]) -> AttackResult:
    """Attack texts of a client of a run, and return the result.

    Raises
    ------
    RunError, ValueError
        If there is no such attack or nothing to attack, or the server lacks what it needs.
    VaultError, DataError, ConfigError
        If the recording has other texts, or texts or model are not on this machine.
    """
    import torch

    from flwr_splitmix.apps.language.attacked import attacked_texts
    from flwr_splitmix.apps.language.texts import tokenizer_of
    from flwr_splitmix.attacks.catalogue import text_attack_named
    from flwr_splitmix.attacks.running.texts import MAX_PUBLIC, run_on_texts

    kind = text_attack_named(request.attack)
    attacked = attacked_texts(opened, request.client)
    for remark in attacked.remarks:
        typer.echo(f"note: {remark}", err=True)
    request = replace(request, client=attacked.client)
    case = attacked.case(request.victims, seed=request.seed)
    trained = sum(case.trained)
    note_fewer_victims(request.victims, trained, len(case.trained) - trained, "text")
    spent = replace(budget(), device=torch.device("cpu"))
    texts = _public_texts(attacked, request, MAX_PUBLIC[spent.scale])
    decode = tokenizer_of(attacked.config).decode
    result = run_on_texts(kind, case, texts, spent, request, decode)
    if len(result.rows) < len(case.origins):
        typer.echo(
            f"note: within its time the attack guessed at {len(result.rows)} of "
            f"{counted(len(case.origins), 'text')}",
            err=True,
        )
    return result


def _public_texts(attacked: AttackedTexts, request: AttackRequest, most: int) -> list[Tensor]:
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

    config, source = attacked.config, request.public
    if source is None:
        texts = public_set(config).texts
    else:
        pieces = load_public_texts(source, unit=config.unit, max_words=config.public_words)
        tokens = public_token_set(pieces, tokenizer_of(config), max_length=config.text_length)
        texts = tokens.texts
    client_keys = {_key(text) for data in (attacked.train, attacked.test) for text in data.texts}
    others = [text for text in texts if _key(text) not in client_keys]
    if not others:
        where = "--public" if source is not None else "the run's key public"
        raise RunError(
            f"all texts of {where} are the client's own, so the attacker has none; choose other "
            "texts with --public"
        )
    order = generator(request.seed, "public").permutation(len(others))[:most]
    return [others[place] for place in order]


def _key(text: Any) -> tuple[int, ...]:
    return tuple(text.tolist())

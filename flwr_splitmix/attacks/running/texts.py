"""One attack on texts: its fit on public texts, its run, its scores."""

from __future__ import annotations

from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.results import AttackResult
from flwr_splitmix.attacks.running.request import AttackRequest
from flwr_splitmix.attacks.scoring.text_scores import Decode, TextFloors, score_texts
from flwr_splitmix.attacks.texts.checked_guesses import checked_guesses
from flwr_splitmix.attacks.texts.text_case import TextCase
from flwr_splitmix.attacks.texts.view import PublicTexts, TextAttack

MAX_PUBLIC = {"smoke": 100, "cpu": 800, "paper": 8000}
"""Most public texts that an attacker gets, by scale."""


def run_on_texts(
    kind: type[TextAttack],
    case: TextCase,
    public: PublicTexts,
    budget: Budget,
    request: AttackRequest,
    decode: Decode,
) -> AttackResult:
    """Fit an attack on public texts, run it on a case, and score its guesses.

    Parameters
    ----------
    case
        The case of the request, of an adversary that has the base model.
    public
        Texts of no victim.
    decode
        Turns tokens into text, for ROUGE-L and METEOR.

    Raises
    ------
    NotApplicable
        If the adversary lacks what the attack needs.
    TypeError, ValueError
        If its `run` returns anything but guesses at texts of the view, or none.
    """
    view, seed = case.view, request.seed
    attack = kind()
    attack.fit(view, public, budget, seed=seed)
    guesses = checked_guesses(attack, attack.run(view), view)
    stopped_after = budget.stopped_after  # before the scores, which are none of the attack's time
    floors = TextFloors(view.knowledge.parts(), public, view.knowledge.begin, seed=seed)
    scored = score_texts(guesses, case.origins, floors, decode, seed=seed)
    return AttackResult.of(
        request,
        view,
        scale=budget.scale,
        stopped_after=stopped_after,
        measures=scored.measures,
        rows=[{**row, "trained": case.trained[row["text"]]} for row in scored.rows],
    )

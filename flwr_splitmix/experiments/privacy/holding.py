"""Methods that hold, so that no attack reads their words, with their utility."""

from __future__ import annotations

from collections.abc import Sequence

from flwr_splitmix.experiments.privacy.kinds import Matrix
from flwr_splitmix.experiments.privacy.results import Result
from flwr_splitmix.experiments.privacy.tables import number, result_to_show

BOUND = 0.2
"""Share of a text's words below which an attack counts as unsuccessful."""


def holding(results: Sequence[Result], matrix: Matrix) -> str:
    """Return the sentence for a page on the methods that hold, the most useful first.

    A method holds if no attack that counts reads `BOUND` of the words or more. Only those methods
    are judged on which all attacks in `results` were run, and at least one of them counts.
    """
    attacks = {(r.attack, r.adversary) for r in results if r.attack != "none"}
    holders, judged = [], 0
    for method in dict.fromkeys(r.method for r in results):
        method_results = [r for r in results if r.method == method]
        if {(r.attack, r.adversary) for r in method_results if r.attack != "none"} != attacks:
            continue
        main = [
            result_to_show([r for r in method_results if (r.attack, r.adversary) == key], matrix)
            for key in attacks
        ]
        counted = [r for r in main if r.passed_gate and r.value is not None]
        if not counted:
            continue
        judged += 1
        strongest = max(counted, key=lambda r: r.value or 0.0)
        if (strongest.value or 0.0) < BOUND:
            utility = next(
                r
                for fact in matrix.facts
                for r in method_results
                if (r.attack, r.metric) == ("none", fact.metric)
            )
            holders.append((utility, strongest))
    if not judged:
        return "No method was attacked in every way that is shown here, by one that counts."
    if not holders:
        return (
            f"Of each of the {judged} methods that were attacked in every way, an attack reads "
            f"{BOUND:g} of the words or more."
        )
    phrases = [
        f"`{utility.method}` ({utility.metric} {number(utility.value)}; `{strongest.attack}` reads "
        f"{number(strongest.value)})"
        for utility, strongest in sorted(holders, key=lambda one: -(one[0].value or 0.0))
    ]
    return (
        f"Of the {judged} methods that were attacked in every way, these let no attack read "
        f"{BOUND:g} of the words, the most useful first: {', '.join(phrases)}."
    )

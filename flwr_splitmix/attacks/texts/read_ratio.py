"""Words read from what the returned gradients tell to decode the messages with."""

from __future__ import annotations

from typing import ClassVar

from flwr_splitmix.attacks.texts.gradient_ratio import gradient_ratio
from flwr_splitmix.attacks.texts.view import PublicTexts, TextAttack, TextGuess, TextView
from flwr_splitmix.attacks.texts.vocabulary import Reader


class ReadRatio(TextAttack):
    """Decode each text's messages with the weights that its gradients tell, and read its words."""

    name = "gradient-ratio"
    needs: ClassVar[frozenset[str]] = frozenset(
        {"base model", "decoder", "gradients", "several messages"}
    )
    source = "ours"

    def learn(self, view: TextView, public: PublicTexts | None) -> None:
        """Make the table of all tokens."""
        known = view.knowledge
        self.reader = Reader(known.parts(), known.begin)

    def run(self, view: TextView) -> list[TextGuess]:
        """Guess each text whose gradients came back and are not zero."""
        guesses = []
        for number, release in enumerate(view.releases):
            if number and self.budget.over:
                break
            returned = release.gradients
            if returned is not None and bool(returned.any()):
                told = gradient_ratio(release.messages[:, None], returned[:, None])
                guesses.append(TextGuess(number, *self.reader.read(told.estimate[0]), "ratio"))
            self.budget.progress(self.name, number + 1, len(view.releases))
        return guesses

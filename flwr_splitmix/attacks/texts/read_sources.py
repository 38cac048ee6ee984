"""Words read from the independent components of a text's messages."""

from __future__ import annotations

from typing import ClassVar

from flwr_splitmix.attacks.texts.blind_source import blind_source
from flwr_splitmix.attacks.texts.view import PublicTexts, TextAttack, TextGuess, TextView
from flwr_splitmix.attacks.texts.vocabulary import Reader


class ReadSources(TextAttack):
    """Separate each text's messages into independent components, and read the words of each."""

    name = "blind-source"
    needs: ClassVar[frozenset[str]] = frozenset({"base model", "decoder", "several messages"})
    source = "ours, with FastICA (Hyvärinen and Oja 2000)"

    def learn(self, view: TextView, public: PublicTexts | None) -> None:
        """Make the table of all tokens."""
        known = view.knowledge
        self.reader = Reader(known.parts(), known.begin)

    def run(self, view: TextView) -> list[TextGuess]:
        """Guess each text from every component."""
        guesses = []
        for number, release in enumerate(view.releases):
            if number and self.budget.over:
                break
            for place, component in enumerate(blind_source(release.messages, seed=self.seed)):
                ids, fit = self.reader.read(component)
                guesses.append(TextGuess(number, ids, fit, f"component {place + 1}"))
            self.budget.progress(self.name, number + 1, len(view.releases))
        return guesses

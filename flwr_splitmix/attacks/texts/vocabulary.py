"""Reading texts word by word: the token whose hidden state under the head is nearest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from flwr_splitmix.attacks.texts.moved_head import MovedHead, moved_head
from flwr_splitmix.attacks.texts.view import (
    PublicTexts,
    TextAttack,
    TextReading,
    TextRelease,
    TextView,
    readings_of,
)
from flwr_splitmix.attacks.texts.word_pairs import WordPairs
from flwr_splitmix.attacks.texts.word_reader import WordReader

__all__ = ["ReaderAttack", "Vocabulary"]


class ReaderAttack(TextAttack):
    """An attack that estimates hidden states and reads them with a `WordReader`.

    The reader has the base model's head or, where clients sent plain states of public texts and
    the attacker has such texts, one fitted to these states.
    """

    def learn(self, view: TextView, public: PublicTexts | None) -> None:
        """Make the table of all tokens, after fitting the head if possible."""
        knowledge = view.knowledge
        self.parts = knowledge.parts()
        self.moved: MovedHead | None = None
        self.reader = WordReader(self.parts, knowledge.begin)
        self.pairs = WordPairs(public, self.parts.vocab_size) if public else None
        if self.pairs is not None and view.public_releases:
            self.moved = moved_head(
                self.parts,
                self.reader,
                view.public_releases,
                self.pairs,
                self.budget,
                seed=self.seed,
            )
            self.parts = self.moved.parts
            self.reader = WordReader(self.parts, knowledge.begin)


class Vocabulary(ReaderAttack):
    """Read every message, and their mean, place by place.

    At cut 0 each place's token is the one whose embedding has the state's direction. After layers,
    a token's state depends on those before it, so the text is read from left to right: among the
    tokens whose state alone is near, with and without the shift by the tokens before, the one whose
    state given these is nearest.

    It needs no gradient. It uses the base model's head, from which a fine-tuned head differs, or
    the head that plain states of public texts teach it. Of a single message these also tell scale
    and noise, and then the likeliest text is read, by words that follow each other in public texts.
    """

    name = "vocabulary"
    needs: ClassVar[frozenset[str]] = frozenset({"base model", "decoder"})
    source = "after arXiv 2505.18332; reading from left to right is ours"

    def readings(self, release: TextRelease, view: TextView) -> Iterator[TextReading]:
        """Read every message and their mean."""
        for way, message in readings_of(release.messages).items():
            moved, pairs = self.moved, self.pairs
            if pairs is None or moved is None or moved.scale is None or moved.noise is None:
                yield *self.reader.read(message, pairs), way
            else:
                yield *self.reader.read_noisy(message / moved.scale, moved.noise, pairs), way

"""Words read from the independent components of a text's messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from flwr_splitmix.attacks.texts.blind_source import blind_source
from flwr_splitmix.attacks.texts.view import TextReading, TextRelease, TextView
from flwr_splitmix.attacks.texts.vocabulary import ReaderAttack


class ReadSources(ReaderAttack):
    """Separate each text's messages into independent components, and read the words of each."""

    name = "blind-source"
    needs: ClassVar[frozenset[str]] = frozenset({"base model", "decoder", "several messages"})
    source = "ours, with FastICA (Hyvärinen and Oja 2000)"

    def readings(self, release: TextRelease, view: TextView) -> Iterator[TextReading]:
        """Read every component."""
        for place, component in enumerate(blind_source(release.messages, seed=self.seed)):
            yield *self.reader.read(component, self.pairs), f"component {place + 1}"

"""Words read from messages that are decoded with weights from the returned gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from flwr_splitmix.attacks.texts.gradient_ratio import gradient_ratio
from flwr_splitmix.attacks.texts.view import TextReading, TextRelease, TextView
from flwr_splitmix.attacks.texts.vocabulary import ReaderAttack


class ReadRatio(ReaderAttack):
    """Decode each text's messages with the weights that its gradients reveal; read its words."""

    name = "gradient-ratio"
    needs: ClassVar[frozenset[str]] = frozenset(
        {"base model", "decoder", "gradients", "several messages"}
    )
    source = "ours"

    def readings(self, release: TextRelease, view: TextView) -> Iterator[TextReading]:
        """Read a text whose gradients were returned and are not zero."""
        returned = release.gradients
        if returned is not None and bool(returned.any()):
            ratio = gradient_ratio(release.messages[:, None], returned[:, None])
            yield *self.reader.read(ratio.estimate[0], self.pairs), "ratio"

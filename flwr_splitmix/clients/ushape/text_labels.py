"""Whether a client's training texts have labels to learn from."""

from __future__ import annotations

import logging

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.data.examples import ExampleSet
from flwr_splitmix.data.texts.text_set import IGNORED, TextSet
from flwr_splitmix.scoring.texts import scored
from flwr_splitmix.words import counted, have

log = logging.getLogger("flwr.splitmix")

_UNLABELLED = f"{IGNORED} marks tokens without, and a text's first token is never predicted"


def check_labelled(data: ExampleSet) -> None:
    """Refuse training texts without any label to predict; warn if only some have one.

    Only `TextSet` objects are checked.

    Raises
    ------
    ClientError
        If there are texts, and none has such a label.
    """
    if not isinstance(data, TextSet) or not len(data):
        return
    without = sum(not len(scored(label[None])) for label in data.labels)
    if not without:
        return
    if without == len(data):
        raise ClientError(
            f"none of {counted(len(data), 'training text')} has a label to predict: {_UNLABELLED}"
        )
    log.warning(
        "%d of %s %s no label to predict (%s): nothing is learned from batches of them alone, "
        "which do not count in the loss; leave such texts out",
        without,
        counted(len(data), "training text"),
        have(without),
        _UNLABELLED,
    )

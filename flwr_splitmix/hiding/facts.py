"""Facts of hidings, for servers, apps and attacks that know no method by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from flwr_splitmix.overriding import overridden


class HidingFacts:
    """Facts of a class of hidings, known before there is an object or a run.

    Attributes
    ----------
    warning
        A warning for the user who starts a run, "" for none; the strategy logs it.
    accounts
        Whether clients account for an epsilon, so that a round must not be repeated for free.
    texts_only
        Whether the method is about tokens, so that images and the like cannot be hidden by it.
    teaches_head
        Whether the method works only by training the head, so that it needs one that learns.
    apart
        Of "head", "trunk" and "tail", those that must keep a batch's examples apart for the epsilon
        to hold. Clients try their head and tail, and a strategy its trunk.
    rests_on
        Methods on which the epsilon rests. A client that overrides one is refused, and so is a
        subclass, unless it also overrides `charge`: it must state the cost of what it sends.
    own_masks
        Whether `obfuscate` may send other masks than it gets. A subclass with an `obfuscate` of its
        own may, unless it states otherwise.
    mixes_batch
        Whether an example's messages depend on the others of its batch. Those of a subclass with an
        `obfuscate` of its own do, unless it states otherwise.
    watches_layers
        Whether it watches the inputs of the layers of head and tail, which must not be computed
        twice (`gradient-checkpointing`); some layers may be unfit (`UnfitError`).
    not_accounted
        Why noise has no epsilon, with the method's name before it; "" for no noise, and for a
        ledger.
    """

    warning: ClassVar[str] = ""
    accounts: ClassVar[bool] = False
    texts_only: ClassVar[bool] = False
    teaches_head: ClassVar[bool] = False
    apart: ClassVar[tuple[str, ...]] = ("head",)
    rests_on: ClassVar[tuple[str, ...]] = ()
    own_masks: ClassVar[bool] = False
    mixes_batch: ClassVar[bool] = False
    watches_layers: ClassVar[bool] = False
    not_accounted: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        """Void what a base states of an `obfuscate` that the class overrides."""
        super().__init_subclass__(**options)
        if overridden(cls, ("obfuscate",), "own_masks"):
            cls.own_masks = True
        if overridden(cls, ("obfuscate",), "mixes_batch"):
            cls.mixes_batch = True

    @classmethod
    def least_batch(cls, *, texts: bool) -> int:
        """Return the fewest examples of a batch among which the method does anything.

        A client refuses smaller training batches, and joins a smaller rest of its test examples
        with the batch before.

        Parameters
        ----------
        texts
            Whether they are texts, rather than images and the like.
        """
        return 1

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """Check options before a run; every value is already of its type and range by itself.

        Parameters
        ----------
        options
            The method's own, by name, without data sets and the values of a tokenizer.

        Raises
        ------
        ValueError
            If they do not go together; the message has the names of the options.
        """

    @classmethod
    def messages_per_batch(cls, options: Mapping[str, Any]) -> int:
        """Return how many messages a client sends for a batch; `options` as in `check_options`."""
        return 1

    @classmethod
    def calibrates(cls, options: Mapping[str, Any]) -> bool:
        """Return whether clients send public texts to learn; `options` as in `check_options`."""
        return False

    @classmethod
    def uncharged(cls) -> str:
        """Return the first method of `rests_on` overridden without `charge`, or ""."""
        return overridden(cls, cls.rests_on, "charge")

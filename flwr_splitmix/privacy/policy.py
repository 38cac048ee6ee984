"""A node's privacy policy for all runs: plain values set by its operator."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr_splitmix.files.home import expanded
from flwr_splitmix.privacy.accountant import check_delta

POLICY = "privacy-policy"
"""Key of the node's configuration: a TOML file that holds the other keys."""


class PolicyError(ValueError):
    """A node's policy is invalid; the message names the key, its value and the allowed ones."""


@dataclass(frozen=True, kw_only=True)
class NodePolicy:
    """Limits on what may leave a node, set by its operator for all runs.

    Parameters
    ----------
    max_epsilon
        Largest epsilon of this node's data over all runs together; None sets no limit.
    delta
        Delta of the (epsilon, delta) guarantee, above 0 and below 1. The smaller of this and the
        run's holds; None: 1e-5 with a limit, else the run's.
    allow_averaging
        Whether the node's segments may be sent to be averaged, and replaced within a run; None:
        yes, unless there is a limit, nothing may be sent plain, or the node uploads only to a
        mixer.
    allow_evaluation
        Whether the node's own test data may be sent without noise; None: yes, unless there is a
        limit or nothing may be sent plain.
    allow_benchmark
        Whether the run's benchmark data may be sent without noise, and public texts on which
        clients calibrate. The run says which data these are, and that they are public. None: yes,
        unless there is a limit or nothing may be sent plain.
    allow_plain
        Whether anything may be sent without noise; None: yes, unless there is a limit. False alone
        is none: the run names the noise, and may name next to none.
    allow_training
        Whether gradients from the server may change the lower segment; None: yes. A server can
        choose them such that one record moves the uploads of all others, which no epsilon counts.
    allow_spreading
        Whether patches may be masked whose content other tokens have, too, because layers before
        the cut let it spread; None: yes.
    allow_insecure
        Whether the node may dial another machine without TLS; None: yes, unless it has a
        certificate of its own.

    Raises
    ------
    PolicyError
        If a value is out of its range, or two contradict each other.
    """

    max_epsilon: float | None = None
    delta: float | None = None
    allow_averaging: bool | None = None
    allow_evaluation: bool | None = None
    allow_benchmark: bool | None = None
    allow_plain: bool | None = None
    allow_training: bool | None = None
    allow_spreading: bool | None = None
    allow_insecure: bool | None = None

    def __post_init__(self) -> None:
        limit = self.max_epsilon
        if limit is not None and not (_is_number(limit) and limit > 0):
            raise PolicyError(f"max-epsilon is {limit!r}; it must be a number above 0")
        if self.delta is not None:
            if not _is_number(self.delta):
                raise PolicyError(f"delta is {self.delta!r}; it must be a number between 0 and 1")
            try:
                check_delta(self.delta)
            except ValueError as error:
                raise PolicyError(str(error)) from None
        for key in _SWITCHES:
            value = getattr(self, _field(key))
            if value is not None and not isinstance(value, bool):
                raise PolicyError(f"{key} is {value!r}; it must be true or false")
        if limit is not None and self.allow_plain:
            raise PolicyError(
                f"max-epsilon is {limit:g} and allow-plain is true; what is sent without noise has "
                "no epsilon, so only one of the two can hold"
            )

    @property
    def plain(self) -> bool:
        """Whether anything may be sent without noise."""
        return self.max_epsilon is None if self.allow_plain is None else self.allow_plain

    @property
    def benchmark(self) -> bool:
        """Whether data that the run says are public may be sent without noise."""
        return self.plain if self.allow_benchmark is None else self.allow_benchmark

    @property
    def trains(self) -> bool:
        """Whether gradients from the server may change the lower segment."""
        return self.allow_training is not False

    @property
    def spreads(self) -> bool:
        """Whether patches may be masked that spread to other tokens before the cut."""
        return self.allow_spreading is not False

    @property
    def limits(self) -> bool:
        """Whether it limits what may leave, rather than only how."""
        return replace(self, allow_insecure=None) != NodePolicy()

    @classmethod
    def of_node(cls, node: Mapping[str, Any]) -> NodePolicy:
        """Read the policy from a node's configuration, whose keys override those of the file.

        Raises
        ------
        PolicyError
            If the file cannot be read, has an unknown key, or a value is invalid.
        """
        values: dict[str, Any] = {}
        if POLICY in node:
            path = node[POLICY]
            if not isinstance(path, str) or not path.strip():
                raise PolicyError(
                    f"{POLICY} is {path!r}, so this node would be without its policy; name a TOML "
                    "file, or leave the key out"
                )
            values = _read_file(expanded(path, POLICY, PolicyError))
        values |= {key: node[key] for key in KEYS if key in node}
        return cls(**{_field(key): value for key, value in values.items()})


_SWITCHES = (
    "allow-averaging", "allow-evaluation", "allow-benchmark", "allow-plain", "allow-training",
    "allow-spreading", "allow-insecure",
)  # fmt: skip

KEYS = ("max-epsilon", "delta", *_SWITCHES)
"""Keys of a node's configuration, or of the policy file that it names."""


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise PolicyError(f"{POLICY} {path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # even for a number with too many digits
        raise PolicyError(f"{POLICY} {path} is not a TOML file: {error}") from None
    if unknown := sorted(set(values) - set(KEYS)):
        raise PolicyError(
            f"{POLICY} {path} has an unknown key {unknown[0]!r}; the keys are {', '.join(KEYS)}"
        )
    return values


def _field(key: str) -> str:
    return key.replace("-", "_")


def _is_number(value: Any) -> bool:
    try:
        plain = isinstance(value, (int, float)) and not isinstance(value, bool)
        return plain and math.isfinite(value)
    except OverflowError:  # of an integer
        return False

"""Results of attacks on disk: scores, samples and reconstructions, readable by the owner only."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SkipValidation, ValidationError

from flwr_splitmix.attacks.fitted import AnyView
from flwr_splitmix.attacks.gallery import Reconstructions
from flwr_splitmix.attacks.running.request import AttackRequest
from flwr_splitmix.attacks.scoring.intervals import Measure
from flwr_splitmix.files.writing import write_atomic, write_json
from flwr_splitmix.methods import BY_NAME
from flwr_splitmix.runs.damage import read_object, unreadable
from flwr_splitmix.words import counted

PICTURES = "pictures.safetensors"
"""File of reconstructed images, beside the scores."""

PAPER_ERRORS: dict[str, tuple[float, float]] = {
    "PSL": (0.0091, 0.0056),
    "MixupSL": (0.0402, 0.0351),
    "CutMixSL": (0.0458, 0.0434),
    "ShuffledPSL": (0.0672, 0.0595),
    "CutoutSL": (0.0920, 0.0829),
    "ShuffledCutMixSL": (0.1233, 0.1250),
}
"""Per-image MSE of `decoder` with 10 % and 100 % public data: DP-CutMixSL, table 8."""


class AttackResult(BaseModel):
    """One attack's result: what was asked for, and what came of it.

    Its samples and pictures have files of their own; all else is the contents of scores.json.

    Parameters
    ----------
    method
        Name of the method that was attacked.
    attack, adversary
        Names of the attack, and of the adversary whose view it was run on.
    scale
        The attack's effort; "" in files from before it was kept.
    assumed
        Segments that the adversary was given besides its own, sorted.
    seed
        Seed of the attack's draws; None in files from before it was kept.
    stopped_after
        Seconds after which the attack was stopped, by its time limit or by hand; None if it made
        its full effort, and in files from before it was kept.
    client
        Whose texts were attacked; None for images, and in files from before it was kept.
    victims
        Least number of victims of each kind, as asked for; None in files from before it was kept.
    repeats
        Releases of each held-out image.
    public
        The attacker's own data, as the user named them; None for the system's.
    measures
        The measures over all samples.
    pictures
        Reconstructed images; None if the attack makes none.
    rows
        The measures of each sample; empty in a result that was read from its files.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    method: str
    attack: str
    adversary: str
    scale: str = ""
    assumed: list[str] = Field(default_factory=list)
    seed: int | None = None
    stopped_after: float | None = None
    client: int | None = None
    victims: int | None = None
    repeats: int = 1
    public: str | None = None
    measures: list[Measure]
    pictures: Reconstructions | None = Field(default=None, exclude=True)
    rows: SkipValidation[Sequence[dict[str, Any]]] = Field(default=(), exclude=True, repr=False)

    @classmethod
    def of(cls, request: AttackRequest, view: AnyView, **reached: Any) -> AttackResult:
        """Return the result of a request, run on a view; `reached` are the other fields."""
        named = {"method": view.knowledge.method, "adversary": view.adversary}
        request_fields = asdict(request) | {"assumed": sorted(set(request.assumed))}
        return cls(**(request_fields | named | reached))

    @property
    def options(self) -> dict[str, Any]:
        """The options that decide a result's meaning, besides attack, adversary and assumptions.

        They are in the order of titles; those that are not known, or usual, are left out.
        """
        names = ("client", "scale", "seed", "victims", "repeats", "public")
        values = {name: getattr(self, name) for name in names}
        if self.repeats == 1:
            del values["repeats"]
        return {name: value for name, value in values.items() if value not in ("", None)}


def folder_of(folder: Path, result: AttackResult) -> Path:
    """Return the folder below `folder` of results with the same options."""
    assumptions = "".join(f"-given-{name}" for name in result.assumed)
    options = result.options
    if "public" in options:
        options["public"] = _digest(options["public"])
    chosen = "".join(f"-{name}-{value}" for name, value in options.items())
    named = f"{result.attack}-{result.adversary}{assumptions}{chosen}"
    return folder / re.sub(r"[^a-z0-9-]+", "-", named)


def _digest(name: str) -> str:
    """Return a few characters for a name that may have any, and any length."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def title(result: AttackResult, run_id: str) -> str:
    """Return a result's title: the attack, the options that decide its meaning, and its samples.

    There are more samples than `victims` were asked for: those are of two kinds, and recorded steps
    are attacked whole.
    """
    assumptions = f", given {' and '.join(result.assumed)}," if result.assumed else ""
    phrases = {name: f"{name} {value}" for name, value in result.options.items()}
    if samples := next((measure.samples for measure in result.measures if measure.main), 0):
        phrases["victims"] = counted(samples, "sample")
        if result.victims not in (None, samples):
            phrases["victims"] += f", --victims {result.victims}"
    chosen = "".join(f", {phrase}" for phrase in phrases.values())
    return (
        f"{result.attack} by {result.adversary}{assumptions} on {result.method} "
        f"({run_id}{chosen}{_stopped_suffix(result)})"
    )


def complete_result(folder: Path, result: AttackResult) -> bool:
    """Whether a result of full effort with the same options is below a folder.

    Raises
    ------
    RunError
        If its scores cannot be read.
    """
    file = folder_of(folder, result) / "scores.json"
    return file.exists() and _read(file).stopped_after is None


def keep(folder: Path, result: AttackResult) -> None:
    """Write scores, samples (Parquet) and reconstructions to a result's own folder.

    They replace the last ones of the same attack, adversary, assumptions and options.
    """
    result_folder = folder_of(folder, result)
    result_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_rows(result_folder / "samples.parquet", result.rows)
    write_json(result_folder / "scores.json", result.model_dump(), private=True)
    if result.pictures is not None:
        result.pictures.save(result_folder / PICTURES)


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write samples as Parquet, readable by the owner only."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = dict.fromkeys(name for row in rows for name in row)
    sink = io.BytesIO()
    pq.write_table(pa.table({c: [row.get(c) for row in rows] for c in columns}), sink)
    write_atomic(path, sink.getvalue(), private=True)


def kept_results(folder: Path) -> list[AttackResult]:
    """Return all results below a folder, by name.

    Raises
    ------
    RunError, StorageError
        If a file cannot be read.
    """
    results = []
    for file in sorted(folder.glob("*/scores.json")):
        pictures = file.with_name(PICTURES)
        drawn = Reconstructions.load(pictures) if pictures.exists() else None
        results.append(_read(file).model_copy(update={"pictures": drawn}))
    return results


def _read(file: Path) -> AttackResult:
    try:
        return AttackResult.model_validate(read_object(file))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise unreadable(file, f"{where}: {first['msg']}") from error


def _stopped_suffix(result: AttackResult) -> str:
    return "" if result.stopped_after is None else f", stopped after {result.stopped_after:.1f} s"


def stopped_note(result: AttackResult) -> str:
    """Return a note on an attack that was cut short; "" if it made its full effort."""
    if result.stopped_after is None:
        return ""
    return (
        f"{result.attack} was stopped after {result.stopped_after:.1f} s, before its full effort: "
        "that it does not beat a floor is no evidence"
    )


def paper_note(result: AttackResult) -> str:
    """Return a note on a paper's value for this result; "" if there is none."""
    entry = BY_NAME.get(result.method)
    if result.attack != "decoder" or entry is None or entry.name not in PAPER_ERRORS:
        return ""
    small, all_of_it = PAPER_ERRORS[entry.name]
    return (
        f"DP-CutMixSL, table 8, has for {entry.name} and the adversary 'upper only' an MSE of "
        f"{small:.4f} with 10 % and {all_of_it:.4f} with 100 % of the public data"
    )

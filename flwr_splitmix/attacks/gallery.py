"""Figures of attack results: originals, what was sent, and reconstructions, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flwr_splitmix.attacks.base import Guess, View
from flwr_splitmix.attacks.images.embedding.patches import patch_size, to_images, to_patches
from flwr_splitmix.attacks.recording.vault import Truth
from flwr_splitmix.attacks.release import Origin, Release
from flwr_splitmix.attacks.scoring.image_scores import squared_errors
from flwr_splitmix.attacks.scoring.pairs import pairs_of
from flwr_splitmix.storage import StorageError, load_tensors, save_tensors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TENSORS = ("victims", "originals", "sent", "guesses", "errors")
GREY = 0.5
"""Grey value of patches that were not sent."""


@dataclass(frozen=True)
class Reconstructions:
    """One attack's reconstructions of the victims of one method.

    Parameters
    ----------
    method, attack, adversary
        Their names.
    victims
        int64 (n,), positions in the truth.
    originals, sent, guesses
        uint8 (n, C, H, W). "sent" is drawn in pixels: the patches sent, in their places, and grey
        elsewhere; sums as sums; noise and lower segment are left out.
    errors
        float64 (n,), mean squared errors of pixels of 0 to 1.
    """

    method: str
    attack: str
    adversary: str
    victims: Tensor
    originals: Tensor
    sent: Tensor
    guesses: Tensor
    errors: Tensor

    @classmethod
    def of(cls, attack: str, view: View, guess: Guess, truth: Truth) -> Reconstructions:
        """Pair guesses with their victims, keeping the first guess at each victim."""
        first: dict[int, int] = {}
        for number, victim in pairs_of(guess, truth):
            first.setdefault(victim, number)
        victims = torch.tensor(sorted(first))
        numbers = [first[victim] for victim in victims.tolist()]
        originals = truth.pictures.images[victims]
        uploads = [_draw_sent(view, truth, guess.where[number]) for number in numbers]
        guesses = guess.values.cpu().float()[numbers].clamp(0, 1)
        return cls(
            view.knowledge.method,
            attack,
            view.adversary,
            victims,
            _bytes(originals),
            _bytes(torch.stack(uploads)),
            _bytes(guesses),
            squared_errors(guesses, originals),
        )

    def save(self, path: Path) -> None:
        """Write the reconstructions to a file, readable by the owner only."""
        tensors = {name: getattr(self, name) for name in _TENSORS}
        meta = {"method": self.method, "attack": self.attack, "adversary": self.adversary}
        save_tensors(path, tensors, meta, private=True)

    @classmethod
    def load(cls, path: Path) -> Reconstructions:
        """Read what `save` wrote; raise StorageError if that fails."""
        tensors, meta = load_tensors(path)
        try:
            method, attack, adversary = (str(meta[n]) for n in ("method", "attack", "adversary"))
            read = cls(method, attack, adversary, *(tensors[name] for name in _TENSORS))
        except KeyError as error:
            raise StorageError(f"cannot read {path}: it lacks {error}") from error
        if not read._fits():
            raise StorageError(
                f"cannot read {path}: its arrays are not pictures of victims; "
                "remove the folder that it is in, and run the attack again"
            )
        return read

    def _fits(self) -> bool:
        """Return whether the tensors have the shapes and dtypes of this class."""
        shape = self.originals.shape
        pictures = (self.originals, self.sent, self.guesses)
        return (
            len(shape) == 4
            and shape[0] >= 1
            and shape[1] in (1, 3)
            and all(p.shape == shape and p.dtype == torch.uint8 for p in pictures)
            and self.victims.shape == self.errors.shape == shape[:1]
            and not self.victims.is_floating_point()
            and self.errors.is_floating_point()
        )


def draw_gallery(shown: Sequence[Sequence[Reconstructions]]) -> Figure:
    """Draw a row of pictures for each method: its best, median and worst victim.

    The best victim is the best protected: the one that the method's strongest attack reconstructs
    worst. Each is shown with the original, what that attack's adversary was sent, and each
    attack's reconstruction with its error.

    Parameters
    ----------
    shown
        For each row, one method's attacks.

    Raises
    ------
    ValueError
        If there is nothing to show.
    """
    from matplotlib.figure import Figure

    rows = [list(row) for row in shown if row]
    if not rows:
        raise ValueError("there are no reconstructions to show")
    attacks = list(
        dict.fromkeys(_title(reconstructions) for row in rows for reconstructions in row)
    )
    width, block = 3 * (2 + len(attacks)), 2 + len(attacks)
    height = 1.25 * len(rows) + 0.6
    figure = Figure(figsize=(1.05 * width + 1.6, height))
    axes = figure.subplots(len(rows), width, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for line, row in zip(axes, rows, strict=True):
        strongest = min(row, key=lambda reconstructions: float(reconstructions.errors.mean()))
        order = strongest.errors.argsort(descending=True)
        picks = [int(order[0]), int(order[len(order) // 2]), int(order[-1])]
        line[0].text(
            -0.15, 0.5, row[0].method, transform=line[0].transAxes, ha="right", va="center"
        )
        for third, pick in enumerate(picks):
            victim, start = int(strongest.victims[pick]), third * block
            _draw(line[start], strongest.originals[pick], "")
            _draw(line[start + 1], strongest.sent[pick], "")
            for reconstructions in row:
                at = (reconstructions.victims == victim).nonzero().flatten()
                if len(at):
                    error = float(reconstructions.errors[at[0]])
                    axis = line[start + 2 + attacks.index(_title(reconstructions))]
                    _draw(axis, reconstructions.guesses[at[0]], f"{error:.4f}")
    words = ("best protected: ", "median: ", "worst: ")
    for third, word in enumerate(words):
        names = ["original", "sent", *attacks]
        for place, name in enumerate(names):
            axes[0][third * block + place].set_title(
                f"{word if place == 0 else ''}{name}".replace(": ", ":\n"), fontsize=7
            )
    figure.subplots_adjust(
        left=0.12, right=0.99, top=1 - 0.5 / height, bottom=0.15 / height, wspace=0.08, hspace=0.3
    )
    return figure


def _draw(axis: Any, image: Tensor, below: str) -> None:
    pixels = image.permute(1, 2, 0).numpy()
    grey = pixels.shape[-1] == 1
    axis.imshow(pixels.squeeze(-1) if grey else pixels, cmap="gray", vmin=0, vmax=255)
    if below:
        place = {"transform": axis.transAxes, "ha": "center", "va": "top", "fontsize": 6}
        axis.text(0.5, -0.04, below, **place)


def _title(reconstructions: Reconstructions) -> str:
    return f"{reconstructions.attack}\n{reconstructions.adversary}"


def _bytes(images: Tensor) -> Tensor:
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def _draw_sent(view: View, truth: Truth, where: tuple[int, int]) -> Tensor:
    """Draw in pixels what was sent for a row: (C, H, W)."""
    release, row = view.releases[where[0]], where[1]
    origin = truth.origins[where[0]]
    images = [
        truth.pictures.images[int(v)] if v >= 0 else torch.zeros(view.knowledge.image_shape)
        for v in origin.sources[row]
    ]
    grid = _grid(view)
    if grid is None:
        return images[0] * (release.lam or 1.0)
    cells = torch.stack([to_patches(image[None], grid)[0] for image in images])
    drawn = _composed_patches(cells, origin, release, row)
    if origin.order is not None:
        order = origin.order[row]
        if int(order.max()) < drawn.shape[0]:
            shuffled = drawn[order]
        else:  # exchanged within the batch
            batch, others = origin.sources[:, 0], order // drawn.shape[0]
            parts = {
                int(o): to_patches(truth.pictures.images[int(batch[o])][None], grid)[0]
                for o in torch.unique(others)
            }
            shuffled = torch.stack(
                [parts[int(o)][int(j) % len(drawn)] for o, j in zip(others, order, strict=True)]
            )
        drawn = shuffled
    if release.mask is not None:
        drawn = torch.where(release.mask[row][:, None], drawn, torch.full_like(drawn, GREY))
    return to_images(drawn[None], grid, view.knowledge.image_shape)[0]


def _composed_patches(cells: Tensor, origin: Origin, release: Release, row: int) -> Tensor:
    """Return the patches of a row in their places, (N, pixels), before any shuffle."""
    if len(cells) == 1:
        whole = release.mask is not None and bool(release.mask.all())
        return cells[0] * (release.lam or 1.0) if whole else cells[0]
    if origin.owners is None:
        return cells.mean(0)
    owners = origin.owners[row]
    if origin.order is not None:
        owners = owners.gather(0, origin.order[row].argsort())
    column = torch.full_like(owners, 0)
    for place, member in enumerate(origin.members):
        column[owners == member] = place
    return cells[column, torch.arange(cells.shape[1])]


def _grid(view: View) -> tuple[int, int] | None:
    """Return rows and columns of patches; None if images have no whole ones."""
    try:
        grid = view.knowledge.patch_grid
        patch_size(view.knowledge.image_shape, grid)
    except ValueError:
        return None
    return grid

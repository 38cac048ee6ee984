"""Mixing inputs: who is mixed with whom, and the mixtures against ones made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.mixers import (
    FullShare,
    InputLevel,
    InputShare,
    MaskShare,
    Mixer,
    Mixup,
    PatchCutMix,
    Plan,
    RandomCutout,
    Share,
    SmashedShape,
    Upload,
    VanillaCutMix,
)

B, ROWS, COLUMNS, WIDTH, L = 4, 2, 3, 5, 3
CELLS = ROWS * COLUMNS
SHAPE = SmashedShape(B, 16, 7, classes=L)
KINDS: list[Mixer] = [Mixup(), RandomCutout(0.5), VanillaCutMix(), PatchCutMix()]


def plan_of(inner: Mixer, across: Any, n: int = 4, seed: int = 0) -> Plan:
    mixer = InputLevel(inner, (ROWS, COLUMNS), across=across)
    return mixer.plan(range(n), SHAPE, np.random.default_rng(seed))


def share_of(plan: Plan, client: int) -> InputShare:
    (share,) = plan.shares(client)
    assert isinstance(share, InputShare)
    return share


def data(n: int = 4) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    torch.manual_seed(0)
    cells = {i: torch.randn(B, CELLS, WIDTH, dtype=torch.float64) for i in range(n)}
    return cells, {i: (torch.arange(B) * (i + 1)) % L for i in range(n)}


def weight(share: Share) -> Tensor:
    """Weigh each cell, (B, cells, 1), as the definition of a part's share says."""
    if not isinstance(share, MaskShare):
        return torch.full((B, CELLS, 1), share.lam, dtype=torch.float64)
    mask = torch.zeros(B, CELLS, 1, dtype=torch.float64)
    for row, cells in enumerate(share.positions(B).expand(B, -1)):
        for cell in cells.tolist():
            mask[row, cell] = 1
    return mask


@pytest.mark.parametrize("inner", KINDS, ids=str)
def test_across_clients_a_mixture_is_made_of_the_groups_batches(inner: Mixer) -> None:
    cells, labels = data()
    plan = plan_of(inner, "clients")
    for client in range(4):
        share = share_of(plan, client)
        mixed, soft = share.mix(cells, labels)
        whole = torch.zeros(B, CELLS, WIDTH, dtype=torch.float64)
        target = torch.zeros(B, L, dtype=torch.float64)
        for other, part in share.parts:
            whole += weight(part) * cells[other]
            target += part.lam * F.one_hot(labels[other], L).double()
        torch.testing.assert_close(mixed, whole, rtol=0, atol=1e-15)
        torch.testing.assert_close(soft, target, rtol=0, atol=1e-15)
        torch.testing.assert_close(soft.sum(1), torch.ones(B, dtype=torch.float64))


@pytest.mark.parametrize("k", [2, 3])
def test_members_of_a_group_make_the_same_mixture_each_with_its_own_part_first(k: int) -> None:
    cells, labels = data()
    plan = plan_of(PatchCutMix(k), "clients")
    for client in range(4):
        share = share_of(plan, client)
        assert share.parts[0][0] == client
        for other, _ in share.parts:
            theirs = share_of(plan, other)
            assert set(theirs.parts) == set(share.parts)
            assert torch.equal(theirs.mix(cells, labels)[0], share.mix(cells, labels)[0])
    sizes = sorted(len(share_of(plan, client).parts) for client in range(4))
    assert sizes == ([2, 2, 2, 2] if k == 2 else [1, 3, 3, 3])


@pytest.mark.parametrize("inner", [Mixup(3), PatchCutMix(3), VanillaCutMix()], ids=str)
def test_within_a_batch_the_other_parts_are_the_same_batch_in_other_orders(inner: Mixer) -> None:
    cells, labels = data()
    plan = plan_of(inner, "batch")
    orders = set()
    for client in range(4):
        share = share_of(plan, client)
        assert [part[0] for part in share.parts] == [client] * inner.k
        rng = np.random.RandomState(share.seed)
        order = np.arange(B)
        whole = torch.zeros(B, CELLS, WIDTH, dtype=torch.float64)
        target = torch.zeros(B, L, dtype=torch.float64)
        for place, (_, part) in enumerate(share.parts):
            if place:
                order = rng.permutation(B)
                orders.add(tuple(order))
            whole += weight(part) * cells[client][order]
            target += part.lam * F.one_hot(labels[client][order], L).double()
        inputs = {client: cells[client]}, {client: labels[client]}
        mixed, soft = share.mix(*inputs)
        torch.testing.assert_close(mixed, whole, rtol=0, atol=1e-15)
        torch.testing.assert_close(soft, target, rtol=0, atol=1e-15)
    assert len(orders) > 1


def test_cutout_leaves_the_label_whole() -> None:
    cells, labels = data()
    for across in ("clients", "batch"):
        share = share_of(plan_of(RandomCutout(0.5), across), 1)
        assert [client for client, _ in share.parts] == [1]
        mixed, soft = share.mix(cells, labels)
        assert torch.equal(soft, F.one_hot(labels[1], L).double())
        assert (mixed == 0).all(2).sum(1).tolist() == [3] * B


def test_what_leaves_the_client_is_not_mixed_again() -> None:
    """Everything crosses, with the soft labels of the inputs; the mixture is the smashed data."""
    mixer = InputLevel(PatchCutMix(), (ROWS, COLUMNS), across="clients")
    plan = mixer.plan(range(4), SHAPE, np.random.default_rng(0))
    uploads, smashed, soft = {}, [], []
    for client in range(4):
        share = share_of(plan, client)
        assert (share.label_kind, share.lam) == ("soft", 1.0)
        assert share.upload_shape(SHAPE.size) == SHAPE.size
        smashed.append(torch.randn(SHAPE.size))
        soft.append(share.mix(*data())[1])
        soft_labels = share.upload_labels(soft[-1], torch.float32)
        assert soft_labels.dtype == torch.float32
        uploads[client] = Upload([share.upload(smashed[-1])[0]], [soft_labels])
    mixed = mixer.merge(uploads, plan, num_classes=L)
    assert torch.equal(mixed.smashed, torch.cat(smashed))
    assert torch.equal(mixed.targets, torch.cat(soft).float())
    gradient = torch.randn_like(mixed.smashed)
    back = mixer.split(gradient, mixed, plan)
    assert all(
        torch.equal(g, gradient[B * i : B * i + B]) for i in back if (g := back[i][0]) is not None
    )


def test_without_a_grid_the_cells_are_as_many_as_the_patches() -> None:
    rng = np.random.default_rng(0)
    share = share_of(InputLevel(PatchCutMix()).plan([0, 1], SHAPE, rng), 0)
    assert (share.rows, share.columns) == (4, 4)
    oblong = replace(SHAPE, grid=(2, 8))
    share = share_of(InputLevel(PatchCutMix()).plan([0, 1], oblong, rng), 0)
    assert (share.rows, share.columns) == (2, 8)


def test_weighted_sums_need_no_grid() -> None:
    """Ten patches of a series form no square."""
    series = replace(SHAPE, patches=10, grid=None)
    share = share_of(InputLevel(Mixup()).plan([0, 1], series, np.random.default_rng(0)), 0)
    assert (share.rows, share.columns) == (1, 1)


def test_within_a_batch_a_client_needs_no_other() -> None:
    within, across = InputLevel(Mixup()), InputLevel(Mixup(), across="clients")
    assert (within.min_members, within.raw_inputs_cross) == (1, False)
    assert (across.min_members, across.raw_inputs_cross) == (2, True)
    within.check_clients(1)
    with pytest.raises(
        ValueError,
        match="k is 2, but only 1 client takes part in a round; a group needs at least 2",
    ):
        across.check_clients(1)
    assert len(share_of(within.plan([3], SHAPE, np.random.default_rng(0)), 3).parts) == 2


def test_clients_of_the_same_class_are_mixed_with_each_other() -> None:
    classes = {0: 0, 1: 1, 2: 0, 3: 1}
    across, within = InputLevel(Mixup(), across="clients"), InputLevel(Mixup())
    for mixer in (across, within):
        mixer.group_within(classes)
    plan = across.plan(range(4), SHAPE, np.random.default_rng(0))
    assert all(len({classes[c] for c, _ in share_of(plan, i).parts}) == 1 for i in range(4))
    assert str(within.plan(range(4), SHAPE, np.random.default_rng(0))) == str(
        InputLevel(Mixup()).plan(range(4), SHAPE, np.random.default_rng(0))
    )


def test_who_is_left_over_sends_nothing_where_the_groups_leave_it_out() -> None:
    mixer = InputLevel(Mixup(leftover="skip"), across="clients")
    left_out = set()
    for seed in range(9):
        plan = mixer.plan(range(3), SHAPE, np.random.default_rng(seed))
        (out,) = {0, 1, 2} - plan.clients
        left_out.add(out)
        mixed = {c for client in plan.clients for c, _ in share_of(plan, client).parts}
        assert mixed == plan.clients
    assert left_out == {0, 1, 2}


def test_groups_of_an_epoch_stay() -> None:
    mixer = InputLevel(Mixup(regroup="epoch"), across="clients")
    partners = set()
    for step in range(5):
        rngs = np.random.default_rng(step), np.random.default_rng(7)
        plan = mixer.plan(range(6), SHAPE, *rngs)
        partners.add(tuple(share_of(plan, client).parts[1][0] for client in range(6)))
    assert len(partners) == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"across": "rounds"}, "across is 'rounds'; it must be one of clients, batch"),
        ({"grid": (0, 4)}, r"grid\[0\] is 0; it must be at least 1"),
        ({"grid": [4, 2.5]}, r"grid\[1\] is 2.5; it must be a whole number"),
        ({"grid": (True, 4)}, r"grid\[0\] is True; it must be a whole number"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        InputLevel(Mixup(), **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mixer": PatchCutMix}, r"mixer is the class PatchCutMix; expected an object"),
        ({"mixer": "mixup"}, r"mixer is 'mixup'; expected a Mixer, such as PatchCutMix\(k=2\)"),
        ({"grid": 4}, r"grid is an int; expected \(rows, columns\), or None"),
        ({"grid": "44"}, r"grid is '44'; expected \(rows, columns\), or None"),
        ({"grid": (4, 4, 4)}, r"grid is \(4, 4, 4\); expected \(rows, columns\), or None"),
    ],
)
def test_options_of_another_kind_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        InputLevel(**{"mixer": Mixup(), **options})


def test_a_grid_may_be_a_list_and_of_numpys_numbers() -> None:
    """Clients take shares of a grid of NumPy's numbers."""
    mixer = InputLevel(Mixup(), [np.int64(ROWS), COLUMNS])  # type: ignore[arg-type]
    assert mixer.grid == (ROWS, COLUMNS)
    share = share_of(mixer.plan(range(2), SHAPE, np.random.default_rng(0)), 0)
    assert type(share.rows) is int


def test_k_passes_are_refused() -> None:
    with pytest.raises(ValueError, match="inputs are mixed once a step; k_times is for smashed"):
        plan_of(PatchCutMix(k_times=True), "clients")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rows": 0}, "a grid of 0 x 3 cells has none"),
        ({"columns": -3}, "a grid of 2 x -3 cells has none"),
        ({"classes": 0}, "classes is 0; it must be from 1 to 1000000"),
        ({"classes": 10**12}, "classes is 1000000000000; it must be from 1 to 1000000"),
        ({"parts": ()}, "share 'input' has no parts"),
    ],
)
def test_an_impossible_mixture_is_refused(changes: dict[str, Any], sentence: str) -> None:
    good = InputShare(rows=2, columns=3, classes=3, parts=((0, FullShare()),), seed=1)
    with pytest.raises(ValueError, match=sentence):
        replace(good, **changes)

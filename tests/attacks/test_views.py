"""A view is what its adversary receives, and nothing leads from it to the truth."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from flwr_splitmix.attacks.attacked import Attacked
from flwr_splitmix.attacks.base import Attack, Guess, View
from flwr_splitmix.attacks.fitted import NotApplicable
from flwr_splitmix.attacks.pictures import Pictures, PicturesError
from flwr_splitmix.attacks.recording.trace import Trace
from flwr_splitmix.attacks.recording.vault import Truth, Vault
from flwr_splitmix.attacks.release import Adversary, Origin
from flwr_splitmix.data import ImageDataset, ImageSets
from tests.attacks.victims import attacked

ADVERSARIES: tuple[Adversary, ...] = get_args(Adversary)
SECRET = (Truth, Vault, Attacked, Trace, Origin, Pictures, ImageDataset, ImageSets)


def available(method: str, adversary: Adversary) -> frozenset[str]:
    return attacked(method).case(adversary, trained=16, held_out=8).view.available


def test_what_each_adversary_has() -> None:
    """Whoever has the upper segment has sent the first lower one, too."""
    transmitted = {"smashed data", "clients", "masks", "labels", "gradients"}
    assert available("CutMixSL", "server") == transmitted | {"losses", "upper", "lower"}
    assert available("CutMixSL", "eavesdropper") == transmitted
    mixture = {"smashed data", "labels", "gradients", "losses", "upper", "lower"}
    assert available("CutMixSL", "upper only") == mixture
    assert available("CutMixSL", "sum only") == mixture | {"masks", "owners"}
    assert available("MixupSL", "sum only") == mixture | {"masks"}
    member = {"gradients", "masks", "owners", "lower", "own labels"}
    assert available("CutMixSL", "member of the group") == member


def test_averaged_segments_go_through_the_server() -> None:
    assert {"lower", "averaged segments"} <= available("SFL", "server")
    without = attacked("SFL").case("upper only", trained=8, held_out=0).view
    assert without.knowledge.untrained
    assert "averaged segments" not in without.available
    with_lower = attacked("PSL").case("server", trained=8, held_out=0, assume=["lower"]).view
    assert not with_lower.knowledge.untrained
    assert "lower" in with_lower.available
    assert "averaged segments" not in with_lower.available


def test_ids_are_no_labels_on_the_wire() -> None:
    assert "labels" in available("BatchShuffleSL", "server")
    assert "labels" not in available("BatchShuffleSL", "eavesdropper")


def test_members_of_no_group_receive_nothing_of_others() -> None:
    assert not attacked("PSL").case("member of the group", trained=8, held_out=8).view.releases


def test_a_sum_hides_whose_upload_is_whose_and_is_the_sum() -> None:
    system = attacked("MixupSL")
    parts = system.case("server", trained=16, held_out=0).view.releases[-2:]
    whole = system.case("sum only", trained=16, held_out=0).view.releases[-1]
    assert whole.client is None
    assert torch.allclose(whole.smashed, parts[0].smashed + parts[1].smashed, atol=1e-5)


def test_the_upper_segment_sees_another_order_than_the_sum() -> None:
    system = attacked("ShuffledCutMixSL")
    upper, summed = (
        system.case(adversary, trained=16, held_out=0) for adversary in ("upper only", "sum only")
    )
    order = upper.truth.origins[-1].order
    assert order is not None
    ordered = summed.view.releases[-1].smashed
    moved = ordered.gather(1, order[:, :, None].expand_as(ordered))
    assert torch.equal(upper.view.releases[-1].smashed, moved)
    owners = summed.truth.origins[-1].owners
    assert owners is not None
    assert torch.equal(upper.truth.origins[-1].owners, owners.gather(1, order))  # type: ignore[arg-type]


def reachable(start: object) -> Iterator[object]:
    """Return all objects that attributes, items and closures lead to; modules' names are not."""
    visited, todo = {id(start)}, [start]
    while todo:
        referrer = todo.pop()
        yield referrer
        if isinstance(referrer, types.FunctionType):
            inside: list[Any] = [*(referrer.__closure__ or ()), *(referrer.__defaults__ or ())]
        elif isinstance(referrer, (type, types.ModuleType, str, bytes, int, float)):
            continue
        else:
            inside = gc.get_referents(referrer)
        for each in inside:
            if id(each) not in visited and not isinstance(each, (type, types.ModuleType)):
                visited.add(id(each))
                todo.append(each)


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("method", ["SFL", "CutMixSL", "BatchShuffleSL"])
def test_nothing_leads_from_a_view_to_the_truth(method: str, adversary: Adversary) -> None:
    system = attacked(method)
    case = system.case(adversary, trained=16, held_out=8)
    everything = list(reachable(case.view))
    assert not [each for each in everything if isinstance(each, SECRET)]
    truth = case.truth.pictures.images
    storages = {
        each.untyped_storage().data_ptr() for each in everything if isinstance(each, torch.Tensor)
    }
    assert truth.untyped_storage().data_ptr() not in storages
    text = [each for each in everything if isinstance(each, str)]
    assert not [each for each in text if "fashion" in each or each.startswith("/")]


def test_the_walk_would_see_the_truth() -> None:
    case = attacked("PSL").case("server", trained=8, held_out=0)
    leaky = View(case.view.adversary, case.view.releases, case.view.knowledge)
    object.__setattr__(leaky, "releases", [lambda: case.truth])
    assert any(isinstance(each, Truth) for each in reachable(leaky))


def test_an_attackers_segments_are_its_own() -> None:
    system = attacked("SFL")
    knowledge = system.known_to("server")
    assert isinstance(knowledge.lowers, torch.nn.Module)
    assert isinstance(system.knowledge.lowers, torch.nn.Module)
    with torch.no_grad():
        next(knowledge.lowers.parameters()).add_(1)
    pairs = zip(knowledge.lowers.parameters(), system.knowledge.lowers.parameters(), strict=True)
    assert any(not torch.equal(copied, original) for copied, original in pairs)


class Needy(Attack):
    """Needs what few have."""

    name, goal = "needy", "images"
    needs = frozenset({"lower", "masks", "public data"})

    def run(self, view: View) -> Guess:
        raise AssertionError("it has been refused")


def test_a_view_that_lacks_what_an_attack_needs_says_what() -> None:
    view = attacked("CutMixSL").case("upper only", trained=8, held_out=0).view
    view = replace(view, knowledge=replace(view.knowledge, lowers=None))
    lacking = "no trained lower segment and no masks"
    with pytest.raises(NotApplicable, match=f"'upper only' on CutMixSL has {lacking}"):
        Needy.tune(view, attacked().public(4))
    view = attacked("SFL").case("server", trained=8, held_out=0).view
    with pytest.raises(NotApplicable, match="needs public images, and there are none"):
        Needy().fit(view, None)


def test_public_images_are_made_to_fit_or_refused_with_both_shapes() -> None:
    grey = Pictures(torch.rand(2, 1, 28, 28), torch.zeros(2, dtype=torch.int64))
    assert grey.fitted((3, 32, 32)).images.shape == (2, 3, 32, 32)
    colour = Pictures(torch.rand(2, 3, 32, 32), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(PicturesError, match=r"\(3, 32, 32\).*\(1, 32, 32\)"):
        colour.fitted((1, 32, 32))

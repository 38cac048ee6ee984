"""Arguments of another kind are refused where they are given, with the name and what is needed."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.serverapp.strategy import FedAvg
from torch import nn

from flwr_splitmix.clients import PrivacyBudget, SplitClient, UShapeClient
from flwr_splitmix.data import client_split, load_images
from flwr_splitmix.data.images import sources
from flwr_splitmix.hiding import DPForward, Hiding
from flwr_splitmix.hiding.mixguard.options import MixGuardOptions
from flwr_splitmix.links import LinkError, StreamLink
from flwr_splitmix.links.mixer.link import MixerLink
from flwr_splitmix.mixers import PatchCutMix
from flwr_splitmix.observers import Observer
from flwr_splitmix.optimizers import adamw
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.privacy.masks import RandomMasks
from flwr_splitmix.schedule import WarmupCosine
from flwr_splitmix.segments import split_vision_model
from flwr_splitmix.strategies import (
    DPSFL,
    DPSL,
    PSL,
    SFL,
    CutMixSL,
    DPForwardSL,
    NaiveMixSL,
    PatchShuffleSL,
    SpectralShuffleSL,
    SplitStrategy,
    USplitFL,
    USplitSL,
    VanillaCutMixSL,
)
from flwr_splitmix.testing.toy import Toy
from flwr_splitmix.testing.toy_texts import TextToy
from tests.clients.own_segments import DATA, Part
from tests.clients.own_segments import Lower as OwnLower

TOY = Toy(clients=2)


class Own(Observer):
    pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observers": [Own]}, r"observers\[0\] is the class Own; expected an object, Own\(...\)"),
        ({"observers": Own()}, r"observers is an Own; expected a list of observers, observers=\["),
        ({"observers": [print]}, r"observers\[0\] is a builtin_\w+; .* subclass of Observer"),
        ({"run": "runs/x"}, r"run is 'runs/x'; expected a Run, such as Run.create\("),
        ({"aggregator": FedAvg}, r"aggregator is the class FedAvg; expected an object, FedAvg\("),
        ({"aggregator": "FedAvg"}, "aggregator is 'FedAvg'; expected a Flower strategy, such as"),
        ({"mixer": PatchCutMix}, r"mixer is the class PatchCutMix; .* object, PatchCutMix\(...\)"),
        ({"noise": 0.1}, r"noise is a float; expected a GaussianNoise\(sigma_s="),
        ({"pace": "skip"}, r"pace is 'skip'; expected a Pace, such as Pace\("),
        ({"mixer": "cutmix"}, r"mixer is 'cutmix'; expected a Mixer, such as PatchCutMix\(k=2\)"),
        ({"metrics": 3}, "metrics is an int; expected an object of Metrics or of a subclass"),
        ({"link": "x"}, r"link is 'x'; expected a link, such as StreamLink\(\), or None"),
        ({"labels": [1]}, r"labels\[0\] is an int; expected an int64 tensor \(examples,\)"),
        ({"labels": 1}, "labels is an int; expected a list with the labels of each client"),
        ({"sed": 1}, "SplitStrategy has no option 'sed' \\(did you mean 'seed'\\?\\)"),
        ({"mixr": None}, "SplitStrategy has no option 'mixr' \\(did you mean 'mixer'"),
        ({"metrcs": None}, "SplitStrategy has no option 'metrcs' \\(did you mean 'metrics'"),
        ({"record": 1}, "SplitStrategy has no option 'record'; help\\(SplitStrategy\\) lists them"),
        ({"foo": 1}, "SplitStrategy has no option 'foo'; help\\(SplitStrategy\\) lists them"),
        (
            {"sed": 1, "mixr": None, "foo": 1},
            "no option 'foo' and no option 'mixr' \\(did you mean 'mixer'.* and no option 'sed'",
        ),
    ],
)
def test_parts_of_a_strategy(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        SplitStrategy(TOY.upper(), **options)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (PSL, {"k": 2}, "PSL has no option 'k'; help"),
        (PSL, {"batch_size": 4}, r"'batch_size' \(it is an argument of SplitClient\(\.\.\.\)\)"),
        (PSL, {"sigma_s": 1.0}, "'sigma_s' \\(it is an argument of noise=GaussianNoise\\("),
        (PSL, {"max_epsilon": 1.0}, r"of SplitClient\(privacy=PrivacyBudget\(\.\.\.\)\)\)"),
        (USplitFL, {"learns": "tail"}, "'learns' \\(it is an argument of UShapeClient\\("),
        (NaiveMixSL, {"lam": 0.5}, "'lam' \\(it is .* of UShapeClient\\(hiding=NaiveMix\\("),
        (PSL, {"arg": 1}, "PSL has no option 'arg'; help"),
        (CutMixSL, {"kwarg": 1}, "CutMixSL has no option 'kwarg'; help"),
        (CutMixSL, {"option": 1}, "CutMixSL has no option 'option'; help"),
        (USplitFL, {"selv": 1}, "USplitFL has no option 'selv'; help"),
        (CutMixSL, {"alfa": 2}, "CutMixSL has no option 'alfa' \\(did you mean 'alpha'"),
        (USplitSL, {"optimiser": None}, "USplitSL has no option 'optimiser' .* 'optimizer'"),
    ],
)
def test_options_that_a_strategy_does_not_have(
    kind: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        kind(TOY.upper(), **options)


@pytest.mark.parametrize("kind", [PSL, SFL, DPSL, DPSFL, CutMixSL, PatchShuffleSL])
def test_a_mixer_is_refused_where_the_method_is_one(kind: Any) -> None:
    """PSL, SFL and their forms with noise would mix under the name of no mixing."""
    needed = {
        "noise": GaussianNoise(sigma_s=1.0, sigma_y=1.0) if kind.needs_noise else None,
        "labels": [torch.arange(4) % 3] * 2 if kind.needs_labels else None,
    }
    options = {name: value for name, value in needed.items() if value is not None}
    with pytest.raises(TypeError, match="multiple values for keyword argument 'mixer'"):
        kind(TOY.upper(), mixer=PatchCutMix(2), **options)


@pytest.mark.parametrize("kind", [PatchShuffleSL, SpectralShuffleSL])
def test_kappa_is_refused_where_tokens_do_not_leave_their_image(kind: Any) -> None:
    """They would shuffle as another method does."""
    labels = [torch.arange(4) % 3] * 2
    with pytest.raises(TypeError, match="multiple values for keyword argument 'kappa'"):
        kind(TOY.upper(), labels=labels, kappa=0.4)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (PSL, {"fraction_train": "x"}, "fraction_train is 'x'; it must be a number"),
        (PSL, {"checkpoint_every": None}, "checkpoint_every is None; it must be a whole number"),
        (PSL, {"num_classes": 0}, "num_classes is 0; the upper segment needs at least 2"),
        (PSL, {"multi_label": "no"}, "multi_label is 'no'; it must be True or False"),
        (CutMixSL, {"alpha": "a"}, "alpha is 'a'; it must be a number"),
        (CutMixSL, {"k_times": "no"}, "k_times is 'no'; it must be True or False"),
        (CutMixSL, {"min_patches": 1.5}, "min_patches is 1.5; it must be a whole number"),
        (DPSL, {"trusted_mixer": "no"}, "trusted_mixer is 'no'; it must be True or False"),
        (DPSL, {"relation": "x"}, "relation is 'x'; it must be one of replace, add-remove"),
        (DPSL, {"delta": "x"}, "delta is 'x'; it must be a number"),
    ],
)
def test_values_of_another_kind(kind: Any, options: dict[str, Any], message: str) -> None:
    noise = {"noise": GaussianNoise(sigma_s=1.0, sigma_y=1.0)} if kind is DPSL else {}
    with pytest.raises(ValueError, match=message):
        kind(TOY.upper(), **noise, **options)


def test_a_client_that_shares_weights_with_the_server_is_refused() -> None:
    lower, upper = TOY.lower(), TOY.upper()
    lower.add_module("tied", upper)
    client = SplitClient(lower, TOY.data(0), device="cpu")
    with pytest.raises(ValueError, match="client 0 and the server share weights"):
        PSL(upper, device="cpu").fit([client], 1)
    texts = TextToy(clients=1)
    head, trunk = texts.head(), texts.server()
    head.add_module("tied", trunk)
    reader = UShapeClient(head, texts.tail(), texts.texts(0, 4), device="cpu")
    with pytest.raises(ValueError, match="client 0 and the server share weights"):
        USplitSL(trunk, width=texts.width, device="cpu").fit([reader], 1)


@pytest.mark.parametrize("hiding", [DPForward, [], "mixguard"])
def test_a_hiding_is_an_object(hiding: Any) -> None:
    """An empty list is not taken for none at all."""
    texts = TextToy(clients=1)
    with pytest.raises(TypeError, match=r"hiding is .*; expected an object"):
        UShapeClient(texts.head(), texts.tail(), texts.texts(0, 4), hiding=hiding, device="cpu")


def test_a_subclass_that_is_not_initialized_is_told_what_it_must_call() -> None:
    """An AttributeError would name what the user has never seen."""

    class Bare(SFL):
        def __init__(self) -> None:
            pass

    with pytest.raises(TypeError, match=r"__init__ of Bare must call super\(\).__init__\(...\)"):
        Bare().fit(TOY.make_clients(), 1)

    class Blank(Hiding):
        def __init__(self) -> None:
            pass

    head, tail = nn.Linear(2, 2), nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"__init__ of Blank must call .* that of Hiding"):
        UShapeClient(head, tail, [(torch.zeros(2), 0)], batch_size=1, hiding=Blank())


def test_observers_are_checked_before_a_ledger_joins_them() -> None:
    wrong: Any = Own()
    with pytest.raises(TypeError, match="observers is an Own; expected a list"):
        DPSL(TOY.upper(), noise=GaussianNoise(sigma_s=1.0, sigma_y=1.0), observers=wrong)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (dict(enumerate(TOY.make_clients())), "clients is a dict; expected a list of clients"),
        (iter(TOY.make_clients()), "clients is a list_iterator; expected a list of clients"),
        (TOY.make_clients()[0], "clients is a SplitClient; expected a list of clients"),
        ([TOY.lower()], r"clients\[0\] is a ToyLower; expected a client, such as SplitClient\("),
    ],
)
def test_clients(clients: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        PSL(TOY.upper()).fit(clients, 1)


def test_clients_of_the_other_shape_are_told_which_class_is_needed() -> None:
    texts = TextToy(clients=2)
    with pytest.raises(
        LinkError, match=r"trunk: clients 0 and 1: .* strategy needs a UShapeClient"
    ):
        USplitSL(texts.server(), device="cpu").fit(TOY.make_clients(), 1)
    with pytest.raises(
        LinkError, match=r"segment: clients 0 and 1: .* strategy needs a SplitClient"
    ):
        PSL(TOY.upper(), device="cpu").fit(texts.clients_for(), 1)


def test_clients_that_share_a_hiding_are_refused() -> None:
    texts = TextToy(clients=3)
    clients = texts.clients_for(hiding=DPForward())
    message = r"clients 0 and 1 share one hiding, a DPForward, .*: make one for each, hiding=DPForw"
    with pytest.raises(ValueError, match=message):
        DPForwardSL(texts.server(), device="cpu").fit(clients, 1)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (PSL, {"num_classes": 3.0}, "num_classes is 3.0; it must be a whole number"),
        (CutMixSL, {"k": 2.0}, "k is 2.0; it must be a whole number"),
        (CutMixSL, {"k": "2"}, "k is '2'; it must be a whole number"),
        (VanillaCutMixSL, {"k": 2.0}, "k is 2.0; it must be a whole number"),
    ],
)
def test_numbers_that_are_not_whole(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(TOY.upper(), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": (32, 64)}, r"image_size is \(32, 64\); it must be a whole number: images"),
        ({"patch_size": 4.0}, "patch_size is 4.0; it must be a whole number"),
        ({"depth": True}, "depth is True; it must be a whole number"),
        ({"img_size": 64}, "timm's img_size is image_size here: image_size=64"),
        ({"in_chans": 3}, "timm's in_chans is channels here: channels=3"),
    ],
)
def test_sizes_of_a_model(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_vision_model("resnet18", **options)


def test_an_upper_segment_may_mean_something_else_by_geometry() -> None:
    geometry: Any = "grid"
    upper = nn.Sequential(TOY.upper())
    upper.geometry = geometry
    strategy = SFL(upper, num_classes=3, device="cpu")
    strategy.fit(TOY.make_clients(), 1)
    assert strategy.upper.geometry is None
    assert [row["clients_alive"] for row in strategy.rows] == [2]


def test_clients_of_other_batch_sizes_are_told_the_option(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clients = [*TOY.make_clients(), *Toy(clients=1, batch=6).make_clients()]
    with caplog.at_level(logging.WARNING, logger="flwr.splitmix"):
        PSL(TOY.upper(), device="cpu").fit(clients, 1)
    assert "without client 2: its smashed data are 6 x (6 patches) x 3, " in caplog.text
    assert "most clients make (4, 6, 3): give all of them one batch_size, here 4" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (3, "evaluate_fn is an int; expected a function of the round's number and its arrays"),
        (lambda number: None, r"evaluate_fn cannot be called so \(too many .*\); expected a"),
    ],
)
def test_an_evaluate_fn_that_cannot_be_called_costs_no_round(wrong: Any, message: str) -> None:
    strategy = PSL(TOY.upper(), device="cpu")
    with pytest.raises(TypeError, match=message):
        strategy.fit(TOY.make_clients(), 2, evaluate_fn=wrong)
    assert strategy.last_trained_round == {}


class Tells(Observer):
    def facts(self) -> Any:
        return None


def test_facts_that_are_no_dict_are_named_with_their_observer() -> None:
    with pytest.raises(TypeError, match=r"^Tells.facts\(\) is a NoneType; expected a dict"):
        PSL(TOY.upper(), device="cpu", observers=[Tells()]).fit(TOY.make_clients(), 1)


def test_switches_of_privacy_and_of_links_are_true_or_false(tmp_path: Path) -> None:
    """A text such as "no" would count as true: secrets of the run's seed, a line in plaintext."""
    part, token = nn.Linear(2, 2), tmp_path / "token"
    data: Any = [(torch.zeros(2), 0)]
    makers: list[tuple[str, Callable[[Any], object]]] = [
        ("repeatable_secrets", lambda no: SplitClient(part, data, repeatable_secrets=no)),
        ("repeatable_secrets", lambda no: UShapeClient(part, part, data, repeatable_secrets=no)),
        ("insecure", lambda no: StreamLink(address="0.0.0.0:0", insecure=no)),
        ("wire_feedback", lambda no: StreamLink(wire_dtype="int8", wire_feedback=no)),
        ("insecure", lambda no: MixerLink("mixer.example:9444", token, insecure=no)),
        ("wire_feedback", lambda no: MixerLink("127.0.0.1:9444", token, wire_feedback=no)),
        ("k_times", lambda no: RandomMasks(alpha=2.0, failure=1e-6, k_times=no)),
        ("refine_only", lambda no: MixGuardOptions(refine_only=no)),
        ("secret_per_sample", lambda no: MixGuardOptions(secret_per_sample=no)),
    ]
    for name, make in makers:
        with pytest.raises(ValueError, match=f"{name} is 'no'; it must be True or False"):
            make("no")


HEAD, TAIL, LOWER = Part(), Part(3, 6), OwnLower()
SPLIT = partial(client_split, load_images("fashion-mnist-small"), index=0, num_clients=4)


NOISE = GaussianNoise(sigma_s=1.0, sigma_y=0.0)
CLIENT: Any = SplitClient


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (UShapeClient, (HEAD, DATA, TAIL), "tail is a TensorDataset; expected a torch.nn.Module"),
        (UShapeClient, (abs, TAIL, DATA), "head is a builtin_function_or_method; expected a torc"),
        (UShapeClient, (Part, TAIL, DATA), r"head is the class Part; .*: Part\(...\)"),
        (partial(CLIENT, LOWER, DATA, privacy=8.0), (), "privacy is a float; expected a Pri"),
        (
            partial(CLIENT, LOWER, DATA, privacy=NOISE),
            (),
            "privacy is a GaussianNoise; expected",
        ),
        (partial(CLIENT, LOWER, DATA, shares="block"), (), "shares must be a .*, not 'block'"),
        (client_split, (DATA, 0, 4), "sets is a TensorDataset; expected what load_images returns"),
        (load_images, (None,), "source is None; expected the name of a data set, or a folder"),
    ],
)
def test_what_is_made_of_arguments_of_another_kind(make: Any, arguments: Any, message: str) -> None:
    """Python's own errors came from deep within, and named no argument."""
    with pytest.raises(TypeError, match=f"^{message}"):
        make(*arguments)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (PrivacyBudget, {"max_epsilon": "8"}, "max_epsilon is '8'; it must be a number"),
        (WarmupCosine, {"warmup": "1"}, "warmup is '1'; it must be a number"),
        (WarmupCosine, {"warmup": math.nan}, "warmup is nan rounds; it must be at least 0"),
        (WarmupCosine, {"final_factor": -1}, "final_factor is -1; it must be at least 0"),
        (adamw, {"lr": "0.1"}, "lr is '0.1'; it must be a number"),
        (adamw, {"lr": -1.0}, "lr is -1.0; it must be at least 0, and finite"),
        (adamw, {"lr": math.nan}, "lr is nan; it must be at least 0, and finite"),
        (adamw, {"weight_decay": None}, "weight_decay is None; it must be a number"),
        (SPLIT, {"index": "0"}, "index is '0'; it must be a whole number"),
        (SPLIT, {"num_clients": 4.0}, "num_clients is 4.0; it must be a whole number"),
        (SPLIT, {"samples": "9"}, "samples is '9'; it must be a whole number"),
        (load_images, {"source": Path("/nowhere")}, "'/nowhere' .*there is no such path here"),
    ],
)
def test_what_is_made_of_numbers_that_are_none(
    make: Any, arguments: dict[str, Any], message: str
) -> None:
    """A text that looks like a number is refused at once, with the argument's name."""
    with pytest.raises(ValueError, match=message):
        make(**arguments)


def test_a_folder_of_images_may_be_a_path() -> None:
    folder = Path(sources.__file__).with_name("fashion_mnist_small")
    assert len(load_images(folder).train) == len(load_images("fashion-mnist-small").train)


def test_a_strategy_is_started_with_a_grid() -> None:
    context: Any = Context(1, 2, {}, RecordDict(), {})
    with pytest.raises(TypeError, match=r"^grid is a Context; expected the grid that"):
        PSL(TOY.upper(), device="cpu").start(context, ArrayRecord(TOY.lower().state_dict()))

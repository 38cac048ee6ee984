"""A recorded vision run in the form that attacks and scores need."""

from __future__ import annotations

import copy

from torch import nn

from flwr_splitmix.apps.kept.attacking import results_of
from flwr_splitmix.apps.kept.weights import fitting
from flwr_splitmix.apps.vision.attacked_ushape import attacked_ushape
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import client_images, images_of
from flwr_splitmix.apps.vision.model import MODEL_KEYS, embedding_option, segments_of
from flwr_splitmix.apps.vision.ushape_keys import IMAGE_USHAPE
from flwr_splitmix.attacks.attacked import Attacked
from flwr_splitmix.attacks.fresh_segments import Architecture
from flwr_splitmix.attacks.knowledge import Knowledge, Lowers
from flwr_splitmix.attacks.recording.disk_trace import DiskTrace
from flwr_splitmix.attacks.recording.vault import Vault
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.attack_recording import read_facts, trace_dir
from flwr_splitmix.runs.checkpoints import Checkpoint, ClientStore
from flwr_splitmix.storage import under


def attacked_run(run: Run) -> Attacked:
    """Return a recorded run, or any run in the U shape, with its views and its ground truth.

    The clients' images follow from the run's configuration; the trained segments are those of its
    newest checkpoint.

    Raises
    ------
    RunError, StorageError
        If nothing was recorded (the message explains how to record), or there is no checkpoint.
    DataError, ConfigError
        If its images or its model are not available on this machine, or its checkpoint is of
        another model.
    """
    if run.config.get("strategy") in IMAGE_USHAPE:
        return attacked_ushape(run, VisionConfig.read(run.config))
    facts = read_facts(run)
    config = VisionConfig.read(run.config)
    images, segments = images_of(config), segments_of(config)
    checkpoint = run.checkpoints.load()
    upper = copy.deepcopy(segments.upper)
    clients = int(facts["clients"])
    with fitting(run, checkpoint, MODEL_KEYS):
        upper.load_state_dict(under("upper", checkpoint.tensors))
        lowers = _lowers(run, config, segments.lower, checkpoint, clients)
    options = config.own_options() | ({"noise": config.noise} if config.noise else {})
    classes = len(images.classes)
    architecture = Architecture(
        method=config.strategy,
        options=options,
        model=config.model,
        model_options={
            "cut_at": config.cut_at,
            "cell": config.cell,
            "patch_size": config.patch_size,
            "depth": config.depth or None,
            **embedding_option(config),
        },
        num_classes=classes,
        channels=images.train.shape[0],
        image_size=config.image_size,
    )
    strategy = config.trial(upper, num_classes=classes, multi_label=images.multi_label)
    knowledge = Knowledge.of(
        strategy,
        images.train,
        segments.lower.geometry,
        clients=clients,
        batch_size=config.batch_size,
        fresh_lower=architecture.lower,
        lowers=lowers,
        first=segments.lower,
        method=config.strategy,
        options=options,
    )
    parts = {client: client_images(config, client, clients)[0] for client in range(clients)}
    vault = Vault(parts, images.test, config.batch_size, config.seed)
    trace = DiskTrace(trace_dir(run), shares=strategy.mixer.shares)
    return Attacked(knowledge, trace, vault, results_of(run, checkpoint))


def _lowers(
    run: Run, config: VisionConfig, fresh: nn.Module, checkpoint: Checkpoint, clients: int
) -> Lowers:
    """Return the trained lower segments: one if they are averaged, else one for each client."""
    if config.averages:
        lower = copy.deepcopy(fresh)
        lower.load_state_dict(under("lower", checkpoint.tensors))
        return lower
    store, lowers = ClientStore(run.clients_dir), {}
    for client in range(clients):
        state = store.load(client, checkpoint.round)
        lower = copy.deepcopy(fresh)
        if state is not None:  # else the client took part in no round and has the initial weights
            lower.load_state_dict(under("segment", state[1]))
        lowers[client] = lower
    return lowers

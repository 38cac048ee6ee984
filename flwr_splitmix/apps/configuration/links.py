"""The links that a run configuration describes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from flwr_splitmix.links import LinkError, MixerLink, RayLink, StreamLink

if TYPE_CHECKING:
    from flwr_splitmix.apps.configuration.run_config import AppConfig
    from flwr_splitmix.apps.vision.config import VisionConfig
    from flwr_splitmix.runs import Run


class _NetworkOptions(TypedDict):
    ca: str | None
    certificate: str | None
    key: str | None
    insecure: bool
    wire_dtype: str
    wire_dtype_down: str
    wire_feedback: bool
    run: str
    attach_timeout: float
    step_timeout: float


def _network_options(config: AppConfig, run: Run | None) -> _NetworkOptions:
    """Return the options that links over a network share."""
    return {
        "ca": config.ssl_ca_certfile or None,
        "certificate": config.ssl_certfile or None,
        "key": config.ssl_keyfile or None,
        "insecure": config.link_insecure,
        "wire_dtype": config.wire_dtype,
        "wire_dtype_down": config.wire_dtype_down,
        "wire_feedback": config.wire_feedback,
        "run": "" if run is None else run.id,
        "attach_timeout": config.attach_timeout,
        "step_timeout": config.step_timeout,
    }


def ray_link(config: AppConfig, run: Run | None) -> RayLink:
    """Make the configured link of a simulation.

    Raises
    ------
    LinkError
        If something is configured that only a stream does.
    """
    if config.not_in_simulation:
        raise LinkError(config.not_in_simulation)
    return RayLink(
        num_hosts=config.num_hosts,
        host_gpus=config.host_gpus,
        host_threads=config.host_threads,
        state_dir=None if run is None else run.clients_dir,
        attach_timeout=config.attach_timeout,
        step_timeout=config.step_timeout,
    )


def stream_link(config: AppConfig, run: Run | None) -> StreamLink:
    """Make the configured link to SuperNodes.

    Raises
    ------
    LinkError
        If the address or a certificate is wrong.
    """
    return StreamLink(
        **_network_options(config, run),
        client_ca=config.link_client_ca or None,
        address=config.link_address,
        advertise=config.link_advertise or None,
    )


def mixer_link(config: VisionConfig, run: Run | None) -> MixerLink:
    """Make the configured link to the third-party mixer.

    Raises
    ------
    LinkError
        If an address, a file or a certificate is wrong.
    """
    return MixerLink(config.link_via, config.link_via_token, **_network_options(config, run))

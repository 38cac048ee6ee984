"""A private deployment on one machine: a SuperLink with TLS, SuperNodes with keys, a run.

`python -m flwr_splitmix.sandbox.deployment APP --nodes 3 --run-config "..."` starts a SuperLink
that admits only registered SuperNodes, the SuperNodes in their own processes, and a run whose link
uses TLS too; it shows the run's log, and ends every process that it started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from flwr_splitmix.flwr_command import config_text
from flwr_splitmix.sandbox.certificates import Certificates, make_certificates
from flwr_splitmix.sandbox.superlink import (
    NAME,
    SandboxError,
    SuperLink,
    app_parser,
    chosen_run_config,
    end_as_if_asked,
    free_port,
    one_port,
)

ONLINE_SECONDS = 240.0
"""Seconds for all SuperNodes to connect: on a machine that does much else they import for long."""


class Node:
    """One SuperNode's process.

    Parameters
    ----------
    deployment
        The deployment whose SuperLink it connects to.
    index
        Its partition-id.
    config
        Further keys of its node configuration, besides partition-id, num-partitions and state-dir.

    Attributes
    ----------
    folder
        Directory of all that belongs to this node: its key, its FLWR_HOME, its clients' states.
    process
        The SuperNode's process; None before the first start.
    port
        Loopback port where its ClientApps reach it; a new one at each start.
    """

    def __init__(self, deployment: LocalDeployment, index: int, config: Mapping[str, Any]) -> None:
        self._deployment = deployment
        self.index = index
        self.folder = deployment.home / f"node-{index}"
        self.state_dir = self.folder / "states"
        self.key = self.folder / "key"
        self.config = {
            "partition-id": index,
            "num-partitions": deployment.num_nodes,
            "state-dir": str(self.state_dir),
            **config,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.folder.mkdir()

    def make_key(self) -> Path:
        """Make the key pair that authenticates the node; return the public key's file."""
        private = ec.generate_private_key(ec.SECP384R1())
        with os.fdopen(os.open(self.key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
            f.write(private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        public = self.key.with_suffix(".pub")
        public.write_bytes(
            private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
        )
        return public

    def start(self) -> None:
        """Start the SuperNode, or restart it with the same key.

        Raises
        ------
        SandboxError
            If the SuperNode is already running.
        """
        if self.process is not None and self.process.poll() is None:
            raise SandboxError(f"SuperNode {self.index} runs already")
        self.port = free_port()
        self.process = self._deployment.launch_node(self)

    def kill(self) -> None:
        """Kill the SuperNode and all processes that it started, as a power failure would."""
        import psutil

        processes = [p for p in self._deployment.processes() if self._owns(p)]
        for process in processes:
            process.kill()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        psutil.wait_procs(processes, timeout=10)

    def log(self) -> str:
        """Return the log of the SuperNode and its ClientApps so far."""
        return (self._deployment.home / f"node-{self.index}.log").read_text(errors="replace")

    def _owns(self, process: Any) -> bool:
        import psutil

        try:
            return Path(process.environ()["FLWR_HOME"]).is_relative_to(self.folder)
        except (psutil.Error, OSError, KeyError):
            return False


class LocalDeployment(SuperLink):
    """A SuperLink and SuperNodes on this machine, as a context manager.

    Runtime dependency installation is off: apps use the packages installed here.

    Parameters
    ----------
    nodes
        Number of SuperNodes; their partition-ids are 0, 1, ...
    secure
        Whether the SuperLink uses TLS and admits only SuperNodes with a registered key.
    environment
        Further environment variables of all processes.
    node_config
        Further values of every node's configuration.
    node_options
        Further options of every `flower-supernode`.

    Attributes
    ----------
    certificates
        Certificates for the loopback, of the SuperLink and, through `link_config`, the stream link.
    nodes
        The SuperNodes, by partition-id.

    Raises
    ------
    SandboxError
        On entry, if the installed Flower is older than 1.35, or something does not start.
    """

    def __init__(
        self,
        nodes: int = 3,
        secure: bool = True,
        environment: Mapping[str, str] | None = None,
        node_config: Mapping[str, Any] | None = None,
        node_options: Sequence[str] = (),
    ) -> None:
        super().__init__(environment)
        self.node_options = tuple(node_options)
        self.num_nodes = nodes
        self.secure = secure
        self.certificates: Certificates = make_certificates(self.home / "certificates")
        self.nodes = [Node(self, index, node_config or {}) for index in range(nodes)]

    def _start(self) -> None:
        if not one_port():
            raise SandboxError("LocalDeployment needs Flower 1.35 or newer")
        files = self.certificates
        options = ["--disable-runtime-dependency-installation"]
        if self.secure:
            options += [
                "--ssl-ca-certfile", str(files.ca),
                "--ssl-certfile", str(files.certificate),
                "--ssl-keyfile", str(files.key),
                "--enable-supernode-auth",
            ]  # fmt: skip
            self._start_superlink(options, f'root-certificates = "{files.ca}"')
        else:
            self._start_superlink([*options, "--insecure"], "insecure = true")
        for node in self.nodes:
            if self.secure:
                self.flwr.answer("supernode", "register", str(node.make_key()), NAME)
            node.start()
        self.wait_until_online(self.num_nodes)

    def launch_node(self, node: Node) -> subprocess.Popen[bytes]:
        """Start a node's SuperNode."""
        trust = ["--insecure"]
        if self.secure:
            trust = ["--root-certificates", str(self.certificates.ca)]
            trust += ["--auth-supernode-private-key", str(node.key)]
        return self._launch(
            f"node-{node.index}",
            "flower-supernode",
            *trust,
            *self.node_options,
            "--superlink", f"127.0.0.1:{self.port}",
            "--port", str(node.port),
            "--node-config", config_text(node.config),
            environment={"FLWR_HOME": str(node.folder / "flwr")},
        )  # fmt: skip

    def node(self, index: int) -> Node:
        """Return the SuperNode with a partition-id."""
        return self.nodes[index]

    def online(self) -> int:
        """Return how many SuperNodes are connected."""
        listed = self.flwr.answer("supernode", "list", NAME)["nodes"]
        return sum(node["status"] == "online" for node in listed)

    def wait_until_online(self, nodes: int) -> None:
        """Wait until `nodes` SuperNodes are connected.

        Raises
        ------
        SandboxError
            If the SuperNodes are not connected in time, or one ends; the message quotes their logs.
        """
        deadline = time.monotonic() + ONLINE_SECONDS
        while (online := self.online()) < nodes:
            ended = [n for n in self.nodes if n.process and n.process.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = "".join(node.log()[-1000:] for node in ended or self.nodes)
                raise SandboxError(f"{online} of {nodes} SuperNodes are connected: {logs}")
            time.sleep(0.5)

    @property
    def link_config(self) -> dict[str, str]:
        """Run-config keys that give the stream link TLS with this deployment's certificates."""
        return {
            "ssl-certfile": str(self.certificates.certificate),
            "ssl-keyfile": str(self.certificates.key),
            "ssl-ca-certfile": str(self.certificates.ca),
        }

    def submit(self, app: Path, run_config: str = "") -> int:
        """Start a run and return Flower's run id; for TLS add `link_config` to `run_config`."""
        return self.flwr.start(app, run_config, [])


def main() -> int:
    """Run an app on its own deployment; return 0 only if the run completed."""
    parser = app_parser("Run a Flower app on a SuperLink and SuperNodes of its own.", nodes=3)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, end_as_if_asked)
    # All processes share this machine's cores; with several threads each they slow each other down.
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    with LocalDeployment(options.nodes, environment=threads) as deployment:
        run_config = f"{chosen_run_config(options)} {config_text(deployment.link_config)}"
        return deployment.show(deployment.submit(options.app, run_config))


if __name__ == "__main__":
    sys.exit(main())

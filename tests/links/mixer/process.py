"""`splitmix mixer` as the process of a third party."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from flwr_splitmix.sandbox.certificates import Certificates
from tests.links.mixer.third_party import SEED, TOKEN, secret


class MixerProcess:
    """A mixer with TLS, the token and the seed, as a context manager.

    Parameters
    ----------
    folder
        Folder of its token, its seed and its log.
    listen
        Address to listen at: "host:port".

    Attributes
    ----------
    address
        Address at which it listens, once it has started.
    """

    def __init__(self, folder: Path, files: Certificates, listen: str = "127.0.0.1:0") -> None:
        self.token = secret(folder / "token", TOKEN)
        self._seed = secret(folder / "seed", str(SEED))
        self._log = folder / "mixer.log"
        self._command = [
            str(Path(sys.executable).parent / "splitmix"), "mixer",
            "--listen", listen,
            "--token-file", str(self.token),
            "--ssl-certfile", str(files.certificate),
            "--ssl-keyfile", str(files.key),
        ]  # fmt: skip
        self.address = ""
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                env={**os.environ, "SPLITMIX_MIXER_SEED_FILE": str(self._seed)},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("mixer: nodes and ServerApps dial "), line + self.log()
        self.address = line.split()[-1]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.stdout.close()

    def kill(self) -> None:
        """Kill the process, as a power failure would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """End the process as its operator does; return its exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(60)

    def log(self) -> str:
        """Return its log so far."""
        return self._log.read_text(errors="replace")

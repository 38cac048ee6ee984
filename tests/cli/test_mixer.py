"""`splitmix mixer`."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from flwr_splitmix.sandbox.certificates import make_certificates
from tests.cli.test_full_output import COMMAND
from tests.waiting import wait_for

Splitmix = Callable[..., Result]


def test_help_says_how_a_token_is_made_and_what_a_run_needs(splitmix: Splitmix) -> None:
    page = " ".join(splitmix("mixer", "--help").stdout.replace("│", " ").split())
    for part in ("openssl rand -hex 32", "link-via-token", "--listen", "HOST:PORT", "--seed-file"):
        assert part in page


@pytest.mark.parametrize("option", ["--seed", "--token"])
def test_no_secret_can_stand_on_a_command_line(splitmix: Splitmix, option: str) -> None:
    """Whoever lists the machine's processes would read it."""
    ended = splitmix("mixer", "--listen", "127.0.0.1:0", option, "1" * 40)
    assert ended.exit_code == 2
    assert "No such option" in ended.output or "Missing option" in ended.output


@pytest.mark.parametrize(
    ("mode", "text", "message"),
    [
        (0o644, "c0ffee" * 8, "--token-file: others on this machine may read"),
        (0o600, "c0ffee", "holds 6 characters; a token has at least 32"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    mode: int, text: str, message: str, splitmix: Splitmix, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(text)
    token.chmod(mode)
    ended = splitmix("mixer", "--listen", "127.0.0.1:0", "--token-file", str(token))
    assert ended.exit_code == 1
    assert message in ended.output
    assert "Traceback" not in ended.output


@pytest.mark.parametrize(
    ("seed", "options", "message"),
    [
        ("9" * 5000, [], "--seed-file: {file} must hold one whole number of 2**48 to 2**63 - 1"),
        (str(2**50), ["--most-ratio", "nan"], "--most-ratio is nan; it must be a number above 0"),
    ],
)
def test_numbers_beyond_their_range_are_refused(
    seed: str, options: list[str], message: str, splitmix: Splitmix, tmp_path: Path
) -> None:
    token, file = tmp_path / "token", tmp_path / "seed"
    for path, text in ((token, "c0ffee" * 8), (file, seed)):
        path.write_text(text)
        path.chmod(0o600)
    ended = splitmix(
        "mixer", "--listen", "127.0.0.1:0", "--token-file", str(token), "--seed-file", str(file),
        *options,
    )  # fmt: skip
    assert ended.exit_code == 1
    assert ended.output.startswith(message.format(file=file))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "--link-client-ca",
            "--link-client-ca is set, but the mixer has no certificate of its own; give it "
            "--ssl-certfile and --ssl-keyfile, too",
        ),
        ("--ssl-certfile", "--ssl-certfile is set without --ssl-keyfile; give both or neither"),
        ("--ssl-keyfile", "--ssl-keyfile is set without --ssl-certfile; give both or neither"),
    ],
)
def test_certificates_that_lack_something_are_named_by_their_options(
    option: str, message: str, splitmix: Splitmix, tmp_path: Path
) -> None:
    """Not by the keys of a run, which the command's user does not write."""
    shared_options = ("--listen", "127.0.0.1:0", "--token-file", str(tmp_path / "token"))
    ended = splitmix("mixer", *shared_options, option, str(tmp_path / "file.pem"))
    assert (ended.exit_code, ended.output) == (1, f"{message}\n")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("server.crt", "--ssl-certfile: {folder}/server.crt is not a PEM certificate\n"),
        ("server.key", "--ssl-keyfile: {folder}/server.key is not a PEM private key\n"),
        ("ca.crt", "--link-client-ca: {folder}/ca.crt is not a PEM certificate\n"),
    ],
)
def test_files_that_are_no_certificates_are_named_by_their_options(
    wrong: str, message: str, splitmix: Splitmix, tmp_path: Path
) -> None:
    """Not by the keys of a run, which the command's user does not write."""
    files = make_certificates(tmp_path)
    (tmp_path / wrong).write_text("neither PEM nor secret")
    ended = splitmix(
        "mixer", "--listen", "127.0.0.1:0", "--token-file", str(tmp_path / "token"),
        "--ssl-certfile", str(files.certificate), "--ssl-keyfile", str(files.key),
        "--link-client-ca", str(files.ca),
    )  # fmt: skip
    assert (ended.exit_code, ended.output) == (1, message.format(folder=tmp_path))


def test_it_serves_without_standard_output(tmp_path: Path) -> None:
    """As a service may be started."""
    token, log = tmp_path / "token", tmp_path / "log"
    token.write_text("c0ffee" * 8)
    token.chmod(0o600)
    with log.open("w") as file:
        mixer = subprocess.Popen(
            [*COMMAND, "mixer", "--listen", "127.0.0.1:0", "--token-file", str(token)],
            stderr=file, preexec_fn=lambda: os.close(1),
        )  # fmt: skip
    try:
        wait_for("the mixer", lambda: "listens on" in log.read_text() or mixer.poll() is not None)
        time.sleep(1.0)  # writing may fail a moment later
        assert mixer.poll() is None
        assert "Traceback" not in log.read_text()
    finally:
        mixer.terminate()
        assert mixer.wait() == 0

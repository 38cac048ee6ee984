"""`splitmix check` on links: where they cannot be made, and what nodes may refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from flwr_splitmix.sandbox.certificates import make_certificates
from tests.apps.app_config import APPS
from tests.cli.apps.check_command import check


@pytest.mark.parametrize("app", ["vision", "language"])
@pytest.mark.parametrize(
    ("keys", "remarked"), [("", True), ("link='stream'", False), ("wire-dtype-down='keep'", True)]
)
def test_a_wire_format_that_a_simulation_refuses_is_remarked(
    app: str, keys: str, remarked: bool
) -> None:
    result = check(APPS / app, "--no-cuts", "--run-config", f"wire-dtype='int8' {keys}")
    assert result.exit_code == 0, result.output
    remark = (
        "note: in a simulation the run would end with an error: wire-dtype is 'int8', but in a "
        "simulation tensors travel as they are; use 'keep' there, or link 'stream' with a CPU"
    )
    assert (remark in " ".join(result.output.split())) is remarked


@pytest.mark.parametrize(
    ("app", "keys", "message"),
    [
        ("vision", "wire-dtype='int8'", "wire-dtype is 'int8', but in a simulation tensors travel"),
        ("language", "wire-dtype='int8'", "wire-dtype is 'int8', but in a simulation tensors"),
        ("vision", "group-order='arrival'", "group-order 'arrival', but in a simulation clients"),
        ("vision", "straggler='skip'", "straggler is 'skip' and group-order 'random', but in a"),
    ],
)
def test_what_a_simulation_cannot_do_is_a_problem_if_the_run_is_one(
    app: str, keys: str, message: str
) -> None:
    """It would fail, or do something else without a word; a stream's address is no matter there."""
    keys += " link-address='0.0.0.0:9443'"
    unknown = check(APPS / app, "--no-cuts", "--run-config", keys)
    assert unknown.exit_code == 0, unknown.output
    assert "note: in a simulation the run would end with an error: " in unknown.output
    known = check(APPS / app, "--no-cuts", "--simulated", "--run-config", keys)
    assert known.exit_code == 1
    shown = " ".join(known.output.split())
    assert message in shown
    assert "or link 'stream' with a CPU for each client (init-args-num-cpus)" in shown
    assert "without TLS" not in shown


@pytest.mark.parametrize(
    ("app", "keys", "remarked"),
    [
        ("vision", "link-address='0.0.0.0:9443'", True),
        ("language", "link-address='0.0.0.0:9443'", True),
        ("vision", "link-advertise='server.example'", True),
        ("vision", "link-address='127.0.0.1:0'", False),
        ("vision", "link='ray' link-address='0.0.0.0:9443'", False),
    ],
)
def test_a_link_that_nodes_may_refuse_is_remarked(app: str, keys: str, remarked: bool) -> None:
    result = check(APPS / app, "--no-cuts", "--run-config", f"link-insecure=true {keys}")
    assert result.exit_code == 0, result.output
    remark = "those with allow-insecure=false, refuse such a link"
    assert (remark in " ".join(result.output.split())) is remarked


@pytest.mark.parametrize("app", ["vision", "language"])
@pytest.mark.parametrize("link", ["auto", "stream", "ray"])
def test_a_link_to_other_machines_without_a_certificate_is_found(app: str, link: str) -> None:
    """Otherwise only the run would say so, once the SuperNodes are there."""
    keys = f"link='{link}' link-address='0.0.0.0:9443'"
    result = check(APPS / app, "--no-cuts", "--run-config", keys)
    shown = " ".join(result.output.split())
    message = "the link would listen on 0.0.0.0 without TLS: give certificate= and key="
    assert result.exit_code == (link == "stream"), result.output
    assert (message in shown) is (link != "ray")
    remark = f"note: on SuperNodes the run would end with an error: {message}"
    assert (remark in shown) is (link == "auto")


@pytest.mark.parametrize("link", ["auto", "stream", "ray"])
def test_a_private_certificate_without_its_authority_is_warned_of_once(
    link: str, tmp_path: Path
) -> None:
    certificates = make_certificates(tmp_path)
    files = f"ssl-certfile='{certificates.certificate}' ssl-keyfile='{certificates.key}'"
    result = check(APPS / "vision", "--no-cuts", "--run-config", f"link='{link}' {files}")
    assert result.exit_code == 0, result.output
    warning = "ssl-ca-certfile is not set, so nodes trust public authorities only"
    assert " ".join(result.output.split()).count(warning) == (link != "ray")


def test_a_mixer_that_nodes_may_refuse_is_remarked(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("f" * 64)
    token.chmod(0o600)
    mixer = f"link-via='mixer.example:9444' link-via-token='{token}' link-insecure=true"
    keys = f"strategy='CutMixSL' min-patches=1 {mixer}"
    result = check(APPS / "vision", "--no-cuts", "--run-config", keys)
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.split())
    assert "between SuperNodes and the mixer uploads and tokens travel without TLS" in shown

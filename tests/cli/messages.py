"""The program's messages about mistakes: the table of docs/messages.md, made from the real program.

python -m tests.cli.messages docs/messages.md    # renews it there
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from typer.testing import CliRunner

from flwr_splitmix.cli import app
from flwr_splitmix.page_blocks import replace_block
from tests.apps.app_config import APPS

BEGIN, END = "<!-- table: messages -->", "<!-- end of table -->"
PLACE = "/path/to"

Prepare = Callable[[Path], None]


@dataclass(frozen=True)
class Mistake:
    """A command line that is wrong, or of which the user should know something.

    Parameters
    ----------
    what
        The mistake, in a few words.
    kind
        The app: a folder of `apps/`, or one below the prepared folder.
    typed
        What stands behind the app's name; `/path/to` is the prepared folder.
    prepare
        Writes the files that it needs into a folder.
    ok
        Whether the run would start all the same.
    """

    what: str
    kind: str
    typed: Sequence[str]
    prepare: Prepare | None = None
    ok: bool = False


def keys(text: str) -> list[str]:
    return ["--run-config", text]


def pictures(folder: Path, *, broken: int = 0, empty: bool = False, without: bool = False) -> None:
    for split in ("train", "test"):
        for place, name in enumerate(("cat", "dog")):
            target = folder / "pictures" / split / name
            target.mkdir(parents=True)
            for number in range(3):
                picture = Image.new("L", (8, 8), 40 * number + place)
                picture.save(target / f"{number}.png")
    for number in range(broken):
        (folder / "pictures" / "train" / "dog" / f"{number}.png").write_bytes(b"no picture")
    if empty:
        (folder / "pictures" / "train" / "fox").mkdir()


def rows(folder: Path, header: str = "text,target", line: str = "a few words,1") -> None:
    lines = [header, *[f"{line}"] * 40]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def tokenizer_without_padding(folder: Path) -> None:
    from tests.apps.language.test_texts import gpt2

    tokenizer = gpt2(folder / "model", 300)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder / "model")


def giant_vocabulary(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(
        '{"model_type": "llama", "vocab_size": 1000000000000}'
    )


def three_labels(folder: Path) -> None:
    from tests.segments.language.tiny_models import config_of, whole_model

    config = config_of("distilbert", "classification")
    whole_model(config, "classification").save_pretrained(folder / "model")


def several_pictures(folder: Path) -> None:
    import datasets

    picture, kind = Image.new("L", (8, 8)), datasets.Image()
    rows = datasets.Dataset.from_dict(
        {"before": [picture], "after": [picture], "label": [0]},
        features=datasets.Features(
            {"before": kind, "after": kind, "label": datasets.Value("int64")}
        ),
    )
    datasets.DatasetDict(train=rows, test=rows).save_to_disk(str(folder / "saved"))


def plain_client_app(folder: Path) -> None:
    client_app(folder, "from flwr.clientapp import ClientApp\napp = ClientApp()\n")


def leftover_function(folder: Path) -> None:
    client_app(
        folder,
        "from flwr_splitmix import SplitClientApp\napp = SplitClientApp(lambda context: None)\n"
        "@app.train()\ndef train(message, context):\n    return message\n",
    )


def client_app(folder: Path, text: str) -> None:
    project = folder / "own"
    project.mkdir()
    described = (APPS.parent / "examples/other_project/pyproject.toml").read_text(encoding="utf-8")
    (project / "pyproject.toml").write_text(described, encoding="utf-8")
    (project / "server_app.py").write_text(
        "from flwr.serverapp import ServerApp\napp = ServerApp()\n", encoding="utf-8"
    )
    (project / "client_app.py").write_text(text, encoding="utf-8")


def app_with_dependencies(folder: Path) -> None:
    project = folder / "own"
    shutil.copytree(APPS.parent / "examples/other_project", project)
    described = (project / "pyproject.toml").read_text(encoding="utf-8")
    needed = 'version = "0.1.0", dependencies = ["flwr[simulation]>=1.32", "torch==2.8.0"]'
    described = described.replace('version = "0.1.0"', needed)
    (project / "pyproject.toml").write_text(described, encoding="utf-8")


def components_without_a_table(folder: Path) -> None:
    (folder / "own").mkdir()
    (folder / "own" / "pyproject.toml").write_text("tool.flwr.app.components = 3", encoding="utf-8")


def list_of_rates(folder: Path) -> None:
    (folder / "keys.toml").write_text("lr = [1e-3, 1e-4]\n", encoding="utf-8")


LANGUAGE = "task='classification' strategy='USplitSL'"
FILE = f"{LANGUAGE} dataset='{PLACE}/rows.csv'"

MISTAKES = (
    Mistake("no app", "nowhere", []),
    Mistake("a table that is none", "own", [], components_without_a_table),
    Mistake("a key that is not there", "vision", keys("stratgy='PSL'")),
    Mistake("a text without quotes", "vision", keys("strategy=CutMixSL")),
    Mistake("a method that is not there", "vision", keys("strategy='CutMix'")),
    Mistake("a method of the other app", "vision", keys("strategy='MixGuard'")),
    Mistake("Python's True", "vision", keys("pretrained=True")),
    Mistake("blanks around the =", "vision", keys("k = 2")),
    Mistake("a list in a file of keys", "vision", keys(f"{PLACE}/keys.toml"), list_of_rates),
    Mistake("a value out of range", "vision", keys("batch-size=0 lr=-1.0")),
    Mistake("a batch beyond all", "vision", keys("batch-size=10000000000")),
    Mistake(
        "a run to resume that is not there", "vision",
        keys(f"resume='latest' run-dir='{PLACE}/home'"),
    ),
    Mistake(
        "a mixing group above the clients", "vision", [*keys("k=5"), "--nodes", "4"]
    ),
    Mistake(
        "the same, of a sample of the clients", "vision",
        [*keys("k=3 fraction-train=0.5"), "--nodes", "4"],
    ),
    Mistake("a model that is not there", "vision", keys("model='vit_tyny_patch16_224'")),
    Mistake("a cut that is not there", "vision", keys("cut-at='blocks.9'")),
    Mistake(
        "a model that the U shape cannot cut", "vision",
        keys("strategy='USplitFL' model='resnet18'"),
    ),
    Mistake(
        "noise of the L shape in the U shape", "vision", keys("strategy='USplitFL' sigma-s=1.0")
    ),
    Mistake("a data set that is not there", "vision", keys("dataset='fashion-mnist'")),
    Mistake("a relative folder that is not there", "vision", keys("dataset='my/own/pictures'")),
    Mistake(
        "pictures that cannot be read", "vision", keys(f"dataset='{PLACE}/pictures'"),
        lambda folder: pictures(folder, broken=2),
    ),
    Mistake(
        "the same, left out", "vision", keys(f"dataset='{PLACE}/pictures' skip-corrupt=true"),
        lambda folder: pictures(folder, broken=2), ok=True,
    ),
    Mistake(
        "a class without pictures", "vision", keys(f"dataset='{PLACE}/pictures'"),
        lambda folder: pictures(folder, empty=True),
    ),
    Mistake(
        "several columns of pictures", "vision", keys(f"dataset='{PLACE}/saved'"),
        several_pictures,
    ),
    Mistake("more images than a client has", "vision", keys("samples-per-client=4000")),
    Mistake(
        "clients without data", "vision",
        [*keys("partition='dirichlet' partition-alpha=0.01"), "--nodes", "12"], ok=True,
    ),
    Mistake(
        "a budget below one batch", "vision",
        keys("strategy='DPCutMixSL' sigma-s=0.01 sigma-y=0.01 max-epsilon=4.0"),
    ),
    Mistake(
        "noise on a part only", "vision", keys("strategy='DPCutMixSL' sigma-s=5.0"), ok=True
    ),
    Mistake(
        "a link without a certificate", "vision",
        keys("link='stream' link-address='0.0.0.0:9443'"),
    ),
    Mistake(
        "a link that nodes may refuse", "vision",
        keys("link-insecure=true link-address='0.0.0.0:9443'"), ok=True,
    ),
    Mistake("columns of other names", "language", keys(FILE), rows),
    Mistake(
        "labels that are no class", "language",
        keys(f"{FILE} text-column='text' label-column='target'"),
        lambda folder: rows(folder, line="a few words,2"),
    ),
    Mistake(
        "a class without rows", "language",
        keys(f"{FILE} text-column='text' label-column='target' num-labels=3"), rows, ok=True,
    ),
    Mistake("a relative file that is not there", "language", keys("dataset='my/own/rows.csv'")),
    Mistake(
        "a tokenizer without padding token", "language",
        keys(f"model='{PLACE}/model' strategy='USplitSL'"), tokenizer_without_padding,
    ),
    Mistake(
        "a classifier of another number of labels", "language",
        keys(f"{LANGUAGE} model='{PLACE}/model' head-layers=1 tail-layers=1"), three_labels,
    ),
    Mistake(
        "a size that no model has", "language",
        keys(f"model='{PLACE}/model' strategy='USplitSL'"), giant_vocabulary,
    ),
    Mistake("no room beside secret tokens", "language", keys("max-length=30")),
    Mistake("texts that are too long", "language", keys("max-length=82"), ok=True),
    Mistake("the same, refused", "language", keys("max-length=82 long-texts='refuse'")),
    Mistake("a cut that leaves no trunk", "language", keys("head-layers=2 tail-layers=2")),
    Mistake(
        "a method that trains heads, where only tails learn", "language",
        keys("strategy='NoPeekSL' learns='tail'"),
    ),
    Mistake(
        "the same, where the head has no layers", "language",
        keys("strategy='NoPeekSL' head-layers=0"),
    ),
    Mistake("a ClientApp of plain Flower", "own", [], plain_client_app),
    Mistake("a function that was the ClientApp's", "own", [], leftover_function),
    Mistake("dependencies of a converted app", "own", [], app_with_dependencies, ok=True),
)  # fmt: skip


def said(mistake: Mistake, command: str = "check") -> tuple[int, str]:
    """Type it; return the exit status, and the sentences: those in red, or the notes."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory).resolve()
        if mistake.prepare is not None:
            mistake.prepare(folder)
        place = APPS / mistake.kind if (APPS / mistake.kind).is_dir() else folder / mistake.kind
        typed = [word.replace(PLACE, str(folder)) for word in mistake.typed]
        options = ["--no-cuts"] if command == "check" else []
        result = CliRunner().invoke(app, [command, str(place), *options, *typed])
        if mistake.ok:
            lines = [line for line in result.output.splitlines() if line.startswith("note: ")]
        else:
            lines = result.stderr.strip().splitlines()
        sentence = "; ".join(line.removeprefix("note: ") for line in lines)
        return result.exit_code, sentence.replace(str(folder), PLACE)


def table() -> str:
    """Return the table in Markdown."""
    lines = ["| mistake | typed | said |", "| --- | --- | --- |"]
    for mistake in MISTAKES:
        _, sentence = said(mistake)
        typed = " ".join(
            f'"{word}"' if " " in word or "'" in word else word for word in mistake.typed
        )
        cells = (mistake.what, f"`{mistake.kind} {typed}`".replace(" `", "`"), escaped(sentence))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Return plain text as Markdown's."""
    return re.sub(r"([|*<>\[\]_])", r"\\\1", text)


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        page = replace_block(file.read_text(encoding="utf-8"), BEGIN, END, table())
        file.write_text(page, encoding="utf-8")

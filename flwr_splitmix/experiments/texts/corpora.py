"""The papers' text sets in their published files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flwr_splitmix.data.errors import DataError
from flwr_splitmix.data.texts.columns import TextColumns
from flwr_splitmix.data.texts.generated import GENERATED
from flwr_splitmix.data.texts.rows import TextSets, TextTask
from flwr_splitmix.data.texts.sets import load_text_sets


@dataclass(frozen=True)
class Corpus:
    """A data set's files of training and test texts, and their columns.

    Parameters
    ----------
    name
        Name in its paper.
    task
        Task of the texts.
    files
        Pairs of training and test file; the first pair of existing files is read. A test file ""
        holds out a tenth of the training file.
    columns
        Columns of both files.
    """

    name: str
    task: TextTask
    files: tuple[tuple[str, str], ...]
    columns: TextColumns


_GLUE = (("train.tsv", "dev.tsv"),)
"""GLUE's test files have no labels."""

CORPORA = {
    "cola": Corpus(
        "CoLA",
        "classification",
        (("in_domain_train.tsv", "in_domain_dev.tsv"),),
        TextColumns(text="4", label="2"),
    ),
    "sst2": Corpus("SST-2", "classification", _GLUE, TextColumns()),
    "mrpc": Corpus(
        "MRPC",
        "classification",
        (*_GLUE, ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt")),
        TextColumns(text="#1 String", second="#2 String", label="Quality"),
    ),
    "rte": Corpus(
        "RTE", "classification", _GLUE, TextColumns(text="sentence1", second="sentence2")
    ),
    "gsm8k": Corpus(
        "GSM8K",
        "generation",
        (("train.jsonl.gz", "test.jsonl.gz"), ("train.jsonl", "test.jsonl")),
        TextColumns(),
    ),
    "webnlg": Corpus(
        "WebNLG",
        "generation",
        (("train.json", "test.json"), ("train.jsonl", "test.jsonl")),
        TextColumns(question="input", answer="target"),
    ),
    "samsum": Corpus(
        "SAMSum",
        "generation",
        (("train.json", "test.json"), ("train.csv", "test.csv")),
        TextColumns(question="dialogue", answer="summary"),
    ),
    "codealpaca": Corpus(
        "CodeAlpaca",
        "generation",
        (("code_alpaca_20k.json", ""),),
        TextColumns(question="instruction", second="input", answer="output"),
    ),
}
"""The corpora by their names in experiments.

CoLA's files are the raw ones of its public version; those of SST-2, MRPC and RTE are GLUE's (MRPC's
can also be Microsoft's); GSM8K's are OpenAI's. WebNLG's have GEM's fields: `input`, a list of
triples "subject | predicate | object", each of which becomes a line, and `target`, the only text
that is trained and scored; `references` are not read. SAMSum's are lists of `dialogue` and
`summary`. CodeAlpaca's only file is a list of `instruction`, `input` (mostly empty, else it follows
the instruction on its own line) and `output`.
"""


def open_corpus(source: str, corpus: Corpus) -> TextSets:
    """Read a corpus from its folder, or generate texts for its task if the source is "generated".

    Generated texts are single sentences, even if the corpus has pairs. Rows with an empty text, of
    which SAMSum has one, are left out.

    Raises
    ------
    DataError
        If a file is missing or cannot be read.
    """
    if source == GENERATED:
        return load_text_sets(source, corpus.task)
    folder = Path(source).expanduser()
    for train, test in corpus.files:
        if all((folder / name).is_file() for name in (train, test) if name):
            return load_text_sets(
                str(folder / train),
                corpus.task,
                columns=corpus.columns,
                test=str(folder / test) if test else "",
                empty_texts="drop",
            )
    needed = ", or ".join(" and ".join(name for name in pair if name) for pair in corpus.files)
    raise DataError(
        f"{source!r} does not hold {corpus.name}: --dataset must name its folder, with the files "
        f"{needed}"
    )

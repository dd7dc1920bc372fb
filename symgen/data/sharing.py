"""Interactions in a folder, or in a data set of the Hugging Face hub, for others to read."""

import contextlib
import tempfile
from pathlib import Path

from safetensors import SafetensorError, safe_open

from symgen.data.hub import is_path, local_folder, unavailable
from symgen.files import working_folder
from symgen.interactions import Interactions
from symgen.split.sampled import FORMAT, SampledInteractions


def push(
    found: Interactions | SampledInteractions, place: str | Path, name: str = "interactions"
) -> None:
    """Put interactions where others find them; `pull` reads them.

    Args:
        found: as `extract` returns them; names and identity go with them.
        place: a folder, such as "./results", which is made; or ``"<owner>/<name>"``, a data set of
            the hub, which is made where it is missing, as a private one. For the hub be logged in
            (`hf auth login`).
        name: of the file, without its ending.

    Raises:
        ValueError: for a name that would lead out of the place, or a place that is neither.
        OSError: where the hub cannot be reached, or does not let you write.

    Example:
        >>> import symgen, torch
        >>> found = symgen.sparsify(torch.tensor([0.0, 1.0, 1.0, 3.0]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     push(found, folder)
        ...     pull(folder) == found
        True
    """
    file = _file(name)
    if folder := _folder(place):
        folder.mkdir(parents=True, exist_ok=True)
        found.save(folder / file)
        return
    place = _id(place)
    from huggingface_hub import HfApi

    hub, kind = HfApi(), "dataset"
    with tempfile.TemporaryDirectory() as folder:
        found.save(path := Path(folder) / file)
        try:
            hub.create_repo(place, repo_type=kind, private=True, exist_ok=True)
            hub.upload_file(path_or_fileobj=path, path_in_repo=file, repo_id=place, repo_type=kind)
        except Exception as error:  # of the hub's library or of its way to the network
            raise OSError(
                f'"{place}" could not be written to on the hub ({type(error).__name__}: {error}). '
                f'A folder of that name is given as "./{place}"; the hub asks for a login, by '
                "`hf auth login`, and a name of yours before the slash"
            ) from error


def pull(
    place: str | Path, name: str = "interactions", revision: str | None = None
) -> Interactions | SampledInteractions:
    """Read what `push` has put into a folder or into a data set of the hub.

    Args:
        place: as for `push`; a data set under `SYMGEN_DATA` is taken from there.
        name: of the file, without its ending.
        revision: of the data set; the newest without.

    Raises:
        FileNotFoundError: where there is none, or no hub can be reached.
        ValueError: for a file that holds something else, or a place that is neither.
    """
    file = _file(name)
    if folder := _folder(place) or local_folder(str(place), revision):
        return _load(folder / file)
    place = _id(place)
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        path = hf_hub_download(place, file, repo_type="dataset", revision=revision)
    except (OSError, HfHubHTTPError, ValueError) as error:
        raise unavailable(place, "data set", file, error) from error
    return _load(path)


def _load(path: str | Path) -> Interactions | SampledInteractions:
    """Read a file of either kind."""
    with contextlib.suppress(OSError, SafetensorError), safe_open(path, framework="pt") as file:
        if (file.metadata() or {}).get("format") == FORMAT:
            return SampledInteractions.load(path)
    return Interactions.load(path)


def _folder(place: str | Path) -> Path | None:
    """Return the folder that a place is the path of, which need not be there; None for an id."""
    path = isinstance(place, Path) or is_path(place)
    return working_folder() / Path(place).expanduser() if path else None


def _id(place: str) -> str:
    if place.count("/") != 1:
        raise ValueError(
            f'"{place}" is neither a folder, such as "./{place}", nor an id of the hub, '
            '"<owner>/<name>"'
        )
    return place


def _file(name: str) -> str:
    if Path(name).name != name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is no name of a file; expected one such as 'resnet20-epoch-10'")
    return f"{name}.safetensors"

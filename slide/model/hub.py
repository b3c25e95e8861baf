"""Models on the Hugging Face Hub: ``hf://owner/name``, or ``hf://owner/name@revision``."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from slide.model.card import CARD
from slide.model.folder import MODEL_FILE, PARTS, write_model
from slide.utils.checks import shortened
from slide.utils.tensor_folder import SUFFIX

_SCHEME = "hf://"
_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@(.+))?")
# The files that a model may have, and that are transferred.
_FILES = [MODEL_FILE, CARD, *(f"{part}{SUFFIX}" for part in PARTS)]


def is_on_hub(path: str | Path) -> bool:
    """Whether a model's path is an address of the Hub."""
    return isinstance(path, str) and path.startswith(_SCHEME)


def fetched(address: str) -> Path:
    """The folder with the files of a repository; those that are there already are not fetched."""
    found = _NAME.fullmatch(address.removeprefix(_SCHEME))
    if found is None:
        raise ValueError(f"{address!r} must be hf://owner/name or hf://owner/name@revision")
    hub, (name, revision) = _hub(), found.groups()
    # The Hub's own cache has links, which model folders must not have.
    place = quote(f"{name}@{revision or 'main'}".replace("/", "--"), safe="@")
    folder = Path(hub.constants.HF_HOME) / "slide" / place
    with _told(address):
        hub.snapshot_download(name, revision=revision, allow_patterns=_FILES, local_dir=folder)
    return folder


def push(model: Any, name: str, dtype: str, private: bool | None) -> str:
    """Upload a `slide.Model`; returns the address of the commit."""
    hub = _hub()
    with tempfile.TemporaryDirectory(prefix="slide-") as place, _told(f"{_SCHEME}{name}"):
        api, folder = hub.HfApi(), Path(place)
        api.create_repo(name, private=private, exist_ok=True)
        with suppress(hub.errors.EntryNotFoundError):  # Somebody may have edited it.
            api.hf_hub_download(name, CARD, local_dir=folder)
        write_model(folder, model, dtype)
        options = {"allow_patterns": _FILES, "delete_patterns": _FILES}
        done = api.upload_folder(repo_id=name, folder_path=folder, **options)
        return done.commit_url


def _hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError as error:
        said = "models of the Hugging Face Hub need huggingface_hub: pip install 'slide-xmc[hub]'"
        raise ImportError(said) from error
    return huggingface_hub


@contextmanager
def _told(address: str) -> Iterator[None]:
    """Let what fails with the Hub be one sentence."""
    try:
        yield
    except ValueError:  # Such as a name that no repository can have.
        raise
    except Exception as error:  # Its errors have the classes of whatever it uses for HTTP.
        raise OSError(f"{address}: {shortened(error)}") from error

"""The folder of a model: ``model.json``, and files of tensors that are opened as memory maps."""

from pathlib import Path
from typing import Any

from slide.tensor_folder import FolderKind, read_folder

MODEL_FILE = "model.json"
MODEL_FOLDER = FolderKind("model", MODEL_FILE, format=2)


def read_model_folder(folder: Path, verify: bool = False) -> dict[str, Any]:
    """Read and check ``model.json``; see `slide.tensor_folder.read_folder`.

    Raises:
        FileNotFoundError: if there is no model, or one of its files is missing.
        ValueError: if the format is another one, or a file is not the one that was written.
    """
    try:
        return read_folder(MODEL_FOLDER, folder, verify)
    except FileNotFoundError as error:
        if (folder / "config.yaml").is_file() and not (folder / MODEL_FILE).is_file():
            said = f"{error}; the run has not ended, resume={folder} goes on with it"
            raise FileNotFoundError(said) from None
        raise

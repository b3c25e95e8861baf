"""The folder of a model: ``model.json``, and files of tensors that are opened as memory maps."""

from pathlib import Path
from typing import Any

from slide.utils.run_folders import resume_word
from slide.utils.tensor_folder import FolderKind, check_files, read_folder

MODEL_FILE = "model.json"
# Models of format 3 know no similar questions and no regressions of items.
MODEL_FOLDER = FolderKind("model", MODEL_FILE, format=4, oldest=3)


def read_model_folder(folder: Path, verify: bool = True) -> dict[str, Any]:
    """Read and check ``model.json``, and compare the files; see `slide.utils.tensor_folder`.

    Args:
        folder: the folder.
        verify: whether to read all files and compare their SHA-256.

    Raises:
        FileNotFoundError: if there is no model, or one of its files is missing.
        ValueError: if the format is another one, or a file is not the one that was written.
    """
    try:
        content = read_folder(MODEL_FOLDER, folder)
    except FileNotFoundError as error:
        if (folder / "config.yaml").is_file() and not (folder / MODEL_FILE).is_file():
            said = f"{error}; the run has not ended, {resume_word(folder)} goes on with it"
            raise FileNotFoundError(said) from None
        raise
    if verify:
        check_files(MODEL_FOLDER, folder, content, content["files"])
    return content

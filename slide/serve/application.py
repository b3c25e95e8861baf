"""The server of a model, as an ASGI application."""

from importlib.util import find_spec
from typing import Any

from slide import runtime
from slide.model import Model
from slide.serve.limits import Limits
from slide.utils import checks

_NEEDED = ("fastapi", "uvicorn", "prometheus_client")


def check_installed() -> None:
    """Raise ImportError if a package of the extra ``serve`` is missing."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ImportError(f"a server needs {', '.join(missing)}: pip install slide[serve]")


def create_app(
    model: Model, limits: Limits | None = None, threads: int = 0, search: str | None = None
) -> Any:
    """The server of a model, for uvicorn or another ASGI server.

    One process must have one of them, with one thread of requests: its own thread computes.

    Args:
        model: a trained model.
        limits: None: `Limits` as they are.
        threads: cores of the products; 0: all.
        search: how labels are found for requests that do not say it, ``"exact"`` or ``"index"``;
            None: `slide.Model.search`. What it needs is made when the server starts; an index that
            a request asks for otherwise is made then. In an application that is mounted in another
            one, the first request makes what it needs.

    Returns:
        An application of FastAPI.

    Raises:
        ImportError: if a package is missing that a server needs.
        ValueError: for a limit or a number of threads out of range, or another search.

    Example:
        >>> import slide
        >>> from slide.serve import create_app
        >>> app = create_app(slide.Model(slide.SlideNetwork(100, [16], 3, slide.FullSampler)))
        >>> app.title
        'slide'
    """
    runtime.check_threads(threads)
    check_installed()
    from slide.serve.routes import make_app  # Imported here: the packages are an extra.

    search = model.search if search is None else search
    checks.one_of("search", search, ("exact", "index"))
    return make_app(model, (limits or Limits()).checked(), threads, search)

"""Modules that the core uses by a protocol alone: `slide` says which provides one."""

from importlib import import_module
from typing import Any

_modules: dict[str, str] = {}


def provide(protocol: str, module: str) -> None:
    """Let a module, which is imported when it is needed, provide what a protocol asks for."""
    _modules[protocol] = module


def provider(protocol: str) -> Any:
    """The module that provides what a protocol asks for."""
    return import_module(_modules[protocol])

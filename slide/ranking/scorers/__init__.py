"""The base scorers: each class with a ``name`` in a file of this folder adds one."""

from importlib import import_module
from pkgutil import iter_modules

from slide.ranking.base_scorer import BaseScorer

_MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
SCORERS: dict[str, type[BaseScorer]] = {
    each.name: each
    for module in _MODULES
    for each in vars(module).values()
    if isinstance(each, type) and issubclass(each, BaseScorer) and each.name
}

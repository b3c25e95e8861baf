"""How inputs are looked up in hash tables, and how tables follow the weights."""

from collections.abc import Callable
from typing import NamedTuple

from slide import checks
from slide.hashing import HashFamily
from slide.hashing.probing import check_probes
from slide.sampling import schedules


class LookUp(NamedTuple):
    """How `slide.LSHProposer` looks up an input. The defaults are those of the published method.

    Attributes:
        probes: number of further buckets that an input is looked up in, in each table: those that
            its least certain bits or digits lead to (Lv et al. 2007, "Multi-probe LSH"). At most
            64, and there are at most 2^K - 1 in a table; it needs dense inputs, and a family that
            has ``probe_codes``.
        best: number of candidates of a sample: of its most-voted ids, several times as many are
            scored with the present weights, and these are the best of them, its labels left out. It
            needs dense inputs. None: candidates are the ids with the most votes.

    Example:
        >>> from functools import partial
        >>> import slide
        >>> from slide.sampling import LookUp
        >>> proposer = partial(slide.LSHProposer, look_up=LookUp(probes=2, best=8))
        >>> sampler = slide.ActiveSampler(16, 1000, proposer, active=64)
    """

    probes: int = 0
    best: int | None = None

    def check(self, family: HashFamily) -> None:
        """Raise ValueError for a number out of range, or a family without further buckets."""
        if self.best is not None:
            checks.whole("best", self.best, 1)
        check_probes(self.probes, family)

    @property
    def published(self) -> bool:
        """Whether it is the published way, which also takes sparse inputs."""
        return not self.probes and self.best is None


class Upkeep(NamedTuple):
    """How the hash tables of `slide.LSHProposer` follow the weights, beside rebuilds.

    Attributes:
        rehash_after: between rebuilds, a row is hashed again when it was in this many active sets
            of training steps, in [1, 255]. None: 8 with a shared set, 64 with a set for each
            sample. 0: never.
        redraw: schedule of new hash functions: a function from a number of samples to the number of
            changes due, such as `slide.sampling.fixed`. A change takes effect at the next rebuild.

    Example:
        >>> from functools import partial
        >>> import slide
        >>> from slide.sampling import Upkeep
        >>> proposer = partial(slide.LSHProposer, upkeep=Upkeep(rehash_after=0))
        >>> sampler = slide.ActiveSampler(16, 1000, proposer, active=64)
    """

    rehash_after: int | None = None
    redraw: Callable[[int], int] = schedules.never

    def check(self) -> None:
        """Raise ValueError for a number out of range, TypeError for a schedule that is none."""
        schedules.check_schedule("redraw", self.redraw)
        if self.rehash_after is not None:
            checks.whole("rehash_after", self.rehash_after, 0)
            checks.within("rehash_after", self.rehash_after, 0, 255)

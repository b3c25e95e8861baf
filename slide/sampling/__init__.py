"""Samplers choose the outputs that a step computes.

An `ActiveSampler` assembles an active set: the labels, then candidates of a `Proposer`, then
uniform draws. A rebuild schedule says when the proposer rebuilds its index.
"""

from slide.sampling.faiss import FaissProposer as FaissProposer
from slide.sampling.label_proposers import RecentProposer as RecentProposer
from slide.sampling.lsh import LSHProposer as LSHProposer
from slide.sampling.protocol import Proposer as Proposer
from slide.sampling.protocol import Sampler as Sampler
from slide.sampling.published_lsh import PublishedLSHProposer as PublishedLSHProposer
from slide.sampling.sampler import ActiveSampler as ActiveSampler
from slide.sampling.sampler import FullSampler as FullSampler
from slide.sampling.schedules import backoff as backoff
from slide.sampling.schedules import by_updates as by_updates
from slide.sampling.schedules import fixed as fixed
from slide.sampling.schedules import never as never
from slide.sampling.sketch import SketchProposer as SketchProposer

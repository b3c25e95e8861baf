"""The uniformity of what full buckets keep."""

import numpy as np
import pytest
from helpers.buckets import as_codes, contents
from helpers.matrices import chi_square_p

from slide.hashing.tables import HashTables


def keep_counts(policy_of_keeping, num_ids=30, num_draws=960):
    """How often each of ``num_ids`` ids is among those kept, over all tables and seeds."""
    num_tables = 96
    codes = np.zeros((num_tables, num_ids), np.int32)
    counts = np.zeros(num_ids, int)
    for seed in range(num_draws // num_tables):
        counts += np.bincount(policy_of_keeping(seed, codes), minlength=num_ids)
    return counts


def kept_by_build(seed, codes):
    tables = HashTables(len(codes), 1, 5, "reservoir", seed)
    tables.build(codes)
    return tables.query(codes[:, :1]).indices


def kept_by_insert(seed, codes):
    tables = HashTables(len(codes), 1, 5, "reservoir", seed)
    for part in np.array_split(np.arange(codes.shape[1], dtype=np.int32), 3):
        tables.insert(part, codes[:, part])
    return tables.query(codes[:, :1]).indices


def kept_by_the_published_rule(seed, codes):
    """An id enters a full bucket with probability 1 / n instead of capacity / n."""
    rng = np.random.default_rng(seed)
    kept = []
    for row in codes:
        bucket = list(range(5))
        for n in range(5, len(row)):
            if rng.random() < 1 / (n + 1):
                bucket[rng.integers(5)] = n
        kept += bucket
    return np.array(kept)


def entered(i, num_tables=960):
    """In which tables the second id of a bucket, ``i``, has replaced the first; (L,) bool."""
    codes = np.zeros((num_tables, 1), np.int32)
    tables = HashTables(num_tables, 1, 1)
    tables.build(codes)
    tables.insert(np.array([i], np.int32), codes)
    return tables.query(codes).indices == i


class TestReservoir:
    @pytest.mark.parametrize("keeping", [kept_by_build, kept_by_insert])
    def test_is_uniform(self, keeping):
        counts = keep_counts(keeping)
        assert counts.sum() == 960 * 5
        assert chi_square_p(counts, 960, 5) > 1e-3

    def test_this_would_tell(self):
        assert chi_square_p(keep_counts(kept_by_the_published_rule), 960, 5) < 1e-12

    def test_tables_draw_independently(self):
        codes = np.zeros((20, 40), np.int32)
        tables = HashTables(20, 1, 5)
        tables.build(codes)
        assert len({tuple(sorted(table[0])) for table in contents(tables)}) > 15

    def test_buckets_draw_independently(self):
        tables = HashTables(1, 20, 5)
        tables.build(as_codes([np.repeat(np.arange(20), 40)]))
        assert len({tuple(sorted(np.array(b) % 40)) for b in contents(tables)[0]}) > 15

    def test_ids_draw_independently(self):
        """Where ids leave, a bucket comes to the same number of offered ids again and again."""
        one, other = (entered(i) for i in (1, 2))
        assert 0.45 < one.mean() < 0.55
        assert 0.45 < (one == other).mean() < 0.55

    def test_many_tables_draw_independently(self):
        found = entered(1)
        assert 0.4 < (found[256:] == found[:-256]).mean() < 0.6

    def test_follows_the_seed(self):
        codes = np.zeros((4, 60), np.int32)
        kept = []
        for seed in (0, 1, 0):
            tables = HashTables(4, 1, 5, seed=seed)
            tables.build(codes)
            kept.append(contents(tables))
        assert kept[0] == kept[2] != kept[1]

"""Hash tables against dictionaries, and the uniformity of what full buckets keep."""

from collections import Counter

import numpy as np
import pytest
import torch
from helpers.buckets import as_codes, contents, draw_codes
from helpers.grids import pairs
from helpers.matrices import chi_square_p, make_pattern, rows_of

from slide.backend import backend
from slide.hashing import hash_tables
from slide.hashing.hash_tables import HashTables
from slide.ops.buckets import SPARE
from slide.ops.random import random_below
from slide.ops.sketches import LINE, PRIOR, no_keys
from slide.sparse import Pattern
from slide.utils.random_keys import random_key

POLICIES = ["fifo", "reservoir"]


class Dictionaries:
    """The kept ids of each code in each table, and how many were offered."""

    def __init__(self, tables, codes, ids=None):
        self.like, self.kept = tables, [{} for _ in range(tables.num_tables)]
        self.seen = [Counter() for _ in self.kept]
        for i, own in enumerate(codes.T.tolist()):
            for table, code in enumerate(own):
                self.insert(i if ids is None else int(ids[i]), table, code)

    def insert(self, i, table, code):
        kept, offered = self.kept[table].setdefault(code, []), self.seen[table][code]
        self.seen[table][code] += 1
        if len(kept) < self.like.capacity:
            kept.append(i)
            return
        at = offered % self.like.capacity
        if self.like.bucket_policy == "reservoir":
            counter = table * 0x2545F4914F6CDD1D + code * 0x5851F42D4C957F2D
            counter += i * 0x369DEA0F31A53F85 + offered
            counter = np.uint64(counter % 2**64).astype(np.int64)
            at = int(random_below(random_key(self.like.seed), counter, offered + 1))
        if at < self.like.capacity:
            kept[at] = i

    def contents(self):
        return [[table.get(c, []) for c in range(self.like.num_buckets)] for table in self.kept]


@pairs(seed=[0, 1], capacity=[1, 4, 100, None], policy=POLICIES, growing=[False, True])
class TestContents:
    def test_insert_many_after_build(self, policy, capacity, seed, growing):
        codes = as_codes(draw_codes(seed))
        ids = np.random.default_rng(seed).permutation(1_000)[:40].astype(np.int32)
        ids[:15] = np.arange(15)
        tables = HashTables(3, 5, capacity, policy, seed, growing=growing)
        tables.build(codes[:, :15])
        tables.insert(ids[15:25], codes[:, 15:25])
        tables.insert(ids[25:], codes[:, 25:])
        buckets = contents(tables)
        assert buckets == Dictionaries(tables, codes, ids).contents()
        asked = as_codes(draw_codes(seed + 10, num_ids=7))
        parts = [[buckets[table][c] for table, c in enumerate(own)] for own in asked.T]
        assert rows_of(tables.query(asked)) == [[i for ids in own for i in ids] for own in parts]

    def test_build_in_an_order(self, policy, capacity, seed, growing):
        """A full bucket has dropped the first ids of the order, or draws by it."""
        codes, rng = as_codes(draw_codes(seed)), np.random.default_rng(seed)
        tables = HashTables(3, 5, capacity, policy, seed, growing=growing)
        for _ in range(2):  # A second build forgets the first one.
            order = rng.permutation(40)
            tables.build(codes, order)
            twin = Dictionaries(tables, codes[:, order], order)
            assert contents(tables) == twin.contents()
        tables.insert(as_codes([90, 91]), codes[:, :2])
        for i in range(2):
            for table, code in enumerate(codes[:, i].tolist()):
                twin.insert(90 + i, table, code)
        assert contents(tables) == twin.contents()

    def test_insert_where_codes_have_changed(self, policy, capacity, seed, growing):
        """Ids stay in their old buckets, too."""
        old, new = (as_codes(draw_codes(seed + i)) for i in (0, 20))
        ids = np.random.default_rng(seed).permutation(40)[:17].astype(np.int32)
        for kind in (np.array, torch.tensor):
            tables = HashTables(3, 5, capacity, policy, seed, growing=growing)
            tables.build(old)
            twin = Dictionaries(tables, old)
            tables.insert(ids, kind(new[:, ids]), old[:, ids])
            for i in ids.tolist():
                for table in range(3):
                    if old[table, i] != new[table, i]:
                        twin.insert(i, table, int(new[table, i]))
            assert contents(tables) == twin.contents()
            now = contents(tables)
            tables.insert(ids, new[:, ids], new[:, ids])
            assert contents(tables) == now, "no code has changed"


def test_tensors_are_as_good_as_arrays():
    old, new, ids = (as_codes(each) for each in (draw_codes(0), draw_codes(1), [50, 60]))
    found = []
    for kind in (np.array, torch.tensor):
        tables = HashTables(3, 5, 8)
        tables.build(kind(old))
        tables.insert(kind(ids), kind(new[:, :2]))
        tables.insert(kind(ids), kind(old[:, :2]), kind(new[:, :2]))
        found.append((contents(tables), tables.query(kind(new)).indices.tolist()))
    assert found[0] == found[1]


def test_empty_tables():
    tables, none = HashTables(2, 5), np.empty((2, 0), np.int32)
    for build in (tables.clear, lambda: tables.build(none)):
        tables.build(as_codes(draw_codes(0, 2)))
        build()
        tables.insert(none[0], none)
        assert set(tables.statistics().values()) == {0}
        assert tables.query(as_codes(draw_codes(1, 2))).indices.size == 0
        assert tables.query(none).num_rows == 0


def test_statistics():
    """Full buckets leave ids out."""
    for capacity, expected in ((2, (5 / 8, 2, 2, 3 / 10)), (None, (5 / 8, 2, 4, 0))):
        tables = HashTables(2, 4, bucket_capacity=capacity)
        tables.build(as_codes([[0, 0, 0, 0, 3], [1, 1, 1, 2, 3]]))
        names = "non_empty_share", "mean_bucket", "largest_bucket", "left_out_share"
        wanted = {f"tables/{name}": n for name, n in zip(names, expected, strict=True)}
        assert tables.statistics() == wanted


@pytest.mark.kernels_only
class TestGrowing:
    """Tables whose buckets have room for as many ids again, and for `SPARE` at least."""

    @pytest.mark.parametrize("capacity", [None, 12])
    def test_room_of_buckets(self, capacity):
        codes = as_codes(draw_codes(0))
        tables = HashTables(3, 5, capacity, growing=True)
        tables.build(codes)
        counts = np.array([np.bincount(own, minlength=5) for own in codes])
        rooms = np.minimum(2 * counts + SPARE, capacity or 1000)
        np.testing.assert_array_equal(tables.buckets.rooms, rooms)
        np.testing.assert_array_equal(tables.buckets.starts, rooms.cumsum(1) - rooms)
        assert tables.buckets.used.tolist() == rooms.sum(1).tolist()
        assert tables.buckets.pool.shape == (3, 2 * 40 + SPARE * 5)

    @pytest.mark.parametrize("growing", [True, False])
    def test_buckets_stay_where_they_are_until_they_are_full(self, growing):
        codes = as_codes(draw_codes(0))
        tables = HashTables(3, 5, None, growing=growing)
        tables.build(codes)
        pool, starts = tables.buckets.pool, tables.buckets.starts.copy()
        tables.insert(np.arange(40, 80, dtype=np.int32), codes)
        more = as_codes(np.arange(5 * SPARE) % 5)
        tables.insert(np.arange(80, 80 + len(more), dtype=np.int32), np.tile(more, (3, 1)))
        same = tables.buckets.pool is pool and np.array_equal(tables.buckets.starts, starts)
        assert same == growing
        tables.insert(as_codes([200]), as_codes([[3]] * 3))
        assert not np.array_equal(tables.buckets.starts, starts)
        assert [table[3][-1] for table in contents(tables)] == [200] * 3

    def test_a_state_restores_the_room(self):
        tables, other = (HashTables(3, 5, 30, growing=True) for _ in range(2))
        codes = as_codes(draw_codes(0))
        tables.build(codes)
        other.load_state_dict(tables.state_dict())
        for each in (tables, other):
            each.insert(np.arange(40, 80, dtype=np.int32), codes)
        assert contents(other) == contents(tables)
        np.testing.assert_array_equal(other.buckets.rooms, tables.buckets.rooms)


def draw_sketched(rng, count):
    """Sketches of rows without direction, so that priors, all different, are the scores."""
    sketches = np.zeros((count, LINE), np.int8)
    sketches.view(np.float32)[:, PRIOR] = rng.permutation(count)
    return sketches


class TestBest:
    @pairs(way=["kernels", "torch"], probes=[0, 1], num_codes=[None, 2**20], growing=[False, True])
    def test_of_the_buckets_of_a_query(self, way, probes, num_codes, growing):
        """Without those left out, beside those found before, in tables of few codes and many."""
        rng = np.random.default_rng(0)
        codes = rng.integers(0, num_codes or 6, (4, 90), dtype=np.int32)
        moved = rng.integers(0, num_codes or 6, (4, 20), dtype=np.int32)
        codes[:, 40:60], ids = codes[:, :1], np.arange(20, dtype=np.int32)
        tables = HashTables(4, 6, 8, "fifo", num_codes=num_codes, growing=growing)
        asked = rng.choice(codes.flatten(), ((1 + probes) * 4, 7)).astype(np.int32)
        queries, sketches = torch.randn(7, 5), draw_sketched(rng, 90)
        left_out, keys = make_pattern(rng, rng.integers(0, 30, 7), 89), no_keys((7, 12))
        scores = sketches.view(np.float32)[:, PRIOR]
        keys[:, -1] = (np.int64(scores[89].view(np.int32)) << 32) | (0x7FFFFFFF - 89)
        keys = np.sort(keys, 1)  # Row 89 was found before.
        with backend(way):
            tables.build(codes)
            tables.insert(ids, moved, codes[:, :20])
            found, scanned = tables.best(asked, queries, torch.from_numpy(sketches), left_out, keys)
            read = rows_of(tables.query(asked))
        assert (found.dtype, found.shape) == (torch.int32, (7, 12))
        assert scanned == pytest.approx(np.mean([len(own) for own in read]))
        for b, own in enumerate(rows_of(left_out)):
            rows = {89, *read[b]} - {*own}
            best = sorted(rows, key=lambda row: -scores[row])[:12]
            assert found[b].tolist() == best + [-1] * (12 - len(best))

    @pytest.mark.parametrize("way", ["kernels", "torch"])
    def test_no_query_and_empty_tables(self, way):
        tables = HashTables(2, 3)
        sketches = torch.from_numpy(draw_sketched(np.random.default_rng(0), 5))
        with backend(way):
            for count in (0, 2):
                given = torch.ones(count, 4), sketches, Pattern.from_lists([[]] * count)
                asked = np.zeros((2, count), np.int32)
                ids, scanned = tables.best(asked, *given, no_keys((count, 3)))
                assert (ids.tolist(), scanned) == ([[-1] * 3] * count, 0)

    def test_codes_must_fit(self):
        tables, sketches = HashTables(2, 3), torch.zeros(5, LINE, dtype=torch.int8)
        given = torch.ones(1, 4), sketches, Pattern.from_lists([[]]), no_keys((1, 3))
        for codes, message in (([[3], [0]], r"lie in \[0, 3\)"), ([[0]] * 3, r"must be \(2, n\)")):
            with pytest.raises(ValueError, match=message):
                tables.best(as_codes(codes), *given)


class TestFolding:
    """More codes than buckets."""

    def test_as_buckets_of_the_folded_codes(self):
        codes = np.random.default_rng(0).integers(0, 2**31, (3, 60), dtype=np.int32)
        codes[0, :2] = 0, 2**31 - 1
        tables, twin = HashTables(3, 20, 4, num_codes=2**31), HashTables(3, 20, 4)
        folded = hash_tables.fold(codes, 20)
        ids, asked = np.arange(60, 70, dtype=np.int32), codes[:, 5:25]
        moved = np.roll(codes, 7, axis=1)
        for each, now, then in (
            (tables, codes, moved),
            (twin, folded, hash_tables.fold(moved, 20)),
        ):
            each.build(now)
            each.insert(ids, now[:, :10])
            each.insert(np.arange(60, dtype=np.int32), then)
        assert contents(tables) == contents(twin)
        found, expected = tables.query(asked), twin.query(folded[:, 5:25])
        assert found.indices.tolist() == expected.indices.tolist()
        np.testing.assert_array_equal(tables.buckets_of(codes), folded)

    def test_by_torch_as_by_kernels(self):
        codes = np.random.default_rng(1).integers(0, 2**31, (2, 50), dtype=np.int32)
        mixed = codes.astype(np.uint64)  # MurmurHash3's mix of 32 bits, as a share of the buckets.
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            mixed = (mixed ^ mixed >> shift) * factor % 2**32
        expected = (mixed ^ mixed >> 16) * 777 // 2**32
        for name in ("kernels", "torch"):
            with backend(name):
                np.testing.assert_array_equal(hash_tables.fold(codes, 777), expected)

    def test_memory_follows_the_ids(self):
        codes = np.random.default_rng(0).integers(0, 2**24, (10, 30_000), dtype=np.int32)
        buckets = hash_tables.bucket_count(2**24, 30_000)
        tables = HashTables(10, buckets, num_codes=2**24)
        tables.build(codes)
        # Three numbers for each of two buckets an id, and the id.
        most = 10 * 30_000 * 4 * 7 + 1000
        assert sum(each.nbytes for each in tables.buckets) <= most
        assert sum(each.nbytes for each in tables.state_dict().values()) <= most

    def test_codes_must_fit(self):
        tables = HashTables(1, 4, num_codes=9)
        with pytest.raises(ValueError, match=r"must lie in \[0, 9\), not in \[9, 9\]"):
            tables.build(as_codes([[9]]))
        with pytest.raises(ValueError, match="num_codes must be a whole number of at least 4"):
            HashTables(1, 4, num_codes=3)


class TestState:
    @pytest.mark.parametrize("policy", POLICIES)
    def test_round_trip(self, policy):
        codes = as_codes(draw_codes(0))
        tables, other = (HashTables(3, 5, 4, policy) for _ in range(2))
        tables.build(codes[:, :20])
        other.load_state_dict(tables.state_dict())
        assert contents(other) == contents(tables)
        other.build(codes[:, 20:])  # They share no memory.
        other.load_state_dict(tables.state_dict())
        for t in (tables, other):
            t.insert(np.arange(20, 40, dtype=np.int32), codes[:, 20:])
        assert contents(other) == contents(tables)

    def test_of_other_tables_and_buckets_that_share_their_ids(self):
        """As many copies of a pool as there are buckets would fill the memory."""
        tables = HashTables(3, 5, 4)
        tables.build(as_codes(draw_codes(0)))
        state = tables.state_dict()
        with pytest.raises(ValueError, match=r"\(3, 5\) do not fit tables of shape \(3, 6\)"):
            HashTables(3, 6, 4).load_state_dict(state)
        state["starts"][1], state["rooms"][1] = 0, state["used"][1]
        with pytest.raises(ValueError, match="damaged: buckets lie in one another"):
            tables.load_state_dict(state)


class TestErrors:
    def test_codes_out_of_range_or_of_the_wrong_shape_or_type(self):
        tables = HashTables(1, 5)
        for codes in ([[0, 5]], [[-1, 0]]):
            for call in (tables.build, tables.query, lambda c: tables.insert(as_codes([0, 1]), c)):
                with pytest.raises(ValueError, match=r"codes must lie in \[0, 5\)"):
                    call(as_codes(codes))
        for shape, dtype in (((2, 3), np.int32), (3, np.int32), ((1, 3), np.int64)):
            with pytest.raises(ValueError, match=r"codes must be \(1, n\) int32"):
                tables.build(np.zeros(shape, dtype))

    @pytest.mark.parametrize(
        ("ids", "message"),
        [
            (np.zeros(2, np.int32), r"ids must be \(3,\) int32, not \(2,\) int32"),
            (torch.zeros(3), r"ids must be \(3,\) int32, not \(3,\) torch.float32"),
            (as_codes([0, -1, 2]), "ids must be at least 0, not -1"),
        ],
    )
    def test_ids_that_do_not_fit(self, ids, message):
        codes = np.zeros((1, 3), np.int32)
        with pytest.raises(ValueError, match=message):
            HashTables(1, 5).insert(ids, codes)


def test_equal_tables_have_equal_states():
    """Whatever they held before: the pool after the last bucket is zeros."""
    crowded = as_codes(np.zeros((2, 40), np.int32))
    crowded[1] = as_codes(np.arange(40, dtype=np.int32) % 5)
    tables, fresh = (HashTables(2, 5, bucket_capacity=4) for _ in range(2))
    tables.build(as_codes(np.tile(np.arange(40, dtype=np.int32) % 5, (2, 1))))
    for each in (tables, fresh):
        each.build(crowded)
    found, expected = tables.state_dict(), fresh.state_dict()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def keep_counts(built):
    """How often each of 30 ids is kept, over 96 tables and 10 seeds; the first ones by a build."""
    codes, counts = np.zeros((96, 30), np.int32), np.zeros(30, int)
    for seed in range(10):
        tables = HashTables(96, 1, 5, "reservoir", seed)
        tables.build(codes[:, :built])
        for part in np.array_split(np.arange(built, 30, dtype=np.int32), 3):
            tables.insert(part, codes[:, part])
        counts += np.bincount(tables.query(codes[:, :1]).indices, minlength=30)
    return counts


def entered(i, num_tables=960):
    """In which tables the second id of a bucket, ``i``, has replaced the first; (L,) bool."""
    codes = np.zeros((num_tables, 1), np.int32)
    tables = HashTables(num_tables, 1, 1)
    tables.build(codes)
    tables.insert(np.array([i], np.int32), codes)
    return tables.query(codes).indices == i


class TestReservoir:
    @pytest.mark.parametrize("built", [0, 30])
    def test_is_uniform(self, built):
        counts = keep_counts(built)
        assert counts.sum() == 960 * 5
        assert chi_square_p(counts, 960, 5) > 1e-3

    def test_buckets_draw_independently(self):
        tables = HashTables(1, 20, 5)
        tables.build(as_codes([np.repeat(np.arange(20), 40)]))
        assert len({tuple(sorted(np.array(b) % 40)) for b in contents(tables)[0]}) > 15

    def test_ids_draw_independently(self):
        """Where ids leave, a bucket comes to the same number of offered ids again and again."""
        one, other = (entered(i) for i in (1, 2))
        assert 0.45 < one.mean() < 0.55
        assert 0.45 < (one == other).mean() < 0.55


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"num_tables": 0}, "num_tables must be .* at least 1, not 0"),
        ({"bucket_capacity": 0}, "bucket_capacity must be .* at least 1, not 0"),
        ({"bucket_policy": "lifo"}, "bucket_policy must be one of"),
    ],
)
def test_options_out_of_range(option, message):
    with pytest.raises(ValueError, match=message):
        HashTables(**{"num_tables": 1, "num_buckets": 1} | option)

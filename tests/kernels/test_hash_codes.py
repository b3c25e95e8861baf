"""Kernels of the hash families, against their looped twins."""

import numpy as np
import pytest
import torch
from helpers import naive_hashing
from helpers.matrices import make_csr, make_pattern

from slide.hashing.families import DWTA
from slide.kernels import hash_codes as kernels
from slide.sparse import CSR


class TestKernels:
    @pytest.mark.parametrize("seed", [0, 1])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize(("num_vectors", "k", "tables"), [(4, 3, 5), (1, 1, 1), (0, 2, 3)])
    def test_pack_signs(self, num_vectors, k, tables, dtype, seed):
        rng = np.random.default_rng(seed)
        projections = rng.integers(-2, 3, (num_vectors, tables * k)).astype(dtype)
        out = np.full((tables, num_vectors), -1, np.int32)
        kernels.pack_signs(projections, k, out)
        assert out.T.tolist() == naive_hashing.pack_signs(projections, k).T.tolist()

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("lengths", [[3, 0, 6], [0], [], [1]])
    def test_project_sparse(self, lengths, dtype):
        rng = np.random.default_rng(len(lengths))
        x = make_csr(rng, lengths, 7, dtype)
        directions = rng.integers(-1, 2, (7, 6)).astype(np.int8)
        out = np.full((len(lengths), 6), np.nan, dtype)
        kernels.project_sparse(*x, directions, out)
        np.testing.assert_allclose(out, naive_hashing.project_sparse(*x, directions), atol=1e-5)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("num_vectors", [0, 1, 6])
    @pytest.mark.parametrize("bin_size", [2, 8])
    def test_dwta_dense(self, bin_size, num_vectors, dtype):
        family = DWTA(19, 3, 4, bin_size=bin_size)
        # Few different values, so that ties occur.
        vectors = np.random.default_rng(0).integers(-3, 4, (num_vectors, 19)).astype(dtype)
        codes = family.codes(torch.from_numpy(vectors))
        assert codes.shape == (4, num_vectors)
        for i in range(num_vectors):
            digits = naive_hashing.dwta_digits(vectors[i], family.coordinates)
            assert codes[:, i].tolist() == naive_hashing.digits_to_codes(digits, 3, bin_size)

    @pytest.mark.parametrize("seed", [0, 1])
    @pytest.mark.parametrize("lengths", [[5, 0, 1, 19, 2], [0], [], [3]])
    @pytest.mark.parametrize("bin_size", [2, 8])
    def test_dwta_sparse(self, bin_size, lengths, seed):
        rng = np.random.default_rng(seed)
        family = DWTA(19, 3, 4, bin_size=bin_size, seed=seed)
        pattern = make_pattern(rng, lengths, 19)
        x = CSR(*pattern, rng.integers(-2, 3, len(pattern.indices)).astype(np.float32))
        codes = family.sparse_codes(x)
        assert codes.shape == (4, len(lengths))
        for b in range(len(lengths)):
            at = slice(x.indptr[b], x.indptr[b + 1])
            stored = dict(zip(x.indices[at].tolist(), x.values[at].tolist(), strict=True))
            digits, _ = naive_hashing.dwta_sparse_digits(
                stored, family.coordinates, family.key, kernels.MAX_DENSIFY_ATTEMPTS
            )
            assert codes[:, b].tolist() == naive_hashing.digits_to_codes(digits, 3, bin_size)

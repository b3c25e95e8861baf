"""Every kernel has a looped twin in `tests/helpers`, and a test file that compares the two."""

from importlib import import_module

import pytest
from helpers.broken_kernels import ROOT, find_kernels

# Kernel: its twin, and the test file in which both are called.
TWINS = {
    "adam_factored": ("naive.adam_row", "kernels/test_adam.py"),
    "adam_rows": ("naive.adam_row", "kernels/test_adam.py"),
    "add_to_sum": ("naive_ranking.add_to_sum", "kernels/test_largest.py"),
    "ask_similar": ("naive_experts.ask_similar", "kernels/test_substitutes.py"),
    "assemble_per_sample": ("naive.assemble", "kernels/test_assemble_sets.py"),
    "assemble_shared": ("naive.assemble", "kernels/test_assemble_sets.py"),
    "bce": ("naive_losses.bce", "functional/test_losses_naive.py"),
    "best_first": ("naive_ranking.best_first", "kernels/test_largest.py"),
    "best_of_lists": ("naive_ranking.best_of_lists", "kernels/test_best_of_lists.py"),
    "bucket_lengths": ("naive.Tables", "hashing/test_tables.py"),
    "build": ("naive.Tables", "hashing/test_tables.py"),
    "clear_rows": ("naive_arrays.clear_rows", "kernels/test_ragged.py"),
    "compact": ("naive.Tables", "hashing/test_tables.py"),
    "count_distinct": ("naive.count_distinct", "kernels/test_assemble_sets.py"),
    "count_labels": ("naive_ranking.count_labels", "kernels/test_label_counts.py"),
    "count_nonzeros": ("naive_arrays.count_nonzeros", "kernels/test_nonzeros.py"),
    "count_votes": ("naive_ranking.count_votes", "kernels/test_evidence.py"),
    "decoupled_softmax": ("naive_losses.decoupled_softmax", "functional/test_losses_naive.py"),
    "draw_features": ("naive_text.draw_features", "kernels/test_data_kernels.py"),
    "draw_labels": ("naive_text.draw_labels", "kernels/test_data_kernels.py"),
    "dwta_dense": ("naive_hashing.dwta_digits", "kernels/test_hash_codes.py"),
    "dwta_runners": ("naive_hashing.dwta_runners", "kernels/test_probes.py"),
    "dwta_sparse": ("naive_hashing.dwta_sparse_digits", "kernels/test_hash_codes.py"),
    "fill_evidence": ("naive_ranking.fill_evidence", "kernels/test_evidence.py"),
    "fit_classifiers": ("naive_ranking.fit_duals", "kernels/test_dual_descent.py"),
    "fold": ("naive_hashing.fold", "hashing/test_tables.py"),
    "format_rows": ("naive_text.format_rows", "kernels/test_data_kernels.py"),
    "gather_entries": ("naive_arrays.gather_entries", "kernels/test_ragged.py"),
    "gather_ragged": ("naive_arrays.gather_ragged", "kernels/test_ragged.py"),
    "select_rows": ("naive_arrays.select_rows", "kernels/test_ragged.py"),
    "group_entries": ("naive_arrays.group_entries", "kernels/test_pattern_products.py"),
    "grouped_product": ("naive.sampled_product", "kernels/test_pattern_products.py"),
    "insert": ("naive.Tables", "hashing/test_tables.py"),
    "keep_largest": ("naive_ranking.keep_largest", "kernels/test_largest.py"),
    "keep_largest_bounds": ("naive_ranking.keep_largest", "kernels/test_largest.py"),
    "leave_out": ("naive_ranking.leave_out", "kernels/test_largest.py"),
    "list_training_rows": ("naive_ranking.list_training_rows", "kernels/test_dual_descent.py"),
    "look_up": ("naive.Tables", "hashing/test_tables.py"),
    "mark_nonzero_rows": ("naive_arrays.mark_nonzero_rows", "kernels/test_ragged.py"),
    "pack_signs": ("naive_hashing.pack_signs", "kernels/test_hash_codes.py"),
    "parse_rows": ("naive_rows.parse", "data/test_fuzz_row_files.py"),
    "prefetch_entries": ("naive_arrays.prefetch_entries", "kernels/test_prefetch.py"),
    "prefetch_row": ("naive_arrays.prefetch_row", "kernels/test_prefetch.py"),
    "probe_codes": ("naive_hashing.probe_codes", "kernels/test_probes.py"),
    "project_sparse": ("naive_hashing.project_sparse", "kernels/test_hash_codes.py"),
    "put_pixels": ("naive_channels.put_pixels", "kernels/test_channels.py"),
    "put_planes": ("naive_channels.put_planes", "kernels/test_channels.py"),
    "put_rows": ("naive_arrays.round_list", "kernels/test_row_lists.py"),
    "random_below": ("naive.random_below", "kernels/test_random.py"),
    "random_bits": ("naive.random_bits", "kernels/test_random.py"),
    "regress_items": ("naive_experts.regress_items", "kernels/test_item_regressions.py"),
    "relate_candidates": ("naive_ranking.relate", "kernels/test_label_counts.py"),
    "relu_dropout_backward": (
        "naive_arrays.relu_dropout_backward",
        "kernels/test_relu_dropout.py",
    ),
    "relu_dropout_forward": ("naive_arrays.relu_dropout_forward", "kernels/test_relu_dropout.py"),
    "remove": ("naive.Tables", "hashing/test_tables.py"),
    "replace_least": ("naive_ranking.replace_least", "kernels/test_largest.py"),
    "row_gradient": ("naive.row_gradient", "kernels/test_pattern_products.py"),
    "sampled_product": ("naive.sampled_product", "kernels/test_pattern_products.py"),
    "scan_lists": ("naive_ranking.scan_lists", "kernels/test_largest.py"),
    "score_labels": ("naive_ranking.score_labels", "kernels/test_linear_scores.py"),
    "shorten": ("naive_arrays.shorten_rows", "kernels/test_ragged.py"),
    "shorten_rows": ("naive_arrays.shorten_rows", "kernels/test_ragged.py"),
    "softmax": ("naive_losses.softmax", "functional/test_losses_naive.py"),
    "splits_of": ("naive_ranking.sum_trees", "kernels/test_trees.py"),
    "squared_hinge": ("naive_losses.squared_hinge", "functional/test_losses_naive.py"),
    "stratified_log_weights": ("naive.stratified_log_weights", "kernels/test_assemble_sets.py"),
    "subsample_words": ("naive_text.subsample_words", "kernels/test_data_kernels.py"),
    "sum_trees": ("naive_ranking.sum_trees", "kernels/test_trees.py"),
    "take_nonzeros": ("naive_arrays.take_nonzeros", "kernels/test_nonzeros.py"),
    "take_pixels": ("naive_channels.take_pixels", "kernels/test_channels.py"),
    "top_products": ("naive_ranking.top_products", "kernels/test_largest.py"),
    "transpose_pattern": ("naive.transpose", "kernels/test_pattern_products.py"),
    "vote_per_sample": ("naive.vote_per_sample", "kernels/test_votes.py"),
    "weighted_sum": ("naive.weighted_sum", "kernels/test_pattern_products.py"),
    "add_weights": ("naive_losses.add_weights", "kernels/test_loss_rows.py"),
    "hinge": ("naive_losses.hinge", "kernels/test_loss_rows.py"),
    "normalise": ("naive_losses.normalise", "kernels/test_loss_rows.py"),
    "score_row": ("naive_losses.score_row", "kernels/test_loss_rows.py"),
    "sigmoid": ("naive_losses.sigmoid", "kernels/test_loss_rows.py"),
    "softplus": ("naive_losses.softplus", "kernels/test_loss_rows.py"),
    "largest_scores": ("naive_hashing.largest_score", "kernels/test_sketches.py"),
    "rank_buckets": ("naive_hashing.rank_buckets", "kernels/test_sketches.py"),
    "sketch_rows": ("naive_hashing.sketch", "kernels/test_sketches.py"),
    "read_index": ("naive_numbers.read_index", "kernels/test_read_numbers.py"),
    "read_number": ("naive_numbers.read_number", "kernels/test_read_numbers.py"),
}


def test_every_kernel_has_a_twin():
    found = find_kernels()
    assert sorted(found) == sorted(TWINS)
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


@pytest.mark.parametrize("kernel", TWINS)
def test_a_test_file_compares_them(kernel):
    twin, file = TWINS[kernel]
    module, name = twin.split(".")
    assert callable(getattr(import_module(f"helpers.{module}"), name))
    source = (ROOT / "tests" / file).read_text(encoding="utf-8")
    assert module in source
    assert name in source or "getattr" in source

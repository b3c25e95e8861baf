"""Search for the outputs with the highest scores, for prediction."""

from slide.search.exact import exact_top_k as exact_top_k
from slide.search.exact import index_top_k as index_top_k
from slide.search.row_index import RowIndex as RowIndex
from slide.search.sparse_top_k import column_lists as column_lists
from slide.search.sparse_top_k import sparse_top_k as sparse_top_k

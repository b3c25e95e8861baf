"""Search for the outputs with the highest scores, for prediction.

`exact_top_k` scores all outputs. `RowIndex` scores the outputs of some inverted lists.
`index_top_k` scores the candidates of any other index, such as hash tables.
`sparse_top_k` multiplies sparse inputs with sparse weights by inverted lists. `top_votes` counts
the labels of nearest neighbours. `faiss_index` reads the bytes of an index of FAISS.
"""

from slide.search.exact import exact_top_k as exact_top_k
from slide.search.exact import index_top_k as index_top_k
from slide.search.faiss_bytes import faiss_index as faiss_index
from slide.search.row_index import RowIndex as RowIndex
from slide.search.sparse_top_k import column_lists as column_lists
from slide.search.sparse_top_k import shortened as shortened
from slide.search.sparse_top_k import sparse_top_k as sparse_top_k
from slide.search.sparse_top_k import top_votes as top_votes

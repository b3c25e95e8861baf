"""Which outputs score highest, for prediction.

`exact_top_k` scores all outputs, `index_top_k` only the candidates of an index, and
`PrincipalAxesSearch` finds many high scores of each row for a re-ranker.
"""

from slide.search.by_index import index_top_k as index_top_k
from slide.search.exact import exact_top_k as exact_top_k
from slide.search.principal_axes import PrincipalAxesSearch as PrincipalAxesSearch

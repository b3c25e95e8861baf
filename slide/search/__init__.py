"""Search for the outputs with the highest scores, for prediction.

`exact_top_k` scores all outputs. `index_top_k` scores only the candidates of an index.
`PrincipalAxesSearch` finds many high scores of each input, for a re-ranker.
"""

from slide.search.by_index import index_top_k as index_top_k
from slide.search.exact import exact_top_k as exact_top_k
from slide.search.principal_axes import PrincipalAxesSearch as PrincipalAxesSearch

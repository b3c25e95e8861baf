"""The command ``slide-serve``: answers of a model over HTTP.

It needs the packages of the extra ``serve``; they are imported only when a server is made.
"""

from slide.serve.application import create_app as create_app
from slide.serve.limits import Limits as Limits

"""The command ``slide-serve``: answers of a model over HTTP.

It needs the packages of the extra ``serve``; they are imported only when a server is made.
"""

from slide.serve.batcher import Limits as Limits
from slide.serve.command import create_app as create_app

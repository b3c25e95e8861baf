"""A trained model as one object and one folder: predicting, learning on, saving, opening."""

from slide.model.model import Model as Model
from slide.model.model import Predicted as Predicted
from slide.model.model import load as load
from slide.utils.names import Names as Names

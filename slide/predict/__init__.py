"""The command ``slide-predict``: answers of a model to the rows of a file or a pipe."""

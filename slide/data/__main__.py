"""``python -m slide.data``: data sets from the command line; see `slide.config.command`."""

from slide.config.command import data

if __name__ == "__main__":
    data()

"""``python -m slide.data``: data sets from the command line; see `slide.config.data_command`."""

import sys

from slide.config.data_command import main

if __name__ == "__main__":
    main(sys.argv[1:])

"""``python -m slide.predict``; see `slide.predict.command`."""

from slide.predict.command import main

if __name__ == "__main__":
    main()

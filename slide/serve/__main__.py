"""``python -m slide.serve``; see `slide.serve.command`."""

from slide.serve.command import main

if __name__ == "__main__":
    main()

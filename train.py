"""Trains a network from a configuration: ``python train.py``; ``--help`` explains the keys."""

import signal

if __name__ == "__main__":
    # Imports take seconds: Ctrl-C ends them without a traceback, unless a shell ignores it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    from slide.config.command import train

    train()

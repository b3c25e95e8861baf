"""Puts ``conf/`` into the wheel, as ``slide/conf``; all else is in ``pyproject.toml``."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConf(build_py):
    """Copies the configurations to where `slide.config.find_conf` looks for them."""

    def run(self):
        super().run()
        if not self.editable_mode:  # There they are found in the checkout.
            shutil.copytree("conf", Path(self.build_lib, "slide", "conf"), dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithConf})

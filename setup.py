"""The description on a package index: README.md without pictures and links to files, which an index does not have."""

import re
from pathlib import Path

from setuptools import setup

readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
readme = re.sub(r"^!\[.*\n", "", readme, flags=re.MULTILINE)
readme = re.sub(r"\[([^\]]*)\]\((?!https?://)[^)]*\)", r"\1", readme)

setup(long_description=readme, long_description_content_type="text/markdown")

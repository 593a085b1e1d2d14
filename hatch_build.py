"""The readme of the package on an index: README.md, whose links to files of the repository become absolute."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class AbsoluteLinks(MetadataHookInterface):
    """Called by Hatchling when it builds."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme`."""
        source = metadata["urls"]["Source"]
        pictures = source.replace("//github.com", "//raw.githubusercontent.com") + "/main/"
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\g<1>{pictures}", text)
        text = re.sub(r"(\]\()(?!https?:|#)", rf"\g<1>{source}/blob/main/", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}

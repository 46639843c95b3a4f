"""What the site does to pages before it renders them: links out of `docs/` become plain code.

On a code host a link to a source file opens it. The site has no source files, so there such a link
shows the file's path, or leads to the repository where `repo_url` names one.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """The page's text with links that stay inside the site."""
    folder = posixpath.dirname(page.file.src_uri)

    def replaced(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, link[2]))
        if path.startswith("docs/"):
            return link[0]
        if config["repo_url"]:
            return f"[{link[1]}]({config['repo_url'].rstrip('/')}/blob/main/{path})"
        text = link[1].strip("`")
        return f"`{path}`" if text in path else f"{link[1]} (`{path}`)"

    return _LINK.sub(replaced, markdown)

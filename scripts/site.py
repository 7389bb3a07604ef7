"""What the site needs beyond mkdocs: folders in its navigation, and links out of docs/.

Pages link to files of the repository (`../examples/count.py`), as they must where they are read
there. On the site such a file is a copy, below `repository/`, and text as it stands: a page from
there would have links of its own that lead elsewhere.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put every page of a folder that the navigation names where the folder stands, by name."""
    for section in config.nav or []:
        for name, content in section.items():
            if isinstance(content, str) and content.endswith("/"):
                pages = [file for file in files.documentation_pages() if _in(content, file)]
                pages.sort(key=lambda file: (file.name != "index", file.src_uri))
                section[name] = [file.src_uri for file in pages]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files of the repository lead to their copies."""
    root = Path(config.config_file_path).parent
    folder = Path(config.docs_dir).relative_to(root) / Path(page.file.src_uri).parent

    def lead(link: re.Match[str]) -> str:
        path = normpath((folder / link[1]).as_posix())
        if path.startswith(("docs/", "..")) or not (root / path).is_file():
            return link[0]
        copy = f"repository/{path}" + ".txt" * path.endswith(".md")
        if files.get_file_from_path(copy) is None:
            files.append(File.generated(config, copy, abs_src_path=str(root / path)))
        return f"]({relpath(copy, Path(page.file.src_uri).parent.as_posix())})"

    return _LINK.sub(lead, markdown)


def _in(folder: str, file: File) -> bool:
    return file.src_uri.startswith(folder)

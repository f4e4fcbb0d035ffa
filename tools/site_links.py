"""Hook of mkdocs: pages that lie outside docs/, and links to files of the repository.

On GitHub and on a disk, a page's links lead through the repository.  The site holds each page of `PAGES` under its own name,
and a copy of every other file that a page links to, below files/.  A link to what isn't there fails the build.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "COMPATIBILITY.md": "COMPATIBILITY.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "benchmarks/README.md": "benchmarks.md",
    "src/millpond/native/README.md": "compiled-code.md",
}
"""File of the repository -> page of the site."""
_LINK = re.compile(r"(\]\()(?!https?:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
log = get_plugin_logger(__name__)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/, and the files that pages link to."""
    for path, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    for path in sorted({path for file in files.documentation_pages() for path in _linked_files(file)}):
        files.append(File.generated(config, f"files/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn links through the repository into links through the site."""
    here = _repository_path(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        before, target, anchor = found.groups(default="")
        path = _resolve(here, target)
        if not (ROOT / path).exists():
            log.warning("%s links to %s, which isn't there", here, target)
        return before + relpath(_site_path(path), str(PurePosixPath(page.file.src_uri).parent)) + anchor

    return _LINK.sub(link, markdown)


def on_page_content(html: str, page: Page, **_: object) -> str:
    """Refuse a name of the reference that was taken for a module: one that a function and a package share."""
    if 'class="doc doc-object doc-module"' in html:
        log.warning("%s shows a module in place of what it should show", page.file.src_uri)
    return html


def _linked_files(file: File) -> list[str]:
    here = _repository_path(file.src_uri)
    paths = [_resolve(here, found[2]) for found in _LINK.finditer(file.content_string)]
    return [path for path in paths if (ROOT / path).is_file() and _site_path(path).startswith("files/")]


def _repository_path(page: str) -> str:
    return next((path for path, name in PAGES.items() if name == page), f"docs/{page}")


def _resolve(here: str, target: str) -> str:
    return normpath(str(PurePosixPath(here).parent / target))


def _site_path(path: str) -> str:
    """Where the site has a file of the repository; a folder is the page that describes it, or the page about them all."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return "benchmarks.md" if path.startswith("benchmarks") else "CONTRIBUTING.md"
    return f"files/{path}"

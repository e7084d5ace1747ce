"""Hooks of mkdocs: the site also has the pages and examples outside of docs/ that its pages link to."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
FOLDERS = ("image_classification", "image_segmentation", "language_model", "results")
PAGES += [f"{folder}/README.md" for folder in FOLDERS]
LINK = re.compile(r"!?\[([^]]*)\]\(([^):#\s]+)(#[^)]*)?\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages and the examples."""
    for path in [*(ROOT / name for name in PAGES), *sorted((ROOT / "examples").glob("*.py"))]:
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, files: Files, **given: Any) -> str:
    """Lead each link to its target's place on the site; leave the text alone of one to a file that is not there."""
    uri = page.file.src_uri
    here = posixpath.dirname(uri if uri in PAGES else f"docs/{uri}")

    def moved(link: re.Match[str]) -> str:
        text, target, anchor = link.groups(default="")
        path = posixpath.normpath(posixpath.join(here, target))
        if not path.startswith("docs/") and (ROOT / path).exists() and path not in files.src_uris:
            return text
        place = posixpath.relpath(path.removeprefix("docs/"), posixpath.dirname(uri) or ".")
        return link[0].replace(f"({target}", f"({place}")

    return LINK.sub(moved, markdown)

"""The explorer's page: sets, Vega and a small script in one HTML file that needs no network."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any, Final

from judging.ground.errors import TimedrunError
from judging.ground.result_files import json_text
from judging.pages.score_table import DEMONSTRATION, NOTICE, UNVERIFIED
from mlevents.student_t import quantile
from mlevents.terminal_escape import printable

MOST_DEGREES: Final = 200  # of freedom, from which on Student's t is nearly normal
PARTS: Final = ("selection", "plots", "cards", "page")  # files of the page's script, in order


class ExplorerError(TimedrunError):
    """Error raised if the page cannot be made; none was written."""


def as_page(sets: Sequence[dict[str, Any]], title: str, sweeps: Sequence[dict[str, Any]] = ()) -> str:
    """Return the page of `sets`, as `explored_sets` returns them, and of the answers of `sweeps`, as `questions` does.

    Texts of logs are data of the script, which writes them as text only. The page's policy allows these two scripts, by
    their hashes, and no connection. Raises ExplorerError if vl-convert-python is missing, which has Vega."""
    try:
        import vl_convert
    except ImportError:
        raise ExplorerError("the page needs Vega: pip install 'timedrun[explorer]'.") from None
    folder = files(__package__)
    vega = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    code = "".join((folder / f"{name}.js").read_text("utf-8") for name in PARTS)
    scripts = {"library": vega, "code": code}
    scripts = {name: text.replace("</script", "<\\/script") for name, text in scripts.items()}
    hashes = (f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in scripts.values())
    said: dict[str, object] = {"notice": NOTICE, "unverified": UNVERIFIED, "demonstration": DEMONSTRATION}
    said["t"] = [quantile(degrees) for degrees in range(1, MOST_DEGREES)]
    texts = scripts | {
        "scripts": " ".join(hashes),
        "style": (folder / "page.css").read_text("utf-8"),
        "title": escape(printable(title)),
        "notice": escape(NOTICE),
        "vega": vl_convert.get_vega_version(),
        # No text of a log can end the element: "<" is written as an escape.
        "data": json_text(said | {"sets": sets, "sweeps": sweeps}, separators=(",", ":")).replace("<", "\\u003c"),
    }
    page = (folder / "page.html").read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda place: texts[place[1]], page)

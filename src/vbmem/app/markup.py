"""HTML from `templates/views.html`. Pictures are inside it as data, so that none is on the server's disk."""

from typing import Any

import markupsafe
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from torch import Tensor

from vbmem.files import data_url
from vbmem.sheets import as_image, png
from vbmem.tables import counted, file_size


def escape(text: object) -> Markup:
    """Text that is only text, to browsers and to gradio's templates."""
    return Markup(markupsafe.escape(text).translate({ord("$"): "&#36;", ord("{"): "&#123;"}))


def _png_url(frame: Tensor) -> str:
    """A frame [channels, H, W], in [0, 1] or uint8."""
    return data_url("image/png", png(as_image(frame)))


_environment = Environment(
    loader=PackageLoader("vbmem.app"), autoescape=True, finalize=escape, trim_blocks=True, undefined=StrictUndefined
)
_environment.filters["png_url"] = _png_url
_environment.globals |= {"counted": counted, "file_size": file_size}
_views = _environment.get_template("views.html").module


def render(view: str, *values: Any) -> str:
    """One of the views, of these values."""
    return str(getattr(_views, view)(*values))

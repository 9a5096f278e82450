"""The model card: what a model is, where it comes from and what it cannot do."""

from json import dumps
from pathlib import Path
from typing import Any

from jinja2 import Template

from vbmem.models.base import EpisodicModel
from vbmem.models.memory_model import MemoryModel
from vbmem.models.vae import VAE

HUB = "hf://"  # begins the name of a model that lies on the Hugging Face Hub


def render_card(name: str, network: EpisodicModel, card: dict[str, Any]) -> str:
    """README.md of a model directory, with the metadata header the Hub reads; its text is in card.md.jinja."""
    settings = network.config
    facts = {
        "title": name.removeprefix(HUB),
        "source": dumps(name if name.startswith(HUB) else "path/to/this/directory"),
        "license": dumps(card["license"]) if "license" in card else None,
        "kind": "vae" if isinstance(network, VAE) else getattr(settings, "memory", settings.kind),
        "size": network.frame.size,
        "parameters": f"{sum(p.numel() for p in network.parameters()):,}",
        "has_memory": isinstance(network, MemoryModel),
        "card": card,
    }
    template = Path(__file__).with_name("card.md.jinja").read_text()
    return Template(template, trim_blocks=True, keep_trailing_newline=True).render(facts)

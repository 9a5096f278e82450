"""The model card: what a model is, where it comes from and what it cannot do."""

from json import dumps
from typing import Any

from vbmem.models.base import EpisodicModel
from vbmem.models.settings import MemoryConfig

HUB = "hf://"  # begins the name of a model that lies on the Hugging Face Hub

HEADER = """---
library_name: vbmem
{licence}pipeline_tag: unconditional-image-generation
tags: [generative-memory, variational-bayes, meta-learning]
{datasets}---
"""

USE = """## Use

```python
import vbmem

model = vbmem.load({name!r})
memory = model.write("folder-of-pictures")
pictures = model.generate(memory, 64)
```
"""

LIMITS = """## Limits

- Trained on pictures of {size} x {size} pixels. Larger ones are shrunk to that; pictures unlike those it was trained
  on are reconstructed badly.
- Pictures are as blurred as a variational autoencoder's of this size.
- A memory holds codes, not pictures, but pictures that resemble the written ones can be drawn from it: treat a memory
  of private pictures as private.
"""


def render_card(name: str, network: EpisodicModel, card: dict[str, Any]) -> str:
    """README.md of a model directory, with the metadata header the Hub reads."""
    settings, size = network.config, network.frame.size
    parameters = sum(p.numel() for p in network.parameters())
    dataset = card.get("data")
    facts = [f"- {fact}: {value}" for fact, value in card.items()]
    kind = getattr(settings, "memory", settings.kind)
    parts = [
        HEADER.format(
            licence=f"license: {dumps(card['license'])}\n" if "license" in card else "",
            datasets=f"datasets: [{dataset}]\n" if dataset in ("cifar10", "mnist") else "",
        ),
        f"# {name.removeprefix(HUB)}\n",
        f"A {kind} model over {size} x {size} pictures, {parameters:,} parameters, after "
        '"Meta-Learning with\nVariational Bayes" (Lingle 2020).\n',
    ]
    if isinstance(settings, MemoryConfig):
        parts.append(USE.format(name=name))
    if facts:
        parts += ["## Where it comes from\n", "\n".join(facts) + "\n"]
    parts.append(LIMITS.format(size=size))
    return "\n".join(parts)

"""A trained model the way a person would use it: write pictures into a memory, generate, read, score."""

from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import torch
from torch import Tensor

from vbmem.memory.checks import check_size
from vbmem.memory.starting import Start
from vbmem.memory.writing import VariationalMemory
from vbmem.memory.written import ChosenBy, WrittenMemory
from vbmem.models.card import HUB
from vbmem.models.directory import check_replaceable, digest, save_model
from vbmem.models.settings import PAINT_STEPS, READS
from vbmem.nets import CodePosterior
from vbmem.pretrained.coding import CodingModel
from vbmem.pretrained.inputs import Pictures, as_frames, check_known, to_unit
from vbmem.pretrained.novelty import (
    REFERENCE_ITERATIONS,
    REFERENCE_PICTURES,
    familiarity,
    known_from,
    plain_pictures,
    reference_clusters,
)
from vbmem.pretrained.picture_model import LONG
from vbmem.progress import track


@dataclass(frozen=True, repr=False)
class Model(CodingModel):
    """Networks and the memory they were trained with. Nothing here needs or keeps gradients.

    Pictures are tensors or arrays [T, channels, H, W] (uint8, or float in [0, 1]), a folder, or a list of files or
    PIL images. What comes back is float in [0, 1], on the model's device.
    """

    _: KW_ONLY
    memory: VariationalMemory
    """Empty; what `write` fills."""

    @property
    def _kind(self) -> VariationalMemory:
        return self.memory

    def resize(self, **sizes: int) -> Self:
        """The same networks over a memory of other sizes, for example `resize(clusters=100)`; nothing is retrained."""
        return replace(self, memory=self.memory.resize(**sizes))

    def write(
        self,
        images: Pictures,
        *,
        iterations: int | None = None,
        start: Start | None = None,
        generator: torch.Generator | None = None,
    ) -> WrittenMemory:
        """Write an episode of pictures into a fresh memory: encode, then a few closed-form updates.

        Args:
            images: the episode.
            iterations: of the write; by default as many as the model's settings say.
            start: where the write starts, by name; see `VariationalMemory.write`. By default as in training.
            generator: randomness of the start.
        """
        return self.write_codes(self.encode(images).mean, iterations=iterations, start=start, generator=generator)

    @torch.no_grad()
    def write_codes(
        self,
        codes: Tensor,
        *,
        iterations: int | None = None,
        start: Start | None = None,
        generator: torch.Generator | None = None,
    ) -> WrittenMemory:
        """Write codes [T, C] that `encode` gave; the other arguments are those of `write`."""
        content = self.network.content(codes)
        steps = self.network.iterations if iterations is None else iterations
        start = self.network.start if start is None else start
        memory = self._written(self.memory, content, steps, generator, start)
        threshold = known_from(memory, self.reference, content, steps, start)
        return replace(memory, threshold=threshold, reference=self.reference_digest)

    @torch.no_grad()
    def generate(
        self,
        memory: WrittenMemory,
        count: int,
        *,
        reads: int = READS,
        own: Tensor | Pictures | None = None,
        cluster: int | None = None,
        choice: ChosenBy = "usage",
        sample: bool = True,
        sample_pixels: bool = False,
        crisp: bool | None = None,
        paint_steps: int = PAINT_STEPS,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """New pictures from a memory alone (paper, G.1 and G.2): [count, channels, H, W].

        Anything drawn from a cluster is a blend of all it holds, and few blends are pictures of something. So a draw
        lies near one of the written frames (see `WrittenMemory.sample`) and is read from the memory, as in `read` but
        through pictures as they are shown, crisp or mean: that leads to what the memory holds, and little of the
        variety is lost. The paper draws everything, by `choice="prior"`. By default clusters are drawn as often as the
        episode used them, and pixels are means, since sampled ones only add independent noise. `memory.sample` gives
        what they show, their content, and `complete` makes codes of it.

        Args:
            memory: what `write` returned.
            count: how many.
            reads: how often what was drawn is read, by means; 0 for draws as they are.
            own: whose own part they have, "this content, that pose": pictures, or codes [n, C] that `encode` gave, one
                for all or one for each. By default it is drawn from its prior.
            cluster: draw from this one only; of a tree, from this one of its first partition.
            choice: which clusters pictures come from, and where in them: "usage", as the episode used them; "prior",
                all alike, those of a tree each partition for itself; "network", of a tree only. See
                `WrittenMemory.sample`.
            sample: draw memory and codes anew for every picture; otherwise their means.
            sample_pixels: draw the pixels around what the decoder says; otherwise their mean.
            crisp: paint crisp pictures, or else show mean ones; see `decode`.
            paint_steps: in which a crisp picture is painted.
            generator: of all the draws.

        Raises:
            ValueError: another model wrote the memory, it cannot choose clusters like that, `own` fits nothing, or the
                model cannot paint.
        """
        self._check(memory)
        painter = self._painter(crisp, sample_pixels)
        if reads < 0:
            raise ValueError(f"reads must be a whole number of at least 0, got {reads}")
        content = memory.sample(count, generator, cluster=cluster, choice=choice, sample=sample)
        if own is None:
            codes = self.complete(content, sample=sample, generator=generator)
        else:
            codes = torch.cat([content, self._own_part(own, count, memory)], dim=-1)
        if painter is not None:
            noise = painter.noise(count, generator)  # the same at every read
        for _ in track(range(reads), "reading", show=painter is None and count * reads >= LONG):
            shown = self.decode(codes, crisp=False) if painter is None else self._paint(painter, codes, noise, 1)
            seen, _ = self._look_again(memory, shown)
            codes = torch.cat([memory.read(seen.mean, sample=False), codes[:, self.network.content_size :]], dim=-1)
        if painter is not None:
            return self._paint(painter, codes, noise, paint_steps)
        return self.decode(codes, sample=sample_pixels, crisp=False, generator=generator)

    @torch.no_grad()
    def read(
        self,
        memory: WrittenMemory,
        images: Pictures,
        steps: int = 12,
        *,
        known: Tensor | None = None,
        trust: float = 1.0,
        sample: bool = True,
        sample_pixels: bool = False,
        every_step: bool = True,
        crisp: bool | None = None,
        paint_steps: int = PAINT_STEPS,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Iterative reading (paper, G.2): each step encodes the last pictures, reads them from memory and decodes.

        What of a code is the picture's own stays as it was encoded. A model with a crisp decoder reads through mean
        pictures all the same, and paints what is shown, each picture from the same noise at every step.

        With `sample=False`, means throughout, it recalls what the memory holds of noisy or damaged pictures: two or
        three steps do that, more drift towards the clusters' means.

        Args:
            memory: what `write` returned.
            images: to begin with.
            steps: how often each is read.
            known: boolean, broadcastable to the pictures: False where a pixel is missing. Missing ones are filled with
                the memory's mean picture and then with what was read; the others are put back after every step.
            trust: the share of what the memory reads in the code that is decoded, the rest being the code as it was
                encoded. All of it, as in the paper; about a half is what a model with the paper's regulariser was
                trained to decode.
            sample: draw addresses, memory and codes, as the paper's chain does; otherwise their means.
            sample_pixels: draw the pixels around what the decoder says; otherwise their mean.
            every_step: show all steps; otherwise the last alone, and no other is painted.
            crisp: paint crisp pictures, or else show mean ones; see `decode`.
            paint_steps: in which a crisp picture is painted.
            generator: of all the draws.

        Returns:
            Every step, [steps, T, channels, H, W], or the last, [T, channels, H, W].

        Raises:
            ValueError: another model wrote the memory, `trust` does not lie between 0 and 1, or the model cannot paint.
        """
        self._check(memory)
        painter = self._painter(crisp, sample_pixels)
        check_size("steps", steps)
        if not 0 <= trust <= 1:
            raise ValueError(f"trust must lie between 0 and 1, got {trust}")
        frames = as_frames(images, self.frame)
        if known is not None:
            check_known(known, frames)
            known, given = known.to(self.device), to_unit(frames.to(self.device), self.frame)
            frames = torch.where(known, given, self.decode(self.complete(memory.mean_code, sample=False), crisp=False))
        results: list[Tensor] = []  # codes where they are to be painted, otherwise pictures
        for _ in track(range(steps), "reading", show=len(frames) * steps >= LONG):
            content, own = self._look_again(memory, frames)
            read = torch.lerp(content.mean, memory.read(content.mean, generator, sample=sample), trust)
            codes = torch.cat([read, own.rsample(generator) if sample else own.mean], dim=-1)
            frames = self.decode(codes, sample=sample_pixels, crisp=False, generator=generator)
            results.append(frames if painter is None else codes)
            if known is not None:
                frames = torch.where(known, given, frames)
        shown = results if every_step else results[-1:]
        if painter is not None:
            noise = painter.noise(len(frames), generator)  # after all other draws, which are those of mean pictures
            shown = [self._paint(painter, codes, noise, paint_steps) for codes in shown]
        return torch.stack(shown) if every_step else shown[0]

    def _look_again(self, memory: WrittenMemory, frames: Tensor) -> tuple[CodePosterior, CodePosterior]:
        """q of pictures, of their content and of what is their own, [T, ..] each."""
        q = self._joined([self._infer(x, memory) for x in self._chunks(frames)])
        return q.cut(self.network.content_size)

    def score(self, memory: WrittenMemory, images: Pictures) -> Tensor:
        """Has this memory seen such a picture? In nats, [T]; low means new to it. See `threshold`.

        How much better the memory knows the code of a picture than the model's reference memory does, which holds
        pictures like those the model was trained on, and plain colours; see `novelty.familiarity`. So it matters little
        how simple or how common a picture is. A model without a reference memory gives what the memory alone says of
        the code, a lower bound on log p(z | memory). `bound` has the pixels in it too.

        Args:
            memory: what `write` returned.
            images: to be scored.
        """
        return self.score_codes(memory, self.encode(images).mean)

    @torch.no_grad()
    def score_codes(self, memory: WrittenMemory, codes: Tensor) -> Tensor:
        """The same of codes [T, C] that `encode` gave."""
        self._check(memory)
        return familiarity(memory, self.reference, self.network.content(codes))

    def threshold(self, memory: WrittenMemory) -> float | None:
        """The score from which on a picture counts as known to this memory; None where it is not known.

        Of pictures like the written ones, about 1 in 10 score lower: it is found by leaving a quarter of them out at a
        time. Memories of fewer than four pictures, of vbmem 0.2, or changed since they were written have none, nor have
        those of the same model with another reference memory.
        """
        return memory.threshold if memory.reference == self.reference_digest else None

    @cached_property
    def reference_digest(self) -> str:
        """Changes with the reference memory; empty without one."""
        return "" if self.reference is None else digest({"row_mean": self.reference.state.row_mean})

    def with_reference(self, images: Pictures) -> Self:
        """The same model with a reference memory of its own, for `score`, in place of the one it has.

        Args:
            images: what the model was trained on, or some of it; about 800 are taken.
        """
        generator = torch.Generator().manual_seed(0)
        frames = as_frames(images, self.frame)
        chosen = frames[torch.randperm(len(frames), generator=generator)[:REFERENCE_PICTURES]]
        plain = plain_pictures(len(chosen), self.frame, generator)
        codes = torch.cat([self.network.content(self.encode(pictures).mean) for pictures in (chosen, plain)])
        memory = self.memory
        if "clusters" in memory.sizes:
            memory = memory.resize(clusters=reference_clusters(memory.rows, memory.code_size))
        generator = torch.Generator(self.device).manual_seed(0)
        written = self._written(memory, codes, REFERENCE_ITERATIONS, generator)
        return replace(self, kept_reference=replace(written, sums=None, weights=None))

    @torch.no_grad()
    def bound(
        self, memory: WrittenMemory, images: Pictures, *, samples: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """A lower bound on log p(x | memory) of every picture, in nats, [T].

        E_q(z) log p(x | z) - KL(q(z) || p(z | s, w, memory)) - KL(q(w|s)) - KL(q(s)), with the best q(s), q(w|s) for
        each picture by itself, and p(s) the smoothed usage of the clusters; the own part of a code pays for its prior.
        The first term rules: simple pictures have a high bound whatever the memory holds, so compare bounds of one
        picture under several memories, or use `score`.

        Args:
            memory: what `write` returned.
            images: to be scored.
            samples: draws of z over which the first term, and that of an own part, are averaged.
            generator: of these draws.
        """
        self._check(memory)
        check_size("samples", samples)
        scores = []
        for x in self._chunks(as_frames(images, self.frame), "scoring"):
            q = self._infer(x, memory)
            content, own = q.cut(self.network.content_size)
            codes = [q.rsample(generator) for _ in range(samples)]
            # Every picture is an episode: [n, 1, ..].
            terms = [self.network.score(z.unsqueeze(1), x.unsqueeze(1)) - self.network.kl_own(own, z) for z in codes]
            scores.append(torch.stack(terms).mean(0) + memory.score(content.mean, content.var))
        return torch.cat(scores)

    def save(self, directory: str | Path) -> None:
        """Save as a model directory, which `vbmem.load` reads.

        Raises:
            ModelError: the directory is a run's, or holds files of that name which are not a model's.
        """
        check_replaceable(Path(directory))
        sizes = {size: value for size, value in self.memory.config().items() if size in ("rows", "clusters")}
        save_model(replace(self, sizes=sizes), Path(directory))

    def push_to_hub(self, repo: str, *, private: bool = False, token: str | None = None) -> str:
        """Save on the Hugging Face Hub as `user/name`, where `vbmem.load("hf://user/name")` finds it.

        Args:
            private: for you alone.
            token: one that may write; by default that of `hf auth login`.

        Returns the address of its page. Needs `pip install vbmem[hub]`.
        """
        from vbmem.pretrained.hub import upload

        with TemporaryDirectory() as directory:
            replace(self, name=HUB + repo).save(directory)
            return upload(Path(directory), repo, private, token)

    def _written(
        self,
        memory: VariationalMemory,
        codes: Tensor,
        iterations: int,
        generator: torch.Generator | None,
        start: Start | None = None,
    ) -> WrittenMemory:
        """Contents [T, C - own_size] in a memory that knows this model."""
        return WrittenMemory.write(
            memory, codes, iterations, generator, start=start, model=self.name, fingerprint=self.fingerprint
        )

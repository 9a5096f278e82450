"""Training of a crisp decoder against a critic, so that what it paints of a memory's draws looks real, too."""

from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import softplus

from vbmem.data.image_set import ImageSet
from vbmem.errors import ModelError
from vbmem.models.base import CodedModel
from vbmem.models.directory import SavedModel
from vbmem.nets import CrispDecoder, Critic
from vbmem.train.painting import DecoderTrainer, Painting, PaintingOutcome, by_frame
from vbmem.train.settings import DecoderConfig, RefiningConfig

NUDGE = 0.05  # of frames, by which the slope of a critic is measured, on the scale from -1 to 1
STEPS = 2  # in which pictures are painted for validation


class Refining(Painting):
    """A crisp decoder that learns to be taken for real, in one and in two steps, and a critic that tells.

    A draw from a memory is the code of no frame, so there is nothing to compare its picture with; but it can look like
    one or not. For the decoder d and the critic D, each frame x beside a picture d(z), of its own code half the time
    and otherwise of a draw from the memory of its episode:

        critic:   softplus(D(d(z)) - D(x)) + smoothness / 2 (|D'(x)|^2 + |D'(d(z))|^2)
        decoder:  realism softplus(D(x) - D(d(z))) + errors of the flow

    (Goodfellow et al. 2014; the pairs are those of Jolicoeur-Martineau 2018, the slopes of Huang et al. 2024, measured
    by differences.) The critic is told the code where it is the frame's own, so that pictures stay true to it, and the
    errors of the flow keep the decoder to what it has learned.

    Args:
        decoder: what learns; the others are those of `Painting`.
        critic: what judges it.
        settings: how much each of these counts.
    """

    headline = "minus_distance"
    word = "minus distance"
    unit = "minus the energy distance between codes of painted draws and of pictures"

    def __init__(self, decoder: CrispDecoder, critic: Critic, network: CodedModel, settings: RefiningConfig) -> None:
        super().__init__(decoder, network, settings.clusters)
        self.critic, self.settings = critic, settings

    def forward(self, frames: Tensor, copies: int = 1) -> PaintingOutcome:
        batch = len(frames)
        codes, drawn, real = (by_frame(x) for x in (*self.codes.with_draws(frames), frames))
        if not self.training:
            painted = self.decoder.paint(drawn, STEPS, torch.randn_like(real), self._means(drawn))
            velocity = self.decoder.errors(real, codes, self._means(codes), taught=0).velocity
            reports = {
                self.headline: -self._distance(painted, frames),
                "velocity_error": velocity.unflatten(0, (-1, batch)).mean(0),
            }
            return PaintingOutcome(velocity.mean(), reports)
        errors = self.decoder.errors(real, codes, self._means(codes))
        own = torch.rand(len(codes), 1, device=codes.device) < 0.5
        asked, known = torch.where(own, codes, drawn), torch.where(own, codes, 0)
        painted = self.decoder.try_out(asked, self._means(asked))
        telling, slope, taken = self._judged(real, painted, known)
        loss = errors.objective + self.settings.realism * taken + telling + self.settings.smoothness / 2 * slope
        reports = {
            self.headline: -self._distance(painted.detach(), frames),
            **{
                name: value.detach().expand(batch)
                for name, value in (
                    ("velocity_error", errors.velocity.mean()),
                    ("shortcut_error", errors.shortcut.mean()),
                    ("telling_error", telling),
                    ("slope", slope),
                    ("realism_error", taken),
                )
            },
        }
        return PaintingOutcome(loss, reports)

    def _judged(self, real: Tensor, painted: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of pictures beside frames, [N, ..] each, and what the critic is told of both, [N, C]: its error, the squared
        norm of its gradient by both, and the error of the decoder, which is no fault of the critic's."""
        both = torch.cat([real, painted.detach()])
        nudged = both + NUDGE / 2 * torch.randn_like(both)
        scores, there = self.critic(torch.cat([both, nudged]), known.repeat(4, 1)).chunk(2)
        slope = 2 * ((scores - there) / NUDGE).square().mean()
        of_real, of_painted = scores.chunk(2)
        as_it_is = {name: weights.detach() for name, weights in self.critic.named_parameters()}
        shown = functional_call(self.critic, as_it_is, (painted, known))
        return softplus(of_painted - of_real).mean(), slope, softplus(of_real.detach() - shown).mean()

    @torch.no_grad()
    def _distance(self, painted: Tensor, frames: Tensor) -> Tensor:
        """Between codes of pictures, [N, ..] and the first of every episode first, and of frames [B, T, ..] of another
        episode, since pictures are near the frames they come from: [B]."""
        pictures = painted.clamp(0, 1).unflatten(0, (-1, len(frames))).transpose(0, 1)
        ours, theirs = (self.codes.network.infer(x.contiguous()).mean for x in (pictures, frames))
        return energy_distance(ours, theirs.roll(1, 0))


class RefiningTrainer(DecoderTrainer):
    """Goes on training the crisp decoder that a model has, against a critic; see `DecoderTrainer` and `Refining`.

    Raises:
        ModelError: also for a model without a crisp decoder.
    """

    kind: ClassVar[type[DecoderConfig]] = RefiningConfig
    noted: ClassVar[str] = "refining"

    def __init__(
        self, settings: DecoderConfig, saved: SavedModel, images: ImageSet, run_dir: Path, **rest: Any
    ) -> None:
        if saved.painter is None:
            raise ModelError(f"{saved.name} has no crisp decoder to refine; train one first (vbmem train-decoder)")
        super().__init__(settings, saved, images, run_dir, **rest)

    def _learner(self, network: CodedModel) -> Refining:
        assert isinstance(self.settings, RefiningConfig)
        assert self.saved.painter is not None
        decoder = deepcopy(self.saved.painter).train().requires_grad_()
        critic = Critic(network.frame, network.config.code_size, width=self.settings.critic_width).to(self.device)
        if self.device.type == "cuda":
            critic.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            critic.network_dtype = network.network_dtype
        return Refining(decoder, critic, network, self.settings)

    def _fact(self) -> str:
        before = self.saved.card.get("crisp decoder", "")
        return f"{before}; then {self.settings.epochs} at {self.settings.learning_rate:g} against a critic"


def energy_distance(ours: Tensor, theirs: Tensor) -> Tensor:
    """2 E|x - y| - E|x - x'| - E|y - y'| of points [.., n, C] and [.., m, C], without bias: [..].

    It is 0 in the mean if both come from the same distribution, and more otherwise (Szekely and Rizzo 2013).
    """
    between = torch.cdist(ours, theirs).mean((-1, -2))
    within = [torch.cdist(x, x).sum((-1, -2)) / max(x.shape[-2] * (x.shape[-2] - 1), 1) for x in (ours, theirs)]
    return 2 * between - within[0] - within[1]

"""The paper's model: codes written into any memory of `vbmem.memory`, trained through the writing."""

import torch
from torch import Tensor, nn
from torch.distributions import Beta

from vbmem.memory import Addresses, MemoryState
from vbmem.memory.checks import check_shape
from vbmem.memory.reading import LocatedMemory, Memory
from vbmem.memory.writing import VariationalMemory
from vbmem.models.base import CodedModel, Evidence, FrameFormat, normal_kl, repeat_episodes, repeat_posterior
from vbmem.models.cuda_streams import SideStream
from vbmem.models.settings import MemoryConfig, Regulariser
from vbmem.models.telling import log_own_share
from vbmem.nets import CodeHead, CodePosterior

SCALES = ("noise_var", "row_var", "loc_var")  # of the prior
HIDDEN = (256, 256)  # units of the networks between the two parts of a code


class MemoryModel(CodedModel):
    """q(z_t) from the encoder, q(Omega) and q(y_t) by variational Bayes on its means, p(x_t | z_t) from the decoder.

    Of a code z = (content, own), [.., C], the content alone is written; the last `own_size` numbers have a prior of
    their own, and the paper's model has none.

    Args:
        config: the memory, the networks and how it is trained.
        frame: what its frames look like.
    """

    refines = True
    compiled = (*CodedModel.compiled, "own_prior", "revise")
    config: MemoryConfig

    def __init__(self, config: MemoryConfig, frame: FrameFormat) -> None:
        kind = Memory.kinds[config.memory]
        posterior = {"factorised": config.factorised} if issubclass(kind, LocatedMemory) else {}
        content_size = config.code_size - config.own_size
        sizes = {size: getattr(config, size) for size in kind.sizes} | {"code_size": content_size}
        scales = {name: value for name in SCALES if (value := getattr(config, name)) is not None}
        memory = kind(**sizes, **posterior, **scales)
        assert isinstance(memory, VariationalMemory)
        fixed_var = None if config.learned_code_var else 0.5 * float(memory.noise_var)
        super().__init__(config, frame, fixed_var)
        self.content_size = content_size
        self.memory = memory
        self.memory.warns = False
        self.single: VariationalMemory | None = None
        if config.tells_apart:  # of so few frames a cluster without factors says all there is to say
            self.single = memory.resize(rows=0, clusters=1)
            self.single.warns = False
        # For the best rotation of its weights, where q(M, b) is one matrix of factors and a location.
        self.waits = memory.located and not memory.factorised and memory.layout[1] > 0
        self.iterations = config.iterations or self.memory.default_iterations
        self.start = config.start
        self.own_head: CodeHead | None = None
        if config.own_prior == "network":
            own_head = CodeHead(content_size, config.own_size, self.head_activation, hidden=HIDDEN)
            self.own_head = own_head.start_at_standard()
        self.recall_head: CodeHead | None = None
        if config.sees_recall:
            seen = 2 * config.code_size + content_size
            corrected = config.own_size if config.weighs_recall else config.code_size
            if corrected:
                recall_head = CodeHead(seen, corrected, self.head_activation, hidden=HIDDEN)
                self.recall_head = recall_head.start_at_standard()
        # A product cannot ignore the memory, as a network may, and is of little use before the noise is known.
        self.scales_wait = not config.weighs_recall
        self.log_scales = nn.ParameterDict()
        if config.learned_scales:
            for name in SCALES:
                if (value := getattr(self.memory, name, None)) is not None:
                    numbers = (content_size,) if name == "noise_var" else ()
                    self.log_scales[name] = nn.Parameter(torch.full(numbers, float(value)).log())
            self.register_load_state_dict_pre_hook(_keep_one_noise)  # type: ignore[no-untyped-call]

    def scaled_memory(self) -> VariationalMemory:
        """The memory with its prior's scales as now trained."""
        return self._scaled(self.memory)

    def _scaled(self, memory: VariationalMemory) -> VariationalMemory:
        return memory.with_prior(**{name: log_scale.exp() for name, log_scale in self.log_scales.items()})

    def resize(self, **sizes: int) -> None:
        """Write into a memory of other sizes from now on, as in `resize(clusters=100)`; networks and prior stay."""
        self.memory = self.memory.resize(**sizes)
        self.memory.warns = False

    @property
    def prior_scales(self) -> list[nn.Parameter]:
        return list(self.log_scales.values())

    def own_prior(self, content: Tensor) -> CodePosterior:
        """p(own | content) of contents [.., C - own_size], N(0, I) unless a network says otherwise: [.., own_size]."""
        if self.own_head is not None:
            return self.own_head(content)
        mean = content.new_zeros(*content.shape[:-1], self.config.own_size)
        return CodePosterior(mean, torch.ones_like(mean))

    def kl_own(self, own: CodePosterior, codes: Tensor) -> Tensor:
        """KL(q(own) || p(own | content)) at the content of sampled codes [.., C], in nats: [..]."""
        return normal_kl(own, self.own_prior(self.content(codes)))

    def content(self, codes: Tensor) -> Tensor:
        """What of codes [.., C] is written into memory: [.., C - own_size]."""
        check_shape("codes", codes, self.config.code_size)
        return codes[..., : self.content_size]

    def complete(self, content: Tensor, generator: torch.Generator | None = None, *, sample: bool = True) -> Tensor:
        """Whole codes [.., C] of contents [.., C - own_size].

        Args:
            content: for example what a memory's `sample` gave.
            generator: of the draws.
            sample: draw the own part from its prior; otherwise its mean.
        """
        if not self.config.own_size:
            return content
        prior = self.own_prior(content)
        return torch.cat([content, prior.rsample(generator) if sample else prior.mean], dim=-1)

    def revise(self, embeddings: Tensor, posterior: CodePosterior, recalled: Tensor) -> CodePosterior:
        """q(z | x, memory) from q(z | x) and the mean of what the memory recalls of the content, [.., C - own_size].

        The content is what the memory recalls, corrected by what a network makes of both; so it costs little, and what
        a frame does not share with others goes to its own part. With `weighs_recall` no network decides on the content:
        it is the product of q(content | x) and N(recalled, noise_var). The bound holds since recall is a mean, never a
        sample. A model that does not see it gives q(z | x) back.
        """
        if not self.config.sees_recall:
            return posterior
        content, own = posterior.cut(self.content_size)
        if self.config.weighs_recall:
            noise_var = self.log_scales["noise_var"].exp()
            content = content.product(CodePosterior(recalled, noise_var.expand_as(recalled)))
            return content.joined(self._corrected(own, embeddings, recalled))
        return self._corrected(CodePosterior(recalled, content.var).joined(own), embeddings, recalled)

    def _corrected(self, posterior: CodePosterior, embeddings: Tensor, recalled: Tensor) -> CodePosterior:
        if self.recall_head is None:
            return posterior
        correction = self.recall_head(torch.cat([embeddings, recalled], dim=-1))  # N(0, I) before training: none
        return CodePosterior(posterior.mean + correction.mean, posterior.var * correction.var)

    def write(self, memory: VariationalMemory, codes: Tensor) -> tuple[MemoryState, Addresses]:
        """Write contents [B, T, C - own_size] by the model's objective; the addresses are those of all frames."""
        if self.config.objective == "episode":
            return self._write_all(memory, codes)
        order = torch.rand(codes.shape[:2], device=codes.device).argsort(-1)
        shuffled = codes.gather(1, order.unsqueeze(-1).expand_as(codes))
        if self.config.objective == "online":
            state = memory.write_online(shuffled, self.start)
        else:
            written = max(1, int(self.config.written_share * codes.shape[1]))
            state, _ = self._write_all(memory, shuffled[:, :written])
        return state, memory.address(state, codes)

    def _write_all(self, memory: VariationalMemory, codes: Tensor) -> tuple[MemoryState, Addresses]:
        return memory.write(codes, self.iterations, self.start, gradient_iterations=self.config.gradient_iterations)

    def forward(self, frames: Tensor, copies: int = 1) -> Evidence:
        embeddings, posterior = self.look(self.seen(frames))
        extra, told = None, {}
        if self.training and self.single is not None:
            share = repeat_episodes(log_own_share(self._scaled(self.single), self.content(posterior.mean)), copies)
            extra, told = self.config.tells_apart * frames.shape[1] * share, {"log_own_share": share.detach()}
        posterior, frames = repeat_posterior(posterior, copies), repeat_episodes(frames, copies)
        content, own = posterior.cut(self.content_size)
        side = SideStream(frames.device)
        with side(content.mean, content.var):
            memory = self.scaled_memory()
            state, addresses = self.write(memory, content.mean)
            recalled = memory.recall(state, addresses)
        if self.config.sees_recall:
            side.join(recalled)
            posterior = self.revise(repeat_episodes(embeddings, copies), posterior, recalled)
            content, own = posterior.cut(self.content_size)
            with side(content.mean, content.var):
                addresses = memory.address(state, content.mean)
                recalled = memory.recall(state, addresses)
        shown = content.mean
        if self.training and self.regulariser is not None:
            side.join(recalled)
            shown = regularised(content.mean, recalled, self.regulariser)
        elif not self.training and self.refinement:
            side.join(recalled)
            shown = self.refined(content, recalled).mean
            with side(shown):
                addresses = memory.address(state, shown)
        with side(shown):
            terms = memory.bound(shown, state, addresses, content.var).terms()
            measured = _memory_share(content.mean, recalled)
        codes = CodePosterior(torch.cat([shown, own.mean], dim=-1), posterior.var).rsample()
        log_likelihood = self.score(codes, frames)
        side.join(*terms.values(), *measured.values())
        divergences = {name: term for name, term in terms.items() if name.startswith("kl_")}
        measured |= _memory_cost(divergences, frames.shape[1])
        if self.config.own_size:
            # A prior given the content is charged at the very sample of it that is decoded.
            divergences["kl_own"] = self.kl_own(own, codes).sum(-1)
        return Evidence(
            log_likelihood=log_likelihood,
            divergences=divergences,
            episode_length=frames.shape[1],
            extra_objective=extra,
            measures=measured | told,
        )

    def compile_parts(self) -> None:
        super().compile_parts()
        self.memory.compile()


def _keep_one_noise(model: MemoryModel, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """A model that vbmem 0.4 or before trained learned one noise for all numbers of the content, and keeps it."""
    saved = state.get(f"{prefix}log_scales.noise_var")
    if saved is not None and saved.ndim == 0:
        model.log_scales["noise_var"] = nn.Parameter(model.log_scales["noise_var"].detach().mean())


def regularised(mean: Tensor, recalled: Tensor, settings: Regulariser) -> Tensor:
    """The mean of q(z_t), [.., C], moved towards what the memory recalls by a random share; see `Regulariser`."""
    alpha, beta = (torch.full_like(mean[..., 0], x) for x in (settings.alpha, settings.beta))
    share = settings.gamma - settings.epsilon + settings.delta * Beta(alpha, beta, validate_args=False).sample()
    return torch.lerp(recalled, mean, share.unsqueeze(-1))


@torch.no_grad()
def _memory_share(codes: Tensor, recalled: Tensor) -> dict[str, Tensor]:
    """The part of the variance of an episode's codes that the memory explains: 1 - |z - recalled|^2 / |z - mean|^2,
    and 0 where it recalls less well than the mean would."""
    spread = (codes - codes.mean(-2, keepdim=True)).square().sum((-1, -2))
    missed = (codes - recalled).square().sum((-1, -2))
    worst = torch.maximum(spread, missed).clamp_min(torch.finfo(codes.dtype).tiny)
    return {"memory_share": 1 - missed / worst}


def _memory_cost(divergences: dict[str, Tensor], episode_length: int) -> dict[str, Tensor]:
    """What it pays for that, per frame: every divergence of the memory but that of the codes."""
    paid = [term.detach() for name, term in divergences.items() if name != "kl_codes"]
    return {"memory_kl": torch.stack(paid).sum(0) / episode_length}

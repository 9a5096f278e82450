"""The presets against the paper's tables of hyperparameters (appendix F) and its sizes of networks."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from vbmem.data import load_images
from vbmem.models import DKM, VAE, FrameFormat, MemoryConfig, MemoryModel, NeuralStatistician, Regulariser
from vbmem.paper.presets import PAPERS, PRESETS, get_preset
from vbmem.train.runs import frame_format
from vbmem.train.settings import Stage

DATASETS = ("cifar10", "celeba")
QUANTITATIVE = ("vae", "statistician", "dkm", "gaussian", "categorical")
QUALITATIVE = ("mixture", "tree")
FRAMES = {
    "cifar10": FrameFormat(32, 3),
    "celeba": FrameFormat(32, 3),
    "digits": FrameFormat(8, 1),
    "omniglot": FrameFormat(28, 1, "bernoulli"),
}
DIGITS = ("digits-vae", "digits-categorical", "digits-mixture")
OMNIGLOT = ("omniglot-vae", "omniglot-statistician", "omniglot-dkm", "omniglot-mixture", "omniglot-told")
MIXED = "omniglot-mixed-statistician"

over_datasets = pytest.mark.parametrize("dataset", DATASETS)
over_quantitative = pytest.mark.parametrize("name", QUANTITATIVE)
over_qualitative = pytest.mark.parametrize("name", QUALITATIVE)


def build(name):
    """The preset's model; on the meta device where it has more than 10^8 parameters."""
    dataset, *_, model = name.removeprefix("paper-").split("-")
    torch.manual_seed(0)
    huge = model == "statistician" and dataset != "omniglot"
    with torch.device("meta" if huge else "cpu"):
        return get_preset(name).model.build(FRAMES[dataset])


def parameter_count(model):
    return sum(weights.numel() for weights in model.parameters())


def test_there_is_a_preset_for_every_row_of_the_paper_as_many_of_ours_five_of_characters_and_three_for_a_laptop():
    ours = {f"{dataset}-{name}" for dataset in DATASETS for name in QUANTITATIVE + QUALITATIVE}
    papers = {f"paper-{name}" for name in ours} - {"paper-celeba-mixture", "paper-celeba-tree"}  # no row of the paper
    assert set(PRESETS) == papers | ours | set(DIGITS) | set(OMNIGLOT) | {MIXED}
    assert set(PAPERS) == papers


class TestPapers:
    """What the paper's own have and ours have not."""

    @pytest.mark.parametrize("name", PAPERS)
    def test_the_weights_are_those_of_the_last_step_in_float32_and_nothing_is_cut_off_the_gradient(self, name):
        run: Any = get_preset(name)
        assert run.model.precision == "float32"
        assert run.averaging == 0
        assert getattr(run.model, "gradient_iterations", None) is None
        assert getattr(run.model, "learned_code_var", True)

    @over_datasets
    @over_quantitative
    def test_table_1_has_one_stage_one_rate_accumulated_statistics_and_no_clipping(self, dataset, name):
        run = get_preset(f"paper-{dataset}-{name}")
        assert run.stages == (Stage({"cifar10": 100, "celeba": 60}[dataset], 1e-3),)
        assert (run.batch_norm, run.clip) == ("accumulated", None)

    @over_datasets
    @over_quantitative
    def test_the_models_and_the_batches_are_ours(self, dataset, name):
        paper, ours = get_preset(f"paper-{dataset}-{name}"), get_preset(f"{dataset}-{name}")
        assert replace(paper.model, precision="bfloat16") == ours.model
        assert (paper.data, paper.copies, paper.beta1, paper.patience) == (
            ours.data,
            ours.copies,
            ours.beta1,
            ours.patience,
        )

    @over_qualitative
    def test_mixture_and_tree_have_two_stages_and_start_at_kmeans_plus_plus(self, name):
        paper: Any = get_preset(f"paper-cifar10-{name}")
        assert (paper.model.start, paper.model.factorised) == ("kmeans++", True)
        assert (build(f"paper-cifar10-{name}").iterations, paper.model.style) == (10, "improved")
        first, second = paper.stages
        assert (first.epochs, first.learning_rate, first.takes_leftover) == (200, 5e-4, False)
        assert first.regulariser == Regulariser(gamma=0.5, epsilon=0.1, delta=0.2, alpha=8.0, beta=8.0)
        assert (second.epochs, second.learning_rate, second.takes_leftover) == (10, 1e-4, True)  # "10 + L epochs"
        assert second.regulariser == Regulariser(gamma=0.5, epsilon=1e-6, delta=2e-6, alpha=8.0, beta=8.0)

    @over_qualitative
    def test_mixture_and_tree_have_the_papers_optimiser(self, name):
        paper = get_preset(f"paper-cifar10-{name}")
        assert (paper.beta1, paper.patience, paper.schedule, paper.damage) == (0.0, 10, "constant", 0.0)


class TestQuantitative:
    """Appendix F.1, "Hyperparameters for CIFAR-10 experiments" and "... for CelebA experiments"."""

    @over_datasets
    @over_quantitative
    def test_what_all_rows_share(self, dataset, name):
        run: Any = get_preset(f"{dataset}-{name}")
        assert run.data.dataset == dataset
        assert run.data.episode_length == 64
        assert run.data.episodes == "shuffled"
        assert not run.data.binary
        assert run.model.code_size == 200
        assert run.model.filters == 32
        assert run.model.style == "basic"  # batch normalization
        assert run.patience == 10
        assert run.schedule == "constant"
        assert run.beta1 == 0.9
        assert [stage.learning_rate for stage in run.stages] == [3e-4, 2e-3]  # a gentle start
        assert all(stage.regulariser is None for stage in run.stages)

    @over_quantitative
    def test_epochs(self, name):
        assert sum(stage.epochs for stage in get_preset(f"cifar10-{name}").stages) == 100
        assert sum(stage.epochs for stage in get_preset(f"celeba-{name}").stages) == 60

    @over_datasets
    @pytest.mark.parametrize(
        ("name", "batch", "copies"),
        [("vae", 16, 1), ("statistician", 16, 1), ("dkm", 16, 1), ("gaussian", 16, 1), ("categorical", 8, 2)],
    )
    def test_batch_size_and_duplication_factor(self, dataset, name, batch, copies):
        run = get_preset(f"{dataset}-{name}")
        assert (run.data.batch_size, run.copies) == (batch, copies)

    @over_datasets
    def test_memory_and_context_sizes(self, dataset):
        statistician: Any = get_preset(f"{dataset}-statistician")
        assert statistician.model.context_size == 6400
        for name in ("dkm", "gaussian", "categorical"):
            model: Any = get_preset(f"{dataset}-{name}").model
            assert (model.rows, model.code_size) == (32, 200)

    @over_datasets
    @pytest.mark.parametrize(("name", "iterations", "start"), [("gaussian", 50, "random"), ("categorical", 2, "data")])
    def test_iterations_and_start_of_a_write(self, dataset, name, iterations, start):
        model = build(f"{dataset}-{name}")
        assert model.memory.kind == name
        assert model.iterations == iterations
        assert model.memory.default_start == start

    @over_datasets
    @pytest.mark.parametrize("name", ["gaussian", "categorical"])
    def test_the_prior_of_the_memory_is_standard_and_not_trained(self, dataset, name):
        settings: Any = get_preset(f"{dataset}-{name}").model
        model = build(f"{dataset}-{name}")
        assert settings.objective == "episode"
        assert not model.log_scales
        assert (model.memory.noise_var, model.memory.row_var, model.memory.row_mean) == (1.0, 1.0, 0.0)


class TestQualitative:
    """Appendix F.2."""

    @over_qualitative
    @pytest.mark.parametrize("dataset", ["paper-cifar10", *DATASETS])
    def test_sizes(self, dataset, name):
        run: Any = get_preset(f"{dataset}-{name}")
        assert run.data.dataset == dataset.removeprefix("paper-")
        assert (run.data.batch_size, run.copies, run.data.episode_length) == (16, 1, 64)
        assert run.model.memory == name
        assert (run.model.clusters, run.model.rows, run.model.code_size) == (10, 6, 200)
        assert run.model.filters == 64
        assert not run.model.learned_scales
        memory = build(f"{dataset}-{name}").memory
        assert memory.partitions == (2 if name == "tree" else 1)

    @over_datasets
    @over_qualitative
    def test_ours_never_stops_early_and_regularises_throughout(self, dataset, name):
        run = get_preset(f"{dataset}-{name}")
        (stage,) = run.stages
        assert stage.regulariser == Regulariser()
        assert run.patience == stage.epochs
        assert (run.beta1, run.schedule) == (0.9, "cosine")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_for_its_frames(name):
    kinds = {"vae": VAE, "statistician": NeuralStatistician, "dkm": DKM}
    assert type(build(name)) is kinds.get(name.split("-")[-1], MemoryModel)


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in PRESETS if "celeba" not in name and "statistician" not in name])
def test_every_preset_gives_its_frames_a_bound(name):
    """All but the Neural Statisticians, and CelebA's, which have the same models as those of CIFAR-10."""
    frame = FRAMES[name.removeprefix("paper-").split("-")[0]]
    pictures = torch.rand(2, 3, frame.channels, frame.size, frame.size).round()
    evidence = build(name).eval()(pictures, copies=get_preset(name).copies)
    assert evidence.elbo.shape == (2 * get_preset(name).copies,)
    assert evidence.elbo.isfinite().all()


def test_celeba_has_the_models_of_cifar10():
    for name in QUANTITATIVE + QUALITATIVE:
        assert get_preset(f"celeba-{name}").model == get_preset(f"cifar10-{name}").model


def test_of_a_character_its_memory_holds_few_numbers_and_the_others_have_the_same_code_for_a_frame():
    vae, statistician, dkm, mixture, told = (get_preset(name).model for name in OMNIGLOT)
    assert isinstance(mixture, MemoryConfig)
    assert told == replace(mixture, tells_apart=30.0)
    assert (mixture.code_size - mixture.own_size, mixture.own_size, mixture.clusters) == (24, vae.code_size, 1)
    assert statistician.code_size == dkm.code_size == vae.code_size


def test_a_context_of_four_characters_is_trained_on_them_and_otherwise_as_that_of_one():
    one = get_preset("omniglot-statistician")
    assert get_preset(MIXED) == replace(one, data=replace(one.data, labels_per_episode=4))


def test_digits_are_small_grey_pictures():
    images = load_images("digits")
    for name in DIGITS:
        assert frame_format(get_preset(name).data, images) == FRAMES["digits"]
        assert parameter_count(build(name)) < 100_000


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("vae", 669_590),
        ("statistician", 170_795_590 + (400 - 64) * 12_800),  # the published count, had it pooled over the episode
        ("dkm", 669_590 - 320_400 - 128 * 200 + 1),  # no head, half the embedding, the variance of the addresses
        ("gaussian", 669_590),
        ("categorical", 669_590),
        ("mixture", 1_323_798),
        ("tree", 1_323_798),
    ],
)
def test_parameter_counts_are_those_of_the_reference(name, count):
    assert parameter_count(build(f"cifar10-{name}")) == count


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("cifar10-mixtur", "cifar10-mixture"), ("celeba_tree", "celeba-tree"), ("digit-vae", "digits-vae")],
)
def test_an_unknown_name_is_answered_with_the_near_ones(wrong, meant):
    with pytest.raises(ValueError, match=f"no preset '{wrong}'") as error:
        get_preset(wrong)
    assert meant in str(error.value)
    assert sum(name in str(error.value) for name in PRESETS) <= 3


def test_a_name_near_to_none_is_answered_with_all():
    with pytest.raises(ValueError, match="no preset") as error:
        get_preset("?")
    assert all(name in str(error.value) for name in PRESETS)

"""A configuration survives the way to JSON and back."""

import json
from dataclasses import asdict, replace
from functools import partial

import pytest

from vbmem.models import DKMConfig, MemoryConfig, ModelConfig, Regulariser, StatisticianConfig, VAEConfig
from vbmem.models.settings import from_dict
from vbmem.paper.presets import PRESETS
from vbmem.train import DataConfig, RunConfig, Stage

UNUSUAL = {
    "defaults": RunConfig(),
    "three stages": RunConfig(
        model=MemoryConfig(), stages=(Stage(1), Stage(2, 1e-5, Regulariser()), Stage(3, takes_leftover=True))
    ),
    "no regulariser": RunConfig(model=MemoryConfig("tree"), stages=(Stage(5, 1e-4, None),)),
    "a whole learning rate": RunConfig(stages=(Stage(5, 1),)),
    "a tiny regulariser": RunConfig(
        model=MemoryConfig(), stages=(Stage(1, 1 / 3, Regulariser(gamma=0.1, epsilon=1e-300)),)
    ),
    "data": RunConfig(DataConfig("a folder/über [x].npz", 48, True, "views", 3, 5, 7, "some")),
    "statistician": RunConfig(model=StatisticianConfig(2, code_size=1, filters=3, style="improved")),
    "dkm": RunConfig(model=DKMConfig(autoencoder=False)),
    "memory": RunConfig(
        model=MemoryConfig(
            "shifted",
            code_size=1,
            rows=2,
            clusters=3,
            partitions=4,
            iterations=5,
            filters=6,
            style="basic",
            objective="online",
            learned_scales=True,
        )
    ),
    "an own part": RunConfig(model=MemoryConfig(own_size=5), warm_up=3, scale_rate=1.5),
    "the rest": RunConfig(copies=3, beta1=0.5, clip=1.5, patience=2, schedule="cosine", averaging=0.25, seed=9),
    "as in the paper": RunConfig(clip=None, batch_norm="accumulated", model=VAEConfig(precision="float32")),
    "how a memory is written": RunConfig(
        model=MemoryConfig(start="data", gradient_iterations=3, learned_code_var=False, written_share=0.25),
        regularise=True,
    ),
}
CONFIGS = PRESETS | UNUSUAL


def to_dict(config):
    """As config.json has it, where a model says its kind."""
    return asdict(config) | {"model": {"kind": config.model.kind, **asdict(config.model)}}


each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


@each_config
def test_a_configuration_survives_a_round_trip(config):
    assert from_dict(RunConfig, to_dict(config)) == config
    assert from_dict(RunConfig, json.loads(json.dumps(to_dict(config), allow_nan=False))) == config


@each_config
def test_the_types_survive_as_well(config):
    again = from_dict(RunConfig, json.loads(json.dumps(to_dict(config))))
    assert type(again.model) is type(config.model)
    assert type(again.stages) is tuple
    assert [type(stage.regulariser) for stage in again.stages] == [type(stage.regulariser) for stage in config.stages]
    assert hash(again) == hash(config)


@each_config
def test_different_configurations_look_different(config):
    assert to_dict(replace(config, seed=config.seed + 1)) != to_dict(config)
    assert to_dict(replace(config, stages=(*config.stages, Stage(7)))) != to_dict(config)


def test_presets_are_different_runs():
    assert len(set(PRESETS.values())) == len(PRESETS)


def test_models_carry_their_kind():
    kinds = {"vae": VAEConfig(), "statistician": StatisticianConfig(), "dkm": DKMConfig(), "memory": MemoryConfig()}
    ours = {kind for kind, config in ModelConfig.kinds.items() if config.__module__.startswith("vbmem.")}
    assert kinds.keys() == ours  # those of benchmarks aside, which other tests import
    for kind, model in kinds.items():
        values = to_dict(RunConfig(model=model))
        assert values["model"]["kind"] == kind
        assert from_dict(RunConfig, values).model == model


def test_what_is_missing_takes_its_default():
    assert from_dict(RunConfig, {}) == RunConfig()
    assert from_dict(RunConfig, {"stages": [{"epochs": 3}]}) == RunConfig(stages=(Stage(3),))
    assert from_dict(RunConfig, {"model": {"kind": "memory", "rows": 3}}).model == MemoryConfig(rows=3, factorised=True)


@pytest.mark.parametrize(
    "values",
    [
        {"colour": 1},
        {"data": {"colour": 1}},
        {"model": {"kind": "vae", "colour": 1}},
        {"model": {"kind": "vae", "rows": 1}},
        {"stages": [{"epochs": 1}, {"colour": 1}]},
        {"stages": [{"regulariser": {"colour": 1}}]},
    ],
    ids=["run", "data", "model", "model-of-another-kind", "stage", "regulariser"],
)
def test_unknown_settings_are_refused(values):
    with pytest.raises(ValueError, match=r"unknown settings (colour|rows)"):
        from_dict(RunConfig, values)


def test_all_unknown_settings_are_named():
    with pytest.raises(ValueError, match="unknown settings colour, shape; was this saved by a newer vbmem"):
        from_dict(RunConfig, {"shape": 1, "seed": 2, "colour": 3})


def test_an_unknown_kind_of_model_is_refused():
    with pytest.raises(ValueError, match="gan"):
        from_dict(RunConfig, {"model": {"kind": "gan"}})


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Stage(epochs=0),
        lambda: Stage(learning_rate=0.0),
        lambda: RunConfig(stages=()),
        lambda: RunConfig(copies=0),
        lambda: RunConfig(patience=0),
        lambda: RunConfig(clip=0.0),
        *(
            partial(from_dict, ModelConfig, {"kind": kind, name: 0})
            for kind, settings in ModelConfig.kinds.items()
            for name in settings.sizes
        ),
        lambda: MemoryConfig(written_share=0.0),
        lambda: RunConfig(averaging=1.0),
    ],
)
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match=r", got (0|0\.0|1\.0)$"):
        bad()


def test_a_start_there_is_not_is_refused():
    with pytest.raises(ValueError, match=r"start must be one of prior, random, .* not 'nowhere'"):
        MemoryConfig(start="nowhere")  # type: ignore[arg-type]


def test_without_a_memory_there_is_nothing_to_be_regularised_with():
    for settings in (
        {"regularise": True},
        {"stages": (Stage(regulariser=Regulariser()),)},
        {"regularise": True, "model": MemoryConfig(code_size=8, own_size=8)},
    ):
        with pytest.raises(ValueError, match="only a model with a memory can be regularised"):
            RunConfig(**settings)
    assert not any(map(RunConfig(stages=(Stage(regulariser=Regulariser()),), regularise=False).regulariser, [Stage()]))


@pytest.mark.parametrize(
    ("name", "value"), [("schedule", "cosin"), ("batch_norm", "acumulated"), ("precision", "bf16")]
)
def test_a_choice_there_is_not_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be one of .*, got '{value}'"):
        VAEConfig(precision=value) if name == "precision" else RunConfig(**{name: value})


@pytest.mark.parametrize("stage", [Stage(), Stage(regulariser=Regulariser(gamma=0.3))], ids=["without", "with"])
def test_one_option_switches_the_regulariser_on_or_off_in_every_stage(stage):
    runs = [RunConfig(model=MemoryConfig(), regularise=choice) for choice in (None, True, False)]
    own = stage.regulariser
    assert [run.regulariser(stage) for run in runs] == [own, own or Regulariser(), None]


def test_settings_of_vbmem_0_3_had_a_fixed_variance_for_mixture_and_tree_only():
    read = {
        kind: from_dict(ModelConfig, {"kind": "memory", "memory": kind}) for kind in ("mixture", "tree", "gaussian")
    }
    assert {kind: getattr(model, "learned_code_var", None) for kind, model in read.items()} == {
        "mixture": False,
        "tree": False,
        "gaussian": True,
    }

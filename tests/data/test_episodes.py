import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vbmem.data import DataConfig, EpisodeSource
from vbmem.errors import DataError

KINDS = ["shuffled", "by-label", "views", "repeats"]


def source(count=100, *, size=8, channels=3, labels=5, device="cpu", seed=0, training=False, **settings):
    """Episodes from pictures of noise whose labels run 0, 1, 2, ..., 0, 1, 2, ..."""
    images = np.random.default_rng(0).integers(0, 256, (count, size, size, channels), np.uint8)
    data = DataConfig(**{"batch_size": 3, "episode_length": 8, **settings})
    return EpisodeSource(images, data, np.arange(count) % labels, device=device, seed=seed, training=training)


# Which pictures


@given(count=st.integers(1, 300), batch=st.integers(1, 4), length=st.integers(1, 9), epoch=st.integers(0, 10**6))
def test_shuffled_never_shows_a_frame_twice_within_an_epoch(count, batch, length, epoch):
    settings = {"batch_size": batch, "episode_length": length}
    if count < batch * length:
        with pytest.raises(DataError, match=f"needs {batch * length} images and there are {count}"):
            source(count, size=1, **settings)
        return
    drawn = source(count, size=1, **settings)
    indices = drawn.epoch_indices(epoch)
    assert indices.shape == (count // (batch * length), batch, length)
    assert len(indices) == drawn.batches_per_epoch
    assert len(indices.unique()) == indices.numel()
    assert 0 <= indices.min() <= indices.max() < count


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_follows_from_seed_and_number_alone(kind):
    def epoch(number, seed=0):
        return source(episodes=kind, seed=seed).epoch_indices(number)

    twice = source(episodes=kind)
    twice.epoch_indices(0)
    torch.manual_seed(1)
    assert torch.equal(twice.epoch_indices(7), epoch(7))
    others = [epoch(8), epoch(7, seed=1), epoch(0, seed=7)]
    assert not any(torch.equal(epoch(7), other) for other in others)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_as_many_batches(kind):
    drawn = source(episodes=kind)
    assert drawn.batches_per_epoch == 4
    assert drawn.epoch_indices(0).shape == (4, 3, 8)
    assert drawn.epoch_indices(0).dtype == torch.int64


def test_episodes_by_label_hold_different_frames_of_one_label():
    episodes = source(episodes="by-label").epoch_indices(0).view(-1, 8)
    labels = episodes % 5
    assert (labels == labels[:, :1]).all()
    assert len(labels[:, 0].unique()) > 1
    assert all(len(episode.unique()) == 8 for episode in episodes)


def test_a_label_with_too_few_frames_is_cycled_through():
    episodes = source(30, labels=10, episodes="by-label").epoch_indices(0).view(-1, 8)  # 3 frames of each label
    for episode in episodes:
        assert sorted(episode.unique(return_counts=True)[1].tolist()) == [2, 3, 3]
        assert torch.equal(episode[:3], episode[3:6])


@pytest.mark.parametrize(("labels", "shares"), [(2, [4, 4]), (3, [2, 3, 3]), (8, [1] * 8)])
def test_several_labels_share_an_episode_as_evenly_as_they_can(labels, shares):
    episodes = source(labels=10, episodes="by-label", labels_per_episode=labels).epoch_indices(0).view(-1, 8)
    for episode in episodes:
        assert sorted((episode % 10).unique(return_counts=True)[1].tolist()) == shares
        assert len(episode.unique()) == 8
    assert not torch.equal(episodes % 10, (episodes % 10).sort(-1).values)


def test_all_labels_are_shown_equally_often():
    episodes = source(120, labels=10, episodes="by-label", labels_per_episode=2).epoch_indices(0).view(-1, 8)
    assert (episodes % 10).unique(return_counts=True)[1].tolist() == [12] * 10


def test_labels_meet_others_again_and_again():
    episodes = source(400, labels=4, episodes="by-label", labels_per_episode=2).epoch_indices(0).view(-1, 8)
    assert len((episodes % 4).sort(-1).values.unique(dim=0)) == 6  # all pairs


def test_where_an_episode_holds_a_whole_label_an_epoch_shows_every_picture_once():
    drawn = source(120, labels=15, episodes="by-label")
    assert drawn.epoch_indices(0).flatten().sort().values.tolist() == list(range(120))


def test_among_several_labels_one_with_few_pictures_is_cycled_through():
    images, labels = np.zeros((21, 1, 1, 1), np.uint8), np.repeat([0, 1], [20, 1])
    data = DataConfig(batch_size=1, episode_length=5, episodes="by-label", labels_per_episode=2)
    for (episode,) in EpisodeSource(images, data, labels).epoch_indices(0):
        assert (episode == 20).sum() in (2, 3)
        assert len(episode.unique()) == 1 + (episode != 20).sum()


def test_labels_may_be_any_whole_numbers():
    images = np.zeros((30, 1, 1, 1), np.uint8)
    labels = np.repeat(np.array([7, -2, 1000]), 10)
    drawn = EpisodeSource(images, DataConfig(batch_size=1, episode_length=5, episodes="by-label"), labels)
    chosen = labels[drawn.epoch_indices(0)]
    assert (chosen == chosen[..., :1]).all()


@pytest.mark.parametrize("kind", ["views", "repeats"])
def test_an_episode_shows_each_of_its_sources_equally_often(kind):
    episodes = source(episodes=kind, sources_per_episode=2).epoch_indices(0).view(-1, 8)
    for episode in episodes:
        assert episode.unique(return_counts=True)[1].tolist() == [4, 4]
    assert len(episodes.unique()) == 2 * len(episodes)  # no source in two episodes
    assert not torch.equal(episodes, episodes.sort(-1).values)


def test_few_pictures_are_enough_for_views():
    episodes = source(5, episodes="views").epoch_indices(0).view(-1, 8)
    assert len(episodes) == 3
    assert all(len(episode.unique()) == 4 for episode in episodes)


def test_a_single_picture_can_be_repeated():
    assert source(1, episodes="repeats", sources_per_episode=1).epoch_indices(0).unique().tolist() == [0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"episodes": "sorted"}, "no kind of episode 'sorted'; choose from shuffled, by-label"),
        ({"batch_size": 0}, "must all be positive"),
        ({"episodes": "views", "sources_per_episode": 3}, "divide episode_length"),
        ({"episodes": "repeats", "count": 3}, "shows 4 pictures and there are 3"),
        ({"episodes": "by-label", "count": 23}, "needs 24 images and there are 23"),
        ({"episodes": "by-label", "labels_per_episode": 6}, "cannot show 6 of 5 labels"),
        ({"episodes": "by-label", "labels_per_episode": 9, "labels": 10}, "8 frames cannot show 9 of 10 labels"),
        ({"labels_per_episode": 0}, "must all be positive"),
        ({"augment": ("mirror", "blur")}, "no augmentation blur; choose from mirror, rotations, affine"),
        ({"binary": True, "binarise": "often"}, "by 'often'; choose from rounded, random"),
        ({"binarise": "random"}, "choose binary frames"),
    ],
)
def test_impossible_episodes_are_refused(settings, message):
    with pytest.raises(DataError, match=message):
        source(**settings)


def test_episodes_by_label_need_labels():
    images = np.zeros((30, 1, 1, 1), np.uint8)
    with pytest.raises(DataError, match="need labels"):
        EpisodeSource(images, DataConfig(batch_size=1, episode_length=5, episodes="by-label"))
    with pytest.raises(DataError, match="each of the 30 images"):
        EpisodeSource(images, DataConfig(batch_size=1, episode_length=5), np.arange(29))


def test_float_images_are_refused():
    with pytest.raises(DataError, match="images is float32"):
        EpisodeSource(np.zeros((30, 1, 1, 1), np.float32), DataConfig(batch_size=1, episode_length=5))


# What the frames look like


def test_dequantisation_spreads_each_pixel_over_its_bin():
    drawn = source(size=16)
    indices = drawn.epoch_indices(0)
    frames = drawn.frames(indices)
    assert frames.shape == (*indices.shape, 3, 16, 16)
    assert frames.dtype == torch.float32
    assert torch.equal((frames * 256).floor().to(torch.uint8), drawn.images[indices])
    noise = frames * 256 - drawn.images[indices]
    assert abs(noise.mean() - 0.5) < 0.01
    assert abs(noise.var() - 1 / 12) < 0.01


def test_white_stays_below_one(monkeypatch):
    almost_one = torch.tensor(1 - 2**-24)
    monkeypatch.setattr(torch, "rand", lambda shape, **_: almost_one.expand(shape))
    white = np.full((1, 4, 4, 1), 255, np.uint8)
    assert EpisodeSource(white, DataConfig(batch_size=1, episode_length=1)).frames(torch.tensor(0)).max() < 1


def test_channels_come_first_and_the_given_array_is_not_shared():
    images = np.zeros((2, 4, 4, 3), np.uint8)
    images[..., 1] = 200
    images.flags.writeable = False
    drawn = EpisodeSource(images, DataConfig(batch_size=1, episode_length=2))
    assert (drawn.images[:, 1] == 200).all()
    assert (drawn.images[:, [0, 2]] == 0).all()


@pytest.mark.parametrize("kind", ["shuffled", "views"])
def test_noise_is_redrawn_and_follows_a_given_generator(kind):
    drawn = source(episodes=kind)
    indices = drawn.epoch_indices(0)[0]
    assert not torch.equal(drawn.frames(indices), drawn.frames(indices))
    first, second = (drawn.frames(indices, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("kind", ["shuffled", "views"])
def test_binary_frames_are_the_first_channel_rounded(kind):
    drawn = source(episodes=kind, binary=True)
    frames = drawn.frames(drawn.epoch_indices(0))
    assert frames.shape[-3:] == (1, 8, 8)
    assert frames.dtype == torch.float32
    assert frames.unique().tolist() == [0, 1]
    if kind == "shuffled":
        assert torch.equal(frames, (drawn.images[drawn.epoch_indices(0)] >= 128).float())


def test_random_bits_are_drawn_anew_in_training_with_the_grey_value_as_their_probability():
    drawn = source(20, binary=True, binarise="random", batch_size=1, training=True)
    indices = torch.arange(20)
    frames = torch.stack([drawn.frames(indices) for _ in range(400)])
    assert frames.shape[2:] == (1, 8, 8)
    assert frames.unique().tolist() == [0, 1]
    grey = drawn.images / 255
    deviation = (frames.mean(0) - grey) / (grey * (1 - grey) / 400 + 1e-12).sqrt()
    assert deviation.abs().max() < 5
    assert 0.9 < deviation.var() < 1.1
    assert torch.equal(*(drawn.frames(indices, torch.Generator().manual_seed(3)) for _ in range(2)))


def test_black_stays_black_and_white_white_in_random_bits():
    images = np.repeat(np.array([0, 255], np.uint8), 64 * 64).reshape(2, 64, 64, 1)
    data = DataConfig(binary=True, binarise="random", batch_size=1, episode_length=1)
    black, white = EpisodeSource(images, data, training=True).frames(torch.arange(2))
    assert (black == 0).all()
    assert (white == 1).all()


def test_random_bits_of_an_evaluation_follow_from_the_seed_alone():
    def bits(seed):
        drawn = source(seed=seed, binary=True, binarise="random")
        return drawn.frames(torch.arange(100))

    assert torch.equal(bits(0), bits(0))
    assert bits(0).unique().tolist() == [0, 1]
    assert 0.4 < (bits(0) != bits(1)).float().mean() * 3 / 2 < 0.6  # 2 p (1 - p), p uniform, is a third in the mean
    assert abs(bits(0).mean() - source().images[:, 0].float().mean() / 255) < 0.02


# Augmentation, in training only

AUGMENTED = {"augment": ("mirror", "rotations", "affine")}


@pytest.mark.parametrize("way", [{}, {"binary": True}, {"binary": True, "binarise": "random"}])
def test_an_evaluation_is_not_augmented(way):
    plain, augmented = source(**way), source(**way, **AUGMENTED)
    indices = plain.epoch_indices(0)
    assert torch.equal(indices, augmented.epoch_indices(0))
    first, second = (drawn.frames(indices, torch.Generator().manual_seed(0)) for drawn in (plain, augmented))
    assert torch.equal(first, second)


def test_an_episode_by_label_has_one_rotation():
    drawn = source(100, labels=10, episodes="by-label", augment=("rotations",), training=True)
    episodes = drawn.epoch_indices(0).view(-1, 8)
    assert drawn.batches_per_epoch == 400 // 24
    labels, turns = episodes % 10, episodes // 100
    for same in (labels, turns):
        assert (same == same[:, :1]).all()
    assert turns.unique().tolist() == [0, 1, 2, 3]
    plain = source(100).images
    for episode, turn in zip(episodes, turns[:, 0].tolist(), strict=True):
        pixels = (drawn.frames(episode) * 256).floor().to(torch.uint8)
        assert torch.equal(pixels, torch.rot90(plain[episode % 100], turn, (-2, -1)))


def test_each_frame_is_mirrored_or_not():
    drawn = source(augment=("mirror",), training=True)
    indices = drawn.epoch_indices(0)
    pixels, plain = (drawn.frames(indices) * 256).floor().to(torch.uint8), drawn.images[indices]
    same, flipped = ((pixels == other).flatten(3).all(-1) for other in (plain, plain.flip(-1)))
    assert (same ^ flipped).all()
    assert 0.3 < flipped.float().mean() < 0.7


@pytest.mark.parametrize("way", [{}, {"binary": True}, {"binary": True, "binarise": "random"}])
def test_affine_changes_come_before_noise_and_bits(way):
    drawn = source(augment=("affine",), training=True, **way)
    indices = drawn.epoch_indices(0)
    frames = drawn.frames(indices)
    assert 0 <= frames.min() <= frames.max() <= 1
    if way:
        assert frames.unique().tolist() == [0, 1]
    else:
        assert abs((frames * 256).frac().mean() - 0.5) < 0.01
        assert abs((frames * 256).frac().var() - 1 / 12) < 0.01
    assert torch.equal(*(drawn.frames(indices, torch.Generator().manual_seed(3)) for _ in range(2)))


def test_repeats_of_a_picture_differ_only_by_noise():
    drawn = source(episodes="repeats")
    indices = drawn.epoch_indices(0)
    frames = drawn.frames(indices)
    assert torch.equal((frames * 256).floor().to(torch.uint8), drawn.images[indices])
    assert len(frames.flatten(0, 2).unique(dim=0)) == indices.numel()


def views_of(picture, count=200):
    """uint8 [H, W, C] -> `count` random views [count, C, H, W]."""
    drawn = EpisodeSource(
        picture[None], DataConfig(batch_size=1, episode_length=4, episodes="views", sources_per_episode=1)
    )
    return drawn.frames(torch.zeros(count, dtype=torch.int64), torch.Generator().manual_seed(0))


def test_a_view_is_a_window_of_the_edge_padded_picture_shifted_by_up_to_an_eighth():
    picture = np.random.default_rng(0).integers(0, 190, (16, 16, 1), np.uint8)  # 190 * 1.3 is not cut off
    padded = np.pad(picture[..., 0], 2, mode="edge").astype(np.float32)
    windows = [padded[i : i + 16, j : j + 16] for i in range(5) for j in range(5)]
    views = views_of(picture).flatten(1)
    # The light is unknown, so compare directions.
    cosines = torch.cosine_similarity(views[:, None], torch.tensor(np.stack(windows)).flatten(1), dim=-1)
    best = cosines.max(-1)
    assert best.values.min() > 0.999
    assert best.indices.unique().tolist() == list(range(25))


def test_views_mirror_colour_pictures_only():
    def mirrored(channels):
        picture = np.zeros((16, 16, channels), np.uint8)
        picture[:, :4] = 200
        views = views_of(picture)
        return (views[:, 0, 8, 0] < views[:, 0, 8, 15]).float().mean()

    assert mirrored(1) == 0
    assert 0.35 < mirrored(3) < 0.65


def test_views_change_the_light_and_stay_within_bounds():
    grey = views_of(np.full((8, 8, 3), 128, np.uint8)).mean((-1, -2, -3)) / (128.5 / 256)
    assert 0.69 < grey.min() < 0.75
    assert 1.25 < grey.max() < 1.31
    white = views_of(np.full((8, 8, 3), 255, np.uint8))
    assert white.min() >= 0
    assert white.max() == 1


def test_an_epoch_yields_its_batches():
    drawn = source()
    batches = list(drawn.epoch(2))
    assert len(batches) == drawn.batches_per_epoch
    expected = drawn.images[drawn.epoch_indices(2)]
    assert torch.equal((torch.stack(batches) * 256).floor().to(torch.uint8), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_frames_compile_to_one_graph(kind):
    drawn = source(episodes=kind)
    frames = torch.compile(drawn.frames, fullgraph=True, backend="eager")
    assert frames(drawn.epoch_indices(0)[0]).shape == (3, 8, 3, 8, 8)


def test_augmented_frames_compile_to_one_graph():
    drawn = source(binary=True, binarise="random", training=True, **AUGMENTED)
    frames = torch.compile(drawn.frames, fullgraph=True, backend="eager")
    assert frames(drawn.epoch_indices(0)[0]).shape == (3, 8, 1, 8, 8)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_frames_can_be_held_in_a_cuda_graph(kind):
    drawn = source(episodes=kind, device="cuda")
    indices = drawn.epoch_indices(0).cuda()
    slot = indices[0].clone()
    drawn.frames(slot)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        frames = drawn.frames(slot)
    slot.copy_(indices[1])
    graph.replay()
    first = frames.clone()
    graph.replay()
    assert not torch.equal(first, frames)  # fresh noise at every replay
    if kind != "views":
        assert torch.equal((frames * 256).floor().to(torch.uint8), drawn.images[indices[1]])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("way", [{}, {"binary": True, "binarise": "random"}])
def test_augmented_frames_can_be_compiled_and_held_in_a_cuda_graph(way):
    drawn = source(device="cuda", training=True, **way, **AUGMENTED)
    slot = drawn.epoch_indices(0)[0].cuda()
    frames_of = torch.compile(drawn.frames, dynamic=False)
    frames_of(slot)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        frames = frames_of(slot)
    graph.replay()
    first = frames.clone()
    graph.replay()
    assert 0 <= frames.min() <= frames.max() <= 1
    assert not torch.equal(first, frames)

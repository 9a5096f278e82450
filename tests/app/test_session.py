"""What a visitor can do, without the page."""

import base64
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from tiny import KINDS, OWN_MODELS, noise, tiny_model
from vbmem.app import show
from vbmem.app.portraits import portraits
from vbmem.app.session import Session
from vbmem.app.shared import open_model
from vbmem.data import examples
from vbmem.errors import MemoryFileError, ModelError
from vbmem.memory.storage import save_memory


def tiny_session(kind: str, count: int = 9) -> Session:
    return Session.written(tiny_model(kind, called=kind), torch.from_numpy(noise(count)).movedim(-1, 1))


@pytest.fixture(scope="module")
def written() -> Session:
    """Crops of the temple in the memory of a shipped model."""
    model = open_model("cifar10-mixture")
    return Session.written(model, examples.draw("a temple", 64, model.frame, seed=0))


def test_a_write_keeps_the_codes_and_says_how_long_it_took(written: Session) -> None:
    assert written.memory.frames == 64
    assert written.codes is not None
    assert written.codes.shape == (64, 200)
    assert written.times is not None
    assert written.times.encode > 0
    assert written.times.write > 0


@pytest.mark.parametrize("kind", [*KINDS, *OWN_MODELS])
@pytest.mark.parametrize("count", [1, 9])
def test_every_kind_of_memory_can_be_shown_and_used(kind: str, count: int) -> None:
    session = tiny_session(kind, count)
    for part in (show.memory(session), show.generated(session, 2, 1, False)):
        assert "data:image/png" in part
    assert show.episode(session).count("<button") == count
    assert "<svg" in show.size_curves(session)
    assert session.generate(2).shape == (2, 3, 8, 8)
    assert replace(session, chosen=0).generate(2, reads=0, means=True).shape == (2, 3, 8, 8)
    recall = session.recall(3, noise=0.2, hidden=0.5, blur=1)
    assert recall.steps.shape == (3, 3, 8, 8)
    assert show.ranked(session, session.frames, ["a"] * count).count("nats</b>") == count
    assert session.resized(5).size == 5
    assert f"<b>5 {session.size_name}</b>" in show.size_curves(session.resized(5))


@pytest.mark.parametrize("kind", [*KINDS, *OWN_MODELS])
def test_the_page_names_clusters_only_where_a_memory_has_them(kind: str) -> None:
    session = tiny_session(kind)
    text = re.sub(r"<[^>]*>", " ", show.memory(session) + show.cluster_choice(session))
    assert ("cluster" in text) == ("clusters" in session.model.memory.sizes)
    several = session.memory.usage.shape[-1] > 1
    assert (f'aria-label="all {session.size_name}"' in show.cluster_choice(session)) == several


def test_a_memory_without_rows_says_nothing_of_how_pictures_vary() -> None:
    """That of characters is one mean, of less than a kilobyte."""
    model = open_model("omniglot-mixture")
    page = show.memory(Session.written(model, examples.characters()[0]))
    assert "have in common: a mean, decoded here." in page
    assert "varies" not in page
    assert re.search(r"<b>\d+ bytes</b>", page)


def test_the_page_says_when_the_memory_does_not_help(written: Session) -> None:
    assert "Here the memory helps." in show.recalled(written.picking(written.frames[7]), 2, 0.4, 0, 0)
    new = examples.draw("a flower", 1, written.model.frame, seed=0)[0]
    assert "Here the memory does not help" in show.recalled(written.picking(new), 2, 0, 0, 0)
    assert "itself is nearer still" in show.recalled(written.picking(new), 2, 0, 0, 0)
    assert "in no memory" not in show.recalled(written, 2, 0, 0, 0)
    assert "in no memory" in show.recalled(tiny_session("own part"), 1, 0, 0, 0)


def test_portraits_come_in_the_order_of_use_and_hold_every_frame(written: Session) -> None:
    drawn = portraits(written, 100)
    assert [p.frame_count for p in drawn] == sorted((p.frame_count for p in drawn), reverse=True)
    assert sum(len(p.frames) for p in drawn) == 64
    assert sorted(p.cluster for p in drawn) == list(range(10))
    assert drawn[0].mean.shape == (3, 32, 32)
    assert drawn[0].variations.shape == (6, 3, 32, 32)
    assert len(portraits(written, 4)) == 4


def test_a_trees_portraits_differ_from_cluster_to_cluster() -> None:
    drawn = portraits(tiny_session("tree"), 3)
    assert not torch.equal(drawn[0].mean, drawn[1].mean)
    assert drawn[0].variations.shape == (2, 3, 8, 8)


def test_a_clicked_cluster_gives_pictures_like_its_own_frames(written: Session) -> None:
    drawn = portraits(written, 10)
    centres = torch.stack([replace(written, chosen=portrait.cluster).generate(6).mean(0) for portrait in drawn])
    distances = (centres[:, None] - torch.stack([portrait.mean for portrait in drawn])).abs().flatten(2).mean(-1)
    nearest = distances.argmin(-1).tolist()
    assert sum(own == found for own, found in enumerate(nearest)) >= 8


def test_recalling_a_written_picture_helps_against_noise(written: Session) -> None:
    recall = written.picking(written.frames[7]).recall(2, noise=0.4, hidden=0, blur=0)
    with_memory, alone = recall.error(recall.steps[-1]), recall.error(recall.alone)
    assert with_memory < alone < recall.error(recall.damaged)
    assert recall.nearest is not None
    assert torch.equal(recall.nearest, written.frames[7])


def test_the_animation_begins_with_the_damaged_picture_and_ends(written: Session) -> None:
    page = show.recalled(written, 3, 0.3, 0, 0)
    contents = [base64.b64decode(found) for found in re.findall(r"data:image/png;base64,([^\"]+)", page)]
    images = map(Image.open, map(io.BytesIO, contents))
    lengths = [(getattr(image, "n_frames", 1), image.info.get("loop")) for image in images]
    assert [found for found in lengths if found[0] > 1] == [(4, 5)]
    assert "prefers-reduced-motion" in page


def test_pixels_that_are_known_stay_as_they_are(written: Session) -> None:
    recall = written.recall(2, noise=0, hidden=0.5, blur=0)
    for frame in (recall.alone, *recall.steps):
        assert torch.equal(frame[..., :16], recall.original[..., :16])
        assert not torch.equal(frame[..., 16:], recall.damaged[..., 16:])
    noisy = written.recall(2, noise=0.3, hidden=0.5, blur=0)
    assert not torch.equal(noisy.steps[-1][..., :16], noisy.damaged[..., :16])


def test_a_written_picture_is_nearest_to_itself(written: Session) -> None:
    found = written.nearest_written(written.frames[3:6] / 255)
    assert found is not None
    assert torch.equal(found, written.frames[3:6])


def test_what_is_not_of_the_episode_is_ranked_first_and_marked(written: Session) -> None:
    sources = ("a temple", "a flower")
    others = torch.cat([examples.draw(source, 6, written.model.frame, seed=1) for source in sources])
    nats, order = written.rank(others)
    assert nats.tolist() == sorted(nats.tolist())
    assert set(order[:4].tolist()) <= set(range(6, 12))
    page = show.ranked(written, others, ["temple"] * 6 + ["flower"] * 6)
    assert page.index("flower") < page.index("temple")
    assert 'class="new"' in page


def test_resizing_writes_the_same_pictures_anew(written: Session) -> None:
    small = written.resized(2)
    assert small.size == 2
    assert small.memory.frames == 64
    assert small.memory.nbytes < written.memory.nbytes / 4
    assert written.size == 10
    assert float(small.memory.usage.sum()) == pytest.approx(64, rel=1e-4)


def test_a_saved_memory_comes_back_without_the_pictures(written: Session, tmp_path: Path) -> None:
    written.resized(3).memory.save(path := tmp_path / "a.memory")
    loaded = written.loaded(path)
    assert loaded.size == 3
    assert loaded.memory.frames == 64
    assert "to write" not in show.memory(loaded)
    assert sum(len(p.frames) for p in portraits(loaded, 10)) == 0
    assert not torch.equal(loaded.frames, written.frames[: len(loaded.frames)])
    assert "A memory of <b>64 pictures</b>, which are not here" in show.episode(loaded)
    assert "nats" in show.ranked(loaded, loaded.frames, ["a"] * len(loaded.frames))
    assert "are not here" in show.generated(loaded, 2, 0, False)
    assert "are not here" in show.size_curves(loaded)
    assert loaded.recall(1, noise=0.2, hidden=0, blur=0).nearest is None
    for call in (loaded.try_sizes, lambda: loaded.resized(3)):
        with pytest.raises(ValueError, match="are not here; give pictures of yours"):
            call()


def test_a_memory_of_another_model_is_refused_with_both_names(written: Session, tmp_path: Path) -> None:
    tiny_session("mixture").memory.save(path := tmp_path / "a.memory")
    with pytest.raises(MemoryFileError, match=r"by the model 'mixture'.*not by 'cifar10-mixture'"):
        written.loaded(path)


def test_a_damaged_memory_file_is_refused_by_its_name_only(written: Session, tmp_path: Path) -> None:
    written.memory.save(good := tmp_path / "good.memory")
    bytes_ = good.read_bytes()
    contents = [b"", b"text", bytes_[:100], bytes_[:-1], bytes_.replace(b'"frames', b'"fromes')]
    contents += [bytes_.replace(b'"I64"', b'"F64"'), bytes_.replace(b'clusters\\": 10', b'clusters\\": 99')]
    for content in contents:
        (path := tmp_path / "bad.memory").write_bytes(content)
        with pytest.raises(MemoryFileError) as refused:
            written.loaded(path)
        assert str(tmp_path) not in str(refused.value)
    save_memory(path, written.model.memory, written.memory.state)
    with pytest.raises(MemoryFileError, match="bare memory"):
        written.loaded(path)


def test_sizes_that_cannot_be_are_refused(written: Session) -> None:
    for size in (0, -3, 97):
        with pytest.raises(ValueError, match="choose from 1 to 96"):
            written.resized(size)


def test_a_memory_is_shown_beside_the_size_of_its_pictures(written: Session) -> None:
    assert written.raw_bytes == 64 * 3 * 32 * 32
    page = show.save_link(written)
    assert "192 kB" in page
    assert "would take 1.7 times as much" in page
    assert "times what the pictures themselves would take" in show.save_link(written.resized(40))


def test_file_names_reach_the_page_as_text(written: Session) -> None:
    page = show.ranked(written, written.frames[:1], ["<script>${alert(1)}{{x}}.png"])
    assert "<script>" not in page
    assert "${" not in page
    assert "{{" not in page


def test_models_are_opened_once_and_bad_paths_are_one_sentence(tmp_path: Path) -> None:
    assert open_model("digits-mixture") is open_model("digits-mixture")
    for source in ("", "no such model", str(tmp_path), "cifar10-vae"):
        with pytest.raises(ModelError):
            open_model(source)

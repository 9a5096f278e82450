"""Letters that are drawn on the page, and more like them."""

import pytest

from vbmem.app.characters import drawn, read_drawings

EMPTY = [0] * 784
LETTER = [255 if 10 <= number % 28 <= 12 and 3 <= number // 28 <= 24 else 0 for number in range(784)]


def test_a_few_drawings_give_twenty_more() -> None:
    letters = read_drawings([LETTER, EMPTY, LETTER, [255, *EMPTY[1:]]])
    assert letters.shape == (2, 1, 28, 28)
    page = drawn(letters)
    assert page.count("new character") == 20
    assert "a memory of 2 drawings" in page


def test_nothing_drawn_is_said() -> None:
    assert "Nothing is drawn yet" in drawn(read_drawings([EMPTY] * 4))


@pytest.mark.parametrize(
    "squares",
    [
        None,
        "",
        [],
        [EMPTY] * 3,
        [EMPTY] * 5,
        [EMPTY[:-1]] * 4,
        [[*EMPTY[:-1], 256]] * 4,
        [[*EMPTY[:-1], "1"]] * 4,
        [1] * 4,
    ],
)
def test_what_no_page_sends_is_one_sentence(squares: object) -> None:
    with pytest.raises(ValueError, match="4 squares of 28 x 28 bytes; reload the page"):
        read_drawings(squares)

from typing import Any

import numpy as np

from vbmem.data import load_images


def test_digits_need_no_network_and_leave_no_file(tmp_path, no_network):
    digits: Any = load_images("digits", data_dir=tmp_path)
    assert digits.x_train.shape == (1438, 8, 8, 1)
    assert digits.x_test.shape == (359, 8, 8, 1)
    assert digits.x_train.min() == 0
    assert digits.x_train.max() == 255
    assert set(np.unique(digits.y_test)) == set(range(10))
    assert not list(tmp_path.iterdir())

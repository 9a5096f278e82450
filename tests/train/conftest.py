import pytest

pytest.register_assert_rewrite("train.runs")

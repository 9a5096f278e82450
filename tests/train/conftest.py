import pytest

pytest.register_assert_rewrite("tiny_runs")

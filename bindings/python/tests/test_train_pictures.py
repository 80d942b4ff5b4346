# SPDX-License-Identifier: Apache-2.0
"""The pictures' axes, and the words of the progress line."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("matplotlib", reason="matplotlib is not installed")
from pictures import robust_top
from progress import idle_words


def test_outliers_do_not_squeeze_the_others() -> None:
    assert robust_top([3, 2, 4, 3, 5, 90, 2, 3]) == 1.25 * 5
    assert robust_top([3, 2, 4, 3, 5, 2, 3]) == 5
    assert robust_top([22] * 8 + [4] * 16) == 22  # a third is no outlier
    assert robust_top([1, 1, 1, 1, 9]) == 1.25
    assert robust_top([1, 9]) == 9
    assert robust_top([0, 0, 0, 0, 9]) == 9


def test_idle_shares_of_many_ranks_fit_a_line() -> None:
    assert idle_words([0.12, 0.03, 0.09, 0]) == "idle 12 % 3 % 9 % 0 %"
    assert idle_words([0.5] * 16 + [0.1, 0.0]) == "idle 0 % to 50 %, mean 45 %"

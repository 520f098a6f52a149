from __future__ import annotations


def test_a_fifth_of_outliers_is_found_and_no_good_row_flagged(script):
    limits = script("adaptive_limits")
    assert limits.draw(150, 5, 0.2, (-1.0, 1.0), 500) == (True, 0)
    assert limits.draw(150, 10, 0.4, (1.0,), 500) == (False, 0)

"""Pictures leave matplotlib as it was."""

from __future__ import annotations

import matplotlib
import numpy as np

from shoal.report.curves import Line, draw_lines


def test_a_picture_changes_no_setting_of_matplotlib(tmp_path):
    before = dict(matplotlib.rcParams)
    draw_lines(tmp_path / "c.png", np.arange(3), [Line("x", np.eye(3), "blue", each=True)], "note", title="t")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert dict(matplotlib.rcParams) == before

"""Page of sizes relative to their start."""

import pytest
from support.errors import refuses

from orderone.measure.size_monitor import Size
from orderone.report import write_sizes


def size(step, name, relative, high=10.0):
    return Size(step, name, 2 * relative, relative, 0.1, high, 1.0)


@pytest.mark.parametrize("last", [3.0, 30.0])
def test_lines_corridors_and_what_left_them(last, tmp_path):
    sizes = [size(0, "mlp", 1.0), size(100, "mlp", last), size(0, "head", 1.0, high=20.0)]
    text = write_sizes(tmp_path / "sizes.html", sizes).read_text()
    assert "Corridor 0.1 to 10" in text
    assert "Corridor 0.1 to 20" in text
    assert ("mlp has RMS 60 at step 100" in text) == (last > 10)
    assert ("All sizes stayed inside" in text) == (last < 10)


def test_nothing_to_draw(tmp_path):
    with refuses("invalid-argument", argument="sizes"):
        write_sizes(tmp_path / "sizes.html", [])

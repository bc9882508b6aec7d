"""Old names of documented modules work, warn, and lead to the objects of the new module."""

import os
import subprocess
import sys

import pytest

from orderone.gallery.s0.bigram import Setting
from orderone.training.sinks import TensorBoard


def test_an_import_from_the_old_module_warns_and_gives_the_same_object():
    with pytest.warns(DeprecationWarning, match=r"orderone\.training\.sinks"):
        from orderone.sweeping.sinks import TensorBoard as Old  # pyright: ignore
    assert Old is TensorBoard


def test_an_attribute_of_the_old_module_warns():
    from orderone.gallery import bigram

    with pytest.warns(DeprecationWarning, match=r"orderone\.gallery\.s0\.bigram"):
        assert bigram.Setting is Setting


def test_a_name_that_never_existed_is_an_error():
    from orderone.sweeping import sinks

    with pytest.raises(AttributeError, match="NoSuchSink"):
        _ = sinks.NoSuchSink


def test_the_warning_names_the_line_of_the_user(tmp_path):
    """Python shows a DeprecationWarning only if it points into the user's script."""
    script = tmp_path / "mine.py"
    script.write_text("import json\nfrom orderone.sweeping.sinks import TensorBoard\n")
    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, env=os.environ
    )
    assert result.returncode == 0, result.stderr
    assert f"{script}:2: DeprecationWarning: orderone.sweeping.sinks" in result.stderr
